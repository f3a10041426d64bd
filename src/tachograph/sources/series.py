"""Labelled series become contract rows: meaning of their labels, allocations, devices, values that were read again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from tachograph.catalog.arrays import Floats, Longs
from tachograph.catalog.chunks import ChunkPart, Reject
from tachograph.catalog.tables import TIME
from tachograph.catalog.units import factor
from tachograph.sources.metrics import (
    NO_SITE_METRICS,
    NODE_INFO,
    USUAL_LABELS,
    LabelNames,
    MetricTarget,
    SeriesLocation,
    SiteMetrics,
    UnusableLabels,
    locate,
    metric_names,
    metric_target,
    short_node,
)
from tachograph.sources.prometheus_query import SeriesAnswer, SeriesRun, keep
from tachograph.sources.slurm.fields import BadRowError, job_id

_KEPT = 1 << 20  # series; pods and jobs come and go, and each leaves its labels behind
_NAME = "__name__"
GpuUnit = tuple[str, int, int | None]  # node, GPU, MIG slice


@dataclass(frozen=True, slots=True)
class SeriesIdentity:
    """Where the points of a series belong. `instance`: the address of the exporter; `job`: who holds the GPU."""

    target: MetricTarget
    place: SeriesLocation
    instance: str | None = None
    job: str | None = None


class _UnwantedSeries:
    """A series of a metric that is known, and of which this one is not needed (a CPU mode, the loopback)."""


UNWANTED = _UnwantedSeries()
Known = SeriesIdentity | UnusableLabels | _UnwantedSeries


@dataclass(slots=True)
class SeriesLegend:
    """The meaning of series by their labels, with a site's own names of labels and metrics."""

    names: LabelNames = USUAL_LABELS
    own: SiteMetrics = field(default_factory=lambda: NO_SITE_METRICS)
    _known: dict[bytes, Known] = field(default_factory=dict)
    _gpus: dict[tuple[str | None, str], int] = field(default_factory=dict)
    _hosts: dict[str, str] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()  # every metric that has a meaning

    def __post_init__(self) -> None:
        self.metrics = (*metric_names(own=self.own), NODE_INFO)

    def meaning(self, labels: bytes) -> Known:
        """Return what a series means, its labels given as a JSON object.

        Misplaced: `bad_labels`, `unknown_metric`, or what its labels lack.
        """
        found = self._known.get(labels)
        if found is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            found = self._known[labels] = self._read(labels)
        return found

    def gpu(self, place: SeriesLocation) -> int | None:
        """Return the index of a GPU: as its labels tell it, else that of the GPU with its UUID, where one was seen."""
        return place.gpu if place.gpu is not None or place.uuid is None else self._gpus.get((place.node, place.uuid))

    def node(self, meaning: SeriesIdentity) -> str | None:
        """Return the node: the host that its node_exporter names, else as the labels tell it."""
        if meaning.target.table == "node_samples" and meaning.instance in self._hosts:
            return self._hosts[meaning.instance]
        return meaning.place.node

    def host_of(self, labels: bytes) -> str | None:
        """Return the node that the labels of a node_exporter name; None where they name none."""
        given = _decode(labels)
        if given is None:
            return None
        where = locate(given, names=self.names)
        instance = given.get("instance", "")
        return self._hosts.get(instance) or (None if isinstance(where, UnusableLabels) else where.node)

    def _read(self, labels: bytes) -> Known:
        given = _decode(labels)
        if given is None:
            return UnusableLabels("bad_labels", labels.decode("utf-8", "replace")[:200])
        metric = given.get(_NAME, "")
        if metric == NODE_INFO:
            self._note_host(given)
            return UNWANTED
        wanted = metric_target(metric, given, own=self.own)
        if wanted is None:
            known = metric in self.metrics
            return UNWANTED if known else UnusableLabels("unknown_metric", metric or "a series without a name")
        where = locate(given, names=self.names)
        if isinstance(where, UnusableLabels):
            return where
        if where.gpu is not None and where.uuid is not None:
            self._gpus[where.node, where.uuid] = where.gpu
        return SeriesIdentity(wanted, where, given.get("instance"), _raw_job_id(where.job))

    def _note_host(self, labels: dict[str, str]) -> None:
        if labels.get("instance") and labels.get("nodename"):
            self._hosts[labels["instance"]] = short_node(labels["nodename"])


