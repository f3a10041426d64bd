"""What a server keeps of a lake is what the lake has: same jobs, same order, same findings as
the command line.
"""

from __future__ import annotations

import fcntl
import shutil
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from jobframes import START, frame, summary
from served_entries import until
from tachograph.annexes.serve.images import JobImages, write_beside
from tachograph.annexes.serve.jobs import ResidentJobs
from tachograph.annexes.serve.pages import status
from tachograph.annexes.serve.resident import NO_JOBS, extended, open_image, write_image
from tachograph.annexes.serve.snapshot import NotReadyError, ServedLake
from tachograph.api.viewer import Role, Viewer
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import UsageError
from tachograph.catalog.rows import JobSummaryRow
from tachograph.catalog.tables import ANALYSES, DEVICES, FINDINGS, JOB_SUMMARIES
from tachograph.lake.compact import compact
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter, filter_jobs, parse_condition
from tachograph.lake.forget import forget
from tachograph.lake.query import read_answers, read_summaries
from tachograph.lake.retention import rows_that_count
from tachograph.report.jobs import build_jobs_table

CODES = ("idle_job", "job_hang", "one_gpu_of_many", "of_a_rule")
USERS = ("ann", "bob", None)
SORTS = (
    "-start",
    "start",
    "user",
    "-gpu_util_mean",
    "gpu_util_mean",
    "pipes",
    "-findings",
    "worst_severity",
    "-gpus",
)
Job = tuple[int, str | None, float | None, int, Sequence[tuple[str, str, str, bool]]]

jobs = st.lists(
    st.tuples(
        st.integers(0, 11),
        st.sampled_from(USERS),
        st.one_of(st.none(), st.sampled_from([0.0, 0.25, 0.5])),
        st.integers(0, 2),
        st.lists(
            st.tuples(
                st.sampled_from(CODES),
                st.sampled_from(["yes", "no", "unknown"]),
                st.sampled_from(["problem", "hint", "fact"]),
                st.booleans(),
            ),
            unique_by=lambda finding: finding[0],
            max_size=3,
        ),
    ),
    unique_by=lambda job: job[0],
    max_size=6,
)
filters = st.builds(
    JobFilter,
    users=st.sampled_from([(), ("ann",), ("ann", "bob")]),
    findings=st.sampled_from([(), ("idle_job",), ("job_hang", "of_a_rule"), ("cold_start",)]),
    since=st.sampled_from([None, START + timedelta(hours=3)]),
    where=st.sampled_from(
        [(), (parse_condition("gpu_util_mean<0.3"),), (parse_condition("user~AN"),)]
    ),
).flatmap(
    lambda wanted: st.sampled_from(
        [
            wanted,
            *(replace(wanted, verdict=verdict) for verdict in ("no", "unknown") if wanted.findings),
        ]
    )
)


def analyzed(lake: Lake, seq: int, some: Sequence[Job]) -> None:
    """Commit summaries and findings of one analysis."""
    rows: list[JobSummaryRow] = []
    found: list[dict[str, Any]] = []
    for number, user, util, pipes, findings in some:
        key = f"c:{number}:1"
        start = START + timedelta(hours=number % 5)
        rows.append(
            summary(
                job_key=key,
                job_id=str(number),
                seq=seq,
                user=user,
                gpu_util_mean=util,
                start=start,
                gpus=1 + number % 2,
                end=start + timedelta(hours=1),
                pipes=["fp64", "tensor"][:pipes],
                gpu_hours_idle=util,
            )
        )
        found += [
            {
                "job_key": key, "job_id": str(number), "code": code, "kind": "check", "verdict": verdict, "seq": seq,
                "severity": severity, "covered_by": "cold_start" if covered else None, "checks": "[]", "needs": [],
            }
            for code, verdict, severity, covered in findings
        ]  # fmt: skip
    lake.append(FINDINGS, frame(FINDINGS, found).drop("seq"), app_id=f"findings {seq}", seq=seq)
    lake.append(
        JOB_SUMMARIES, frame(JOB_SUMMARIES, rows).drop("seq"), app_id=f"summaries {seq}", seq=seq
    )
    analysis = {
        name: seq if dtype == pl.Int64() else None for name, dtype in ANALYSES.schema.items()
    }
    lake.append(
        ANALYSES, frame(ANALYSES, [analysis]).drop("seq"), app_id=f"analyses {seq}", seq=seq
    )


