"""Kernels, from their launches: the same kernel on the same chip is one, its metrics weighted by time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tachograph.interference.collect import Missing
from tachograph.interference.demand import Demand, Gpu
from tachograph.nsight.launch import Chip


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """All launches of one kernel with one block size on one chip.

    short: the name without template arguments, parameters and namespaces. seconds: of all launches together, None
    where no launch tells. variants: how many different grids, registers or shared memory were launched. metrics: as in
    Launch: rates and percentages weighted by time, counts (`.sum`, `.avg`, `.min`, `.max`) added up, `launch__*` of the
    longest launch. coverage: {metric that some launches lack: fraction 0..1 of the time of those that have it}.
    missing: what no launch has. problems: lines for people about launches that could not be used.
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
