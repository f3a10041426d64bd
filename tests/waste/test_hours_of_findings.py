"""Hours of findings: those of the ledger, from the causes that their checks declare."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from waste_cases import columns

from jobframes import START, gpus, minutes, summary
from tachograph.catalog.codes import CAUSE_OF_CLASS
from tachograph.catalog.config import Configuration
from tachograph.catalog.rows import JobSummaryRow
from tachograph.catalog.tables import IN_USE, JOB_NODE_MINUTES, WASTE
from tachograph.catalog.units import text
from tachograph.judge.checks import CHECKS
from tachograph.judge.finding import Finding, findings_frame
from tachograph.judge.judge import judge_jobs, rules_in_use
from tachograph.judge.waste import LEAST_HOURS, with_hours
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries, read_verdicts
from tachograph.pipeline.summaries import JobTables
from tachograph.pipeline.timelines import timelines_of

HOURS = {"never_used": 1.0, "hung": 2.0, "cold_start": 4.0, "idle": 8.0, "imbalance": 16.0}
# what each check is about, with high confidence and with low
CAUSES: dict[str, tuple[float, float]] = {
    "idle_job": (15.0, 15.0),
    "one_gpu_of_many": (9.0, 9.0),
    "gpus_never_used": (9.0, 9.0),
    "job_hang": (2.0, 8.0),
    "busy_waiting": (2.0, 8.0),
    "stall": (2.0, 8.0),
    "cold_start": (4.0, 8.0),
    # of host counters: the ledger has their minutes as those of the GPUs are
    "job_hang_host": (8.0, 8.0),
    "stall_host": (8.0, 8.0),
    "cold_start_host": (8.0, 8.0),
    "bursty": (8.0, 8.0),
    "low_utilisation": (8.0, 8.0),
    "imbalanced_gpus": (16.0, 16.0),
    "load_imbalance_waste": (16.0, 16.0),
}


def filled(code: str, hours: dict[str, float | None], **values: Any) -> dict[str, Any]:
    """A finding of a job with these hours, as a row."""
    row = summary(**{f"gpu_hours_{cause}": value for cause, value in hours.items()})
    values = {"evidence": {"interval_s": 60.0}} | values
    finding = Finding(code, "problem", "Title", "Seen.", **values)
    found = with_hours(findings_frame([(row, [finding])]), columns([row]), CHECKS)
    assert found.height == 1
    return dict(found.row(0, named=True))


def test_each_check_with_hours_is_here() -> None:
    declared = {code for check in CHECKS if check.causes for code in check.codes}
    assert declared == set(CAUSES)
    assert all(set(check.causes) <= set(WASTE) for check in CHECKS)
    assert set(CAUSE_OF_CLASS) <= declared


@pytest.mark.parametrize("code", CAUSES)
@pytest.mark.parametrize("confidence", ["high", "low", None])
def test_hours_are_those_of_the_declared_causes(code: str, confidence: Any) -> None:
    hours = CAUSES[code][confidence == "low"]
    row = filled(code, dict(HOURS), confidence=confidence)
    assert json.loads(row["evidence"]) == {"interval_s": 60.0, "gpu_hours_idle": hours}
    spent = "were lost to imbalance" if hours == 16.0 else "passed without work"
    assert row["sentence"] == f"Seen. {text(hours, 'h').removesuffix(' h')} GPU-h {spent}."


@pytest.mark.parametrize(
    ("code", "hours", "values"),
    [
        ("bursty", {"idle": 0.0, "hung": 3.0}, {}),
        ("bursty", {"idle": None}, {}),
        ("bursty", {"idle": LEAST_HOURS * 0.999}, {}),
        ("bursty", {"idle": 1.0}, {"verdict": "no"}),
        ("bursty", {"idle": 1.0}, {"verdict": "unknown"}),
        ("throttled", {"idle": 1.0}, {}),
    ],
)
def test_a_finding_without_hours_is_as_it_was(
    code: str, hours: dict[str, float | None], values: dict[str, Any]
) -> None:
    row = filled(code, hours, **values)
    assert (row["sentence"], json.loads(row["evidence"])) == ("Seen.", {"interval_s": 60.0})


def test_the_sentence_of_a_rule_has_an_end() -> None:
    row = summary(gpu_hours_imbalance=2.0)
    rule = Finding("load_imbalance_waste", "hint", "Title", "Load Imbalance Ratio 60%")
    found = with_hours(findings_frame([(row, [rule])]), columns([row]), CHECKS)
    sentence = "Load Imbalance Ratio 60%. 2.0 GPU-h were lost to imbalance."
    assert found["sentence"].to_list() == [sentence]


def test_the_least_hours_and_covered_findings_have_them() -> None:
    row = filled("bursty", {"idle": LEAST_HOURS}, covered_by="stall")
    assert row["sentence"] == "Seen. 0.001 GPU-h passed without work."
    assert row["covered_by"] == "stall"


def judged(job: JobSummaryRow, gpu_rows: pl.DataFrame, rows: pl.DataFrame) -> Any:
    """A job's row and its findings that hold {code: row}, by the whole judge."""
    configuration = Configuration()
    tables = JobTables(
        columns([job]),
        gpu_rows,
        timelines_of(rows, idle_util=configuration.thresholds.idle_util),
        JOB_NODE_MINUTES.empty(),
    )
    judged_job = judge_jobs(tables, configuration, rules_in_use(configuration))
    holding = judged_job.findings.filter(pl.col("verdict") == "yes")
    findings = {row["code"]: row for row in holding.iter_rows(named=True)}
    return judged_job.jobs.row(0, named=True), findings


