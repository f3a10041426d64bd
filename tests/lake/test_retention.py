"""Rows that are old enough go once all is computed from them; what was computed stays as it is."""

from __future__ import annotations

import re
import shutil
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madelake import fill, held, job, make_lake, summarized, utc
from tachograph.annexes.share.nsight.launches import NcuReport
from tachograph.annexes.share.profiles import AttachedProfile, attach_profiles, read_profiles
from tachograph.catalog.config import Configuration, RetentionOptions, StudyFilters, load
from tachograph.catalog.errors import ConfigError, LakeError
from tachograph.catalog.tables import (
    ALL_TABLES,
    ALLOCATIONS,
    ANALYSES,
    DEVICES,
    FINDINGS,
    GPU_SAMPLES,
    JOB_GPUS,
    JOB_MINUTES,
    JOB_NODES,
    JOB_SUMMARIES,
    JOBS,
    LABELS,
    PROFILES,
    REJECTS,
    STEP_SUMMARIES,
)
from tachograph.judge.job_judge import JobJudge
from tachograph.lake.compact import compact
from tachograph.lake.delta import Lake
from tachograph.lake.labels import write_label
from tachograph.lake.problems import lake_errors
from tachograph.lake.query import read_findings, read_gpus, read_minutes, read_summaries
from tachograph.lake.retention import EXPIRING, Expiry, expire, removed_before, rows_that_count
from tachograph.pipeline.run import analyze

DAYS = 6  # of April, a job on each of two nodes a day, the second from noon to noon of the next day
END = utc(DAYS + 1, 18)
Results = dict[str, list[tuple[Any, ...]]]


def samples_of(
    node: str, start: datetime, end: datetime, *, every_s: int = 600
) -> list[dict[str, Any]]:
    """Return samples of two GPUs of a node."""
    count = int((end - start).total_seconds()) // every_s
    return [
        {
            "t": start + timedelta(seconds=every_s * place),
            "node": node,
            "gpu": gpu,
            "gpu_util": (place + gpu) % 10 / 10,
            "power_w": 100.0 + place % 7,
        }
        for place in range(count)
        for gpu in (0, 1)
    ]


_TEMPLATES: dict[tuple[bool, bool], Path] = {}  # lakes to be copied: an analysis takes seconds


def days_of_jobs(folder: Path, *, running: bool = False, analyzed: bool = True) -> Lake:
    """Return a lake of six days; `running`: one on a third node does not end."""
    template = _TEMPLATES.get((running, analyzed))
    if template is None:
        template = folder.with_name(f"{folder.name}-template")
        fill_days(template, running=running, analyzed=analyzed)
        _TEMPLATES[running, analyzed] = template
    shutil.copytree(template, folder, dirs_exist_ok=True)
    return Lake.open(str(folder))


def fill_days(folder: Path, *, running: bool, analyzed: bool) -> None:
    lake = Lake.create(str(folder))
    jobs, maps, samples = [], [], []
    for day in range(1, DAYS + 1):
        spans = {"n1": (utc(day, 1), utc(day, 20)), "n2": (utc(day, 12), utc(day + 1, 12))}
        for node, (start, end) in spans.items():
            name = f"{day}{node[1]}"
            jobs.append(job(name, start, end, cluster="c", user="ann", gpus=2, node_list=node))
            maps += held(name, node, (0, 1), start, end, cluster="c")
            samples += samples_of(node, start, end)
    if running:
        jobs.append(never_ending())
        maps += held("99", "n3", (0, 1), utc(1, 12), cluster="c")
        samples += samples_of("n3", utc(1, 12), END)
    fill(lake, {"jobs": jobs, "allocations": maps, "gpu_samples": samples}, now=END)
    if analyzed:
        summarized(lake, now=END)


def results(lake: Lake, *, minutes: bool = False) -> Results:
    """Return what readers see of computed tables, without `seq`."""
    summaries = read_summaries(lake)
    frames = {
        "summaries": summaries,
        "gpus": read_gpus(lake, summaries),
        "findings": read_findings(lake, summaries),
    }
    if minutes:
        frames["minutes"] = read_minutes(lake, summaries)
    return {
        name: frame.drop("seq").sort(frame.columns[:4]).rows() for name, frame in frames.items()
    }


def by_table(done: list[Expiry]) -> dict[str, Expiry]:
    return {expiry.table: expiry for expiry in done}


def reasons(done: Expiry) -> list[str]:
    return [rows.why for rows in done.kept_back]


def samples_before(lake: Lake, day: int) -> pl.DataFrame:
    return lake.scan(GPU_SAMPLES).filter(pl.col("t") < utc(day)).collect()


