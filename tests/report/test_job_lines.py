"""The short report: at most thirty lines, whatever was found, and what it leaves out is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_job import synthetic_report

from jobframes import job_row
from tachograph.catalog.units import printable
from tachograph.judge.finding import Finding
from tachograph.report.job_efficiency import brief_lines
from tachograph.report.job_page import job_html
from tachograph.report.job_text import MIN_WIDTH, MOST_LINES, job_lines, job_text
from tachograph.report.lines import to_text
from tachograph.report.next_time import NextTime

REPORT = synthetic_report(1)
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


@settings(max_examples=settings().max_examples // 2)
@given(
    fields=st.fixed_dictionaries(
        dict.fromkeys(
            ("name", "user", "account", "partition", "cluster"),
            st.none() | st.from_regex(r"[a-z-]{1,40}( \x1b[a-z]{1,9})?", fullmatch=True),
        )
    ),
    state=st.sampled_from(["COMPLETED", "OUT_OF_MEMORY", None]),
    width=st.integers(MIN_WIDTH, 120),
)
def test_no_line_of_the_head_is_broken_by_the_terminal(
    fields: dict[str, str | None], state: str | None, width: int
) -> None:
    """Every value but the name, which may be cut, is there whole."""
    report = replace(REPORT, summary=REPORT.summary | job_row(**fields, state=state))
    lines = job_text(report, width=width).split("\n\n")[0].splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(" ".join(lines).split())
    whose = [f"{label} {value}" for label, value in fields.items() if value and label != "name"]
    for value in (*whose, state):
        assert value is None or printable(value) in words


@pytest.mark.parametrize(
    "following",
    [
        None,
        NextTime((), (), "Work stopped: find out why before requesting more time."),
        NextTime(("--time=00:30:00",), ("it ran for 21 min",)),
    ],
    ids=["none", "note", "options"],
)
def test_every_form_names_the_next_time(following: NextTime | None) -> None:
    report = replace(REPORT, next_time=following)
    forms = (job_text(report), job_html(report), "\n".join(brief_lines(report)))
    assert [form.count("Next time:") for form in forms] == [int(following is not None)] * 3