@pytest.mark.parametrize(
    ("code", "values", "hours"),
    [
        # of 4 GPUs in two hours: 12 minutes of all of them; where they looked busy none
        ("cold_start", {"confidence": "low", "evidence": {"interval_s": 720.0}}, 0.8),
        ("stall", {"confidence": "low", "evidence": {"gpu_util_then": 0.5}}, 0.8),
        ("job_hang", {"confidence": "low", "evidence": {"gpu_util_then": 1.0}}, None),
        ("job_hang_host", {"evidence": {}}, 0.8),
        ("job_hang", {"confidence": "high", "evidence": {"gpu_util_then": 1.0}}, 2.0),
        ("gpus_never_used", {"evidence": {"gpus_unused": 1.0, "gpus_seen": 4.0}}, 2.0),
        ("one_gpu_of_many", {"evidence": {"gpus_unused": 3.0, "gpus_seen": 4.0}}, 6.0),
    ],
)
def test_a_finding_has_no_more_hours_than_it_can_be_about(
    code: str, values: dict[str, Any], hours: float | None
) -> None:
    interval = {"begin": START, "end": START + timedelta(minutes=12)}
    found = filled(code, dict(HOURS), **values, **interval)
    shown = json.loads(found["evidence"]).get("gpu_hours_idle")
    assert shown == (hours if hours is None else pytest.approx(hours))
    assert found["sentence"].endswith("passed without work.") is (hours is not None)


def test_ten_hours_of_which_three_minutes_were_measured() -> None:
    """By hand: GPU 1 did not work in 3 of 600 minutes, 0.05 h; 19.9 of 20 h are not measured."""
    job = summary(
        gpus=2, gpus_seen=2, elapsed_s=36000.0, samples=36, coverage=0.005, gpu_util_mean=0.45,
        gpu_util_max=0.9, spatial_imbalance=0.5, zero_util_fraction=0.5,
    )  # fmt: skip
    busy = {"gpu_util_mean": 0.9, "gpu_util_max": 0.9}
    idle = {"gpu_util_mean": 0.0, "gpu_util_max": 0.0}
    row, findings = judged(job, gpus(busy, idle), minutes([0.9] * 3, [0.0] * 3))
    hours = {name: row[f"gpu_hours_{name}"] for name in (*WASTE, *IN_USE, "unmeasured")}
    assert {name: value for name, value in hours.items() if value} == {
        "never_used": pytest.approx(0.05),
        "in_use_unknown": pytest.approx(0.05),
        "unmeasured": pytest.approx(19.9),
    }
    # what GPU 1 did in the rest is not known, so it is not called unused
    assert findings.keys() & {"one_gpu_of_many", "gpus_never_used", "idle_job"} == set()


