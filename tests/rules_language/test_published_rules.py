"""Both published rules, as they were published but for what is no JSON, against plain Python."""

from __future__ import annotations

import statistics

import pytest
from rulejobs import (
    CATALOGUE,
    PARAMETERS,
    Job,
    busy,
    errors,
    outcome,
    problems,
    program_of,
    written,
)

from tachograph.judge.rules.model import RuleOutcome
from tachograph.judge.rules.patterns import load_patterns
from tachograph.judge.rules.program import evaluate

WASTE = r"""// rule on job level
{
"name":"Load Imbalance",
"type":"bool",
"tag":"loadimba",
"level":"job",
"metric(numberOfProcesses)":"number_of_available_compute_units",
"metric(jobWallTime)":"walltime",
"parameter": ["load_imbalance_ratio_threshold","load_imbalance_waste_threshold"], // <-- explicit list?
"rule_terms":[
{"work_per_process": "GatherFromAllRanks(SelectMetric(work,OverAll))"}, // select the work from all processes
{"top_performer": "max(work_per_process)"},
{"missed_work_per_prcess":"for_each(Process,top_performer - SelectMetric(work,OverAll))"},
{"missed_work": "sum(missed_work_per_process)"},
{"available_work": "$number_of_available_compute_units * walltime"},
{"threshold_1": "missed_work / available_work"},
{"threshold_2": "missed_work - tollerance_wasted_work"},
{"load_imbalance_1": "threshold_1 > load_imbalance_ratio_threshold"},
{"load_imbalance_2": "threshold_2 > load_imbalance_waste_threshold"},
{"load_imbalance_altert": "or(load_imbalance_1, load_imbalance_2)"}
],
"output":"load_imbalance_altert",
"output_metric":
"if(load_imbalance_1;Load Imbalance Ratio {threshold_1}%)if(load_imbalance_2;Load Imbalance of $threshold_2 cpuh)",
"template":"This job was detected as a possible load imbalance issue."
}"""
SPREAD = """// rule on job level
{
"name":"Load Imbalance",
"type":"bool",
"tag":"loadimba",
"level":"job",
"metric(numberOfProcesses)":"number_of_available_compute_units",
"metric(jobWallTime)":"walltime",
"parameter": ["load_imbalance_ratio_threshold"], // <-- explicit list?
"rule_terms":[
{"work_per_process": "GatherFromAllRanks(SelectMetric(work,OverAll))"}, // select the work from all processes
{"median": "median($work_per_process)"},
{"upper_quartile": "upper_quartile($work_per_process)"},
{"lower_quartile": "lower_quartile($work_per_process)"},
{"ratio": "for_each(Process,make_tupel($RANK,((SelectMetric(work,Overall))-$median)/$median))"},
{"violations": "if($ratio.second>$load_imbalance_ratio_threshold;$ratio)"},
{"load_imbalance": "cardinality($violations)>0"},
],
"output":"load_imbalance_altert",
"output_metric":"$ratio.first",
"template":
"This job was detected as a possible load imbalance issue. \
Ranks $ratio.first exceed imbalance ratio of $load_imbalance_ratio_threshold"
}"""
JOBS = {
    "even": [30_000.0, 30_000.0, 30_000.0, 30_000.0],
    "one does all": [36_000.0, 0.0, 0.0, 0.0],
    "one does a little more": [25_000.0, 20_000.0, 20_000.0, 20_000.0],
    "one does less": [30_000.0, 30_000.0, 30_000.0, 10_000.0],
    "alone": [5_000.0],
    "three": [100.0, 300.0, 200.0],
    "all but none": [0.0, 0.0, 0.0, 0.0, 36_000.0],
}


