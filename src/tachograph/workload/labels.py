"""Labels of many readings at once: arrays in, the places of their classes out; the same rules as for one reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tachograph.arrays import Bytes, Singles
from tachograph.workload import kernel
from tachograph.workload.classes import CLASSES
from tachograph.workload.rows import COUNTERS
from tachograph.workload.settings import Settings


@dataclass(frozen=True, slots=True)
class MinuteLabeller:
    """Labels the minutes of GPUs by their means, while samples are reduced (reduce.partition.Labeller)."""

    settings: Settings = field(default_factory=Settings)

    @property
    def labels(self) -> int:
        """How many classes there are, unknown among them."""
        return len(CLASSES)

    @property
    def counters(self) -> tuple[str, ...]:
        """Counters that decide."""
        return COUNTERS

    def __call__(self, means: Mapping[str, Singles], size: int) -> Bytes:
        """Return for each of `size` minutes the place of its class in CLASSES."""
        return classify_arrays(means, size, self.settings)


def classify_arrays(values: Mapping[str, Singles], size: int, settings: Settings) -> Bytes:
    """Return for each of `size` readings the place of its class in CLASSES.

    `values`: {counter: fractions 0..1, or bytes per second}; NaN, or a counter that is not there: nobody measured it.

    >>> [CLASSES[one] for one in classify_arrays({"sm_active": np.array([0.9], np.float32)}, 1, Settings())]
    ['unknown']
    """
    nothing = np.full(size, np.nan, np.float32)
    columns = (np.ascontiguousarray(values.get(name, nothing), np.float32) for name in COUNTERS)
    sm, tensor, dram, gr, util, fp64, dfma, tx, rx, copy = columns
    label = np.empty(size, np.uint8)
    weights = np.array(settings.weights)
    kernel.classify(sm, tensor, dram, gr, util, fp64, dfma, tx, rx, copy, weights, settings.published, label)
    return label
