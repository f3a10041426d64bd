"""`tachograph lab rules`: what it prints, as text and as JSON, and every mistake in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ruled_lake import ACTIVITY, ruled_lake

from madelake import NOW
from tachograph.catalog.config import Configuration
from tachograph.cli import main
from tachograph.judge.job_judge import JobJudge
from tachograph.pipeline.run import analyze

BROKEN = '{"name": "x", "tag": "x_y", "rule_terms": [{"a": "walltime > nowhere"}], "output": "a"}'
FINE = '{"name": "x", "tag": "x_y", "rule_terms": [{"a": "walltime > 7"}], "output": "a", "template": "long"}'


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Done]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("ruled") / "lake"
    analyze(ruled_lake(folder), Configuration(), judge=JobJudge, now=NOW)
    return str(folder)


@pytest.fixture
def run(
    lake: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TACHOGRAPH_LAKE", lake)

    def go(*arguments: str) -> Done:
        code = main(["lab", "rules", *arguments])
        return Done(code, *capsys.readouterr())

    return go


def test_the_list_shows_values_and_units(run: Run) -> None:
    done = run("list")
    assert (done.code, done.err) == (0, "")
    (line,) = [line for line in done.out.splitlines() if line.startswith("hot_gpu")]
    assert "hot_c" in line
    assert "85 °C" in line
    assert "gpu_temp_c" in line


def test_the_list_shows_what_the_site_changed(run: Run, tmp_path: Path) -> None:
    Path("tachograph.toml").write_text(
        '[rules]\ndisabled = ["slow_gpu"]\n[rules.parameters.hot_gpu]\nhot_c = 70\n'
    )
    done = run("list")
    assert "70 °C (default 85 °C)" in done.out
    (line,) = [line for line in done.out.splitlines() if line.startswith("slow_gpu")]
    assert " off " in line
    data = run("list", "--json").data
    rules = {rule["rule"]: rule for rule in data["rules"]}
    assert rules["slow_gpu"]["in_use"] is False
    assert rules["hot_gpu"]["parameters"]["hot_c"] == {
        "value": 70.0, "default": 85.0, "unit": "C", "meaning": ("highest temperature from which a GPU is "
        "hot"),
    }  # fmt: skip


def test_all_about_one_rule(run: Run) -> None:
    shown = run("list", "slow_gpu").out
    assert "slower_threshold" in shown
    assert "hot_c" not in shown
    assert run("list", "slow_gpu", "--json").data["rules"][0]["needs"] == [
        "sm_clock_mhz",
        "gpu_util",
    ]


def test_run_judges_stored_jobs_and_writes_nothing(run: Run, lake: str) -> None:
    before = sorted(path.stat().st_mtime_ns for path in Path(lake).rglob("*"))
    done = run("run", "hot_gpu")
    assert done.code == 0
    assert "or more." in done.out
    assert [line.split()[:5] for line in done.out.splitlines()[1:2]] == [
        ["1", "user1", "chem", "hot_gpu", "1.0"]
    ]
    data = run("run", "hot_gpu", "--set", "hot_c=75", "--json").data
    found = {row["job_id"]: row["verdict"] for row in data["verdicts"]}
    assert found == {"1": "yes", "2": "yes", "3": "no"}
    assert {(row["verdict"], row["jobs"]) for row in data["counts"]} == {("yes", 2), ("no", 1)}
    assert data["verdicts"][0]["checks"][0]["threshold"] == 75.0
    whose = [(row["user"], row["account"]) for row in data["verdicts"]]
    assert whose == [("user1", "chem"), ("user2", "chem"), ("user3", "chem")]
    assert before == sorted(path.stat().st_mtime_ns for path in Path(lake).rglob("*"))


def test_run_with_filters_a_verdict_and_a_folder(run: Run, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "x.json").write_text(FINE)
    data = run("run", "x_y", "--folder", "own", "--user", "user2", "--json").data
    assert [(row["job_id"], row["verdict"], row["sentence"]) for row in data["verdicts"]] == [
        ("2", "yes", "long")
    ]
    shown = run("run", "hot_gpu", "--show", "no").out
    assert "50 °C is below 85 °C" in shown
    everything = run("run", "--json").data
    codes = {row["code"] for row in everything["counts"]}
    assert len(everything["verdicts"]) == len(ACTIVITY) * len(codes)


def test_backtest_shows_who_changes(run: Run, tmp_path: Path) -> None:
    done = run("backtest", "hot_gpu", "--set", "hot_gpu.hot_c=75")
    assert done.code == 0
    (line,) = [line for line in done.out.splitlines() if line.startswith("2 ")]
    assert line.split()[:7] == ["2", "user2", "chem", "hot_gpu", "1.0", "no", "yes"]
    done = run("backtest", "hot_gpu", "--set", "hot_c=75", "--json")
    assert [row["job_id"] for row in done.data["changes"]] == ["2"]
    assert sum(row["jobs"] for row in done.data["counts"]) == len(ACTIVITY)


def test_check_tells_each_mistake_with_its_place(run: Run, tmp_path: Path) -> None:
    Path("fine.json").write_text(FINE)
    assert run("check", "fine.json") == Done(
        0, "fine.json: x_y valid; level: job; counters: elapsed_s\n", ""
    )
    Path("broken.json").write_text(BROKEN)
    done = run("check", "broken.json", "nothing.json")
    assert done.code == 4
    assert "broken.json:1:" in done.out
    assert "nowhere" in done.out
    assert "nothing.json:1:1: error: no such file" in done.out
    (first, _) = run("check", "broken.json", "nothing.json", "--json").data["problems"]
    assert (first["file"], first["line"], first["term"], first["severity"]) == (
        "broken.json",
        1,
        "a",
        "error",
    )
    assert first["column"] > 1


def test_import_writes_what_passes_the_check(run: Run, tmp_path: Path) -> None:
    classes = tmp_path / "jobclasses"
    classes.mkdir()
    (classes / "parameters.json").write_text('{"factor": 0.25, "name": "x", "flag": true}')
    given = {"name": "Low", "tag": "low_share", "parameters": ["factor"], "metrics": ["acc_utilization"],
             "requirements": [], "variables": [], "hint": "use {{.acc_utilization.avg}}",
             "rule": "acc_utilization.avg < factor * 100"}  # fmt: skip
    (classes / "low.json").write_text(json.dumps(given))
    (classes / "same.json").write_text(json.dumps(given))
    (classes / "taken.json").write_text(json.dumps(given | {"tag": "hot_gpu"}))
    (classes / "flops.json").write_text(
        json.dumps(given | {"tag": "f", "rule": "flops_any.avg < 1"})
    )
    (classes / "binary.json").write_bytes(b"\xff\xfe\x00")
    done = run("import-clustercockpit", "jobclasses", "-o", "own")
    assert done.code == 0
    assert sorted(path.name for path in Path("own").iterdir()) == ["low.json", "parameters.toml"]
    assert "flops.json: not translated\n  no counterpart: name flops_any.avg\n" in done.out
    assert "tag low_share is used by low.json" in done.out
    assert "tag hot_gpu is used by a shipped rule" in done.out
    assert run("check", "own").code == 0
    verdicts = run("run", "low_share", "--folder", "own", "--json").data["verdicts"]
    assert {row["job_id"]: row["verdict"] for row in verdicts} == {"1": "yes", "2": "no", "3": "no"}
    again = run("import-clustercockpit", "jobclasses", "-o", "own")
    assert (again.code, "file exists" in again.err) == (2, True)
    report = {one["file"]: one for one in run("import-clustercockpit", "jobclasses", "--json").data}
    assert report["low.json"]["rule"] == "low_share"
    assert report["flops.json"]["rule"] is None


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "ACTION"),
        (("lst",), 2, "lst"),
        (("list", "hot_gpus"), 6, "did you mean hot_gpu?"),
        (("list", "--folder", "nowhere"), 3, "rules.folder nowhere"),
        (("run", "hot_gpus"), 6, "no rule 'hot_gpus'"),
        (("run", "--set", "hot_c"), 2, "PARAMETER=VALUE"),
        (("run", "--set", "hot_c=warm"), 2, "invalid number"),
        (("run", "--set", "hot_c=nan"), 2, "invalid number"),
        (("run", "--set", "=1"), 2, "invalid number"),
        (("run", "--set", "hot_c=-1"), 2, "negative value; hot_c must be 0 or more"),
        (("run", "hot_gpu", "--set", "warm_c=1"), 2, "use one of: hot_c"),
        (("run", "--set", "busy_activity=50"), 2, "50 % or 5000 %?; write 50% or 0.5"),
        (
            ("run", "hot_gpu", "--set", "small_kernels.high_utilisation=1"),
            2,
            "unknown rule 'small_kernels'; use one of: hot_gpu",
        ),
        (
            ("run", "hot_gpu", "--set", "high_utilisation=1"),
            2,
            "unknown parameter; use one of: hot_c",
        ),
        (("check", "."), 4, "no rules found"),
        (("run", "--show", "maybe"), 2, "maybe"),
        (("run", "--where", "nothing"), 2, "condition"),
        (("backtest",), 2, "RULE"),
        (("backtest", "hot_gpu"), 2, "the rule is unchanged"),
        (("backtest", "hot_gpu", "--set", "hot_c=85"), 2, "the rule is unchanged"),
        (("check",), 2, "FILE"),
        (("import-clustercockpit", "nowhere"), 4, "no such folder"),
        (("import-clustercockpit", "."), 4, "no job classes"),
        (("list", "--lake", "nowhere", "--json", "--frobnicate"), 2, "--frobnicate"),
    ],
)
def test_a_mistake_is_one_line(
    run: Run, arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = run(*arguments)
    assert done.code == code, done
    assert message in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""


def test_options_of_every_command_count_before_and_after_the_action(
    run: Run, monkeypatch: pytest.MonkeyPatch, lake: str
) -> None:
    monkeypatch.delenv("TACHOGRAPH_LAKE")
    assert run("--lake", lake, "run", "hot_gpu").code == 0
    assert run("run", "hot_gpu", "--lake", lake).code == 0
    assert run("run", "hot_gpu").code == 5
