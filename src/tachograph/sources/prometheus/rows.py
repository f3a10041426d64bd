"""Series become rows: all metrics of one scrape carry one time, so they stand side by side in one row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from tachograph.arrays import Floats, Longs
from tachograph.schema import TIME, Reject
from tachograph.sources import Part
from tachograph.sources.metrics.labels import Misplaced, Place
from tachograph.sources.metrics.names import Target
from tachograph.sources.prometheus.decode import Run, Runs, keep
from tachograph.sources.prometheus.holders import Hold, Holders
from tachograph.sources.prometheus.legend import Legend, Meaning, Unit
from tachograph.sources.prometheus.rereads import Rereads
from tachograph.units import factor

_NO_GPU = -1  # of a node; sorts, which None does not
_Key = tuple[str, int, int]  # node, GPU, MIG slice
_Columns = dict[str, list[Run]]
_GPU_COLUMNS = ("node", "gpu", "mig")


@dataclass(slots=True)
class Memory:
    """What is remembered from window to window: what series mean, devices told already, who holds what."""

    legend: Legend = field(default_factory=Legend)
    holders: Holders = field(default_factory=Holders)
    devices: dict[Unit, tuple[str | float | None, ...]] = field(default_factory=dict)
    rereads: Rereads = field(default_factory=Rereads)


@dataclass(slots=True)
class _Layer:
    """Columns of one table, each in one unit; two exporters may write the same counter in different ones."""

    table: str
    units: dict[str, str] = field(default_factory=dict)
    adding: set[str] = field(default_factory=set)
    rows: dict[_Key, _Columns] = field(default_factory=dict)


@dataclass(slots=True)
class _Gathering:
    """The runs of some answers, sorted by where they belong."""

    memory: Memory
    layers: list[_Layer] = field(default_factory=list)
    devices: dict[Unit, dict[str, str | float | None]] = field(default_factory=dict)
    jobs: dict[Unit, dict[str, list[Longs]]] = field(default_factory=dict)
    seen: dict[Unit, list[Longs]] = field(default_factory=dict)
    removed: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    examples: dict[tuple[str, str | None], str] = field(default_factory=dict)

    def take(self, run: Run, meaning: Meaning) -> None:
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

    def _layer(self, target: Target) -> _Layer:
        for layer in self.layers:
            if layer.table == target.table and layer.units.setdefault(target.column, target.unit) == target.unit:
                break
        else:
            layer = _Layer(target.table, {target.column: target.unit})
            self.layers.append(layer)
        if target.adds_up:
            layer.adding.add(target.column)
        return layer

    def _note_device(self, unit: Unit, where: Place, target: Target, run: Run) -> None:
        told = self.devices.setdefault(unit, {})
        for name, value in (("uuid", where.uuid), ("pci", where.pci), ("model", where.model)):
            if value is not None:
                told[name] = value
        if target.table == "devices" and run.t.size:
            mib = float(run.values[-1]) * factor(target.unit, "MiB")
            told[target.column] = mib if mib > 0 else None

    def _note_job_numbers(self, unit: Unit, run: Run) -> None:
        """The values of the series are job ids; 0 is none."""
        self.seen.setdefault(unit, []).append(run.t)
        for number in np.unique(run.values[run.values > 0]):
            job = str(int(number))
            self.jobs.setdefault(unit, {}).setdefault(job, []).append(run.t[run.values == number])


def parts(found: Runs, memory: Memory, *, overlaps: bool) -> tuple[Part, ...]:
    """Return the rows of some series, all of one window; `overlaps`: some may be in the lake already.

    Grain: one row per (node, gpu, mig, t) and per (node, t); a device where it differs from the last one told; an
    allocation where one begins or ends.
    Rejects: `unknown_metric`, `bad_labels`, `no_node`, `no_gpu`, `bad_gpu`, `bad_mig`, `not_a_gpu`, `not_finite`,
    counting points; `reread`, counting rows; `server_warning`, which removes nothing.
    """
    gathering = _Gathering(memory)
    later: list[tuple[Run, Meaning]] = []
    for run in found.runs:
        meaning = memory.legend.meaning(run.labels)
        if isinstance(meaning, Misplaced):
            gathering.remove(meaning.reason, None, run.t.size, meaning.example)
        elif isinstance(meaning, Meaning):
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
        made.append(Part("gpu_samples", empty, rejects=rejects))
    return tuple(part for part in made if part.frame.height or part.rejects)


def _samples(layer: _Layer, gathering: _Gathering, *, overlaps: bool) -> Part:
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
    return Part(layer.table, frame, units=layer.units, overlaps=overlaps)


def _without_rereads(
    unit: object, rows: tuple[Longs, dict[str, Floats]], gathering: _Gathering
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


def _align(columns: Mapping[str, Sequence[Run]], adding: set[str]) -> tuple[Longs, dict[str, Floats]]:
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


def _combine(runs: Sequence[Run], *, adds_up: bool) -> tuple[Longs, Floats]:
    """The runs of one column: added up, or one value of each time, of which all are copies."""
    if len(runs) == 1:
        return runs[0].t, runs[0].values
    times, values = np.concatenate([run.t for run in runs]), np.concatenate([run.values for run in runs])
    if adds_up:
        t, place = np.unique(times, return_inverse=True)
        return t, np.bincount(place, weights=values, minlength=t.size).astype(np.float64)
    t, first = np.unique(times, return_index=True)
    return t, values[first]


def _devices(gathering: _Gathering) -> Part:
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
    return Part("devices", pl.DataFrame(rows, schema=schema, orient="row"), overlaps=True)


def _allocations(gathering: _Gathering) -> Part:
    """Where a job began or ceased to hold a GPU."""
    holders = gathering.memory.holders
    units = [unit for unit in gathering.seen if unit in gathering.jobs or holders.now.get(unit)]
    holds = [hold for unit in units for hold in holders.changes(unit, *_named(gathering, unit))]
    return Part("allocations", allocation_rows(holds), overlaps=True)


def _named(gathering: _Gathering, unit: Unit) -> tuple[Longs, dict[str, Longs]]:
    named = {job: _union(times) for job, times in gathering.jobs.get(unit, {}).items()}
    return _union(gathering.seen[unit]), named


def allocation_rows(holds: Iterable[Hold]) -> pl.DataFrame:
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
