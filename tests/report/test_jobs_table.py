from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from jobframes import START, frame, measured, summary
from tachograph.catalog.columns import COLUMN_UNITS
from tachograph.catalog.errors import NotFoundError, UsageError
from tachograph.catalog.rows import JobSummaryRow
from tachograph.catalog.tables import FINDINGS, JOB_SUMMARIES
from tachograph.judge.finding import Finding, findings_frame
from tachograph.lake.filters import JobFilter, choose_job, filter_jobs, lost_hours, parse_condition
from tachograph.report.jobs import (
    WORST_SORT,
    JobsTable,
    build_jobs_table,
    jobs_csv,
    jobs_json,
    jobs_lines,
    write_jobs_parquet,
)
from tachograph.report.lines import to_text

NUMERIC = {
    name: COLUMN_UNITS[name] for name, kind in JOB_SUMMARIES.schema.items() if kind.is_numeric()
}


def _job(number: int, **given: Any) -> JobSummaryRow:
    start = START + timedelta(hours=number)
    return summary(
        **{
            "job_key": f"c:{number}:{number}", "job_id": str(number), "display_id": str(number), "start": start,
            "end": start + timedelta(hours=2), "submit": start,
        }
        | given
    )  # fmt: skip


ROWS = [
    _job(
        1,
        user="alice",
        partition="gpu",
        gpu_util_mean=0.05,
        bound="memory",
        hbm_peak_fraction=0.5,
        energy_j=7.2e6,
    ),
    _job(
        2,
        user="bob",
        partition="debug",
        state="FAILED",
        gpu_util_mean=0.95,
        pipes=["fp64", "tensor"],
        gpus=8,
    ),
    _job(
        3,
        user="alice",
        partition="gpu",
        gpu_util_mean=None,
        attribution="ambiguous",
        elapsed_s=100.0,
    ),
    _job(
        4,
        user="carol",
        account="x",
        gpu_util_mean=0.5,
        state="RUNNING",
        end=None,
        as_of=START + timedelta(hours=6),
        excluded="short",
    ),
]
JOBS = frame(JOB_SUMMARIES, ROWS)
FOUND = findings_frame(
    [
        (
            ROWS[0],
            (Finding("memory_bound", "hint", "t", "s."), Finding("stall", "problem", "t", "s.")),
        ),
        (
            ROWS[1],
            (
                Finding("stable", "fact", "t", "s."),
                Finding("stall", "problem", "t", "s.", verdict="no"),
                Finding("site_rule", "hint", "t", "s.", verdict="unknown", needs=("sm_occupancy",)),
            ),
        ),
        (ROWS[2], (Finding("short_job", "hint", "t", "s."),)),
    ]
)


COLUMNS = set(JOB_SUMMARIES.schema) - {"seq"} | {"findings", "worst_severity", "gpu_hours_lost"}


def jobs_text(table: JobsTable, width: int = 80, *, ascii_only: bool = False) -> str:
    return to_text(jobs_lines(table, width=width, ascii_only=ascii_only), ascii_only=ascii_only)


def _ids(rows: pl.DataFrame) -> list[str]:
    return rows["job_id"].to_list()


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        (JobFilter(), ["1", "2", "3", "4"]),
        (JobFilter(users=("alice", "bob")), ["1", "2", "3"]),
        (JobFilter(accounts=("x",)), ["4"]),
        (JobFilter(partitions=("gpu",), states=("completed",)), ["1", "3"]),
        (JobFilter(attributions=("ambiguous",)), ["3"]),
        (JobFilter(findings=("stall", "short_job")), ["1", "3"]),
        (JobFilter(findings=("stall",)), ["1"]),
        (JobFilter(findings=("stall", "short_job"), verdict="no"), ["2"]),
        (JobFilter(findings=("stable",)), ["2"]),  # a fact is chosen where it is requested
        (JobFilter(findings=("site_rule",), verdict="unknown"), ["2"]),
        (JobFilter(findings=("site_rule",)), []),
        (JobFilter(excluded=True), ["4"]),
        (JobFilter(excluded=False), ["1", "2", "3"]),
        (JobFilter(since=START + timedelta(hours=4, minutes=30)), ["3", "4"]),
        # the running job 4 was seen up to two hours after its start; it runs on for at most a day
        (JobFilter(since=START + timedelta(hours=29, minutes=59)), ["4"]),
        (JobFilter(since=START + timedelta(hours=30)), []),
        (JobFilter(until=START + timedelta(hours=2)), ["1"]),
        (JobFilter(since=START + timedelta(hours=3), until=START + timedelta(hours=3)), ["2"]),
    ],
)
def test_filters(wanted: JobFilter, ids: list[str]) -> None:
    assert _ids(filter_jobs(JOBS, FOUND, wanted)) == ids


