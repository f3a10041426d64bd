"""Pages of exporters become contract rows, one per GPU or node and time, with devices and allocations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter

import polars as pl

from tachograph.catalog.chunks import ChunkPart, Reject
from tachograph.catalog.tables import TIME
from tachograph.catalog.units import factor
from tachograph.sources.exposition import PageSamples, labels_of, parse_page
from tachograph.sources.metrics import (
    NO_SITE_METRICS,
    NODE_INFO,
    USUAL_LABELS,
    LabelNames,
    MetricTarget,
    SeriesLocation,
    SiteMetrics,
    TableName,
    UnusableLabels,
    job_of,
    locate,
    metric_names,
    metric_target,
    metric_target_of_all,
    short_node,
)
from tachograph.sources.slurm.fields import BadRowError, job_id

_HeldUnit = tuple[str, int, int | None]  # node, GPU, MIG slice
_UNIT = ("node", "gpu", "mig")
_Hold = tuple[str, str, int, int | None, datetime, datetime | None]  # job, unit, start, end; None: it still does


@dataclass(slots=True)
class PageAllocations:
    """Who held what at the last look; a new process knows of nobody. {GPU: {job: since when}}"""

    _now: dict[_HeldUnit, dict[str, datetime]] = field(default_factory=dict)

    def changes(self, parts: Iterable[ChunkPart], now: datetime) -> pl.DataFrame:
        """Return where the jobs that `parts` name began or ceased to hold a GPU: rows of `allocations`.

        A look at a GPU is when its samples are of; without a sample it is `now`.
        """
        looks, named = _scrape_times(parts, now)
        rows = [row for unit, t in looks.items() for row in self._changes(unit, t, named.get(unit, {}))]
        schema = {"job_id": pl.String(), "node": pl.String(), "gpu": pl.Int16(), "mig": pl.Int16()}
        frame = pl.DataFrame(rows, schema={**schema, "start": TIME, "end": TIME}, orient="row")
        return frame.with_columns(provenance=pl.lit("explicit"))

    def _changes(self, unit: _HeldUnit, t: datetime, jobs: Mapping[str, None]) -> Iterator[_Hold]:
        held = self._now.setdefault(unit, {})
        for job in [job for job in held if job not in jobs]:
            yield job, *unit, held.pop(job), t
        for job in jobs:
            if job not in held:
                held[job] = t
                yield job, *unit, t, None


def _scrape_times(
    parts: Iterable[ChunkPart], now: datetime
) -> tuple[dict[_HeldUnit, datetime], dict[_HeldUnit, dict[str, None]]]:
    """When each GPU was looked at, and the jobs that were named on it."""
    looks: dict[_HeldUnit, datetime] = {}
    named: dict[_HeldUnit, dict[str, None]] = {}
    for part in parts:
        if part.table == "gpu_samples" and part.frame.height:
            for *unit, t in part.frame.select(*_UNIT, "t").iter_rows():
                node, gpu, mig = unit
                looks[node, gpu, mig] = max(t, looks.get((node, gpu, mig), t))
        elif part.table == "allocations" and part.frame.height:
            for job, node, gpu, mig in part.frame.select("job_id", *_UNIT).iter_rows():
                named.setdefault((node, gpu, mig), {})[job] = None
    return {**dict.fromkeys(named, now), **looks}, named


_REREAD_KEYS = ("node", "gpu", "mig")
_NEARLY = 0.9  # a scrape may come a little earlier than the exporter's own round


class PageRereads:
    """Remembers the last row kept of each GPU; a new process knows none and keeps the first row it sees."""

    def __init__(self, refresh_s: float) -> None:
        self._span = timedelta(seconds=_NEARLY * refresh_s)
        self._kept: pl.DataFrame | None = None

    def fresh(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of gpu_samples that are new samples.

        A row is none when all its values equal those of the row last kept of its GPU, and that is younger than nine
        tenths of the time between two looks of the exporter.
        """
        fresh = frame if self._kept is None else frame.filter(~self._again(frame, self._kept))
        self._remember(fresh)
        return fresh

    def _again(self, frame: pl.DataFrame, kept: pl.DataFrame) -> pl.Series:
        values = [name for name in dict.fromkeys((*frame.columns, *kept.columns)) if name not in (*_REREAD_KEYS, "t")]
        now, before = (_with(values, rows).select(*_REREAD_KEYS, "t", *values) for rows in (frame, kept))
        joined = now.join(before, on=_REREAD_KEYS, how="left", nulls_equal=True, maintain_order="left", suffix="_kept")
        same = [pl.col(name).eq_missing(pl.col(f"{name}_kept")) for name in values]
        age = pl.col("t") - pl.col("t_kept")
        young = (age < self._span) & (age > timedelta(0))
        return joined.select((young & pl.all_horizontal(pl.lit(value=True), *same)).fill_null(value=False)).to_series()

    def _remember(self, fresh: pl.DataFrame) -> None:
        last = fresh.sort("t").unique(subset=list(_REREAD_KEYS), keep="last")
        if self._kept is not None:
            others = self._kept.join(last, on=_REREAD_KEYS, how="anti", nulls_equal=True)
            last = pl.concat([others, last], how="diagonal")
        self._kept = last


