"""Short marks of a GPU: a letter for its class, held or free, a sign of its health."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from tachograph.annexes.watch.live.view import FleetView
from tachograph.catalog.arrays import Bytes, Floats
from tachograph.judge.health import CRIT, HEALTH_UNKNOWN, HOT, OK, STATES, WARN, WORST_FIRST
from tachograph.judge.workload.classes import WORKLOAD_CLASSES, Bottleneck, bottleneck

_IDLE = WORKLOAD_CLASSES.index("idle")
MISSING = "-"
MARKS: Mapping[Bottleneck, str] = MappingProxyType(
    {"idle": ".", "compute": "C", "io": "I", "memory": "M", "mixed": "X", "unknown": "?"}
)
LIMITS = tuple(MARKS)  # limits of a GPU, in the order of counts
NAMES: Mapping[Bottleneck, str] = MappingProxyType(
    {limit: "I/O" if limit == "io" else limit for limit in MARKS}
)
HEALTH_SIGNS: Mapping[str, str] = MappingProxyType(
    {CRIT: "!!", WARN: "!", HOT: "^", OK: "", HEALTH_UNKNOWN: "?"}
)
# By place in CLASSES.
CLASS_LIMITS: tuple[Bottleneck, ...] = tuple(bottleneck(name) for name in WORKLOAD_CLASSES)


@dataclass(frozen=True, slots=True)
class Look:
    """Display of a GPU state: letter, short name, full name."""

    mark: str
    name: str
    text: str


# by place: classes, then idle GPUs by what is known of their allocation
HELD, FREE = len(WORKLOAD_CLASSES), len(WORKLOAD_CLASSES) + 1
LOOKS: tuple[Look, ...] = (
    *(
        Look(MARKS[limit], NAMES[limit], f"{MARKS[limit]} {name}")
        for limit, name in zip(CLASS_LIMITS, WORKLOAD_CLASSES, strict=True)
    ),
    Look("H", "held idle", "H idle, held"),
    Look("_", "free", "_ free"),
)
# one place of each letter, in the order of counts
SHOWN_LOOKS = (FREE, HELD, *(CLASS_LIMITS.index(limit) for limit in LIMITS))


def looks(view: FleetView) -> Bytes:
    """Return the index in LOOKS of each GPU: its class, or idle by its allocation."""
    snapshot, indices = view.snapshot, view.labels.copy()
    for row in np.flatnonzero(view.labels == _IDLE).tolist():
        gpu = snapshot.gpus[row]
        if gpu in snapshot.allocations:
            indices[row] = HELD
        elif gpu in snapshot.free:
            indices[row] = FREE
    return indices


def count_marks(indices: Bytes) -> dict[str, int]:
    """Return {letter: number of GPUs} in the order of counts; `indices` are of LOOKS."""
    counts = dict.fromkeys((LOOKS[index].mark for index in SHOWN_LOOKS), 0)
    for look, count in zip(LOOKS, np.bincount(indices, minlength=len(LOOKS)).tolist(), strict=True):
        counts[look.mark] += count
    return counts


def count_states(health: Bytes) -> dict[str, int]:
    """Return {state: number of GPUs}, the worst first; `health` are indices of STATES."""
    counts = np.bincount(health, minlength=len(STATES)).tolist()
    return {state: counts[STATES.index(state)] for state in WORST_FIRST}


def reduce_known(reduce: Callable[[Floats], np.floating[Any]], values: Floats) -> float:
    """Return `reduce` of the known values, such as their mean; NaN without any.

    >>> reduce_known(np.mean, np.array([1.0, np.nan, 3.0]))
    2.0
    """
    measured = values[~np.isnan(values)]
    return float(reduce(measured)) if len(measured) else float("nan")
