"""Checks: reported findings, their intervals, missing counters, and marks on the timeline."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from synthetic_job import NOW, judged, synthetic_report

from jobframes import START, gpus, minutes, summary
from tachograph.judge.finding import CheckedValue, Finding, findings_frame
from tachograph.report.charts import extent, lanes
from tachograph.report.findings import (
    CHECK_GROUPS,
    by_group,
    check_text,
    checks_text,
    interval_text,
    missing_counters,
)
from tachograph.report.job import build_job_report
from tachograph.report.job_page import job_html
from tachograph.report.job_text import job_text
from tachograph.report.recording import Mark, finding_marks


def test_checks_are_grouped_by_result_and_the_most_urgent_comes_first() -> None:
    report = synthetic_report(verdicts=judged())
    groups = {name: [finding.code for finding in findings] for name, findings in report.checks}
    assert list(groups) == [name for name in CHECK_GROUPS if name in groups]
    assert groups == {
        "Reported": ["job_hang", "idle_while_held", "cold_start"],
        "Facts": ["stable"],
        "Unknown": ["idle_nodes", "score_gpu", "network_bound"],
        "Not triggered": ["stall", "score_gpumem", "gpu_hot"],
    }


def test_covered_checks_are_in_the_order_of_families() -> None:
    codes = ("low_memory", "stall", "job_hang", "a_rule")
    found = [Finding(code, "hint", "t", "s.", covered_by="idle_job") for code in codes]
    assert [finding.code for finding in by_group(found)] == [
        "job_hang",
        "stall",
        "low_memory",
        "a_rule",
    ]


def test_facts_and_what_does_not_hold_are_nothing_to_mend() -> None:
    report = synthetic_report(verdicts=judged())
    assert [finding.code for finding in report.findings] == [
        "job_hang",
        "idle_while_held",
        "cold_start",
    ]
    assert len(report.verdicts) == len(judged())
    assert report.headline == "The job hung."
    assert "paused" not in job_text(report)


def test_findings_of_the_lake_are_told_as_those_of_memory() -> None:
    report = synthetic_report(verdicts=judged())
    row = report.summary
    frame = findings_frame([(row, report.verdicts)]).sample(fraction=1, shuffle=True, seed=3)
    read = build_job_report(row, gpus(), minutes(), frame, NOW)
    assert {finding.code for finding in read.findings} == {
        finding.code for finding in report.findings
    }
    in_memory = {finding.code: finding for finding in report.verdicts}
    assert {finding.code: finding for finding in read.verdicts} == in_memory
    assert [(name, len(found)) for name, found in read.checks] == [
        (name, len(found)) for name, found in report.checks
    ]


def test_the_sentence_of_a_reported_finding_is_given_once() -> None:
    report = synthetic_report(
        busy=120, verdicts=[Finding("throttled", "problem", "t", "The clocks were low.")]
    )
    assert job_text(report).count("The clocks were low.") == 1
    assert job_text(report, every_check=True).count("The clocks were low.") == 2


def test_what_another_finding_covers_names_it() -> None:
    fact = Finding("steady", "fact", "t", "It was steady.")
    again = Finding(
        "uneven_nodes", "hint", "t", "It was uneven.", "Use fewer.", covered_by="idle_nodes"
    )
    report = synthetic_report(verdicts=(fact, again))
    printed = job_text(report, every_check=True)
    assert "steady: It was steady." in printed
    assert "uneven_nodes: t; reported as idle_nodes." in printed
    assert "It was uneven" not in job_text(report)
    assert "t; reported as idle_nodes." in job_html(report)


def test_health_that_is_not_known_names_its_counters() -> None:
    unknown = Finding(
        "health",
        "fact",
        "t",
        "s.",
        kind="health",
        verdict="unknown",
        needs=("pcie_replays", "gpu_temp_c"),
    )
    report = synthetic_report(verdicts=(unknown,))
    assert "needs pcie_replays, gpu_temp_c" in job_text(report, every_check=True)
    assert report.unchecked == (
        "1 check needs what is not recorded: pcie_replays, gpu_temp_c, see --checks."
    )


def test_missing_counters_are_listed_once_and_only_where_they_would_decide() -> None:
    unknown = Finding(
        "a", "hint", "t", "s.", verdict="unknown", needs=("sm_occupancy", "max_warps")
    )
    held = Finding("b", "hint", "t", "s.", needs=("fp64_active",))
    assert missing_counters([unknown, replace(unknown, code="c"), held]) == (
        (
            "Of the GPUs: sm_occupancy (DCGM_FI_PROF_SM_OCCUPANCY). Have dcgm-exporter or LDMS "
            "record these fields."
        ),
        "Not known: max_warps.",
    )
    assert missing_counters([held]) == ()
    assert str(synthetic_report(verdicts=judged()).unchecked).count("sm_occupancy") == 1


def test_the_counters_that_decide_most_are_named_first_and_the_rest_counted() -> None:
    names = ("fp64_active", "sm_active", "sm_occupancy", "dram_active", "tensor_active")
    every = Finding("a", "hint", "t", "s.", verdict="unknown", needs=names)
    one = replace(every, code="b", needs=("tensor_active",))
    (sentence,) = missing_counters([every, one], at_most=2)
    assert sentence.startswith(
        "Of the GPUs: tensor_active (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE), fp64_active ("
    )
    assert ", and 3 more, see --checks. Have" in sentence
    report = synthetic_report(verdicts=(every, one))
    # The others were recorded.
    assert report.unchecked == "2 checks need what is not recorded: sm_occupancy, see --checks."
    assert "tensor_active" not in job_html(report).split("Missing counters")[1]
    assert "more, see --checks" not in " ".join(job_text(report, every_check=True).split())


def _lasting(begin: datetime | None, end: datetime | None) -> Finding:
    return Finding("x", "hint", "t", "s.", begin=begin, end=end)


@pytest.mark.parametrize(
    ("begin", "end", "sentence"),
    [
        (None, None, None),
        (START + timedelta(hours=1), None, "from 11:00 to 12:00, 1 h"),
        (None, START + timedelta(minutes=10), "from 10:00 to 10:10, 10 min"),
        (
            START + timedelta(hours=13),
            START + timedelta(hours=15),
            "from 23:00 to 2026-04-24 01:00, 2 h",
        ),
        (
            START + timedelta(hours=15),
            START + timedelta(hours=16),
            "from 2026-04-24 01:00 to 02:00, 1 h",
        ),
    ],
)
def test_intervals_are_in_the_zone_of_the_site(
    begin: datetime | None, end: datetime | None, sentence: str | None
) -> None:
    until = START + timedelta(hours=2)
    assert (
        interval_text(_lasting(begin, end), START, until, zone_name="America/Los_Angeles")
        == sentence
    )


def test_an_interval_over_the_change_of_clocks_names_both_zones() -> None:
    begin = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    finding = _lasting(begin, begin + timedelta(hours=1))
    assert (
        interval_text(finding, begin, None, zone_name="Europe/Berlin")
        == "from 02:30 CEST to 02:30 CET, 1 h"
    )


def test_a_job_that_runs_is_marked_up_to_now() -> None:
    row = summary(state="RUNNING", end=None)
    finding = replace(judged()[0], end=None)
    report = build_job_report(row, gpus(), minutes([0.5] * 120), [finding], NOW)
    assert report.interval(finding) == "from 18:00 to 19:00, 1 h"
    assert finding_marks(report) == (
        Mark("finding", "The job hung", 3600.0, 7200.0, "problem", "job_hang"),
    )


def test_findings_about_one_interval_share_a_mark() -> None:
    report = synthetic_report(verdicts=judged())
    assert finding_marks(report) == (
        Mark("finding", "It began late", 0.0, 600.0, "hint", "cold_start"),
        Mark("finding", "The job hung; Held idle", 3600.0, 7200.0, "problem", "job_hang"),
    )


def test_what_was_undecided_is_said() -> None:
    assert (
        check_text(CheckedValue("x", 3.0, ">=", 5.0, "count", holds=None))
        == "x 3, undecided (>= 5)"
    )
    many = tuple(
        CheckedValue(f"c{place}", 1.0, "<", 2.0, "count", holds=place > 1) for place in range(6)
    )
    finding = Finding("x", "hint", "t", "s.", checks=many)
    assert checks_text(finding) == "c2 1 < 2; c3 1 < 2; c4 1 < 2; c5 1 < 2"
    assert checks_text(replace(finding, verdict="no")).startswith(
        "c0 1 < 2, but its other conditions do not hold; c1 1 < 2, but its"
    )


def test_a_list_of_checks_says_nothing_twice() -> None:
    compared = (CheckedValue("load", 0.1, ">=", 0.5, "fraction", holds=False),)
    judged_again = (
        Finding(
            "xid_error", "problem", "t", "Not measured: xid.", verdict="unknown", needs=("xid",)
        ),
        Finding("health", "hint", "t", "Unknown: it is cold.", verdict="unknown", needs=("xid",)),
        Finding("idle_job", "problem", "t", "Not triggered.", verdict="no"),
        Finding("stable", "fact", "t", "No: there was no load.", verdict="no"),
        Finding(
            "slow_gpu", "hint", "t", "Not triggered: load is low.", verdict="no", checks=compared
        ),
        Finding("bursty", "hint", "t", "Not triggered.", verdict="no"),
    )
    lines = job_text(synthetic_report(verdicts=judged_again), every_check=True).splitlines()
    begin = lines.index("  Unknown") - 1
    end = next(place for place in range(begin, len(lines)) if "Missing counters" in lines[place])
    assert [line.strip() for line in lines[begin + 1 : end]] == [
        "Unknown",
        "xid_error: Not measured: xid.",
        "health: It is cold.",
        "needs xid",
        "Not triggered",
        "stable: There was no load.",
        "slow_gpu",
        "load 10 %, not >= 50 %",
        "idle_job, bursty",
    ]


def test_text_marks_the_stretch_of_time() -> None:
    lines = job_text(synthetic_report(verdicts=judged())).splitlines()
    spark = next(line for line in lines if line.startswith("  GPU 0 "))
    mark = next(
        line for line in lines if line.lstrip().startswith("The job hung; Held") and "─" in line
    )
    stopped = [place for place, drawn in enumerate(mark) if drawn == "─"]
    assert spark[stopped[0] - 1] != spark[stopped[0]] == "▁"
    assert stopped[-1] == len(spark) - 1


_SECONDS = st.floats(0, 3600)


@given(
    st.lists(st.tuples(_SECONDS, _SECONDS, st.text("abc", min_size=1, max_size=120)), max_size=8)
)
def test_no_mark_hides_another(spans: list[tuple[float, float, str]]) -> None:
    marks = [Mark("finding", label, min(a, b), max(a, b)) for a, b, label in spans]
    rows = lanes(marks, 3600.0)
    assert sorted((mark for row in rows for mark in row), key=id) == sorted(marks, key=id)
    for row in rows:
        reach = [extent(mark, 3600.0) for mark in row]
        assert all(before[1] <= after[0] for before, after in pairwise(reach))


def test_where_nothing_was_measured_no_single_counter_is_missing() -> None:
    assert synthetic_report(verdicts=judged()).missing
    assert not synthetic_report(verdicts=judged(), samples=0).missing
    assert "Unknown" not in job_text(synthetic_report(verdicts=judged(), samples=0))