@pytest.mark.parametrize(
    ("written", "ids"),
    [
        ("gpu_util_mean<0.1", ["1"]),
        ("gpu_util_mean >= 50%", ["2", "4"]),
        ("gpu_util_mean!=0.95", ["1", "4"]),  # null meets nothing
        ("elapsed_s>=2h", ["1", "2", "4"]),
        ("gpus=8", ["2"]),
        ("user~ALI", ["1", "3"]),
        ("user!=alice", ["2", "4"]),
        ("bound = memory", ["1"]),
        ("pipes=tensor", ["2"]),
        ("state==FAILED", ["2"]),
    ],
)
def test_conditions(written: str, ids: list[str]) -> None:
    assert _ids(filter_jobs(JOBS, FOUND, JobFilter(where=(parse_condition(written),)))) == ids


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("gpu_util_mean", "invalid condition"),
        ("gpu_util_mean<", "invalid condition"),
        ("gpu_util_mean<many", "invalid value for gpu_util_mean (fraction): 'many'"),
        ("gpu_util_mean<nan", "invalid value for gpu_util_mean (fraction): 'nan'"),
        (
            "gpu_util_mean>-0.1",
            "invalid value for gpu_util_mean (fraction): '-0.1'; it is 0 or more",
        ),
        ("cpu_efficiency>1.5", "1.5 % or 150 %?; write 1.5% or 0.015, or 150%"),
        ("elapsed_s>inf", "invalid value for elapsed_s (s): 'inf'"),
        ("gpus<50%", "invalid value for gpus (count): '50%'"),
        ("gpu_util_mean~0.1", "'~' is for text"),
        ("user<alice", "is text"),
        ("start>2026-01-01", "use since and until"),
        ("intensity_histogram=1", "cannot be compared"),
        ("findings=stall", "findings cannot be compared here; use finding"),
        ("gpu_util_mean<10", "is a fraction: 10 % or 1000 %?; write 10% or 0.1"),
        ("gpu_util_mean<1.01", "is a fraction: 1.01 % or 101 %?; write 1.01% or 0.0101"),
        ("spatial_imbalance>=50", "is a fraction: 50 % or 5000 %?; write 50% or 0.5"),
    ],
)
def test_wrong_conditions_name_the_error(written: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        parse_condition(written)


@given(st.sampled_from(sorted(NUMERIC)), st.floats(0, 5), st.booleans())
def test_a_fraction_is_at_most_one_or_has_a_percent_sign(
    name: str, value: float, percent: bool
) -> None:
    is_share = NUMERIC[name] in ("fraction", "ratio")
    written = f"{name}<{value * 100!r}%" if percent and is_share else f"{name}<{value!r}"
    if is_share and not percent and value > 1:
        with pytest.raises(UsageError, match="is a fraction"):
            parse_condition(written)
        return
    condition = parse_condition(written)
    assert condition.value == pytest.approx(value)
    # What a page shows of a condition can be given again.
    assert parse_condition(str(condition)).value == pytest.approx(value, rel=1e-5)


def test_unknown_names_suggest_close_ones() -> None:
    with pytest.raises(NotFoundError, match="no column 'gpu_utl_mean'; did you mean gpu_util_mean"):
        parse_condition("gpu_utl_mean<1")
    with pytest.raises(NotFoundError, match="no column 'enrgy_j'; did you mean energy_j"):
        build_jobs_table(JOBS, FOUND, columns=["enrgy_j"])
    with pytest.raises(NotFoundError, match="no column 'GPU use'; did you mean gpu_util_mean"):
        parse_condition("GPU use<10%")
    with pytest.raises(NotFoundError, match="no column 'usr'; did you mean user"):
        build_jobs_table(JOBS, FOUND, sort="-usr")


def test_a_list_that_is_cut_says_so_and_where_all_are() -> None:
    with pytest.raises(NotFoundError) as raised:
        build_jobs_table(JOBS, FOUND, columns=["help"])
    columns = COLUMNS
    assert "for example: display_id, name, " in str(raised.value)
    assert f", and {len(columns) - 8} more: docs/tables.md" in str(raised.value)
    with pytest.raises(
        NotFoundError, match=r"for example: \w+, .*, and \d+ more: docs/job-report.md$"
    ):
        filter_jobs(JOBS, FOUND, JobFilter(findings=("nosuch",)))


def test_findings_of_the_program_and_of_the_lake_are_known() -> None:
    for name, close in (
        ("stalll", "stall"),
        ("site_rul", "site_rule"),
        ("low_utilization", "low_utilisation"),
    ):
        with pytest.raises(NotFoundError, match=f"no finding '{name}'; did you mean .*{close}"):
            filter_jobs(JOBS, FOUND, JobFilter(findings=(name,)))
    with pytest.raises(UsageError, match="no verdict 'unknow'; did you mean unknown"):
        filter_jobs(JOBS, FOUND, JobFilter(findings=("stall",), verdict="unknow"))
    with pytest.raises(UsageError, match="verdict 'no' is given without a finding; name one"):
        filter_jobs(JOBS, FOUND, JobFilter(verdict="no"))


def test_states_of_any_source_are_known() -> None:
    """Those of workload managers always, other words where a job has them."""
    jobs = JOBS.with_columns(state=pl.Series(["EXIT", "COMPLETED", "FINALIZED", "FAILED"]))
    for state, count in (("exit", 1), ("DONE", 0), ("signaling", 0), ("finalized", 1)):
        assert filter_jobs(jobs, FOUND, JobFilter(states=(state,))).height == count
    with pytest.raises(UsageError, match="no state 'FINALISED'; did you mean FINALIZED"):
        filter_jobs(jobs, FOUND, JobFilter(states=("finalised",)))
    with pytest.raises(UsageError, match="no state 'FINALIZED'"):
        filter_jobs(JOBS, FOUND, JobFilter(states=("finalized",)))


def test_rows_of_lakes_without_verdicts_hold() -> None:
    earlier = FOUND.filter(pl.col("severity") != "fact").with_columns(
        pl.lit(None, pl.String).alias("verdict")
    )
    assert _ids(filter_jobs(JOBS, earlier, JobFilter(findings=("stall",)))) == ["1", "2"]
    assert build_jobs_table(JOBS, earlier, sort="job_id").frame["findings"].to_list()[0] == [
        "stall",
        "memory_bound",
    ]


def test_the_table_shows_neither_facts_nor_what_does_not_hold() -> None:
    found = build_jobs_table(JOBS, FOUND, sort="job_id").frame["findings"].to_list()
    assert found == [["stall", "memory_bound"], [], ["short_job"], []]


def test_sorting_puts_the_unknown_last_both_ways() -> None:
    assert _ids(build_jobs_table(JOBS, FOUND, sort="gpu_util_mean").frame) == ["1", "4", "2", "3"]
    assert _ids(build_jobs_table(JOBS, FOUND, sort="-gpu_util_mean").frame) == ["2", "4", "1", "3"]
    assert _ids(build_jobs_table(JOBS, FOUND, sort="-findings").frame)[0] == "1"
    assert _ids(build_jobs_table(JOBS, FOUND).frame) == ["4", "3", "2", "1"]


def test_limit_says_how_many_matched() -> None:
    table = build_jobs_table(JOBS, FOUND, limit=2)
    assert (table.frame.height, table.matching) == (2, 4)
    assert "2 of 4 jobs" in jobs_text(table)


def test_table_text_snapshot(snapshot: SnapshotAssertion) -> None:
    assert jobs_text(build_jobs_table(JOBS, FOUND), width=170) == snapshot


@pytest.mark.parametrize("width", [80, 100, 170])
def test_table_fits_and_says_what_it_left_out(width: int) -> None:
    drawn = jobs_text(build_jobs_table(JOBS, FOUND), width=width)
    assert max(map(len, drawn.splitlines())) <= width
    assert ("hidden columns" in drawn) is (width < 170)
    for title in ("SI", "TI"):
        assert (f"{title}: imbalance" in drawn) is (title in drawn.splitlines()[0].split())
    assert "stall memory" in drawn  # most urgent first
    assert jobs_text(build_jobs_table(JOBS, FOUND), width=width, ascii_only=True).isascii()


@pytest.mark.parametrize(("width", "hidden"), [(80, {"start", "worst"}), (100, {"start"})])
def test_name_and_state_stay_longer_than_start_and_severity(width: int, hidden: set[str]) -> None:
    titles = jobs_text(build_jobs_table(JOBS, FOUND), width=width).splitlines()[0].split()
    assert {"name", "user", "worst", "start", "state"} - set(titles) == hidden


@pytest.mark.parametrize(
    ("state", "code"), [("OUT_OF_MEMORY", "OOM"), ("COMPLETED", "CD"), ("ANOTHER", "ANOTHER")]
)
def test_at_80_columns_the_state_stays_and_bars_go(state: str, code: str) -> None:
    """Ids, names and elapsed times are as long as those of large sites."""
    jobs = [
        _job(1, display_id="12345678_1", name="a_long_job_name", user="maximilian", state=state)
        | {"elapsed_s": 360000.0, "gpu_util_mean": 0.5}
    ]
    table = build_jobs_table(frame(JOB_SUMMARIES, jobs), FOUND)
    drawn = jobs_text(table, width=80)
    assert max(map(len, drawn.splitlines())) <= 80
    titles, row, *_ = drawn.splitlines()
    assert row[titles.index("ST") :].split()[0] == code
    assert "█" not in drawn
    assert state in jobs_text(table, width=200)
    assert "█" in jobs_text(table, width=200)


def test_the_jobs_of_a_user_come_first_and_the_table_says_so() -> None:
    own = build_jobs_table(JOBS, FOUND, first_user="alice")
    assert _ids(own.frame) == ["3", "1", "4", "2"]
    assert "jobs of alice first, newest first" in jobs_text(own)
    assert _ids(build_jobs_table(JOBS, FOUND, first_user="alice", limit=3).frame) == ["3", "1", "4"]
    other = build_jobs_table(JOBS, FOUND, first_user="dave")
    assert _ids(other.frame) == ["4", "3", "2", "1"]
    assert "first" not in jobs_text(other)


def test_the_name_of_the_first_user_does_not_steer_the_terminal() -> None:
    jobs = frame(JOB_SUMMARIES, [_job(1, user="a\x1b[2Jb")])
    assert "jobs of a\\x1b[2Jb first" in jobs_text(
        build_jobs_table(jobs, FOUND, first_user="a\x1b[2Jb")
    )


@pytest.mark.parametrize("width", [20, 80, 200])
def test_the_id_of_a_job_is_never_cut(width: int) -> None:
    recorded = "local-20261122-003730-3738"
    jobs = frame(
        JOB_SUMMARIES, [_job(1, job_id=recorded, display_id=None, user="alexandria"), _job(2)]
    )
    lines = jobs_text(build_jobs_table(jobs, FOUND), width=width).splitlines()
    assert lines[2].startswith(recorded)
    assert width < 80 or max(map(len, lines[:3])) <= width


def test_chosen_columns_are_all_shown() -> None:
    table = build_jobs_table(
        JOBS, FOUND, columns=["job_id", "start", "pipes", "hbm_peak_fraction"], sort="job_id"
    )
    lines = jobs_text(table, width=20).splitlines()
    assert lines[0].split() == ["raw", "id", "start", "pipes", "memory"]
    assert lines[2].split() == ["2", "2026-04-23", "19:00:00", "UTC", "fp64+tensor", "–"]


def _cells(written: str, title: str) -> list[str]:
    """The cells of a column that is aligned at its end."""
    lines = written.splitlines()
    end = lines[0].index(title) + len(title)
    return [line[:end].split()[-1] for line in lines[1:]]


def test_a_column_has_one_unit() -> None:
    rows = [
        _job(1, energy_j=7.2e6, elapsed_s=20040.0, hbm_used_mib_max=40960.0, gpu_hours=8.25),
        _job(2, energy_j=1.0e4, elapsed_s=59.0, hbm_used_mib_max=512.0, gpu_hours=0.02),
        _job(3, energy_j=5.0, elapsed_s=360000.0, hbm_used_mib_max=0.0, gpu_hours=0.0),
    ]
    names = ["job_id", "energy_j", "elapsed_s", "hbm_used_mib_max", "gpu_hours"]
    table = build_jobs_table(frame(JOB_SUMMARIES, rows), FOUND, columns=names, sort="job_id")
    written = jobs_text(table)
    assert _cells(written, "energy (kWh)") == ["2.00", "<0.01", "<0.01"]
    assert _cells(written, "elapsed") == ["5:34:00", "0:00:59", "100:00:00"]
    assert _cells(written, "hbm_used_mib_max (GiB)") == ["40.0", "0.5", "0.0"]
    assert _cells(written, "GPU-h") == ["8.2", "<0.1", "0.0"]


def test_worst_first_is_by_gpu_hours_lost_to_all_causes() -> None:
    lost = [
        {"gpu_hours_idle": 1.0, "gpu_hours_hung": 2.5},
        {},
        {"gpu_hours_never_used": 9.0, "gpu_hours_unmeasured": 50.0},
        {"gpu_hours_cold_start": 0.0, "gpu_hours_imbalance": 4.0, "gpu_hours_idle_long": 4.0},
    ]
    jobs = frame(
        JOB_SUMMARIES, [_job(number, **causes) for number, causes in enumerate(lost, start=1)]
    )
    table = build_jobs_table(jobs, FOUND, sort=WORST_SORT)
    assert _ids(table.frame) == ["3", "4", "1", "2"]
    assert table.frame["gpu_hours_lost"].to_list() == [9.0, 4.0, 3.5, None]
    assert _cells(jobs_text(table, width=200), "lost GPU-h") == ["9.0", "4.0", "3.5", "–", "even"]
    assert "energy" not in jobs_text(table, width=200)


def test_the_worst_severity_is_that_of_reported_findings() -> None:
    found = build_jobs_table(JOBS, FOUND, sort="job_id").frame["worst_severity"].to_list()
    assert found == ["problem", None, "hint", None]  # a fact, and what does not hold, is none


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        (JobFilter(findings=("stable",)), {"2": ["stable"]}),  # a fact
        (JobFilter(findings=("memory_bound",)), {"1": ["stall memory_bound"]}),
        (
            JobFilter(findings=("stall", "site_rule"), verdict="unknown"),
            {"2": ["site_rule: unknown"]},
        ),
        (JobFilter(findings=("stall",), verdict="no"), {"2": ["stall: no"]}),
    ],
)
def test_answers_that_selected_a_job_are_shown(
    wanted: JobFilter, shown: dict[str, list[str]]
) -> None:
    chosen = filter_jobs(JOBS, FOUND, wanted)
    table = build_jobs_table(chosen, FOUND, columns=["job_id", "findings"], wanted=wanted)
    lines = [line.split(maxsplit=1) for line in jobs_text(table).splitlines()[1:]]
    assert {job: rest for job, *rest in lines} == shown
    assert (
        jobs_json(table)[0]["findings"]
        == build_jobs_table(chosen, FOUND).frame["findings"].to_list()[0]
    )


