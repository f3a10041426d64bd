"""A judge that was sent to another process: it judges the same, or refuses."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import polars as pl
import pytest

from jobframes import frame, gpus, minutes, summary
from tachograph.catalog.config import Configuration, RuleOptions, SlurmOptions
from tachograph.catalog.errors import WorkersError
from tachograph.catalog.tables import JOB_NODE_MINUTES, JOB_SUMMARIES
from tachograph.judge.checks import CHECKS
from tachograph.judge.job_judge import JobJudge
from tachograph.judge.rules.sources import PARAMETERS
from tachograph.pipeline.summaries import JobTables
from tachograph.pipeline.timelines import timelines_of

PARTITIONS = (
    Path(__file__).parents[1] / "slurm/recorded/22.05.8/scontrol_show_partition_and_node.txt"
)
RULE = {
    "name": "Busy",
    "tag": "busy_site",
    "parameter": ["limit"],
    "rule_terms": [{"alert": "activity_mean > limit"}],
    "output": "alert",
    "template": "Active {activity_mean}% of the time.",
}


def measured_job() -> JobTables:
    """A job of one GPU that was busy."""
    busy = {"gpu_util_mean": 0.6, "gpu_util_max": 0.9}
    return JobTables(
        frame(JOB_SUMMARIES, [summary(samples=100, coverage=1.0, **busy)]),
        gpus(busy),
        timelines_of(minutes(), idle_util=0.0),
        JOB_NODE_MINUTES.empty(),
    )


def test_files_of_the_site_are_not_needed_there(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "own.json").write_text(json.dumps([RULE]))
    (folder / PARAMETERS).write_text("[busy_site]\nlimit = { default = 0.5 }\n")
    partitions = str(shutil.copy(PARTITIONS, folder))
    judge = JobJudge(
        Configuration(
            rules=RuleOptions(folder=str(folder)), slurm=SlurmOptions(partitions_file=partitions)
        )
    )
    sent = pickle.dumps(judge)
    here = judge(measured_job())
    shutil.rmtree(folder)
    there = pickle.loads(sent)(measured_job())
    assert there.findings.equals(here.findings)
    of_rule = there.findings.filter(pl.col("code") == "busy_site")
    assert of_rule["sentence"].to_list() == ["Active 60% of the time."]


def test_a_process_with_other_checks_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = pickle.dumps(JobJudge(Configuration()))
    monkeypatch.setattr("tachograph.judge.job_judge.CHECKS", CHECKS[1:])
    with pytest.raises(WorkersError, match="has other checks than this analysis"):
        pickle.loads(sent)
