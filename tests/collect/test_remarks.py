"""Lines about problems: each once, repeats as a count, few of one source whatever it does."""

from __future__ import annotations

from dataclasses import dataclass, field

from tachograph.collect.remarks import MOST_LINES, REPEAT_S, ProblemRemarks


@dataclass
class Lines:
    """What was reported, at a time that is set."""

    now: float = 0.0
    said: list[str] = field(default_factory=list)

    def remarks(self) -> ProblemRemarks:
        return ProblemRemarks(self.said.append, steady=lambda: self.now)


def test_a_problem_that_repeats_is_a_line_an_hour_with_its_count() -> None:
    lines = Lines()
    remarks = lines.remarks()
    for second in range(7300):
        lines.now = float(second)
        remarks.problem("a", f"line {second} is none: 0x{second:x}")
    assert lines.said == [
        "a: line 0 is none: 0x0",
        "a: line 3600 is none: 0xe10 (3,600 times since the line before)",
        "a: line 7200 is none: 0x1c20 (3,600 times since the line before)",
    ]


def test_a_source_that_invents_problems_or_comes_and_goes_has_few_lines_and_keeps_none_from_others() -> (
    None
):
    lines = Lines()
    remarks = lines.remarks()
    for number in range(10_000):
        remarks.problem("a", f"{'x' * (number % 300)} is none")
        if number % 7 == 0:
            remarks.works("a")
    remarks.problem("b", "refused")
    assert len(lines.said) == MOST_LINES + 1
    assert lines.said[-1] == "b: refused"
    lines.now = REPEAT_S
    remarks.problem("a", "something else")
    assert lines.said[-1].startswith("a: something else (")
    assert lines.said[-1].endswith(" lines were left out before)")


def test_a_traceback_follows_its_line_and_long_lines_are_cut() -> None:
    lines = Lines()
    lines.remarks().problem("a", "y" * 10_000, detail="Traceback\n  here\n")
    first, *rest = lines.said[0].split("\n")
    assert len(first) < 600
    assert rest == ["Traceback", "  here"]
