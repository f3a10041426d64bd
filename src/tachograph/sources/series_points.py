"""Merges points of series: sortable keys, duplicates, parts of one GPU, allocations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby

import numpy as np
import polars as pl

from tachograph.catalog.arrays import Floats, Longs
from tachograph.catalog.chunks import NumberedGpu
from tachograph.catalog.tables import DEVICES, GPU_KEY, TIME
from tachograph.catalog.units import EPOCH
from tachograph.sources.gpu_indices import AMBIGUOUS, SAME_TIME, LabelledGpu, PlacedGpu, TimeSpan
from tachograph.sources.job_ids import job_and_step
from tachograph.sources.metrics import NUMBERINGS, MetricTarget, TableName
from tachograph.sources.series import AllocationSpan, GpuPlace, GpuUnit, Mask

NONE = -1  # GPU of a node, MIG slice of a whole GPU; sorts, which None does not
CONFLICTING = "conflicting_value"
_LARGEST_KEY = 1 << 62
_READING_US = 15_000_000  # metrics of one reading are stamped no further apart

# Number of the unit of all points or of each, microseconds, values.
SeriesPoints = tuple[int | Longs, Longs, Floats]
KeyedValues = tuple[Longs, Floats]  # keys of rows, sorted, and the value at each


@dataclass(frozen=True, slots=True)
class RowKeys:
    """One integer per (unit, time) with the same order. `moments`: all times, if it would
    overflow.
    """

    low: int
    span: int
    moments: Longs | None = None

    @classmethod
    def of(cls, times: Sequence[Longs], units: int) -> RowKeys:
        """Return the keys of non-empty times."""
        low = min(int(t.min()) for t in times)
        span = max(int(t.max()) for t in times) - low + 1
        if span <= _LARGEST_KEY // units:
            return cls(low, span)
        moments = np.unique(np.concatenate(times))
        return cls(0, moments.size, moments)

    def join(self, units: Longs | np.int64, t: Longs) -> Longs:
        """Return the key of each unit and time."""
        return units * self.span + (
            t - self.low if self.moments is None else np.searchsorted(self.moments, t)
        )

    def split(self, keys: Longs) -> tuple[Longs, Longs]:
        """Return (units, times)."""
        units, rest = np.divmod(keys, self.span)
        return units, rest + self.low if self.moments is None else self.moments[rest]


@dataclass(frozen=True, slots=True)
class PointColumns:
    """Points of series as columns, grouped as by `targets_by_column`; `reject` counts conflicts."""

    points: Mapping[MetricTarget, Sequence[SeriesPoints]]
    by_column: Mapping[MetricTarget, Sequence[MetricTarget]]
    reject: Callable[[TableName, str, str | None, int, str], None]

    def aligned(
        self,
        targets: Mapping[str, MetricTarget],
        names: Sequence[tuple[str, int, int]],
        ranks: Longs,
    ) -> tuple[Longs, Longs, dict[str, Floats]]:
        """Return sorted (index in `names`, time, values of each column), NaN for missing values.

        ranks: the place of each numbered unit; several may be one GPU.
        """
        every = [part for target in targets.values() for part in self.by_column[target]]
        keys = RowKeys.of([t for target in every for _, t, _ in self.points[target]], len(names))
        readings = of_readings(
            {target: self._combined(target, ranks, names, keys) for target in every}, keys
        )
        combined = {name: self._column(target, readings) for name, target in targets.items()}
        rows = all_keys([keys for keys, _ in combined.values()])
        columns: dict[str, Floats] = {}
        for name, (of_column, values) in combined.items():
            if of_column.size == rows.size:
                columns[name] = values
            else:
                columns[name] = np.full(rows.size, np.nan)
                columns[name][np.searchsorted(rows, of_column)] = values
        unit, t = keys.split(rows)
        return unit, t, columns

    def _column(self, whole: MetricTarget, of: Mapping[MetricTarget, KeyedValues]) -> KeyedValues:
        """(key, value) of each row: merges parts of a GPU; fallbacks fill only missing values."""
        column: KeyedValues | None = None
        for _, some in groupby(self.by_column[whole], key=lambda target: target.joining.fallback):
            parts = list(some)
            keys, values = of[parts[0]]
            if len(parts) > 1:
                largest = parts[0].joining.largest
                keys, values = (
                    np.concatenate(arrays)
                    for arrays in zip(*(of[part] for part in parts), strict=True)
                )
                if whole.unit == "bitmask":  # a reason that two metrics give is one bit
                    values = values.astype(np.int64)
                keys, values = joined_parts(keys, values, largest=largest)
            column = (keys, values) if column is None else filled_by(*column, keys, values)
        if column is None:
            raise ValueError(f"no points of {whole.column}")
        return column

    def _combined(
        self,
        target: MetricTarget,
        ranks: Longs,
        names: Sequence[tuple[str, int, int]],
        keys: RowKeys,
    ) -> KeyedValues:
        """(key, value) of each row: merges copies; sums CPUs and interfaces of a node."""
        points = self.points[target]
        # Series of one GPU each; copies stay in order.
        if all(isinstance(units, int) for units, _, _ in points):
            points = sorted(points, key=lambda point: int(ranks[point[0]]))
        joined = np.concatenate([keys.join(ranks[units], t) for units, t, _ in points])
        values = np.concatenate([values for _, _, values in points])
        if (joined[1:] > joined[:-1]).all():
            return joined, values
        if target.adds_up:
            return joined_parts(joined, values, largest=False)
        joined, values, first = _by_key(joined, values)
        firsts = np.repeat(values[first], np.diff(first, append=joined.size))
        differs = np.flatnonzero(firsts != values)
        if differs.size:
            node, gpu, _ = names[int(keys.split(joined[differs[:1]])[0][0])]
            unit = node if gpu == NONE else f"{node} GPU {gpu}"
            example = (
                f"{target.column} of {unit}: {firsts[differs[0]]:g} and {values[differs[0]]:g}"
            )
            self.reject(target.table, CONFLICTING, None, differs.size, example)
        return joined[first], values[first]


def all_keys(key_lists: Sequence[Longs]) -> Longs:
    """Return the keys of all, sorted; most often all have the same."""
    others = [keys for keys in key_lists[1:] if not np.array_equal(keys, key_lists[0])]
    return np.unique(np.concatenate([key_lists[0], *others])) if others else key_lists[0]


def of_readings(
    by_target: Mapping[MetricTarget, KeyedValues], keys: RowKeys
) -> Mapping[MetricTarget, KeyedValues]:
    """Return the points with the time of their reading: that of its first metric.

    Exporters that hand on what they read earlier stamp each metric. Of a unit, times that follow
    each other within half of the usual distance of a metric, at most 15 s, and that have no metric
    in common, are one reading.
    """
    rows = all_keys([of_metric for of_metric, _ in by_target.values()])
    longest = max((of_metric for of_metric, _ in by_target.values()), key=len)
    if longest.size == rows.size:
        return by_target
    unit, t = keys.split(rows)
    of_longest, times = keys.split(longest)
    is_equal = of_longest[1:] == of_longest[:-1]
    usual = float(np.median(np.diff(times)[is_equal])) if is_equal.any() else np.inf
    tolerance = min(_READING_US, usual / 2)
    positions = {
        metric: np.searchsorted(rows, of_metric) for metric, (of_metric, _) in by_target.items()
    }
    has = np.zeros((rows.size, len(by_target)), np.bool_)
    for column, of_metric in enumerate(positions.values()):
        has[of_metric, column] = True
    is_close = (unit[1:] == unit[:-1]) & (np.diff(t) <= tolerance)
    is_close[is_close] = ~(has[1:][is_close] & has[:-1][is_close]).any(axis=1)
    first = _first_of_readings(np.flatnonzero(is_close) + 1, t, has, tolerance)
    return {
        metric: (rows[first[positions[metric]]], values)
        for metric, (_, values) in by_target.items()
    }


def _first_of_readings(later: Longs, t: Longs, has: Mask, tolerance: float) -> Longs:
    """First row of each row's reading. `later`: rows that may belong to the reading before."""
    packed = np.packbits(has, axis=1, bitorder="little")
    metrics = [
        int.from_bytes(bits, "little")
        for bits in packed.view(f"S{packed.shape[1]}").ravel().tolist()
    ]
    times, first = t.tolist(), list(range(t.size))
    start = last = NONE
    taken = 0
    for row in later.tolist():
        if row - 1 != last:
            start, taken = row - 1, metrics[row - 1]
        last = row
        if times[row] - times[start] <= tolerance and not taken & metrics[row]:
            first[row], taken = start, taken | metrics[row]
        else:
            start, taken = row, metrics[row]
    return np.array(first)


