"""Whatever is measured, a rule ends with a verdict, or with what is unknown."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rulejobs import CATALOGUE, PARAMETERS, Job, JobsTogether, outcome, program_of, rule_of, written

from tachograph.judge.rules.patterns import load_patterns
from tachograph.judge.rules.program import RuleEvaluation, evaluate

SHIPPED = load_patterns((CATALOGUE / "load_imbalance.json").read_text(), "load_imbalance.json")
PROGRAMS = [program_of(rule) for rule in SHIPPED.rules]
measured = st.one_of(st.none(), st.floats(), st.floats(0, 1e5), st.integers(), st.text(max_size=3))


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
            evaluate(program, Job({"work": values}, {"jobWallTime": 1.0}), PARAMETERS)
            for values in (work, mixed)
        )
        assert (first.verdict, len(first.ranks)) == (second.verdict, len(second.ranks))


ranks = st.lists(st.one_of(st.none(), st.floats(0, 1e5)), max_size=4)
TOGETHER = {
    "each": "for_each(GPU, make_tuple(RANK, SelectMetric(work, OverAll) / jobWallTime))",
    "high": "if(each.second > threshold; each)",
    "loads": "if(idle > 0.5; GatherFromAllRanks(SelectMetric(load, OverAll)); for_each(Node, 1))",
    "most": "max(loads) - median(for_each(GPU, SelectMetric(work, OverAll)))",
    "alert": "cardinality(high) > 0 and (most > 0 or state == 'FAILED')",
}


@given(st.lists(st.tuples(ranks, ranks, st.one_of(st.none(), st.floats(0, 1))), min_size=1))
def test_jobs_together_have_the_outcomes_of_each_alone(
    measured: list[tuple[list[float | None], list[float | None], float | None]],
) -> None:
    jobs = [
        Job({"work": work, "load": load}, {"jobWallTime": idle, "idle": idle, "state": "FAILED"})
        for work, load, idle in measured
    ]
    named = rule_of(written(TOGETHER, parameter=["threshold"], template="{high.first}"))
    for program in (*PROGRAMS, program_of(named)):
        together = RuleEvaluation(program, JobsTogether(jobs), PARAMETERS)
        alone = [evaluate(program, job, PARAMETERS) for job in jobs]
        assert [together.outcome(place) for place in range(len(jobs))] == alone
        assert together.alerts == [outcome.alert for outcome in alone]


def test_what_is_unknown_is_not_blamed_on_a_divisor() -> None:
    rule = written({"share": "idle / jobWallTime", "alert": "share > 0"})
    found = outcome(rule, Job({}, {"idle": None, "jobWallTime": 0.0}))
    assert (found.unknown, found.reasons) == (("idle",), ())