def test_answers_that_selected_a_job_are_apart_from_its_reported_findings() -> None:
    undecided = [
        Finding(code, "hint", "t", "s.", verdict="unknown") for code in ("low_coverage", "job_hang")
    ]
    found = pl.concat([FOUND, findings_frame([(ROWS[0], undecided)])])
    wanted = JobFilter(findings=("job_hang", "low_coverage"), verdict="unknown")
    chosen = filter_jobs(JOBS, found, wanted)
    table = build_jobs_table(chosen, found, columns=["job_id", "findings"], wanted=wanted)
    row = jobs_text(table).splitlines()[1]
    assert row.split(maxsplit=1)[1] == (
        "job_hang: unknown, low_coverage: unknown; also stall memory_bound"
    )


def test_a_reported_finding_precedes_a_covered_one_that_selected_the_job() -> None:
    covered = Finding("low_utilisation", "hint", "t", "s.", covered_by="stall")
    found = pl.concat([FOUND, findings_frame([(ROWS[0], [covered])])])
    for names, shown in (
        (("low_utilisation", "stall"), "stall memory_bound; also low_utilisation"),
        (("low_utilisation",), "low_utilisation; also stall memory_bound"),
    ):
        wanted = JobFilter(findings=names)
        chosen = filter_jobs(JOBS, found, wanted).filter(job_key=ROWS[0]["job_key"])
        table = build_jobs_table(chosen, found, columns=["job_id", "findings"], wanted=wanted)
        assert jobs_text(table).splitlines()[1].split(maxsplit=1)[1] == shown