def never_ending(end: datetime | None = None) -> dict[str, Any]:
    """The job on the third node, which ends at last."""
    held_node = {"cluster": "c", "user": "ann", "gpus": 2, "node_list": "n3"}
    return job("99", utc(1, 12), end, submit=utc(1, 12), **held_node)


# With it every job is analyzed anew.
CHANGED = Configuration(filters=StudyFilters(min_elapsed_s=60.0))


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 10)
@given(samples=st.integers(1, 8), more=st.integers(0, 5), again=st.booleans())
def test_whatever_is_removed_summaries_gpus_and_findings_stay(
    tmp_path_factory: pytest.TempPathFactory, samples: int, more: int, again: bool
) -> None:
    lake = days_of_jobs(tmp_path_factory.mktemp("lake"))
    before = results(lake)
    expire(lake, {"gpu_samples": samples, "job_minutes": samples + more}, now=END)
    assert results(lake) == before
    if again:  # a change of options analyzes all jobs that still have their samples
        summarized(lake, CHANGED, now=END)
        assert {row[0] for row in results(lake)["summaries"]} == {
            row[0] for row in before["summaries"]
        }
        numbers = (
            read_summaries(lake).select("gpu_hours", "samples", "power_w_mean", "energy_j").sum()
        )
        whole = days_of_jobs(tmp_path_factory.mktemp("whole"))
        assert numbers.equals(read_summaries(whole).select(numbers.columns).sum(), null_equal=True)
    oldest = (END - timedelta(days=samples)).date()
    assert all(day >= oldest for day in lake.days(GPU_SAMPLES))


def test_days_before_go_and_later_ones_stay(tmp_path: Path) -> None:
    lake = days_of_jobs(tmp_path / "lake")
    rows = samples_before(lake, 4).height
    (done,) = expire(lake, {"gpu_samples": 3}, now=END)
    assert (done.rows, done.days, done.first, done.last) == (
        rows,
        3,
        date(2026, 4, 1),
        date(2026, 4, 3),
    )
    assert done.bytes > 0
    assert done.kept_back == ()
    assert lake.days(GPU_SAMPLES)[0] == date(2026, 4, 4)
    assert removed_before(lake, GPU_SAMPLES) == utc(4)
    assert expire(lake, {"gpu_samples": 3}, now=END)[0].rows == 0


def test_nothing_is_removed_that_no_analysis_has_read(tmp_path: Path) -> None:
    lake = days_of_jobs(tmp_path / "lake", analyzed=False)
    rows = lake.scan(GPU_SAMPLES).collect().height
    (done,) = expire(lake, {"gpu_samples": 1}, now=END)
    (rows_kept,) = done.kept_back
    assert (done.rows, rows_kept.why) == (0, "not analyzed yet")
    assert rows_kept.rows == samples_before(lake, 6).height
    assert lake.scan(GPU_SAMPLES).collect().height == rows


def test_samples_that_came_late_keep_their_day_and_those_after_it(tmp_path: Path) -> None:
    lake = days_of_jobs(tmp_path / "lake")
    late = samples_of("n1", utc(3, 20), utc(3, 22))
    fill(lake, {"gpu_samples": late}, chunk="late", now=END)
    (done,) = expire(lake, {"gpu_samples": 1}, now=END)
    assert done.last == date(2026, 4, 2)
    assert [(one.why, one.first) for one in done.kept_back] == [
        ("not analyzed yet", date(2026, 4, 3))
    ]
    summarized(lake, now=END)
    (done,) = expire(lake, {"gpu_samples": 1}, now=END)
    assert (done.first, done.kept_back) == (date(2026, 4, 3), ())


def test_a_day_without_accounting_stays(tmp_path: Path) -> None:
    lake = days_of_jobs(tmp_path / "lake")
    fill(lake, {"gpu_samples": samples_of("n1", utc(12), utc(13))}, chunk="later", now=utc(20))
    summarized(lake, now=utc(20))
    (done,) = expire(lake, {"gpu_samples": 2}, now=utc(20))
    assert done.last == date(2026, 4, 6)
    assert reasons(done) == ["there is no accounting of that day yet"]


def test_samples_of_a_node_stay_while_a_job_on_it_is_not_over(tmp_path: Path) -> None:
    lake = days_of_jobs(tmp_path / "lake", running=True)
    never = days_of_jobs(tmp_path / "never", running=True)
    (done,) = expire(lake, {"gpu_samples": 1}, now=END)
    assert done.rows > 0
    (why,) = done.kept_back
    assert (why.why, why.example) == (
        "jobs of the day have not ended, or are not analyzed",
        "job 99",
    )
    assert samples_before(lake, 6)["node"].unique().to_list() == ["n3"]
    assert expire(lake, {"gpu_samples": 1}, now=END)[0].rows == 0
    # It ends: all its samples are there, so its summary is that of a lake that kept all.
    for either in (lake, never):
        fill(either, {"jobs": [never_ending(END)]}, chunk="end", now=END)
        summarized(either, now=END)
    assert results(lake) == results(never)
    (done,) = expire(lake, {"gpu_samples": 1}, now=END)
    assert (done.kept_back, lake.days(GPU_SAMPLES)[0]) == ((), (END - timedelta(days=1)).date())


