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
from tachograph.annexes.share.capacity import LaunchShape, footprint_of, gpu_of, l2_most
from tachograph.annexes.share.demand import CYCLES, Demand, GpuCapacity
from tachograph.annexes.share.kernel_metrics import (
    PIPES,
    SHARED,
    WITH_FP16,
    MetricValue,
    is_measured,
    merge_launches,
)
from tachograph.annexes.share.nsight.launches import DEVICE_ATTRIBUTE, Chip, Launch
from tachograph.annexes.share.nsight_scores import full_set_metric


@dataclass(frozen=True, slots=True)
class Missing:
    """A metric absent from all launches. `options`: of ncu to collect it."""

    metric: str
    meaning: str
    options: str


_BLOCK = "what its blocks occupy, and whether others fit beside them"
_BUSY = "how much of the time the SMs had work"
_SPREAD = "how evenly the work is spread over the SMs"
_FIT = "launch__occupancy_limit_registers"
_SHARED_BYTES = "launch__shared_mem_per_block"
# metric, meaning, metrics and readings of which one is enough instead
_NEEDS: tuple[tuple[str, ...], ...] = (
    (kernel_metrics.DURATION, "its duration, the weight of its launches"),
    ("launch__registers_per_thread", _BLOCK),
    (_SHARED_BYTES, _BLOCK, f"{_SHARED_BYTES}_allocated", f"{_SHARED_BYTES}_dynamic"),
    (kernel_metrics.SM_ACTIVE, _BUSY),
    (kernel_metrics.ELAPSED[1], _BUSY, *kernel_metrics.ELAPSED),
    (kernel_metrics.SM_ACTIVE_MAX, _SPREAD),
    (kernel_metrics.SM_ACTIVE_MIN, _SPREAD),
    (kernel_metrics.DRAM_BYTES, "its traffic with memory", "dram_bytes_per_s"),
    (kernel_metrics.THREADS, "how many threads of a warp take part"),
    (kernel_metrics.ISSUED, "the load of the schedulers, on which most depends", "issue"),
    (kernel_metrics.DRAM, "the load of DRAM", "dram"),
    (kernel_metrics.L2_HIT, "whether others in L2 slow it down", "l2_hit"),
    (kernel_metrics.L1_HIT, "whether others in L1 slow it down", "l1_hit"),
    (kernel_metrics.OCCUPANCY, "how many warps are resident", "occupancy"),
    (full_set_metric("long_scoreboard"), "what its warps wait for", "stalls"),
    # Pipelines that every chip since Volta has.
    *(
        (kernel_metrics.pipe_metric(pipe), f"the load of the {pipe} pipeline", pipe)
        for pipe in ("alu", "fma", "fp64", "lsu", "tensor")
    ),
    ("launch__grid_size", "how many blocks it has, how many SMs it needs", "footprint"),
    (_FIT, "how many of its blocks fit into an SM", "fit"),
    (f"{DEVICE_ATTRIBUTE}multiprocessor_count", "what the GPU has", "sms"),
)


def options(metric: str) -> str:
    """Return the options of `ncu` that collect a metric, or that write it.

    Attributes of the GPU are part of every report; of text, the raw page alone has them.

    >>> options("lts__t_sector_hit_rate.pct"), options("device__attribute_clock_rate")
    ('--set full', '--page raw')
    """
    return "--page raw" if metric.startswith(DEVICE_ATTRIBUTE) else "--set full"


def collect_command(missing: Iterable[Missing]) -> str | None:
    """Return the command that collects what is missing, or None."""
    needed = sorted({lack.options for lack in missing}, reverse=True)
    return f"ncu {' '.join(needed)} -o REPORT PROGRAM" if needed else None


_OF_BLOCK = ("launch__registers_per_thread", "launch__shared_mem_per_block")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """All launches of a kernel with the same footprint on one chip, see `kernels_of`.

    short: the name without result type, template arguments and parameters. seconds: of all launches
    together, None where no launch has one. variants: how many different shapes of grids and blocks
    were launched; `shape` is that of the longest. metrics: as in Launch: rates and percentages
    weighted by time, counts (`.sum`, `.avg`, `.min`, `.max`) added up, `launch__*` of the longest
    launch. readings: see kernel_metrics. stalls: share of the waiting time by reason. missing:
    metrics that no launch has. problems: lines about launches that could not be used.
    """

    name: str
    short: str
    launches: int
    seconds: float | None
    chip: Chip
    gpu: GpuCapacity
    demand: Demand
    shape: LaunchShape
    variants: int = 1
    metrics: Mapping[str, float] = field(default_factory=dict)
    readings: Mapping[str, MetricValue] = field(default_factory=dict)
    stalls: Mapping[str, float] | None = None
    missing: tuple[Missing, ...] = ()
    problems: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()  # NVTX, of the longest launch

    @property
    def pipes(self) -> dict[str, MetricValue]:
        """Loads of pipelines, of the shared one only where two add up to it."""
        pipes = {pipe: self.readings[pipe] for pipe in PIPES if pipe in self.readings}
        parts = [pipes[pipe].value for pipe in ("fp64", "tensor") if pipe in pipes]
        if SHARED in pipes and max(parts, default=0.0) >= _ALONE * pipes[SHARED].value:
            del pipes[SHARED]
        return pipes


