"""Which jobs are studied: each filter is counted."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from jobframes import frame, summary
from tachograph.annexes.lab.figures.dataset import FILTER_REASONS, JobSet, choose_jobs
from tachograph.catalog.errors import LakeError, NotFoundError, UsageError
from tachograph.catalog.tables import FINDINGS, JOB_SUMMARIES
from tachograph.lake.filters import JobFilter

EXCLUDED = [
    None,
    None,
    "short",
    "short,idle",
    "still_running,short",
    "ambiguous_attribution",
    "idle",
]


def summaries(excluded: list[str | None]) -> pl.DataFrame:
    rows = [
        summary(
            job_key=f"c:{place}:1",
            job_id=str(place),
            user="ann" if place % 2 else "bob",
            excluded=why,
        )
        for place, why in enumerate(excluded)
    ]
    return frame(JOB_SUMMARIES, rows)


def choose(excluded: list[str | None], wanted: JobFilter | None = None, **options: Any) -> JobSet:
    return choose_jobs(summaries(excluded), FINDINGS.empty(), wanted or JobFilter(), **options)


def test_each_filter_is_counted_in_a_fixed_order() -> None:
    found = choose(EXCLUDED)
    counts_of = {one.reason: (one.jobs, one.removed, one.left) for one in found.removals}
    assert list(counts_of) == list(FILTER_REASONS)
    assert {reason: counts for reason, counts in counts_of.items() if counts[0]} == {
        "ambiguous_attribution": (1, 1, 6),
        "still_running": (1, 1, 5),
        "short": (3, 2, 3),
        "idle": (2, 1, 2),
    }
    assert counts_of["login_node"] == (0, 0, 5)
    assert found.jobs["job_id"].to_list() == ["0", "1"]
    assert (found.recorded, found.chosen, found.left_out) == (7, 7, 0)


def test_the_readers_choice_comes_before_the_filters() -> None:
    found = choose(EXCLUDED, JobFilter(users=("bob",)))
    assert (found.recorded, found.chosen, found.left_out) == (7, 4, 3)
    assert found.jobs["job_id"].to_list() == ["0"]
    assert sum(one.removed for one in found.removals) == 3


@pytest.mark.parametrize(
    ("no_filter", "studied"),
    [
        (["short"], ["0", "1", "2"]),
        (["idle"], ["0", "1", "6"]),
        (["short", "idle"], ["0", "1", "2", "3", "6"]),
    ],
)
def test_a_filter_switched_off_brings_back_jobs_that_only_it_removes(
    no_filter: list[str], studied: list[str]
) -> None:
    found = choose(EXCLUDED, no_filter=no_filter)
    assert found.jobs["job_id"].to_list() == studied
    for one in found.removals:
        assert one.ignored is (one.reason in no_filter)
        assert not (one.ignored and one.removed)


def test_nothing_left_tells_what_removed_the_jobs() -> None:
    with pytest.raises(NotFoundError) as raised:
        choose(["short", "short,idle"])
    assert str(raised.value) == (
        "no job is left to study: of 2 jobs the filters leave out short 2, idle 1; let jobs "
        "back in with --no-filter "
        "short, or change [filters] and run `tachograph analyze`"
    )
    with pytest.raises(
        NotFoundError,
        match=r"your choice leaves out all 2 jobs \(by itself already: user zoe\); leave out",
    ):
        choose(["short", None], JobFilter(users=("zoe",)))
    with pytest.raises(LakeError, match="no job to study"):
        choose([])


def test_an_unknown_filter_is_an_error() -> None:
    with pytest.raises(UsageError, match="no filter 'shrt'; did you mean short"):
        choose(EXCLUDED, no_filter=["shrt"])