def test_minutes_of_jobs_that_are_not_over_stay(tmp_path: Path) -> None:
    lake = days_of_jobs(tmp_path / "lake", running=True)
    done = by_table(expire(lake, {"gpu_samples": 1, "job_minutes": 1}, now=END))["job_minutes"]
    assert [(one.why, one.example) for one in done.kept_back] == [
        ("their jobs have not ended", "job 99")
    ]
    assert lake.scan(JOB_MINUTES).filter(pl.col("t") < utc(6)).collect()[
        "job_id"
    ].unique().to_list() == ["99"]


def test_a_dry_run_writes_nothing_and_is_right(tmp_path: Path) -> None:
    lake = days_of_jobs(tmp_path / "lake")
    write_label(
        lake, read_summaries(lake)["job_key"][0], "11", "job_hang", holds=True, by="ben", at=END
    )
    keep = {"gpu_samples": 2, "job_minutes": 3, "jobs": 3, "job_summaries": 3}
    versions = {table.name: lake.version(table) for table in ALL_TABLES}
    would = expire(lake, keep, now=END, dry_run=True)
    assert {table.name: lake.version(table) for table in ALL_TABLES} == versions
    assert expire(lake, keep, now=END) == would
    assert {one.table for one in would if one.rows} == {
        *("gpu_samples", "job_minutes", "allocations", "jobs", "labels", "job_summaries")
    }


def test_accounting_goes_behind_its_samples_and_summaries_stay(tmp_path: Path) -> None:
    lake = days_of_jobs(tmp_path / "lake")
    before = results(lake)
    done = by_table(expire(lake, {"gpu_samples": 3, "jobs": 3}, now=END))
    # The one that ended on the day of which samples are there stays.
    assert done["jobs"].rows == 6 - 1
    assert (done["jobs"].kept_back, done["allocations"].rows) == ((), 5 * 2)
    assert "32" in lake.latest(JOBS)["job_id"].to_list()
    assert lake.latest(JOBS)["end"].min() == utc(4, 12)
    assert lake.latest(ALLOCATIONS)["end"].min() == utc(4, 12)
    summarized(lake, CHANGED, now=END)
    keys = {row[0] for row in results(lake)["summaries"]}
    assert keys == {row[0] for row in before["summaries"]}
    columns = ["gpu_hours", "samples", "energy_j"]
    assert read_summaries(lake)["samples"].sum() == sum(
        row[list(JOB_SUMMARIES.schema).index("samples")] for row in before["summaries"]
    )
    assert read_summaries(lake).select(columns).null_count().sum_horizontal().item() == 0


def test_accounting_stays_while_samples_are_there(tmp_path: Path) -> None:
    lake = days_of_jobs(tmp_path / "lake")
    fill(lake, {"gpu_samples": samples_of("n1", utc(1, 21), utc(1, 22))}, chunk="late", now=END)
    done = by_table(expire(lake, {"gpu_samples": 1, "jobs": 1}, now=END))
    assert done["jobs"].rows == 0
    assert reasons(done["jobs"]) == ["not over, not analyzed, or their samples are still there"]


def test_summaries_go_last_and_all_that_belongs_to_them(tmp_path: Path) -> None:
    lake = days_of_jobs(tmp_path / "lake")
    first = read_summaries(lake).sort("start")["job_key"][0]
    write_label(lake, first, "11", "job_hang", holds=True, by="ben", at=END)
    attach_profiles(
        lake, first, "11", [AttachedProfile(NcuReport("a.csv", (), digest="d"), 0, END)]
    )
    done = by_table(expire(lake, {"job_summaries": 3}, now=END))
    assert done["job_summaries"].rows == 0
    assert done["job_summaries"].kept_back[0].why.startswith("their accounting is still kept")
    assert read_profiles(lake)["job_key"].to_list() == [first]
    keep = {"gpu_samples": 3, "job_minutes": 3, "jobs": 3, "job_summaries": 3}
    expire(lake, keep, now=END)
    later = datetime.now(END.tzinfo) + timedelta(days=2)
    compact(lake, ALL_TABLES, counting=rows_that_count(lake, later))
    summarized(lake, CHANGED, now=END)
    assert first not in read_summaries(lake)["job_key"].to_list()
    keys = set(read_summaries(lake)["job_key"])
    for table in (JOB_GPUS, FINDINGS, JOB_MINUTES, LABELS, PROFILES):
        assert set(lake.scan(table).collect()["job_key"]) <= keys, table.name


