"""Compiled loops over the minutes of many jobs: window spreads, flat intervals, steadiness.

Values of a job lie one behind the other, one place per minute since its start, NaN where not
measured. `offset[j]` is the first place of job j, `windows[j]` its first window; behind the last
stands their number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tachograph.catalog.arrays import Bytes, Ints, Longs, Singles
from tachograph.catalog.compiled import compiled

END, BEGIN, MIDDLE = 0, 1, 2
NO, YES, UNDECIDED, MISSING, UNUSED = 0, 1, 2, -1, -2
LIGHT, WORKS = 1, 100  # marks of minutes: a light load, and work; they add up over a window
# Minutes at begin and end of a job that need not be flat: start and epilogue, clocks that differ.
SLACK = 2
Votes = NDArray[np.int8]


@compiled
def _quartile(ordered: Singles, n: int, quarter: float) -> float:
    """Linear between neighbours, as numpy's default."""
    h = (n - 1) * quarter
    low = int(h)
    high = min(low + 1, n - 1)
    return np.float64(ordered[low]) + (h - low) * (
        np.float64(ordered[high]) - np.float64(ordered[low])
    )


@compiled
def window_spreads(
    values: Singles,
    offset: Longs,
    windows: Longs,
    width: int,
    spread: Singles,
    high: Singles,
    measured: Ints,
) -> None:
    """Return per window of `width` minutes (Q3 - Q1)/2, maximum, and measured minutes.

    The values of the window are kept in order while it slides. NaN for a window without any.
    """
    ordered = np.empty(width, np.float32)
    for j in range(offset.shape[0] - 1):
        n = 0
        first = offset[j]
        for i in range(offset[j], offset[j + 1]):
            v = values[i]
            if v == v:
                k = n
                while k > 0 and ordered[k - 1] > v:
                    ordered[k] = ordered[k - 1]
                    k -= 1
                ordered[k] = v
                n += 1
            if i - first + 1 < width:
                continue
            w = windows[j] + i - first + 1 - width
            measured[w] = n
            spread[w], high[w] = np.float32(np.nan), np.float32(np.nan)
            if n > 0:
                spread[w] = (_quartile(ordered, n, 0.75) - _quartile(ordered, n, 0.25)) / 2
                high[w] = ordered[n - 1]
            gone = values[i + 1 - width]
            if gone == gone:
                k = 0
                while ordered[k] != gone:
                    k += 1
                for m in range(k, n - 1):
                    ordered[m] = ordered[m + 1]
                n -= 1


@compiled
def window_works(works: Bytes, offset: Longs, windows: Longs, width: int, count: Ints) -> None:
    """Per window the sum of the marks of its minutes."""
    for j in range(offset.shape[0] - 1):
        n = 0
        for i in range(offset[j], offset[j + 1]):
            n += int(works[i])  # without the compiler a sum of bytes would wrap at 256
            minute = i - offset[j]
            if minute + 1 >= width:
                count[windows[j] + minute + 1 - width] = n
                n -= int(works[i + 1 - width])


@compiled
def _normal_windows(hung: Bytes, sure: Bytes, a: int, b: int, optimistic: bool) -> int:
    """Longest run of non-flat windows in a <= w < b; unknown ones count if `optimistic`."""
    longest, here = 0, 0
    for w in range(a, b):
        here = here + 1 if (not hung[w] and (sure[w] or optimistic)) else 0
        longest = max(longest, here)
    return longest


@compiled
def _busy_minutes(
    values: Singles, works: Bytes, a: int, b: int, level: float, optimistic: bool
) -> int:
    """Minutes at work, among a <= i < b; those not measured count where `optimistic`."""
    count = 0
    for i in range(a, b):
        v = values[i]
        if works[i] or v >= level or (v != v and optimistic):
            count += 1
    return count