def _with(values: list[str], rows: pl.DataFrame) -> pl.DataFrame:
    """Rows with all these columns, null where they had none."""
    return rows.with_columns(pl.lit(None, dtype=pl.Float64).alias(name) for name in values if name not in rows.columns)


_LAST_STAMP_S = 1e11
_KEPT = 1 << 17  # labels whose meaning is remembered

_TimedUnit = tuple[str, int | None, int | None, int]  # node, gpu, mig, microseconds since 1970
_Sample = tuple[str, str, float, float | None]


class PageVocabulary:
    """What metrics and labels mean at a site; remembers labels, which are the same in every scrape."""

    def __init__(self, *, metrics: SiteMetrics = NO_SITE_METRICS, labels: LabelNames = USUAL_LABELS) -> None:
        self.metrics = metrics
        self.wanted = frozenset((*metric_names(own=metrics), NODE_INFO))
        self._labels = labels
        self._targets: dict[tuple[str, str], MetricTarget | None] = {}
        self._places: dict[str, SeriesLocation | UnusableLabels] = {}

    def target(self, metric: str, block: str) -> MetricTarget | None:
        """Where the values of a series belong."""
        key = (metric, block)
        if key not in self._targets:
            if len(self._targets) > _KEPT:
                self._targets.clear()
            self._targets[key] = metric_target(metric, labels_of(block), own=self.metrics)
        return self._targets[key]

    def place(self, block: str) -> SeriesLocation | UnusableLabels:
        """What the labels of a series name."""
        if block not in self._places:
            if len(self._places) > _KEPT:
                self._places.clear()
            self._places[block] = locate(labels_of(block), names=self._labels)
        return self._places[block]


@dataclass(slots=True)
class _Spot:
    """Where the values of one set of labels go: its unit as a GPU and as a node. None: it is none, and why."""

    place: SeriesLocation | None
    gpu: int | None = None
    node: int | None = None
    problem: str = ""
    example: str = ""


