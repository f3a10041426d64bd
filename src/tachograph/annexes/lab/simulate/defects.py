"""Planted defects of recordings, drawn from the seed and recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import polars as pl

from tachograph.annexes.lab.simulate.plan import NodeGroup, SimulatedNode, SimulationPlan
from tachograph.annexes.lab.simulate.samples import F64, I64, Array
from tachograph.catalog.tables import TIME


class DefectKind(StrEnum):
    """Effects of a planted defect on the samples in its window."""

    GAP = "gap"  # no samples of the node
    DUPLICATE = "duplicate"  # rows written twice
    DUPLICATE_NULLS = "duplicate_nulls"  # rows written again with part of the counters absent
    OUT_OF_ORDER = "out_of_order"  # rows of a GPU written backwards
    ENERGY_RESET = "energy_reset"  # the energy counter starts again at zero
    SENTINEL = "sentinel"  # a mark for "no value" among the numbers
    UTIL_OVERFLOW = "util_overflow"  # utilisation 4294967295
    SM_OVER_ONE = "sm_over_one"  # sm_active 1.2
    CLOCK_SKEW = "clock_skew"  # the node's clock is wrong
    MISSING_COUNTER = "missing_counter"  # the counter is not measured on these nodes


# {kind: (how often in a node and day, least and most seconds)}; each occurs at least once in a plan
_PLANTED: Mapping[DefectKind, tuple[float, tuple[int, int]]] = {
    DefectKind.GAP: (0.10, (300, 5400)),
    DefectKind.DUPLICATE: (0.06, (120, 1200)),
    DefectKind.DUPLICATE_NULLS: (0.06, (120, 1200)),
    DefectKind.OUT_OF_ORDER: (0.06, (300, 3600)),
    DefectKind.ENERGY_RESET: (0.04, (0, 0)),
    DefectKind.SENTINEL: (0.08, (30, 900)),
    DefectKind.UTIL_OVERFLOW: (0.04, (30, 300)),
    DefectKind.SM_OVER_ONE: (0.04, (30, 300)),
    DefectKind.CLOCK_SKEW: (0.03, (1800, 6000)),
}
_OF_WHOLE_NODE = frozenset(
    {DefectKind.GAP, DefectKind.DUPLICATE, DefectKind.DUPLICATE_NULLS, DefectKind.CLOCK_SKEW}
)
_ROWS_CHANGE = frozenset(
    {DefectKind.GAP, DefectKind.DUPLICATE, DefectKind.DUPLICATE_NULLS, DefectKind.OUT_OF_ORDER}
)
_VALUES_CHANGE = frozenset({DefectKind.SENTINEL, DefectKind.UTIL_OVERFLOW, DefectKind.SM_OVER_ONE})
_SLOT_S = 7200  # windows lie within two-hour slots, one to a slot of a node: they never overlap
INT32_MARK, INT64_MARK, FP64_MARK = 2147483632, 9223372036854775792, 140737488355328.0
UTIL_OVERFLOW, SM_OVER_ONE = 4294967295, 1.2

_LOGGED = {
    "kind": pl.String,
    "node": pl.String,
    "gpu": pl.Int16,
    "column": pl.String,
    "start": pl.Int64,
    "end": pl.Int64,
    "value": pl.Float64,
    "samples": pl.Int64,
}


@dataclass(frozen=True, slots=True)
class TelemetryDefect:
    """One planted defect: times in ns since 1970, `gpu` None: all of the node, `value` written."""

    kind: DefectKind
    node: int
    day: int
    gpu: int | None
    column: str | None
    begin_ns: int
    end_ns: int
    value: float | None


@dataclass(slots=True)
class DefectLog:
    """Log of defects: one row each, with the number and true times of its samples."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)

    def note(self, defect: TelemetryDefect, node: SimulatedNode, times: I64, samples: int) -> None:
        """Add a row; `times` are the true times (ns) of the samples it touched."""
        if not times.size:
            return
        first, last = int(times[0]) // 1000, int(times[-1]) // 1000
        self.rows.append(
            (
                defect.kind.value,
                node.name,
                defect.gpu,
                defect.column,
                first,
                last,
                defect.value,
                samples,
            )
        )

    def frame(self) -> pl.DataFrame:
        """Return the log as a table: one row per defect, ordered by node and time."""
        times = pl.col("start", "end").cast(TIME)
        frame = pl.DataFrame(self.rows, schema=_LOGGED, orient="row").with_columns(times)
        return frame.sort("node", "start", "gpu", "kind", nulls_last=True)


