"""Samples of simulated GPUs: activity over time, and the counters derived from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tachograph.annexes.lab.simulate.behaviours import ActivityLevel, idle_level
from tachograph.annexes.lab.simulate.plan import NodeGroup, SimulatedNode, SimulationPlan
from tachograph.annexes.lab.simulate.workload import SimulatedRun

IDLE = idle_level()
COLUMN = {name: index for index, name in enumerate(ActivityLevel._fields)}
HEAT, MEAN = len(COLUMN), len(COLUMN) + 1  # two more columns: heat and mean factor of the level


@dataclass(frozen=True, slots=True)
class SimulatedAllocation:
    """One GPU held by one run (s after the plan's start); `slot` numbers the run's GPUs."""

    run: int
    slot: int
    node: int
    gpu: int
    start_s: int
    end_s: int


@dataclass(frozen=True, slots=True)
class ActivityTimeline:
    """Segments of one GPU: begin (s), phase origin (s), level (n x columns), allocation or -1.

    Of several allocations at once none owns the segment: the GPU counts what all of them do.
    """

    begin_s: NDArray[np.int64]
    origin_s: NDArray[np.int64]
    level: NDArray[np.float32]
    allocation: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The runs of a plan and the GPUs they held, in order of run and slot.

    `of_gpu`: {(node, gpu): numbers of its allocations in order of start}.
    """

    runs: Sequence[SimulatedRun]
    allocations: Sequence[SimulatedAllocation]
    of_gpu: Mapping[tuple[int, int], Sequence[int]]

    @classmethod
    def of(cls, runs: Sequence[SimulatedRun]) -> Occupancy:
        """The occupancy by these runs."""
        allocations: list[SimulatedAllocation] = []
        of_gpu: dict[tuple[int, int], list[int]] = {}
        for number, run in enumerate(runs):
            if run.start_s is None or run.end_s is None:
                continue
            units = [(node, gpu) for node, gpus in run.places for gpu in gpus]
            for slot, unit in enumerate(units):
                of_gpu.setdefault(unit, []).append(len(allocations))
                allocations.append(SimulatedAllocation(number, slot, *unit, run.start_s, run.end_s))
        for numbers in of_gpu.values():
            numbers.sort(key=lambda number: allocations[number].start_s)
        return cls(runs, allocations, of_gpu)

    def timelines(self, plan: SimulationPlan, node: SimulatedNode) -> list[ActivityTimeline]:
        """Return the timeline of each GPU of a node, over the whole plan."""
        gpus = range(plan.groups[node.group].gpus)
        lines: list[ActivityTimeline] = []
        for gpu in gpus:
            numbers = self.of_gpu.get((node.index, gpu), [])
            rows = [self.allocations[number] for number in numbers]  # in order of start
            if any(row.end_s > later.start_s for row, later in pairwise(rows)):
                lines.append(_of_several([self._timeline([number]) for number in numbers]))
            else:
                lines.append(self._timeline(numbers))
        return lines

    def _timeline(self, numbers: Sequence[int]) -> ActivityTimeline:
        begins: list[int] = [0]
        origins: list[int] = [0]
        levels: list[ActivityLevel] = [IDLE]
        owners: list[int] = [-1]
        for number in numbers:
            row = self.allocations[number]
            run = self.runs[row.run]
            if run.behaviour is None:
                continue
            if begins[-1] == row.start_s:  # the GPU was handed over at once: nothing between
                for column in (begins, origins, levels, owners):
                    column.pop()
            for phase in run.behaviour.phases(row.slot):
                begins.append(row.start_s + phase.begin_s)
                levels.append(phase.level)
                origins.append(row.start_s)
                owners.append(number)
            begins.append(row.end_s)
            levels.append(IDLE)
            origins.append(0)
            owners.append(-1)
        return _timeline_of(begins, origins, levels, owners)


def _timeline_of(
    begins: Sequence[int],
    origins: Sequence[int],
    levels: Sequence[ActivityLevel],
    owners: Sequence[int],
) -> ActivityTimeline:
    level = np.array(
        [(*level, level.heat, level.mean_factor) for level in levels], dtype=np.float32
    )
    return ActivityTimeline(np.array(begins), np.array(origins), level, np.array(owners))


def _of_several(lines: Sequence[ActivityTimeline]) -> ActivityTimeline:
    """Return the timeline of a GPU from those of its allocations, which may overlap."""
    begins = np.unique(np.concatenate([line.begin_s for line in lines])).tolist()
    origins: list[int] = []
    levels: list[ActivityLevel] = []
    owners: list[int] = []
    for begin in begins:
        segments = [
            (line, int(np.searchsorted(line.begin_s, begin, "right")) - 1) for line in lines
        ]
        active = [(line, segment) for line, segment in segments if line.allocation[segment] >= 0]
        levels.append(
            _together([ActivityLevel(*line.level[at][:HEAT].tolist()) for line, at in active])
        )
        single = active[0] if len(active) == 1 else None
        origins.append(int(single[0].origin_s[single[1]]) if single else 0)
        owners.append(int(single[0].allocation[single[1]]) if single else -1)
    return _timeline_of(begins, origins, levels, owners)


def _together(levels: Sequence[ActivityLevel]) -> ActivityLevel:
    """Return what a GPU counts of several jobs: work, traffic and memory add up.

    `util` and `sm` are shares of time with any of them, which meet at random. Pauses of jobs that
    share a GPU are not simulated.
    """
    if len(levels) < 2:
        return levels[0] if levels else IDLE
    rows = np.array(levels)
    both = ActivityLevel(*rows.sum(axis=0).tolist())
    any_of_them = ActivityLevel(*(1 - np.prod(1 - rows, axis=0)).tolist())
    noise = float(rows[:, COLUMN["noise"]].max())
    return both._replace(
        util=any_of_them.util, sm=any_of_them.sm, noise=noise, period_s=0.0, duty=1.0
    )


Array = NDArray[np.generic]
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

WARMING_S = 80.0  # time constant of a GPU's temperature
ROOM_C, RISE_C = 27.0, 46.0  # temperature without power, and its rise at full power
_MICRO, _MILLI = np.float32(1e6), np.float32(1e3)
# {counter: column of the level that it follows}
_LEVEL_OF: Mapping[str, str] = {
    "sm_active": "sm",
    "sm_occupancy": "occupancy",
    "fp64_active": "fp64",
    "fp32_active": "fp32",
    "fp16_active": "fp16",
    "tensor_hmma_active": "hmma",
    "tensor_imma_active": "imma",
    "tensor_dfma_active": "dfma",
}
_TENSOR = [COLUMN[name] for name in ("hmma", "imma", "dfma")]
DTYPES: Mapping[str, type[np.generic]] = {
    "gpu_util": np.uint32,
    "mem_copy_util": np.int32,
    "hbm_used_mib": np.int32,
    "hbm_free_mib": np.int32,
    "energy_j": np.int64,
    "gpu_temp_c": np.int32,
    "mem_temp_c": np.int32,
}  # float32 otherwise
SUMMED = (
    "gpu_util",
    "sm_active",
    "fp64_active",
    "fp32_active",
    "fp16_active",
    "tensor_active",
    "dram_active",
    "power_w",
)


@dataclass(slots=True)
class NodeState:
    """State of a node carried to the next day: energy (J), temperature (C), idle power (W)."""

    energy_j: F64
    temperature_c: F64
    idle_w: F32
    last_ns: int

    @classmethod
    def first(cls, plan: SimulationPlan, node: int, group: NodeGroup) -> NodeState:
        """State before the first sample: energy of earlier weeks, slightly different GPUs."""
        rng = np.random.default_rng([plan.seed, 4, node])
        idle = (group.driver.idle_w * rng.uniform(0.94, 1.08, group.gpus)).astype(np.float32)
        begin = sample_times(plan, node, 0)[0] - plan.interval_s * 1_000_000_000
        return cls(rng.uniform(1e6, 5e8, group.gpus), np.full(group.gpus, 30.0), idle, int(begin))


@dataclass(frozen=True, slots=True)
class Segments:
    """Runs of samples at one level, sorted by GPU: first row, rows, level, origin, allocation,
    GPU.
    """

    first: I64
    count: I64
    level: F32
    origin_s: I64
    allocation: I64
    gpu: I64

    def spread(self, values: Array) -> F32:
        """Return a value per segment as one per sample."""
        return np.repeat(values.astype(np.float32), self.count)


def sample_times(plan: SimulationPlan, node: int, day: int) -> I64:
    """Return a node's sample times on a day, ns since 1970: own phase per interval, jitter."""
    rng = np.random.default_rng([plan.seed, 5, node])
    phase_ns = int(rng.integers(40_000_000, 700_000_000))
    steps = np.arange(plan.samples_per_day, dtype=np.int64) * (plan.interval_s * 1_000_000_000)
    times = steps + (plan.start_s + 86400 * day) * 1_000_000_000 + phase_ns
    if plan.defects:
        jitter = np.random.default_rng([plan.seed, 6, node, day])
        times += jitter.integers(0, 45, plan.samples_per_day, dtype=np.int64) * 1_000_000
    return times


def cut_segments(plan: SimulationPlan, lines: Sequence[ActivityTimeline], times: I64) -> Segments:
    """Return the segments of a node's GPUs that hold samples at `times`."""
    firsts, counts, levels, origins, owners, gpus = [], [], [], [], [], []
    for gpu, line in enumerate(lines):
        begins = line.begin_s * 1_000_000_000 + plan.start_s * 1_000_000_000
        low = max(0, int(np.searchsorted(begins, times[0], "right")) - 1)
        high = int(np.searchsorted(begins, times[-1], "right"))
        edges = np.searchsorted(times, begins[low:high], "left")
        edges[0] = 0
        count = np.diff(np.append(edges, times.size))
        some = count > 0
        firsts.append(edges[some] + gpu * times.size)
        counts.append(count[some])
        levels.append(line.level[low:high][some])
        origins.append(line.origin_s[low:high][some])
        owners.append(line.allocation[low:high][some])
        gpus.append(np.full(int(some.sum()), gpu))
    parts = (firsts, counts, levels, origins, owners, gpus)
    return Segments(*(np.concatenate(part) for part in parts))


def fill_values(
    plan: SimulationPlan,
    group: NodeGroup,
    segments: Segments,
    times: I64,
    state: NodeState,
    rng: np.random.Generator,
    out: Mapping[str, Array],
) -> None:
    """Write the counters of one node and day into `out`, in blocks per GPU; advances `state`.

    Energy is the sum of power times the time since the sample before, so its differences give the
    power exactly.
    """
    rows = group.gpus * times.size
    falls, other = rng.random(rows, dtype=np.float32), rng.random(rows, dtype=np.float32)
    active = 1 - segments.spread(segments.level[:, COLUMN["noise"]]) * falls
    _wait_in_periods(plan, segments, times, active)
    _fill_activity(segments, active, other, out)
    _fill_traffic(segments, active, other, out)
    hbm_mib = segments.spread(segments.level[:, COLUMN["hbm_mib"]])
    _put(out, "hbm_used_mib", hbm_mib)
    if "hbm_free_mib" in out:
        _put(out, "hbm_free_mib", group.driver.total_mib - group.driver.reserved_mib - hbm_mib)
    if plan.as_printed:
        _round_as_printed(out)
    _fill_power(plan, group, segments, times, state, active, other, out)


def _round_as_printed(out: Mapping[str, Array]) -> None:
    """Fractions in millionths, rates in whole bytes per second, as dcgm-exporter prints."""
    for name, values in out.items():
        if name.endswith("_per_s"):
            np.rint(values, out=values)
        elif name.endswith("_active") or name == "sm_occupancy":
            _round(values, _MICRO)


def _round(values: Array, parts: np.float32) -> None:
    np.multiply(values, parts, out=values)
    np.rint(values, out=values)
    np.divide(values, parts, out=values)


def _put(out: Mapping[str, Array], name: str, values: Array) -> None:
    if name in out:
        out[name][:] = values


def _wait_in_periods(plan: SimulationPlan, segments: Segments, times: I64, active: F32) -> None:
    """Activity 0 in the waiting part of each period."""
    periods, duties = segments.level[:, COLUMN["period_s"]], segments.level[:, COLUMN["duty"]]
    for number in np.flatnonzero(periods > 0):
        first, count = int(segments.first[number]), int(segments.count[number])
        begin = first % times.size
        origin = (int(segments.origin_s[number]) + plan.start_s) * 1_000_000_000
        since = (times[begin : begin + count] - origin) / 1e9
        period = float(periods[number])
        active[first : first + count] *= (since % period) < float(duties[number]) * period


def _fill_activity(segments: Segments, active: F32, other: F32, out: Mapping[str, Array]) -> None:
    """Utilisation and pipes from one activity, so sm_active never exceeds gr_engine_active."""
    util = segments.level[:, COLUMN["util"]]
    _put(out, "gpu_util", np.rint(segments.spread(util * 100) * active))
    if "gr_engine_active" in out:
        _put(out, "gr_engine_active", segments.spread(util * np.float32(0.995)) * active)
    for counter, name in _LEVEL_OF.items():
        if counter in out:
            _scaled(segments, segments.level[:, COLUMN[name]], active, out[counter])
    if "tensor_active" in out:
        _scaled(segments, segments.level[:, _TENSOR].sum(1), active, out["tensor_active"])
    if "dram_active" in out or "mem_copy_util" in out:
        dram = segments.spread(segments.level[:, COLUMN["dram"]])
        dram *= active
        dram *= 1 - np.float32(0.05) * other
        _put(out, "dram_active", dram)
        if "mem_copy_util" in out:
            _put(out, "mem_copy_util", np.rint(dram * 115))


def _scaled(segments: Segments, level: F32, active: F32, target: Array) -> None:
    if level.any():
        np.multiply(segments.spread(level), active, out=target)
    else:
        target[:] = 0


def _fill_traffic(segments: Segments, active: F32, other: F32, out: Mapping[str, Array]) -> None:
    """PCIe and NVLink traffic by work, on PCIe plus that of the driver."""
    for name, column, always in (
        ("pcie_rx_bytes_per_s", "pcie_rx", 6e4),
        ("pcie_tx_bytes_per_s", "pcie_tx", 1.9e5),
    ):
        if name in out:
            moved = segments.spread(segments.level[:, COLUMN[column]]) * active
            moved += np.float32(always) * (np.float32(0.8) + np.float32(0.4) * other)
            _put(out, name, moved)
    if "nvlink_tx_bytes_per_s" in out or "nvlink_rx_bytes_per_s" in out:
        sent = segments.spread(segments.level[:, COLUMN["nvlink"]]) * active
        _put(out, "nvlink_tx_bytes_per_s", sent)
        if "nvlink_rx_bytes_per_s" in out:
            _put(out, "nvlink_rx_bytes_per_s", sent * (1 - np.float32(0.02) * other))


def _fill_power(
    plan: SimulationPlan,
    group: NodeGroup,
    segments: Segments,
    times: I64,
    state: NodeState,
    active: F32,
    other: F32,
    out: Mapping[str, Array],
) -> None:
    span = np.float32(group.board_w) - state.idle_w[segments.gpu]
    heat = segments.level[:, HEAT] * span * np.float32(0.98)
    power = segments.spread(heat) * active
    power += segments.spread(state.idle_w[segments.gpu])
    power += np.float32(0.5) * other
    if plan.as_printed:
        _round(power, _MILLI)
    _put(out, "power_w", power)
    since = np.diff(times, prepend=state.last_ns) / 1e9
    energy = np.cumsum(power.reshape(group.gpus, times.size) * since, axis=1, dtype=np.float64)
    energy += state.energy_j[:, None]
    state.energy_j, state.last_ns = energy[:, -1].copy(), int(times[-1])
    if "energy_j" in out:
        _put(out, "energy_j", np.rint(energy.reshape(-1) * 1e3))
    if "gpu_temp_c" in out or "mem_temp_c" in out:
        mean_w = (state.idle_w[segments.gpu] + heat * segments.level[:, MEAN]).astype(np.float64)
        settled = ROOM_C + RISE_C * mean_w / group.board_w
        warm = np.rint(_temperatures(plan, segments, settled, state))
        _put(out, "gpu_temp_c", warm)
        if "mem_temp_c" in out:
            _put(
                out,
                "mem_temp_c",
                warm + 4 if group.driver.memory_temperature else np.zeros_like(warm),
            )


def _temperatures(plan: SimulationPlan, segments: Segments, settled: F64, state: NodeState) -> F32:
    """Temperature that follows the mean power of each segment with a lag."""
    steps = int(8 * WARMING_S / plan.interval_s) + 2
    lag = np.exp(-np.arange(steps) * plan.interval_s / WARMING_S).astype(np.float32)
    warm = segments.spread(settled)
    rows = zip(segments.gpu, segments.first, segments.count, settled, strict=True)
    for gpu, first, count, settled_c in rows:
        offset_c = state.temperature_c[gpu] - settled_c
        length = min(count, steps)
        warm[first : first + length] += np.float32(offset_c) * lag[:length]
        state.temperature_c[gpu] = settled_c + offset_c * float(lag[min(count, steps - 1)])
    return warm
