"""Labelled series of exporters and Prometheus in rows of GPUs, and the table of a fleet made of many sources.

GPU and counter of each series depend on its name and labels alone, so they are determined once: a `SeriesLayout`
is reused while the same series are in the same order, and only numbers are read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tachograph.catalog.arrays import Flags, Floats, Longs
from tachograph.catalog.counters import COUNTER_NAMES, COUNTERS, Counter
from tachograph.catalog.limits import DeviceFact, ValueLimits
from tachograph.live.snapshot import GpuAllocation, GpuDevice, GpuId, Snapshot, SourceProblem
from tachograph.sources.exporter_mapping import OF_CAPACITY
from tachograph.sources.exposition import PageSamples, labels_of, parse_page
from tachograph.sources.gpu_indices import AMBIGUOUS, SAME_TIME, LabelledGpu
from tachograph.sources.metrics import (
    MINOR_NUMBER,
    NODE_INFO,
    MetricTarget,
    SeriesLocation,
    SiteMetrics,
    UnusableLabels,
    exporter_of,
    job_of,
    metric_names,
    metric_target_of_all,
    short_node,
)
from tachograph.sources.series import SeriesVocabulary, labelled_gpu, named_host, raw_job_id

# a property that only live views use: the temperature at which a device lowers its clocks by itself
SLOWDOWN = "DCGM_FI_DEV_SLOWDOWN_TEMP"
_SLOWDOWN_TARGET = MetricTarget("devices", "slowdown_c", "C")
_HBM, _JOB, _SLOWDOWN = range(len(COUNTERS), len(COUNTERS) + 3)  # columns behind those of the counters
_FACTS = {"hbm_mib": _HBM, "slowdown_c": _SLOWDOWN, "job_id": _JOB}
_COLUMN = {counter.name: number for number, counter in enumerate(COUNTERS)}
_WIDTH = len(COUNTERS) + 3
_RANGES: tuple[Counter | DeviceFact, ...] = (
    *COUNTERS, DeviceFact("MiB", float(1 << 22)), DeviceFact("", 1e18), DeviceFact("C", 200.0),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SeriesLayout:
    """The target cells of the values of some series.

    gpus: the rows, in the order of node, GPU, slice. kept: places of the relevant series, among all.
    cells: of each of them, column * rows + row; of series with the same value (a GPU shared by several jobs) the
    first is kept. counters: the reported ones, as columns of COUNTERS. named: those of which there is a series, whether
    its labels and values are usable or not. exporters: names of those that write such series. free: GPUs without a job
    in their labels, on nodes where the labels of another GPU name one.
    """

    gpus: tuple[GpuId, ...] = ()
    kept: Longs = field(default_factory=lambda: np.empty(0, np.int64))
    cells: Longs = field(default_factory=lambda: np.empty(0, np.int64))
    limits: ValueLimits = field(default_factory=lambda: ValueLimits.of(()))
    counters: Longs = field(default_factory=lambda: np.empty(0, np.int64))
    devices: Mapping[GpuId, GpuDevice] = field(default_factory=dict)
    allocations: Mapping[GpuId, GpuAllocation] = field(default_factory=dict)
    named: frozenset[int] = frozenset()
    exporters: frozenset[str] = frozenset()
    free: frozenset[GpuId] = frozenset()

    def table(self, raw: Floats) -> Floats:
        """Return the values of the kept series as (columns x rows), NaN where there is none."""
        made = np.full(_WIDTH * len(self.gpus), np.nan)
        made[self.cells] = self.limits.convert(raw)
        return made.reshape(_WIDTH, len(self.gpus))

    def devices_of(self, table: Floats) -> Mapping[GpuId, GpuDevice]:
        """Return devices, with capacity and slowdown temperature where series report them."""
        found = dict(self.devices)
        facts = table[[_HBM, _SLOWDOWN]]
        for row in np.flatnonzero((facts > 0).any(axis=0)).tolist():
            hbm_mib, slowdown_c = (value if value > 0 else None for value in facts[:, row].tolist())
            old = found.get(self.gpus[row], GpuDevice())
            found[self.gpus[row]] = replace(old, hbm_mib=hbm_mib, slowdown_c=slowdown_c)
        return found

    def allocations_of(self, table: Floats) -> Mapping[GpuId, GpuAllocation]:
        """Return allocations, from labels, or from series whose value is a job id."""
        found = dict(self.allocations)
        for row in np.flatnonzero(table[_JOB] > 0).tolist():
            job = job_of(repr(float(table[_JOB, row])))
            if job is not None:
                found.setdefault(self.gpus[row], GpuAllocation(job))
        return found


def series_layout(
    series: Sequence[tuple[str, Mapping[str, str]]], vocabulary: SeriesVocabulary, *, node: str | None = None
) -> SeriesLayout:
    """Return the target cells of series, given by metric and labels.

    node: host of series that name none; the host of node_uname_info in a page has priority. Series that are
    irrelevant here, or name no GPU, are left out. A GPU has the index of its UUID; an ambiguous one no job.
    """
    node = named_host(series) or node
    node = None if node is None else short_node(node)
    found: list[tuple[int, MetricTarget, SeriesLocation, LabelledGpu]] = []
    known: dict[tuple[int, int], tuple[SeriesLocation, LabelledGpu] | None] = {}
    named: set[int] = set()
    exporters: dict[str, str] = {}  # {metric: exporter}
    for number, (metric, labels) in enumerate(series):
        of = vocabulary.target(metric, labels) or (_SLOWDOWN_TARGET if metric == SLOWDOWN else None)
        if of is None or of.table == "node_samples":
            continue
        if of.table == "gpu_samples":
            named.add(_COLUMN[of.column])
            exporters.setdefault(metric, exporter_of(metric))
        key = (id(labels), id(of.labels))  # the labels of one GPU are one object for all metrics
        if key not in known:
            known[key] = _located(labels, of, vocabulary, node)
        located = known[key]
        if located is not None:
            found.append((number, of, *located))
    placed = vocabulary.indices.places(dict.fromkeys((labelled for _, _, _, labelled in found), SAME_TIME))
    spots: list[tuple[int, MetricTarget, GpuId]] = []
    places: dict[GpuId, SeriesLocation] = {}
    jobs: dict[GpuId, dict[str, None]] = {}
    minors: dict[GpuId, int] = {}
    unclear: set[str] = set()  # nodes with a GPU whose job is unknown
    for number, of, where, labelled in found:
        index, reason, _ = placed[labelled]
        if index is None or reason == AMBIGUOUS or labelled.mig is not None:
            unclear.add(labelled.node)
        if index is None or (reason == AMBIGUOUS and of.table == "allocations"):
            continue
        gpu = GpuId(labelled.node, index, labelled.mig)
        if of.unit != OF_CAPACITY:  # which needs the capacity, too
            spots.append((number, of, gpu))
        if where.rank == MINOR_NUMBER and where.gpu is not None and reason != AMBIGUOUS:
            minors[gpu] = where.gpu
        if gpu not in places or where.rank < places[gpu].rank:
            places[gpu] = where if reason != AMBIGUOUS else replace(where, uuid=None, pci=None)
        job = raw_job_id(where.job)
        if job and reason != AMBIGUOUS:
            jobs.setdefault(gpu, {})[job] = None
    laid = _laid(spots, places, jobs, minors)
    labelling = {gpu.node for gpu in jobs} - unclear
    return replace(
        laid,
        named=frozenset(named),
        exporters=frozenset(exporters.values()) - {""},
        free=frozenset(gpu for gpu in laid.gpus if gpu.node in labelling and gpu not in jobs),
    )


def _located(
    labels: Mapping[str, str], of: MetricTarget, vocabulary: SeriesVocabulary, node: str | None
) -> tuple[SeriesLocation, LabelledGpu] | None:
    where = vocabulary.location(labels, of)
    host = None if isinstance(where, UnusableLabels) else where.node or node
    if isinstance(where, UnusableLabels) or host is None:
        return None
    labelled = labelled_gpu(host, where)
    return None if labelled is None else (where, labelled)


def _laid(
    spots: list[tuple[int, MetricTarget, GpuId]],
    places: Mapping[GpuId, SeriesLocation],
    jobs: Mapping[GpuId, Iterable[str]],
    minors: Mapping[GpuId, int],
) -> SeriesLayout:
    gpus = tuple(sorted(places, key=GpuId.order))
    rows = {gpu: row for row, gpu in enumerate(gpus)}
    kept: dict[int, tuple[int, int, str]] = {}  # {cell: (series, column, unit)}
    parts: dict[tuple[int, bool], str] = {}
    several: set[int] = set()  # cells of which parts would have to be joined
    for number, of, gpu in sorted(spots, key=lambda spot: spot[1].joining.fallback):
        column = _COLUMN[of.column] if of.table == "gpu_samples" else _FACTS.get(of.column)
        if column is None:  # labels alone
            continue
        cell = column * len(gpus) + rows[gpu]
        kept.setdefault(cell, (number, column, of.unit))
        if parts.setdefault((cell, of.joining.fallback), of.part) != of.part:
            several.add(cell)
    kept = {cell: one for cell, one in kept.items() if cell not in several}
    columns = {column for _, column, _ in kept.values() if column < _HBM}
    limits = ValueLimits.of((_RANGES[column], unit) for _, column, unit in kept.values())
    return SeriesLayout(
        gpus,
        np.array([number for number, _, _ in kept.values()], np.int64),
        np.array(list(kept), np.int64),
        limits.of_slices(np.array([gpus[cell % len(gpus)].mig is not None for cell in kept], np.bool_)),
        np.array(sorted(columns), np.int64),
        {
            gpu: GpuDevice(where.model, where.uuid, where.pci, minor_number=minors.get(gpu))
            for gpu, where in places.items()
        },
        {gpu: GpuAllocation(",".join(named)) for gpu, named in jobs.items()},
    )


_LAST_STAMP_S = 1e11


@dataclass(frozen=True, slots=True)
class PageReading:
    """Content of a page. table: as `SeriesLayout.table`. stamps: seconds since 1970 per GPU, NaN without a timestamp.

    whole: it has a complete end. lost: lines that could not be read. host: a page of a node, which reports no GPU.
    """

    layout: SeriesLayout
    table: Floats
    stamps: Floats
    whole: bool = True
    lost: int = 0
    host: bool = False


@dataclass(slots=True)
class LivePageReader:
    """Reads the pages of one exporter. node: its host, for series that name none."""

    vocabulary: SeriesVocabulary
    wanted: frozenset[str]
    node: str | None = None
    _layout: SeriesLayout = field(default_factory=SeriesLayout)
    _series: tuple[list[str], list[str]] | None = None  # names and labels of the page before
    _version: int = -1

    @property
    def current(self) -> bool:
        """Whether the page read last would have the same GPUs now: other pages may have shown their indices since."""
        return self._version == self.vocabulary.indices.version

    def read(self, page: bytes) -> PageReading:
        """Return the content of a page; invalid lines raise no error."""
        samples = parse_page(page, wanted=self.wanted)
        if self._series != (samples.names, samples.labels) or not self.current:
            series = [(name, labels_of(block)) for name, block in zip(samples.names, samples.labels, strict=True)]
            self._layout = series_layout(series, self.vocabulary, node=self.node)
            self._series, self._version = (samples.names, samples.labels), self.vocabulary.indices.version
        layout = self._layout
        lost = {reject.reason: reject.count for reject in samples.rejects}
        whole = "cut_off_line" not in lost
        table = layout.table(np.array(samples.values, np.float64)[layout.kept])
        host = not layout.gpus and NODE_INFO in samples.names
        return PageReading(layout, table, _stamps(samples, layout), whole, sum(lost.values()), host)


def wanted_metrics(own: SiteMetrics) -> frozenset[str]:
    """Return the metrics of GPUs, and the one by which a node reports its name."""
    names = metric_names(own=own)
    of_nodes = {name for name in names if (of := metric_target_of_all(name, own=own)) and of.table == "node_samples"}
    of_gpus = (name for name in names if name not in of_nodes and not name.startswith("node_"))
    return frozenset((*of_gpus, SLOWDOWN, NODE_INFO))


def _stamps(samples: PageSamples, layout: SeriesLayout) -> Floats:
    """The latest timestamp of a value of each GPU."""
    made = np.full(len(layout.gpus), np.nan)
    if any(stamp is not None for stamp in samples.stamps):
        for place, cell in zip(layout.kept.tolist(), layout.cells.tolist(), strict=True):
            stamp = samples.stamps[place]
            if stamp is not None and 0 < stamp < _LAST_STAMP_S:
                row = cell % len(layout.gpus)
                made[row] = np.fmax(made[row], stamp)
    return made


KEPT_S = 3600.0  # a GPU that no source reports keeps its row for so long


@dataclass(frozen=True, slots=True)
class _FleetPart:
    """The part of one source in the table."""

    layout: SeriesLayout
    rows: Longs
    measured: Floats
    devices: Mapping[GpuId, GpuDevice]
    allocations: Mapping[GpuId, GpuAllocation]


@dataclass(slots=True)
class SeriesTable:
    """Values by counter and GPU, of sources identified by a number; each owns the cells it reported last.

    GPUs seen once stay as rows for an hour: a GPU that reports nothing any more must be visible.
    """

    gpus: tuple[GpuId, ...] = ()
    _rows: dict[GpuId, int] = field(default_factory=dict)
    _values: Floats = field(default_factory=lambda: np.empty((len(COUNTER_NAMES), 0)))
    _ever: Flags = field(default_factory=lambda: np.zeros(len(COUNTER_NAMES), np.bool_))
    _named: set[int] = field(default_factory=set)
    _exporters: set[str] = field(default_factory=set)
    _parts: dict[int, _FleetPart] = field(default_factory=dict)
    _devices: dict[GpuId, GpuDevice] = field(default_factory=dict)
    _unreported: dict[GpuId, float] = field(default_factory=dict)  # since when no source reports it
    _made: Snapshot | None = None

    @property
    def reported(self) -> list[str]:
        """Counters of which a value was reported."""
        return [name for name, ever in zip(COUNTER_NAMES, self._ever.tolist(), strict=True) if ever]

    @property
    def named(self) -> list[str]:
        """Counters of which there was a series, usable or not."""
        return [COUNTER_NAMES[number] for number in sorted(self._named)]

    @property
    def exporters(self) -> tuple[str, ...]:
        """Names of the exporters that write these series, as far as known."""
        return tuple(sorted(self._exporters))

    def enter(self, gpus: Iterable[GpuId]) -> None:
        """Give every GPU a row; known ones keep their values. One call for many GPUs is faster."""
        new = [gpu for gpu in gpus if gpu not in self._rows]
        if not new:
            return
        self._arrange(tuple(sorted({*self.gpus, *new}, key=GpuId.order)))

    def _arrange(self, gpus: tuple[GpuId, ...]) -> None:
        """Give rows to these GPUs and to no others."""
        rows = {gpu: row for row, gpu in enumerate(gpus)}
        moved = np.full((len(COUNTER_NAMES), len(gpus)), np.nan)
        stay = [gpu for gpu in self.gpus if gpu in rows]
        moved[:, [rows[gpu] for gpu in stay]] = self._values[:, [self._rows[gpu] for gpu in stay]]
        self.gpus, self._rows, self._values = gpus, rows, moved
        for source, part in self._parts.items():
            self._parts[source] = replace(part, rows=np.array([rows[gpu] for gpu in part.layout.gpus], np.int64))

    def put(self, source: int, layout: SeriesLayout, table: Floats, measured: Floats | float) -> None:
        """Replace the values of a source by its new ones; measured: per row, or of all."""
        self.enter(layout.gpus)
        self._clear(source)
        rows = np.array([self._rows[gpu] for gpu in layout.gpus], np.int64)
        when = np.full(len(rows), measured, np.float64) if isinstance(measured, float) else measured
        devices, allocations = layout.devices_of(table), layout.allocations_of(table)
        self._parts[source] = _FleetPart(layout, rows, when, devices, allocations)
        self._values[np.ix_(layout.counters, rows)] = table[layout.counters]
        self._named |= layout.named
        self._exporters |= layout.exporters
        self._ever[layout.counters] |= ~np.isnan(table[layout.counters]).all(axis=1)
        for gpu, device in devices.items():
            old = self._devices.get(gpu)
            if device.minor_number is None and old is not None and old.uuid == device.uuid:
                device = replace(device, minor_number=old.minor_number)  # of another exporter
            self._devices[gpu] = device
        self._made = None

    def patch(self, source: int, layout: SeriesLayout, table: Floats, measured: float) -> None:
        """Update a part of the values of a source: values it does not report now stay."""
        part = self._parts.get(source)
        if part is None:
            self.put(source, layout, table, measured)
            return
        for row, gpu in enumerate(layout.gpus):
            here = self._rows.get(gpu)
            if here is not None:
                new = table[: len(COUNTER_NAMES), row]
                self._values[:, here] = np.where(np.isnan(new), self._values[:, here], new)
                part.measured[part.rows == here] = measured
        self._made = None

    def forget(self, source: int) -> None:
        """Drop the values of a source: they are too old to be shown."""
        if source in self._parts:
            self._clear(source)
            self._made = None

    def snapshot(self, t: float, problems: Sequence[SourceProblem]) -> Snapshot:
        """Return a copy of the table; later changes do not affect it."""
        if self._made is None:
            self._drop_unreported(t)
            self._made = self._snapshot(t)
        self._made = replace(self._made, t=t, problems=tuple(problems))
        return self._made

    def _snapshot(self, t: float) -> Snapshot:
        kept = self._values.copy()
        values = {name: kept[number] for number, name in enumerate(COUNTER_NAMES) if self._ever[number]}
        measured = np.full(len(self.gpus), np.nan)
        allocations: dict[GpuId, GpuAllocation] = {}
        free: set[GpuId] = set()
        for part in self._parts.values():
            measured[part.rows] = np.fmax(measured[part.rows], part.measured)
            allocations.update(part.allocations)
            free |= part.layout.free
        measured[np.isnan(kept).all(axis=0)] = np.nan
        devices = dict(self._devices)
        return Snapshot(t, self.gpus, measured, values, devices, allocations, free=frozenset(free - allocations.keys()))

    def _drop_unreported(self, t: float) -> None:
        """Drop rows without values for too long; a broken page may name any number of GPUs."""
        reported = {gpu for part in self._parts.values() for gpu in part.layout.gpus}
        if len(reported) == len(self.gpus):
            self._unreported = {}
            return
        self._unreported = {gpu: self._unreported.get(gpu, t) for gpu in self.gpus if gpu not in reported}
        gone = {gpu for gpu, since in self._unreported.items() if abs(t - since) > KEPT_S}
        if gone:
            self._arrange(tuple(gpu for gpu in self.gpus if gpu not in gone))
            self._devices = {gpu: device for gpu, device in self._devices.items() if gpu not in gone}

    def _clear(self, source: int) -> None:
        part = self._parts.pop(source, None)
        if part is not None:
            self._values[np.ix_(part.layout.counters, part.rows)] = np.nan