@compiled
def _part(
    values: Singles, works: Bytes, a: int, b: int, hang: float, level: float, where: int, least: int,
) -> tuple[int, int]:  # fmt: skip
    """Return the `hang` minutes of an interval that leave most minutes beside them for work."""
    length = int(np.ceil(hang))
    if where == END:
        return max(a, b - length), b
    if where == MIDDLE:
        while a + length < b and _busy_minutes(values, works, 0, a, level, True) < least:
            a += 1
        a = max(a, min(SLACK + 1, b - length))
    return a, min(b, a + length)


@compiled
def _longest(
    values: Singles, works: Bytes, hung: Bytes, sure: Bytes, minutes: int, width: int, hang: float, level: float,
    where: int, least: int, optimistic: bool, anywhere: bool,
) -> tuple[int, int]:  # fmt: skip
    """Return (start, end) in minutes of a job's longest hang interval at `where`, or (0, 0).

    Normal before and after: `least` minutes at work; where there is no level (NaN), one window that
    is not flat, and before a hang at the end a run of them that covers more than `hang` minutes.
    `anywhere`: a part of an interval will do, as minutes of it that were not measured may be work.
    """
    best_a, best_b = 0, 0
    windows = hung.shape[0]
    w = 0
    while w < windows:
        if not hung[w]:
            w += 1
            continue
        begin = w
        while w < windows and hung[w]:
            w += 1
        a, b = begin, w - 1 + width
        if b - a < hang or b - a <= best_b - best_a:
            continue
        if anywhere:
            a, b = _part(values, works, a, b, hang, level, where, least)
        at_begin, at_end = a <= SLACK, b >= minutes - SLACK
        if (where == END and not at_end) or (where == BEGIN and (not at_begin or at_end)):
            continue
        if where == MIDDLE and (at_begin or at_end):
            continue
        normal = True
        if level == level:
            if where != BEGIN:
                normal = normal and _busy_minutes(values, works, 0, a, level, optimistic) >= least
            if where != END:
                normal = (
                    normal and _busy_minutes(values, works, b, minutes, level, optimistic) >= least
                )
        else:
            if where != BEGIN:
                before = _normal_windows(hung, sure, 0, begin, optimistic)
                normal = normal and before > 0 and (where != END or before - 1 + width > hang)
            if where != END:
                normal = normal and _normal_windows(hung, sure, w, windows, optimistic) > 0
        if normal:
            best_a, best_b = a, b
    return best_a, best_b


@compiled
def hang_votes(
    values: Singles, works: Bytes, offset: Longs, windows: Longs, spread: Singles, high: Singles, measured: Ints,
    working: Ints, light: int, width: int, enough: int, theta: float, level: float, hang: float, where: int, least: int,
    every_minute: bool, vote: Votes, begin: Ints, end: Ints, compared: Singles,
) -> None:  # fmt: skip
    """Return per job the vote on a hang interval `where`, and the interval (minutes).

    A window with fewer than `enough` measured minutes is neither flat nor not; with a level, one
    with more than `light` minutes of light load is not flat. The vote is YES when there is an
    interval without such windows, NO when there is none even if all that was not measured had been
    flat, UNDECIDED otherwise. MISSING: nothing was measured. UNUSED: there is a level, and under
    `least` minutes reach it; with `every_minute` both only if no other minute could.
    `compared`: the value that was compared (see `_compared`); the highest of one that is UNUSED.
    """
    for j in range(offset.shape[0] - 1):
        a, b, wa, wb = offset[j], offset[j + 1], windows[j], windows[j + 1]
        there, used, most = 0, 0, np.float32(-np.inf)
        for i in range(a, b):
            if values[i] == values[i]:
                there += 1
                most = max(most, values[i])
                if values[i] >= level:
                    used += 1
        begin[j], end[j], compared[j] = 0, 0, np.float32(np.nan)
        unknown = b - a - there if every_minute else 0
        if there == 0 and unknown == 0:
            vote[j] = MISSING
            continue
        if level == level and used + unknown < least:
            vote[j], compared[j] = UNUSED, most
            continue
        sure = np.zeros(wb - wa, np.uint8)
        maybe = np.zeros(wb - wa, np.uint8)
        known = np.zeros(wb - wa, np.uint8)
        for w in range(wa, wb):
            flat = measured[w] == 0 or spread[w] < theta
            if level == level:
                flat = flat and working[w] <= light and (measured[w] == 0 or high[w] < level)
            known[w - wa] = measured[w] >= enough
            maybe[w - wa] = flat
            sure[w - wa] = flat and measured[w] >= enough
        n = b - a
        x, y = _longest(
            values[a:b],
            works[a:b],
            sure,
            known,
            n,
            width,
            hang,
            level,
            where,
            least,
            False,
            False,
        )
        if y > x:
            vote[j], begin[j], end[j] = YES, x, y
        else:
            p, q = _longest(
                values[a:b],
                works[a:b],
                maybe,
                known,
                n,
                width,
                hang,
                level,
                where,
                least,
                True,
                every_minute,
            )
            vote[j] = UNDECIDED if q > p else NO
        compared[j] = _compared(spread[wa:wb], high[wa:wb], x, y, width, hang, level, where)