def all_pages(
    visible: ResidentJobs, wanted: JobFilter, sort: str, limit: int
) -> tuple[list[str], list[Any], int]:
    """Keys and findings of a list, a page after the other; how many jobs match."""
    keys: list[str] = []
    findings: list[Any] = []
    after = ""
    while True:
        page = visible.page(wanted, sort=sort, limit=limit, after=after)
        keys += page.table.frame["job_key"].to_list()
        findings += page.table.frame.select("findings", "worst_severity", "gpu_hours_lost").rows()
        after = page.cursor
        if not after:
            return keys, findings, page.table.matching


def is_as_in_the_lake(
    lake: Lake, resident: ResidentJobs, wanted: JobFilter, sort: str, viewer: Viewer
) -> None:
    summaries = read_summaries(lake)
    answers = read_answers(lake, summaries, every=True)
    if "of_a_rule" in wanted.findings and "of_a_rule" not in answers["code"]:
        return  # a code that is not known
    seen = summaries.filter(viewer.visible())
    visible = resident.visible_to(viewer)
    assert len(visible) == seen.height
    assert visible.rows().sort("job_key").equals(seen.sort("job_key"))
    expected = build_jobs_table(
        filter_jobs(seen, answers, wanted), answers, sort=sort, wanted=wanted
    )
    keys, findings, matching = all_pages(visible, wanted, sort, 3)
    assert keys == expected.frame["job_key"].to_list()
    assert findings == expected.frame.select("findings", "worst_severity", "gpu_hours_lost").rows()
    assert matching == len(keys)
    whole = visible.page(wanted, sort=sort, limit=100).table
    assert whole.frame.equals(expected.frame)
    assert whole.answers == expected.answers
    assert visible.count(wanted) == matching
    narrow = visible.page(
        wanted, columns=("user", "gpu_hours_lost"), sort=sort, limit=100
    ).table.frame
    assert narrow.equals(expected.frame.select(narrow.columns))
    some = ["c:3:1", "c:7:1", "", *summaries["job_key"].tail(1)]
    of_keys = visible.rows(job_keys=some)
    assert of_keys.sort("job_key").equals(
        seen.filter(pl.col("job_key").is_in(some)).sort("job_key")
    )
    listed: list[Any] = []
    after = ""
    while True:
        part = visible.answers(wanted, limit=2, after=after)
        listed += part.rows.select("job_key", "code", "verdict").rows()
        after = part.cursor
        if not after:
            break
    assert part.matching == len(listed) == len(set(listed))
    keys_of_all = summaries["job_key"]
    every = visible.kept_answers(keys_of_all, wanted.findings)
    for only in ((), wanted.findings, ("idle_job", "of_a_rule")):
        of_codes = visible.kept_answers(keys_of_all, wanted.findings, only=only)
        assert of_codes.equals(every.filter(pl.col("code").is_in(only)))
    if not wanted.findings:
        reported = [
            (key, code, "yes")
            for key, codes in expected.frame.select("job_key", "findings").rows()
            for code in codes
        ]
        assert listed == sorted(reported)


