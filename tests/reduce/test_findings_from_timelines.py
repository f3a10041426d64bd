"""What is found while samples go by is what is found from the stored minutes, read back job by
job.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from madelake import NOW, held, job, make_lake, summarized, utc
from one_job import findings_of
from tachograph.catalog.config import Configuration, Thresholds
from tachograph.catalog.tables import JOB_MINUTES
from tachograph.judge.job_judge import JobJudge
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_findings, read_gpus, read_minutes, read_summaries
from tachograph.pipeline.run import analyze

WORK = ("fp64_active", "fp32_active", "fp16_active", "tensor_active", "dram_active")


def levels(shape: Sequence[tuple[int, float, float]], minute: int) -> tuple[float, float]:
    """Return utilisation and work in a minute of a job: (minutes, utilisation, work) one behind
    the other.
    """
    for minutes, util, work in shape:
        if minute < minutes:
            return util, work
        minute -= minutes
    return shape[-1][1:]


SHAPES: dict[str, Sequence[tuple[int, float, float]]] = {
    "hangs": [(30, 0.8, 0.3), (40, 0.0, 0.0)],
    "starts cold": [(25, 0.0, 0.0), (45, 0.9, 0.3)],
    "stalls": [(20, 0.8, 0.3), (25, 0.0, 0.0), (25, 0.8, 0.3)],
    "bursts": [*[(4, 0.9, 0.3), (5, 0.0, 0.0)] * 7, (7, 0.9, 0.3)],
    "waits busily": [(30, 0.8, 0.3), (40, 1.0, 0.0)],
    "works": [(70, 0.95, 0.4)],
}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Return a lake of jobs on two nodes with two GPUs each, across midnight, some values
    missing.
    """
    rows: list[dict[str, Any]] = []
    jobs: list[dict[str, Any]] = []
    allocations: list[dict[str, Any]] = []
    draw = random.Random(3)
    for number, shape in enumerate(SHAPES.values()):
        start = utc(1, 23, 12, 7) + timedelta(seconds=11 * number)
        nodes = [f"n{number}a", f"n{number}b"]
        jobs.append(job(str(number), start, start + timedelta(minutes=70), nodes=2))
        for node in nodes:
            allocations += held(str(number), node, [0, 1])
            for gpu in (0, 1):
                for i in range(1, 420):
                    util, work = levels(shape, i // 6)
                    row: dict[str, Any] = {
                        "node": node,
                        "gpu": gpu,
                        "t": start + timedelta(seconds=10 * i - 3),
                    }
                    row |= {"gpu_util": util, "power_w": 60 + 300 * work + draw.random()}
                    row |= {name: work * draw.random() for name in WORK}
                    for name in ("gpu_util", "tensor_active", "power_w", "fp32_active"):
                        row[name] = None if draw.random() < 0.05 else row[name]
                    rows.append(row)
    made = make_lake(
        tmp_path_factory.mktemp("lake"), gpu_samples=rows, jobs=jobs, allocations=allocations
    )
    summarized(made, now=NOW)
    return made


def test_findings_are_those_of_the_stored_minutes(lake: Lake) -> None:
    summaries = read_summaries(lake)
    stored = read_findings(lake, summaries)
    codes: set[str] = set()
    for summary in summaries.iter_rows(named=True):
        mine = summaries.filter(summaries["job_key"] == summary["job_key"])
        minutes = read_minutes(lake, mine)
        found = findings_of(summary, read_gpus(lake, mine), minutes, Thresholds())
        told = {
            row["code"]: row
            for row in stored.filter(stored["job_key"] == summary["job_key"]).iter_rows(named=True)
        }
        # the hours of the ledger, which stand behind the sentence, are not the checks'
        said = {code: row["sentence"].partition(" GPU-h passed")[0] for code, row in told.items()}
        assert {finding.code for finding in found} == set(said)
        assert all(said[finding.code].startswith(finding.sentence) for finding in found)
        for finding in found:
            evidence = json.loads(told[finding.code]["evidence"])
            assert evidence.keys() - {"gpu_hours_idle"} == finding.evidence.keys()
            assert all(
                math.isclose(evidence[name], value, rel_tol=1e-9)
                for name, value in finding.evidence.items()
            )
        codes |= told.keys()
    assert {"job_hang", "cold_start", "stall", "bursty", "busy_waiting"} <= codes


def test_each_minute_of_each_gpu_is_stored_once_and_whole(lake: Lake) -> None:
    minutes = lake.scan(JOB_MINUTES).collect()
    assert not minutes.select("job_key", "node", "gpu", "minute").is_duplicated().any()
    assert minutes.group_by("job_key", "node", "gpu").len().get_column("len").to_list() == [
        70
    ] * 4 * len(SHAPES)
    assert minutes.get_column("samples").sum() == 419 * 4 * len(SHAPES)
    assert len(set(minutes.get_column("t").dt.date())) == 2


def test_what_an_analysis_wrote_is_deleted_when_it_fails(lake: Lake, tmp_path: Path) -> None:
    made = Lake.create(str(tmp_path))
    for name in ("gpu_samples", "jobs", "allocations", "devices"):
        (tmp_path / name).symlink_to(Path(lake.location) / name)

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        analyze(made, Configuration(), judge=JobJudge, now=NOW, threads=1, progress=fail)
    assert made.scan(JOB_MINUTES).collect().height == 0
    assert not list((tmp_path / "job_minutes" / "day=2026-04-01").glob("*.parquet"))
