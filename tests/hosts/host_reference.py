"""Host characteristics in plain Python: minute by minute, pair by pair, without the code under
test.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import pairwise
from typing import Any

MINUTE = timedelta(minutes=1)
CPU = ("cpu_user_s", "cpu_nice_s", "cpu_system_s", "cpu_iowait_s", "cpu_idle_s")
RATES = {
    "l1_misses_per_s": "l1_misses",
    "llc_misses_per_s": "llc_misses",
    "network_rx_bytes_per_s": "network_rx_bytes",
    "network_tx_bytes_per_s": "network_tx_bytes",
    "network_rx_packets_per_s": "network_rx_packets",
    "network_tx_packets_per_s": "network_tx_packets",
    "fs_read_bytes_per_s": "fs_read_bytes",
    "fs_write_bytes_per_s": "fs_write_bytes",
    "fs_read_operations_per_s": "fs_read_operations",
    "fs_write_operations_per_s": "fs_write_operations",
}
Row = dict[str, Any]
Pair = tuple[datetime, datetime, float]
NEAR = timedelta(minutes=5)  # no two samples that tell something are further apart


@dataclass(frozen=True, slots=True)
class Stay:
    """A run on a node: `job` None is one of which no GPU is known. `zero`: the start of the run."""

    job: str | None
    node: str
    start: datetime
    end: datetime
    zero: datetime


def node_minutes(
    rows: Iterable[Row], stays: Sequence[Stay], *, intervals: float
) -> dict[tuple[str, str, int], Row]:
    """Return {(job, node, minute): characteristics} of the minutes in which a run had the node
    to itself.
    """
    found: dict[tuple[str, str, int], Row] = {}
    ordered = sorted(rows, key=lambda row: (row["node"], row["t"]))
    for stay in stays:
        if stay.job is None:
            continue
        mine = [row for row in ordered if row["node"] == stay.node]
        pairs = {
            name: _own(_pairs(mine, name, intervals), stay, stays)
            for name in (*RATES, "cpu_user", "cpu_nice")
        }
        beside = [other for other in stays if _beside(stay, other)]
        same = [other for other in stays if (other.job, other.node) == (stay.job, stay.node)]
        told_loads = [
            (row["t"], row["load_average"])
            for row in mine
            if _told(row, "load_average") and any(one.start <= row["t"] < one.end for one in same)
        ]
        minute = (stay.start - stay.zero) // MINUTE
        while stay.zero + minute * MINUTE < stay.end:
            begin = stay.zero + minute * MINUTE
            low, high = max(begin, stay.start), min(begin + MINUTE, stay.end)
            end = begin + MINUTE
            key = (stay.job, stay.node, minute)
            if not any(other.start < high and other.end > low for other in beside):
                values = {name: _shared(pairs[name], begin) for name in pairs}
                loads = [load for t, load in told_loads if begin <= t < end]
                values["load_average"] = statistics.fmean(loads) if loads else None
                if any(value is not None for value in values.values()):
                    found[key] = values
            minute += 1
    return found


def _told(row: Row, name: str) -> bool:
    return row.get(name) is not None


def _beside(stay: Stay, other: Stay) -> bool:
    return (
        other.node == stay.node
        and other is not stay
        and (other.job != stay.job or other.job is None)
    )


def _pairs(rows: Sequence[Row], name: str, intervals: float) -> list[Pair]:
    """Of samples that follow each other and tell it: both times, and the rate or share between
    them.
    """
    needed = CPU if name.startswith("cpu") else (RATES[name],)
    telling = [row for row in rows if all(_told(row, counter) for counter in needed)]
    days = {day: _longest(telling, day, intervals) for day in {row["t"].date() for row in telling}}
    found = []
    for before, after in pairwise(telling):
        longest = days.get(before["t"].date())
        distance = (after["t"] - before["t"]).total_seconds()
        grown = [after[counter] - before[counter] for counter in needed]
        if longest is None or distance > longest or min(grown) < 0:
            continue
        if name.startswith("cpu"):
            if sum(grown) > 0:
                found.append((before["t"], after["t"], grown[CPU.index(f"{name}_s")] / sum(grown)))
        else:
            found.append((before["t"], after["t"], grown[0] / distance))
    return found


def _longest(rows: Sequence[Row], day: date, intervals: float) -> float | None:
    """Seconds that two samples of a day may be apart."""
    times = [row["t"] for row in rows if row["t"].date() == day]
    if len(times) < 2:
        return None
    usual: float = statistics.median((b - a).total_seconds() for a, b in pairwise(times))
    return intervals * usual


def _own(pairs: Sequence[Pair], stay: Stay, stays: Sequence[Stay]) -> list[Pair]:
    """Pairs that lie in one stay of the run on the node, while nobody else was there."""
    same = [other for other in stays if (other.job, other.node) == (stay.job, stay.node)]
    others = [
        other
        for other in stays
        if _beside(stay, other) and other.start < stay.end and other.end > stay.start
    ]
    whole = [
        pair
        for pair in pairs
        if any(other.start <= pair[0] and pair[1] < other.end for other in same)
    ]
    return [
        pair for pair in whole if not any(o.start <= pair[1] and o.end > pair[0] for o in others)
    ]


def _shared(pairs: Sequence[Pair], begin: datetime) -> float | None:
    """The mean over the minute's seconds that are between two samples."""
    total = seconds = 0.0
    near = bisect_left(pairs, begin - NEAR, key=lambda pair: pair[0])
    for first, second, level in pairs[near:]:
        if first >= begin + MINUTE:
            break
        both = (min(second, begin + MINUTE) - max(first, begin)).total_seconds()
        if both > 0:
            total, seconds = total + level * both, seconds + both
    return total / seconds if seconds else None