def sample_defects(
    plan: SimulationPlan, nodes: Sequence[SimulatedNode]
) -> dict[tuple[int, int], list[TelemetryDefect]]:
    """Return {(node, day): defects in order of time}; empty when the plan has none."""
    if not plan.defects:
        return {}
    rng = np.random.default_rng([plan.seed, 7])
    node_days = len(nodes) * plan.days
    slots = 86400 // _SLOT_S
    kinds: list[DefectKind] = []
    for kind, (rate, _) in _PLANTED.items():
        kinds += [kind] * max(1, int(rng.poisson(rate * node_days)))
    cells = rng.choice(node_days * slots, min(len(kinds), node_days * slots), replace=False)
    planned: dict[tuple[int, int], list[TelemetryDefect]] = {}
    for kind, cell in zip(kinds, cells, strict=False):
        node_day, slot = divmod(int(cell), slots)
        day, index = divmod(node_day, len(nodes))
        defect = _draw_one(plan, rng, kind, nodes[index], day, slot * _SLOT_S)
        if defect is not None:
            planned.setdefault((index, day), []).append(defect)
    return {
        key: sorted(defects, key=lambda defect: defect.begin_ns)
        for key, defects in sorted(planned.items())
    }


def measured(plan: SimulationPlan, group: NodeGroup) -> tuple[str, ...]:
    """Return the counters recorded on nodes of `group`."""
    return tuple(name for name in plan.counters if not (plan.defects and name in group.lacks))


def _draw_one(
    plan: SimulationPlan,
    rng: np.random.Generator,
    kind: DefectKind,
    node: SimulatedNode,
    day: int,
    slot_s: int,
) -> TelemetryDefect | None:
    group = plan.groups[node.group]
    there = measured(plan, group)
    _, (least, greatest) = _PLANTED[kind]
    length = int(rng.integers(least, greatest + 1))
    begin = plan.start_s + 86400 * day + slot_s + int(rng.integers(60, _SLOT_S - length - 60))
    gpu = None if kind in _OF_WHOLE_NODE else int(rng.integers(group.gpus))
    column, value = None, None
    if kind is DefectKind.SENTINEL:
        column = there[int(rng.integers(len(there)))]
        value = _mark(column, rng)
    elif kind is DefectKind.CLOCK_SKEW:
        value = float(rng.choice([-1, 1]) * rng.integers(7, 120))
    else:
        impossible: dict[DefectKind, tuple[str, float]] = {
            DefectKind.UTIL_OVERFLOW: ("gpu_util", UTIL_OVERFLOW),
            DefectKind.SM_OVER_ONE: ("sm_active", SM_OVER_ONE),
            DefectKind.ENERGY_RESET: ("energy_j", 0.0),
        }
        column, value = impossible.get(kind, (None, None))
    if column is not None and column not in there:
        return None
    return TelemetryDefect(
        kind, node.index, day, gpu, column, begin * 10**9, (begin + length) * 10**9, value
    )


def _mark(column: str, rng: np.random.Generator) -> float:
    """Missing-value marker of the column's type: DCGM's blank values, or NaN."""
    if column == "energy_j":
        return float(INT64_MARK)
    if column in (
        "gpu_util",
        "mem_copy_util",
        "gpu_temp_c",
        "mem_temp_c",
        "hbm_used_mib",
        "hbm_free_mib",
    ):
        return float(INT32_MARK)
    return FP64_MARK if rng.random() < 0.5 else float("nan")


@dataclass(slots=True)
class CounterResets:
    """Energy (mJ) lost to resets of each GPU's counter, and its last value of the day before."""

    offset: F64
    last: F64

    @classmethod
    def none(cls, gpus: int) -> CounterResets:
        """Nothing forgotten yet."""
        return cls(np.zeros(gpus), np.zeros(gpus))


@dataclass(frozen=True, slots=True)
class SampleBlock:
    """Rows of one node and day in a file: first row, GPUs (in blocks), true times (ns), defects."""

    first: int
    node: SimulatedNode
    gpus: int
    times: I64
    defects: Sequence[TelemetryDefect]