def shipped(identity: str, job: Job) -> RuleOutcome:
    loaded = load_patterns((CATALOGUE / "load_imbalance.json").read_text(), "load_imbalance.json")
    rule = next(rule for rule in loaded.rules if rule.id == identity)
    return evaluate(program_of(rule), job, PARAMETERS)


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("run", ["published", "shipped"])
def test_waste_is_what_plain_python_says(name: str, run: str) -> None:
    work, walltime = JOBS[name], 36_000.0
    missed = sum(max(work) - one for one in work)
    ratio, waste = missed / (len(work) * walltime), missed - PARAMETERS["tolerance_wasted_work"]
    over, much = ratio > 0.2, waste > 36_000
    found = (
        outcome(WASTE, busy(*work))
        if run == "published"
        else shipped("load_imbalance_waste", busy(*work))
    )
    assert found.alert == (over or much)
    assert found.values["missed_work"] == pytest.approx(missed)
    assert found.values["threshold_1"] == pytest.approx(ratio)
    assert found.values["threshold_2"] == pytest.approx(waste)
    message = [f"Load Imbalance Ratio {100 * ratio:.3g}%"] * over
    published = f"Load Imbalance of {waste / 3600:.4g} cpuh"
    message += [published if run == "published" else "Missed work beyond the tolerance"] * much
    assert found.text.endswith("; ".join(message))
    assert bool(found.text) == (over or much)


def test_the_text_of_waste_is_in_percent_and_hours() -> None:
    found = outcome(WASTE, busy(36_000.0, 0.0, 0.0, 0.0))
    assert found.text == (
        "This job was detected as a possible load imbalance issue. Load Imbalance Ratio 75%; "
        "Load Imbalance of 29.83 cpuh"
    )
    assert found.output == {"threshold_1": 0.75, "threshold_2": 107_400.0}


@pytest.mark.parametrize("name", [name for name in JOBS if name != "all but none"])
def test_spread_is_what_plain_python_says(name: str) -> None:
    work = JOBS[name]
    if statistics.median(work) == 0:
        assert outcome(SPREAD, busy(*work)).verdict == "unknown"
        return
    ratios = [(one - statistics.median(work)) / statistics.median(work) for one in work]
    over = [f"n1/{place}" for place, ratio in enumerate(ratios) if ratio > 0.2]
    under = [f"n1/{place}" for place, ratio in enumerate(ratios) if ratio < -0.2]
    published = outcome(SPREAD, busy(*work))
    assert published.alert == bool(over)
    ratio = published.values["ratio"]
    assert isinstance(ratio, list)
    assert [pair[1] for pair in ratio] == pytest.approx(ratios)  # type: ignore[index]
    if len(work) > 1:
        low, _, high = statistics.quantiles(work, n=4, method="inclusive")
        assert published.values["lower_quartile"] == pytest.approx(low)
        assert published.values["upper_quartile"] == pytest.approx(high)
    fixed = shipped("load_imbalance_spread", busy(*work))
    assert (fixed.alert, list(fixed.ranks)) == (bool(over), over)
    both = shipped("load_imbalance_two_sided", busy(*work))
    assert (both.alert, set(both.ranks)) == (bool(over or under), {*over, *under})


def test_the_published_text_of_spread_names_every_rank_and_the_shipped_one_those_over_it() -> None:
    job = busy(25_000.0, 20_000.0, 20_000.0, 20_000.0)
    message = (
        "This job was detected as a possible load imbalance issue. Ranks {} exceed "
        "imbalance ratio of 0.2"
    )
    assert outcome(SPREAD, job).text == message.format("n1/0, n1/1, n1/2, n1/3")
    assert shipped("load_imbalance_spread", job).text == message.format("n1/0")


def test_two_sides_are_told_apart() -> None:
    found = shipped("load_imbalance_two_sided", busy(100.0, 100.0, 100.0, 150.0, 10.0))
    assert found.text == (
        "Some ranks differ by more than 20% from the median work: more than the median: n1/3; "
        "less than the median: n1/4"
    )


def test_a_median_of_nothing_is_no_alert_and_says_why() -> None:
    found = outcome(SPREAD, busy(0.0, 0.0, 0.0, 36_000.0))
    why = "the median work of its GPUs is 0, so ratio cannot be computed"
    assert (found.alert, found.verdict, found.reasons) == (None, "unknown", (why,))


