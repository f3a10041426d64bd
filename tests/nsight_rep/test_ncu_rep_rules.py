"""What the rules of Nsight Compute say, as its library reads it from a report."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from made_report import MadeLaunch, MadeMessage, MadeRule, write
from tachograph.nsight.launches import RULES_MAX, RuleResult
from tachograph.nsight.ncu_rep import read_ncu_rep

pytest.importorskip("ncu_report", reason="the library of Nsight Compute is not installed")
TIMED = {"gpu__time_duration.sum": 1000.0}
INF, WRN, ERR, OPT = 1, 2, 3, 4
LOCAL, GLOBAL = 1, 2


def rules_of(folder: Path, *rules: MadeRule) -> tuple[RuleResult, ...]:
    (launch,) = read_ncu_rep(write(folder / "a.ncu-rep", [MadeLaunch(metrics=TIMED, rules=rules)])).launches
    return launch.rules


def test_each_message_of_each_rule_in_order(tmp_path: Path) -> None:
    found = rules_of(
        tmp_path,
        MadeRule(
            "LaunchConfiguration",
            "LaunchStats",
            (
                MadeMessage("Few blocks.", OPT, (GLOBAL, 50.0), "Small Grid"),
                MadeMessage("See the @url:Guide:https://docs.nvidia.com/x@,\n@section:Occupancy:Occupancy@.", WRN),
            ),
        ),
        MadeRule("UncoalescedGlobalAccess", "SourceCounters", ()),  # marks lines of the source alone
        MadeRule("SOLBottleneck", "SpeedOfLight", (MadeMessage("Fine.", INF), MadeMessage("Broken.", ERR))),
        MadeRule("CPIStall", "WarpStateStats", (MadeMessage("Waits.", 0, (LOCAL, 81.25)),)),
    )
    assert found == (
        RuleResult("LaunchConfiguration", "LaunchStats", "OPT", "Few blocks.", 50.0, "global"),
        RuleResult(
            "LaunchConfiguration", "LaunchStats", "WRN", "See the Guide (https://docs.nvidia.com/x), Occupancy."
        ),
        RuleResult("SOLBottleneck", "SpeedOfLight", "INF", "Fine."),
        RuleResult("SOLBottleneck", "SpeedOfLight", "ERR", "Broken."),
        RuleResult("CPIStall", "WarpStateStats", None, "Waits.", 81.25, "local"),
    )


def test_each_launch_has_its_own(tmp_path: Path) -> None:
    said = MadeRule("SOLBottleneck", "SpeedOfLight", (MadeMessage("Slow."),))
    made = [
        MadeLaunch(metrics=TIMED, rules=(said,)),
        MadeLaunch(metrics=TIMED),
        MadeLaunch(metrics=TIMED, rules=(said,)),
    ]
    first, second, third = read_ncu_rep(write(tmp_path / "a.ncu-rep", made)).launches
    assert (len(first.rules), second.rules) == (1, ())
    assert first.rules[0] is third.rules[0]  # the same words are kept once


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.5])
def test_estimates_that_are_no_number(tmp_path: Path, value: float) -> None:
    (said,) = rules_of(tmp_path, MadeRule("A", "B", (MadeMessage("c", OPT, (GLOBAL, value)),)))
    assert said == RuleResult("A", "B", "OPT", "c")


def test_an_estimate_of_unknown_type(tmp_path: Path) -> None:
    (said,) = rules_of(tmp_path, MadeRule("A", "B", (MadeMessage("c", OPT, (0, 3.0)),)))
    assert (said.speedup_percent, said.speedup_type) == (3.0, None)


def test_text_is_cut_and_results_are_bounded(tmp_path: Path) -> None:
    long = "é" * 300_000
    messages = (MadeMessage(long), *(MadeMessage(f"message {number}") for number in range(2 * RULES_MAX)))
    found = rules_of(tmp_path, MadeRule(long, long, messages))
    assert len(found) == RULES_MAX
    assert max(len(part) for said in found for part in (said.rule, said.section, said.text)) <= 1000
    assert found[-1].text == f"message {RULES_MAX - 2}"


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.ncu-rep", [MadeLaunch(metrics=TIMED, rules=(MadeRule("Rule~~", "B", (MadeMessage("say~~"),)),))]
    )
    path.write_bytes(path.read_bytes().replace(b"~~", b"\xff\xfe"))
    ((said,),) = (launch.rules for launch in read_ncu_rep(path).launches)
    assert (said.rule, said.text) == ("Rule??", "say??")
