"""Spreads of windows, computed once for any thresholds; votes and verdicts from them.

A search for thresholds computes `spreads` once, then `hang_votes` and `majority` for each
candidate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tachograph.catalog.arrays import Ints, Longs, Singles
from tachograph.judge.classes import kernel
from tachograph.judge.classes.characteristics import AWAKE
from tachograph.judge.classes.kernel import MISSING, NO, UNDECIDED, YES, Votes
from tachograph.judge.classes.series import Series
from tachograph.judge.classes.work_level import PINNED, WAITING, WORKING
from tachograph.judge.finding import Verdict

ENOUGH = 0.8  # of a window's minutes must have been measured: fewer are neither flat nor not
WORK_LEVEL = "work_level"
# A GPU that waits does the same all the time; its power varies by a few watts.
LEVEL_THETA = 0.05
VERDICT_OF: Mapping[int, Verdict] = {NO: "no", YES: "yes", UNDECIDED: "unknown"}


@dataclass(frozen=True, slots=True)
class WindowSpread:
    """One characteristic per window: (Q3 - Q1)/2, maximum, measured minutes. NaN: none."""

    spread: Singles
    high: Singles
    measured: Ints


@dataclass(frozen=True, slots=True)
class WindowSpreads:
    """Windows of many jobs; they depend on the width of the window and on no threshold.

    `windows`: first window of each job, and behind the last their number: one for each minute that
    a window begins with. `working`: marks of work in a window, added up.
    """

    series: Series
    width: int
    windows: Longs
    of: Mapping[str, WindowSpread]
    working: Ints


@dataclass(frozen=True, slots=True)
class HangVotes:
    """Per job, a characteristic's vote, its interval (min from start), compared value.

    `vote`: YES, NO, UNDECIDED (what was not measured decides), MISSING, UNUSED (idle throughout).
    """

    vote: Votes
    begin: Ints
    end: Ints
    compared: Singles


def spreads(series: Series, names: Sequence[str], *, width: int) -> WindowSpreads:
    """Return the spreads of all windows of `width` minutes, for the characteristics `names`.

    Quartiles are linear between neighbours (as numpy's), of the minutes that were measured.
    """
    per_job = np.maximum(series.minutes - width + 1, 0)
    windows = np.concatenate(([0], np.cumsum(per_job))).astype(np.int64)
    count = int(windows[-1])
    working = np.zeros(count, np.int32)
    kernel.window_works(series.works, series.offset, windows, width, working)
    found = {}
    for name in names:
        each = WindowSpread(
            np.zeros(count, np.float32), np.zeros(count, np.float32), np.zeros(count, np.int32)
        )
        kernel.window_spreads(
            series.of(name), series.offset, windows, width, each.spread, each.high, each.measured
        )
        found[name] = each
    return WindowSpreads(series, width, windows, found, working)


def level_windows(series: Series, *, width: int) -> WindowSpreads:
    """Return the spreads of the level of work; work and light load are marked by it, too."""
    level, util = series.work_level, series.looks_busy
    light = (util >= AWAKE) & (util < PINNED)
    marks = np.where(level >= WORKING, kernel.WORKS, np.where(light, kernel.LIGHT, 0))
    by_level = replace(series, values={WORK_LEVEL: level}, works=marks.astype(np.uint8))
    return spreads(by_level, (WORK_LEVEL,), width=width)


def level_votes(windows: WindowSpreads, *, where: int, hang_minutes: float) -> HangVotes:
    """Return votes on an interval in which the level of work is that of a GPU that waits.

    A minute of unknown level may be one of work or of waiting: UNDECIDED where they decide.
    """
    return hang_votes(
        windows,
        WORK_LEVEL,
        where=where,
        theta=LEVEL_THETA,
        level=WAITING,
        hang_minutes=hang_minutes,
        every_minute=True,
    )


def hang_votes(
    windows: WindowSpreads,
    name: str,
    *,
    where: int,
    theta: float,
    level: float | None,
    hang_minutes: float,
    every_minute: bool = False,
) -> HangVotes:
    """Return each job's vote of a characteristic on a hang interval.

    `where`: kernel.END, BEGIN or MIDDLE.

    The interval is a run of consecutive flat windows (spread below `theta`) that covers at least
    `hang_minutes`. With a `level` its minutes are also all below it, none is at work and at most a
    tenth of a window has a light load; before and after it (as `where` requires) at least half a
    window of minutes is at work. Without: before one at the end lies a run of windows that are not
    flat and cover more than `hang_minutes`; before and after others one such window.
    """
    series, of = windows.series, windows.of[name]
    jobs = len(series.offset) - 1
    votes = HangVotes(
        np.zeros(jobs, np.int8),
        np.zeros(jobs, np.int32),
        np.zeros(jobs, np.int32),
        np.zeros(jobs, np.float32),
    )
    kernel.hang_votes(
        series.of(name), series.works, series.offset, windows.windows, of.spread, of.high, of.measured,
        windows.working, max(1, windows.width // 10), windows.width, int(np.ceil(ENOUGH * windows.width)), theta,
        np.nan if level is None else level, hang_minutes, where, max(1, windows.width // 2),
        every_minute, votes.vote, votes.begin, votes.end, votes.compared,
    )  # fmt: skip
    return votes


def majority(votes: Sequence[Votes]) -> NDArray[np.int8]:
    """Return per job the majority of the votes of the characteristics: YES, NO or UNDECIDED.

    UNDECIDED also where fewer than half of the characteristics were measured. Those that were
    measured and never used have no vote; where none was used, it is NO.

    >>> majority([np.array([YES, NO], np.int8), np.array([YES, MISSING], np.int8), np.array([NO, MISSING], np.int8)])
    array([1, 2], dtype=int8)
    """
    table = np.stack(votes)
    measured = (table != MISSING).sum(axis=0)
    yes, no, open_ = ((table == what).sum(axis=0) for what in (YES, NO, UNDECIDED))
    voters = yes + no + open_
    answer = np.full(table.shape[1], NO, np.int8)
    answer[(yes + open_) * 2 > voters] = UNDECIDED
    answer[yes * 2 > voters] = YES
    answer[measured * 2 < len(votes)] = UNDECIDED
    return answer