def _by_key(row_keys: Longs, values: Floats) -> tuple[Longs, Floats, Longs]:
    """Points sorted by key, and the place of the first of each key."""
    order = np.argsort(row_keys, kind="stable")
    row_keys = row_keys[order]
    return row_keys, values[order], np.flatnonzero(np.diff(row_keys, prepend=row_keys[0] - 1))


def joined_parts(row_keys: Longs, values: Floats, *, largest: bool) -> tuple[Longs, Floats]:
    """Return one value per key: the sum, or the largest; of integers all bits.

    >>> keys, values = joined_parts(np.array([3, 1, 3]), np.array([1.0, 5.0, 2.0]), largest=False)
    >>> keys.tolist(), values.tolist()
    ([1, 3], [5.0, 3.0])
    >>> joined_parts(np.array([1, 1]), np.array([4, 6]), largest=False)[1].tolist()
    [6.0]
    """
    row_keys, values, first = _by_key(row_keys, values)
    join: np.ufunc = np.maximum if largest else np.add
    if values.dtype.kind == "i":
        join = np.bitwise_or
    joined: Floats = join.reduceat(values, first).astype(np.float64, copy=False)
    return row_keys[first], joined


def filled_by(
    row_keys: Longs, values: Floats, others: Longs, of_others: Floats
) -> tuple[Longs, Floats]:
    """Return the points, filled with those of a fallback.

    >>> keys, values = filled_by(np.array([1]), np.array([5.0]), np.array([1, 2]), np.array([9.0, 7.0]))
    >>> keys.tolist(), values.tolist()
    ([1, 2], [5.0, 7.0])
    """
    missing = ~np.isin(others, row_keys)
    keys = np.concatenate([row_keys, others[missing]])
    order = np.argsort(keys, kind="stable")
    return keys[order], np.concatenate([values, of_others[missing]])[order]


