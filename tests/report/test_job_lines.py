"""The short report: at most thirty lines, whatever was found, and what it leaves out is named."""

from __future__ import annotations

import pytest
from synthetic_job import synthetic_report

from tachograph.judge.finding import Finding
from tachograph.report.job_text import MOST_LINES, job_lines, job_text
from tachograph.report.lines import to_text

LONG = (
    "What was seen takes some words, with numbers such as 42 % and 3.1 GPU-hours, and a list "
    "of nodes. "
) * 2


def test_what_lines_leave_out_is_named() -> None:
    lacking = [
        Finding(f"rule_{n}", "hint", f"Rule {n}", "", verdict="unknown", needs=("xid",))
        for n in range(7)
    ]
    undecided = Finding("other", "hint", "Other", "", verdict="unknown")
    steady = synthetic_report(4, busy=120, verdicts=[*lacking, undecided])
    short = job_text(steady, width=100)
    assert "Unknown 7 checks need what is not recorded: xid, see --checks." in short
    found = [Finding(f"found_{n}", "hint", f"Found {n}", LONG, LONG) for n in range(3)]
    long = job_text(synthetic_report(4, verdicts=[*found, *lacking, undecided]), width=100)
    assert "need what is not recorded" not in long
    assert "--checks (7 unknown)" in long
    full = synthetic_report(4, verdicts=lacking)
    assert "see --checks" not in job_text(full, width=100, every_check=True)


@pytest.mark.parametrize("gpus", [1, 4, 8, 40])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 12])
def test_it_is_short(gpus: int, count: int) -> None:
    found = [Finding(f"rule_{n}", "hint", f"Finding number {n}", LONG, LONG) for n in range(count)]
    report = synthetic_report(gpus, verdicts=found)
    printed = job_text(report, width=100)
    assert len(printed.splitlines()) <= MOST_LINES
    for finding in report.findings:
        assert finding.title in " ".join(printed.split())


@pytest.mark.parametrize("gpus", [1, 8, 40])
@pytest.mark.parametrize("count", [0, 1, 2, 5])
@pytest.mark.parametrize("rows", [16, 21])
def test_on_a_low_terminal_it_is_shortened_by_importance(gpus: int, count: int, rows: int) -> None:
    """Headline, then findings, then means stay; the last lines say how to see all."""
    found = [Finding(f"rule_{n}", "hint", f"Finding number {n}", LONG, LONG) for n in range(count)]
    report = synthetic_report(gpus, verdicts=found)
    whole = to_text(job_lines(report))
    text = to_text(job_lines(report, rows=rows))
    if len(whole.splitlines()) <= rows:
        assert text == whole
        return
    assert len(text.splitlines()) <= rows
    assert text.splitlines()[:3] == whole.splitlines()[:3]  # job, headline
    together = " ".join(text.split())
    assert f"all of it: tachograph job {report.job} --full" in together
    for finding in report.findings:
        assert finding.title in together
    assert rows < 21 or "Means" in text
    assert ("Energy" not in text) or ("Means" in text)


def test_a_high_terminal_and_a_file_have_the_same_report() -> None:
    report = synthetic_report(8, verdicts=[])
    assert job_lines(report, rows=50) == job_lines(report)
