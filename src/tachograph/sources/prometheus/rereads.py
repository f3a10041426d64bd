"""Which rows are values that were read again: Prometheus may scrape an exporter more often than that looks at its GPUs.

The rule is that of `sources.metrics.reread`, here for the many rows that one window has of a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tachograph.arrays import Floats, Longs

_NEARLY = 0.9  # a scrape may come a little earlier than the exporter's own look
_Row = tuple[int, tuple[tuple[str, float], ...]]
Mask: TypeAlias = NDArray[np.bool_]


@dataclass(slots=True)
class Rereads:
    """Remembers the row last kept of each GPU. `refresh_s`: between two looks of the exporter; 0: every row is new."""

    refresh_s: float = 0.0
    _kept: dict[object, _Row] = field(default_factory=dict)

    def fresh(self, unit: object, t: Longs, columns: Mapping[str, Floats]) -> Mask:
        """Return which rows of a GPU are new samples, not the values last kept read again.

        >>> t = np.arange(0, 60_000, 10_000)
        >>> Rereads(30).fresh("gpu", t, {"gpu_util": np.array([1.0, 1, 1, 1, 2, 2])}).tolist()
        [True, False, False, True, True, False]
        """
        mask = np.ones(t.size, dtype=np.bool_)
        if not self.refresh_s or not t.size:
            return mask
        names = sorted(columns)
        values = np.stack([columns[name] for name in names])
        last, told = self._kept.get(unit, (None, ()))
        same = told == _told(names, values[:, 0])
        changed = ((values[:, 1:] != values[:, :-1]) & ~(np.isnan(values[:, 1:]) & np.isnan(values[:, :-1]))).any(
            axis=0
        )
        starts = [0, *(np.flatnonzero(changed) + 1).tolist(), t.size]
        span = round(_NEARLY * self.refresh_s * 1000)
        mask[:] = False
        for start, end in pairwise(starts):
            i = start
            if start == 0 and same and last is not None:
                i = int(np.searchsorted(t, last + span))
            while i < end:
                mask[i] = True
                last = int(t[i])
                i = max(i + 1, int(np.searchsorted(t, last + span)))
        kept = np.flatnonzero(mask)
        if kept.size:
            self._kept[unit] = (int(t[kept[-1]]), _told(names, values[:, kept[-1]]))
        return mask


def _told(names: list[str], values: Floats) -> tuple[tuple[str, float], ...]:
    """What a row tells; what it does not is left out, since NaN equals nothing."""
    return tuple((name, float(value)) for name, value in zip(names, values, strict=True) if value == value)
