"""How much to request: the largest use of past runs plus a margin, or their prediction bound.

The report of a job and advice for the next one go through the same functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

TIME_MARGIN = 0.25  # of the run time, on top of it
# Of host memory: peaks are polled, every 30 s by default, and may lack memory that tasks share.
MEMORY_MARGIN = 0.5
LEAST_S = 600.0  # the shortest limit; shorter runs are no evidence of memory use
WORTH = 0.75  # of what is requested: advice for more than this is not worth a change
LEAST_COVERAGE = 0.5  # of the expected samples: with fewer, what GPUs did is not known
GIB = 1024.0  # MiB
CERTAINTY = 0.998  # that the next run stays within the bound
_SPREAD_OF = 3  # values from which a spread is known
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
        peak, killed = max(self.peaks, default=0.0), max(self.killed, default=0.0)
        if not peak and not killed:
            return None
        return memory_bound_mib(self.peaks if peak > killed else [max(peak, killed)])


def peaks_of_need(completed: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return the peaks that show a need: of runs that completed, and of others that held more.

    `completed`: after `LEAST_S` or more. What a run held that ended early says how much it needs
    at least; without any that completed, nothing is known of the need.

    >>> peaks_of_need([8.0, 9.0], [1.0, 10.0]), peaks_of_need([], [1.0])
    ([8.0, 9.0, 10.0], [])
    """
    largest = max(completed, default=math.inf)
    return [*completed, *(peak for peak in others if peak > largest)]


def time_bound_s(runs_s: Sequence[float]) -> float:
    """Return a time limit for runs that took `runs_s`, rounded up; `runs_s` has one value at least.

    >>> time_bound_s([42732.0]) / 3600, time_bound_s([60.0]) / 60
    (15.0, 10.0)
    """
    wanted = max(LEAST_S, use_bound(runs_s, margin=TIME_MARGIN))
    if math.isinf(wanted):
        return wanted
    step = next(step for most, step in _STEPS if wanted <= most)
    return math.ceil(wanted / step) * step


def memory_bound_mib(peaks_mib: Sequence[float]) -> float:
    """Return a request of host memory for peaks, rounded up to whole GiB.

    >>> memory_bound_mib([9000.0]) / GIB
    14.0
    """
    wanted = use_bound(peaks_mib, margin=MEMORY_MARGIN)
    return wanted if math.isinf(wanted) else math.ceil(wanted / GIB) * GIB


def use_bound(values: Sequence[float], *, margin: float) -> float:
    """Return an upper bound for the next value: maximum plus margin, or prediction bound.

    >>> use_bound([100.0, 100.0, 100.0], margin=0.25), use_bound([10.0, 100.0, 1000.0], margin=0.25) > 1e9
    (125.0, True)
    """
    return max(max(values) * (1 + margin), prediction_bound(values))


def prediction_bound(values: Sequence[float]) -> float:
    """Return the upper prediction bound of the next log-normal value; 0 for under three values.

    Bound of a single further value: exp(mean + t * s * sqrt(1 + 1/n)) of the logarithms, with
    Student's t of n - 1 degrees of freedom. Few values that differ much have a bound that is far
    above all of them.
    """
    logs = [math.log(value) for value in values if value > 0]
    count = len(logs)
    if count < _SPREAD_OF:
        return 0.0
    mean = math.fsum(logs) / count
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in logs) / (count - 1))
    exponent = mean + student_t(count - 1, CERTAINTY) * spread * math.sqrt(1 + 1 / count)
    return math.exp(exponent) if exponent < 700 else math.inf


@lru_cache(maxsize=1024)
def student_t(freedom: int, certainty: float) -> float:
    """Return the quantile of Student's t distribution.

    Abramowitz and Stegun 26.7.3, 26.7.4, by bisection.

    >>> round(student_t(4, 0.975), 3), round(student_t(9, 0.995), 3), round(student_t(1, 0.95), 3)
    (2.776, 3.25, 6.314)
    """
    low, high = 0.0, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_p(middle, freedom) < certainty else (low, middle)
    return high


def _student_p(t: float, freedom: int) -> float:
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for place in range(2 + odd, freedom, 2):
        term *= cosine * cosine * (place - 1) / place
        total += term
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return (1 + inside) / 2


def percentile(values: Sequence[float], fraction: float) -> float:
    """Return the percentile as one of the values, without interpolation.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 0.95), percentile([3.0, 1.0, 2.0], 0.5)
    (4.0, 2.0)
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]
