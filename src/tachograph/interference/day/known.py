"""What policies of a simulated day decide by: profiles with errors, what the estimator makes of them, the truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec.structs import replace
from numpy.random import Generator

from tachograph.arrays import Flags, Floats
from tachograph.config import Interference
from tachograph.interference.day.jobs import Application, Day, Seen, dcgm, measured
from tachograph.interference.day.policies import Known
from tachograph.interference.demand import H100_NVL, Calibration, Demand
from tachograph.interference.outcome import Sharing
from tachograph.interference.sharing.matrix import matrix

Profiles = Literal["measured", "dcgm", "dcgm-careful"]


def known_of(day: Day, speed: Floats, *, seed: int, profiles: Profiles, settings: Interference) -> Known:
    """Return what there is to decide by on a day; `speed` is the truth (see day.true_speeds).

    What is expected of two applications that know nothing of each other: their phases meet by chance, so slowdowns are
    weighted by the shares of both, and times without a kernel disturb nobody.
    """
    random = np.random.default_rng((seed, 3))
    seen = [_seen(application, random, profiles, settings) for application in day.applications]
    slowdown, safe = _estimated([demand for one in seen for _, demand in one.phases], settings)
    shares = _shares(seen)
    met = (shares > 0).astype(np.float64)
    unknown = met @ np.isnan(slowdown) @ met.T > 0
    expected = 1 + shares @ np.nan_to_num(slowdown - 1) @ shares.T
    return Known(
        seen=seen,
        expected=np.where(unknown, np.nan, expected),
        safe=met @ ~safe @ met.T == 0,
        true=1 / speed,
        # what is assumed of issue slots is margin enough: `colocate` knows no other
        settings=replace(settings, margin=1.0) if profiles == "dcgm-careful" else settings,
    )


def _seen(application: Application, random: Generator, profiles: Profiles, settings: Interference) -> Seen:
    if profiles == "measured":
        return measured(application, random)
    return dcgm(application, random, issue=settings.assumed_issue if profiles == "dcgm-careful" else 0.0)


def _estimated(demands: Sequence[Demand], settings: Interference) -> tuple[Floats, Flags]:
    lasting = Sharing(way="mps", lasting=True)  # jobs launch again and again
    found = matrix(demands, gpu=H100_NVL, calibration=Calibration(), sharing=lasting, settings=settings)
    return found.slowdown, found.safe > 0


def _shares(seen: Sequence[Seen]) -> Floats:
    """Share of its time that each application (row) is in each phase of all (columns)."""
    shares = np.zeros((len(seen), sum(len(one.phases) for one in seen)))
    column = 0
    for row, one in enumerate(seen):
        for share, _ in one.phases:
            shares[row, column] = share
            column += 1
    return shares