@pytest.mark.parametrize(
    ("divisor", "message"),
    [
        ("median(GatherFromAllRanks(SelectMetric(work, OverAll)))", "the median work of its GPUs"),
        ("max(GatherFromAllRanks(SelectMetric(load, OverAll)))", "the largest load of its nodes"),
        ("idle", "idle"),
        ("(idle + idle)", "a divisor"),
        ("max(GatherFromAllRanks(SelectMetric(work, OverAll) + 0))", "a divisor"),
    ],
)
def test_what_is_zero_is_named(divisor: str, message: str) -> None:
    job = Job({"work": [0.0, 0.0], "load": [0.0]}, {"idle": 0.0})
    found = outcome(written({"share": f"1 / {divisor}", "alert": "share > 2"}), job)
    assert (found.verdict, found.reasons) == (
        "unknown",
        (f"{message} is 0, so share cannot be computed",),
    )


@pytest.mark.parametrize("rule", [WASTE, SPREAD])
def test_unknown_work_is_insufficient_and_named(rule: str) -> None:
    for job in (
        busy(1.0, None, 3.0),
        Job({"work": None}, {"numberOfProcesses": 2.0, "jobWallTime": 9.0}),
        Job(),
    ):
        found = outcome(rule, job)
        assert (found.alert, found.text) == (None, "")
        assert "work" in found.unknown


def test_what_is_known_decides_where_it_can() -> None:
    # The ratio is unknown, the waste is not.
    found = outcome(WASTE, busy(36_000.0, 0.0, 0.0, 0.0, walltime=None))
    assert (found.alert, found.values["load_imbalance_1"], found.values["load_imbalance_2"]) == (
        True,
        None,
        True,
    )


def test_the_slips_are_taken_with_a_warning_each() -> None:
    assert errors(WASTE) == errors(SPREAD) == []
    message = [problem.message for text in (WASTE, SPREAD) for problem in problems(text)]
    for slip, meant in (
        ("make_tupel", "make_tuple"),
        ("Overall", "OverAll"),
        ("missed_work_per_prcess", "missed_work_per_process"),
        ("tollerance_wasted_work", "tolerance_wasted_work"),
        ("load_imbalance_altert", "load_imbalance_alert"),
    ):
        assert f"{slip} is taken as {meant}" in message
    assert "there is no such term; load_imbalance is taken" in message
    assert "upper_quartile is used nowhere" in message
    assert "median may be zero; where it is, the result is unknown" in message


@pytest.mark.parametrize(
    ("fixed", "published", "message"),
    [
        ('altert",\n"output_m', 'altert"\n"output_m', '19:33: error: a comma is missing before "output_metric"'),
        ('threshold"], //', 'threshold"] //', '9:48: error: a comma is missing before "rule_terms"'),
        ("make_tupel($RANK,((", "make_tupel($RANK,(", ("15:92: error: this ) has no ( before it (term "
        "ratio)")),
        ('>0"},', ">0},", '17:20: error: the closing quote of "cardinality($violations)>0}, is missing'),
        ("},\n],", "},\n", ("19:9: error: a : within a list; ] is missing before: [ of 10:14 is "
        "open")),
    ],
)  # fmt: skip
def test_what_was_no_json_is_reported_with_its_place(
    fixed: str, published: str, message: str
) -> None:
    assert fixed in SPREAD
    assert errors(SPREAD.replace(fixed, published, 1))[0].removeprefix("tried.json:") == message


def test_the_shipped_file_has_warnings_of_the_median_only() -> None:
    text = (CATALOGUE / "load_imbalance.json").read_text()
    assert {problem.message for problem in problems(text)} == {
        "median may be zero; where it is, the result is unknown"
    }
    assert [rule.id for rule in load_patterns(text, "x").rules] == [
        "load_imbalance_waste",
        "load_imbalance_spread",
        "load_imbalance_two_sided",
    ]