def test_no_job_matches() -> None:
    assert (
        jobs_text(build_jobs_table(JOB_SUMMARIES.empty(), FINDINGS.empty())) == "No job matches.\n"
    )


def test_json_is_a_list_of_contract_objects(snapshot: SnapshotAssertion) -> None:
    values = jobs_json(build_jobs_table(JOBS, FOUND, sort="job_id"))
    assert all(set(value) == COLUMNS for value in values)
    assert [value["findings"] for value in values] == [
        ["stall", "memory_bound"],
        [],
        ["short_job"],
        [],
    ]
    assert values[2]["gpu_util_mean"] is None
    assert json.dumps(measured(values[0]), allow_nan=False, indent=1) == snapshot


def test_csv_and_parquet_hold_the_same(snapshot: SnapshotAssertion) -> None:
    chosen = build_jobs_table(
        JOBS,
        FOUND,
        columns=["job_id", "start", "gpu_util_mean", "pipes", "findings"],
        sort="job_id",
    )
    written = jobs_csv(chosen)
    assert written == snapshot
    rows = list(csv.DictReader(io.StringIO(written)))
    assert rows[1]["pipes"] == "fp64+tensor"
    assert rows[2]["gpu_util_mean"] == ""
    target = io.BytesIO()
    write_jobs_parquet(chosen, target)
    target.seek(0)
    assert pl.read_parquet(target).equals(chosen.frame.select(chosen.columns))
    everything = next(csv.reader(io.StringIO(jobs_csv(build_jobs_table(JOBS, FOUND)))))
    assert set(everything) == COLUMNS


