"""Short marks of a GPU: a letter for its class, held or free, a sign of its health."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from tachograph.annexes.watch.live.view import FREE as UNHELD
from tachograph.annexes.watch.live.view import HELD_IDLE, FleetView
from tachograph.catalog.arrays import Bytes, Floats
from tachograph.judge.health import CRIT, HEALTH_UNKNOWN, HOT, OK, WARN
from tachograph.judge.workload.classes import WORKLOAD_CLASSES, Bottleneck, bottleneck

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
    """Return the index in LOOKS of each GPU."""
    kinds = view.idle_kinds()
    found: Bytes = np.where(
        kinds == HELD_IDLE, HELD, np.where(kinds == UNHELD, FREE, view.labels)
    ).astype(np.uint8)
    return found


def count_marks(places: Bytes) -> dict[str, int]:
    """Return {letter: number of GPUs} in the order of counts; `places` index LOOKS."""
    counts = dict.fromkeys((LOOKS[place].mark for place in SHOWN_LOOKS), 0)
    for look, count in zip(LOOKS, np.bincount(places, minlength=len(LOOKS)).tolist(), strict=True):
        counts[look.mark] += count
    return counts


def known_mean(values: Floats) -> float:
    """Return the mean of the known values; NaN without any."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def known_sum(values: Floats) -> float:
    """Return the sum of the known values; NaN without any."""
    known = values[~np.isnan(values)]
    return float(known.sum()) if len(known) else float("nan")