def test_readers_that_began_before_read_on(tmp_path: Path) -> None:
    lake = days_of_jobs(tmp_path / "lake")
    begun = lake.scan(GPU_SAMPLES)
    rows = begun.collect().height
    expire(lake, {"gpu_samples": 1}, now=END)
    compact(lake, ALL_TABLES, vacuum_hours=24)
    with lake_errors(lake.location):
        assert begun.collect().height == rows
    assert lake.scan(GPU_SAMPLES).collect().height < rows


def test_samples_removed_during_an_analysis_leave_results_as_they_were(tmp_path: Path) -> None:
    lake = days_of_jobs(tmp_path / "lake")
    before = results(lake)

    def removes(name: str, done: int, total: int) -> None:
        if done == 1:
            expire(lake, {"gpu_samples": 1}, now=END)

    with pytest.raises(LakeError, match="samples were removed while they were analyzed"):
        analyze(lake, CHANGED, judge=JobJudge, now=END, progress=removes)
    assert results(lake) == before


def test_every_table_expires_or_is_kept_for_a_reason() -> None:
    expiring = {table for tables in EXPIRING.values() for table in tables}
    # compaction drops rows without a summary
    with_summaries = {JOB_GPUS, JOB_NODES, STEP_SUMMARIES, FINDINGS}
    for_ever = {DEVICES, ANALYSES, REJECTS}  # an inventory; what was read; counts
    assert expiring | with_summaries | for_ever == set(ALL_TABLES)
    assert EXPIRING.keys() == RetentionOptions("1d", "1d", "1d", "1d").days.keys()


def test_what_polls_saw_goes_with_the_accounting(tmp_path: Path) -> None:
    state = {"node": "n1", "provenance": "poll", "state": "up", "gpus": 4}
    spans = [(utc(1), utc(2)), (utc(2), utc(3, 23)), (utc(3, 23), utc(4)), (utc(4), None)]
    states = [state | {"start": start, "end": end} for start, end in spans]
    waiting = [
        {"job_id": str(number), "start": start, "end": end or utc(5), "reason": "Resources"}
        for number, (start, end) in enumerate(spans)
    ]
    tables = {"node_states": states, "waiting_jobs": waiting}
    lake = make_lake(tmp_path / "lake", jobs=[], **tables)
    for dry_run in (True, False):
        before = utc(6) - timedelta(days=2)
        done = by_table(expire(lake, {"jobs": 2}, now=utc(6), dry_run=dry_run))
        assert (done["node_states"].rows, done["waiting_jobs"].rows) == (2, 2)
    for name in ("node_states", "waiting_jobs"):
        (table,) = (table for table in ALL_TABLES if table.name == name)
        left = lake.latest(table)
        assert left["start"].to_list() == [utc(3, 23), utc(4)]
        assert all(end is None or end >= before for end in left["end"])


def test_a_lake_without_any_rows_is_no_error(tmp_path: Path) -> None:
    lake = make_lake(tmp_path / "lake", jobs=[])
    assert all(one.rows == 0 for one in expire(lake, dict.fromkeys(EXPIRING, 1), now=END))


@pytest.mark.parametrize(
    ("retention", "message"),
    [
        (RetentionOptions(samples="soon"), "retention.samples: invalid time 'soon'"),
        (RetentionOptions(samples="0d"), "retention.samples: invalid time '0d'"),
        (
            RetentionOptions(samples="90d", minutes="60d"),
            "retention.minutes is 60 d, and samples is",
        ),
        (RetentionOptions(jobs="1y"), "retention.jobs is 365 d, and samples is kept indefinitely"),
    ],
)
def test_wrong_times_are_refused(tmp_path: Path, retention: RetentionOptions, message: str) -> None:
    lines = [f'{key} = "{value}"' for key, value in msgspec.structs.asdict(retention).items()]
    file = tmp_path / "tachograph.toml"
    file.write_text("\n".join(["[retention]", *lines]) + "\n")
    with pytest.raises(ConfigError, match=re.escape(message)):
        load(str(file), {})


def test_times_are_days_weeks_and_years() -> None:
    days = RetentionOptions(samples=" 2 w", minutes="90d", results="2y").days
    expected = {"gpu_samples": 14, "node_samples": 14, "job_minutes": 90, "job_summaries": 730}
    assert {table: days[table] for table in expected} == expected
    assert days.keys() == EXPIRING.keys() - {"jobs"}