def test_hours_are_of_time_where_the_interval_of_samples_changes() -> None:
    """By hand: an hour of work sampled every 10 s, then an hour without work every 60 s.

    Six of seven samples are of the first hour; each hour is half of the 4 GPU-hours.
    """
    job = summary(
        gpus=2, gpus_seen=2, elapsed_s=7200.0, samples=840, interval_s=10.0, coverage=420 / 720,
        gpu_util_mean=0.9 * 6 / 7, gpu_util_max=0.9, spatial_imbalance=0.0,
        zero_util_fraction=1 / 7,
    )  # fmt: skip
    levels = {"gpu_util_mean": 0.9 * 6 / 7, "gpu_util_max": 0.9}
    row, _ = judged(job, gpus(levels, levels), minutes(*[[0.9] * 60 + [0.0] * 60] * 2))
    hours = {name: row[f"gpu_hours_{name}"] for name in (*WASTE, *IN_USE, "unmeasured")}
    assert sum(hours.values()) == pytest.approx(row["gpu_hours"]) == pytest.approx(4.0)
    assert hours["in_use_unknown"] == pytest.approx(2.0)
    assert hours["unmeasured"] == pytest.approx(0.0)


def test_imbalance_is_booked_for_a_job_that_the_check_names() -> None:
    for low, holds in ((0.9, False), (0.3, True)):
        mean = (1.0 + low) / 2
        job = summary(
            gpus=2, gpus_seen=2, elapsed_s=7200.0, samples=100, gpu_util_mean=mean, coverage=1.0,
            gpu_util_max=1.0, spatial_imbalance=1 - mean, zero_util_fraction=0.0,
        )  # fmt: skip
        levels = [{"gpu_util_mean": level, "gpu_util_max": level} for level in (1.0, low)]
        row, findings = judged(job, gpus(*levels), minutes([1.0] * 120, [low] * 120))
        assert ("load_imbalance_waste" in findings) == holds
        lag = 2 * (1 - low) if holds else 0.0
        assert row["gpu_hours_imbalance"] == pytest.approx(lag, abs=1e-6)
        assert row["gpu_hours_in_use_unknown"] == pytest.approx(4.0 - lag)
        if holds:
            ending = " 1.4 GPU-h were lost to imbalance."
            assert findings["load_imbalance_waste"]["sentence"].endswith(ending)


def test_findings_of_the_demo_have_the_hours_of_their_job(demo: Path) -> None:
    lake = Lake.open(str(demo / "lake"))
    jobs = read_summaries(lake)
    by_key = {row["job_key"]: row for row in jobs.iter_rows(named=True)}
    holding = read_verdicts(lake, jobs, pl.col("verdict") == "yes", holding=True)
    causes = {code: check.causes for check in CHECKS for code in check.codes}
    named = 0
    for finding in holding.iter_rows(named=True):
        of_finding = causes.get(finding["code"], ())
        unsure = finding["confidence"] == "low" or finding["code"].endswith("_host")
        if of_finding in (("hung",), ("cold_start",)) and unsure:
            of_finding = ("idle",)
        row = by_key[finding["job_key"]]
        hours = sum(row[f"gpu_hours_{cause}"] or 0.0 for cause in of_finding)
        shown = json.loads(finding["evidence"]).get("gpu_hours_idle")
        assert shown == (pytest.approx(hours) if hours >= LEAST_HOURS else None), finding
        assert ("GPU-h" in finding["sentence"]) == (shown is not None), finding
        if shown is not None:
            named += 1
            amount = text(hours, "h").removesuffix(" h")
            assert f" {amount} GPU-h " in finding["sentence"]
    assert named > 50


def test_classes_add_up_for_each_job_of_the_demo(demo: Path) -> None:
    jobs = read_summaries(Lake.open(str(demo / "lake"))).drop_nulls("gpu_hours_in_use")
    assert jobs.height > 300
    for row in jobs.iter_rows(named=True):
        parts = [row[f"gpu_hours_{name}"] for name in (*WASTE, *IN_USE, "unmeasured")]
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(row["gpu_hours"], rel=1e-9, abs=1e-9)
