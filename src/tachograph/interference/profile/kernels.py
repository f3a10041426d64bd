"""Kernels, from their launches: the same kernel on the same chip is one, its metrics weighted by time."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType

from tachograph.interference.demand import Demand, Footprint, Gpu
from tachograph.interference.profile import readings
from tachograph.interference.profile.aggregate import is_measured, together
from tachograph.interference.profile.capacities import gpu_of
from tachograph.interference.profile.collect import Missing, missing_of
from tachograph.interference.profile.footprints import footprint_of, l2_most
from tachograph.nsight.launch import Chip, Launch

_SHAPE = ("launch__registers_per_thread", "launch__shared_mem_per_block", "launch__grid_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """All launches of one kernel with one number of threads in a block on one chip.

    short: the name without result type, template arguments and parameters. seconds: of all launches together, None
    where no launch tells. variants: how many different grids, shapes of blocks, registers or shared memory were
    launched. metrics: as in Launch: rates and percentages weighted by time, counts (`.sum`, `.avg`, `.min`, `.max`)
    added up, `launch__*` of the longest launch. coverage: {metric that some launches lack: fraction 0..1 of the time of
    those that have it}. missing: what no launch has. problems: lines for people about launches that could not be used.
    """

    name: str
    short: str
    launches: int
    seconds: float | None
    chip: Chip
    gpu: Gpu
    demand: Demand
    block: tuple[int, int, int] | None = None
    grid: tuple[int, int, int] | None = None  # of the longest launch
    variants: int = 1
    metrics: Mapping[str, float] = field(default_factory=dict)
    coverage: Mapping[str, float] = field(default_factory=dict)
    missing: tuple[Missing, ...] = ()
    problems: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()  # NVTX, of the longest launch

    def per_second(self, metric: str) -> float | None:
        """Return a count of `metrics` per second of the launches that have it; None: not collected, or no time told."""
        count = self.metrics.get(metric)
        covered = (self.seconds or 0.0) * self.coverage.get(metric, 1.0)
        return count / covered if count is not None and covered > 0 else None


def kernels(launches: Iterable[Launch]) -> tuple[Kernel, ...]:
    """Return the kernels of launches, the longest first: one per name, size of block and chip.

    Chips that a report does not name are told apart by report: two may be different GPUs. The order of launches does
    not matter.
    """
    groups: dict[Hashable, list[Launch]] = defaultdict(list)
    for launch in launches:
        groups[launch.kernel, _threads(launch), _chip_key(launch)].append(launch)
    found = [_kernel(group) for group in groups.values()]
    return tuple(sorted(found, key=lambda kernel: (-(kernel.seconds or 0.0), kernel.name, *_rest(kernel))))


def short_name(name: str) -> str:
    """Return the name of a kernel without result type, template arguments and parameters.

    >>> short_name("void at::native::reduce_kernel<512, 1, Op<float>>(Op<float>, int)")
    'at::native::reduce_kernel'
    >>> short_name("(anonymous namespace)::copy(float *)"), short_name("sgemm_128x64_tn")
    ('copy', 'sgemm_128x64_tn')
    """
    text = re.sub(r"\(anonymous namespace\)::|<unnamed>::|\(anonymous\)::", "", name)
    depth = 0
    kept: list[str] = []
    for letter in text:
        if letter == "(" and depth == 0 and kept:
            break
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if depth == 0 and letter != ">":
            kept.append(letter)
    words = "".join(kept).split()
    return words[-1] if words and depth >= 0 and "operator" not in text else name


def demand_of(metrics: Mapping[str, float], coverage: Mapping[str, float], gpu: Gpu, *, name: str,
              seconds: float | None = None, footprint: Footprint | None = None) -> Demand:  # fmt: skip
    """Return what a kernel asks of each resource, of its metrics alone: what was not collected is None.

    Footprints in caches are not measured by a profiler, nor is the memory of the GPU that a process holds: None.

    >>> gpu = Gpu(name="H100")
    >>> demand = demand_of({readings.ISSUED: 3.0, readings.pipe_metric("fma"): 60.0}, {}, gpu, name="mm")
    >>> dict(demand.cycles), demand.dram
    ({'issue': 0.75, 'fma': 0.6}, None)
    """
    issued = readings.issue(metrics, gpu)
    cycles = {} if issued is None else {"issue": issued.value}
    cycles |= {pipe: reading.value for pipe, reading in readings.pipes(metrics, coverage).items()}
    return Demand(
        name=name,
        cycles=MappingProxyType(cycles),
        dram=_value(readings.dram(metrics, gpu, coverage)),
        dram_of="peak",
        l2_hit=_value(readings.share(metrics, readings.L2_HIT)),
        l1_hit=_value(readings.share(metrics, readings.L1_HIT)),
        warps=_value(readings.warps(metrics, gpu)),
        irregular=readings.irregular(metrics, gpu, coverage),
        sm_share=_value(readings.sm_share(metrics, coverage)),
        seconds=seconds,
        footprint=footprint,
    )


def _kernel(launches: Sequence[Launch]) -> Kernel:
    whole = together(launches)
    longest = whole.longest
    gpu = gpu_of(longest.chip, whole.metrics)
    short = short_name(longest.kernel)
    footprint = footprint_of(longest, gpu)
    demand = demand_of(whole.metrics, whole.coverage, gpu, name=short, seconds=whole.seconds, footprint=footprint)
    return Kernel(
        name=longest.kernel,
        short=short,
        launches=len(launches),
        seconds=whole.seconds,
        chip=longest.chip,
        gpu=gpu,
        demand=replace(demand, l2_most=l2_most(launches)),
        block=longest.block,
        grid=longest.grid,
        variants=len({_shape(launch) for launch in launches}),
        metrics=MappingProxyType(whole.metrics),
        coverage=MappingProxyType(whole.coverage),
        missing=missing_of(whole.metrics, gpu, demand),
        problems=whole.problems,
        reports=tuple(sorted({launch.report for launch in launches})),
        ranges=longest.ranges,
    )


def _threads(launch: Launch) -> Hashable:
    """How many threads a block has: of a details page that is a number, of other reports a shape."""
    if launch.block is not None:
        return prod(launch.block)
    told = launch.metrics.get("launch__block_size")
    return told if told is not None and is_measured(told) else None


def _shape(launch: Launch) -> Hashable:
    return launch.grid, launch.block, *(launch.metrics.get(name) for name in _SHAPE)


def _chip_key(launch: Launch) -> Hashable:
    """What two launches on one chip share. A slice of a GPU bears the GPU's name, with fewer SMs."""
    chip = launch.chip
    if chip.name is not None:
        return chip.name, chip.compute_capability, chip.attributes.get("multiprocessor_count")
    if chip.attributes:
        return chip.compute_capability, frozenset(chip.attributes.items())
    return chip.compute_capability, launch.report


def _rest(kernel: Kernel) -> tuple[str, ...]:
    return str(kernel.block), kernel.chip.name or "", str(kernel.gpu.sms), *kernel.reports


def _value(reading: readings.Reading | None) -> float | None:
    return None if reading is None else reading.value