CHOICE = frame(
    JOB_SUMMARIES,
    [
        _job(10, submit=START),
        _job(10, submit=START + timedelta(hours=5), job_key="c:10:later"),
        _job(21, display_id="20_1", array_job_id="20"),
        _job(20, display_id="20_10", array_job_id="20"),
        _job(30, display_id="30+0", het_job_id="30"),
        _job(31, display_id="30+1", het_job_id="30"),
        _job(40, cluster="one", job_key="one:40:0"),
        _job(40, cluster="two", job_key="two:40:0"),
        _job(51, display_id=None),
    ],
)


@pytest.mark.parametrize(
    ("wanted", "job_key"),
    [
        ("10", "c:10:later"),
        ("10.batch", "c:10:later"),
        ("10.0", "c:10:later"),
        ("c:10:10", "c:10:10"),
        ("21", "c:21:21"),
        ("20_1", "c:21:21"),
        ("20_10", "c:20:20"),
        ("30+1", "c:31:31"),
        ("31", "c:31:31"),
        ("51", "c:51:51"),
    ],
)
def test_an_id_means_one_run(wanted: str, job_key: str) -> None:
    assert choose_job(CHOICE, wanted).row["job_key"] == job_key


def test_other_runs_are_listed_and_can_be_chosen() -> None:
    assert [row["job_key"] for row in choose_job(CHOICE, "10").other_runs] == ["c:10:10"]
    first = choose_job(CHOICE, "10", run=1)
    assert first.row["job_key"] == "c:10:10"
    assert [row["job_key"] for row in first.other_runs] == ["c:10:later"]
    with pytest.raises(UsageError, match="job 10 has 2 runs, not 3"):
        choose_job(CHOICE, "10", run=3)


