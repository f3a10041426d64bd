"""seff and the comment of a job: the numbers of the report, nothing that was not measured, and a
limited length.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_lake import job_lake

from in_process import run_here
from jobframes import summary
from tachograph.annexes.act.comments import MOST_FAILURES, AdminComments, comment_jobs
from tachograph.annexes.act.ledger import ActionLedger, read_ledger
from tachograph.api.job_report import read_job
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import InputError
from tachograph.catalog.rows import JobSummaryRow
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries
from tachograph.report.job import JobReport, job_json
from tachograph.report.job_comment import EMPTY, comment_json, comment_text, read_comment
from tachograph.report.job_efficiency import NOT_RECORDED, brief_lines, efficiency_text, job_link

NOW = datetime(2027, 1, 1, tzinfo=UTC)


def report_of(lake: Lake, job: str) -> JobReport:
    return read_job(lake, job, now=NOW, configuration=Configuration())


@pytest.fixture(scope="module")
def one_of_eight(demo: Path) -> JobReport:
    return report_of(Lake.open(str(demo / "lake")), "1000316")


def test_seff_shows_the_numbers_of_the_report(one_of_eight: JobReport) -> None:
    lines = efficiency_text(one_of_eight).splitlines()
    values = dict(line.split(": ", 1) for line in lines if ": " in line)
    assert values["Job Wall-clock time"] == "11:52:14 of 14:15:00"
    assert values["CPU Efficiency"] == "12 % of 126-14:51:44 core-walltime"
    assert values["Memory Efficiency"] == "9.9 % of 240.0 GiB per node"
    assert values["Next time"] == "#SBATCH --nodes=1 --gpus=4"
    assert values["Energy"] == one_of_eight.energy
    assert one_of_eight.headline in lines
    (busy,) = [line for line in lines if "78 %" in line]
    assert busy.split() == [
        "nid000025",
        "GPU",
        "2",
        "78",
        "%",
        "82",
        "%",
        "59.9",
        "80.0",
        "177",
        "2.10",
    ]


def test_brief_is_verdict_next_time_and_link(one_of_eight: JobReport) -> None:
    assert list(brief_lines(one_of_eight, url="https://gpu.example.org/t/"))[-1].startswith(
        "More: https://gpu.example.org/t/job/"
    )
    assert job_link("/tachograph", one_of_eight) is None  # a path alone is no address
    assert list(brief_lines(one_of_eight)) == [
        "1 of 8 GPUs used; 83.1 GPU-h unused.",
        "Next time: #SBATCH --nodes=1 --gpus=4",
        "  1 of 8 GPUs used: this request frees 4 GPUs (1 node) for others.",
        "More: tachograph job 1000316",
    ]


def test_the_comment_is_that_of_jobstats(one_of_eight: JobReport) -> None:
    summary = comment_json(one_of_eight)
    comment = comment_text(summary)
    assert json.loads(gzip.decompress(base64.b64decode(comment.removeprefix("JS1:")))) == summary
    assert (summary["gpus"], summary["total_time"]) == (8, 42734)
    assert set(summary["nodes"]) == {"nid000022", "nid000025"}
    node = summary["nodes"]["nid000025"]
    assert node["gpu_utilization"]["2"] == 77.8
    assert node["gpu_total_memory"]["2"] == 80 * 2**30
    row = next(
        gpu
        for gpu in job_json(one_of_eight)["per_gpu"]
        if (gpu["node"], gpu["gpu"]) == ("nid000025", 2)
    )
    assert node["gpu_used_memory"]["2"] == round(row["hbm_used_mib_max"] * 2**20)
    assert summary["tachograph"]["findings"] == ["one_gpu_of_many"]


def test_every_job_of_the_demo_has_both(demo: Path) -> None:
    lake = Lake.open(str(demo / "lake"))
    for row in (
        read_summaries(lake, ("job_key", "attribution", "nodes")).gather_every(30).to_dicts()
    ):
        report = report_of(lake, row["job_key"])
        summary = comment_json(report)
        assert "null" not in json.dumps(summary)
        comment = comment_text(summary)
        assert comment in EMPTY or read_comment(comment) == summary
        text = efficiency_text(report)
        assert report.headline in text
        assert "None" not in text
        if row["attribution"] == "ambiguous":
            assert (summary["nodes"], comment) == ({}, "JS1:None")


@pytest.fixture(scope="module")
def one_of_four(tmp_path_factory: pytest.TempPathFactory) -> JobReport:
    return report_of(job_lake(tmp_path_factory.mktemp("one") / "lake", 7), "7")


def test_what_was_not_recorded_is_named_or_left_out(one_of_four: JobReport) -> None:
    text = efficiency_text(one_of_four)
    assert f"CPU Utilized: {NOT_RECORDED}\n" in text
    assert f"Memory Utilized: {NOT_RECORDED}\n" in text
    assert "Efficiency" not in text
    summary = comment_json(one_of_four)
    node = summary["nodes"]["gpu01"]
    assert set(node) == {"gpu_utilization", "gpu_total_memory", "gpu_used_memory"}
    assert comment_text(summary) == "JS1:None"  # jobstats cannot show a job without host memory


def test_a_comment_that_would_be_too_long_has_no_data() -> None:
    values = random.Random(1)
    nodes = {
        f"node{number}": {"gpu_utilization": {str(gpu): values.random() for gpu in range(8)}}
        for number in range(900)
    }
    summary: Mapping[str, Any] = {"nodes": nodes, "gpus": 7200, "tachograph": {"v": 1}}
    for small_letters in (False, True):
        comment = comment_text(summary, small_letters=small_letters)
        assert comment == ("js1:none" if small_letters else "JS1:None")
        few = {**summary, "nodes": {"node0": nodes["node0"]}}
        assert read_comment(comment_text(few, small_letters=small_letters)) == few


def test_small_letters_are_enough() -> None:
    summary = {"nodes": {"n1": {"cpus": 1}}, "gpus": 1}
    comment = comment_text(summary, small_letters=True)
    assert comment == comment.lower()
    assert read_comment(comment) == summary


@given(
    st.one_of(st.text(), st.text().map("JS1:".__add__), st.text("abcd234567").map("js32:".__add__))
)
def test_any_comment_can_be_read(comment: str) -> None:
    assert read_comment(comment) is None


def test_a_bomb_is_not_unpacked() -> None:
    bomb = gzip.compress(b" " * (1 << 27) + b"{}")
    assert read_comment("JS1:" + base64.b64encode(bomb).decode()) is None


def test_commands_refuse_what_makes_no_sense(tmp_path: Path) -> None:
    job_lake(tmp_path / "lake", 7, ended=False)
    environment = {"PATH": os.environ["PATH"], "TACHOGRAPH_LAKE": str(tmp_path / "lake")}
    for words, code, message in (
        (["seff", "8"], 6, "8"),
        (["seff", "7", "--ended"], 6, "job 7 has not ended"),
        (["act", "comment", "7"], 2, "job 7 has not ended"),
        (["act", "comment", "7", "--write"], 2, "job 7 has not ended"),
        (["act", "comment", "--most", "0"], 2, "--most: '0' is not a number from 1"),
    ):
        done = run_here(words, tmp_path, environment)
        assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert (
        run_here(["act", "comment"], tmp_path, environment).stdout
        == "0 comments would be written; nothing was: see --write\n"
    )
    assert not (tmp_path / "lake" / "_collect").exists()


def test_an_analysis_writes_the_files_of_advice(tmp_path: Path) -> None:
    lake, folder = tmp_path / "lake", tmp_path / "advice"
    job_lake(lake, 7, runs=4)
    environment = {"PATH": os.environ["PATH"], "TACHOGRAPH_LAKE": str(lake)}
    environment["TACHOGRAPH_SLURM_SHARED"] = "gpu"
    assert run_here(["analyze", "--threads", "1"], tmp_path, environment).returncode == 0
    assert not folder.exists()  # off, unless it is switched on
    done = run_here(
        ["analyze", "--threads", "1"],
        tmp_path,
        environment | {"TACHOGRAPH_ACT_ADVICE_FOLDER": str(folder)},
    )
    assert done.returncode == 0
    if os.geteuid() == 0:
        assert "\t--gpus=1: 1 of 4: " in (folder / "1").read_text()
    (tmp_path / "file").touch()
    wrong = run_here(
        ["analyze"],
        tmp_path,
        environment | {"TACHOGRAPH_ACT_ADVICE_FOLDER": str(tmp_path / "file")},
    )
    assert wrong.returncode == 0  # the analysis stands
    assert "no advice for sbatch" in wrong.stderr


def test_where_every_job_fails_a_round_ends_early(one_of_four: JobReport, tmp_path: Path) -> None:
    facts = summary(cluster="testing")
    ids = [str(number) for number in range(1, 11)]
    jobs: list[JobSummaryRow] = [{**facts, "job_key": name, "job_id": name} for name in ids]
    without_sacct = tmp_path / "bin"
    without_sacct.mkdir()
    (without_sacct / "env").write_text('#!/bin/sh\n[ "$3" = sacctmgr ]\n')  # env SETTING PROGRAM
    (without_sacct / "env").chmod(0o755)
    down = AdminComments((str(without_sacct / "env"),))
    with ActionLedger(tmp_path / "state", clock=lambda: NOW) as ledger:
        made = comment_jobs(ledger, jobs, lambda _: one_of_four, down, dry_run=False)
        assert [record.state for record in made] == ["failed"] * MOST_FAILURES
        later = comment_jobs(ledger, jobs, lambda _: one_of_four, down, dry_run=False)
        assert [record.target for record in later] == ["job 4", "job 5", "job 6"]
        would = comment_jobs(
            ledger, jobs[6:], lambda _: one_of_four, AdminComments(("/nowhere",)), dry_run=True
        )
        assert [record.state for record in would] == ["would"] * 4
        with pytest.raises(InputError, match="cannot be run"):
            comment_jobs(
                ledger, jobs[6:], lambda _: one_of_four, AdminComments(("/nowhere",)), dry_run=False
            )
    assert sum(record.state == "begun" for record in read_ledger(tmp_path / "state")) == 6
