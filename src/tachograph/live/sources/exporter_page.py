"""Pages of one exporter, read again and again: as long as the series stay the same, only their numbers are read."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tachograph.arrays import Floats, Longs
from tachograph.live.sources.series import SLOWDOWN, Layout, Meaning
from tachograph.sources.metrics.exposition import Samples, labels_of, parse
from tachograph.sources.metrics.names import NODE_INFO, Own, metric_names, target_of_all

_LAST_STAMP_S = 1e11


@dataclass(frozen=True, slots=True)
class Reading:
    """What a page says. table: as `Layout.table`. stamps: seconds since 1970 per GPU, NaN where none is written.

    whole: it ends as pages do. lost: lines that could not be read. host: a page of a node, which tells of no GPU.
    """

    layout: Layout
    table: Floats
    stamps: Floats
    whole: bool = True
    lost: int = 0
    host: bool = False


@dataclass(slots=True)
class PageReader:
    """Reads the pages of one exporter. node: its host, for series that name none."""

    meaning: Meaning
    wanted: frozenset[str]
    node: str | None = None
    _layout: Layout = field(default_factory=Layout)
    _heads: list[str] | None = None
    _lines: list[int] = field(default_factory=list)

    def read(self, page: bytes) -> Reading:
        """Return what a page says, whatever it holds."""
        raw = self._numbers(page)
        if raw is None:
            return self._anew(page)
        return Reading(self._layout, self._layout.table(raw), np.full(len(self._layout.gpus), np.nan))

    def _numbers(self, page: bytes) -> Floats | None:
        """The values of the kept series, where the page has the same series as the one before; else None."""
        if self._heads is None or not page.endswith(b"\n"):
            return None
        try:
            split = [line.rpartition("} ") for line in page.decode().split("\n")]
            if [head for head, _, _ in split] != self._heads:
                return None
            written = [split[line][2] for line in self._lines]
            return None if any("_" in value for value in written) else np.array([float(value) for value in written])
        except ValueError:  # no UTF-8, no number, or a time behind it
            return None

    def _anew(self, page: bytes) -> Reading:
        samples = parse(page, wanted=self.wanted)
        series = [(name, labels_of(block)) for name, block in zip(samples.names, samples.labels, strict=True)]
        layout = self.meaning.layout(series, node=self.node)
        lost = {reject.reason: reject.count for reject in samples.rejects}
        self._learn(page, samples, layout)
        whole = "cut_off_line" not in lost
        values = np.array(samples.values, np.float64)[layout.kept]
        host = not layout.gpus and NODE_INFO in samples.names
        return Reading(layout, layout.table(values), _stamps(samples, layout), whole, sum(lost.values()), host)

    def _learn(self, page: bytes, samples: Samples, layout: Layout) -> None:
        """Remember which lines the values stand in, where every one can be found again."""
        self._heads = None
        if samples.rejects or not layout.gpus or any(stamp is not None for stamp in samples.stamps):
            return
        split = [line.rpartition("} ") for line in page.decode().split("\n")]
        lines = [number for number, (head, _, _) in enumerate(split) if head.partition("{")[0] in self.wanted]
        if [split[number][0].partition("{")[0] for number in lines] != samples.names:
            return
        self._layout, self._lines = layout, [lines[place] for place in layout.kept.tolist()]
        self._heads = [head for head, _, _ in split]
        told = self._numbers(page)
        if told is None or not np.array_equal(told, _kept(samples, layout.kept), equal_nan=True):
            self._heads = None


def wanted_metrics(own: Own) -> frozenset[str]:
    """Return the metrics that tell of GPUs, and the one by which a node tells its name."""
    names = metric_names(own=own)
    of_nodes = {name for name in names if (of := target_of_all(name, own=own)) and of.table == "node_samples"}
    of_gpus = (name for name in names if name not in of_nodes and not name.startswith("node_"))
    return frozenset((*of_gpus, SLOWDOWN, NODE_INFO))


def _kept(samples: Samples, kept: Longs) -> Floats:
    return np.array(samples.values, np.float64)[kept]


def _stamps(samples: Samples, layout: Layout) -> Floats:
    """The latest time written behind a value of each GPU."""
    made = np.full(len(layout.gpus), np.nan)
    if any(stamp is not None for stamp in samples.stamps):
        for place, cell in zip(layout.kept.tolist(), layout.cells.tolist(), strict=True):
            stamp = samples.stamps[place]
            if stamp is not None and 0 < stamp < _LAST_STAMP_S:
                row = cell % len(layout.gpus)
                made[row] = np.fmax(made[row], stamp)
    return made
