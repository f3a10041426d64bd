"""Steps of a job: which were idle, when none ran, and that text, JSON and page show the same
numbers.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from synthetic_job import NOW
from syrupy.assertion import SnapshotAssertion

from jobframes import START, frame, gpus, measured, minutes, summary
from svg_reader import read_drawings
from tachograph.catalog.tables import STEP_SUMMARIES
from tachograph.catalog.units import text
from tachograph.judge.steps import JobSteps, gaps_between, job_steps
from tachograph.report.job import JobReport, build_job_report, job_json
from tachograph.report.job_page import JobPlots, job_html
from tachograph.report.job_text import job_text
from tachograph.report.lines import to_text
from tachograph.report.steps import SHOWN_STEPS, steps_headline, steps_json, steps_lines

MINUTE = 60.0


def row(step: str, begin: float, end: float | None, **given: Any) -> dict[str, Any]:
    """Return a row of step_summaries of job 100: minutes from its start, busy and measured
    unless given otherwise.
    """
    until = 120.0 if end is None else end
    made: dict[str, Any] = {
        "job_key": "c:100:1", "job_id": "100", "seq": 1, "step": step, "name": step, "nodes": 1, "tasks": 4,
        "start": START + timedelta(minutes=begin), "end": None if end is None else START + timedelta(minutes=end),
        "state": "COMPLETED", "exit_code": 0, "elapsed_s": MINUTE * (until - begin), "attribution": "time", "gpus": 4,
        "samples": int(24 * (until - begin)), "coverage": 1.0, "interval_s": 10.0, "gpu_util_mean": 0.5,
        "gpu_util_max": 1.0, "sm_active_mean": 0.3, "hbm_peak_fraction": 0.75, "power_w_mean": 300.0,
        "energy_j": 300.0 * 4 * MINUTE * (until - begin),
    }  # fmt: skip
    return made | given


IDLE = {"gpu_util_mean": 0.0, "gpu_util_max": 0.0, "sm_active_mean": 0.0}
_UNKNOWN = (
    "gpus",
    "samples",
    "coverage",
    "interval_s",
    "gpu_util_mean",
    "sm_active_mean",
    "energy_j",
)
AMBIGUOUS = dict.fromkeys((*_UNKNOWN, "hbm_peak_fraction", "power_w_mean")) | {
    "attribution": "ambiguous"
}
# two hours: busy, nothing for 25 minutes, busy, an idle step, nothing for 8 minutes
LEVELS = [0.5] * 20 + [0.0] * 25 + [0.5] * 20 + [0.0] * 55
SERVICES = (row("batch", 0, 120, name="batch"), row("extern", 0, 120, name="extern"))
USUAL = (
    *SERVICES,
    row("0", 0, 20, name="prepare"),
    row("1", 45, 65, name="warm_up"),
    row("2", 65, 112, name="train.py", **IDLE),
)


def steps_of(
    *rows: dict[str, Any], levels: list[float | None] | None = None, **job: Any
) -> JobSteps:
    """Return the steps of a job of two hours and four GPUs."""
    series = minutes(*[LEVELS if levels is None else levels] * 4)
    return job_steps(summary(**job), frame(STEP_SUMMARIES, rows), series, idle_util=0.01)


def report_with(*rows: dict[str, Any], **job: Any) -> JobReport:
    """Return the report of the same job."""
    series = minutes(*[LEVELS] * 4)
    given = summary(samples=2880, gpu_util_mean=0.17, **job)
    found = job_steps(given, frame(STEP_SUMMARIES, rows), series, idle_util=0.01)
    return build_job_report(
        given, gpus({}, {}, {}, {}), series, (), NOW, zone_name="America/Los_Angeles", steps=found
    )


def test_the_first_line_names_the_idle_step_and_the_wait() -> None:
    lines = to_text(steps_lines(steps_of(*USUAL))).splitlines()
    assert lines[0] == (
        "Step 2 (train.py) was idle for 47 min, 4 GPUs. The GPUs were idle for 33 min with no "
        "srun step"
    )


def test_gaps_with_work_of_the_batch_script_are_no_wait() -> None:
    found = steps_of(*USUAL, levels=[0.5] * 120)
    assert [gap.measured_s / MINUTE for gap in found.gaps] == [25.0, 8.0]
    assert not found.waited
    assert "with no srun" not in steps_headline(found)


@pytest.mark.parametrize(
    ("rows", "headline"),
    [
        ((), "No steps of this job are recorded."),
        (SERVICES, "No srun step: the numbers of the job are those of its script."),
        ((row("0", 0, 120),), "Step 0 was not idle."),
        ((row("0", 0, 60), row("1", 60, 120)), "No srun step was idle."),
        (
            (row("0", 0, 60, **IDLE), row("1", 60, 120, name="a.out", gpus=2, **IDLE)),
            "2 of 2 srun steps were idle; the largest is step 0: 1 h, 4 GPUs.",
        ),
        (
            (row("0", 0, 120, **AMBIGUOUS), row("1", 0, 120, **AMBIGUOUS)),
            "2 srun steps ambiguous: the GPUs used are not recorded.",
        ),
        (
            (row("0", 0, 120, coverage=0.2, **IDLE),),
            "1 srun step undetermined: not enough samples.",
        ),
        (
            (row("0", 0, 120, gpu_util_mean=None, sm_active_mean=None),),
            "1 srun step undetermined: not enough samples.",
        ),
    ],
)
def test_headlines(rows: tuple[dict[str, Any], ...], headline: str) -> None:
    assert steps_headline(steps_of(*rows)) == headline


def test_a_step_without_start_leaves_gaps_unknown() -> None:
    found = steps_of(row("0", 0, 20, start=None), row("1", 45, 60))
    assert found.gaps == ()
    assert "–" in to_text(steps_lines(found))


def test_a_running_step_reaches_to_the_end_of_the_analyzed_data() -> None:
    (step,) = steps_of(row("0", 0, None, state="RUNNING"), state="RUNNING", end=None).steps
    assert (step.begin_s, step.end_s) == (0.0, 7200.0)
    assert steps_of(row("0", 0, None), end=None).gaps == ()


def test_text_snapshot(snapshot: SnapshotAssertion) -> None:
    rows = (*USUAL, row("3", 70, 75, name="monitor", state="FAILED", exit_code=1, **AMBIGUOUS))
    assert (
        to_text(steps_lines(steps_of(*rows), zone_name="America/Los_Angeles", width=160))
        == snapshot
    )


@pytest.mark.parametrize("width", [72, 80, 100, 140])
def test_lines_stay_within_the_width(width: int) -> None:
    many = [row(str(place), place / 10, place / 10 + 0.1, name="a" * 40) for place in range(500)]
    lines = to_text(steps_lines(steps_of(*USUAL, *many), width=width)).splitlines()
    assert max(map(len, lines)) <= width
    assert any("465 further steps" in line for line in lines)


def test_json_snapshot(snapshot: SnapshotAssertion) -> None:
    assert (
        json.dumps(measured(steps_json(steps_of(*USUAL[2:4]))), indent=1, allow_nan=False)
        == snapshot
    )


def test_same_numbers_in_text_json_and_page() -> None:
    report = report_with(*USUAL)
    page, plain, values = (
        job_html(report),
        to_text(steps_lines(report.steps, width=200)),
        job_json(report)["steps"],
    )
    assert values == steps_json(report.steps)
    assert values["headline"] in page
    assert values["headline"] in plain.replace("\n", " ")
    assert [each["step"] for each in values["steps"]] == ["0", "batch", "extern", "1", "2"]
    assert [each["idle"] for each in values["steps"]] == [False, False, False, False, True]
    for each in values["steps"]:
        for name, unit in {
            "energy_j": "J",
            "gpu_util_mean": "fraction",
            "power_w_mean": "W",
            "elapsed_s": "s",
        }.items():
            assert text(each[name], unit) in page
            assert text(each[name], unit) in plain


def test_the_report_of_the_job_shows_steps_only_where_it_has_any() -> None:
    without = report_with()
    assert "<h2>Steps</h2>" not in job_html(without)
    assert "  Steps  " not in job_text(without)
    assert "  Steps  " in job_text(report_with(*USUAL))
    assert "--steps" in job_text(report_with(*USUAL))
    assert "--steps" not in job_text(without)
    assert job_json(without)["steps"]["steps"] == []


@pytest.mark.parametrize("count", [1, 5, 40, 3000])
def test_steps_are_drawn(count: int) -> None:
    rows = [
        row(str(place), 120 * place / count, 120 * (place + 1) / count) for place in range(count)
    ]
    report = report_with(*rows)
    for drawing in read_drawings(str(JobPlots(report).steps)):
        boxes = [group for group in drawing if str(group.get("class")).split()[0] == "box"]
        assert len(boxes) == min(count, SHOWN_STEPS)
    assert len(report.steps.largest(SHOWN_STEPS)) == min(count, SHOWN_STEPS)


def test_spans_may_overlap_and_reach_beyond_the_job() -> None:
    assert list(
        gaps_between([(-5.0, 10.0), (5.0, 40.0), (100.0, 900.0)], 500.0, at_least_s=60.0)
    ) == [(40.0, 100.0)]
    assert list(gaps_between([], 30.0, at_least_s=60.0)) == []
