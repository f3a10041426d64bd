"""Policies of a simulated day: who may share a GPU with whom. A policy is a function and a row of POLICIES.

All let only those share whose memory fits. The two naive ones do as published schedulers do, job by job: Orion puts
kernels of complementary roofline class together, Usher those whose achieved occupancies sum to less than 100 %.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tachograph.arrays import Flags, Floats
from tachograph.config import Interference
from tachograph.interference.day.jobs import Seen


@dataclass(frozen=True, slots=True)
class Known:
    """What there is to decide by, arrays of (application, application beside it).

    expected: slowdown of the row, as the estimator says, NaN where it cannot. safe: it calls all pairs of kernels safe.
    true: slowdown that the world gives; for the oracle alone.
    """

    seen: Sequence[Seen]
    expected: Floats
    safe: Flags
    true: Floats
    settings: Interference

    @property
    def upper(self) -> Floats:
        """What the slowdown may be, were every pair of kernels slower than expected by the estimator's margin.

        The margin counts for the time in which both have a kernel on the GPU.
        """
        busy = np.array([sum(share for share, _ in one.phases) for one in self.seen])
        margin = self.settings.margin
        return np.asarray(1 + margin * (self.expected - 1) + (margin - 1) * np.outer(busy, busy), np.float64)


@dataclass(frozen=True, slots=True)
class Permits:
    """may: these two may share. cost: of several that may, the least is chosen."""

    may: Flags
    cost: Floats


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy: its code, a sentence for people, what it permits."""

    code: str
    sentence: str
    permits: Callable[[Known], Permits]


def exclusive(known: Known) -> Permits:
    """Nobody shares."""
    none = np.zeros((len(known.seen), len(known.seen)))
    return Permits(none > 0, none)


def roofline(known: Known) -> Permits:
    """One compute-bound and one memory-bound may share."""
    memory = np.array([one.bound == "memory" for one in known.seen])
    return Permits(memory[:, None] != memory[None, :], np.zeros((memory.size, memory.size)))


def occupancy(known: Known) -> Permits:
    """Those may share whose achieved occupancies sum to less than 100 %."""
    achieved = np.array([one.occupancy for one in known.seen])
    total = achieved[:, None] + achieved[None, :]
    return Permits(total < 1, total)


def advice(known: Known) -> Permits:
    """Those may share who are safe, or of whom neither may be slower than allowed, the estimator's margin included."""
    upper = _at_most(known.upper, known.settings.max_slowdown)
    return Permits(upper.may | safe(known).may, upper.cost)


def safe(known: Known) -> Permits:
    """Those may share of whom neither is expected to be slower than allowed and all pairs of kernels are safe.

    Of such a pair nothing comes near a limit, and all that decides was measured: it needs no margin.
    """
    expected = _at_most(known.expected, known.settings.max_slowdown)
    return Permits(expected.may & known.safe & known.safe.T, expected.cost)


def oracle(known: Known) -> Permits:
    """Those may share of whom neither will be slower than the configuration allows: nobody can know it."""
    return _at_most(known.true, known.settings.max_slowdown)


def _at_most(slowdown: Floats, most: float) -> Permits:
    worse = np.maximum(slowdown, slowdown.T)
    return Permits(np.nan_to_num(worse, nan=np.inf) <= most, np.nan_to_num(slowdown + slowdown.T, nan=np.inf))


POLICIES: tuple[Policy, ...] = (
    Policy("exclusive", "one job per GPU", exclusive),
    Policy("roofline", "a compute-bound job beside a memory-bound one", roofline),
    Policy("occupancy", "achieved occupancies sum to less than 100 %", occupancy),
    Policy(
        "advice",
        "those of safe, and those whose expected slowdown times the estimator's margin stays within what is allowed",
        advice,
    ),
    Policy("safe", "no slower than allowed, and no pair of kernels comes near a limit", safe),
    Policy("oracle", "the true slowdown is no more than the allowed one", oracle),
)


def permitted(policy: Policy, known: Known, *, hbm_bytes: float) -> Permits:
    """Return what a policy permits of those whose memory fits, with the reserve that the configuration wants."""
    found = policy.permits(known)
    used = np.array([one.hbm_bytes for one in known.seen])
    fits = used[:, None] + used[None, :] <= known.settings.safe_hbm * hbm_bytes
    return Permits(found.may & fits, found.cost)