def _raw_job_id(written: str | None) -> str | None:
    """Return the raw job id of what a label says; None for none, and for what is no job id.

    >>> _raw_job_id("123"), _raw_job_id(None), _raw_job_id("what?")
    ('123', None, None)
    """
    try:
        return None if written is None else job_id(written).raw
    except BadRowError:
        return None


def _decode(labels: bytes) -> dict[str, str] | None:
    """The labels; None where they are no texts by names."""
    try:
        return msgspec.json.decode(labels, type=dict[str, str])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class AllocationSpan:
    """A job held a GPU in [start, end), milliseconds since 1970; `end` None: it still does."""

    unit: GpuUnit
    job: str
    start: int
    end: int | None


@dataclass(slots=True)
class AllocationTracker:
    """Who holds what at the last scrape seen. {GPU: {job: since when}}"""

    now: dict[GpuUnit, dict[str, int]] = field(default_factory=dict)

    def changes(self, unit: GpuUnit, scrapes: Longs, named: Mapping[str, Longs]) -> Iterator[AllocationSpan]:
        """Yield what began and what ended. `scrapes`: when the GPU was seen; `named`: when each job was named on it.

        >>> holders, times = AllocationTracker(), np.array([10, 20, 30, 40])
        >>> [(hold.job, hold.start, hold.end) for hold in holders.changes(("n", 0, None), times, {"7": times[1:3]})]
        [('7', 20, 40)]
        """
        if not scrapes.size:
            return
        holding = self.now.setdefault(unit, {})
        for job in [job for job in holding if job not in named]:
            yield AllocationSpan(unit, job, holding.pop(job), int(scrapes[0]))
        for job, times in named.items():
            places = np.searchsorted(scrapes, times)
            since = holding.pop(job, None)
            if since is not None and places[0] > 0:
                yield AllocationSpan(unit, job, since, int(scrapes[0]))
                since = None
            begins = np.flatnonzero(np.diff(places, prepend=-2) > 1)
            for first, last in zip(begins, [*(begins[1:] - 1), places.size - 1], strict=True):
                start = int(times[first]) if since is None else since
                after = int(places[last]) + 1
                if after < scrapes.size:
                    yield AllocationSpan(unit, job, start, int(scrapes[after]))
                else:
                    holding[job] = start
                    if since is None:
                        yield AllocationSpan(unit, job, start, None)
                since = None


_NEARLY = 0.9  # a scrape may come a little earlier than the exporter's own look
_Row = tuple[int, tuple[tuple[str, float], ...]]
Mask: TypeAlias = NDArray[np.bool_]


@dataclass(slots=True)
class SeriesRereads:
    """Remembers the row last kept of each GPU. `refresh_s`: between two looks of the exporter; 0: every row is new."""

    refresh_s: float = 0.0
    _kept: dict[object, _Row] = field(default_factory=dict)

    def fresh(self, unit: object, t: Longs, columns: Mapping[str, Floats]) -> Mask:
        """Return which rows of a GPU are new samples, not the values last kept read again.

        >>> t = np.arange(0, 60_000, 10_000)
        >>> SeriesRereads(30).fresh("gpu", t, {"gpu_util": np.array([1.0, 1, 1, 1, 2, 2])}).tolist()
        [True, False, False, True, True, False]
        """
        mask = np.ones(t.size, dtype=np.bool_)
        if not self.refresh_s or not t.size:
            return mask
        names = sorted(columns)
        values = np.stack([columns[name] for name in names])
        last, told = self._kept.get(unit, (None, ()))
        same = told == _values_present(names, values[:, 0])
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
            self._kept[unit] = (int(t[kept[-1]]), _values_present(names, values[:, kept[-1]]))
        return mask


def _values_present(names: list[str], values: Floats) -> tuple[tuple[str, float], ...]:
    """What a row tells; what it does not is left out, since NaN equals nothing."""
    return tuple((name, float(value)) for name, value in zip(names, values, strict=True) if value == value)


