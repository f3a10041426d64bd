"""Replays of policies: what was known at each time decides, and what came later judges."""

from __future__ import annotations

from typing import Any

from test_policy_evidence import minutes

from jobframes import START, gpus, job_row
from tachograph.annexes.act.policy_backtest import PolicyReplay, replay
from tachograph.catalog.policies import PolicyOptions
from tachograph.catalog.rows import JobSummaryRow

POLICY = PolicyOptions("a", "hung", "cancel", minutes=20, warnings=1, warning_minutes=30)


def replayed(*courses: str, policy: PolicyOptions = POLICY, **job: Any) -> PolicyReplay:
    row: JobSummaryRow = {
        "job_key": "c:100:1",
        "gpus": len(courses),
        "user": "bob",
        "partition": "gpu",
        "start": START,
        "attribution": "explicit",
    }
    return replay(policy, row | job_row(**job), gpus(*({} for _ in courses)), minutes(*courses))


def test_a_hang_is_hit_after_two_windows_and_the_warning() -> None:
    found = replayed("W" * 60 + "P" * 180, "W" * 60 + "P" * 180)
    assert (found.outcome, found.at, found.warnings, found.worked_again) == ("hit", 130, 1, False)
    assert found.recovered == found.gpu_hours_after == 2 * (240 - 130) / 60


def test_one_that_works_again_after_the_warning_is_left_alone() -> None:
    found = replayed("W" * 60 + "P" * 60 + "W" * 60)
    assert (found.outcome, found.warnings) == ("warned", 1)


def test_one_that_works_again_after_the_action_would_have_been_wrong() -> None:
    found = replayed("W" * 60 + "P" * 120 + "W" * 60)
    assert (found.outcome, found.at, found.worked_again, found.recovered) == ("hit", 130, True, 0.0)


def test_little_work_later_does_not_hide_that_it_was_thought_hung() -> None:
    """At a hundredth of its usual work a job looks hung; that this became usual later was not
    known.
    """
    row = minutes("W" * 60 + "I" * 40)
    assert replayed("W" * 60 + "I" * 90).outcome == "hit"
    assert row.height == 100


def test_short_pauses_and_work_throughout() -> None:
    assert replayed("W" * 60 + "P" * 30 + "W" * 60).outcome == "left"
    assert replayed("W" * 200, "W" * 60 + "P" * 140).outcome == "left"


def test_what_was_not_measured_and_who_is_exempt() -> None:
    assert replayed("W" * 60 + "P" * 180, gpus=2).outcome == "not_measured"
    assert replayed("W" * 60 + "P" * 180, attribution="ambiguous").outcome == "not_measured"
    exempt = PolicyOptions("a", "hung", "cancel", exempt_users=("b*",))
    assert replayed("W" * 60 + "P" * 180, policy=exempt).outcome == "exempt"
    assert replayed("W" * 60 + "P" * 180 + "." * 200).outcome == "hit"


def test_two_pauses_are_two_cases() -> None:
    found = replayed("W" * 30 + "P" * 50 + "W" * 30 + "P" * 50 + "W" * 30)
    assert (found.outcome, found.warnings) == ("warned", 2)
