"""Kernels of profiled launches: demands, and missing metrics with how to collect them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import Any

from tachograph.annexes.share import kernel_metrics
from tachograph.annexes.share.capacity import footprint_of, gpu_of, l2_most
from tachograph.annexes.share.demand import CYCLES, Demand, Footprint, GpuCapacity
from tachograph.annexes.share.kernel_metrics import MetricValue, is_measured, merge_launches
from tachograph.annexes.share.nsight.launches import DEVICE_ATTRIBUTE, Chip, Launch
from tachograph.annexes.share.nsight_scores import full_set_metric


@dataclass(frozen=True, slots=True)
class Missing:
    """A metric absent from all launches. `meaning`: its meaning; `options`: of ncu to collect
    it.
    """

    metric: str
    meaning: str
    options: str


_NEEDS: tuple[tuple[str, str, tuple[str, ...]], ...] = (  # metric, meaning, alternative metrics
    (kernel_metrics.DURATION, "its duration, the weight of its launches", ()),
    (
        "launch__registers_per_thread",
        "what its blocks occupy, and whether others fit beside them",
        (),
    ),
    (
        "launch__shared_mem_per_block",
        "what its blocks occupy, and whether others fit beside them",
        ("launch__shared_mem_per_block_allocated", "launch__shared_mem_per_block_dynamic"),
    ),
    (kernel_metrics.SM_ACTIVE, "how much of the time the SMs had work", ()),
    ("gpc__cycles_elapsed.max", "how much of the time the SMs had work", kernel_metrics.ELAPSED),
    (kernel_metrics.SM_ACTIVE_MAX, "how evenly the work is spread over the SMs", ()),
    (kernel_metrics.SM_ACTIVE_MIN, "how evenly the work is spread over the SMs", ()),
    (
        kernel_metrics.DRAM_BYTES,
        "its traffic with memory",
        ("dram__bytes.sum", "dram__bytes_read.sum.per_second"),
    ),
    (kernel_metrics.THREADS, "how many threads of a warp take part", ()),
)
# Attributes are part of every report; of text, the raw page alone has them.
_RAW_PAGE = "--page raw"
# pipelines that every chip since Volta has
_EVERYWHERE = ("alu", "fma", "fp64", "lsu", "tensor")


# quantity of kernel_metrics.readings, its metric, meaning
_QUANTITIES: tuple[tuple[str, str, str], ...] = (
    (
        "issue",
        kernel_metrics.ISSUED,
        "the load of the schedulers, on which most interference depends",
    ),
    ("dram", kernel_metrics.DRAM, "the load of DRAM"),
    ("l2_hit", kernel_metrics.L2_HIT, "whether others in L2 slow it down"),
    ("l1_hit", kernel_metrics.L1_HIT, "whether others in L1 slow it down"),
    ("occupancy", kernel_metrics.OCCUPANCY, "how many warps are resident"),
)


def missing_of(
    metrics: Mapping[str, float],
    readings: Mapping[str, MetricValue],
    *,
    sms: int | None,
    footprint: Footprint | None,
) -> tuple[Missing, ...]:
    """Return a kernel's missing metrics and how to collect them; `readings`: from `metrics`.

    >>> [lack.metric for lack in missing_of({}, {}, sms=None, footprint=None)][:2]
    ['gpu__time_duration.sum', 'launch__registers_per_thread']
    """
    lacks = [
        (metric, meaning)
        for metric, meaning, others in _NEEDS
        if not metrics.keys() & {metric, *others}
    ]
    lacks += [(metric, meaning) for name, metric, meaning in _QUANTITIES if name not in readings]
    if kernel_metrics.stalls(metrics) is None:
        lacks.append((full_set_metric("long_scoreboard"), "what its warps wait for"))
    lacks += [
        (kernel_metrics.pipe_metric(pipe), f"the load of the {pipe} pipeline")
        for pipe in _EVERYWHERE
        if pipe not in readings
    ]
    if footprint is None:
        lacks.append(("launch__grid_size", "how many blocks it has, how many SMs it needs"))
    elif footprint.blocks_per_sm is None:
        lacks.append(("launch__occupancy_limit_registers", "how many of its blocks fit into an SM"))
    if sms is None:
        lacks.append((f"{DEVICE_ATTRIBUTE}multiprocessor_count", "what the GPU has"))
    return tuple(Missing(metric, reports, options(metric)) for metric, reports in lacks)


def options(metric: str) -> str:
    """Return the options of `ncu` that collect a metric, or that write it.

    >>> options("lts__t_sector_hit_rate.pct"), options("device__attribute_clock_rate")
    ('--set full', '--page raw')
    """
    return _RAW_PAGE if metric.startswith(DEVICE_ATTRIBUTE) else "--set full"


_OF_BLOCK = ("launch__registers_per_thread", "launch__shared_mem_per_block")
_WAVES = "launch__waves_per_multiprocessor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """All launches of a kernel with the same footprint on one chip, see `kernels_of`.

    short: the name without result type, template arguments and parameters. seconds: of all launches
    together, None where no launch has one. variants: how many different shapes of grids and blocks
    were launched. metrics: as in Launch: rates and percentages weighted by time, counts (`.sum`,
    `.avg`, `.min`, `.max`) added up, `launch__*` of the longest launch. readings: see
    kernel_metrics. missing: metrics that no
    launch has. problems: lines about launches that could not be used.
    """

    name: str
    short: str
    launches: int
    seconds: float | None
    chip: Chip
    gpu: GpuCapacity
    demand: Demand
    block: tuple[int, int, int] | None = None
    grid: tuple[int, int, int] | None = None  # of the longest launch
    variants: int = 1
    metrics: Mapping[str, float] = field(default_factory=dict)
    readings: Mapping[str, MetricValue] = field(default_factory=dict)
    missing: tuple[Missing, ...] = ()
    problems: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()  # NVTX, of the longest launch


def kernels_of(launches: Iterable[Launch]) -> tuple[Kernel, ...]:
    """Return kernels of launches, longest first: one per name, chip and occupied resources.

    Launches of one name with another size of block, other registers or shared memory are kept
    apart; so are those with another number of blocks, unless each fills the GPU. Unnamed chips are
    distinguished by report: two may be different GPUs. The order of launches does not matter.
    """
    groups: dict[Hashable, list[Launch]] = defaultdict(list)
    for launch in launches:
        groups[launch.kernel, _chip_key(launch), *_occupies(launch)].append(launch)
    found = [_kernel(group) for group in groups.values()]
    return tuple(
        sorted(found, key=lambda kernel: (-(kernel.seconds or 0.0), kernel.name, *_rest(kernel)))
    )


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


_OF_DEMAND = ("dram", "l2_hit", "l1_hit", "l2_bandwidth", "l2_bytes_per_s", "warps", "sm_share")


def demand_of(readings: Mapping[str, MetricValue], *, name: str, **known: Any) -> Demand:
    """Return a kernel's demand by resource from its readings; None: not collected.

    `known`: what else is known of it. Footprints in caches are not measured by a profiler, nor is
    the memory of the GPU that a process holds: None.

    >>> metrics = {kernel_metrics.ISSUED: 3.0, kernel_metrics.pipe_metric("fma"): 60.0}
    >>> demand = demand_of(kernel_metrics.readings(metrics, GpuCapacity(name="H100")), name="mm")
    >>> dict(demand.cycles), demand.dram
    ({'issue': 0.75, 'fma': 0.6}, None)
    """
    cycles = {what: reading.value for what, reading in readings.items() if what in CYCLES}
    known |= {what: reading.value for what, reading in readings.items() if what in _OF_DEMAND}
    return Demand(name=name, cycles=MappingProxyType(cycles), **known)


def _kernel(launches: Sequence[Launch]) -> Kernel:
    whole = merge_launches(launches)
    longest = whole.longest
    gpu = gpu_of(longest.chip, whole.metrics)
    short = short_name(longest.kernel)
    footprint = footprint_of(longest, gpu)
    readings = kernel_metrics.readings(whole.metrics, gpu)
    return Kernel(
        name=longest.kernel,
        short=short,
        launches=len(launches),
        seconds=whole.seconds,
        chip=longest.chip,
        gpu=gpu,
        demand=demand_of(
            readings,
            name=short,
            irregular=kernel_metrics.irregular(whole.metrics, gpu),
            seconds=whole.seconds,
            launch_s=None if whole.seconds is None else whole.seconds / len(launches),
            footprint=footprint,
            l2_most=l2_most(launches),
        ),
        block=longest.block,
        grid=longest.grid,
        variants=len({_shape(launch) for launch in launches}),
        metrics=MappingProxyType(whole.metrics),
        readings=MappingProxyType(readings),
        missing=missing_of(whole.metrics, readings, sms=gpu.sms, footprint=footprint),
        problems=whole.problems,
        reports=tuple(sorted({launch.report for launch in launches})),
        ranges=longest.ranges,
    )


def _occupies(launch: Launch) -> tuple[Hashable, ...]:
    """Footprint and number of blocks; launches that fill the GPU are equal."""
    waves = _measured(launch, _WAVES)
    full = waves is not None and waves >= 1.0
    blocks = None if full else _size(launch.grid, _measured(launch, "launch__grid_size"))
    threads = _size(launch.block, _measured(launch, "launch__block_size"))
    return full, blocks, threads, *(_measured(launch, name) for name in _OF_BLOCK)


def _size(shape: tuple[int, int, int] | None, known: float | None) -> float | None:
    """Number of threads or blocks: the product of the shape, or the number in a details page."""
    return known if shape is None else prod(shape)


def _measured(launch: Launch, metric: str) -> float | None:
    value = launch.metrics.get(metric)
    return value if value is not None and is_measured(value) else None


def _shape(launch: Launch) -> Hashable:
    return launch.grid, launch.block, _measured(launch, "launch__grid_size")


def _chip_key(launch: Launch) -> Hashable:
    """Key of a chip for all its launches; a GPU slice has the GPU's name and fewer SMs."""
    chip = launch.chip
    if chip.name is not None:
        return chip.name, chip.compute_capability, chip.attributes.get("multiprocessor_count")
    if chip.attributes:
        return chip.compute_capability, frozenset(chip.attributes.items())
    return chip.compute_capability, launch.report


def _rest(kernel: Kernel) -> tuple[str, ...]:
    return (
        str(kernel.grid),
        str(kernel.block),
        kernel.chip.name or "",
        str(kernel.gpu.sms),
        *kernel.reports,
    )