def apply_values(
    block: SampleBlock, out: Mapping[str, Array], resets: CounterResets, log: DefectLog
) -> I64:
    """Change values in place and return the times as the node's clock wrote them (ns).

    `out`: {counter: rows of this node and day, GPU behind GPU}; energy in mJ.
    """
    times, written = block.times, block.times.copy()
    _apply_resets(block, out, resets, log)
    for defect in block.defects:
        low, high = np.searchsorted(times, [defect.begin_ns, defect.end_ns])
        touched = times[low:high]
        if defect.kind is DefectKind.CLOCK_SKEW:
            written[low:high] += int((defect.value or 0) * 1e9)
            log.note(defect, block.node, touched, touched.size * block.gpus)
        elif defect.kind in _VALUES_CHANGE:
            base = (defect.gpu or 0) * times.size
            mark = INT64_MARK if defect.column == "energy_j" else (defect.value or 0.0)
            out[defect.column or ""][base + low : base + high] = mark
            log.note(defect, block.node, touched, touched.size)
    return written


def _apply_resets(
    block: SampleBlock, out: Mapping[str, Array], resets: CounterResets, log: DefectLog
) -> None:
    """Energy counted from the sample before the reset on."""
    if "energy_j" not in out:
        return
    times = block.times
    energy: Array = out["energy_j"].reshape(block.gpus, times.size)
    clean_last = energy[:, -1].astype(np.float64)
    for gpu in range(block.gpus):
        mine = [
            defect
            for defect in block.defects
            if defect.kind is DefectKind.ENERGY_RESET and defect.gpu == gpu
        ]
        clean = energy[gpu].copy() if mine else energy[gpu]
        if resets.offset[gpu]:
            energy[gpu] = clean - np.int64(resets.offset[gpu])
        for defect in mine:
            first = int(np.searchsorted(times, defect.begin_ns))
            before = float(clean[first - 1]) if first else resets.last[gpu]
            resets.offset[gpu] = before
            energy[gpu, first:] = clean[first:] - np.int64(before)
            log.note(defect, block.node, times[first : first + 1], 1)
    resets.last[:] = clean_last


def apply_rows(
    frame: pl.DataFrame, blocks: Sequence[SampleBlock], columns: Sequence[str], log: DefectLog
) -> pl.DataFrame:
    """Return the rows as they are written: removed, doubled, turned around.

    `blocks` in order of rows; `columns` are those that a doubled row may lack.
    """
    edits: list[tuple[int, int, list[pl.DataFrame]]] = []
    for block in blocks:
        for defect in block.defects:
            if defect.kind in _ROWS_CHANGE:
                edits += _edit(frame, block, defect, columns, log)
    if not edits:
        return frame
    pieces: list[pl.DataFrame] = []
    at = 0
    for begin, end, instead in sorted(edits, key=lambda edit: edit[0]):
        pieces += [frame.slice(at, begin - at), *instead]
        at = end
    pieces.append(frame.slice(at))
    return pl.concat(pieces, rechunk=True)


def _edit(
    frame: pl.DataFrame,
    block: SampleBlock,
    defect: TelemetryDefect,
    columns: Sequence[str],
    log: DefectLog,
) -> list[tuple[int, int, list[pl.DataFrame]]]:
    """(begin row, end row, frames instead) for each GPU that the defect touches."""
    low, high = (
        int(edge) for edge in np.searchsorted(block.times, [defect.begin_ns, defect.end_ns])
    )
    if low == high:
        return []
    gpus = range(block.gpus) if defect.gpu is None else [defect.gpu]
    log.note(defect, block.node, block.times[low:high], (high - low) * len(gpus))
    edits = []
    for gpu in gpus:
        begin = block.first + gpu * block.times.size + low
        end = begin + high - low
        edits.append((begin, end, _instead(frame.slice(begin, end - begin), defect.kind, columns)))
    return edits


def _instead(rows: pl.DataFrame, kind: DefectKind, columns: Sequence[str]) -> list[pl.DataFrame]:
    match kind:
        case DefectKind.GAP:
            return []
        case DefectKind.DUPLICATE:
            return [rows, rows]
        case DefectKind.DUPLICATE_NULLS:
            lacking = [pl.lit(None, dtype=rows[name].dtype).alias(name) for name in columns[::2]]
            return [rows.with_columns(lacking), rows]
        case _:
            return [rows.reverse()]


def missing_counters(plan: SimulationPlan, nodes: Sequence[SimulatedNode]) -> list[TelemetryDefect]:
    """Return a row per node and unmeasured counter; times span the plan."""
    if not plan.defects:
        return []
    begin, end = plan.start_s * 10**9, (plan.start_s + plan.seconds) * 10**9
    return [
        TelemetryDefect(DefectKind.MISSING_COUNTER, node.index, 0, None, name, begin, end, None)
        for node in nodes
        for name in plan.groups[node.group].lacks
        if name in plan.counters
    ]