@dataclass(slots=True)
class ExporterRows:
    """Rows put together from pages. `known`: samples of metrics that mean something here.

    Series that are written once per job, pod or container are one value; one that differs is `conflicting_value`.
    """

    vocabulary: PageVocabulary
    known: int = 0
    _units: dict[_TimedUnit, int] = field(default_factory=dict)
    _columns: dict[MetricTarget, dict[int, float]] = field(default_factory=dict)
    _devices: dict[tuple[str, int, int | None], SeriesLocation] = field(default_factory=dict)
    _jobs: dict[tuple[str, str, int, int | None], None] = field(default_factory=dict)
    _rejects: dict[tuple[TableName, str, str | None], Reject] = field(default_factory=dict)

    def add(self, page: bytes, *, t: datetime, node: str | None) -> int:
        """Take in one page, scraped at `t` from an exporter on `node`; return how many of its samples are known here.

        A time written behind a value comes before `t`; a host that the page names comes before `node`.
        """
        samples = parse_page(page, wanted=self.vocabulary.wanted)
        for reject in samples.rejects:
            self._count("gpu_samples", reject)
        filling = _Filling(self, round(t.timestamp() * 1e6), _host(samples) or node)
        before = self.known
        for metric, series in groupby(samples, key=itemgetter(0)):
            of_all = metric_target_of_all(metric, own=self.vocabulary.metrics)
            if of_all is not None:
                filling.fill(of_all, series)
            elif metric != NODE_INFO:
                for of_some, some in self._by_target(metric, series):
                    filling.fill(of_some, some)
        return self.known - before

    def _by_target(self, metric: str, series: Iterable[_Sample]) -> Iterable[tuple[MetricTarget, list[_Sample]]]:
        """The series of one metric, put together by where their labels send them."""
        found: dict[str, tuple[MetricTarget, list[_Sample]]] = {}
        for sample in series:
            of = self.vocabulary.target(metric, sample[1])
            if of is not None:
                found.setdefault(of.column, (of, []))[1].append(sample)
        return found.values()

    def parts(self) -> tuple[ChunkPart, ...]:
        """Return the rows gathered, table by table; rejects are with the first part of their table."""
        made = [*self._samples("gpu_samples"), *self._samples("node_samples")]
        made += [part for part in (self._device_part(), self._allocation_part()) if part.frame.height]
        rejects: dict[str, list[Reject]] = {}
        for (table, _, _), reject in self._rejects.items():
            rejects.setdefault(table, []).append(reject)
        counted = [ChunkPart(p.table, p.frame, p.units, tuple(rejects.pop(p.table, ())), p.overlaps) for p in made]
        return (*counted, *(ChunkPart(table, pl.DataFrame(), rejects=tuple(left)) for table, left in rejects.items()))

    def unit(self, node: str, gpu: int | None, mig: int | None, t_us: int) -> int:
        """Number of a unit."""
        return self._units.setdefault((node, gpu, mig, t_us), len(self._units))

    def column(self, of: MetricTarget) -> dict[int, float]:
        """{unit: value} of a target."""
        return self._columns.setdefault(of, {})

    def note_device(self, found: SeriesLocation, node: str) -> None:
        """Remember what labels tell about a GPU, and which job holds it."""
        if found.gpu is None:
            return
        if found.uuid or found.pci or found.model:
            self._devices[node, found.gpu, found.mig] = found
        if found.job:
            self.note_job(found.job, node, found.gpu, found.mig)

    def note_job(self, written: str, node: str, gpu: int, mig: int | None) -> None:
        """Remember that a job holds a GPU."""
        try:
            self._jobs[job_id(written).raw, node, gpu, mig] = None
        except BadRowError as problem:
            self.refuse("allocations", problem.reason, None, written)

    def refuse(self, table: TableName, reason: str, column: str | None, example: str) -> None:
        """Count one sample that is given up."""
        self._count(table, Reject(reason, column, 1, example[:200]))

    def _count(self, table: TableName, reject: Reject) -> None:
        key = (table, reject.reason, reject.column)
        before = self._rejects.get(key)
        count = reject.count + (before.count if before else 0)
        self._rejects[key] = Reject(reject.reason, reject.column, count, before.example if before else reject.example)

    def _samples(self, table: TableName) -> Iterator[ChunkPart]:
        """One part; a second one where exporters write a counter in two units."""
        layers: list[dict[str, MetricTarget]] = []
        for of in self._columns:
            if of.table == table and self._columns[of]:
                layer = next((layer for layer in layers if of.column not in layer), None)
                if layer is None:
                    layers.append(layer := {})
                layer[of.column] = of
        for layer in layers:
            yield ChunkPart(table, self._frame(layer.values(), table), {name: of.unit for name, of in layer.items()})

    def _frame(self, targets: Iterable[MetricTarget], table: TableName) -> pl.DataFrame:
        columns = {of.column: self._columns[of] for of in targets}
        used = sorted(set().union(*columns.values()))
        units = list(self._units)
        keys = [units[number] for number in used]
        series = [
            pl.Series("t", [key[3] for key in keys], dtype=pl.Int64).cast(TIME),
            pl.Series("node", [key[0] for key in keys], dtype=pl.String),
        ]
        if table == "gpu_samples":
            series.append(pl.Series("gpu", [key[1] for key in keys], dtype=pl.Int16))
            series.append(pl.Series("mig", [key[2] for key in keys], dtype=pl.Int16))
        for name, values in columns.items():
            series.append(pl.Series(name, [values.get(number) for number in used], dtype=pl.Float64))
        return pl.DataFrame(series)

    def _device_part(self) -> ChunkPart:
        units = list(self._units)
        capacities: dict[tuple[str, int, int | None], float] = {}
        for of, values in self._columns.items():
            if of.table == "devices":
                to_mib = factor(of.unit, "MiB")
                for number, value in values.items():
                    node, gpu, mig, _ = units[number]
                    if gpu is not None:
                        capacities.setdefault((node, gpu, mig), value * to_mib)
        nothing = SeriesLocation(None)
        rows = [
            (*key, told.uuid, told.pci, told.model, capacities.get(key))
            for key in dict.fromkeys((*self._devices, *capacities))
            for told in (self._devices.get(key, nothing),)
        ]
        schema = {
            **_UNIT_SCHEMA,
            "uuid": pl.String(),
            "pci": pl.String(),
            "model": pl.String(),
            "hbm_mib": pl.Float64(),
        }
        return ChunkPart("devices", pl.DataFrame(rows, schema=schema, orient="row"), overlaps=True)

    def _allocation_part(self) -> ChunkPart:
        frame = pl.DataFrame(list(self._jobs), schema={"job_id": pl.String(), **_UNIT_SCHEMA}, orient="row")
        return ChunkPart("allocations", frame.with_columns(provenance=pl.lit("explicit")), overlaps=True)


