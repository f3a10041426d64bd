"""Telemetry files in the form of LDMS, written day by day and a part of the nodes at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl

from tachograph.annexes.lab.simulate import defects as faults
from tachograph.annexes.lab.simulate.defects import (
    CounterResets,
    DefectLog,
    SampleBlock,
    TelemetryDefect,
)
from tachograph.annexes.lab.simulate.plan import SimulatedNode, SimulationPlan
from tachograph.annexes.lab.simulate.samples import (
    DTYPES,
    I64,
    ActivityTimeline,
    Array,
    NodeState,
    Occupancy,
    cut_segments,
    fill_values,
    sample_times,
)
from tachograph.annexes.lab.simulate.truth import segment_sums
from tachograph.catalog.counters import COUNTERS_BY_NAME, LDMS_PREFIX

Progress = Callable[[int, int], None]  # samples done, samples in all
ROWS_PER_GROUP = 500_000


@dataclass(slots=True)
class NodeTelemetry:
    """State of one node while its days are written."""

    node: SimulatedNode
    lines: list[ActivityTimeline]
    state: NodeState
    resets: CounterResets


def column_name(counter: str) -> str:
    """Return the LDMS column of a counter.

    >>> column_name("gpu_util")
    'nersc_ldms_dcgm_gpu_utilization'
    """
    return f"{LDMS_PREFIX}{COUNTERS_BY_NAME[counter].ldms_name}"


def parts_of_nodes(
    plan: SimulationPlan, nodes: Sequence[SimulatedNode]
) -> list[list[SimulatedNode]]:
    """Return nodes of a group for one file, within `rows_per_file`."""
    parts: list[list[SimulatedNode]] = []
    for number, group in enumerate(plan.groups):
        mine = [node for node in nodes if node.group == number]
        step = max(1, plan.rows_per_file // (group.gpus * plan.samples_per_day))
        parts += [mine[at : at + step] for at in range(0, len(mine), step)]
    return parts


def write_telemetry(
    plan: SimulationPlan,
    folder: Path,
    held: Occupancy,
    progress: Progress | None,
    parts: Collection[int] | None = None,
    *,
    by_time: bool = False,
    take: Callable[[Path], None] | None = None,
) -> tuple[list[Path], int, list[pl.DataFrame], DefectLog]:
    """Write all telemetry; return files, their rows, sums of segments, and defects.

    `parts`: only these of `parts_of_nodes`. `by_time`: rows of a file in order of time, with all
    nodes mixed. `take` is called with each file, which is then not returned.
    """
    folder.mkdir(parents=True, exist_ok=True)
    nodes = plan.nodes()
    defects = faults.sample_defects(plan, nodes)
    log, sums = DefectLog(), list[pl.DataFrame]()
    files: list[Path] = []
    keep = take or files.append
    rows, done = 0, 0
    divided = parts_of_nodes(plan, nodes)
    for number, part in enumerate(divided):
        if parts is not None and number not in parts:
            continue
        gpus = plan.groups[part[0].group].gpus
        sources = [
            NodeTelemetry(
                node,
                held.timelines(plan, node),
                NodeState.first(plan, node.index, plan.groups[node.group]),
                CounterResets.none(gpus),
            )
            for node in part
        ]
        for day in plan.recorded_days or range(plan.days):
            date = f"{plan.start + timedelta(days=day):%Y-%m-%d}"
            file = folder / (
                f"{date}-group{number:03d}.parquet" if len(divided) > 1 else f"{date}.parquet"
            )
            rows += _write_day(plan, file, sources, day, defects, sums, log, by_time=by_time)
            keep(file)
            done += len(part) * gpus * plan.samples_per_day
            if progress is not None:
                progress(done, plan.samples)
    _note_missing(plan, nodes, log)
    return sorted(files), rows, sums, log


def _note_missing(plan: SimulationPlan, nodes: Sequence[SimulatedNode], log: DefectLog) -> None:
    """Note the counters that are not measured on some nodes."""
    for defect in faults.missing_counters(plan, nodes):
        span = np.array([defect.begin_ns, defect.end_ns])
        gpus = plan.groups[nodes[defect.node].group].gpus
        log.note(defect, nodes[defect.node], span, gpus * plan.days * plan.samples_per_day)


def _write_day(
    plan: SimulationPlan,
    file: Path,
    sources: Sequence[NodeTelemetry],
    day: int,
    defects: Mapping[tuple[int, int], list[TelemetryDefect]],
    sums: list[pl.DataFrame],
    log: DefectLog,
    *,
    by_time: bool,
) -> int:
    """Write one file; return its rows."""
    values, times, blocks = _day_of_nodes(plan, sources, day, defects, log, sums)
    frame = _as_written(sources, blocks[0].gpus, plan.samples_per_day, times, values)
    frame = faults.apply_rows(frame, blocks, [column_name(name) for name in values], log)
    if by_time:
        frame = frame.sort("ts_ns", maintain_order=True)
    frame.write_parquet(
        file,
        compression="zstd",
        compression_level=1,
        statistics=False,
        row_group_size=ROWS_PER_GROUP,
    )
    return frame.height


def _day_of_nodes(
    plan: SimulationPlan,
    sources: Sequence[NodeTelemetry],
    day: int,
    defects: Mapping[tuple[int, int], list[TelemetryDefect]],
    log: DefectLog,
    sums: list[pl.DataFrame],
) -> tuple[dict[str, Array], I64, list[SampleBlock]]:
    """Return counters, times and blocks of a group's nodes on a day, with defects of values
    only.
    """
    group = plan.groups[sources[0].node.group]
    per_node = group.gpus * plan.samples_per_day
    rows = per_node * len(sources)
    values: dict[str, Array] = {
        name: np.empty(rows, DTYPES.get(name, np.float32)) for name in faults.measured(plan, group)
    }
    times = np.empty(rows, np.int64)
    blocks: list[SampleBlock] = []
    for index, source in enumerate(sources):
        first = index * per_node
        out = {name: column[first : first + per_node] for name, column in values.items()}
        block = _fill_block(
            plan, source, day, defects.get((source.node.index, day), []), first, out, sums
        )
        blocks.append(block)
        times[first : first + per_node] = np.tile(
            faults.apply_values(block, out, source.resets, log), group.gpus
        )
    return values, times, blocks


def _fill_block(
    plan: SimulationPlan,
    source: NodeTelemetry,
    day: int,
    defects: Sequence[TelemetryDefect],
    first: int,
    out: Mapping[str, Array],
    sums: list[pl.DataFrame],
) -> SampleBlock:
    """Fill `out` with the counters of a node and day, before defects; add them to the sums."""
    node, group = source.node, plan.groups[source.node.group]
    times = sample_times(plan, node.index, day)
    segments = cut_segments(plan, source.lines, times)
    rng = np.random.Generator(
        np.random.SFC64(np.random.SeedSequence([plan.seed, 8, node.index, day]))
    )
    fill_values(plan, group, segments, times, source.state, rng, out)
    sums.append(segment_sums(segments, out))
    return SampleBlock(first, node, group.gpus, times, defects)


def _as_written(
    sources: Sequence[NodeTelemetry],
    gpus: int,
    samples: int,
    times: Array,
    values: Mapping[str, Array],
) -> pl.DataFrame:
    """Return samples of some nodes as by LDMS: a row per (node, GPU, time), sorted by node."""
    names = pl.Series([source.node.name for source in sources])
    source_of_row = np.repeat(np.arange(len(sources), dtype=np.uint32), gpus * samples)
    gpu = np.tile(np.repeat(np.arange(gpus, dtype=np.int16), samples), len(sources))
    columns = {column_name(name): column for name, column in values.items()}
    return pl.DataFrame(
        {"ProducerName": names.gather(source_of_row), "gpu_id": gpu, "ts_ns": times, **columns}
    )