def kernels_of(launches: Iterable[Launch]) -> tuple[Kernel, ...]:
    """Return kernels of launches, longest first: one per name, chip and occupied resources.

    Launches of one name with another size of block, other registers or shared memory are kept
    apart; so are those with another number of blocks, unless each fills the GPU. Unnamed chips are
    distinguished by report: two may be different GPUs. The order of launches does not matter.
    """
    groups: dict[Hashable, list[Launch]] = defaultdict(list)
    for launch in launches:
        groups[launch.kernel, _chip_key(launch), _occupies(launch)].append(launch)
    kernels = map(_kernel, groups.values())
    return tuple(sorted(kernels, key=lambda kernel: (-(kernel.seconds or 0.0), _identity(kernel))))


def _identity(kernel: Kernel) -> tuple[str, ...]:
    shape = str((kernel.shape.grid, kernel.shape.block))
    return kernel.name, shape, kernel.chip.name or "", str(kernel.gpu.sms), *kernel.reports


def short_name(name: str) -> str:
    """Return the name of a kernel without result type, template arguments and parameters.

    >>> short_name("void at::native::reduce_kernel<512, 1, Op<float>>(Op<float>, int)")
    'at::native::reduce_kernel'
    >>> short_name("(anonymous namespace)::copy(float *)"), short_name("sgemm_128x64_tn")
    ('copy', 'sgemm_128x64_tn')
    """
    text = re.sub(r"\(anonymous namespace\)::|<unnamed>::|\(anonymous\)::", "", name)
    depth = 0
    letters: list[str] = []
    for letter in text:
        if letter == "(" and depth == 0 and letters:
            break
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if depth == 0 and letter != ">":
            letters.append(letter)
    words = "".join(letters).split()
    return words[-1] if words and depth >= 0 and "operator" not in text else name


# Of the load of the shared pipeline: a part above it is all of it.
_ALONE = 0.99
_OF_DEMAND = ("dram", "l2_hit", "l1_hit", "l2_bandwidth", "l2_bytes_per_s", "sm_share")


def _kernel(launches: Sequence[Launch]) -> Kernel:
    merged = merge_launches(launches)
    longest, metrics = merged.longest, merged.metrics
    gpu = gpu_of(longest.chip, metrics)
    readings = kernel_metrics.readings(metrics, gpu)
    values = {name: reading.value for name, reading in readings.items()}
    if longest.chip.compute_capability not in (None, *WITH_FP16):
        readings.pop("fp16", None)  # counted by FMA
        values |= {"fp16": 0.0} if "fma" in values else {}
    stalls = kernel_metrics.stalls(metrics)
    footprint = footprint_of(longest, gpu)
    launch_s = merged.seconds and merged.seconds / merged.timed
    short = short_name(longest.kernel)
    # Footprints in caches are not measured by a profiler, nor the memory that a process holds.
    loads: dict[str, Any] = {name: values.get(name) for name in _OF_DEMAND}
    demand = Demand(
        name=short,
        cycles=MappingProxyType({name: values[name] for name in CYCLES if name in values}),
        irregular=kernel_metrics.irregular(stalls, readings),
        seconds=merged.seconds,
        launch_s=launch_s,
        footprint=footprint,
        l2_most=l2_most(launches),
        **loads,
    )
    measured = {"stalls": stalls, "sms": gpu.sms, "footprint": footprint, **metrics, **readings}
    measured["fit"] = True if footprint is None else footprint.blocks_per_sm
    missing = tuple(
        Missing(metric, meaning, options(metric))
        for metric, meaning, *others in _NEEDS
        if all(measured.get(name) is None for name in (metric, *others))
    )
    return Kernel(
        name=longest.kernel,
        short=short,
        launches=len(launches),
        seconds=merged.seconds,
        chip=longest.chip,
        gpu=gpu,
        demand=demand,
        shape=LaunchShape(
            longest.grid,
            longest.block,
            footprint,
            gpu.sms,
            metrics.get("launch__waves_per_multiprocessor"),
            metrics.get(kernel_metrics.SM_HZ),
        ),
        variants=len({(launch.grid, launch.block) for launch in launches}),
        metrics=MappingProxyType(metrics),
        readings=MappingProxyType(readings),
        stalls=stalls,
        missing=missing,
        problems=merged.problems,
        reports=tuple(sorted({launch.report for launch in launches})),
        ranges=longest.ranges,
    )


def _occupies(launch: Launch) -> Hashable:
    """Footprint and number of blocks, which do not matter where the launch fills the GPU."""
    blocks = _size(launch, launch.grid, "launch__grid_size")
    waves = _measured(launch, "launch__waves_per_multiprocessor")
    if waves is not None and waves >= 1.0:
        blocks = None
    threads = _size(launch, launch.block, "launch__block_size")
    return blocks, threads, *(_measured(launch, metric) for metric in _OF_BLOCK)


def _size(launch: Launch, shape: tuple[int, int, int] | None, metric: str) -> float | None:
    """Number of threads or blocks: the product of the shape, or the number in a details page."""
    return _measured(launch, metric) if shape is None else prod(shape)


def _measured(launch: Launch, metric: str) -> float | None:
    value = launch.metrics.get(metric)
    return value if value is not None and is_measured(value) else None


def _chip_key(launch: Launch) -> Hashable:
    """Key of a chip for all its launches; a GPU slice has the GPU's name and fewer SMs."""
    chip = launch.chip
    if chip.name is not None:
        return chip.name, chip.compute_capability, chip.attributes.get("multiprocessor_count")
    return chip.compute_capability, frozenset(chip.attributes.items()) or launch.report