_NO_GPU = -1  # of a node; sorts, which None does not
_Key = tuple[str, int, int]  # node, GPU, MIG slice
_Columns = dict[str, list[SeriesRun]]
_GPU_COLUMNS = ("node", "gpu", "mig")


@dataclass(slots=True)
class SeriesMemory:
    """What is remembered from window to window: what series mean, devices told already, who holds what."""

    legend: SeriesLegend = field(default_factory=SeriesLegend)
    holders: AllocationTracker = field(default_factory=AllocationTracker)
    devices: dict[GpuUnit, tuple[str | float | None, ...]] = field(default_factory=dict)
    rereads: SeriesRereads = field(default_factory=SeriesRereads)


@dataclass(slots=True)
class _UnitLayer:
    """Columns of one table, each in one unit; two exporters may write the same counter in different ones."""

    table: str
    units: dict[str, str] = field(default_factory=dict)
    adding: set[str] = field(default_factory=set)
    rows: dict[_Key, _Columns] = field(default_factory=dict)


@dataclass(slots=True)
class _SeriesRuns:
    """The runs of some answers, sorted by where they belong."""

    memory: SeriesMemory
    layers: list[_UnitLayer] = field(default_factory=list)
    devices: dict[GpuUnit, dict[str, str | float | None]] = field(default_factory=dict)
    jobs: dict[GpuUnit, dict[str, list[Longs]]] = field(default_factory=dict)
    seen: dict[GpuUnit, list[Longs]] = field(default_factory=dict)
    removed: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    examples: dict[tuple[str, str | None], str] = field(default_factory=dict)

    def take(self, run: SeriesRun, meaning: SeriesIdentity) -> None:
        """Put one run where it belongs."""
        target, where = meaning.target, meaning.place
        finite = ~np.isnan(run.values)
        if not finite.all():
            self.remove("not_finite", target.column, int((~finite).sum()), "NaN")
            run = keep(run, finite)
        node = self.memory.legend.node(meaning)
        if node is None:
            self.remove("no_node", None, run.t.size, run.labels.decode())
            return
        if target.table == "node_samples":
            self._layer(target).rows.setdefault((node, _NO_GPU, _NO_GPU), {}).setdefault(target.column, []).append(run)
            return
        gpu = self.memory.legend.gpu(where)
        if gpu is None:
            self.remove("no_gpu", None, run.t.size, run.labels.decode())
            return
        unit = (node, gpu, where.mig)
        self._note_device(unit, where, target, run)
        if target.table == "allocations":
            self._note_job_numbers(unit, run)
        elif target.table == "gpu_samples":
            key = (node, gpu, _NO_GPU if where.mig is None else where.mig)
            self._layer(target).rows.setdefault(key, {}).setdefault(target.column, []).append(run)
            self.seen.setdefault(unit, []).append(run.t)
            if meaning.job is None and where.job is not None:
                self.remove("bad_job_id", "job_id", 1, where.job)
            if meaning.job is not None:
                self.jobs.setdefault(unit, {}).setdefault(meaning.job, []).append(run.t)

    def remove(self, reason: str, column: str | None, count: int, example: str) -> None:
        """Count points that are given up."""
        self.removed[reason, column] += count
        self.examples.setdefault((reason, column), example[:200])

    def rejects(self) -> tuple[Reject, ...]:
        """What was given up."""
        return tuple(
            Reject(reason, column, count, self.examples[reason, column] or None)
            for (reason, column), count in self.removed.items()
        )

    def _layer(self, target: MetricTarget) -> _UnitLayer:
        for layer in self.layers:
            if layer.table == target.table and layer.units.setdefault(target.column, target.unit) == target.unit:
                break
        else:
            layer = _UnitLayer(target.table, {target.column: target.unit})
            self.layers.append(layer)
        if target.adds_up:
            layer.adding.add(target.column)
        return layer

    def _note_device(self, unit: GpuUnit, where: SeriesLocation, target: MetricTarget, run: SeriesRun) -> None:
        told = self.devices.setdefault(unit, {})
        for name, value in (("uuid", where.uuid), ("pci", where.pci), ("model", where.model)):
            if value is not None:
                told[name] = value
        if target.table == "devices" and run.t.size:
            mib = float(run.values[-1]) * factor(target.unit, "MiB")
            told[target.column] = mib if mib > 0 else None

    def _note_job_numbers(self, unit: GpuUnit, run: SeriesRun) -> None:
        """The values of the series are job ids; 0 is none."""
        self.seen.setdefault(unit, []).append(run.t)
        for number in np.unique(run.values[run.values > 0]):
            job = str(int(number))
            self.jobs.setdefault(unit, {}).setdefault(job, []).append(run.t[run.values == number])