def test_an_array_as_a_whole_names_its_tasks() -> None:
    with pytest.raises(NotFoundError, match="20 is an array; name one of its tasks: 20_1, 20_10"):
        choose_job(CHOICE, "20")
    with pytest.raises(
        NotFoundError, match=r"30 is a heterogeneous job; name one of its components: 30\+0, 30\+1"
    ):
        choose_job(CHOICE, "30")


def test_unknown_and_doubtful_ids() -> None:
    with pytest.raises(NotFoundError, match="no job '99'; `tachograph jobs` lists"):
        choose_job(CHOICE, "99")
    with pytest.raises(UsageError, match="exists on clusters one, two; name the cluster"):
        choose_job(CHOICE, "40")
    assert choose_job(CHOICE, "40", cluster="two").row["job_key"] == "two:40:0"
    with pytest.raises(NotFoundError, match="no job '40'"):
        choose_job(CHOICE, "40", cluster="three")


def test_a_job_of_another_cluster_is_named_with_the_cluster() -> None:
    with pytest.raises(NotFoundError, match="no job '100' of cluster 'nowhere'"):
        choose_job(pl.DataFrame([summary()], schema=JOB_SUMMARIES.schema), "100", cluster="nowhere")


MANY = build_jobs_table(
    frame(
        JOB_SUMMARIES,
        [
            _job(
                number,
                user="alice",
                name=f"train-{number}",
                partition="gpu",
                gpu_util_mean=0.5,
                state=("RUNNING", "COMPLETED", "OUT_OF_MEMORY")[number % 3],
            )
            for number in range(1, 50)
        ],
    ),
    FOUND.clear(),
    limit=40,
    matching=90,
)


