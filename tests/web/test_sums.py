"""Sums of all jobs for those who may see no names: a group has enough users, or no name."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobframes import START, frame
from tachograph.annexes.serve.sums import OTHERS, without_names
from tachograph.catalog.tables import JOB_SUMMARIES

ENOUGH = 3
COLUMNS = ("cluster", "partition", "gpu_model")
Job = tuple[str, str | None]  # user, group
JUDGED = {"state": "COMPLETED", "end": START, "samples": 1, "gpu_hours_in_use": 1.0}


def shown(jobs: list[Job], column: str, **others: Any) -> list[str]:
    """Return the names of groups, of each job."""
    rows = [
        {"job_key": f"c:{number}:1", "user": user, column: group} | JUDGED | others
        for number, (user, group) in enumerate(jobs)
    ]
    nameless = without_names(frame(JOB_SUMMARIES, rows), ENOUGH)
    texts = {text for values in nameless.select(pl.col(pl.String)) for text in values}
    assert not texts & {user for user, _ in jobs}
    return list(nameless[column])


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize(
    ("users", "expected"),
    [
        (ENOUGH - 1, {OTHERS, "c"}),  # the smaller of the large groups hides the small one
        (ENOUGH, {"a", "b", "c"}),
        (ENOUGH + 1, {"a", "b", "c"}),
    ],
)
def test_a_group_of_just_enough_users_has_its_name(
    users: int, expected: set[str], column: str
) -> None:
    sizes = {"a": users, "b": ENOUGH + 1, "c": ENOUGH + 2}
    jobs: list[Job] = [(f"{name}user{n}", name) for name in sizes for n in range(sizes[name])]
    assert set(shown(jobs, column)) == expected
    assert shown(jobs[: ENOUGH - 1], column) == []
    # users of jobs that are in no ledger do not count
    assert shown(jobs, column, state="RUNNING") == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from([f"user{number}" for number in range(6)]),
            st.sampled_from(["a", "b", "c", None]),
        ),
        max_size=14,
    ),
    st.sampled_from(COLUMNS),
)
def test_neither_a_named_group_nor_the_rest_has_few_users(jobs: list[Job], column: str) -> None:
    users: dict[str | None, set[str]] = {}
    for user, group in jobs:
        users.setdefault(group, set()).add(user)
    names = shown(jobs, column)
    if len({user for user, _ in jobs}) < ENOUGH:
        assert names == []
        return
    named = set(names) - {OTHERS}
    rest = {user for user, group in jobs if group not in named}
    assert all(len(users[name]) >= ENOUGH for name in named)
    assert not rest or len(rest) >= ENOUGH
    assert names == [group if group in named else OTHERS for _, group in jobs]
    large = {group for group in users if group and len(users[group]) >= ENOUGH}
    small = {user for user, group in jobs if group not in large}
    assert named == large or 0 < len(small) < ENOUGH
