"""How much to request: the largest use of past runs plus a margin, or their prediction bound.

The report of a job, advice for the next one and the ledger of all jobs go through the same
functions. They take columns, of which one job is one row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np

from tachograph.catalog.arrays import Floats, Longs

TIME_MARGIN = 0.25  # of the run time, on top of it
# Of host memory: peaks are polled, every 30 s by default, and may lack memory that tasks share.
MEMORY_MARGIN = 0.5
LEAST_S = 600.0  # the shortest limit; shorter runs are no evidence of memory use
WORTH = 0.75  # of what is requested: advice for more than this is not worth a change
LEAST_COVERAGE = 0.5  # of the expected samples: with fewer, what GPUs did is not known
GIB = 1024.0  # MiB
CERTAINTY = 0.998  # that the next run stays within the bound
_SPREAD_OF = 3  # values from which a spread is known
_LARGEST_EXPONENT = 700.0  # above it a bound is infinite
# (up to this length, rounded up to this many seconds)
_STEPS = ((7200.0, 300.0), (43200.0, 900.0), (math.inf, 3600.0))


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Host memory per node (MiB) of the user's jobs of this name and size, this one included.

    own: peak of this job's tasks, None: unknown. peaks: of the last jobs, this one included, see
    `peaks_of_need`. killed: requests of jobs killed for lack of memory.
    most: largest request of any job of the partition.
    """

    own: float | None = None
    peaks: Sequence[float] = ()
    killed: Sequence[float] = ()
    most: float | None = None

    @property
    def needed_mib(self) -> float | None:
        """The largest peak plus a margin, more than what did not suffice; None: not known."""
        return needed_memory_mib([self])[0]

    @property
    def evidence(self) -> Sequence[float]:
        """What shows the need: the peaks, or what did not suffice where no run held more."""
        peak, killed = max(self.peaks, default=0.0), max(self.killed, default=0.0)
        if not peak and not killed:
            return ()
        return self.peaks if peak > killed else (killed,)


def needed_memory_mib(memories: Iterable[HostMemory]) -> list[float | None]:
    """Return `needed_mib` of the host memory of each job.

    >>> needed_memory_mib([HostMemory(peaks=[9000.0]), HostMemory()])
    [14336.0, None]
    """
    evidence = [memory.evidence for memory in memories]
    bounds = memory_bounds_mib(PastRuns.of(evidence)).tolist()
    return [bound if values else None for bound, values in zip(bounds, evidence, strict=True)]