@settings(max_examples=settings().max_examples // 4)
@given(st.integers(3, 60), st.integers(40, 220), st.integers(1, 40))
def test_a_table_of_a_terminal_fits_it(rows: int, width: int, count: int) -> None:
    """The first jobs stay, titles are the first line, and the last one names what is left out."""
    table = replace(MANY, frame=MANY.frame.head(count))
    lines = to_text(
        jobs_lines(table, width=width, ascii_only=False, rows=rows), ascii_only=False
    ).splitlines()
    ids = [line.split()[0] for line in lines[1:] if line.split()[0].isdigit()]
    shown = ids[:-1]  # the last line begins with a number, too
    assert lines[0].startswith("job")
    assert shown == MANY.frame["job_id"].head(len(shown)).to_list()
    assert (
        lines[-1] == f"{len(shown)} of 90 jobs; --limit N shows more; --columns LIST shows others"
    )
    assert len(lines) <= rows or len(shown) == 1
    # One more job would not fit.
    assert len(shown) == count or len(lines) >= rows - 2
    whole = jobs_text(table, width)
    assert "--limit N" not in whole
    assert whole.count("\n") > count


def test_codes_of_states_are_explained() -> None:
    narrow, wide = jobs_text(MANY, 66), jobs_text(MANY, 200)
    assert " ST " in narrow.splitlines()[0]
    words = " ".join(narrow.split())
    assert "ST: CD completed, R running, OOM out of memory" in words
    assert "ST:" not in wide
    completed = replace(MANY, frame=MANY.frame.filter(state="COMPLETED"))
    assert "ST: CD completed" in " ".join(jobs_text(completed, 66).split())


def test_running_jobs_that_lost_nothing_yet_may_still() -> None:
    """What is lost is decided when they end; what they lost so far is a lower limit."""
    causes = [{"gpu_hours_idle": 0.0}, {"gpu_hours_idle": 2.0}, {"gpu_hours_idle": 0.0}]
    ends = [None, None, START]
    rows = [
        _job(number, **lost | {"end": end})
        for number, (lost, end) in enumerate(zip(causes, ends, strict=True))
    ]
    lost = frame(JOB_SUMMARIES, rows).select(lost_hours()).to_series()
    assert lost.to_list() == [None, 2.0, 0.0]
