"""How evenly the GPUs of a job work: spatial imbalance of the last minutes, and which GPU is far from the others.

The same formula as the stored metric (IPDPS 2026): per window w and GPU g, TC(g, w) is the sum of activity, and
SI = mean over windows of 1 - sum_g TC / (GPUs * max_g TC). That is the mean over GPUs of each one's lag,
1 - TC(g, w) / max_g TC: how far it is behind the busiest. So a GPU whose lag is far from the job's median lag is what
makes up imbalance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tachograph.arrays import Flags, Floats, Longs, Singles
from tachograph.live.view import View

# counters that say whether a GPU was working, best known first; MIG slices have no gpu_util
ACTIVITY = ("gpu_util", "gr_engine_active", "sm_active")
WINDOW_S = 60.0  # as stored metrics have it
OVER_S = 300.0  # so far back is looked
FAR = 0.25  # from the median lag: further than noise and one slow step, and worth a third of a job's speed
FAR_ACTIVITY = 0.05  # and so far from the median activity: GPUs that all do next to nothing have no stragglers


@dataclass(frozen=True, slots=True)
class Spread:
    """Of a job. imbalance: 0..1, None for one GPU, or where nothing was active or measured.

    lags: per GPU, 0 the busiest, 1 at rest; NaN of a GPU that told nothing, and of all where nothing was active.
    windows: how many were looked at, `zero_windows` of them with all at rest, which do not count. behind, ahead:
    whether the lag of each GPU is FAR above or below the job's median, and its activity FAR_ACTIVITY from it; none is
    where no window is over yet. growing_s: so much was seen of the only window there is, None where whole ones are.
    """

    imbalance: float | None
    lags: Floats
    windows: int
    zero_windows: int
    behind: Flags
    ahead: Flags
    growing_s: float | None = None


def spread(times: Floats, activity: Floats | Singles, *, anchor: float, window_s: float = WINDOW_S) -> Spread:
    """Return how evenly GPUs worked. activity: (times x GPUs), 0..1, NaN missing.

    Windows begin at `anchor` (the start of the job) and go on every `window_s`. Those count of which all is there: not
    the first where times begin within it, nor the last, which is still growing, unless there is no other. A GPU silent
    in a window counts 0 there, one that told nothing at all is left out.

    >>> found = spread(np.arange(120.0), np.tile([0.8, 0.8, 0.4, 0.8], (120, 1)), anchor=0.0)
    >>> round(found.imbalance, 3), found.lags.round(3).tolist(), found.behind.tolist()
    (0.125, [0.0, 0.0, 0.5, 0.0], [False, False, True, False])
    """
    count = activity.shape[1]
    known = np.isfinite(activity)
    told: Flags = np.logical_or.reduce(known, axis=0)
    values = np.where(known, activity, 0.0)
    kept, window, over = _windows(times, anchor=anchor, window_s=window_s)
    starts = np.flatnonzero(np.diff(window[kept], prepend=np.nan) != 0)
    totals = np.add.reduceat(values[kept], starts, axis=0) if len(kept) else np.zeros((0, count))
    most = totals.max(axis=1, initial=0.0)
    active = most > 0
    lags = np.full(count, np.nan)
    if active.any():
        lags[told] = (1 - totals[active][:, told] / most[active, None]).mean(axis=0)
    several = int(told.sum()) > 1 and bool(active.any())
    imbalance = float(lags[told].mean()) if several else None
    off, away = _from_median(lags, told), _from_median(values[kept].mean(axis=0) if len(kept) else lags, told)
    marked = over & (np.abs(away) >= FAR_ACTIVITY)
    growing_s = None if over or not len(kept) else float(times[kept[-1]] - times[kept[0]])
    behind, ahead = marked & (off >= FAR), marked & (off <= -FAR)
    return Spread(imbalance, lags, len(totals), int((~active).sum()), behind, ahead, growing_s)


def _windows(times: Floats, *, anchor: float, window_s: float) -> tuple[Longs, Floats, bool]:
    """Which times count, the number of the window of each time, and whether a window is over yet."""
    window = np.floor((times - anchor) / window_s)
    if not len(times):
        return np.empty(0, np.int64), window, False
    whole = (anchor + window * window_s >= times[0]) & (window < window[-1])
    over = bool(whole.any())
    return np.flatnonzero(whole if over else window == window[-1]), window, over


def _from_median(values: Floats, told: Flags) -> Floats:
    """How far each value is from the median of those told; 0 where it is missing."""
    found: Floats = np.nan_to_num(values - np.median(values[told])) if told.any() else np.zeros(len(values))
    return found


def activity_counter(view: View, rows: Sequence[int]) -> str | None:
    """Return the counter that tells whether GPUs are working; None where none of them tells one."""
    for counter in ACTIVITY:
        values = view.snapshot.values.get(counter)
        if values is not None and np.isfinite(values[list(rows)]).any():
            return counter
    return None


def never_used(activity: Floats | Singles) -> Flags:
    """Return for each GPU whether it was at zero in all that is known of it; False where nothing is.

    >>> never_used(np.array([[0.0, 0.5, np.nan], [0.0, 0.0, np.nan]])).tolist()
    [True, False, False]
    """
    known = np.isfinite(activity)
    found: Flags = known.any(axis=0) & (np.where(known, activity, 0.0).max(axis=0, initial=0.0) == 0)
    return found
