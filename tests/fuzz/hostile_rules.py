"""Rules by chance, and rules with ill intent: what a site's folder might hold. And jobs that are no
better.

Each is decided by its source of chance alone. Half are expressions made by the grammar, most of
which pass the checks; the others are published rules with bytes changed, and shapes that break
parsers and fill memories.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from threading import get_ident
from typing import Any

from mutators import LARGEST, mutate

from tachograph.catalog.units import printable
from tachograph.judge.rules.compiler import FUNCTIONS
from tachograph.judge.rules.model import (
    LoadedPatterns,
    RuleLevel,
    RuleMetric,
    RuleOutcome,
    RulePair,
    Value,
)
from tachograph.judge.rules.patterns import load_patterns
from tachograph.judge.rules.program import compile_rule, evaluate

METRICS = {
    metric.name: metric
    for metric in (
        RuleMetric("work", "gpu", "s"),
        RuleMetric("use", "gpu"),
        RuleMetric("model", "gpu", text=True),
        RuleMetric("load", "node"),
        RuleMetric("walltime", "job", "s", positive=True),
        RuleMetric("idle", "job"),
        RuleMetric("state", "job", text=True),
    )
}
PARAMETERS = {
    "threshold": 0.5,
    "load_imbalance_ratio_threshold": 0.2,
    "load_imbalance_waste_threshold": 1e9,
}
_NUMBERS = (
    "0",
    "1",
    "-1",
    "2.5",
    "1e308",
    "1e-308",
    "1e999",
    "9" * 99,
    "9" * 1500,
    ".5",
    "0.1e-9999",
    "0x10",
    "1_0",
)
_LIST = "GatherFromAllRanks(SelectMetric({}, OverAll))"
_ODD = (
    "é",
    "𝕒",
    "а",
    "a\u202eb",
    "\u0000",
    "__class__",
    "os.environ",
    "open('/etc/passwd')",
    "${HOME}",
    "`id`",
    "\\",
)
_EVIL = (
    "__import__('os').system('id')",
    "().__class__.__bases__",
    "open('/etc/passwd').read()",
    "eval('1')",
    "exec('1')",
    "getattr(a, 'b')",
    "lambda: 0",
    "[x for x in a]",
    "a.b.c.first",
    "{a.__class__}",
    "$HOME",
    "%(a)s",
    "a if b else c",
    "f'{1}'",
    "a := 1",
    "*a",
    "a ** 9999999",
    "9 ** 9 ** 9",
)


def number(chance: Random, terms: Sequence[str], depth: int) -> str:
    """A number, as the grammar has it."""
    if depth <= 0 or chance.random() < 0.2:
        return chance.choice(("threshold", "walltime", "idle", *_NUMBERS[:6], *terms))
    kind = chance.randrange(8)
    if kind < 3:
        sign = chance.choice("+-*/")
        return f"{number(chance, terms, depth - 1)} {sign} ({number(chance, terms, depth - 1)})"
    if kind < 5:
        work = chance.choice(
            (
                "max",
                "min",
                "sum",
                "mean",
                "median",
                "lower_quartile",
                "upper_quartile",
                "cardinality",
            )
        )
        return f"{work}({numbers(chance, terms, depth - 1)})"
    if kind == 5:
        return f"abs(-{number(chance, terms, depth - 1)})"
    if kind == 6:
        return f"if({truth(chance, terms, depth - 1)}; {number(chance, terms, depth - 1)}; 1)"
    return f"make_tuple({number(chance, terms, depth - 1)}, 'x').first"


def numbers(chance: Random, terms: Sequence[str], depth: int) -> str:
    """A list of numbers."""
    kind = chance.randrange(6)
    if depth <= 0 or kind < 2:
        return _LIST.format(chance.choice(("work", "use", "load")))
    if kind == 2:
        return (
            f"if({numbers(chance, terms, depth - 1)} > {number(chance, terms, 0)}; "
            f"{numbers(chance, terms, 0)})"
        )
    if kind == 3:
        return f"({numbers(chance, terms, depth - 1)} * {number(chance, terms, depth - 1)})"
    if kind == 4:
        return (
            "for_each(Process, make_tuple(RANK, SelectMetric(work, OverAll) / "
            f"{number(chance, terms, 0)})).second"
        )
    return (
        f"for_each({chance.choice(('Process', 'GPU', 'Node'))}, {number(chance, terms, depth - 1)})"
    )


def truth(chance: Random, terms: Sequence[str], depth: int) -> str:
    """True or false."""
    if depth <= 0:
        return f"{number(chance, terms, 0)} {chance.choice(('<', '<=', '>', '>=', '==', '!='))} 1"
    kind = chance.randrange(5)
    if kind == 0:
        return f"not ({truth(chance, terms, depth - 1)})"
    if kind < 3:
        word = chance.choice(("and", "or"))
        return f"({truth(chance, terms, depth - 1)} {word} {truth(chance, terms, depth - 1)})"
    if kind == 3:
        return (
            f"{chance.choice(('any', 'all'))}({numbers(chance, terms, depth - 1)} > "
            f"{number(chance, terms, 0)})"
        )
    return f"state == '{chance.choice(('FAILED', '', 'é'))}'"


def random_rule(chance: Random) -> dict[str, Any]:
    """A rule of some terms, most of which pass the checks."""
    terms: list[tuple[str, str]] = []
    for place in range(chance.choice((1, 2, 3, 9))):
        known = [name for name, _ in terms]
        terms.append((f"t{place}", number(chance, known, chance.randint(0, 3))))
    terms.append(("end", truth(chance, [name for name, _ in terms], chance.randint(0, 4))))
    text = "".join(
        chance.choice(("a ", "{t0}", "$t0%", "{t0} h", "if(end;x {t0})", "if(t0 > 1;y)"))
        for _ in range(9)
    )
    return _rule(terms, text, level=chance.choice(("job", "job", "gpu", "node")))


def _rule(terms: Sequence[tuple[str, str]], text: str = "", **more: object) -> dict[str, Any]:
    return {
        "name": "n",
        "tag": "t",
        "parameter": ["threshold"],
        "rule_terms": [{name: expression} for name, expression in terms],
        "output": terms[-1][0] if terms else "",
        "output_metric": text,
        "template": text,
        **more,
    }


def deep(chance: Random) -> dict[str, Any]:
    """Something within itself, ten thousand times and more."""
    times = chance.choice((20, 39, 41, 500, 10_000, 20_000))
    before, middle, behind = chance.choice(
        (
            *(
                ("(", "1", ")"),
                ("-", "1", ""),
                ("not ", "true", ""),
                ("max(", "1", ")"),
                ("if(true;", "1", ";1)"),
            ),
            *(
                ("(-", "1", ")"),
                ("", "make_tuple(1,2)", ".first"),
                ("1+", "1", ""),
                ("1<", "1", ""),
                ("", "a", "()"),
            ),
            *(
                ("true or ", "true", ""),
                ("or(true,", "true", ")"),
                ("[", "1", "]"),
                ("for_each(Process,", "1", ")"),
            ),
            *(
                ("1 - ", "1", ""),
                ("GatherFromAllRanks(", "SelectMetric(work,OverAll)", ")"),
                ("if(", "1", ""),
            ),
        )
    )
    expression = before * times + middle + behind * times
    return _rule([("a", expression), ("end", "a == 1")], expression)


def growing(chance: Random) -> dict[str, Any]:
    """Terms each of which is twice the one before."""
    begin, step = chance.choice(
        (
            ("1e300", "{0} * {0}"),
            ("2", "{0} + {0}"),
            ("1e-300", "{0} / (1 / {0})"),
            (_LIST.format("work"), "{0} + {0}"),
            (_LIST.format("work"), "if({0} > 0; {0})"),
            ("'x'", "{0} + {0}"),
            ("make_tuple(1, 2)", "make_tuple({0}, {0})"),
            (_LIST.format("work"), "for_each(Process, {0})"),
            ("1", "if({0} > 0; if({0} > 0; {0}; {0}); {0})"),
        )
    )
    names = [f"t{place}" for place in range(chance.choice((5, 60, 500)))]
    terms = [(names[0], begin), *((name, step.format(before)) for before, name in pairwise(names))]
    return _rule(
        [*terms, ("end", f"cardinality({names[-1]}) > 0")],
        f"{{{names[-1]}}}" * chance.choice((40, 200)),
    )


def cyclic(chance: Random) -> dict[str, Any]:
    """Terms that use each other in circles."""
    count = chance.choice((1, 2, 10, 60))
    terms = [
        (f"t{place}", " + ".join(f"t{chance.randrange(count)}" for _ in range(6)))
        for place in range(count)
    ]
    return _rule([*terms, ("end", "t0 > 0")])


def odd(chance: Random) -> dict[str, Any]:
    """Names, numbers and functions that do not exist, or should not."""
    terms = [
        (
            chance.choice((*_ODD, "x" * 100_000, "a", "b", "or", "RANK", "", "max", "work")),
            chance.choice(
                (*_EVIL, *_ODD, *_NUMBERS, "x" * 60_000, *(f"{name}(a, 1)" for name in FUNCTIONS))
            ),
        )
        for _ in range(chance.randint(1, 6))
    ]
    name = chance.choice((*_ODD, "numberOfProcesses", "x" * 3000))
    return _rule(
        [*terms, ("end", "a > 1")], "".join(chance.choice((*_EVIL, *_ODD)) for _ in range(5))
    ) | {
        f"metric({name})": chance.choice((*_ODD, "n")),
        chance.choice(
            ("level", "parameter", "output", "template", "tag", "id", "rule_terms", "type")
        ): chance.choice(
            (
                None,
                1,
                "",
                [],
                {},
                [[]],
                [None],
                "gpu",
                "x" * 10_000,
                [{"a": 1}],
                [{}],
                ["threshold"] * 900,
            )
        ),
    }


def huge(chance: Random) -> dict[str, Any]:
    """As much as a file may hold, and more."""
    count = chance.choice((60, 64, 300, 3000))
    text = (
        chance.choice(
            ("{end}", "if(end;", "$end ", "{" * 9, "if(end;{end})", "x", "%", "\u202e", "${{")
        )
        * count
        * 9
    )
    terms = [
        (f"t{place}", chance.choice(("threshold", "unknwon", "1 +"))) for place in range(count)
    ]
    return _rule(
        [*terms, ("end", "1 > 0" if chance.random() < 0.5 else " + ".join(["median"] * count))],
        text,
    )


def dense(chance: Random) -> dict[str, Any]:
    """As many values as the length of a file allows."""
    value: Any = chance.choice((1, None, [], {}, "", True, {"a": 1}, [1, [2]], "a b"))
    key = chance.choice(("rule_terms", "parameter", "rules", "x", "template"))
    return _rule([("end", "1 > 0")]) | {key: [value] * chance.choice((1000, 5000, 20_000))}


def hostile_rule(seeds: Sequence[bytes], chance: Random) -> bytes:
    """Return the bytes of a rule, of several, or of what once was one."""
    kind = chance.random()
    if kind < 0.25:
        return mutate(seeds, chance)
    makers: tuple[Callable[[Random], dict[str, Any]], ...] = (
        deep,
        growing,
        cyclic,
        odd,
        huge,
        dense,
    )
    document: Any = random_rule(chance) if kind < 0.75 else chance.choice(makers)(chance)
    if chance.random() < 0.1:
        document = {
            "name": "p",
            "rules": [document | {"id": f"r{place}"} for place in range(chance.choice((2, 9)))],
        }
    content = json.dumps(document, ensure_ascii=chance.random() < 0.5).encode(
        "utf-8", "surrogatepass"
    )
    return (mutate((content,), chance) if chance.random() < 0.1 else content)[:LARGEST]


@dataclass(frozen=True)
class HostileJob:
    """A job by chance: no GPUs or hundreds, with values that are no values."""

    chance: Random
    gpus: int
    nodes: int

    def labels(self, kind: RuleLevel) -> Sequence[str]:
        """GPUs have names of all sorts."""
        return [
            f"{kind}\u202e\n{place}" for place in range(self.nodes if kind == "node" else self.gpus)
        ]

    def of_ranks(self, metric: str) -> Sequence[Any] | None:
        """Values, or none at all, or too few."""
        count = self.nodes if METRICS[metric].level == "node" else self.gpus
        kind = self.chance.random()
        values = (0.0, 1.0, -1.0, 3600.0, 1e308, -1e308, 5e-324, 7, True)
        if kind < 0.3:
            values = (*values, None, math.nan, math.inf, -math.inf, 10**400, "text", "")  # type: ignore[assignment]
        found = [self.chance.choice(values) for _ in range(count)]
        return None if kind < 0.05 else found[:-1] if kind < 0.1 else found

    def of_job(self, metric: str) -> Any:
        """A value, or none."""
        return self.chance.choice((1.0, 3600.0, 0.0, 1e308, None, math.nan, "FAILED", 10**400))


_WATCHING: list[str] = []  # what was requested while somebody watched
_HARMLESS = ("builtins.id", "object.__", "sys._getframe", "gc.")
_hooked = False
_watched_thread: int | None = None  # others run on: a server of another test may still answer


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if _watched_thread == get_ident() and not event.startswith(_HARMLESS):
        _WATCHING.append(f"{event} {str(arguments)[:80]}")


class _Environment:
    """Stands where the environment is, and records what the watched thread reads of it."""

    def __init__(self, environment: os._Environ[str]) -> None:
        self._environment = environment

    def __getattr__(self, name: str) -> object:
        self._record(name)
        return getattr(self._environment, name)

    def __getitem__(self, name: str) -> str:
        self._record(name)
        return self._environment[name]

    @staticmethod
    def _record(name: str) -> None:
        if _watched_thread == get_ident():
            _WATCHING.append(f"environment {name}")
            raise AssertionError(f"a rule asked for environment {name}")


@contextmanager
def watched() -> Iterator[None]:
    """Fail when this thread requests files, processes, sockets, imports, or the environment."""
    global _hooked, _watched_thread  # noqa: PLW0603  # an audit hook cannot be taken away
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked = True
    _WATCHING.clear()
    kept, _watched_thread = os.environ, get_ident()
    os.environ = _Environment(kept)  # type: ignore[assignment] # noqa: B003
    try:
        yield
    finally:
        _watched_thread = None
        os.environ = kept  # noqa: B003
    if _WATCHING:
        raise AssertionError(f"a rule asked for {_WATCHING[:3]}")


def run_rules(content: bytes) -> tuple[LoadedPatterns, list[RuleOutcome]]:
    """Return what is loaded of a file and what comes of its rules over a job by chance; nothing
    else is touched.

    Errors: AssertionError where a rule accessed more than it may, or an outcome is not what it
    should be.
    """
    text = content.decode("utf-8", "replace")
    chance = Random(content)
    job = HostileJob(chance, chance.choice((0, 1, 4, 8, 8, 256)), chance.choice((0, 1, 2)))
    outcomes = []
    # Loads the parser.
    load_patterns('{"name": "n", "tag": "t", "rule_terms": [{"a": "true"}], "output": "a"}', "warm")
    printable("\u202e")  # loads the codec by which messages write characters out
    with watched():
        loaded = load_patterns(text, "hostile.json")
        for rule in loaded.rules:
            program, found = compile_rule(rule, METRICS, PARAMETERS)
            printed = [str(problem) for problem in (*loaded.problems, *found)]
            assert all(len(line) < 1000 and "\n" not in line for line in printed)
            if program is not None:
                outcomes.append(evaluate(program, job, PARAMETERS))
    for outcome in outcomes:
        _check_outcome(outcome)
    return loaded, outcomes


def _check_outcome(outcome: RuleOutcome) -> None:
    assert outcome.alert in (True, False, None)
    assert outcome.alert is not None or outcome.unknown or outcome.reasons, (
        "it does not say why it cannot be said"
    )
    assert len(outcome.text) <= 4000
    assert (outcome.text == "") or outcome.alert
    for value in outcome.values.values():
        _check_value(value)


def _check_value(value: Value) -> None:
    if isinstance(value, list):
        assert len(value) <= 256
        for one in value:
            _check_value(one)
    elif isinstance(value, RulePair):
        _check_value(value.first)
        _check_value(value.second)
    else:
        assert value is None or isinstance(value, str | bool) or math.isfinite(value)
