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

from tachograph.arrays import Flags, Floats, Singles
from tachograph.live.view import View

# counters that say whether a GPU was working, best known first; MIG slices have no gpu_util
ACTIVITY = ("gpu_util", "gr_engine_active", "sm_active")
WINDOW_S = 60.0  # as stored metrics have it
OVER_S = 300.0  # so far back is looked
FAR = 0.25  # from the median lag: further than noise and one slow step, and worth a third of a job's speed


@dataclass(frozen=True, slots=True)
class Spread:
    """Of a job. imbalance: 0..1, None for one GPU, or where nothing was active or measured.

    lags: per GPU, 0 the busiest, 1 at rest; NaN of a GPU that told nothing, and of all where nothing was active.
    windows: how many were looked at, `zero_windows` of them with all at rest, which do not count. behind, ahead:
    whether each GPU does much less or much more than the job's median.
    """

    imbalance: float | None
    lags: Floats
    windows: int
    zero_windows: int
    behind: Flags
    ahead: Flags


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
    told = known.any(axis=0)
    totals = _totals(times, np.where(known, activity, 0.0), anchor=anchor, window_s=window_s)
    most = totals.max(axis=1, initial=0.0)
    active = most > 0
    lags = np.full(count, np.nan)
    if active.any():
        lags[told] = (1 - totals[active][:, told] / most[active, None]).mean(axis=0)
    several = int(told.sum()) > 1 and bool(active.any())
    imbalance = float(lags[told].mean()) if several else None
    off = np.nan_to_num(lags - np.median(lags[told]) if told.any() else lags)
    return Spread(imbalance, lags, len(totals), int((~active).sum()), off >= FAR, off <= -FAR)


def _totals(times: Floats, activity: Floats, *, anchor: float, window_s: float) -> Floats:
    """Sums of activity per window that counts: (windows x GPUs)."""
    if not len(times):
        return np.zeros((0, activity.shape[1]))
    window = np.floor((times - anchor) / window_s)
    whole = (anchor + window * window_s >= times[0]) & (window < window[-1])
    kept = np.flatnonzero(whole) if whole.any() else np.flatnonzero(window == window[-1])
    starts = np.flatnonzero(np.diff(window[kept], prepend=np.nan) != 0)
    found: Floats = np.add.reduceat(activity[kept], starts, axis=0)
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