def targets_by_column(
    targets: Iterable[MetricTarget],
) -> Mapping[MetricTarget, Sequence[MetricTarget]]:
    """Return {whole target: its parts and fallbacks, these last}."""
    by_whole: dict[MetricTarget, list[MetricTarget]] = {}
    for target in targets:
        by_whole.setdefault(
            MetricTarget(target.table, target.column, target.unit, target.adds_up), []
        ).append(target)
    return {
        whole: sorted(some, key=lambda part: part.joining.fallback)
        for whole, some in by_whole.items()
    }


def points_disagree(points: Iterable[SeriesPoints], unit: int) -> bool:
    """Return whether two values of one unit and time differ."""
    values_by_key: dict[int, float] = {}
    for units, t, values in points:
        mine = np.full(t.size, units == unit) if isinstance(units, int) else units == unit
        for moment, value in zip(t[mine].tolist(), values[mine].tolist(), strict=True):
            if values_by_key.setdefault(moment, value) != value:
                return True
    return False


def allocation_rows(
    spans: Iterable[AllocationSpan], indices: Mapping[GpuUnit, int]
) -> pl.DataFrame:
    """Return rows of `allocations` with provenance `explicit`, given each GPU's index.

    Where it shows no more than the node it is `node_list`: what names the GPU has priority. 123.0
    is a step.
    """
    rows: list[tuple[object, ...]] = []
    for span in spans:
        job, step = job_and_step(span.job) or (span.job, None)
        node, gpu, mig = span.unit
        index = indices.get(span.unit)
        provenance = "node_list" if gpu is None else "explicit"
        rows.append((job, step, node, index, mig, span.start, span.end, provenance))
    schema = {
        "job_id": pl.String,
        "step": pl.String,
        "node": pl.String,
        "gpu": pl.Int16,
        "mig": pl.Int16,
    }
    times = {"start": pl.Int64, "end": pl.Int64}
    frame = pl.DataFrame(rows, schema={**schema, **times, "provenance": pl.String}, orient="row")
    return frame.with_columns(pl.col(*times).cast(TIME))


