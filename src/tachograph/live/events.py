"""Events between two polls: changes of health, class, XID, clocks, jobs; GPUs lost; problems of the source.

A state at the first poll is no event, except faulty memory and slowdowns forced by the hardware. A state that is
worse is reported at once, its end only after a while: a value at its limit does not fill the list.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields

import numpy as np

from tachograph.catalog.arrays import Bytes, Flags, Floats, Longs
from tachograph.catalog.units import plural, text
from tachograph.judge.health import (
    CLOCKS_LOWERED,
    CRIT,
    HARDWARE_SLOWDOWN,
    HEALTH_UNKNOWN,
    OK,
    STATES,
    XID_CRITICAL,
    xid_meaning,
)
from tachograph.judge.workload.classes import WORKLOAD_CLASSES
from tachograph.live.snapshot import GpuAllocation, GpuId, Snapshot, SourceProblem
from tachograph.live.view import EventKind, LiveEvent

LOST_AFTER_S = 5.0  # a GPU missing for less is not lost
MANY = 16  # GPUs; the same event of more than these is reported in one sentence
_CRIT, _OK, _UNKNOWN = (STATES.index(state) for state in (CRIT, OK, HEALTH_UNKNOWN))
_NONE = 255  # no class, no state was seen yet
_NUMBERS = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class Observation:
    """One poll: which GPUs report, classes as shown, health; `listed`: False of a GPU missing in the source."""

    snapshot: Snapshot
    reported: Flags
    listed: Flags
    labels: Bytes
    health: Bytes


@dataclass(slots=True)
class _LastReported:
    """The last event state of each GPU, and since when the current one differs."""

    reported_at: Floats
    lost: Flags
    label: Bytes
    health: Bytes
    better_since: Floats
    xid: Floats
    lowered: Longs  # bits of throttle_reasons that were reported; -1 where none was seen yet
    lowered_at: Floats  # per bit and GPU: when it was seen last

    @classmethod
    def new(cls, size: int) -> _LastReported:
        """GPUs without reported state."""
        reported_at, better_since, xid = (np.full(size, np.nan) for _ in range(3))
        label, health = (np.full(size, _NONE, np.uint8) for _ in range(2))
        lowered_at = np.full((len(CLOCKS_LOWERED), size), np.nan)
        return cls(
            reported_at,
            np.zeros(size, np.bool_),
            label,
            health,
            better_since,
            xid,
            np.full(size, -1, np.int64),
            lowered_at,
        )


class EventLog:
    """Events of the last polls, `keep` at most. hold_s: how long a state has been over before that is reported."""

    def __init__(self, *, hold_s: float, keep: int) -> None:
        self.hold_s = hold_s
        self._kept: deque[LiveEvent] = deque(maxlen=keep)
        self._events: tuple[LiveEvent, ...] = ()
        self._before = _LastReported.new(0)
        self._allocations: Mapping[GpuId, GpuAllocation] | None = None  # None: never reported
        self._allocated: list[GpuAllocation | None] = []  # of each GPU
        self._problems: dict[tuple[str, str], tuple[float, SourceProblem]] = {}  # when seen last, and the problem

    def step(self, seen: Observation, reason: Callable[[int], str]) -> tuple[LiveEvent, ...]:
        """Return the events so far, oldest first, after another poll. reason: for the health of a GPU."""
        t = seen.snapshot.t
        new = [
            *self._of_source(t, seen.snapshot.problems),
            *self._lost(t, seen),
            *self._xid(t, seen),
            *self._health(t, seen, reason),
            *self._clocks(t, seen),
            *self._class(t, seen),
            *self._job(t, seen.snapshot),
        ]
        if new:
            self._kept.extend(new)
            self._events = tuple(self._kept)
        return self._events

    def rearrange(self, places: Longs) -> None:
        """Change the GPUs: `places` of each among those so far, -1 of a new one."""
        stays, now = places >= 0, _LastReported.new(len(places))
        for one in fields(now):
            getattr(now, one.name)[..., stays] = getattr(self._before, one.name)[..., places[stays]]
        self._before = now
        self._allocated = [self._allocated[place] if place >= 0 else None for place in places.tolist()]

    def _lost(self, t: float, seen: Observation) -> Iterator[LiveEvent]:
        before, gpus = self._before, seen.snapshot.gpus
        unreported_s = t - before.reported_at  # NaN for a GPU that never reported anything
        gone = ~seen.reported & ~before.lost & (unreported_s >= LOST_AFTER_S)
        back = seen.reported & before.lost
        for listed, how in ((True, "No values any more."), (False, "No longer listed by the source.")):
            yield from _gpu_events(t, EventKind.LOST, gpus, gone & (seen.listed == listed), how, alarm=True)
        for row in np.flatnonzero(back)[:MANY].tolist():
            yield LiveEvent(t, EventKind.LOST, gpus[row], f"Back after {text(float(unreported_s[row]), 's')}.")
        if (many := int(back.sum())) > MANY:
            yield LiveEvent(t, EventKind.LOST, None, f"Also back: {plural(many - MANY, 'more GPU')}.")
        before.lost = (before.lost | gone) & ~back
        before.reported_at = np.where(seen.reported, t, before.reported_at)

    def _xid(self, t: float, seen: Observation) -> Iterator[LiveEvent]:
        """A change of the code: it stays until the next one, and 0 is none."""
        before, code = self._before, seen.snapshot.column("xid")
        changed = (code != before.xid) & (code > 0) & ~np.isnan(before.xid)
        for number in np.unique(code[changed]).astype(int).tolist():
            message = f"XID {number}: {xid_meaning(number)}."
            rows = changed & (code == number)
            yield from _gpu_events(t, EventKind.XID, seen.snapshot.gpus, rows, message, alarm=number in XID_CRITICAL)
        before.xid = np.where(np.isnan(code), before.xid, code)

    def _health(self, t: float, seen: Observation, reason: Callable[[int], str]) -> Iterator[LiveEvent]:
        before, now = self._before, seen.health
        known = seen.reported & (now != _UNKNOWN)
        worse = known & (now < np.minimum(before.health, _OK)) & ((before.health != _NONE) | (now == _CRIT))
        better = known & (now > before.health)
        since = np.where(better & ~(before.better_since <= t), t, before.better_since)
        before.better_since = np.where(better | ~known, since, np.nan)
        over = better & (t - before.better_since >= self.hold_s)
        for row in np.flatnonzero(worse | over).tolist():
            was, state = before.health[row], STATES[now[row]]
            then = "" if was == _NONE else f", before: {STATES[was]}"
            why = f": {reason(row)}" if state != OK else ""
            yield LiveEvent(t, EventKind.HEALTH, seen.snapshot.gpus[row], f"{state}{then}{why}.", state == CRIT)
        taken = worse | over | (known & (before.health == _NONE))
        before.health = np.where(taken, now, before.health)
        before.better_since[taken] = np.nan

    def _clocks(self, t: float, seen: Observation) -> Iterator[LiveEvent]:
        before, column = self._before, seen.snapshot.column("throttle_reasons")
        known = ~np.isnan(column)
        if not known.any():
            return
        bits = np.where(known, column, 0).astype(np.int64)
        first = before.lowered < 0
        reported = np.where(first, 0, before.lowered)
        for place, (bit, name) in enumerate(CLOCKS_LOWERED.items()):
            on, was = known & (bits & bit > 0), reported & bit > 0
            seen_at = before.lowered_at[place]
            seen_at[on] = t
            ended = known & ~on & was & ~(np.abs(t - seen_at) < self.hold_s)
            hard = bool(bit & HARDWARE_SLOWDOWN)
            begun = on & ~was & (hard | ~first)
            gpus = seen.snapshot.gpus
            yield from _gpu_events(t, EventKind.THROTTLE, gpus, begun, f"Clocks lowered: {name}.", alarm=hard)
            yield from _gpu_events(t, EventKind.THROTTLE, gpus, ended, f"Clocks no longer lowered: {name}.")
            reported = np.where(on, reported | bit, np.where(ended, reported & ~bit, reported))
        before.lowered = np.where(known, reported, before.lowered)

    def _class(self, t: float, seen: Observation) -> Iterator[LiveEvent]:
        before, now = self._before, seen.labels
        changed = seen.reported & (now != before.label) & (before.label != _NONE)
        if changed.any():
            for pair in np.unique(np.stack([before.label[changed], now[changed]]), axis=1).T.tolist():
                rows = changed & (before.label == pair[0]) & (now == pair[1])
                message = f"Now {WORKLOAD_CLASSES[pair[1]]}, before: {WORKLOAD_CLASSES[pair[0]]}."
                yield from _gpu_events(t, EventKind.CLASS, seen.snapshot.gpus, rows, message)
        before.label = np.where(seen.reported, now, before.label)

    def _job(self, t: float, snapshot: Snapshot) -> Iterator[LiveEvent]:
        """Another job holds a GPU. No allocations at all beside a problem: they are unknown."""
        now, first = snapshot.allocations, self._allocations is None
        if now is self._allocations or (not now and (first or snapshot.problems)):
            return
        allocated = [now.get(gpu) for gpu in snapshot.gpus]
        before, self._allocated, self._allocations = self._allocated, allocated, now
        by_text: dict[str, list[int]] = {}
        for row, (one, other) in enumerate(zip(before, allocated, strict=True)):
            if one is not other and not first and (message := _changed(one, other)):
                by_text.setdefault(message, []).append(row)
        for message, rows in by_text.items():
            flags = np.zeros(len(snapshot.gpus), np.bool_)
            flags[rows] = True
            yield from _gpu_events(t, EventKind.JOB, snapshot.gpus, flags, message)

    def _of_source(self, t: float, problems: tuple[SourceProblem, ...]) -> Iterator[LiveEvent]:
        """A problem begins, or is over; texts that differ only in numbers are the same problem."""
        begun: list[SourceProblem] = []
        for problem in problems:
            key = (problem.where, _NUMBERS.sub("#", problem.what))
            if key not in self._problems:
                begun.append(problem)
            self._problems[key] = (t, problem)
        ended = [key for key, (then, _) in self._problems.items() if then != t and not abs(t - then) < LOST_AFTER_S]
        yield from _of_problems(t, begun, "")
        yield from _of_problems(t, [self._problems.pop(key)[1] for key in ended], "Resolved: ")


def _of_problems(t: float, problems: list[SourceProblem], begin: str) -> Iterator[LiveEvent]:
    for problem in problems[:MANY]:
        message = problem.sentence if not begin else SourceProblem(problem.what, problem.where).sentence
        end = "" if message.endswith((".", "?", "!")) else "."
        yield LiveEvent(t, EventKind.SOURCE, None, f"{begin}{message}{end}", problem.fatal and not begin)
    if len(problems) > MANY:
        yield LiveEvent(t, EventKind.SOURCE, None, f"{begin}{plural(len(problems) - MANY, 'more problem')} like these.")


def _gpu_events(
    t: float, kind: EventKind, gpus: tuple[GpuId, ...], rows: Flags, message: str, *, alarm: bool = False
) -> Iterator[LiveEvent]:
    """An event of each GPU in `rows`; of very many one, reported for the first."""
    found = np.flatnonzero(rows).tolist()
    if len(found) > MANY:
        others = f" Same on {plural(len(found) - 1, 'more GPU')}, the last {gpus[found[-1]].name}."
        yield LiveEvent(t, kind, gpus[found[0]], message + others, alarm)
        return
    for row in found:
        yield LiveEvent(t, kind, gpus[row], message, alarm)


def _changed(before: GpuAllocation | None, now: GpuAllocation | None) -> str:
    """Text for another job; none where it is the same, or no source reports it."""
    one, other = before.job_id if before else None, now.job_id if now else None
    if one == other:
        return ""
    if other is None:
        return f"Job {one} released it."
    user = f" of {now.user}" if now and now.user else ""
    return f"Allocated to job {other}{user}" + (f", before: job {one}." if one else ".")