@given(
    st.lists(st.tuples(jobs, st.booleans()), min_size=1, max_size=4),
    st.integers(0, 3),
    filters,
    st.sampled_from(SORTS),
    st.sampled_from([Viewer("x", Role.ADMIN), Viewer("ann", Role.USER)]),
)
# Shrinking takes minutes.
@settings(max_examples=settings().max_examples // 5, phases=[Phase.explicit, Phase.generate])
def test_added_analyses_and_compactions_make_what_the_lake_has(
    analyses: list[tuple[list[Job], bool]],
    image_at: int,
    wanted: JobFilter,
    sort: str,
    viewer: Viewer,
) -> None:
    with TemporaryDirectory() as name:
        lake = Lake.create(f"{name}/lake")
        resident = NO_JOBS
        for number, (some, compacted) in enumerate(analyses):
            analyzed(lake, 100 + number, some)
            if compacted:
                counting = rows_that_count(lake, datetime(2030, 1, 1, tzinfo=UTC))
                compact(lake, [JOB_SUMMARIES, FINDINGS], counting=counting)
            files, findings = lake.files(JOB_SUMMARIES), lake.files(FINDINGS)
            if number == image_at:
                folder = Path(name) / "image"
                folder.mkdir()
                write_image(lake, files, findings, folder)
                found = open_image(folder)
                assert found is not None
                resident = found
            resident = extended(lake, resident, files, findings)
            is_as_in_the_lake(lake, resident, wanted, sort, viewer)


def test_a_log_is_read_again_once_it_has_changed(small: Lake) -> None:
    moment = ServedLake(small, Configuration()).snapshot
    row = frame(DEVICES, [{"node": "n1", "gpu": 0}]).drop("seq")
    assert moment.files(DEVICES) == []
    versions = []
    for number in (1, 2):
        small.append(DEVICES, row, app_id=f"devices {number}", seq=number)
        assert len(moment.files(DEVICES)) == number
        versions.append(moment.version(DEVICES))
    assert versions[0] < versions[1]
    shutil.rmtree(small.uri(DEVICES))
    assert moment.files(DEVICES) == []


@pytest.fixture
def small(tmp_path: Path) -> Lake:
    """A lake of 12 jobs."""
    lake = Lake.create(str(tmp_path / "lake"))
    analyzed(
        lake,
        100,
        [(number, "ann", 0.5, 1, [("idle_job", "yes", "hint", False)]) for number in range(12)],
    )
    return lake


def test_rows_that_are_taken_away_are_gone(small: Lake) -> None:
    files, findings = small.files(JOB_SUMMARIES), small.files(FINDINGS)
    resident = extended(small, NO_JOBS, files, findings)
    rows = small.latest(JOB_SUMMARIES).filter(pl.col("job_id") != "3")
    small.replace(JOB_SUMMARIES, files, [(None, rows)])
    resident = extended(small, resident, small.files(JOB_SUMMARIES), findings)
    assert len(resident) == 11
    assert resident.rows(["job_id"])["job_id"].is_in(["3"]).sum() == 0


def test_a_page_goes_on_where_it_was_though_jobs_came_and_left(small: Lake) -> None:
    def visible() -> ResidentJobs:
        return extended(small, NO_JOBS, small.files(JOB_SUMMARIES), small.files(FINDINGS))

    first = visible().page(JobFilter(), sort="job_key", limit=5)
    keys = visible().page(JobFilter(), sort="job_key", limit=100).table.frame["job_key"].to_list()
    rows = small.latest(JOB_SUMMARIES).filter(pl.col("job_key") != keys[4])
    small.replace(JOB_SUMMARIES, small.files(JOB_SUMMARIES), [(None, rows)])
    analyzed(small, 200, [(100, "bob", 0.1, 0, [])])
    then = visible().page(JobFilter(), sort="job_key", limit=100, after=first.cursor)
    assert then.table.frame["job_key"].to_list() == [
        key for key in sorted([*keys, "c:100:1"]) if key > keys[4]
    ]


@pytest.mark.parametrize("cursor", ["x", "W10", "WzEsMiwzXQ", "WyJhIiwxXQ", "WyJhIiwiYiJd"])
def test_what_is_no_cursor_is_an_error(small: Lake, cursor: str) -> None:
    visible = extended(small, NO_JOBS, small.files(JOB_SUMMARIES), small.files(FINDINGS))
    with pytest.raises(UsageError, match="invalid cursor"):
        visible.page(JobFilter(), sort="gpus", after=cursor)


ADMIN = Viewer("root", Role.ADMIN)


def imaged(lake: Lake, cache: Path, *, most_rows: int = 4) -> ServedLake:
    """Return a server that has written an image, while which it is not ready."""
    served = ServedLake(lake, Configuration(), cache=cache, most_rows=most_rows)
    with pytest.raises(NotReadyError, match="the jobs are being read: "):
        served.view(ADMIN)
    served.images.join()
    served.refresh()
    return served


def test_a_large_lake_is_read_beside_and_found_again(small: Lake, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    served = imaged(small, cache)
    assert len(served.view(ADMIN).jobs) == 12
    assert served.snapshot.jobs.added == 0
    (image,) = cache.glob("*/jobs-*")
    assert (image.parent.stat().st_mode & 0o777) == 0o700
    again = ServedLake(small, Configuration(), cache=cache, most_rows=4)
    assert len(again.view(ADMIN).jobs) == 12  # at once
    analyzed(small, 200, [(1, "bob", 0.1, 0, []), (50, "bob", 0.1, 0, [])])
    assert again.refresh()
    assert len(again.view(ADMIN).jobs) == 13
    assert again.snapshot.jobs.added == 2


def test_a_damaged_image_is_made_again(small: Lake, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    images = JobImages(small, cache)
    folder = cache / images.name
    folder.mkdir(parents=True, mode=0o700)
    for damage in ("gone", "part", "manifest"):
        write_beside(small, folder, lambda _: None)
        (image,) = folder.glob("jobs-*")
        match damage:
            case "gone":
                (image / "003.arrow").unlink()
            case "part":
                (image / "003.arrow").write_bytes((image / "003.arrow").read_bytes()[:100])
            case "manifest":
                (image / "manifest.json").write_bytes(b"{")
        assert images.open() is NO_JOBS, damage
    (folder / "writing-999999999-x").mkdir()  # of a killed server
    assert len(imaged(small, cache).view(ADMIN).jobs) == 12
    assert sorted(path.name[:5] for path in folder.iterdir()) == ["jobs-", "write"]
    assert [path.name for path in folder.glob("write*")] == ["writer.lock"]


def test_of_two_writers_one_writes_and_the_other_waits_for_its_image(
    small: Lake, tmp_path: Path
) -> None:
    """As of a server and its worker, which both begin with an empty cache."""
    began, goes_on = threading.Event(), threading.Event()
    reports: list[str] = []

    def first_reports(_: float) -> None:
        reports.append("first")
        began.set()
        goes_on.wait(60)

    first = threading.Thread(target=write_beside, args=(small, tmp_path, first_reports))
    second = threading.Thread(
        target=write_beside, args=(small, tmp_path, lambda _: reports.append("second"))
    )
    first.start()
    assert began.wait(60)
    second.start()
    second.join(0.5)  # it waits; without the lock it is through
    goes_on.set()
    first.join(60)
    second.join(60)
    assert set(reports) == {"first"}
    assert len(list(tmp_path.glob("jobs-*"))) == 1
    assert list(tmp_path.glob("writing-*")) == []


def test_a_server_that_ends_while_an_image_is_written_leaves_no_part_of_it(
    small: Lake, tmp_path: Path
) -> None:
    served = ServedLake(small, Configuration(), cache=tmp_path, most_rows=4)
    folder = tmp_path / served.images.name
    folder.mkdir(mode=0o700)
    with (folder / "writer.lock").open("w") as lock:  # its writer waits
        fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(NotReadyError):
            served.refresh()
        until(lambda: served.images.writer)
        assert served.images.writer is not None
        (folder / f"writing-{served.images.writer.pid}-x").mkdir()
        served.close()
    assert not served.images.is_writing
    assert [path.name for path in folder.iterdir()] == ["writer.lock"]


@pytest.mark.parametrize("most_rows", [4, 1000])
def test_a_forgotten_name_is_in_no_row_and_no_image_of_a_server(
    small: Lake, tmp_path: Path, most_rows: int
) -> None:
    cache = tmp_path / "cache"
    served = ServedLake(small, Configuration(), cache=cache, most_rows=most_rows)
    if most_rows == 4:
        served = imaged(small, cache)
    served.refresh()
    assert served.view(ADMIN).jobs.rows(["user"])["user"].eq("ann").any()
    forget(small, "ann", "user-x")
    with suppress(NotReadyError):
        served.refresh()
    served.images.join()
    assert served.refresh() or most_rows == 1000
    assert set(served.view(ADMIN).jobs.rows(["user"])["user"]) & {"ann", "user-x"} == {"user-x"}
    images = list(cache.glob("*/jobs-*"))
    assert len(images) == (1 if most_rows == 4 else 0)
    again = ServedLake(small, Configuration(), cache=cache, most_rows=most_rows)
    assert "ann" not in set(again.view(ADMIN).jobs.rows(["user"])["user"])


def test_a_folder_that_others_read_is_not_used(small: Lake, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    served = ServedLake(small, Configuration(), cache=cache, most_rows=4)
    (cache / served.images.name).mkdir(parents=True)
    (cache / served.images.name).chmod(0o755)
    with pytest.raises(NotReadyError):
        served.refresh()
    served.images.join()
    assert len(served.view(ADMIN).jobs) == 12
    assert not list(cache.glob("*/*"))


def test_jobs_are_held_in_memory_where_no_folder_can_be_written(
    small: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = tmp_path / "file"
    nowhere.write_text("in the way", encoding="utf-8")
    monkeypatch.setattr("tempfile.tempdir", str(nowhere))
    served = imaged(small, nowhere, most_rows=1)
    served.images.join()
    view = served.view(Viewer("ann", Role.ADMIN))
    assert len(view.jobs) == 12
    assert "no writable, private folder" in view.image_problem
    assert status.content(view, status.PARAMETERS())["image_problem"] == view.image_problem


def test_a_program_waits_for_the_jobs_of_a_large_lake(small: Lake, tmp_path: Path) -> None:
    served = ServedLake(small, Configuration(), cache=tmp_path / "cache", most_rows=4)
    served.wait(0.0)
    with pytest.raises(NotReadyError) as early:
        served.view(ADMIN)
    assert early.value.do == "ask again in a few seconds"
    served.wait(600.0)
    assert len(served.view(ADMIN).jobs) == 12