def series_parts(found: SeriesAnswer, memory: SeriesMemory, *, overlaps: bool) -> tuple[ChunkPart, ...]:
    """Return the rows of some series, all of one window; `overlaps`: some may be in the lake already.

    Grain: one row per (node, gpu, mig, t) and per (node, t); a device where it differs from the last one told; an
    allocation where one begins or ends.
    Rejects: `unknown_metric`, `bad_labels`, `no_node`, `no_gpu`, `bad_gpu`, `bad_mig`, `not_a_gpu`, `not_finite`,
    counting points; `reread`, counting rows; `server_warning`, which removes nothing.
    """
    gathering = _SeriesRuns(memory)
    later: list[tuple[SeriesRun, SeriesIdentity]] = []
    for run in found.runs:
        meaning = memory.legend.meaning(run.labels)
        if isinstance(meaning, UnusableLabels):
            gathering.remove(meaning.reason, None, run.t.size, meaning.example)
        elif isinstance(meaning, SeriesIdentity):
            if meaning.place.gpu is None:
                later.append((run, meaning))  # a series further down may tell which GPU or node this is
            else:
                gathering.take(run, meaning)
    for run, meaning in later:
        gathering.take(run, meaning)
    for warning in dict.fromkeys(found.warnings):
        gathering.remove("server_warning", None, 0, warning)
    made = [_samples(layer, gathering, overlaps=overlaps) for layer in gathering.layers]
    made += [_devices(gathering), _allocations(gathering)]
    rejects = gathering.rejects()
    if rejects:
        empty = pl.DataFrame(schema={"node": pl.String})
        made.append(ChunkPart("gpu_samples", empty, rejects=rejects))
    return tuple(part for part in made if part.frame.height or part.rejects)


def _samples(layer: _UnitLayer, gathering: _SeriesRuns, *, overlaps: bool) -> ChunkPart:
    """The rows of one layer, sorted by node, GPU, slice, time."""
    keys = sorted(layer.rows)
    aligned = [_align(layer.rows[key], layer.adding) for key in keys]
    if layer.table == "gpu_samples" and gathering.memory.rereads.refresh_s:
        aligned = [
            _without_rereads((*key, tuple(layer.units)), rows, gathering)
            for key, rows in zip(keys, aligned, strict=True)
        ]
    sizes = [t.size for t, _ in aligned]
    columns = {
        name: pl.Series(
            name,
            np.concatenate(
                [values.get(name, _missing(size)) for (_, values), size in zip(aligned, sizes, strict=True)]
            ),
            nan_to_null=True,
        )
        for name in layer.units
    }
    row = pl.Series(np.repeat(np.arange(len(keys)), sizes))
    t = pl.Series("t", np.concatenate([t for t, _ in aligned]) * 1000).cast(TIME)
    names = {
        "node": pl.Series([key[0] for key in keys]).gather(row),
        "gpu": pl.Series([key[1] for key in keys], dtype=pl.Int16).gather(row),
        "mig": pl.Series([None if key[2] == _NO_GPU else key[2] for key in keys], dtype=pl.Int16).gather(row),
    }
    kept = _GPU_COLUMNS if layer.table == "gpu_samples" else ("node",)
    frame = pl.DataFrame({"t": t, **{name: names[name] for name in kept}, **columns})
    return ChunkPart(layer.table, frame, units=layer.units, overlaps=overlaps)


