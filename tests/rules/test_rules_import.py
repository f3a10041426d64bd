"""Job classes of ClusterCockpit as rules: files of that shape, made here."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruled_jobs import Job, found

from tachograph.judge.rules.clustercockpit import (
    METRICS,
    Translated,
    limits_of,
    parameters_toml,
    translate_class,
)
from tachograph.judge.rules.metrics import OFFERED
from tachograph.judge.rules.patterns import load_patterns
from tachograph.judge.rules.program import compile_rule
from tachograph.judge.rules.ruleset import RuleEntry, RuleSet, read_parameters
from tachograph.judge.rules.sources import RuleSource

SOME_EXPRESSIONS = (
    "limit > 1",
    "job.duration",
    "1 / 0",
    "a.b",
    "-(1)",
    "acc_utilization.avg",
    "'x'",
    "\ud800",
    "{{.limit}}",
)
PARAMETERS = {"low_factor": 0.25, "shortest_seconds": 600.0}


def job_class(**others: Any) -> dict[str, Any]:
    given = {
        "name": "GPUs below their share",
        "tag": "below_share",
        "parameters": ["low_factor", "shortest_seconds"],
        "metrics": ["acc_utilization"],
        "requirements": ['job.shared == "none"', "job.duration > shortest_seconds"],
        "variables": [{"name": "limit", "expr": "acc_utilization.limits.peak * low_factor"}],
        "rule": "acc_utilization.avg < limit",
        "hint": "Mean {{.acc_utilization.avg}}% is below {{.limit}}, run time {{.job.duration}}",
    }
    return given | others


def translated(**others: Any) -> Translated:
    return translate_class(json.dumps(job_class(**others)), "made.json", PARAMETERS)


def ruleset(one: Translated) -> RuleSet:
    assert one.text is not None, one.missing
    loaded = load_patterns(one.text, one.file)
    declared, problems = read_parameters(RuleSource("parameters.toml", parameters_toml([one])))
    assert (loaded.problems, problems) == ((), [])
    (pattern,), (rule,) = loaded.patterns, loaded.rules
    of_rule = declared.get(rule.tag, {})
    values = {name: parameter.default for name, parameter in of_rule.items()}
    program, _ = compile_rule(rule, OFFERED, values)
    assert program is not None
    return RuleSet((RuleEntry(rule, pattern, program, of_rule, values, shipped=False),))


@pytest.mark.parametrize(
    ("mean", "elapsed", "verdict"), [(0.2, 3600.0, "yes"), (0.25, 3600.0, "no"), (0.2, 600.0, "no")]
)
def test_a_job_class_judges_as_it_did(mean: float, elapsed: float, verdict: str) -> None:
    job = Job({"elapsed_s": elapsed}, [{"gpu_util_mean": mean}])
    assert found(job, "below_share", ruleset(translated())).verdict == verdict


def test_the_hint_is_said_in_its_own_unit() -> None:
    job = Job({"elapsed_s": 3600.0}, [{"gpu_util_mean": 0.2}])
    one = found(job, "below_share", ruleset(translated()))
    assert one.sentence == "Mean 20 percent is below 25, run time 3600"
    missing = found(Job(gpus=[{}]), "below_share", ruleset(translated()))
    assert (missing.verdict, missing.needs) == ("unknown", ("gpu_util",))


def test_the_remark_says_that_sharing_is_left_out() -> None:
    one = translated()
    assert len(one.remarks) == 1
    assert one.remarks[0].startswith('job.shared == "none" left out')
    assert one.parameters == PARAMETERS


def test_signs_that_mean_something_in_a_template_are_text() -> None:
    job = Job({"elapsed_s": 3600.0}, [{"gpu_util_mean": 0.2}])
    one = translated(hint='$x {y} {{.limit}} h and {{printf "%.1f" .limit}}{{if .x}}z{{end}}')
    assert found(job, "below_share", ruleset(one)).sentence == "$x {y} 25 hours and 25...z..."
    assert len(one.remarks) == 3


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"metrics": ["flops_any"], "rule": "flops_any.avg < flops_any.limits.alert"},
         {"metric flops_any", "limit flops_any.limits.alert; a cluster.json gives it"}),
        ({"rule": "acc_utilization.min > 1"}, {"acc_utilization.min"}),
        ({"rule": "acc_utilization.avg > 1 && job.smt == 1"}, {"property job.smt"}),
        ({"rule": "order.avg > 1 or notes"}, {"name order.avg", "name notes"}),
        ({"rule": "sqrt(acc_utilization.avg) > max(1)"}, {"unknown function sqrt"}),
        ({"rule": "acc_utilization.avg ^ 2 > 1"}, {"^ has no meaning here; there are no powers"}),
        ({"rule": "acc_utilization.avg > 1 ?? 2"}, {"a value is missing before ?"}),
        ({"parameters": [*PARAMETERS, "nowhere"], "rule": "acc_utilization.avg > nowhere"},
         {"parameter nowhere, which parameters.json does not give"}),
        ({"variables": [{"name": "limit"}]},
         {"not a job class: Object missing required field 'expr' - at '$.variables[0]'"}),
        ({"rule": "acc_utilization.avg > (1"}, {"the expression ends too early: a ) is missing"}),
        ({"rule": ""}, {"the expression ends too early: a value is missing"}),
        ({"rule": "!" * 200 + "true"}, {"nested deeper than 40 levels; divide it into terms"}),
        ({"rule": "acc_utilization.avg"}, {"and needs true or false"}),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_told(given: dict[str, Any], missing: set[str]) -> None:
    one = translated(**given)
    assert one.text is None
    assert set(one.missing) == missing


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        '{"tag": "x"}',
        '{"rule": "true"}',
        '{"tag": 3, "rule": "true"}',
        "[" * 100_000,
    ],
)
def test_what_is_no_job_class(text: str) -> None:
    one = translate_class(text, "x.json", {})
    assert one.text is None
    assert len(one.missing) == 1


_ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(SOME_EXPRESSIONS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "expr", "x"]), inner)
    ),
    max_leaves=5,
)


@settings(suppress_health_check=list(HealthCheck))
@given(key=st.sampled_from([*job_class()]), value=_ANY)
def test_whatever_stands_in_a_file_it_is_translated_or_told(key: str, value: Any) -> None:
    one = translate_class(json.dumps(job_class(**{key: value})), "made.json", PARAMETERS)
    assert (one.text is None) == bool(one.missing)
    if one.text is not None:
        one.text.encode()
        assert not [
            problem
            for problem in load_patterns(one.text, "made.json").problems
            if problem.severity == "error"
        ]
        assert parameters_toml([one]).encode()


def test_limits_come_from_the_cluster() -> None:
    metrics = [
        {"name": "cpu_load", "peak": 72, "alert": 20, "caution": "x"},
        {"name": 3},
        "no metric",
    ]
    limits = limits_of({"metricConfig": metrics})
    assert limits == {"cpu_load": {"peak": 72.0, "alert": 20.0}}
    given = job_class(
        metrics=["cpu_load"],
        variables=[],
        rule="cpu_load.avg > cpu_load.limits.peak * 1.2",
        hint="x",
    )
    one = translate_class(json.dumps(given), "load.json", PARAMETERS, limits)
    for load, verdict in ((90.0, "yes"), (80.0, "no")):
        hosts = {"n1": {"load_average": load + 1}, "n2": {"load_average": load - 1}}
        job = Job(gpus=[{"node": "n1"}, {"node": "n2"}], hosts=hosts)
        assert found(job, "below_share", ruleset(one)).verdict == verdict
    assert limits_of([]) == {}
    assert limits_of({"metricConfig": 3}) == {}


@pytest.mark.parametrize("metric", METRICS)
def test_every_counterpart_is_one_that_rules_may_name(metric: str) -> None:
    rule = f"{metric}.avg > 1"
    assert translated(metrics=[metric], rule=rule, variables=[], hint="x").missing == ()


def test_names_and_states_of_expressions_are_those_of_rules() -> None:
    source = "acc_utilization.avg + 1e3 > job.duration ? true : job.jobState == 'failed'"
    one = translated(rule=source, requirements=[], variables=[], hint="x")
    assert one.text is not None, one.missing
    terms = json.loads(one.text)["rules"][0]["rule_terms"]
    assert terms[0] == {"acc_utilization_avg": "gpu_util_mean * 100"}
    assert terms[1] == {
        "matches": "acc_utilization_avg + 1e3 > walltime ? true : state == 'FAILED'"
    }


@pytest.mark.parametrize(
    "source",
    [
        "a >",
        "1 < 2 < 3",
        "a[0]",
        "a | b",
        "{}",
        "a.b()",
        "let x = 1",
        "x" * 5000,
        "a @ b",
        "1..3",
        "a in b",
    ],
)
def test_expressions_that_are_not_translated(source: str) -> None:
    assert translated(rule=source, hint="x").text is None


def test_states_are_those_of_slurm() -> None:
    one = translated(rule='job.jobState != "failed" && acc_utilization.avg < limit')
    rules = ruleset(one)
    for state, verdict in (("COMPLETED", "yes"), ("FAILED", "no")):
        job = Job({"elapsed_s": 3600.0, "state": state}, [{"gpu_util_mean": 0.2}])
        assert found(job, "below_share", rules).verdict == verdict
