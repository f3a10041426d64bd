"""Whatever is written, reading it ends with rules or with places and reasons; whatever is measured, with a verdict."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rulejobs import CATALOGUE, METRICS, PARAMETERS, Job, written

from tachograph.judge.rules.patterns import load_patterns
from tachograph.judge.rules.program import check, evaluate, prepare

SHIPPED = load_patterns((CATALOGUE / "load_imbalance.json").read_text(), "load_imbalance.json")
PROGRAMS = [prepare(rule, METRICS) for rule in SHIPPED.rules]
WORDS = st.sampled_from(
    [
        *("(", ")", ",", ";", "+", "-", "*", "/", "<", ">", "==", "and", "or", "not", "if(", "max(", "median("),
        *("for_each(Process,", "GatherFromAllRanks(", "SelectMetric(", "work", "idle", "OverAll", "RANK", ".first"),
        *(".second", "1", "0.5", "'a'", "true", "$threshold", "make_tuple(", "a", "b"),
    ]
)
measured = st.one_of(st.none(), st.floats(), st.floats(0, 1e5), st.integers(), st.text(max_size=3))
documents: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(allow_nan=False), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["name", "tag", "rule_terms", "output", "level", "parameter", "rules", "template", "x"]),
            inner,
            max_size=6,
        ),
    ),
    max_leaves=12,
)


def run(text: str) -> None:
    loaded = load_patterns(text, "any.json")
    lines = text.split("\n")
    for problem in loaded.problems:
        assert 1 <= problem.line <= len(lines)
        assert problem.column >= 1
        assert problem.message
    assert loaded.rules or loaded.problems or text.strip() in ("[]",) or "rules" in text
    for rule in loaded.rules:
        if not any(problem.severity == "error" for problem in check(rule, METRICS, PARAMETERS)):
            outcome = evaluate(prepare(rule, METRICS), Job(), PARAMETERS)
            assert outcome.alert is not None or outcome.unknown or outcome.reasons


@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    run(text)


@given(documents)
def test_any_document(document: Any) -> None:
    run(json.dumps(document))


@given(st.lists(WORDS, max_size=25), st.lists(st.one_of(WORDS, st.sampled_from(["{a}", "$a", "%", " h"])), max_size=15))
def test_any_words(expression: list[str], text: list[str]) -> None:
    run(written({"a": " ".join(expression), "b": "true"}, template="".join(text), parameter=["threshold"]))


@given(
    st.lists(measured, max_size=8),
    st.one_of(st.none(), st.floats(0, 1e6)),
    st.dictionaries(st.sampled_from(list(PARAMETERS)), st.floats()),
)
def test_any_job(work: list[Any], walltime: float | None, parameters: dict[str, float]) -> None:
    job = Job({"work": work}, {"numberOfProcesses": float(len(work)), "jobWallTime": walltime})
    for program in PROGRAMS:
        outcome = evaluate(program, job, parameters)
        if None in [one if isinstance(one, int | float) else None for one in work]:
            assert outcome.alert is None
            assert "work" in outcome.unknown
        assert outcome.alert is not None or outcome.unknown or outcome.reasons


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=12), st.randoms())
def test_the_order_of_ranks_changes_nothing(work: list[float], chance: Any) -> None:
    mixed = list(work)
    chance.shuffle(mixed)
    for program in PROGRAMS[1:]:
        first, second = (
            evaluate(program, Job({"work": values}, {"jobWallTime": 1.0}), PARAMETERS) for values in (work, mixed)
        )
        assert (first.verdict, len(first.ranks)) == (second.verdict, len(second.ranks))
