"""The first sentence of a report: what cost most, and "healthy" only where all of it is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_job import synthetic_report

from jobframes import job_row
from tachograph.catalog.rows import JobSummaryRow
from tachograph.catalog.tables import WASTE
from tachograph.judge.checks import CHECKS
from tachograph.judge.finding import SEVERITIES, Finding
from tachograph.report.job_page import job_html
from tachograph.report.job_text import job_text
from tachograph.report.verdict import (
    headline_finding,
    hours_behind,
    is_healthy,
    verdict_sentence,
    worst_first,
)

HEALTHY: JobSummaryRow = {
    "gpus": 4,
    "samples": 100,
    "coverage": 1.0,
    "gpu_hours": 10.0,
    "gpu_util_mean": 0.9,
    "sm_active_mean": 0.7,
    "temporal_imbalance": 0.05,
    "limiter": "memory",
    "health": "OK",
    **job_row(**{f"gpu_hours_{cause}": 0.0 for cause in WASTE}),
}
UNEVEN = Finding("load_imbalance_waste", "hint", "Load Imbalance", "s.")
LOW = Finding(
    "low_utilisation",
    "hint",
    "Low use",
    "s.",
    evidence={"gpu_util_mean": 0.14},
    covered_by="load_imbalance_waste",
)


def test_a_mostly_idle_job_is_not_headed_by_its_imbalance() -> None:
    row = HEALTHY | {"gpu_util_mean": 0.14, "gpu_hours_idle": 8.2, "gpu_hours_imbalance": 0.7}
    assert verdict_sentence(row, [UNEVEN, LOW]) == "The GPUs were busy 14 % of the time."
    # a covered finding counts for more hours only
    row |= {"gpu_hours_imbalance": 16.4}
    assert headline_finding([UNEVEN, LOW], row) == UNEVEN
    row |= {"gpu_hours_imbalance": 16.3}
    assert headline_finding([UNEVEN, LOW], row) == LOW


@pytest.mark.parametrize(
    ("cause", "sentence"),
    [
        ("never_used", "GPUs idle in every sample held 4.0 h of 10.0 h of GPU time."),
        ("idle", "4.0 h of 10.0 h of GPU time passed without work."),
    ],
)
def test_a_loss_that_no_finding_is_about_heads_a_job_where_it_is_largest(
    cause: str, sentence: str
) -> None:
    """Whether GPUs were never used is unknown where samples are missing, the loss is not."""
    never = Finding("gpus_never_used", "problem", "Not used", "s.", verdict="unknown")
    row = HEALTHY | job_row(**{f"gpu_hours_{cause}": 4.0, "gpu_hours_imbalance": 7.9})
    assert verdict_sentence(row, [UNEVEN, never]) == sentence
    assert verdict_sentence(row | {"gpu_hours_imbalance": 8.0}, [UNEVEN, never]) != sentence
    if cause == "never_used":
        with_rest = f"{sentence[:-1]}; they may have worked in the 0.5 h that were not measured."
        assert verdict_sentence(row | {"gpu_hours_unmeasured": 0.5}, [UNEVEN, never]) == with_rest
    row |= job_row(**{f"gpu_hours_{cause}": 1.0, "gpu_hours_imbalance": 0.0})
    assert verdict_sentence(row, [UNEVEN]) != sentence, "a tenth is no headline"


@pytest.mark.parametrize("code", ["xid_error", "gpu_memory_fault", "throttled"])
def test_a_problem_without_hours_is_not_replaced_by_a_loss(code: str) -> None:
    row = HEALTHY | {"gpu_hours_idle": 1.1, "state": "RUNNING"}
    fault = Finding(code, "problem", "The GPUs reported errors", "s.")
    assert verdict_sentence(row, [fault]) == verdict_sentence(
        row | {"gpu_hours_idle": 0.0}, [fault]
    )
    lost = verdict_sentence(row, [Finding(code, "hint", fault.title, "s.")])
    assert lost == "1.1 h of 10.0 h of GPU time passed without work so far."


@given(st.data())
def test_the_headline_has_most_hours_and_then_the_highest_severity(data: st.DataObject) -> None:
    hours = st.sampled_from([0.0, 1.0, 2.5])
    row = HEALTHY | job_row(**{f"gpu_hours_{cause}": data.draw(hours) for cause in WASTE})
    checks = data.draw(st.lists(st.sampled_from(CHECKS), min_size=1, unique=True))
    findings = [Finding(check.code, check.severity, check.title, "s.") for check in checks]
    ordered = worst_first(findings, row)
    ranks = [
        (-hours_behind(finding, row), SEVERITIES.index(finding.severity)) for finding in ordered
    ]
    assert ranks == sorted(ranks)
    main = headline_finding(findings, row)
    assert main is None or main.severity != "fact"
    problems = [finding for finding in findings if finding.severity == "problem"]
    assert main is not None or not problems


@pytest.mark.parametrize(
    ("code", "confidence", "causes"),
    [
        ("load_imbalance_waste", None, ("imbalance",)),
        ("idle_nodes_host", None, ()),
        ("gpus_never_used", None, ("never_used", "idle")),
        ("stall", "high", ("hung",)),
        ("stall", "low", ("idle",)),
        ("job_hang_host", "high", ("idle",)),
        ("busy_waiting", None, ("hung",)),
        ("cold_start", "high", ("cold_start",)),
        ("bursty", None, ("idle",)),
        ("xid_error", "low", ()),
        ("rule_of_a_site", None, ()),
    ],
)
def test_hours_are_those_of_the_causes(code: str, confidence: Any, causes: tuple[str, ...]) -> None:
    row = {f"gpu_hours_{name}": 2.0**place for place, name in enumerate(WASTE)}
    share = 0.5 if causes == ("imbalance",) else 1.0
    finding = Finding(code, "hint", "t", "s.", confidence=confidence)
    hours = sum(row[f"gpu_hours_{cause}"] for cause in causes)
    assert hours_behind(finding, job_row(**row)) == hours * share


UNKNOWN_FAULT = Finding("xid_error", "problem", "t", "s.", verdict="unknown", needs=("xid",))


@pytest.mark.parametrize(
    ("changed", "verdicts", "healthy"),
    [
        ({}, [], True),
        ({"limiter": "compute"}, [], True),
        ({"limiter": "neither"}, [], False),
        ({"limiter": None}, [], False),
        ({"coverage": 0.9}, [], True),
        ({"coverage": 0.89}, [], False),
        ({"coverage": None}, [], False),
        ({"gpu_hours_idle": 1.0}, [], True),
        ({"gpu_hours_idle": 0.9, "gpu_hours_imbalance": 0.11}, [], False),
        ({f"gpu_hours_{cause}": None for cause in WASTE}, [], False),
        ({"gpu_hours": None}, [], False),
        ({"gpu_util_mean": None}, [], False),
        ({"health": "HOT"}, [], False),
        ({}, [UNKNOWN_FAULT], False),
        ({}, [Finding("xid_error", "problem", "t", "s.", verdict="no")], True),
    ],
)
def test_healthy_takes_all_of_its_evidence(
    changed: JobSummaryRow, verdicts: list[Finding], healthy: bool
) -> None:
    row = HEALTHY | changed
    assert is_healthy(row, verdicts) == healthy
    assert verdict_sentence(row, verdicts).startswith("Healthy") == healthy


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            {"gpu_util_mean": 0.64, "sm_active_mean": 0.22, "limiter": "neither"},
            (
                "The 4 GPUs were busy 64 % of the time, SMs active 22 %; neither arithmetic nor memory "
                "was near its peak."
            ),
        ),
        (
            {"limiter": None, "sm_active_mean": None},
            "The 4 GPUs were busy 90 % of the time; what limited the speed is unknown.",
        ),
        (
            {"gpu_hours_idle": 2.5, "state": "RUNNING"},
            (
                "The 4 GPUs were busy 90 % of the time so far, SMs active 70 %; 2.5 h of 10.0 h of GPU "
                "time without work; memory traffic set the speed."
            ),
        ),
        (
            {"gpu_util_mean": None, "sm_active_mean": None},
            "How busy the GPUs were is not recorded.",
        ),
    ],
)
def test_use_without_a_judgement(changed: JobSummaryRow, sentence: str) -> None:
    assert verdict_sentence(HEALTHY | changed, []) == sentence


def test_the_nature_of_the_code_is_a_fact_and_no_finding() -> None:
    severities = {check.code: check.severity for check in CHECKS}
    assert severities["memory_bound"] == severities["no_tensor_use"] == "fact"
    fact = Finding("no_tensor_use", "fact", "The tensor cores were not used", "s.")
    report = synthetic_report(count=1, busy=120, verdicts=[fact])
    assert fact.code not in {finding.code for finding in report.findings}
    alone = replace(report, findings=())
    assert "  Facts   The tensor cores were not used." in job_text(alone)
    assert "Facts: The tensor cores were not used." in job_html(report)
    assert "Facts" not in job_text(synthetic_report(count=1))


def test_means_are_in_every_report_and_the_unknown_goes_first() -> None:
    report = synthetic_report(count=4)
    means = "Utilisation 21 %, SMs active 15 %, tensor 12 %, DRAM 20 %, power 200 W."
    assert means in job_text(report, width=100)
    page = job_html(report)
    for label in ("SMs active", "Tensor cores active", "DRAM active", "Power per GPU"):
        assert f"<dt>{label}</dt>" in page
    needs = Finding("a", "hint", "t", "s.", verdict="unknown", needs=("xid",))
    several = [
        Finding(f"rule_{place}", "hint", "t", "A sentence of the finding.", "Do it. " * 20)
        for place in range(5)
    ]
    full = job_text(replace(report, verdicts=(needs,), findings=()), width=100)
    short = job_text(replace(report, verdicts=(needs,), findings=tuple(several)), width=100)
    assert "  Unknown " in full
    assert "  Unknown " not in short
    for label in ("Use", "Means", "Balance"):
        assert f"  {label:<7} " in short