def _without_rereads(
    unit: object, rows: tuple[Longs, dict[str, Floats]], gathering: _SeriesRuns
) -> tuple[Longs, dict[str, Floats]]:
    """The rows of one GPU that are samples; the others are counted."""
    t, columns = rows
    fresh = gathering.memory.rereads.fresh(unit, t, columns)
    again = int((~fresh).sum())
    if again:
        gathering.remove("reread", None, again, "")
        return t[fresh], {name: values[fresh] for name, values in columns.items()}
    return rows


def _missing(size: int) -> Floats:
    return np.full(size, np.nan)


def _align(columns: Mapping[str, Sequence[SeriesRun]], adding: set[str]) -> tuple[Longs, dict[str, Floats]]:
    """(times, values of each column at them, NaN where there is none)."""
    combined = {name: _combine(runs, adds_up=name in adding) for name, runs in columns.items()}
    t = next(iter(combined.values()))[0]
    if all(np.array_equal(t, other) for other, _ in combined.values()):
        return t, {name: values for name, (_, values) in combined.items()}
    t = np.unique(np.concatenate([times for times, _ in combined.values()]))
    spread: dict[str, Floats] = {}
    for name, (times, values) in combined.items():
        spread[name] = _missing(t.size)
        spread[name][np.searchsorted(t, times)] = values
    return t, spread


def _combine(runs: Sequence[SeriesRun], *, adds_up: bool) -> tuple[Longs, Floats]:
    """The runs of one column: added up, or one value of each time, of which all are copies."""
    if len(runs) == 1:
        return runs[0].t, runs[0].values
    times, values = np.concatenate([run.t for run in runs]), np.concatenate([run.values for run in runs])
    if adds_up:
        t, place = np.unique(times, return_inverse=True)
        return t, np.bincount(place, weights=values, minlength=t.size).astype(np.float64)
    t, first = np.unique(times, return_index=True)
    return t, values[first]


def _devices(gathering: _SeriesRuns) -> ChunkPart:
    """Devices that differ from what was told last."""
    told = gathering.memory.devices
    names = ("uuid", "pci", "model", "hbm_mib")
    rows = []
    for unit, facts in gathering.devices.items():
        before = told.get(unit, (None,) * len(names))
        now = tuple(facts.get(name, old) for name, old in zip(names, before, strict=True))
        if now != told.get(unit):
            told[unit] = now
            rows.append((*unit, *now))
    text = dict.fromkeys(("uuid", "pci", "model"), pl.String())
    schema = {"node": pl.String(), "gpu": pl.Int16(), "mig": pl.Int16(), **text, "hbm_mib": pl.Float64()}
    return ChunkPart("devices", pl.DataFrame(rows, schema=schema, orient="row"), overlaps=True)


def _allocations(gathering: _SeriesRuns) -> ChunkPart:
    """Where a job began or ceased to hold a GPU."""
    holders = gathering.memory.holders
    units = [unit for unit in gathering.seen if unit in gathering.jobs or holders.now.get(unit)]
    holds = [hold for unit in units for hold in holders.changes(unit, *_named(gathering, unit))]
    return ChunkPart("allocations", allocation_rows(holds), overlaps=True)


def _named(gathering: _SeriesRuns, unit: GpuUnit) -> tuple[Longs, dict[str, Longs]]:
    named = {job: _union(times) for job, times in gathering.jobs.get(unit, {}).items()}
    return _union(gathering.seen[unit]), named


def allocation_rows(holds: Iterable[AllocationSpan]) -> pl.DataFrame:
    """Return holds as rows of `allocations`; the recording itself says so."""
    rows = [(hold.job, *hold.unit, hold.start, hold.end, "explicit") for hold in holds]
    schema = {"job_id": pl.String, "node": pl.String, "gpu": pl.Int16, "mig": pl.Int16}
    times = {"start": pl.Int64, "end": pl.Int64}
    frame = pl.DataFrame(rows, schema={**schema, **times, "provenance": pl.String}, orient="row")
    return frame.with_columns((pl.col(*times) * 1000).cast(TIME))


def _union(times: Sequence[Longs]) -> Longs:
    """All times, once each; most often all metrics have the same."""
    different = {t.tobytes(): t for t in times if t.size}
    if not different:
        return np.empty(0, np.int64)
    return np.unique(np.concatenate(list(different.values()))) if len(different) > 1 else next(iter(different.values()))
