"""Advice refuses what naive policies fall for, and what is printed is what was simulated."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from day import command
from day.jobs import Application, SharedDay
from day.report import DayReport, How, build_day_report
from day.schedule import POLICIES, PolicyKnowledge, known_of, permitted, true_speeds
from day.text import SLOWDOWNS, WORK, table, write_figure
from tachograph.catalog.config import InterferenceOptions
from tachograph.catalog.errors import UsageError
from tachograph.sharing.demand import H100_NVL, Sharing
from tachograph.sharing.estimate import estimate

pytestmark = pytest.mark.slow  # days are simulated, which takes long

HBM = H100_NVL.hbm_bytes or 0.0
BY_CODE = {policy.code: policy for policy in POLICIES}


def day(*applications: Application) -> SharedDay:
    jobs = len(applications)
    return SharedDay(applications, np.arange(jobs), np.zeros(jobs), np.full(jobs, 3600.0), np.ones(jobs, np.int64))


def one(kernel: str, *, idle: float = 0.0, gb: float = 5.0) -> Application:
    phases = ((1 - idle, kernel), *(((idle, None),) if idle else ()))
    return Application(kernel, phases, gb * 1e9)


def known(chosen: SharedDay, seed: int = 1) -> PolicyKnowledge:
    return known_of(chosen, true_speeds(chosen, seed), seed=seed, profiles="measured", settings=InterferenceOptions())


def may(code: str, everything: PolicyKnowledge) -> bool:
    return bool(permitted(BY_CODE[code], everything, hbm_bytes=HBM).may[0, 1])


@pytest.mark.parametrize(
    ("first", "second", "fooled"),
    [
        ("fmul-ilp4-1024", "copy-132x1024", "roofline"),
        ("fmul-ilp4-128", "fmul-ilp4-128", "occupancy"),
        ("dmul-ilp4", "dmul-ilp4", "occupancy"),
        ("sleep-264", "copy-33x1024", "roofline"),
    ],
)
def test_advice_refuses_what_a_naive_policy_permits(first: str, second: str, fooled: str) -> None:
    everything = known(day(one(first), one(second)))
    assert {code: may(code, everything) for code in (fooled, "advice", "safe", "oracle")} == {
        fooled: True,
        "advice": False,
        "safe": False,
        "oracle": False,
    }


def test_advice_permits_who_disturb_none() -> None:
    everything = known(day(one("sleep-132"), one("dmul-ilp1")))
    assert may("advice", everything)
    assert not may("roofline", everything)  # both are compute-bound
    assert not may("exclusive", everything)


@pytest.mark.parametrize("code", [policy.code for policy in POLICIES])
def test_no_policy_permits_more_memory_than_there_is(code: str) -> None:
    assert not may(code, known(day(one("inference-24", gb=60), one("dmul-ilp1", gb=60))))


def test_what_is_not_known_is_refused() -> None:
    everything = known(day(one("sleep-132"), one("dmul-ilp1")))
    unknown = np.full((2, 2), np.nan)
    blank = PolicyKnowledge(everything.seen, unknown, unknown, everything.safe, everything.true, everything.settings)
    assert not may("advice", blank)


def test_phases_meet_by_chance() -> None:
    everything = known(day(one("dmul-ilp4", idle=0.5), one("dmul-ilp3", idle=0.25)))
    ((share, first),), ((other_share, second),) = (seen.phases for seen in everything.seen)
    together = estimate([first, second], gpu=H100_NVL, sharing=Sharing(mode="mps"), settings=InterferenceOptions())
    slowed = [member.slowdown or 0.0 for member in together.members]
    assert slowed[0] > 1.2
    assert everything.expected[0, 1] == pytest.approx(1 + share * other_share * (slowed[0] - 1))
    assert everything.expected[1, 0] == pytest.approx(1 + share * other_share * (slowed[1] - 1))


def report(**changed: object) -> DayReport:
    chosen = {
        "seeds": range(1, 4),
        "policies": tuple(BY_CODE),
        "profiles": "measured",
        "settings": InterferenceOptions(),
    }
    numbers = {"gpus": 8, "jobs": 100, "load": 1.4}
    how = How(**(chosen | {name: one for name, one in changed.items() if name not in numbers}))  # type: ignore[arg-type]
    return build_day_report(how, **(numbers | {name: changed[name] for name in numbers if name in changed}))  # type: ignore[arg-type]


def test_advice_shares_with_less_harm_than_naive_policies() -> None:
    found = {result.policy: result for result in report().results}
    for naive in ("roofline", "occupancy"):
        for came, other in zip(found["advice"].days, found[naive].days, strict=True):
            assert came.slowdown_p99 < other.slowdown_p99
            assert came.slower_50 <= other.slower_50
    assert all(came.per_gpu_hour > 1.05 for came in found["advice"].days)
    assert all(came.slowdown_max <= 1.1 + 1e-9 for came in found["oracle"].days)


def test_a_report_is_what_its_days_came_to() -> None:
    found = report(policies=("advice", "roofline"))
    assert [result.policy for result in found.results] == ["roofline", "advice"]
    for result in found.results:
        values = [came.slowdown_max for came in result.days]
        spread = result.spread["slowdown_max"]
        assert (spread.median, spread.least, spread.most) == (median(values), min(values), max(values))
    titles, rows = table(found, SLOWDOWNS)
    assert titles[4] == "worst"
    assert rows[0][4].startswith(f"{median(came.slowdown_max for came in found.results[0].days):.2f}x (")
    assert found.results[0].spread["makespan_ratio"].most != 1


@pytest.mark.parametrize("width", [80, 100, 300])
def test_a_table_has_as_many_columns_as_fit(width: int) -> None:
    found = report(policies=("advice", "roofline"))
    for columns in (WORK, SLOWDOWNS):
        titles, rows = table(found, columns, width=width)
        assert sum(max(map(len, cells)) + 3 for cells in zip(titles, *rows, strict=True)) <= width
        assert {len(row) for row in rows} == {len(titles)}
        whole, _ = table(found, columns)
        assert (titles == whole) == (width == 300)
        assert titles == tuple(title for title in whole if title in titles)


def test_exclusive_use_is_the_measure() -> None:
    (alone,) = report(policies=("exclusive",)).results
    _, (row,) = table(report(policies=("exclusive",)), WORK)
    assert row[:5] == ("exclusive", "0 %", "1.00x", "0", "1.00x")
    assert alone.spread["slowdown_max"].most == 1


@pytest.mark.parametrize("profiles", ["measured", "dcgm", "dcgm-careful"])
def test_days_are_the_same_for_the_same_seed_and_profiles(profiles: str) -> None:
    few = {"jobs": 40, "gpus": 4, "seeds": (7,), "profiles": profiles}
    assert report(**few) == report(**few)


def test_the_command_prints_one_result_in_two_forms(capsys: pytest.CaptureFixture[str]) -> None:
    few = ("--gpus", "4", "--jobs", "40", "--seeds", "2", "--policies", "exclusive", "advice")
    assert command.run(command.parsed([*few])) == 0
    text = capsys.readouterr().out
    assert command.run(command.parsed([*few, "--json"])) == 0
    found = json.loads(capsys.readouterr().out)
    assert [result["policy"] for result in found["results"]] == ["exclusive", "advice"]
    assert f"{found['results'][1]['spread']['per_gpu_hour']['median']:.2f}x" in text
    assert "2 simulated days of 40 jobs on 4 GPUs, seeds 1 to 2" in text
    assert len(found["results"][1]["days"]) == 2


def test_a_figure_has_a_mark_for_each_policy_and_day(tmp_path: Path) -> None:
    drawn = [tmp_path / "one.svg", tmp_path / "two.svg"]
    found = report(gpus=4, jobs=40, seeds=(1, 2))
    for file in drawn:
        write_figure(found, file)
    text = drawn[0].read_text(encoding="utf-8")
    assert text == drawn[1].read_text(encoding="utf-8")
    assert text.count("<use ") >= 2 * len(POLICIES)
    assert text.count("allowed") == 1
    with pytest.raises(UsageError, match="the folder does not exist"):
        command.run(command.parsed(["--figure", str(tmp_path / "absent" / "day.svg"), "--jobs", "100000"]))
    with pytest.raises(UsageError, match="no format of figures"):
        command.run(command.parsed(["--figure", "day.txt"]))


@pytest.mark.parametrize("words", [("--gpus", "0"), ("--jobs", "0"), ("--seeds", "0"), ("--load", "nan")])
def test_days_that_cannot_be_are_refused(words: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match=f"{words[0]} .* is not between"):
        command.run(command.parsed([*words]))


def test_the_command_knows_all_policies() -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    (offered,) = (action.choices for action in parser._actions if action.dest == "policies")
    assert tuple(offered or ()) == tuple(BY_CODE)


def test_the_command_runs_as_a_script() -> None:
    folder = Path(command.__file__).parent
    done = subprocess.run([sys.executable, str(folder), "--jobs", "0"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "tachograph: --jobs 0 is not between 1 and 100000\n"