def numbered_gpus(
    placed: Mapping[LabelledGpu, PlacedGpu], spans: Mapping[LabelledGpu, TimeSpan]
) -> tuple[NumberedGpu, ...]:
    """Return the GPUs with an index, and when labels name them where that is known."""
    gpus: dict[NumberedGpu, None] = {}
    for labelled, (gpu, _, rank) in placed.items():
        if gpu is not None:
            span = spans.get(labelled, SAME_TIME)
            times = None
            if span != SAME_TIME:
                first, last = (EPOCH + timedelta(microseconds=t) for t in span)
                times = (first, last)
            numbering = NUMBERINGS.get(rank)
            gpus[
                NumberedGpu(
                    labelled.node, gpu, labelled.mig, labelled.uuid, labelled.pci, numbering, times
                )
            ] = None
    return tuple(gpus)


DeviceFacts = dict[str, str | float | None]
_FACTS = ("uuid", "pci", "nvml_index", "minor_number", "model", "mig_profile", "hbm_mib")


def device_rows(
    described: Mapping[LabelledGpu, DeviceFacts],
    placed: Mapping[LabelledGpu, PlacedGpu],
    spans: Mapping[LabelledGpu, TimeSpan],
    earlier: dict[GpuPlace, tuple[str | float | None, ...]],
) -> pl.DataFrame:
    """Return devices that differ from the last rows in `earlier`, and update it."""
    by_place: dict[GpuPlace, DeviceFacts] = {}
    for device in sorted(
        described, key=lambda device: (-device.rank, spans[device])
    ):  # the best rank last
        gpu, reason, _ = placed[device]
        if gpu is None:
            continue
        facts = by_place.setdefault((device.node, gpu, device.mig), {})
        if reason != AMBIGUOUS:
            named: DeviceFacts = {
                name: of for name, of in (("uuid", device.uuid), ("pci", device.pci)) if of
            }
            if named and device.rank in NUMBERINGS:
                named[NUMBERINGS[device.rank]] = device.gpu
            facts |= named
        facts |= described[device]
    nothing = (None,) * len(_FACTS)
    rows = []
    for unit, facts in by_place.items():
        before = earlier.get(unit, nothing)
        if facts.get("uuid", before[0]) != before[0]:  # another GPU
            before = nothing
        now = tuple(facts.get(name, old) for name, old in zip(_FACTS, before, strict=True))
        if facts and now != earlier.get(unit):
            earlier[unit] = now
            rows.append((*unit, *now))
    return pl.DataFrame(
        rows, schema={name: DEVICES.schema[name] for name in (*GPU_KEY, *_FACTS)}, orient="row"
    )


def union_of_times(times: Sequence[Longs]) -> Longs:
    """All times, once each; most often all metrics have the same."""
    different = {t.tobytes(): t for t in times if t.size}
    if not different:
        return np.empty(0, np.int64)
    return (
        np.unique(np.concatenate(list(different.values())))
        if len(different) > 1
        else next(iter(different.values()))
    )
