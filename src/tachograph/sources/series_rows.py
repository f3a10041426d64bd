"""Labelled series become contract rows: one conversion for Prometheus answers, saved pages and polled exporters.

All metrics of one scrape have one time, so they are columns of one row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, pairwise
from typing import TypeVar

import numpy as np
import polars as pl

from tachograph.catalog.arrays import Floats, Longs
from tachograph.catalog.chunks import ChunkPart, Reject
from tachograph.catalog.tables import TIME
from tachograph.catalog.units import factor
from tachograph.sources.exposition import PageSamples, labels_of, parse_page
from tachograph.sources.gpu_indices import AMBIGUOUS, NO_GPU, SAME_TIME, LabelledGpu, PlacedGpu, TimeSpan
from tachograph.sources.metrics import (
    NODE_INFO,
    MetricTarget,
    SeriesLocation,
    TableName,
    UnusableLabels,
    job_of,
    metric_target_of_all,
    short_node,
)
from tachograph.sources.series import (
    AllocationSpan,
    GpuUnit,
    Mask,
    SeriesAnswer,
    SeriesIdentity,
    SeriesMemory,
    SeriesRun,
    labelled_gpu,
    named_host,
)
from tachograph.sources.slurm.fields import BadRowError, job_id

_T = TypeVar("_T")
_NONE = -1  # GPU of a node, MIG slice of a whole GPU; sorts, which None does not
_LAST_STAMP_S = 1e11
_LARGEST_KEY = 1 << 62

_Points = tuple[int | Longs, Longs, Floats]  # number of the unit of all points or of each, microseconds, values


class SeriesRows:
    """Rows put together from series. `known`: how many values had a meaning here.

    Series that are written once per job, pod or container are one value; one that differs is `conflicting_value`.
    Rejects count values: `unknown_metric`, `bad_labels`, `no_node`, `no_gpu`, `bad_gpu`, `bad_mig`, `not_a_gpu`,
    `not_finite`, `bad_timestamp`, `bad_job_id`, `conflicting_value`, and those of `parse_page`; `reread` counts rows,
    `server_warning` removes nothing. `index_contradicts_uuid` and `ambiguous_gpu` count GPUs; a sample that
    `ambiguous_gpu` removes counts as one, too.

    GPUs are kept as their labels name them until all series are there: which index a UUID has may come last.
    """

    def __init__(self, memory: SeriesMemory) -> None:
        self.memory = memory
        self.known = 0
        self._units: dict[LabelledGpu | str, int] = {}
        self._spans: dict[LabelledGpu, TimeSpan] = {}
        self._placed: Mapping[LabelledGpu, PlacedGpu] = {}
        self._points: dict[MetricTarget, list[_Points]] = {}
        self._devices: dict[LabelledGpu, dict[str, str | float | None]] = {}
        self._facts: Counter[tuple[LabelledGpu, TableName]] = Counter()
        self._seen: dict[LabelledGpu, list[Longs]] = {}
        self._jobs: dict[LabelledGpu, dict[str, list[Longs]]] = {}
        self._removed: Counter[tuple[TableName, str, str | None]] = Counter()
        self._examples: dict[tuple[TableName, str, str | None], str] = {}

    def add_answer(self, answer: SeriesAnswer) -> None:
        """Add the series of an answer."""
        later: list[tuple[SeriesRun, SeriesIdentity]] = []
        for run in answer.runs:
            identity = self.memory.vocabulary.identity(run.labels)
            if isinstance(identity, UnusableLabels):
                self.reject("gpu_samples", identity.reason, None, run.t.size, identity.example)
            elif identity is not None:
                if identity.target.table == "node_samples":
                    later.append((run, identity))  # a series further down may name this node
                else:
                    self._add_run(run, identity)
        for run, identity in later:
            self._add_run(run, identity)
        for warning in dict.fromkeys(answer.warnings):
            self.reject("gpu_samples", "server_warning", None, 0, warning)

    def add_page(self, page: bytes, *, t: datetime, node: str | None) -> int:
        """Add one page, scraped at `t` from an exporter on `node`; return how many of its samples are known here.

        A time written behind a value replaces `t`; a host that the page names replaces `node`.
        """
        vocabulary, before = self.memory.vocabulary, self.known
        samples = parse_page(page, wanted=vocabulary.wanted)
        for reject in samples.rejects:
            self.reject("gpu_samples", reject.reason, reject.column, reject.count, reject.example or "")
        scrape = _PageScrape(self, samples, round(t.timestamp() * 1e6), _host_of_page(samples) or node)
        end = 0
        for metric, same in groupby(samples.names):
            begin, end = end, end + len(list(same))
            target = metric_target_of_all(metric, own=vocabulary.metrics)
            if target is not None:
                scrape.add(target, range(begin, end))
            elif metric != NODE_INFO:
                for one, places in self._by_target(metric, samples, range(begin, end)):
                    scrape.add(one, places)
        return self.known - before

    def parts(self, *, overlaps: bool = False) -> tuple[ChunkPart, ...]:
        """Return the rows, table by table, rejects with the first part of their table.

        Grain: one row per (node, gpu, mig, t) and per (node, t); a device where it differs from the last one written;
        an allocation where one begins or ends. A second part of a table holds what exporters write in a second unit.
        `overlaps`: some samples may be in the lake already.
        """
        self._place()
        made = [
            *self._samples("gpu_samples", overlaps=overlaps),
            *self._samples("node_samples", overlaps=overlaps),
            *(part for part in (self._device_part(), self._allocation_part()) if part.frame.height),
        ]
        rejects: dict[str, list[Reject]] = {}
        for (table, reason, column), count in self._removed.items():
            example = self._examples[table, reason, column] or None
            rejects.setdefault(table, []).append(Reject(reason, column, count, example))
        counted = [
            ChunkPart(part.table, part.frame, part.units, tuple(rejects.pop(part.table, ())), part.overlaps)
            for part in made
        ]
        return (*counted, *(ChunkPart(table, pl.DataFrame(), rejects=tuple(left)) for table, left in rejects.items()))

    def unit(self, labelled: LabelledGpu | str) -> int:
        """Return the number of a GPU as labels name it, or of a node."""
        return self._units.setdefault(labelled, len(self._units))

    def add(self, target: MetricTarget, units: int | Longs, t: Longs, values: Floats) -> None:
        """Add values of one column; units: the number of all, or of each. NaN is counted and left out."""
        finite = ~np.isnan(values)
        if not finite.all():
            self.reject(target.table, "not_finite", target.column, int((~finite).sum()), "NaN")
            units, t, values = (units if isinstance(units, int) else units[finite]), t[finite], values[finite]
        if t.size:
            self._points.setdefault(target, []).append((units, t, values))

    def describe(self, unit: LabelledGpu, location: SeriesLocation, span: TimeSpan) -> None:
        """Note the facts about a device that labels name, and when they do."""
        first, last = self._spans.get(unit, span)
        self._spans[unit] = (min(first, span[0]), max(last, span[1]))
        facts = self._devices.setdefault(unit, {})
        if location.model is not None:
            facts["model"] = location.model

    def describe_capacity(self, unit: LabelledGpu, target: MetricTarget, value: float) -> None:
        """Note the memory of a device."""
        mib = value * factor(target.unit, "MiB")
        self._facts[unit, "devices"] += 1
        self._devices.setdefault(unit, {})[target.column] = mib if mib > 0 else None

    def see(self, unit: LabelledGpu, t: Longs, job: str | None) -> None:
        """Note when a GPU was scraped, and the job that a label names on it."""
        self._seen.setdefault(unit, []).append(t)
        if job is None:
            return
        try:
            self._jobs.setdefault(unit, {}).setdefault(job_id(job).raw, []).append(t)
            self.memory.naming.add(unit)
        except BadRowError as problem:
            self.reject("allocations", problem.reason, "job_id", 1, job)

    def see_job_numbers(self, unit: LabelledGpu, t: Longs, values: Floats) -> None:
        """Note the jobs of a series whose values are job ids; 0 is none."""
        self._facts[unit, "allocations"] += t.size
        self.memory.naming.add(unit)
        self.see(unit, t, None)
        for number in np.unique(values[values > 0]).tolist():
            self.see(unit, t[values == number], job_of(repr(number)))

    def reject(self, table: TableName, reason: str, column: str | None, count: int, example: str) -> None:
        """Count values that are left out."""
        self._removed[table, reason, column] += count
        self._examples.setdefault((table, reason, column), example[:200])

    def _add_run(self, run: SeriesRun, identity: SeriesIdentity) -> None:
        """Put one series of an answer where it belongs."""
        target, location, vocabulary = identity.target, identity.location, self.memory.vocabulary
        t = run.t * 1000
        node = vocabulary.node(identity)
        if node is None:
            self.reject(target.table, "no_node", None, t.size, run.labels.decode())
            return
        self.known += t.size
        if target.table == "node_samples":
            self.add(target, self.unit(node), t, run.values)
            return
        unit = labelled_gpu(node, location)
        if unit is None:
            self.reject(target.table, NO_GPU, None, t.size, run.labels.decode())
            return
        if not t.size:
            return
        self.describe(unit, location, (int(t[0]), int(t[-1])))
        if target.table == "gpu_samples":
            self.add(target, self.unit(unit), t, run.values)
            self.see(unit, t, location.job)
        elif target.table == "allocations":
            self.see_job_numbers(unit, t, run.values)
        else:
            self.describe_capacity(unit, target, float(run.values[-1]))

    def _place(self) -> None:
        """Give each GPU its index, and count those without one and those whose labels contradict each other."""
        self._placed = self.memory.vocabulary.indices.places(self._spans)
        gone: dict[int, tuple[str, str]] = {}
        for one, (gpu, reason) in self._placed.items():
            if reason is None:
                continue
            index = "no index" if one.gpu is None else f"index {one.gpu}"
            example = " ".join([one.node, index, *(name for name in (one.uuid, one.pci) if name)])
            if gpu is None and one in self._units:
                gone[self._units[one]] = (reason, example)
            if gpu is None and self._facts[one, "devices"]:
                self.reject("devices", reason, None, self._facts[one, "devices"], example)
            if reason == NO_GPU and self._facts[one, "allocations"]:
                self.reject("allocations", reason, None, self._facts[one, "allocations"], example)
            elif reason != NO_GPU and one in self._jobs:
                self.reject("allocations", reason, None, 1, example)
            elif gpu is not None:
                self.reject("gpu_samples", reason, None, 1, example)
        if gone:
            self._remove(gone)

    def _remove(self, gone: Mapping[int, tuple[str, str]]) -> None:
        """Remove the samples of GPUs without an index."""
        lost = np.zeros(len(self._units), np.bool_)
        lost[list(gone)] = True
        for target in [target for target in self._points if target.table == "gpu_samples"]:
            kept: list[_Points] = []
            for units, t, values in self._points.pop(target):
                of_each = np.full(t.size, units) if isinstance(units, int) else units
                left = ~lost[of_each]
                for number, count in Counter(of_each[~left].tolist()).items():
                    reason, example = gone[number]
                    self.reject("gpu_samples", reason, None, count, example)
                if left.all():
                    kept.append((units, t, values))
                elif left.any():
                    kept.append((of_each[left], t[left], values[left]))
            if kept:
                self._points[target] = kept

    def _name(self, unit: LabelledGpu | str) -> tuple[str, int, int]:
        """Node, GPU and slice of a unit; of nodes, and of GPUs without an index, _NONE."""
        if isinstance(unit, str):
            return unit, _NONE, _NONE
        gpu = self._placed[unit].gpu
        return unit.node, _NONE if gpu is None else gpu, _NONE if unit.mig is None else unit.mig

    def _by_target(
        self, metric: str, samples: PageSamples, places: Iterable[int]
    ) -> Iterable[tuple[MetricTarget, list[int]]]:
        """The samples of one metric, by place, grouped by the column that their labels choose."""
        found: dict[str, tuple[MetricTarget, list[int]]] = {}
        for place in places:
            target = self.memory.vocabulary.target_in_page(metric, samples.labels[place])
            if target is not None:
                found.setdefault(target.column, (target, []))[1].append(place)
        return found.values()

    def _samples(self, table: TableName, *, overlaps: bool) -> Iterator[ChunkPart]:
        """The samples of a table; two columns in different units go to different parts."""
        layers: list[dict[str, MetricTarget]] = []
        for target in self._points:
            if target.table == table:
                layer = next((one for one in layers if target.column not in one), None)
                if layer is None:
                    layers.append(layer := {})
                layer[target.column] = target
        for number, layer in enumerate(layers):
            units = {name: target.unit for name, target in layer.items()}
            yield ChunkPart(table, self._frame(table, number, layer), units, overlaps=overlaps)

    def _frame(self, table: TableName, layer: int, targets: Mapping[str, MetricTarget]) -> pl.DataFrame:
        """The rows of one layer, sorted by node, GPU, slice, time."""
        units = [self._name(unit) for unit in self._units]
        names = sorted(set(units))
        place = {name: number for number, name in enumerate(names)}
        unit, t, columns = self._aligned(targets, names, np.array([place[name] for name in units], np.int64))
        if table == "gpu_samples" and self.memory.rereads.refresh_s:
            fresh = self._fresh(layer, names, unit, t, columns)
            unit, t, columns = unit[fresh], t[fresh], {name: values[fresh] for name, values in columns.items()}
        of_row = pl.Series(unit)
        keys = {"node": pl.Series([name[0] for name in names], dtype=pl.String).gather(of_row)}
        if table == "gpu_samples":
            slices = [None if name[2] == _NONE else name[2] for name in names]
            keys["gpu"] = pl.Series([name[1] for name in names], dtype=pl.Int16).gather(of_row)
            keys["mig"] = pl.Series(slices, dtype=pl.Int16).gather(of_row)
        series = {name: pl.Series(values, nan_to_null=True) for name, values in columns.items()}
        return pl.DataFrame({"t": pl.Series(t).cast(TIME), **keys, **series})

    def _aligned(
        self, targets: Mapping[str, MetricTarget], names: Sequence[tuple[str, int, int]], ranks: Longs
    ) -> tuple[Longs, Longs, dict[str, Floats]]:
        """(place of the unit in `names`, time, values of each column at them, NaN where there is none), sorted.

        ranks: the place of each numbered unit; several may be one GPU.
        """
        keys = _RowKeys.of([t for target in targets.values() for _, t, _ in self._points[target]], len(names))
        combined = {name: self._combined(target, ranks, names, keys) for name, target in targets.items()}
        rows = next(iter(combined.values()))[0]
        others = [found for found, _ in combined.values() if not np.array_equal(found, rows)]
        if others:
            rows = np.unique(np.concatenate([rows, *others]))
        columns: dict[str, Floats] = {}
        for name, (found, values) in combined.items():
            if found.size == rows.size:
                columns[name] = values
            else:
                columns[name] = np.full(rows.size, np.nan)
                columns[name][np.searchsorted(rows, found)] = values
        unit, t = keys.split(rows)
        return unit, t, columns

    def _combined(
        self, target: MetricTarget, ranks: Longs, names: Sequence[tuple[str, int, int]], keys: _RowKeys
    ) -> tuple[Longs, Floats]:
        """(key of each row, its value): copies of one value are one, CPUs and interfaces of a node are added up."""
        points = self._points[target]
        if all(isinstance(units, int) for units, _, _ in points):  # series of one GPU each; copies stay in order
            points = sorted(points, key=lambda one: int(ranks[one[0]]))
        found = np.concatenate([keys.join(ranks[units], t) for units, t, _ in points])
        values = np.concatenate([values for _, _, values in points])
        if (found[1:] > found[:-1]).all():
            return found, values
        order = np.argsort(found, kind="stable")
        found, values = found[order], values[order]
        first = np.flatnonzero(np.diff(found, prepend=found[0] - 1))
        if target.adds_up:
            return found[first], np.add.reduceat(values, first)
        kept = np.repeat(values[first], np.diff(first, append=found.size))
        differs = np.flatnonzero(kept != values)
        if differs.size:
            node, gpu, _ = names[int(keys.split(found[differs[:1]])[0][0])]
            example = f"{node} {'' if gpu == _NONE else f'GPU {gpu}'}: {kept[differs[0]]:g} and {values[differs[0]]:g}"
            self.reject(target.table, "conflicting_value", target.column, differs.size, example)
        return found[first], values[first]

    def _fresh(
        self, layer: int, names: Sequence[tuple[str, int, int]], unit: Longs, t: Longs, columns: Mapping[str, Floats]
    ) -> Mask:
        """Which rows are samples and no values read again; those are counted."""
        borders = [0, *(np.flatnonzero(np.diff(unit)) + 1).tolist(), unit.size] if unit.size else []
        fresh = np.ones(unit.size, np.bool_)
        for start, end in pairwise(borders):
            rows = {name: values[start:end] for name, values in columns.items()}
            fresh[start:end] = self.memory.rereads.fresh((*names[unit[start]], layer), t[start:end], rows)
        again = int((~fresh).sum())
        if again:
            self.reject("gpu_samples", "reread", None, again, "")
        return fresh

    def _device_part(self) -> ChunkPart:
        """Devices that differ from what was written last."""
        known, found = self.memory.devices, dict[GpuUnit, dict[str, str | float | None]]()
        for labelled in sorted(self._devices, key=lambda one: (-one.rank, self._spans[one])):  # the best rank last
            gpu, reason = self._placed[labelled]
            if gpu is not None:
                facts = found.setdefault((labelled.node, gpu, labelled.mig), {})
                if reason != AMBIGUOUS:
                    facts |= {name: of for name, of in (("uuid", labelled.uuid), ("pci", labelled.pci)) if of}
                facts |= self._devices[labelled]
        names = ("uuid", "pci", "model", "hbm_mib")
        rows = []
        for unit, facts in found.items():
            before = known.get(unit, (None,) * len(names))
            now = tuple(facts.get(name, old) for name, old in zip(names, before, strict=True))
            if facts and now != known.get(unit):
                known[unit] = now
                rows.append((*unit, *now))
        text = dict.fromkeys(("uuid", "pci", "model"), pl.String())
        schema = {"node": pl.String(), "gpu": pl.Int16(), "mig": pl.Int16(), **text, "hbm_mib": pl.Float64()}
        return ChunkPart("devices", pl.DataFrame(rows, schema=schema, orient="row"), overlaps=True)

    def _allocation_part(self) -> ChunkPart:
        """Where a job began or ceased to hold a GPU.

        Labels or values that never name a job show no end of one: another exporter is scraped at other times. Of a job
        that holds a GPU of a node by an ambiguous index no GPU on this node is recorded.
        """
        tracker = self.memory.allocations
        unsure = {
            (one.node, job) for one in self._jobs if self._placed[one].reason == AMBIGUOUS for job in self._jobs[one]
        }
        nodes = {node for node, _ in unsure} | {
            unit[0] for unit, held in tracker.now.items() if unit[1] is None and held
        }
        seen: dict[GpuUnit, list[Longs]] = {}
        jobs: dict[GpuUnit, dict[str, list[Longs]]] = {}
        for one in self._seen:
            if one not in self.memory.naming:
                continue
            gpu, reason = self._placed[one]
            unit, some = (one.node, gpu, one.mig), (one.node, None, None)
            for shown in [unit] * (gpu is not None) + [some] * (one.node in nodes):
                seen.setdefault(shown, []).extend(self._seen[one])
            for job, times in self._jobs.get(one, {}).items() if reason != NO_GPU else ():
                jobs.setdefault(some if (one.node, job) in unsure else unit, {}).setdefault(job, []).extend(times)
        spans: list[AllocationSpan] = []
        for unit in seen:
            if unit in jobs or tracker.now.get(unit):
                named = {job: _union(times) for job, times in jobs.get(unit, {}).items()}
                spans += tracker.changes(unit, _union(seen[unit]), named)
        return ChunkPart("allocations", allocation_rows(spans), overlaps=True)


def series_parts(answer: SeriesAnswer, memory: SeriesMemory, *, overlaps: bool) -> tuple[ChunkPart, ...]:
    """Return the rows of an answer, all of one window; `overlaps`: some may be in the lake already."""
    rows = SeriesRows(memory)
    rows.add_answer(answer)
    return rows.parts(overlaps=overlaps)


def allocation_rows(spans: Iterable[AllocationSpan]) -> pl.DataFrame:
    """Return rows of `allocations`; their provenance is the recording itself, `explicit`.

    Where it shows no more than the node it is `node_list`: what names the GPU has priority.
    """
    rows = [
        (span.job, *span.unit, span.start, span.end, "node_list" if span.unit[1] is None else "explicit")
        for span in spans
    ]
    schema = {"job_id": pl.String, "node": pl.String, "gpu": pl.Int16, "mig": pl.Int16}
    times = {"start": pl.Int64, "end": pl.Int64}
    frame = pl.DataFrame(rows, schema={**schema, **times, "provenance": pl.String}, orient="row")
    return frame.with_columns(pl.col(*times).cast(TIME))


@dataclass(frozen=True, slots=True)
class _RowKeys:
    """One number per (unit, time) that sorts as they do. `moments`: all times, where units times span is too large."""

    low: int
    span: int
    moments: Longs | None = None

    @classmethod
    def of(cls, times: Sequence[Longs], units: int) -> _RowKeys:
        """Return the keys for some times, of which none is empty."""
        low = min(int(t.min()) for t in times)
        span = max(int(t.max()) for t in times) - low + 1
        if span <= _LARGEST_KEY // units:
            return cls(low, span)
        moments = np.unique(np.concatenate(times))
        return cls(0, moments.size, moments)

    def join(self, units: Longs | np.int64, t: Longs) -> Longs:
        return units * self.span + (t - self.low if self.moments is None else np.searchsorted(self.moments, t))

    def split(self, keys: Longs) -> tuple[Longs, Longs]:
        """(units, times)"""
        units, rest = np.divmod(keys, self.span)
        return units, rest + self.low if self.moments is None else self.moments[rest]


@dataclass(slots=True)
class _PageSeries:
    """What one set of labels of a page is about: the numbers of its GPU and its node. _NONE: it is none, and why."""

    t_us: int = 0
    unit: LabelledGpu | None = None
    gpu: int = _NONE
    node: int = _NONE
    problem: str = "no_gpu"
    example: str = ""


class _PageScrape:
    """One page on its way into rows."""

    def __init__(self, rows: SeriesRows, samples: PageSamples, t_us: int, node: str | None) -> None:
        self._rows, self._samples = rows, samples
        self._stamped = any(stamp is not None for stamp in samples.stamps)
        self._t = np.array([t_us])
        self._node = None if node is None else short_node(node)
        self._series: dict[str | tuple[str, float | None], _PageSeries] = {}
        self._hosts: dict[tuple[str | None, float | None], _PageSeries] = {}
        self._same_blocks: list[str] = []
        self._same_series: list[_PageSeries] = []
        self._same: list[_PageSeries] | None = None
        self._same_units = self._t

    def add(self, target: MetricTarget, places: Sequence[int]) -> None:
        """Put the values of one column where they belong; places: of its samples in the page."""
        rows = self._rows
        rows.known += len(places)
        series = self._of(places)
        if target.table == "node_samples":
            units = np.array([one.node for one in series], np.int64)
        elif series is self._same:
            units = self._same_units
        else:
            units = np.array([one.gpu for one in series], np.int64)
            self._same, self._same_units = series, units
        if units.size and units.min() == _NONE:
            places = self._left(target, places, units, series)
            series = [one for one, unit in zip(series, units.tolist(), strict=True) if unit != _NONE]
            units = units[units != _NONE]
        values = np.array(_at(self._samples.values, places), np.float64)
        t = np.array([one.t_us for one in series], np.int64) if self._stamped else np.repeat(self._t, values.size)
        if target.table in ("gpu_samples", "node_samples"):
            rows.add(target, units, t, values)
            return
        for place, one in enumerate(series):
            if one.unit is not None and target.table == "allocations":
                rows.see_job_numbers(one.unit, t[place : place + 1], values[place : place + 1])
            elif one.unit is not None:
                rows.describe_capacity(one.unit, target, float(values[place]))

    def _of(self, places: Sequence[int]) -> list[_PageSeries]:
        """What samples are about. Most metrics of a page have the same labels in the same order."""
        known = self._series
        blocks = _at(self._samples.labels, places)
        if self._stamped:
            stamps = _at(self._samples.stamps, places)
            return [known.get(key) or self._new(*key) for key in zip(blocks, stamps, strict=True)]
        if blocks != self._same_blocks:
            self._same_blocks = blocks
            self._same_series = [known.get(block) or self._new(block, None) for block in blocks]
        return self._same_series

    def _left(
        self, target: MetricTarget, places: Sequence[int], units: Longs, series: Sequence[_PageSeries]
    ) -> list[int]:
        """The places of samples that are about something; the others are counted."""
        left = []
        for place, unit, one in zip(places, units.tolist(), series, strict=True):
            if unit == _NONE:
                example = one.example or f"{self._samples.names[place]}{{{self._samples.labels[place]}}}"
                self._rows.reject(target.table, one.problem, None, 1, example)
            else:
                left.append(place)
        return left

    def _new(self, block: str, stamp: float | None) -> _PageSeries:
        found = self._rows.memory.vocabulary.location_in_page(block)
        if isinstance(found, UnusableLabels):
            series = _PageSeries(problem=found.reason, example=found.example)
        elif found.gpu is None and found.uuid is None and found.pci is None:  # the same for all CPUs of a node
            series = self._hosts.get((found.node, stamp)) or self._located(found, stamp)
            self._hosts[found.node, stamp] = series
        else:
            series = self._located(found, stamp)
        self._series[(block, stamp) if self._stamped else block] = series
        return series

    def _located(self, found: SeriesLocation, stamp: float | None) -> _PageSeries:
        rows = self._rows
        if stamp is not None and not 0 <= stamp < _LAST_STAMP_S:
            return _PageSeries(problem="bad_timestamp", example=str(stamp))
        node = found.node or self._node
        if node is None:
            return _PageSeries(problem="no_node")
        t = self._t if stamp is None else np.array([round(stamp * 1e6)])
        unit = labelled_gpu(node, found)
        if unit is None:
            return _PageSeries(int(t[0]), node=rows.unit(node))
        rows.describe(unit, found, SAME_TIME)
        rows.see(unit, t, found.job)
        return _PageSeries(int(t[0]), unit, rows.unit(unit), rows.unit(node))


def _at(column: list[_T], places: Sequence[int]) -> list[_T]:
    """The values of a column at some places."""
    if isinstance(places, range):  # all series of a metric are contiguous
        return column[places.start : places.stop]
    return [column[place] for place in places]


def _host_of_page(samples: PageSamples) -> str | None:
    if NODE_INFO not in samples.names:
        return None
    blocks = {block for name, block, _, _ in samples if name == NODE_INFO}
    return named_host((NODE_INFO, labels_of(block)) for block in blocks)


def _union(times: Sequence[Longs]) -> Longs:
    """All times, once each; most often all metrics have the same."""
    different = {t.tobytes(): t for t in times if t.size}
    if not different:
        return np.empty(0, np.int64)
    return np.unique(np.concatenate(list(different.values()))) if len(different) > 1 else next(iter(different.values()))
