"""The short report: at most thirty lines, whatever was found, and what it leaves out is named."""

from __future__ import annotations

import pytest
from synthetic_job import synthetic_report

from tachograph.judge.finding import Finding
from tachograph.report.job_text import MOST_LINES, job_text

LONG = (
    "What was seen takes some words, with numbers such as 42 % and 3.1 GPU-hours, and a list "
    "of nodes. "
) * 2


@pytest.mark.parametrize("gpus", [1, 4, 8, 40])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 12])
def test_it_is_short(gpus: int, count: int) -> None:
    found = [Finding(f"rule_{n}", "hint", f"Finding number {n}", LONG, LONG) for n in range(count)]
    report = synthetic_report(gpus, verdicts=found)
    printed = job_text(report, width=100)
    assert len(printed.splitlines()) <= MOST_LINES
    for finding in report.findings:
        assert finding.title in " ".join(printed.split())
