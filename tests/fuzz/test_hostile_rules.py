"""Hostile rules neither break nor hold up those who read them, and reach nothing; `make fuzz`
runs many more.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random
from threading import Event, Thread

import pytest
from fuzz_targets import shipped_rules
from hostile_rules import cyclic, deep, dense, growing, hostile_rule, huge, odd, run_rules, watched

from own_time import own_seconds
from tachograph.judge.rules.model import LoadedPatterns, RuleOutcome
from tachograph.judge.rules.patterns import load_patterns

SEEDS = tuple(shipped_rules())


def run_soon(content: bytes) -> tuple[LoadedPatterns, list[RuleOutcome]]:
    """What comes of rules, which are quick: 0.04 s at most where this was written."""
    found: list[tuple[LoadedPatterns, list[RuleOutcome]]] = []
    assert own_seconds(lambda: found.append(run_rules(content)), enough=1) < 1
    return found[0]


def test_hostile_rules_do_no_harm() -> None:
    verdicts: Counter[str] = Counter()
    run_rules(SEEDS[0])  # the parser is made once
    for number in range(60):
        content = hostile_rule(SEEDS, Random(f"test/{number}"))
        loaded, outcomes = run_soon(content)
        verdicts["refused"] += not loaded.rules
        verdicts.update(outcome.verdict for outcome in outcomes)
    assert all(verdicts[name] > 2 for name in ("refused", "yes", "no", "unknown")), verdicts


@pytest.mark.parametrize("maker", [deep, growing, cyclic, odd, huge, dense])
def test_shapes_of_ill_intent_are_what_they_are_for(maker: object) -> None:
    """Each of them makes rules that differ, most of which are refused with a reason."""
    made = [maker(Random(number)) for number in range(12)]  # type: ignore[operator]
    assert len({str(one) for one in made}) > 5


def test_files_and_environment_are_watched() -> None:
    with pytest.raises(AssertionError, match="open"), watched():
        Path(os.devnull).read_bytes()
    with pytest.raises(AssertionError, match="environment"), watched():
        os.getenv("HOME")
    with pytest.raises(AssertionError, match=r"import|compile"), watched():
        compile("1 + 1", "x", "eval")
    with pytest.raises(AssertionError, match=r"subprocess|os\."), watched():
        subprocess.run([sys.executable, "-V"], check=False, env={}, stdout=subprocess.DEVNULL)
    with watched():
        load_patterns("{}", "x")
    assert os.environ["PATH"]


def test_other_threads_go_on_while_a_rule_is_watched() -> None:
    begin, done = Event(), Event()
    read: list[str | None] = []

    def other() -> None:
        begin.wait()
        read.append(os.environ.get("PATH"))
        done.set()

    beside = Thread(target=other)
    beside.start()
    with watched():
        begin.set()
        assert done.wait(10)
    beside.join()
    assert read == [os.environ["PATH"]]


def test_the_parser_needs_no_recursion() -> None:
    """As deep as an expression may be, on a stack that is nearly used up."""
    expression = "(" * 40 + "1" + ")" * 40
    chain = " + ".join(["1"] * 400)
    text = f'{{"name": "n", "tag": "t", "rule_terms": [{{"a": "{expression} > {chain}"}}], "output": "a"}}'
    limit = sys.getrecursionlimit()
    depth = 0
    frame = sys._getframe()
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    run_rules(text.encode())
    sys.setrecursionlimit(depth + 350)
    try:
        _, outcomes = run_rules(text.encode())
    finally:
        sys.setrecursionlimit(limit)
    assert [outcome.verdict for outcome in outcomes] == ["no"]
