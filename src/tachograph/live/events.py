"""What happened between two looks: changes of health, class, XID, clocks, jobs; GPUs lost; troubles of the source.

Nothing that was there at the first look is an event, but faulty memory and slowdowns that the hardware forces. What is
worse is told at once, what is over only when it has been so for a while: a value at its limit does not fill the list.
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

SILENT_S = 5.0  # what is missing for less is not lost
MANY = 16  # GPUs of which the same is told in one sentence
_CRIT, _OK, _UNKNOWN = (STATES.index(state) for state in (CRIT, OK, HEALTH_UNKNOWN))
_NONE = 255  # no class, no state was seen yet
_NUMBERS = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class Observation:
    """One look: who tells, classes as shown, health; `named`: False of a GPU that the source names no more."""

    snapshot: Snapshot
    told: Flags
    named: Flags
    labels: Bytes
    health: Bytes


@dataclass(slots=True)
class _LastReported:
    """What was told of each GPU, and since when it is otherwise."""

    told_at: Floats
    lost: Flags
    label: Bytes
    health: Bytes
    better_since: Floats
    xid: Floats
    lowered: Longs  # bits of throttle_reasons that were told; -1 where none was seen yet
    lowered_at: Floats  # per bit and GPU: when it was seen last

    @classmethod
    def new(cls, size: int) -> _LastReported:
        """GPUs of which nothing was told."""
        told_at, better_since, xid = (np.full(size, np.nan) for _ in range(3))
        label, health = (np.full(size, _NONE, np.uint8) for _ in range(2))
        lowered_at = np.full((len(CLOCKS_LOWERED), size), np.nan)
        return cls(
            told_at, np.zeros(size, np.bool_), label, health, better_since, xid, np.full(size, -1, np.int64), lowered_at
        )


class EventLog:
    """Events of the last looks, `keep` at most. hold_s: so long something has been over before that is told."""

    def __init__(self, *, hold_s: float, keep: int) -> None:
        self.hold_s = hold_s
        self._kept: deque[LiveEvent] = deque(maxlen=keep)
        self._events: tuple[LiveEvent, ...] = ()
        self._before = _LastReported.new(0)
        self._holders: Mapping[GpuId, GpuAllocation] | None = None  # None: never told
        self._held: list[GpuAllocation | None] = []  # of each GPU
        self._problems: dict[tuple[str, str], tuple[float, SourceProblem]] = {}  # when seen last, and which

    def step(self, seen: Observation, reason: Callable[[int], str]) -> tuple[LiveEvent, ...]:
        """Return the events so far, oldest first, after another look. reason: why the health of a GPU is what it is."""
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
        """Take other GPUs: `places` of each among those so far, -1 of a new one."""
        stays, now = places >= 0, _LastReported.new(len(places))
        for one in fields(now):
            getattr(now, one.name)[..., stays] = getattr(self._before, one.name)[..., places[stays]]
        self._before = now
        self._held = [self._held[place] if place >= 0 else None for place in places.tolist()]

    def _lost(self, t: float, seen: Observation) -> Iterator[LiveEvent]:
        before, gpus = self._before, seen.snapshot.gpus
        silent_s = t - before.told_at  # NaN of one that never told anything
        gone = ~seen.told & ~before.lost & (silent_s >= SILENT_S)
        back = seen.told & before.lost
        for named, how in ((True, "It tells nothing any more."), (False, "The source names it no more.")):
            yield from _told(t, EventKind.LOST, gpus, gone & (seen.named == named), how, alarm=True)
        for row in np.flatnonzero(back)[:MANY].tolist():
            yield LiveEvent(t, EventKind.LOST, gpus[row], f"It is back, after {text(float(silent_s[row]), 's')}.")
        if (many := int(back.sum())) > MANY:
            yield LiveEvent(t, EventKind.LOST, None, f"Back, too: {plural(many - MANY, 'more GPU')}.")
        before.lost = (before.lost | gone) & ~back
        before.told_at = np.where(seen.told, t, before.told_at)

    def _xid(self, t: float, seen: Observation) -> Iterator[LiveEvent]:
        """A change of the code: it stays until the next one, and 0 is none."""
        before, code = self._before, seen.snapshot.column("xid")
        changed = (code != before.xid) & (code > 0) & ~np.isnan(before.xid)
        for number in np.unique(code[changed]).astype(int).tolist():
            said = f"XID {number}: {xid_meaning(number)}."
            rows = changed & (code == number)
            yield from _told(t, EventKind.XID, seen.snapshot.gpus, rows, said, alarm=number in XID_CRITICAL)
        before.xid = np.where(np.isnan(code), before.xid, code)

    def _health(self, t: float, seen: Observation, reason: Callable[[int], str]) -> Iterator[LiveEvent]:
        before, now = self._before, seen.health
        known = seen.told & (now != _UNKNOWN)
        worse = known & (now < np.minimum(before.health, _OK)) & ((before.health != _NONE) | (now == _CRIT))
        better = known & (now > before.health)
        since = np.where(better & ~(before.better_since <= t), t, before.better_since)
        before.better_since = np.where(better | ~known, since, np.nan)
        over = better & (t - before.better_since >= self.hold_s)
        for row in np.flatnonzero(worse | over).tolist():
            was, state = before.health[row], STATES[now[row]]
            then = "" if was == _NONE else f", it was {STATES[was]}"
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
        told = np.where(first, 0, before.lowered)
        for place, (bit, name) in enumerate(CLOCKS_LOWERED.items()):
            on, was = known & (bits & bit > 0), told & bit > 0
            seen_at = before.lowered_at[place]
            seen_at[on] = t
            ended = known & ~on & was & ~(np.abs(t - seen_at) < self.hold_s)
            hard = bool(bit & HARDWARE_SLOWDOWN)
            begun = on & ~was & (hard | ~first)
            gpus = seen.snapshot.gpus
            yield from _told(t, EventKind.THROTTLE, gpus, begun, f"Clocks are lowered: {name}.", alarm=hard)
            yield from _told(t, EventKind.THROTTLE, gpus, ended, f"Clocks are no longer lowered: {name}.")
            told = np.where(on, told | bit, np.where(ended, told & ~bit, told))
        before.lowered = np.where(known, told, before.lowered)

    def _class(self, t: float, seen: Observation) -> Iterator[LiveEvent]:
        before, now = self._before, seen.labels
        changed = seen.told & (now != before.label) & (before.label != _NONE)
        if changed.any():
            for pair in np.unique(np.stack([before.label[changed], now[changed]]), axis=1).T.tolist():
                rows = changed & (before.label == pair[0]) & (now == pair[1])
                said = f"Now {WORKLOAD_CLASSES[pair[1]]}, it was {WORKLOAD_CLASSES[pair[0]]}."
                yield from _told(t, EventKind.CLASS, seen.snapshot.gpus, rows, said)
        before.label = np.where(seen.told, now, before.label)

    def _job(self, t: float, snapshot: Snapshot) -> Iterator[LiveEvent]:
        """Another job holds a GPU. No holders at all beside a problem: nobody could tell who they are."""
        now, first = snapshot.holders, self._holders is None
        if now is self._holders or (not now and (first or snapshot.problems)):
            return
        held = [now.get(gpu) for gpu in snapshot.gpus]
        before, self._held, self._holders = self._held, held, now
        by_sentence: dict[str, list[int]] = {}
        for row, (one, other) in enumerate(zip(before, held, strict=True)):
            if one is not other and not first and (said := _changed(one, other)):
                by_sentence.setdefault(said, []).append(row)
        for said, rows in by_sentence.items():
            flags = np.zeros(len(snapshot.gpus), np.bool_)
            flags[rows] = True
            yield from _told(t, EventKind.JOB, snapshot.gpus, flags, said)

    def _of_source(self, t: float, problems: tuple[SourceProblem, ...]) -> Iterator[LiveEvent]:
        """A problem begins, or is over; numbers in its text make it no other one."""
        begun: list[SourceProblem] = []
        for problem in problems:
            key = (problem.where, _NUMBERS.sub("#", problem.what))
            if key not in self._problems:
                begun.append(problem)
            self._problems[key] = (t, problem)
        ended = [key for key, (then, _) in self._problems.items() if then != t and not abs(t - then) < SILENT_S]
        yield from _of_problems(t, begun, "")
        yield from _of_problems(t, [self._problems.pop(key)[1] for key in ended], "Over: ")


def _of_problems(t: float, problems: list[SourceProblem], begin: str) -> Iterator[LiveEvent]:
    for problem in problems[:MANY]:
        said = problem.sentence if not begin else SourceProblem(problem.what, problem.where).sentence
        end = "" if said.endswith((".", "?", "!")) else "."
        yield LiveEvent(t, EventKind.SOURCE, None, f"{begin}{said}{end}", problem.fatal and not begin)
    if len(problems) > MANY:
        yield LiveEvent(t, EventKind.SOURCE, None, f"{begin}{plural(len(problems) - MANY, 'more problem')} like these.")


def _told(
    t: float, kind: EventKind, gpus: tuple[GpuId, ...], rows: Flags, said: str, *, alarm: bool = False
) -> Iterator[LiveEvent]:
    """An event of each GPU in `rows`; of very many one, told of the first."""
    found = np.flatnonzero(rows).tolist()
    if len(found) > MANY:
        others = f" So it is of {plural(len(found) - 1, 'more GPU')}, the last {gpus[found[-1]].name}."
        yield LiveEvent(t, kind, gpus[found[0]], said + others, alarm)
        return
    for row in found:
        yield LiveEvent(t, kind, gpus[row], said, alarm)


def _changed(before: GpuAllocation | None, now: GpuAllocation | None) -> str:
    """What is said of another job; nothing where it is the same, or nobody told which."""
    one, other = before.job_id if before else None, now.job_id if now else None
    if one == other:
        return ""
    if other is None:
        return f"Job {one} left it."
    user = f" of {now.user}" if now and now.user else ""
    return f"Job {other}{user} holds it" + (f", it was job {one}." if one else ".")
