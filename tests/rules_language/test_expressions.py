"""What every function and operator means, against plain Python."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rulejobs import Job, errors, outcome, value, written

from tachograph.judge.rules.columns import quantiles
from tachograph.judge.rules.compiler import FUNCTIONS
from tachograph.judge.rules.model import RulePair

WORK = [4.0, 1.0, 3.0, 2.0, 10.0]
JOB = Job(
    {"work": WORK, "model": ["a", "b", "a", None, "b"], "load": [1.0, 2.0]},
    {"jobWallTime": 8.0, "idle": None, "state": "FAILED"},
)
ALL = "GatherFromAllRanks(SelectMetric(work, OverAll))"
ONE = "SelectMetric(work, OverAll)"
EXPECTED: dict[str, object] = {
    "1 + 2 * 3 - 4 / 2": 5.0,
    "(1 + 2) * 3": 9.0,
    "10 - 2 - 3": 5.0,
    "100 / 10 / 5": 2.0,
    "-2 * -3": 6.0,
    "- - 2": 2.0,
    "+2": 2.0,
    "1.5e3 + .5": 1500.5,
    "1.7976931348623157e308 * 1": 1.7976931348623157e308,
    "1.7976931348623157e308 * 2": None,
    "'a text'": "a text",
    "1 < 2": True,
    "2 <= 2 and 3 >= 4": False,
    "1 == 1 and 1 != 2": True,
    "'a' == 'b'": False,
    "true == false": False,
    "true or false and false": True,
    "(true or false) and false": False,
    "not true or true": True,
    "not (true or true)": False,
    "!false && !(1 > 2) || false": True,
    "!true == false": True,
    "1 > 2 ? 3 : 2 > 1 ? 1_000 : 5": 1000.0,
    "or(false, false, true)": True,
    "and(true, false)": False,
    "false or or(false, true)": True,
    "abs(-3)": 3.0,
    f"abs(for_each(Process, {ONE} - 3))": [1.0, 2.0, 0.0, 1.0, 7.0],
    "jobWallTime * 2": 16.0,
    "$jobWallTime": 8.0,
    "SelectMetric(jobWallTime, OverAll)": 8.0,
    "state == 'FAILED'": True,
    ALL: WORK,
    f"for_each(Process, {ONE} * 2)": [8.0, 2.0, 6.0, 4.0, 20.0],
    "for_each(GPU, RANK)": ["n1/0", "n1/1", "n1/2", "n1/3", "n1/4"],
    "for_each(Node, RANK)": ["n1", "n2"],
    "for_each(Process, make_tuple(RANK, SelectMetric(load, OverAll)))": [
        RulePair("n1", 1.0),
        RulePair("n2", 2.0),
    ],
    "for_each(Process, 7)": [7.0] * 5,
    f"for_each(Process, {ONE} - mean({ALL}))": [0.0, -3.0, -1.0, -2.0, 6.0],
    f"for_each(Process, max({ONE}, 3))": [4.0, 3.0, 3.0, 3.0, 10.0],
    f"max({ALL})": 10.0,
    f"min({ALL})": 1.0,
    "max(1, 5, 3)": 5.0,
    "min(2, 1)": 1.0,
    f"sum({ALL})": 20.0,
    f"mean({ALL})": 4.0,
    f"median({ALL})": 3.0,
    f"lower_quartile({ALL})": 2.0,
    f"upper_quartile({ALL})": 4.0,
    f"cardinality({ALL})": 5.0,
    f"any({ALL} > 9)": True,
    f"all({ALL} > 1)": False,
    f"{ALL} > 2.5": [True, False, True, False, True],
    f"if({ALL} > 2.5; {ALL})": [4.0, 3.0, 10.0],
    f"sum(if({ALL} > 2.5; 1))": 3.0,
    f"sum(if({ALL} > 100; {ALL}))": 0.0,
    f"if({ALL} > 2.5; {ALL}; 0)": [4.0, 0.0, 3.0, 0.0, 10.0],
    "if(true; 1; 2)": 1.0,
    "if(idle > 0; 1; 2)": None,
    "if(true; 1)": [1.0],
    "if(false; 1)": [],
    "cardinality(if(1 > 2; 1))": 0.0,
    "make_tuple(1, 'a').second": "a",
    "make_tuple(1, 'a')": RulePair(1.0, "a"),
    "for_each(Process, make_tuple(RANK, 1)).first": ["n1/0", "n1/1", "n1/2", "n1/3", "n1/4"],
    "for_each(Process, SelectMetric(model, OverAll) == 'a')": [True, False, True, None, False],
    "any(for_each(Process, SelectMetric(model, OverAll) == 'a'))": True,
    "all(for_each(Process, SelectMetric(model, OverAll) != 'z'))": None,
    "cardinality(for_each(Process, SelectMetric(model, OverAll)))": 5.0,
    "cardinality(if(for_each(Process, SelectMetric(model, OverAll) == 'a'); 1))": None,
    "idle > 0": None,
    "idle + 1": None,
    "not (idle > 0)": None,
    "true or idle > 0": True,
    "false or idle > 0": None,
    "false and idle > 0": False,
    "true and idle > 0": None,
    "make_tuple(idle, 1).second": 1.0,
    "make_tuple(idle, 1).first": None,
    "1 / (jobWallTime - 8)": None,
    "1e308 * 10": None,
    "1e308 * 10 - 1e308 * 10": None,
    f"max(if({ALL} > 100; {ALL}))": None,
    f"mean(if({ALL} > 100; {ALL}))": None,
    f"all(if({ALL} > 100; true))": True,
    f"any(if({ALL} > 100; true))": False,
    "GatherFromAllRanks(SelectMetric(gpu_util, OverAll))": [None] * 5,
    "cardinality(GatherFromAllRanks(SelectMetric(gpu_util, OverAll)))": 5.0,
    "sum(GatherFromAllRanks(SelectMetric(gpu_util, OverAll)))": None,
}


@pytest.mark.parametrize("expression", EXPECTED)
def test_value(expression: str) -> None:
    found = value(expression, JOB)
    assert found == EXPECTED[expression]
    assert type(found) is type(EXPECTED[expression])


def test_every_function_is_tried_and_in_the_reference() -> None:
    page = (Path(__file__).parents[2] / "docs/rule-language.md").read_text()
    for name in FUNCTIONS:
        assert any(f"{name}(" in expression.replace("not (", "not(") for expression in EXPECTED), (
            name
        )
        assert f"`{name}" in page, name


@given(st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=40))
def test_quartiles_are_those_of_the_standard_library(work: list[float]) -> None:
    low, middle, high = statistics.quantiles(work, n=4, method="inclusive")
    for share, expected in ((0.25, low), (0.5, middle), (0.75, high)):
        (found,) = quantiles(np.array([work]), share)
        assert found == pytest.approx(expected, abs=1e-6)


@given(st.lists(st.one_of(st.none(), st.floats(-10, 10)), min_size=1, max_size=12))
def test_any_and_all_never_say_more_than_is_known(work: list[float | None]) -> None:
    """Whatever the unknown values are, an answer that is given stays the same."""
    job = Job({"work": work})
    for function, plain in (("any", any), ("all", all)):
        found = value(f"{function}({ALL} > 0)", job)
        could = {
            plain(one > 0 if one is not None else filled for one in work)
            for filled in (True, False)
        }
        assert found == (could.pop() if len(could) == 1 else None)


def test_a_rule_of_gpus_names_those_that_it_holds_for() -> None:
    text = written(
        {
            "use": "SelectMetric(gpu_util, OverAll)",
            "low": "use < threshold",
            "idle_now": "low and use < 0.4",
        },
        level="gpu",
        parameter=["threshold"],
        output_metric="{use}%",
        template="On {RANK}, use is below {threshold}%; mean of all {average}%",
        output="idle_now",
    ).replace('{"low"', '{"average": "mean(GatherFromAllRanks(use))"}, {"low"')
    assert errors(text) == []
    found = outcome(text, Job({"gpu_util": [0.1, 0.9, 0.2, 0.8]}))
    assert (found.alert, found.ranks) == (True, ("n1/0", "n1/2"))
    assert found.text == "On n1/0, n1/2, use is below 50%; mean of all 50% 10, 20%"
    assert outcome(text, Job({"gpu_util": [0.8, 0.9]})).verdict == "no"
    assert outcome(text, Job({"gpu_util": [0.8, None]})).unknown == ("gpu_util",)
    assert outcome(text, Job({"gpu_util": [0.1, None]})).ranks == ("n1/0",)
    assert outcome(text, Job()).verdict == "unknown"


def test_texts_are_cut_and_long_lists_are_counted() -> None:
    text = written({"a": ALL, "b": "true"}, template="{a} and more of the same, again: " * 40)
    found = outcome(text, Job({"work": [1.0] * 500}))
    assert len(found.text) == 4000
    assert "1, 1, and 480 more" in found.text


def test_bytes_have_the_prefix_that_people_write() -> None:
    text = written(
        {"x": "46060000000", "y": "1e10", "z": "true"},
        template="{x} B/s, $y B/s. {y}B {y} Bytes {y}",
    )
    assert errors(text) == []
    assert outcome(text, Job()).text == ("46.06 GB/s, 10.00 GB/s. 10.00 GB 1e+10 Bytes 1e+10")


def test_placeholders() -> None:
    text = written(
        {"x": "0.5", "y": "7200", "z": "true"},
        template=(
            "$x $x. {x}% {y} GPU-h {y} hens $$x {{x}} {no such} if(x) if(x > 1;more)if(x < "
            "1;less (of {y}))!"
        ),
    )
    assert errors(text) == []
    assert (
        outcome(text, Job()).text
        == "0.5 0.5. 50% 2 GPU-h 7200 hens $x {x} {no such} if(x) less (of 7200)!"
    )


def test_ranks_are_those_of_the_rule_and_their_lack_is_the_reason() -> None:
    ranks = "for_each(Process, RANK)"
    assert value(ranks, JOB, level="node") == ["n1", "n2"]
    assert value(ranks, JOB, level="gpu") == [f"n1/{place}" for place in range(len(WORK))]
    found = outcome(written({"a": "cardinality(for_each(GPU, 1)) > 1"}), Job())
    assert (found.verdict, found.reasons) == ("unknown", ("no gpu is known in a",))


@pytest.mark.parametrize(("shown", "text"), [("{x}", "T."), ("{x} s", "T. 2 s"), ("", "T.")])
def test_a_metric_alone_is_no_part_of_the_text(shown: str, text: str) -> None:
    rule = written({"x": "2", "a": "true"}, template="T.", output_metric=shown)
    assert outcome(rule, Job()).text == text
