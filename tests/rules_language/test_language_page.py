"""docs/rule-language.md is right: its examples, its slips, its limits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rulejobs import Job, outcome, written

from tachograph.judge.rules import documents, expression, patterns, program
from tachograph.judge.rules.patterns import load_patterns

PAGE = (Path(__file__).parents[2] / "docs/rule-language.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("| expression | value |\n| --- | --- |\n")[2].partition("\n\n")[0]
EXAMPLES = [(row[0], row[1]) for row in re.findall(r"^\| `(.*)` \| (.*) \|$", TABLE, re.MULTILINE)]
JOB = Job({"work": [10.0, 20.0, 30.0, 60.0]}, {"jobWallTime": 100.0, "idle": None})
WALLTIME = {"metric(jobWallTime)": "walltime"}


@pytest.mark.parametrize(("example", "shown"), EXAMPLES)
def test_examples_are_so(example: str, shown: str) -> None:
    found = outcome(written({"x": example, "output": "true"}, template="{x}", **WALLTIME), JOB)
    assert found.text == shown


def test_there_are_examples_and_the_file_that_is_shown_loads() -> None:
    assert len(EXAMPLES) == TABLE.count("\n") + 1 > 20
    (block,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    loaded = load_patterns(block, "page.json")
    assert loaded.problems == ()
    found = outcome(block, JOB, {"idle_threshold": 0.5})
    assert found.text == "The GPUs of this job were hardly used. GPUs worked 30% of the time"


def test_slips_and_limits_are_those_of_the_code() -> None:
    assert re.findall(
        r"^\| `(\w+)` \| `(\w+)`", PAGE.partition("| written |")[2], re.MULTILINE
    ) == list(expression.SLIPS.items())
    limits = PAGE.partition("## Limits")[2].partition("##")[0]
    for number in (
        documents.LARGEST,
        patterns.MOST_RULES,
        patterns.MOST_TERMS,
        expression.LONGEST,
        expression.DEEPEST,
        expression.LONGEST_NAME,
        patterns.LONGEST_TEXT,
        patterns.DEEPEST,
        program.LONGEST_SHOWN,
    ):
        assert re.search(rf"\b{number:,}\b", limits), number