_UNIT_SCHEMA: Mapping[str, pl.DataType] = {"node": pl.String(), "gpu": pl.Int16(), "mig": pl.Int16()}


class _Filling:
    """One page on its way into a gathering."""

    def __init__(self, gathering: ExporterRows, t_us: int, node: str | None) -> None:
        self._gathering = gathering
        self._t_us = t_us
        self._node = None if node is None else short_node(node)
        self._spots: dict[tuple[str, float | None], _Spot] = {}
        self._hosts: dict[tuple[str | None, float | None], _Spot] = {}

    def fill(self, of: MetricTarget, series: Iterable[_Sample]) -> None:
        """Put the values of series of one metric where they belong."""
        column = self._gathering.column(of)
        spots = self._spots
        for_nodes = of.table == "node_samples"
        samples = list(series)
        self._gathering.known += len(samples)
        for metric, block, value, stamp in samples:
            spot = spots.get((block, stamp)) or self._new_spot(block, stamp)
            unit = spot.node if for_nodes else spot.gpu
            if unit is None:
                self._gathering.refuse(of.table, spot.problem or "no_gpu", None, spot.example or f"{metric}{{{block}}}")
            elif of.table == "allocations":
                self._hold(spot, value)
            elif unit not in column:
                column[unit] = value
            elif of.adds_up:
                column[unit] += value
            elif column[unit] != value and value == value:
                self._gathering.refuse(of.table, "conflicting_value", of.column, f"{metric}{{{block}}} {value}")

    def _hold(self, spot: _Spot, value: float) -> None:
        job = job_of(repr(value))
        if job and spot.place is not None and spot.place.gpu is not None:
            node = spot.place.node or self._node or ""
            self._gathering.note_job(job, node, spot.place.gpu, spot.place.mig)

    def _new_spot(self, block: str, stamp: float | None) -> _Spot:
        found = self._gathering.vocabulary.place(block)
        if isinstance(found, UnusableLabels):
            spot = _Spot(None, problem=found.reason, example=found.example)
        elif found.gpu is None:  # the same for all CPUs and interfaces of a node
            spot = self._hosts.get((found.node, stamp)) or self._spot(found, stamp)
            self._hosts[found.node, stamp] = spot
        else:
            spot = self._spot(found, stamp)
        self._spots[block, stamp] = spot
        return spot

    def _spot(self, found: SeriesLocation, stamp: float | None) -> _Spot:
        if stamp is not None and not 0 <= stamp < _LAST_STAMP_S:
            return _Spot(None, problem="bad_timestamp", example=str(stamp))
        node = found.node or self._node
        if node is None:
            return _Spot(None, problem="no_node")
        t_us = self._t_us if stamp is None else round(stamp * 1e6)
        self._gathering.note_device(found, node)
        gpu = None if found.gpu is None else self._gathering.unit(node, found.gpu, found.mig, t_us)
        return _Spot(found, gpu, self._gathering.unit(node, None, None, t_us))


def _host(samples: PageSamples) -> str | None:
    """The host that node_exporter names, where it is one."""
    blocks = {block for name, block, _, _ in samples if name == NODE_INFO}
    hosts = {labels_of(block).get("nodename") for block in blocks}
    return hosts.pop() if len(hosts) == 1 else None
