"""What a viewer may not see is never read."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from madelake import fill, held, job, make_lake, summarized, utc
from tachograph.annexes.serve.snapshot import ServedLake, View
from tachograph.annexes.serve.sums import OTHERS
from tachograph.api.viewer import NOBODY, Role, Viewer
from tachograph.catalog.config import Configuration, ServeOptions
from tachograph.catalog.errors import NotFoundError
from tachograph.catalog.tables import (
    ALLOCATIONS,
    FINDINGS,
    GPU_SAMPLES,
    JOB_GPUS,
    JOB_SUMMARIES,
    JOBS,
    STEPS,
)
from tachograph.lake.query import read_verdicts


@pytest.mark.parametrize(
    ("viewer", "users"),
    [
        (NOBODY, []),
        (Viewer("ann", Role.USER), ["ann"]),
        (Viewer("ann", Role.USER, frozenset({"chem"})), ["ann"]),
        (Viewer("eve", Role.MANAGER, frozenset({"chem"})), ["ann", "bob"]),
        (Viewer("eve", Role.SUPPORT), ["ann", "bob", None]),
        (Viewer("", Role.USER), []),
    ],
)
def test_roles_see_their_jobs(viewer: Viewer, users: list[str | None]) -> None:
    jobs = pl.DataFrame({"user": ["ann", "bob", None], "account": ["chem", "chem", None]})
    assert jobs.filter(viewer.visible())["user"].to_list() == users


def test_two_viewers_with_one_scope_see_the_same() -> None:
    viewers = [
        NOBODY, Viewer("all", Role.USER), Viewer("sums", Role.USER), Viewer("of", Role.USER), Viewer("ann", Role.USER),
        Viewer("ann", Role.MANAGER, frozenset({"chem"})), Viewer("eve", Role.SUPPORT),
    ]  # fmt: skip
    assert len({viewer.scope for viewer in viewers}) == len(viewers)


def nodes_of(view: View) -> list[str]:
    """Nodes of the visible allocations; they are the same whether all are read or those of one
    job.
    """
    lake = view.opened.lake
    nodes: list[str] = lake.latest(ALLOCATIONS).get_column("node").sort().to_list()
    named = lake.read_named(ALLOCATIONS, ["7", "8"]).collect()
    assert sorted(named.get_column("node").unique()) == nodes
    assert lake.read_named(ALLOCATIONS, ["8"]).collect().is_empty()
    return nodes


HOUR, MOMENT = timedelta(hours=1), timedelta(seconds=30)
ANNS_RUN = (utc(20), utc(20) + HOUR)


def reused(
    folder: Path, allocations: list[dict[str, Any]], bob: tuple[datetime, datetime | None]
) -> View:
    """What Ann sees of a lake in which Bob and she had a job 7 each; steps are named for whose
    they are.
    """
    lake = make_lake(
        folder,
        jobs=[
            job("7", bob[0], None, user="bob", gpus=1),  # as it was recorded while it ran
            *([job("7", *bob, user="bob", gpus=1)] if bob[1] else []),
            job("7", *ANNS_RUN, user="ann", gpus=1),
        ],
        allocations=allocations,
        steps=[
            {
                "job_id": "7",
                "step": step,
                "name": name,
                "start": start,
                "end": end,
                "node_list": "n1",
            }
            for step, name, start, end in (
                ("0", "bob", bob[0], bob[1]),
                ("1", "bob", bob[0] + MOMENT / 2, None),
                ("0", "ann", *ANNS_RUN),
                ("1", "ann", ANNS_RUN[0] + MOMENT, None),
                ("2", "bob", None, None),
            )
        ],
    )
    summarized(lake)
    return ServedLake(lake, Configuration()).view(Viewer("ann", Role.USER))


def test_a_report_that_is_kept_is_of_one_viewer_one_run_and_one_version(tmp_path: Path) -> None:
    bobs, anns = (utc(1), utc(1) + HOUR), (utc(20), utc(20) + HOUR)
    lake = make_lake(
        tmp_path, jobs=[job("7", *bobs, user="bob", gpus=1), job("8", *anns, user="ann", gpus=2)]
    )
    summarized(lake)
    times = iter(utc(20, 2, minute) for minute in range(60))
    served = ServedLake(lake, Configuration(), clock=lambda: next(times))
    eve, ann = Viewer("eve", Role.ADMIN), Viewer("ann", Role.USER)
    first, again = served.view(eve).job("7").report, served.view(eve).job("7").report
    assert again.timeline is first.timeline
    assert again.now > first.now
    assert served.view(eve).job("8").report.summary["user"] == "ann"
    with pytest.raises(NotFoundError):
        served.view(ann).job("7")
    assert served.view(ann).job("8").report.summary["gpus"] == 2
    later = [job("7", bobs[0], bobs[1] + HOUR, user="bob", gpus=1)]
    fill(lake, {"jobs": later}, chunk="second")
    summarized(lake)
    assert served.refresh()
    assert served.view(eve).job("7").report.summary["elapsed_s"] == 7200.0


@pytest.mark.parametrize(
    "bob",
    [(ANNS_RUN[0] - MOMENT, ANNS_RUN[0]), (ANNS_RUN[1], None)],
    ids=["just before", "just after and running"],
)
def test_raw_rows_of_an_id_that_was_given_again_stay_with_their_user(
    tmp_path: Path, bob: tuple[datetime, datetime | None]
) -> None:
    allocations = [
        *held("7", "bobs", [0], *bob),
        *held("7", "anns", [0], *ANNS_RUN),
        *held("7", "whose", [1]),
    ]
    view = reused(tmp_path, allocations, bob)
    assert nodes_of(view) == ["anns"]
    steps = view.opened.lake.latest(STEPS)
    assert steps.get_column("name").to_list() == ["ann", "ann"]
    assert view.opened.jobs().get_column("user").to_list() == ["ann"]
    assert set(view.opened.lake.latest(JOBS).get_column("user")) == {"ann"}
    with pytest.raises(NotFoundError):
        view.opened.lake.latest(GPU_SAMPLES)


_AGAIN = (ANNS_RUN[1], ANNS_RUN[1] + HOUR)
_ANN_AT, _BOB_AT = ("ann", ANNS_RUN, "east"), ("bob", ANNS_RUN, "west")
VISIBLE: dict[
    str,
    tuple[list[tuple[str, tuple[datetime, datetime], str | None]], list[dict[str, Any]], list[str]],
] = {
    "no other user had the id": ([("ann", ANNS_RUN, None)], held("7", "anns", [0]), ["anns"]),
    "requeued": (
        [("ann", ANNS_RUN, None), ("ann", _AGAIN, None)],
        [
            *held("7", "first", [0], *ANNS_RUN),
            *held("7", "second", [0], *_AGAIN),
            *held("7", "any", [1]),
        ],
        ["any", "first", "second"],
    ),
    "another cluster": (
        [_ANN_AT, _BOB_AT],
        [
            *held("7", "anns", [0], *ANNS_RUN, cluster="east"),
            *held("7", "bobs", [0], *ANNS_RUN, cluster="west"),
        ],
        ["anns"],
    ),
}


@pytest.mark.parametrize("case", VISIBLE)
def test_raw_rows_of_own_runs_are_visible(tmp_path: Path, case: str) -> None:
    runs, allocations, nodes = VISIBLE[case]
    jobs = [job("7", *run, user=user, gpus=1, cluster=cluster) for user, run, cluster in runs]
    lake = make_lake(tmp_path, jobs=jobs, allocations=allocations)
    summarized(lake)
    assert nodes_of(ServedLake(lake, Configuration()).view(Viewer("ann", Role.USER))) == nodes


def two_users(folder: Path) -> ServedLake:
    """Serve a lake of a job of Ann and one of Bob; groups of any size have their names."""
    lake = make_lake(
        folder,
        jobs=[
            job("7", *ANNS_RUN, user="ann", gpus=1),
            job("8", *ANNS_RUN, user="bob", gpus=1),
        ],
        allocations=[*held("7", "anns", [0]), *held("8", "bobs", [0])],
        gpu_samples=[
            {"t": ANNS_RUN[0] + number * MOMENT, "node": node, "gpu": 0, "gpu_util": 0.0}
            for node in ("anns", "bobs")
            for number in range(120)
        ],
    )
    summarized(lake)
    return ServedLake(lake, Configuration(serve=ServeOptions(smallest_group=1)))


def test_sums_are_of_all_jobs_and_name_none(tmp_path: Path) -> None:
    served = two_users(tmp_path)
    lake = served.view(NOBODY).opened.lake
    # No other lake can be had from it.
    assert (lake.of_all_jobs is lake, lake.name) == (True, "")
    key, *names = ("job_key", "user", "account", "job_id", "display_id")
    rows = lake.latest(JOB_SUMMARIES, (key, *names))
    assert rows.height == 2
    assert set(rows["user"]) == set(rows["account"]) == {OTHERS}
    assert rows["job_id"].null_count() == rows["display_id"].null_count() == 2
    named = served.lake.latest(JOB_SUMMARIES)
    assert not {*rows[key]} & {*named[key]}
    assert lake.latest(JOB_SUMMARIES, (key,), list(named[key])).is_empty()
    findings = lake.read_files(FINDINGS, lake.files(FINDINGS)).collect()
    assert 0 < findings.height == read_verdicts(lake, lake.latest(JOB_SUMMARIES)).height
    assert {*findings[key]} <= {*rows[key]}
    assert lake.kept_answers(named[key]) is None
    for table in (JOBS, ALLOCATIONS, STEPS, GPU_SAMPLES, JOB_GPUS):
        with pytest.raises(NotFoundError):
            lake.latest(table)
    with pytest.raises(NotFoundError):
        lake.read_named(ALLOCATIONS, ["7"])


def test_jobs_of_another_viewer_are_not_those_that_were_looked_up_before(tmp_path: Path) -> None:
    everyone = two_users(tmp_path).snapshot.jobs
    assert (len(everyone), everyone.names.height) == (2, 2)
    assert everyone.newest is not None
    own = everyone.visible_to(Viewer("ann", Role.USER))
    assert own.names["job_id"].to_list() == ["7"]
    assert own.kept_answers(everyone.names["job_key"])["job_key"].unique().to_list() in (
        [],
        own.names["job_key"].to_list(),
    )
    nobodys = everyone.visible_to(NOBODY)
    assert (len(nobodys), nobodys.newest) == (0, None)