@compiled
def _compared(
    spread: Singles,
    high: Singles,
    begin: int,
    end: int,
    width: int,
    hang: float,
    level: float,
    where: int,
) -> np.float32:
    """Return the compared value: maximum at either end, minimum in the middle."""
    windows = high.shape[0]
    span = max(1, int(hang) - width + 1)
    if end > begin:
        a, b = begin, end - width + 1
    elif where == BEGIN:
        a, b = 0, min(span, windows)
    elif where == END:
        a, b = max(0, windows - span), windows
    else:
        a, b = 0, windows
    least = where == MIDDLE and end <= begin
    found = np.float32(np.nan)
    for w in range(a, b):
        v = high[w] if level == level else spread[w]
        if v == v and (found != found or (v < found if least else v > found)):
            found = v
    return found


@compiled
def idle_times(
    alive: Votes, offset: Longs, first: Ints, last: Ints, longest: Ints, measured: Ints
) -> None:
    """Per job first and last minute at work (-1: none), longest idle interval, minutes measured.

    `alive`: 1 at work, 0 idle, -1 not measured. An idle interval ends at a minute not measured.
    """
    for j in range(offset.shape[0] - 1):
        first[j], last[j], longest[j], measured[j] = -1, -1, 0, 0
        here = 0
        for i in range(offset[j], offset[j + 1]):
            minute = i - offset[j]
            if alive[i] >= 0:
                measured[j] += 1
            if alive[i] == 1:
                last[j] = minute
                if first[j] < 0:
                    first[j] = minute
            here = here + 1 if alive[i] == 0 else 0
            longest[j] = max(longest[j], here)


@compiled
def steadiness(
    values: Singles, offset: Longs, near: float, measured: Ints, mean: Singles, high: Singles, within: Singles,
    away: Singles,
) -> None:  # fmt: skip
    """Return per job minutes, mean, maximum, share with R <= `near`, mean R.

    R = |y - mean|/mean, over measured minutes.

    All zero: within 1, away 0. NaN where nothing was measured.
    """
    for j in range(offset.shape[0] - 1):
        n, total, most = 0, 0.0, -np.inf
        for i in range(offset[j], offset[j + 1]):
            v = np.float64(values[i])
            if v == v:
                n += 1
                total += v
                most = max(most, v)
        measured[j] = n
        if n == 0:
            mean[j], high[j], within[j], away[j] = np.nan, np.nan, np.nan, np.nan
            continue
        middle = total / n
        mean[j], high[j], within[j], away[j] = middle, most, 1.0, 0.0
        if middle <= 0:
            continue
        close, far = 0, 0.0
        for i in range(offset[j], offset[j + 1]):
            v = np.float64(values[i])
            if v == v:
                r = abs(v - middle) / middle
                far += r
                if r <= near:
                    close += 1
        within[j], away[j] = close / n, far / n
