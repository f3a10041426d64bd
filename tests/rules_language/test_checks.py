"""Problems of a rule, found before any job, with file, line, column and term."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rulejobs import CATALOGUE, METRICS, errors, problems, rule_of, written

from tachograph.judge.rules.patterns import load_patterns
from tachograph.judge.rules.program import compile_rule

ALL = "GatherFromAllRanks(SelectMetric(work, OverAll))"
EXPRESSIONS = {  # of the term `a`: the character where it is wrong, and the message
    "wrk + 1": "1 unknown name wrk; did you mean work?",
    "SelectMetric(wrk, OverAll)": "14 unknown metric wrk; did you mean work?",
    "SelectMetric(work, OverAll)": (
        "14 SelectMetric stands inside for_each or GatherFromAllRanks in a rule of jobs"
    ),
    "GatherFromAllRanks(SelectMetric(work, Last))": (
        "39 the second of SelectMetric is OverAll: the whole job"
    ),
    "GatherFromAllRanks(SelectMetric(1, OverAll))": (
        "33 the first of SelectMetric is the name of a metric"
    ),
    "work": "1 work is a metric of each gpu: SelectMetric(work, OverAll)",
    "RANK": "1 RANK is known inside for_each only",
    "for_each(Everybody, 1)": "10 the first of for_each is Process, Rank, GPU, Node",
    "for_each(Node, SelectMetric(work, OverAll))": (
        "29 work is a metric of each gpu, not of each node"
    ),
    "make_tuple(1, 2).third": "18 a tuple has .first and .second, and no .third",
    "make_tuple(1, 2).__class__": "18 a tuple has .first and .second, and no .__class__",
    "medain(1)": "1 unknown function medain; did you mean median?",
    "eval('1')": "1 unknown function eval",
    "__import__('os')": "1 unknown function __import__",
    "max()": "1 max takes other arguments; see its line in the reference",
    "abs(1, 2)": "1 abs takes other arguments; see its line in the reference",
    "if(true, 1)": "1 semicolons stand between the arguments of if",
    "abs(1; 2)": "1 commas stand between the arguments of abs",
    "1 / 0": "5 a division by zero",
    "a + 1": "1 a is used before it is defined: no term may use itself",
    "later + 1": "1 later is used before it is defined: no term may use itself",
    # values of the wrong type, found by a trial
    "1 + 'a'": "3 + needs numbers",
    "1 + true": "3 + needs numbers",
    "1 < 'b'": "3 < needs numbers",
    "'a' == 1": "5 == needs values of one type",
    "-true": "1 - before needs numbers",
    "not 1": "1 not needs true or false",
    "1 and true": "3 and needs true or false",
    "max(1)": "1 max needs a list; GatherFromAllRanks(x) is one",
    f"any({ALL})": "1 any needs true or false",
    f"{ALL}.first": "49 first needs a tuple",
    "make_tuple(make_tuple(1, 2), 2)": "1 make_tuple needs values of one type",
    f"for_each(Process, SelectMetric(work, OverAll) - {ALL})": (
        "47 a whole list stands beside the value of one rank; use SelectMetric for both"
    ),
    f"for_each(Process, {ALL})": (
        "19 this would be a list of lists; inside for_each use SelectMetric"
    ),
    f"{ALL} - GatherFromAllRanks(SelectMetric(load, OverAll))": (
        "49 these lists do not have the same length"
    ),
    f"{ALL} - if({ALL} > 1; {ALL})": "49 these lists do not have the same length",
    "for_each(Process, if(SelectMetric(work, OverAll) > 1; 1))": (
        "19 for one rank, if needs a third value: if(condition; value; otherwise)"
    ),
    "for_each(Process, sum(SelectMetric(work, OverAll)))": (
        "19 sum needs a list; GatherFromAllRanks(x) is one"
    ),
    # also what the trial does not choose
    f"if(jobWallTime > 0; true; {ALL} < 5)": "1 if needs two lists or two single values",
    f"jobWallTime > 0 ? {ALL} : 1": "17 if needs two lists or two single values",
    f"for_each(Process, if(jobWallTime > 0; SelectMetric(work, OverAll); {ALL}))": (
        "19 if needs two lists or two single values"
    ),
    "if(jobWallTime > 0; true; 1)": "1 if needs values of one type",
    f"if({ALL} > 0; {ALL}; 'none')": "1 if needs values of one type",
    "if(jobWallTime > 0; make_tuple(1, 2); make_tuple(1, 'b'))": "1 if needs values of one type",
    # no expressions
    "1 +": "4 the expression ends too early: a value is missing",
    "(1 + 2": "7 the expression ends too early: a ) is missing",
    "1 + 2)": "6 this ) has no ( before it",
    "1 2": "3 an operator is missing before 2",
    "* 2": "1 a value is missing before *",
    "1 < 2 < 3": "7 < is a second comparison: an `and` is missing between them",
    "1 = 2": "3 = has no meaning here; use == to compare",
    "true & true": "6 & has no meaning here",
    "größe + 1": "0 names are made of letters a to z, digits and _, not of '\\xf6'",
    "'open": "1 ' has no meaning here; the closing quote of this text is missing",
    "1_": "2 an operator is missing before _",
    "1__0": "2 an operator is missing before __0",
    "1_.5": "2 an operator is missing before _",
    "1e400": "1 a number too large to compute with",
    "": "1 the expression ends too early: a value is missing",
    "(" * 10_000
    + "1"
    + ")" * 10_000: "1 an expression longer than 2000 characters; divide it into terms",
    "-" * 500 + "1": "42 nested deeper than 40 levels; divide it into terms",
    "make_tuple(1, 2)" + ".first" * 60: "126 nested deeper than 40 levels; divide it into terms",
    "x" * 65: "1 a name longer than 64 letters",
}


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=lambda text: text[:50])
def test_what_is_wrong_with_an_expression_is_told_with_its_place(expression: str) -> None:
    text = written({"a": expression, "later": "2", "end": "a == later"}, output="end")
    at, _, message = EXPRESSIONS[expression].partition(" ")
    column = text.index('"a": ') + 6 + int(at)
    assert errors(text)[0] == f"tried.json:1:{column}: error: {message} (term a)"


@pytest.mark.parametrize(
    "expression",
    [
        f"if({ALL} > 0; {ALL}; 0)",
        "for_each(Process, if(jobWallTime > 0; SelectMetric(work, OverAll); 0))",
        f"if(jobWallTime > 0; if({ALL} > 5; {ALL}); {ALL})",
        f"{ALL} - if(jobWallTime > 0; 1 / (jobWallTime - jobWallTime); 0)",
    ],
)
def test_both_values_of_a_condition_may_be_used_alike(expression: str) -> None:
    assert errors(written({"a": f"sum({expression}) > 1_000"})) == []


def test_a_place_behind_escapes_is_right() -> None:
    text = written({"a": '"b\\"" == "x" + 1'})
    problem = problems(text)[0]
    assert text[problem.column - 1 :].startswith("\\") or problem.column > text.index("a")


def test_a_cycle_of_terms_is_an_error_of_its_first() -> None:
    text = written({"a": "c > 1", "b": "c + 1", "c": "if(d > 0; b; 2)", "d": "3"}, output="a")
    assert [line.partition("error: ")[2] for line in errors(text)] == [
        "c is used before it is defined: no term may use itself (term a)"
    ]


def test_a_metric_may_be_called_as_a_term_is() -> None:
    assert errors(written({"work": f"sum({ALL})", "a": "work > 1"})) == []


def warnings(text: str) -> list[str]:
    return [problem.message for problem in problems(text) if problem.severity == "warning"]


def test_what_is_only_odd_is_a_warning() -> None:
    text = written(
        {"unused": "1", "a": "1 > threshold"},
        parameter=["threshold", "load_imbalance_ratio_threshold"],
    )
    assert warnings(text) == [
        "parameter load_imbalance_ratio_threshold is used nowhere",
        "unused is used nowhere",
    ]
    assert (
        "parameter threshold is not listed under parameter"
        in errors(written({"a": "threshold > 1"}))[0]
    )
    assert warnings(written({"a": "true"}, colour="red")) == ["unknown key 'colour'"]
    assert (
        warnings('{"name": "n", "tag": "t", "rule_terms": [{"a": "true"},], "output": "a",}') == []
    )


@pytest.mark.parametrize(
    ("divisor", "warned"),
    [
        ("2", False),
        ("jobWallTime", False),
        ("numberOfProcesses * jobWallTime / 2", False),
        ("median(GatherFromAllRanks(SelectMetric(work, OverAll)))", True),
        ("idle", True),
        ("(jobWallTime - 1)", True),
        ("threshold", False),
        ("max(idle, 1)", False),
    ],
)
def test_divisions_by_what_may_be_zero(divisor: str, warned: bool) -> None:
    text = written(
        {"a": f"1 / ({divisor}) > 1"}, parameter=["threshold"] if divisor == "threshold" else []
    )
    assert any("may be zero" in message for message in warnings(text)) == warned
    assert not errors(text)
    assert not any(
        "may be zero" in message
        for message in warnings(written({"a": "if(idle > 0; 1 / idle; 0) > 1"}))
    )


def test_parameters_need_values() -> None:
    text = written({"a": "threshold > 1"}, parameter=["threshold"])
    assert [one.message for one in problems(text, {})] == ["parameter threshold has no value"]
    for value in (float("nan"), float("inf")):
        assert "needs a finite number" in problems(text, {"threshold": value})[0].message
    assert problems(text) == []
    assert compile_rule(rule_of(text), METRICS, {})[0] is None


def test_the_output_is_an_answer() -> None:
    assert errors(written({"a": "1 + 1"})) == [
        "tried.json:1:74: error: the output a is not true or false (term a)"
    ]
    assert "use any(...) or all(...)" in errors(written({"a": f"{ALL} > 1"}))[0]
    assert "the output 'b' is not a term" in errors(written({"a": "true"}, output="b"))[0]


def test_texts_are_checked() -> None:
    def messages(template: str) -> list[str]:
        return [
            line.partition("error: ")[2]
            for line in errors(written({"a": "true"}, template=template))
        ]

    assert messages("{a} if(a >;x)") == ["the expression ends too early: a value is missing"]
    assert messages("{nothing} $x.first") == ["unknown name nothing"]
    assert messages("{a} if(1 + 1;two)") == ["the condition 1 + 1 is not true or false"]
    assert messages("if(a;if(a;if(a;if(a;if(a;x)))))") == [
        "conditions within conditions, more than 4 deep"
    ]


SHIPPED = (CATALOGUE / "load_imbalance.json").read_text()
SOUND = written({"a": "if(jobWallTime > 1_0.5; .5e3; -2) > 'b'"}, template="{a}% if(a;$a)")
pieces = st.text('{}[]:,"/*\\\n\ud800 #()<=!?.;$_-+0123456789eab', max_size=12)


@given(st.sampled_from([SHIPPED, SOUND, ""]), st.integers(0), st.integers(0, 20), pieces)
@example(SOUND.replace("1_0", "1_"), 0, 0, "")
@example('{"name" "x" / }', 0, 0, "")
@example("[1 2 /* x", 0, 0, "")
@example('["x": /', 0, 0, "")
@example("[\ud800]", 0, 0, "")
def test_whatever_a_file_holds_is_read_or_reported(
    sound: str, at: int, length: int, piece: str
) -> None:
    at %= len(sound) + 1
    text = sound[:at] + piece + sound[at + length :]
    lines = text.count("\n") + 1
    for problem in load_patterns(text, "tried.json").problems:
        assert 1 <= problem.line <= lines
        assert problem.column >= 1
        assert problem.message


DOCUMENTS = {
    "": "1:1: error: a value is missing before the end of the file",
    "[": "1:1: error: a value is missing before the end of the file",
    '{"name" "x"}': '1:8: error: a colon is missing before "x"',
    "[1 2]": "1:3: error: a comma is missing before 2",
    '{name: "x"}': "1:2: error: name where a text in quotes or } is missing",
    '{"name": x}': "1:10: error: x is not a value; a text needs quotes",
    '{"name": "x"} {': "1:15: error: { where the end of the file is missing",
    '{"a": 1, "a": 2}': "1:10: error: a stands here twice",
    '{"a": "\\q"}': '1:7: error: "\\q" is no text of JSON; write \\\\ for a backslash',
    '{"a": "\\ud800"}': '1:7: error: "\\ud800" is no text of JSON; write \\\\ for a backslash',
    "[" * 10_000: "1:10000: error: a value is missing before the end of the file",
    "[" * 9_000 + "]" * 9_000: "1:1: error: a rule or a pattern is an object: {...}",
    "/* open": "1:1: error: a comment is // to the end of the line, or /* ... */",
    "1": "1:1: error: a rule or a pattern is an object: {...}",
    "{}": "1:1: error: Object missing required field 'name'",
    '{"name": 1, "rules": []}': "1:2: error: name: Expected 'str', got 'int'",
    '{"name": "n", "rules": [1]}': "1:10: error: a rule is an object: {...}",
    '{"name": "n", "rules": {}}': "1:15: error: rules is a list: [...]",
    " " * 70_000: "1:1: error: longer than 32768 characters; divide the file",
    '{"n": 1e999}': "1:7: error: 1e999 is not a value; a text needs quotes",
}


@pytest.mark.parametrize("text", DOCUMENTS, ids=lambda text: text[:30])
def test_what_is_no_file_of_rules_is_told_with_its_place(text: str) -> None:
    assert errors(text)[0] == f"tried.json:{DOCUMENTS[text]}"
    assert load_patterns(text, "tried.json").rules == ()


@given(st.sampled_from(['{"name" "x"', "[1 2", '{name: "x"', '{"name": "x"} {', '["x":']), pieces)
@example('{"a" "b"', '"c')
def test_what_follows_the_first_mistake_changes_nothing(text: str, piece: str) -> None:
    assert errors(f"{text} {piece}") == errors(text)


def test_the_first_mistake_of_each_rule_is_reported() -> None:
    rules = (written({"a": "1 +", "b": "(2"}, id="x"), written({"a": "true"}, template="if(;x)"))
    assert [line.partition("error: ")[2] for line in errors(f"[{', '.join(rules)}]")] == [
        "the expression ends too early: a value is missing (term a)",
        "the expression ends too early: a value is missing",
    ]


def test_files_rules_and_names_have_limits() -> None:
    many = {f"t{number}": "true" for number in range(65)}
    assert "rule_terms: Expected 'array' of length <= 64" in errors(written(many))[0]
    rules = [written({"a": "true"}, id=f"r{number}") for number in range(65)]
    assert "more than 64 rules" in errors(f"[{','.join(rules)}]")[0]
    assert (
        "a text longer than 2000 characters"
        in errors(written({"a": "true"}, template="x" * 2001))[0]
    )
    for name in ("RANK", "or", "9a", "größe", "a b", "x" * 65, ""):
        assert "cannot name a term" in errors(written({name: "true"}, output="a"))[0]
    assert (
        "a second rule called tried"
        in errors(f"[{written({'a': 'true'})}, {written({'a': 'true'})}]")[0]
    )
    for key in ("tag", "id"):
        assert (
            f"{key}: Expected 'str' matching" in errors(written({"a": "true"}, **{key: "x\n"}))[0]
        )
    listed = written({"a": "threshold > 1"}, parameter=["threshold\n"])
    assert "parameter[0]: Expected 'str' matching" in errors(listed)[0]
    assert "level: Invalid enum value 'rack'" in errors(written({"a": "true"}, level="rack"))[0]
    twice = written({"a": "true"}).replace('{"a": "true"}', '{"a": "true"}, {"a": "true"}')
    assert "a second term called a" in errors(twice)[0]


def test_patterns_hold_what_is_said_about_them() -> None:
    rule = written({"a": "true"}, severity="hint", advice="Do less.", metric="x")
    head = '"name": "P", "description": ["x", "y"], "criterion": "c", "cures": ["a", "b"]'
    text = f'// one\n{{{head}, "rules": [{rule}]}}'
    (pattern,) = load_patterns(text, "f").patterns
    assert (pattern.name, pattern.description, pattern.criterion) == ("P", "x\ny", "c")
    assert (pattern.false_positives, pattern.cures) == ((), ("a", "b"))
    (found,) = pattern.rules
    assert (found.severity, found.advice, found.check) == ("hint", "Do less.", "")


@pytest.mark.parametrize(
    ("expression", "warned"),
    [
        ("1 / idle", ["idle"]),
        # what a condition looks at is guarded inside of it, and nothing else is
        ("if(idle > 0; 1 / idle; 0)", []),
        ("if(1 > 0; 1 / idle; 0)", ["idle"]),
        ("if(idle > 0; 1; 0) + 1 / idle", ["idle"]),
        ("1 / jobWallTime * idle", []),
        ("1 / (jobWallTime + 0)", ["this"]),
        ("1 / (-jobWallTime)", ["this"]),
        ("1 / if(1 > 0; idle; 1)", ["this"]),
        ("1 / abs(jobWallTime)", []),
        ("1 / (jobWallTime - idle)", ["this"]),
        ("1 / max(0, jobWallTime)", []),
    ],
)
def test_a_divisor_is_named_where_it_may_be_zero(expression: str, warned: list[str]) -> None:
    expected = [f"{name} may be zero; where it is, the result is unknown" for name in warned]
    assert warnings(written({"a": f"{expression} > 1"})) == expected


def test_parameters_are_named_beside_terms_and_without_values() -> None:
    term = written({"threshold": "1", "a": "threshold > 1"}, parameter=["threshold"])
    assert warnings(term) == ["threshold is a parameter and a term; the term counts"]
    divided = written({"a": "1 / threshold > 1"}, parameter=["threshold"])
    assert [problem.message for problem in problems(divided, {})] == [
        "parameter threshold has no value",
        "threshold may be zero; where it is, the result is unknown",
    ]
    assert problems(divided, {"threshold": 1e300}) == []
    # a metric is no use of a parameter of the same name
    metric = written({"a": f"sum({ALL}) > 1"}, parameter=["work"])
    assert warnings(metric) == ["parameter work is used nowhere"]


@pytest.mark.parametrize("key", ["template", "output_metric"])
@pytest.mark.parametrize(
    ("text", "at", "mistake"),
    [
        ("{nothing}", 1, "unknown name nothing"),
        ("if(a;if(1 + 1;x))", 10, "the condition 1 + 1 is not true or false"),
        ("{a.first}", 3, "first needs a tuple"),
    ],
)
def test_a_mistake_in_a_text_has_its_place(key: str, text: str, at: int, mistake: str) -> None:
    rule = written({"a": "true"}, **{key: text})
    column = rule.index(text) + 1 + at
    assert errors(rule)[0] == f"tried.json:1:{column}: error: {mistake}"


def test_limits_of_names_numbers_and_keys_are_the_last_that_are_allowed() -> None:
    name = "x" * 64
    assert "unknown name" in errors(written({"a": f"{name} > 1"}))[0]
    assert errors(written({"a": "1" * 100 + " > 1"})) == []
    assert "too large" in errors(written({"a": "1" * 101 + " > 1"}))[0]
    assert "unknown name SelectMetric" in errors(written({"a": "for_each(Node, SelectMetric)"}))[0]
    assert errors(written({"a": "true"}, template="x" * 2000)) == []
    assert errors(written({"a": "true"}, template="if(a;if(a;if(a;if(a;x))))")) == []
