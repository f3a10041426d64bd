"""A split of labelled jobs: on one part settings are searched, on the other they are measured."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from tachograph.errors import UsageError

TEST_SHARE = 0.3
BY = ("user", "time")


def by_user(users: Sequence[str | None]) -> NDArray[np.bool_]:
    """Return which jobs are for the test: whole users, in the order of a hash of their names, up to 30 % of the jobs.

    No user has jobs on both sides, so habits of one user are not measured with what they taught. Jobs of nobody count
    as those of one user.
    Errors: UsageError where all jobs are of one user.
    """
    jobs = Counter(users)
    if len(jobs) < 2:
        raise UsageError("all labelled jobs are of one user", do="label jobs of others too, or say --split time")
    ordered = sorted(jobs, key=lambda user: hashlib.sha256(repr(user).encode()).digest())
    chosen: set[str | None] = set()
    for user in ordered:
        if sum(jobs[each] for each in chosen) + jobs[user] <= TEST_SHARE * len(users):
            chosen.add(user)
    if not chosen:  # few users: the one with the fewest jobs
        chosen.add(min(ordered, key=lambda user: jobs[user]))
    return np.array([user in chosen for user in users], np.bool_)


def by_time(starts: Sequence[datetime]) -> NDArray[np.bool_]:
    """Return which jobs are for the test: the last 30 %, those that start at one moment on one side.

    Errors: UsageError where all start at one moment.
    """
    edge = sorted(starts)[min(len(starts) - 1, int((1 - TEST_SHARE) * len(starts)))] if starts else None
    test = np.array([edge is not None and start >= edge for start in starts], np.bool_)
    if not starts or test.all():
        raise UsageError("the labelled jobs do not differ in when they started", do="label more jobs")
    return test
