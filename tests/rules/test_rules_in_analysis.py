"""Rules in an analysis: stored as findings, reported once, judged anew when a rule or a value
changes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from ruled_jobs import SHIPPED, Job
from ruled_lake import ACTIVITY, ruled_lake

from madelake import NOW
from tachograph.catalog.config import Configuration, RuleOptions
from tachograph.catalog.errors import ConfigError
from tachograph.judge.checks import CHECKS
from tachograph.judge.families import covered
from tachograph.judge.finding import FINDING_SCHEMA
from tachograph.judge.job_judge import JobJudge
from tachograph.judge.judge import RESERVED
from tachograph.judge.rules.verdicts import judge_rules, rule_verdicts
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries, read_verdicts
from tachograph.pipeline.run import analyze

OWN: dict[str, Any] = {
    "name": "Works a little", "tag": "works_a_little", "parameter": ["least"], "severity": "hint",
    "rule_terms": [{"alert": "activity_mean >= least"}], "output": "alert", "template": "Active {activity_mean}%.",
}  # fmt: skip


def own_folder(folder: Path, least: float) -> Configuration:
    folder.mkdir(exist_ok=True)
    (folder / "own.json").write_text(json.dumps(OWN))
    (folder / "parameters.toml").write_text(f"[works_a_little]\nleast = {{ default = {least} }}\n")
    return Configuration(rules=RuleOptions(folder=str(folder)))


def verdicts(lake: Lake, code: str) -> dict[str, str]:
    rows = read_verdicts(lake, read_summaries(lake)).filter(pl.col("code") == code)
    return dict(rows.select("job_id", "verdict").iter_rows())


@pytest.fixture(scope="module")
def analyzed(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = ruled_lake(tmp_path_factory.mktemp("rules") / "lake")
    analyze(lake, Configuration(), judge=JobJudge, now=NOW)
    return lake


def test_every_job_has_a_row_for_every_rule(analyzed: Lake) -> None:
    lake = analyzed
    codes = {entry.code for entry in SHIPPED.entries}
    rows = read_verdicts(lake, read_summaries(lake)).filter(pl.col("code").is_in(codes))
    assert rows.height == len(ACTIVITY) * rows["code"].n_unique()
    assert rows["code"].n_unique() >= 12
    assert verdicts(lake, "hot_gpu") == {"1": "yes", "2": "no", "3": "no"}
    assert verdicts(lake, "throttled") == dict.fromkeys(ACTIVITY, "unknown")
    assert verdicts(lake, "heat_throttling") == {}  # it decides throttled
    checks = json.loads(
        rows.filter(pl.col("code") == "hot_gpu", pl.col("job_id") == "1")["checks"][0]
    )
    assert checks[0] | {"name": ""} == {
        "name": "", "value": 90.0, "relation": ">=", "threshold": 85.0, "unit": "C", "holds": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("code", "above"),
    [
        *(("stalled_input", above) for above in ("cold_start", "stall", "bursty")),
        ("small_kernels", "job_hang"),
        ("uneven_nodes", "one_gpu_of_many"),
        ("hot_gpu", "throttled"),
        ("load_imbalance_spread", "idle_job"),
    ],
)
def test_a_rule_is_covered_by_the_more_specific_of_its_family(code: str, above: str) -> None:
    rows = [
        {
            **dict.fromkeys(FINDING_SCHEMA),
            "job_key": job_key,
            "code": each,
            "verdict": "yes",
            "severity": "hint",
        }
        for job_key, codes in (("a", (code, above)), ("b", (code,)))
        for each in codes
    ]
    gaps = pl.DataFrame({"job_key": ["a", "b"], "elapsed_s": [9e3, 9e3]})
    checks = (*CHECKS, *(entry.check for entry in SHIPPED.entries))
    assert covered(pl.DataFrame(rows, schema=dict(FINDING_SCHEMA)), checks, gaps)["covered_by"].to_list() == [
        above, None, None,
    ]  # fmt: skip


def test_what_was_hardly_measured_is_not_multiplied_by_the_run_time() -> None:
    """A job of 600 days of which minutes were recorded: 0.2 % of imbalance would be 60 hours of
    GPU time.
    """
    gpus = [{"gpu_util_mean": mean, "gpu_util_max": 1.0} for mean in (0.902, 0.898)]
    for coverage, verdict in (0.5, "yes"), (0.4, "unknown"), (None, "yes"):
        made = Job({"elapsed_s": 600 * 86400.0, "coverage": coverage}, gpus)
        rows = judge_rules(made.summary, made.devices, made.nodes, SHIPPED)
        [row] = rows.filter(pl.col("code") == "load_imbalance_waste").rows(named=True)
        assert row["verdict"] == verdict


def test_rules_in_question_have_the_verdicts_of_all_rules() -> None:
    columns = ["job_key", "code", "verdict"]
    for busiest, heat in ((0.9, 95.0), (0.2, None), (0.9, 40.0)):
        gpus = [
            {"gpu_util_mean": mean, "gpu_util_max": 1.0, "gpu_temp_c_max": heat}
            for mean in (busiest, 0.2)
        ]
        made = Job({"elapsed_s": 86400.0, "coverage": 1.0, "samples": 9}, gpus)
        tables = (made.summary, made.devices, made.nodes, SHIPPED)
        expected = judge_rules(*tables).select(columns)
        keys = frozenset(made.summary["job_key"])
        every = {entry.check.code: keys for entry in SHIPPED.entries}
        assert rule_verdicts(*tables, every).equals(expected)
        one = rule_verdicts(*tables, {"load_imbalance_waste": keys, "no_rule": keys})
        assert set(one["code"]) == {"load_imbalance_waste"}
        assert not rule_verdicts(*tables, {"load_imbalance_waste": frozenset()}).height


@pytest.mark.slow
def test_a_changed_value_judges_all_jobs_again(tmp_path: Path) -> None:
    lake = ruled_lake(tmp_path / "lake")
    analyze(lake, Configuration(), judge=JobJudge, now=NOW)
    assert analyze(lake, Configuration(), judge=JobJudge, now=NOW).jobs == 0
    higher = Configuration(rules=RuleOptions(parameters={"hot_gpu": {"hot_c": 95.0}}))
    assert analyze(lake, higher, judge=JobJudge, now=NOW).jobs == len(ACTIVITY)
    assert verdicts(lake, "hot_gpu") == dict.fromkeys(ACTIVITY, "no")
    assert analyze(lake, higher, judge=JobJudge, now=NOW).jobs == 0


@pytest.mark.slow
def test_a_rule_of_the_folder_is_reloaded_by_the_next_analysis(tmp_path: Path) -> None:
    lake = ruled_lake(tmp_path / "lake")
    analyze(lake, own_folder(tmp_path / "rules", 0.3), judge=JobJudge, now=NOW)
    assert verdicts(lake, "works_a_little") == {"1": "no", "2": "yes", "3": "yes"}
    configuration = own_folder(tmp_path / "rules", 0.5)
    assert analyze(lake, configuration, judge=JobJudge, now=NOW).jobs == len(ACTIVITY)
    assert verdicts(lake, "works_a_little") == {"1": "no", "2": "no", "3": "yes"}
    (tmp_path / "rules" / "own.json").unlink()
    analyze(lake, configuration, judge=JobJudge, now=NOW)
    assert verdicts(lake, "works_a_little") == {}


def test_a_broken_rule_is_told_and_the_others_are_judged(tmp_path: Path) -> None:
    lake = ruled_lake(tmp_path / "lake")
    configuration = own_folder(tmp_path / "rules", 0.3)
    (tmp_path / "rules" / "broken.json").write_text("{")
    report = analyze(lake, configuration, judge=JobJudge, now=NOW)
    assert len(report.rule_problems) == 1
    assert "broken.json:1:" in report.rule_problems[0]
    assert verdicts(lake, "works_a_little") == {"1": "no", "2": "yes", "3": "yes"}
    assert verdicts(lake, "hot_gpu")["1"] == "yes"


def test_a_folder_that_is_gone_ends_the_analysis_and_changes_nothing(tmp_path: Path) -> None:
    lake = ruled_lake(tmp_path / "lake")
    configuration = own_folder(tmp_path / "rules", 0.3)
    analyze(lake, configuration, judge=JobJudge, now=NOW)
    before = read_verdicts(lake, read_summaries(lake))
    (tmp_path / "rules").rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"rules\.folder"):
        analyze(lake, configuration, judge=JobJudge, now=NOW)
    assert read_verdicts(lake, read_summaries(lake)).equals(before)


def test_a_rule_that_is_off_leaves_no_row(tmp_path: Path) -> None:
    lake = ruled_lake(tmp_path / "lake")
    analyze(
        lake,
        Configuration(rules=RuleOptions(disabled=("hot_gpu", "loadimba"))),
        judge=JobJudge,
        now=NOW,
    )
    assert verdicts(lake, "hot_gpu") == {}
    assert verdicts(lake, "load_imbalance_waste") == {}
    assert set(verdicts(lake, "uneven_nodes")) == set(ACTIVITY)


def test_a_job_has_one_finding_of_each_code(analyzed: Lake) -> None:
    rows = read_verdicts(analyzed, read_summaries(analyzed))
    codes = set(rows["code"])
    assert codes - {entry.code for entry in SHIPPED.entries} <= RESERVED
    assert {"load_imbalance_waste", "load_imbalance_spread"} <= codes
    assert not codes & {"idle_gpus", "load_imbalance_two_sided"}  # they decide those
    assert rows.select(pl.struct("job_key", "code").is_duplicated().any()).item() is False
