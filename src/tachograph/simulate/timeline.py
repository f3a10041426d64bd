"""What every GPU does when: allocations of runs, and the levels of activity one behind the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tachograph.simulate.kinds import Level, idle
from tachograph.simulate.placement import Run
from tachograph.simulate.plan import Node, Plan

IDLE = idle()
COLUMN = {name: index for index, name in enumerate(Level._fields)}
HEAT, MEAN = len(COLUMN), len(COLUMN) + 1  # two more columns: heat and mean factor of the level


@dataclass(frozen=True, slots=True)
class Allocation:
    """One GPU held by one run; `slot` numbers the GPUs of the run. Times in seconds after the plan's start."""

    run: int
    slot: int
    node: int
    gpu: int
    start_s: int
    end_s: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Segments of one GPU, in order: begin (s), origin of its periods (s), level (n x columns), allocation or -1."""

    begin_s: NDArray[np.int64]
    origin_s: NDArray[np.int64]
    level: NDArray[np.float32]
    allocation: NDArray[np.int64]


def allocations_of(runs: Sequence[Run]) -> list[Allocation]:
    """Return one row per run and GPU it held, in order of run and slot."""
    rows: list[Allocation] = []
    for number, run in enumerate(runs):
        if run.start_s is None or run.end_s is None:
            continue
        held = [(node, gpu) for node, gpus in run.places for gpu in gpus]
        rows += [Allocation(number, slot, node, gpu, run.start_s, run.end_s) for slot, (node, gpu) in enumerate(held)]
    return rows


def by_gpu(allocations: Sequence[Allocation]) -> dict[tuple[int, int], list[int]]:
    """Return {(node, gpu): allocation numbers in order of start}."""
    found: dict[tuple[int, int], list[int]] = {}
    for number, row in enumerate(allocations):
        found.setdefault((row.node, row.gpu), []).append(number)
    for numbers in found.values():
        numbers.sort(key=lambda number: allocations[number].start_s)
    return found


def timelines(
    plan: Plan,
    node: Node,
    runs: Sequence[Run],
    allocations: Sequence[Allocation],
    held: Mapping[tuple[int, int], list[int]],
) -> list[Timeline]:
    """Return the timeline of each GPU of `node`, over the whole plan."""
    gpus = range(plan.groups[node.group].gpus)
    return [_timeline(runs, allocations, held.get((node.index, gpu), [])) for gpu in gpus]


def _timeline(runs: Sequence[Run], allocations: Sequence[Allocation], numbers: list[int]) -> Timeline:
    begins: list[int] = [0]
    origins: list[int] = [0]
    levels: list[Level] = [IDLE]
    owners: list[int] = [-1]
    for number in numbers:
        row = allocations[number]
        run = runs[row.run]
        if run.behaviour is None:
            continue
        if begins[-1] == row.start_s:  # the GPU was handed over at once: nothing between
            for each in (begins, origins, levels, owners):
                each.pop()
        for phase in run.behaviour.phases(row.slot, run.gpus):
            begins.append(row.start_s + phase.begin_s)
            levels.append(phase.level)
            origins.append(row.start_s)
            owners.append(number)
        begins.append(row.end_s)
        levels.append(IDLE)
        origins.append(0)
        owners.append(-1)
    level = np.array([(*level, level.heat, level.mean_factor) for level in levels], dtype=np.float32)
    return Timeline(np.array(begins), np.array(origins), level, np.array(owners))