def peaks_of_need(completed: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return the peaks that show a need: of runs that completed, and of others that held more.

    `completed`: after `LEAST_S` or more. What a run held that ended early says how much it needs
    at least; without any that completed, nothing is known of the need.

    >>> peaks_of_need([8.0, 9.0], [1.0, 10.0]), peaks_of_need([], [1.0])
    ([8.0, 9.0, 10.0], [])
    """
    largest = max(completed, default=math.inf)
    return [*completed, *(peak for peak in others if peak > largest)]


@dataclass(frozen=True, slots=True)
class PastRuns:
    """What bounds need of past values, by column: one row per sample of runs.

    largest: 0 without values. count, mean_log, squares: of the logarithms of positive values,
    their number, mean, and sum of squared deviations from it.
    """

    largest: Floats
    count: Longs
    mean_log: Floats
    squares: Floats

    @classmethod
    def of(cls, samples: Sequence[Sequence[float]]) -> PastRuns:
        """Return a row per sample.

        >>> PastRuns.of([[1.0, 1.0, 0.0], []]).count.tolist()
        [2, 0]
        """
        size = len(samples)
        row = np.repeat(np.arange(size), np.fromiter(map(len, samples), np.int64, size))
        values = np.fromiter(chain.from_iterable(samples), np.float64, len(row))
        largest = np.zeros(size)
        np.maximum.at(largest, row, values)
        positive = values > 0
        row, logs = row[positive], np.log(values[positive])
        count = np.bincount(row, minlength=size)
        mean_log = np.bincount(row, logs, size) / np.maximum(count, 1)
        squares = np.bincount(row, (logs - mean_log[row]) ** 2, size)
        return cls(largest, count, mean_log, squares.astype(np.float64))  # of none: counts

    def with_further(self, rows: Longs, further: Floats) -> PastRuns:
        """Return a row per further value: that of `rows`, with the value.

        Many jobs share a sample, to which each adds what it took itself: mean and squares are
        updated with the deviation of the value (Chan, Golub and LeVeque 1983).

        >>> of_both = PastRuns.of([[1.0, 4.0]]).with_further(np.array([0]), np.array([2.0]))
        >>> of_all = PastRuns.of([[1.0, 4.0, 2.0]])
        >>> bool(np.isclose(of_both.squares, of_all.squares).all()), of_both.count.tolist()
        (True, [3])
        """
        positive = further > 0
        before, mean_log = self.count[rows], self.mean_log[rows]
        count = before + positive
        deviation = np.log(np.where(positive, further, 1.0)) - mean_log
        deviation[~positive] = 0.0
        share = 1 / np.maximum(count, 1)
        return PastRuns(
            np.maximum(self.largest[rows], further),
            count,
            mean_log + deviation * share,
            self.squares[rows] + deviation**2 * before * share,
        )


def time_bounds_s(runs_s: PastRuns) -> Floats:
    """Return a time limit for each sample of run times, rounded up."""
    least = np.maximum(LEAST_S, use_bounds(runs_s, margin=TIME_MARGIN))
    longest, steps = zip(*_STEPS, strict=True)
    step = np.array(steps)[np.searchsorted(longest, least)]
    rounded: Floats = np.ceil(least / step) * step
    return rounded


def time_bound_s(runs_s: Sequence[float]) -> float:
    """Return a time limit for runs that took `runs_s`, rounded up.

    >>> time_bound_s([42732.0]) / 3600, time_bound_s([60.0]) / 60
    (15.0, 10.0)
    """
    return float(time_bounds_s(PastRuns.of([runs_s]))[0])


def memory_bounds_mib(peaks_mib: PastRuns) -> Floats:
    """Return a request of host memory for each sample of peaks, rounded up to whole GiB."""
    rounded: Floats = np.ceil(use_bounds(peaks_mib, margin=MEMORY_MARGIN) / GIB) * GIB
    return rounded


def memory_bound_mib(peaks_mib: Sequence[float]) -> float:
    """Return a request of host memory for peaks, rounded up to whole GiB.

    >>> memory_bound_mib([9000.0]) / GIB
    14.0
    """
    return float(memory_bounds_mib(PastRuns.of([peaks_mib]))[0])


def use_bound(values: Sequence[float], *, margin: float) -> float:
    """Return an upper bound for the next value: maximum plus margin, or prediction bound.

    >>> use_bound([100.0, 100.0, 100.0], margin=0.25), use_bound([10.0, 100.0, 1000.0], margin=0.25) > 1e9
    (125.0, True)
    """
    return float(use_bounds(PastRuns.of([values]), margin=margin)[0])


def use_bounds(values: PastRuns, *, margin: float) -> Floats:
    """Return an upper bound for the next value of each sample; 0 for none."""
    return np.maximum(values.largest * (1 + margin), prediction_bounds(values))


def prediction_bounds(values: PastRuns) -> Floats:
    """Return the upper prediction bound of the next log-normal value of each sample.

    0 for under three values. Bound of a single further value: exp(mean + t * s * sqrt(1 + 1/n)) of
    the logarithms, with Student's t of n - 1 degrees of freedom. Few values that differ much have a
    bound that is far above all of them.
    """
    bounds = np.zeros(len(values.count))
    enough = values.count >= _SPREAD_OF
    count = values.count[enough]
    counts, inverse = np.unique(count, return_inverse=True)
    t = np.array([student_t(number - 1, CERTAINTY) for number in counts.tolist()])[inverse]
    spread = np.sqrt(values.squares[enough] / (count - 1))
    exponent = values.mean_log[enough] + t * spread * np.sqrt(1 + 1 / count)
    finite = np.exp(np.minimum(exponent, _LARGEST_EXPONENT))
    bounds[enough] = np.where(exponent < _LARGEST_EXPONENT, finite, math.inf)
    return bounds


@lru_cache(maxsize=8192)
def student_t(freedom: int, certainty: float) -> float:
    """Return the quantile of Student's t distribution, of a certainty of 0.5 or more.

    Newton's method: the distribution is concave above 0, so that its steps from there on never
    pass the quantile.

    >>> round(student_t(4, 0.975), 3), round(student_t(9, 0.995), 3), round(student_t(1, 0.95), 3)
    (2.776, 3.25, 6.314)
    """
    # of the density at 0
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
    scale /= math.sqrt(freedom * math.pi)
    t = 0.0
    while True:
        density = scale * (1 + t * t / freedom) ** (-(freedom + 1) / 2)
        following = t + (certainty - _student_p(t, freedom)) / density
        if following <= t * (1 + 1e-15):  # rounding errors are left
            return t
        t = following


def _student_p(t: float, freedom: int) -> float:
    """Return the probability of at most `t`: Abramowitz and Stegun 26.7.3, 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    orders = np.arange(2 + odd, freedom, 2)
    terms = np.cumprod(cosine * cosine * (orders - 1) / orders)
    first = cosine if odd else 1.0
    total = first * (1 + float(terms.sum())) if freedom > 1 else 0.0
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return (1 + inside) / 2


def percentile(values: Sequence[float], fraction: float) -> float:
    """Return the percentile as one of the values, without interpolation.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 0.95), percentile([3.0, 1.0, 2.0], 0.5)
    (4.0, 2.0)
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]
