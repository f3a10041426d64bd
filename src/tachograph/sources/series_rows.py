"""Converts labelled series to table rows, for Prometheus answers and exporter pages alike.

All metrics of one scrape have one time, so they are columns of one row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain, compress, groupby, pairwise

import numpy as np
import polars as pl

from tachograph.catalog.arrays import Floats, Longs
from tachograph.catalog.chunks import CLUSTER_MARK, ChunkPart, Reject, with_cluster_column
from tachograph.catalog.tables import TIME
from tachograph.catalog.units import factor
from tachograph.sources.exporter_mapping import (
    CAPACITY,
    DEVICE,
    HOLDER,
    INDEX,
    OF_CAPACITY,
    LabelNames,
)
from tachograph.sources.exposition import PageSamples, at_places, parse_page
from tachograph.sources.gpu_indices import (
    AMBIGUOUS,
    NO_GPU,
    SAME_TIME,
    LabelledGpu,
    PlacedGpu,
    TimeSpan,
)
from tachograph.sources.job_ids import job_and_step
from tachograph.sources.metrics import (
    DCGM_INDEX,
    NODE_INFO,
    MetricTarget,
    SeriesLocation,
    TableName,
    UnusableLabels,
    job_of,
    metric_target_of_all,
    short_node,
    why_unread,
)
from tachograph.sources.node_pins import OTHER_NODE, NodePin, named_nodes
from tachograph.sources.series import (
    OTHER_QUANTITY,
    Mask,
    SeriesAnswer,
    SeriesIdentity,
    SeriesMemory,
    SeriesRun,
    host_of_page,
    labelled_gpu,
)
from tachograph.sources.series_allocations import JobLooks, allocation_part
from tachograph.sources.series_points import (
    CONFLICTING,
    NONE,
    PointColumns,
    SeriesPoints,
    device_rows,
    numbered_gpus,
    points_disagree,
    targets_by_column,
)

_LAST_STAMP_S = 1e11
_OF_NODES = ("node_samples", "job_node_samples")
NO_JOB = "no_job"
_JOB_MARK = " job "  # before the job, in the name of a job on a node; no job has a space


class SeriesRows:
    """Rows made from series. `known`: values with a meaning; `unreadable`: rejected lines.

    `facts`: known values that describe devices or name jobs, without those that `parts` rejects.
    `unread`: lines by metric, of those that are not read.

    Series that are written once per job, pod or container are one value; one that differs is
    `conflicting_value`. Rejects count values: `unknown_metric`, `bad_labels`, `no_node`, `no_gpu`,
    `bad_gpu`, `bad_mig`, `not_a_gpu`, `not_finite`, `bad_timestamp`, `bad_job_id`,
    `conflicting_value`, `other_quantity`, `no_capacity`, `other_node`, and those of `parse_page`;
    `reread` counts rows, `server_warning` removes nothing. `index_contradicts_uuid` and
    `ambiguous_gpu` count GPUs; a sample that `ambiguous_gpu` removes counts as one, too.

    GPUs are kept as their labels name them until all series are there: which index a UUID has may
    come last.
    """

    def __init__(self, memory: SeriesMemory) -> None:
        self.memory = memory
        self.known = 0
        self.unreadable = 0
        self.facts = 0
        self.unread: Counter[str] = Counter()
        self._units: dict[LabelledGpu | str, int] = {}
        self._spans: dict[LabelledGpu, TimeSpan] = {}
        self._placed: Mapping[LabelledGpu, PlacedGpu] = {}
        self._points: dict[MetricTarget, list[SeriesPoints]] = {}
        self._by_column: Mapping[MetricTarget, Sequence[MetricTarget]] = {}
        self._devices: dict[LabelledGpu, dict[str, str | float | None]] = {}
        self._facts: Counter[tuple[LabelledGpu, TableName]] = Counter()
        self._seen: dict[LabelledGpu, list[Longs]] = {}
        self._jobs: dict[LabelledGpu, dict[str, list[Longs]]] = {}
        # {node: {job of the node, or none: when}}.
        self._of_nodes: dict[str, dict[str | None, list[Longs]]] = {}
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
                if identity.target.table in _OF_NODES:
                    later.append((run, identity))  # a series further down may name this node
                else:
                    self._add_run(run, identity)
        for run, identity in later:
            self._add_run(run, identity)
        for warning in dict.fromkeys(answer.warnings):
            self.reject("gpu_samples", "server_warning", None, 0, warning)

    def add_page(
        self, page: bytes, *, t: datetime, node: str | None, pin: NodePin | None = None
    ) -> int:
        """Add a page scraped at `t` from an exporter on `node`; return the number of known samples.

        A time written behind a value replaces `t`; a host that the page names replaces `node`.
        `pin`: nodes that it may name, values of others are `other_node`.
        """
        vocabulary, before = self.memory.vocabulary, self.known
        samples = parse_page(page, wanted=vocabulary.wanted)
        self.unread.update(samples.unread)
        for reject in samples.rejects:
            self.reject(
                "gpu_samples", reject.reason, reject.column, reject.count, reject.example or ""
            )
            self.unreadable += reject.count
        if pin is not None:
            pin.see(() if pin.is_known else named_nodes(samples, vocabulary.labels))
        scrape = _PageScrape(self, samples, round(t.timestamp() * 1e6), node, pin)
        end = 0
        for metric, group in groupby(samples.names):
            begin, end = end, end + len(list(group))
            target = metric_target_of_all(metric, own=vocabulary.metrics)
            unread = why_unread(metric) if target is None else None
            if unread is None:
                vocabulary.note_exporter(metric)
            if target is not None:
                scrape.add(target, range(begin, end))
            elif unread is not None:
                self.reject("gpu_samples", OTHER_QUANTITY, None, end - begin, f"{metric}: {unread}")
                self.unreadable += end - begin
            elif metric != NODE_INFO:
                for mapped, indices in self._by_target(metric, samples, range(begin, end)):
                    scrape.add(mapped, indices)
        return self.known - before

    def parts(self, *, overlaps: bool = False) -> tuple[ChunkPart, ...]:
        """Return the rows, table by table, rejects with the first part of their table.

        Grain: one row per (node, gpu, mig, t) and per (node, t); a device where it differs from the
        last one written; an allocation where one begins or ends. A second part of a table holds
        what exporters write in a second unit. `overlaps`: some samples may be in the lake already.
        """
        self._place()
        self._measure_by_capacity()
        described = device_rows(self._devices, self._placed, self._spans, self.memory.devices)
        devices = ChunkPart("devices", described, overlaps=True)
        parts = [
            *self._samples("gpu_samples", overlaps=overlaps),
            *self._samples("node_samples", overlaps=overlaps),
            *self._samples("job_node_samples", overlaps=overlaps),
        ]
        looks = JobLooks(self.memory.naming, self._placed, self._seen, self._jobs, self._of_nodes)
        held = allocation_part(looks, self.memory.allocations)
        parts += [part for part in (devices, held) if part.frame.height]
        rejects: dict[str, list[Reject]] = {}
        for (table, reason, column), count in self._removed.items():
            example = self._examples[table, reason, column] or None
            rejects.setdefault(table, []).append(Reject(reason, column, count, example))
        gpus = numbered_gpus(self._placed, self._spans)
        counted: list[ChunkPart] = []
        for part in parts:
            part_gpus = () if part.table in _OF_NODES else gpus
            part_rejects = tuple(rejects.pop(part.table, ()))
            counted.append(replace(part, rejects=part_rejects, gpus=part_gpus))
        for name, without_rows in rejects.items():
            counted.append(ChunkPart(name, pl.DataFrame(), rejects=tuple(without_rows)))
        units = (unit if isinstance(unit, str) else unit.node for unit in self._units)
        if any(CLUSTER_MARK in node for node in chain(units, self._of_nodes)):
            return tuple(map(with_cluster_column, counted))
        return tuple(counted)

    def unit(self, labelled: LabelledGpu | str) -> int:
        """Return the number of a GPU as labels name it, or of a node."""
        return self._units.setdefault(labelled, len(self._units))

    def host_unit(self, node: str, location: SeriesLocation, target: MetricTarget) -> str | None:
        """Return the name of a node, or of a job there; None where that names no job."""
        if target.table == "node_samples":
            return node
        named = job_and_step(location.job or "")
        if named is None or any(" " in part for part in named if part):
            return None
        return f"{node}{_JOB_MARK}{'.'.join(filter(None, named))}"

    def add(self, target: MetricTarget, units: int | Longs, t: Longs, values: Floats) -> None:
        """Add values of a column; units: one for all or one each. NaN is counted and dropped."""
        values = target.marked(values)
        missing = np.isnan(values)
        if missing.any():
            self.reject(
                target.table, "not_finite", None, int(missing.sum()), f"{target.column}: NaN"
            )
            units, t, values = (
                (units if isinstance(units, int) else units[~missing]),
                t[~missing],
                values[~missing],
            )
        if t.size:
            self._points.setdefault(target, []).append((units, t, values))

    def describe(self, unit: LabelledGpu, location: SeriesLocation, span: TimeSpan) -> None:
        """Note the facts about a device that labels name, and when they do."""
        first, last = self._spans.get(unit, span)
        self._spans[unit] = (min(first, span[0]), max(last, span[1]))
        facts = self._devices.setdefault(unit, {})
        if location.model is not None:
            facts["model"] = location.model
        if location.profile is not None:
            facts["mig_profile"] = location.profile

    def describe_by(
        self, unit: LabelledGpu, location: SeriesLocation, target: MetricTarget, value: float
    ) -> None:
        """Note the memory or index of a device from its value; labels are noted already."""
        if target.column == INDEX and value >= 0 and value == int(value):
            span = self._spans.get(unit, SAME_TIME)
            self.describe(
                LabelledGpu(unit.node, int(value), DCGM_INDEX, unit.mig, unit.uuid, unit.pci),
                location,
                span,
            )
        if target.column != CAPACITY:
            return
        mib = value * factor(target.unit, "MiB")
        self._facts[unit, "devices"] += 1
        self._devices.setdefault(unit, {})[target.column] = mib if mib > 0 else None

    def see(self, unit: LabelledGpu, t: Longs, job: str | None) -> None:
        """Note when a GPU was scraped, and the job that a label names on it."""
        self._seen.setdefault(unit, []).append(t)
        if job is None:
            return
        named = job_and_step(job)
        if named is None:
            self.reject("allocations", "bad_job_id", "job_id", 1, job)
            return
        self._jobs.setdefault(unit, {}).setdefault(".".join(filter(None, named)), []).append(t)
        self.memory.naming.add(unit)

    def see_holder(self, node: str, t: Longs, job: str | None) -> None:
        """Record the job that holds a whole node, or that none does."""
        named = None if job is None else job_and_step(job)
        if job is not None and named is None:
            self.reject("allocations", "bad_job_id", "job_id", 1, job)
            return
        of_node = None if named is None else named[0]
        self._of_nodes.setdefault(node, {}).setdefault(of_node, []).append(t)

    def see_job_numbers(self, unit: LabelledGpu, t: Longs, values: Floats) -> None:
        """Record the jobs of a series whose values are job ids; 0 means none."""
        self._facts[unit, "allocations"] += t.size
        self.memory.naming.add(unit)
        self.see(unit, t, None)
        for number in np.unique(values[values > 0]).tolist():
            self.see(unit, t[values == number], job_of(repr(number)))

    def reject(
        self, table: TableName, reason: str, column: str | None, count: int, example: str
    ) -> None:
        """Count values that are left out."""
        self._removed[table, reason, column] += count
        self._examples.setdefault((table, reason, column), example[:200])

    def _add_run(self, run: SeriesRun, identity: SeriesIdentity) -> None:
        """Add one series of an answer."""
        target, location, vocabulary = identity.target, identity.location, self.memory.vocabulary
        t = run.t * 1000
        node = vocabulary.node(identity)
        if node is None:
            self.reject(target.table, "no_node", None, t.size, run.labels.decode())
            return
        self.known += t.size
        if target.table in _OF_NODES:
            host = self.host_unit(node, location, target)
            if host is not None:
                self.add(target, self.unit(host), t, run.values)
            else:
                self.reject(target.table, NO_JOB, None, t.size, run.labels.decode())
            return
        unit = labelled_gpu(node, location)
        if target.table != "gpu_samples" and (unit is not None or target.column == HOLDER):
            self.facts += t.size
        if unit is None and target.column == HOLDER:
            self.see_holder(node, t[run.values > 0], location.job)
            return
        if unit is None:
            self.reject(target.table, NO_GPU, None, t.size, run.labels.decode())
            return
        if not t.size:
            return
        self.describe(unit, location, (int(t[0]), int(t[-1])))
        if target.table == "gpu_samples":
            self.add(target, self.unit(unit), t, run.values)
            self.see(unit, t, location.job)
        elif target.column == HOLDER:
            self.see(unit, t, location.job)
        elif target.table == "allocations":
            self.see_job_numbers(unit, t, run.values)
        else:
            self.describe_by(unit, location, target, float(run.values[-1]))

    def _place(self) -> None:
        """Index each GPU; count those without index, or with contradicting labels."""
        self._placed = {**self.memory.vocabulary.indices.places(self._spans)}
        # One index, several jobs, other values for each: an index within the job.
        for labelled in self._jobs:
            if (
                len(self._jobs[labelled]) > 1
                and labelled.uuid is None
                and labelled.pci is None
                and labelled in self._units
            ):
                number = self._units[labelled]
                if any(points_disagree(points, number) for points in self._points.values()):
                    self._placed[labelled] = PlacedGpu(None, AMBIGUOUS)
        gone: dict[int, tuple[str, str]] = {}
        for labelled, (gpu, reason, _) in self._placed.items():
            if reason is None:
                continue
            index = "no index" if labelled.gpu is None else f"index {labelled.gpu}"
            example = " ".join(
                [labelled.node, index, *(name for name in (labelled.uuid, labelled.pci) if name)]
            )
            if gpu is None and labelled in self._units:
                gone[self._units[labelled]] = (reason, example)
            if gpu is None and self._facts[labelled, "devices"]:
                self.reject("devices", reason, None, self._facts[labelled, "devices"], example)
                self.facts -= self._facts[labelled, "devices"]
            if reason == NO_GPU and self._facts[labelled, "allocations"]:
                self.reject(
                    "allocations", reason, None, self._facts[labelled, "allocations"], example
                )
                self.facts -= self._facts[labelled, "allocations"]
            elif reason != NO_GPU and labelled in self._jobs:
                self.reject("allocations", reason, None, 1, example)
            elif gpu is not None:
                self.reject("gpu_samples", reason, None, 1, example)
        if gone:
            self._remove(gone)

    def _measure_by_capacity(self) -> None:
        """Turn memory in percent of the capacity into MiB; without a capacity it is unknown."""
        for target in [target for target in self._points if target.unit == OF_CAPACITY]:
            capacities = np.full(len(self._units), np.nan)
            for unit, number in self._units.items():
                if isinstance(unit, LabelledGpu):
                    written = self.memory.devices.get(
                        (unit.node, self._placed[unit].gpu, unit.mig), (None,)
                    )[-1]
                    mib = self._devices.get(unit, {}).get(CAPACITY) or written
                    capacities[number] = mib if isinstance(mib, float) else np.nan
            for units, t, percent in self._points.pop(target):
                values = percent * capacities[units] / 100
                unknown = int(np.isnan(values).sum())
                if unknown:
                    self.reject(
                        target.table,
                        "no_capacity",
                        target.column,
                        unknown,
                        "percent of an unknown capacity",
                    )
                is_known = ~np.isnan(values)
                of_each = np.full(t.size, units) if isinstance(units, int) else units
                if is_known.any():
                    into = replace(target, unit="MiB")
                    self._points.setdefault(into, []).append(
                        (of_each[is_known], t[is_known], values[is_known])
                    )

    def _remove(self, gone: Mapping[int, tuple[str, str]]) -> None:
        """Remove the samples of GPUs without an index."""
        lost = np.zeros(len(self._units), np.bool_)
        lost[list(gone)] = True
        for target in [target for target in self._points if target.table == "gpu_samples"]:
            points: list[SeriesPoints] = []
            for units, t, values in self._points.pop(target):
                of_each = np.full(t.size, units) if isinstance(units, int) else units
                remains = ~lost[of_each]
                for number, count in Counter(of_each[~remains].tolist()).items():
                    reason, example = gone[number]
                    self.reject("gpu_samples", reason, None, count, example)
                if remains.all():
                    points.append((units, t, values))
                elif remains.any():
                    points.append((of_each[remains], t[remains], values[remains]))
            if points:
                self._points[target] = points

    def _name(self, unit: LabelledGpu | str) -> tuple[str, int, int]:
        """Node, GPU and slice of a unit; of nodes, and of GPUs without an index, NONE."""
        if isinstance(unit, str):
            return unit, NONE, NONE
        gpu = self._placed[unit].gpu
        return unit.node, NONE if gpu is None else gpu, NONE if unit.mig is None else unit.mig

    def _by_target(
        self, metric: str, samples: PageSamples, indices: Iterable[int]
    ) -> Iterable[tuple[MetricTarget, list[int]]]:
        """Indices of the samples of a metric, grouped by the column from their labels."""
        by_target: dict[tuple[str, str], tuple[MetricTarget, list[int]]] = {}
        for index in indices:
            target = self.memory.vocabulary.target_in_page(metric, samples.labels[index])
            if target is not None:
                by_target.setdefault((target.column, target.part), (target, []))[1].append(index)
        return by_target.values()

    def _samples(self, table: TableName, *, overlaps: bool) -> Iterator[ChunkPart]:
        """The samples of a table; two columns in different units go to different parts."""
        self._by_column = targets_by_column(self._points)
        layers: list[dict[str, MetricTarget]] = []
        for target in self._by_column:
            if target.table == table:
                layer = next((columns for columns in layers if target.column not in columns), None)
                if layer is None:
                    layers.append(layer := {})
                layer[target.column] = target
        for number, layer in enumerate(layers):
            units = {name: target.unit for name, target in layer.items()}
            values = 0
            for column in layer.values():
                for target in self._by_column[column]:
                    values += sum(times.size for _, times, _ in self._points[target])
            before = self._conflicts
            frame = self._frame(table, number, layer)
            yield ChunkPart(
                table, frame, units, overlaps=overlaps, rows_used=values - self._conflicts + before
            )

    @property
    def _conflicts(self) -> int:
        return sum(
            count for (_, reason, _), count in self._removed.items() if reason == CONFLICTING
        )

    def _frame(
        self, table: TableName, layer: int, targets: Mapping[str, MetricTarget]
    ) -> pl.DataFrame:
        """The rows of one layer, sorted by node, GPU, slice, time."""
        units = [self._name(unit) for unit in self._units]
        names = sorted(set(units))
        positions = {name: number for number, name in enumerate(names)}
        point_columns = PointColumns(self._points, self._by_column, self.reject)
        unit, t, columns = point_columns.aligned(
            targets, names, np.array([positions[name] for name in units], np.int64)
        )
        if table == "gpu_samples" and self.memory.rereads.refresh_s:
            fresh = self._fresh(layer, names, unit, t, columns)
            unit, t, columns = (
                unit[fresh],
                t[fresh],
                {name: values[fresh] for name, values in columns.items()},
            )
        of_row = pl.Series(unit)
        nodes = [name[0] for name in names]
        keys: dict[str, pl.Series] = {}
        if table == "job_node_samples":
            parts = [node.rpartition(_JOB_MARK) for node in nodes]
            nodes = [node for node, _, _ in parts]
            # Not every dot is before a step: ids of PBS and names of pods have one.
            jobs = [job_and_step(job) or (job, None) for _, _, job in parts]
            ids = pl.Series([job for job, _ in jobs], dtype=pl.String)
            steps = pl.Series([step for _, step in jobs], dtype=pl.String)
            keys |= {"job_id": ids.gather(of_row), "step": steps.gather(of_row)}
        keys["node"] = pl.Series(nodes, dtype=pl.String).gather(of_row)
        if table == "gpu_samples":
            slices = [None if name[2] == NONE else name[2] for name in names]
            keys["gpu"] = pl.Series([name[1] for name in names], dtype=pl.Int16).gather(of_row)
            keys["mig"] = pl.Series(slices, dtype=pl.Int16).gather(of_row)
        series = {name: pl.Series(values, nan_to_null=True) for name, values in columns.items()}
        return pl.DataFrame({"t": pl.Series(t).cast(TIME), **keys, **series})

    def _fresh(
        self,
        layer: int,
        names: Sequence[tuple[str, int, int]],
        unit: Longs,
        t: Longs,
        columns: Mapping[str, Floats],
    ) -> Mask:
        """Which rows are samples and no values read again; those are counted."""
        borders = [0, *(np.flatnonzero(np.diff(unit)) + 1).tolist(), unit.size] if unit.size else []
        fresh = np.ones(unit.size, np.bool_)
        for start, end in pairwise(borders):
            rows = {name: values[start:end] for name, values in columns.items()}
            fresh[start:end] = self.memory.rereads.fresh(
                (*names[unit[start]], layer), t[start:end], rows
            )
        again = int((~fresh).sum())
        if again:
            self.reject("gpu_samples", "reread", None, again, "")
        return fresh


def series_parts(
    answer: SeriesAnswer, memory: SeriesMemory, *, overlaps: bool
) -> tuple[ChunkPart, ...]:
    """Return the rows of an answer, all of one window; `overlaps`: some may be in the lake."""
    rows = SeriesRows(memory)
    rows.add_answer(answer)
    return rows.parts(overlaps=overlaps)


@dataclass(slots=True)
class _PageSeries:
    """Subject of a label set of a page: GPU and node numbers. NONE: not usable, with the reason."""

    t_us: int = 0
    unit: LabelledGpu | None = None
    gpu: int = NONE
    node: int = NONE
    problem: str = "no_gpu"
    example: str = ""


class _PageScrape:
    """Conversion of a page to rows."""

    def __init__(
        self,
        rows: SeriesRows,
        samples: PageSamples,
        t_us: int,
        node: str | None,
        pin: NodePin | None,
    ) -> None:
        self._rows, self._samples, self._pin = rows, samples, pin
        self._stamped = samples.is_stamped
        self._t = np.array([t_us])
        self._host = host_of_page(samples)
        page_node = self._host or node
        self._node = None if page_node is None else short_node(page_node)
        self._names: tuple[LabelNames, str] | None = None
        self._of_names: dict[
            tuple[LabelNames, str], dict[str | tuple[str, float | None], _PageSeries]
        ] = {}
        self._series: dict[str | tuple[str, float | None], _PageSeries] = {}
        self._hosts: dict[tuple[str | None, float | None], _PageSeries] = {}
        self._same_blocks: list[str] = []
        self._same_series: list[_PageSeries] = []
        self._same: list[_PageSeries] | None = None
        self._same_units = self._t

    def add(self, target: MetricTarget, indices: Sequence[int]) -> None:
        """Add values of a column; indices: of its samples in the page."""
        rows = self._rows
        rows.known += len(indices)
        of_job = target.table == "job_node_samples"
        names = (target.labels, f"{target.joining.over}{_JOB_MARK if of_job else ''}")
        if names != self._names:
            self._names, self._same_blocks, self._same_series, self._same = names, [], [], None
            self._series = self._of_names.setdefault(names, {})
        series = self._of(indices, target)
        if target.column == HOLDER:
            self._see_holders(target, indices, series)
            return
        if target.table in _OF_NODES:
            units = np.array([line.node for line in series], np.int64)
        elif series is self._same:
            units = self._same_units
        else:
            units = np.array([line.gpu for line in series], np.int64)
            self._same, self._same_units = series, units
        if units.size and units.min() == NONE:
            indices = self._left(target, indices, units, series)
            series = list(compress(series, units != NONE))
            units = units[units != NONE]
        values = np.array(at_places(self._samples.values, indices), np.float64)
        t = (
            np.array([line.t_us for line in series], np.int64)
            if self._stamped
            else np.repeat(self._t, values.size)
        )
        if target.table in ("gpu_samples", *_OF_NODES):
            rows.add(target, units, t, values)
            return
        rows.facts += values.size
        for position, line in enumerate(series):
            if line.unit is not None and target.table == "allocations":
                rows.see_job_numbers(
                    line.unit, t[position : position + 1], values[position : position + 1]
                )
            elif line.unit is not None and target.column != DEVICE:
                block = self._samples.labels[indices[position]]
                location = rows.memory.vocabulary.location_in_page(block, target)
                if not isinstance(location, UnusableLabels):
                    rows.describe_by(line.unit, location, target, float(values[position]))

    def _see_holders(
        self, target: MetricTarget, indices: Sequence[int], series: Sequence[_PageSeries]
    ) -> None:
        """Note the jobs that labels name, of a GPU or of a whole node."""
        for index, line in zip(indices, series, strict=True):
            location = self._rows.memory.vocabulary.location_in_page(
                self._samples.labels[index], target
            )
            node = None if isinstance(location, UnusableLabels) else location.node or self._node
            if node is None or isinstance(location, UnusableLabels) or line.problem == OTHER_NODE:
                example = line.example or self._samples.names[index]
                self._rows.reject(target.table, line.problem, None, 1, example)
                continue
            self._rows.facts += 1
            if line.unit is None and self._samples.values[index] > 0:
                node = location.place(node) or node
                self._rows.see_holder(node, np.array([line.t_us]), location.job)

    def _of(self, indices: Sequence[int], target: MetricTarget) -> list[_PageSeries]:
        """Subjects of samples; most metrics of a page have the same labels in the same order."""
        by_block = self._series
        blocks = at_places(self._samples.labels, indices)
        if self._stamped:
            stamps = at_places(self._samples.stamps, indices)
            return [
                by_block.get(key) or self._new(*key, target)
                for key in zip(blocks, stamps, strict=True)
            ]
        if blocks != self._same_blocks:
            self._same_blocks = blocks
            self._same_series = [
                by_block.get(block) or self._new(block, None, target) for block in blocks
            ]
        return self._same_series

    def _left(
        self,
        target: MetricTarget,
        indices: Sequence[int],
        units: Longs,
        series: Sequence[_PageSeries],
    ) -> list[int]:
        """Return the indices of samples about a known GPU or node; others are counted."""
        remaining = []
        for index, unit, line in zip(indices, units.tolist(), series, strict=True):
            if unit == NONE:
                example = (
                    line.example or f"{self._samples.names[index]}{{{self._samples.labels[index]}}}"
                )
                self._rows.reject(target.table, line.problem, None, 1, example)
            else:
                remaining.append(index)
        return remaining

    def _new(self, block: str, stamp: float | None, target: MetricTarget) -> _PageSeries:
        location = self._rows.memory.vocabulary.location_in_page(block, target)
        if isinstance(location, UnusableLabels):
            series = _PageSeries(problem=location.reason, example=location.example)
        elif target.table == "job_node_samples":
            series = self._located(location, stamp, target)
        elif (
            location.gpu is None and location.uuid is None and location.pci is None
        ):  # the same for all CPUs of a node
            host = location.place(location.node)
            series = self._hosts.get((host, stamp)) or self._located(location, stamp, target)
            self._hosts[host, stamp] = series
        else:
            series = self._located(location, stamp, target)
        self._series[(block, stamp) if self._stamped else block] = series
        return series

    def _located(
        self, location: SeriesLocation, stamp: float | None, target: MetricTarget
    ) -> _PageSeries:
        rows = self._rows
        if stamp is not None and not 0 <= stamp < _LAST_STAMP_S:
            return _PageSeries(problem="bad_timestamp", example=str(stamp))
        node = location.node or self._node
        if node is None:
            return _PageSeries(problem="no_node")
        claimed = location.node or self._host
        if claimed is not None and self._pin is not None and not self._pin.admits(claimed):
            return _PageSeries(problem=OTHER_NODE, example=f"{self._pin.label} names {node}")
        node = location.place(node) or node
        t = self._t if stamp is None else np.array([round(stamp * 1e6)])
        if target.table == "job_node_samples":
            host = rows.host_unit(node, location, target)
            if host is None:
                return _PageSeries(problem=NO_JOB)
            return _PageSeries(int(t[0]), node=rows.unit(host))
        unit = labelled_gpu(node, location)
        if unit is None:
            return _PageSeries(int(t[0]), node=rows.unit(node))
        stamped = (int(t[0]), int(t[0]))
        rows.describe(unit, location, SAME_TIME if stamp is None else stamped)
        rows.see(unit, t, location.job)
        return _PageSeries(int(t[0]), unit, rows.unit(unit), rows.unit(node))
