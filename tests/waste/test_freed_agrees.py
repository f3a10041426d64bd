"""The report of a job, the ledger and advice say the same of what a change of its request frees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import polars as pl
import pytest

from tachograph.api.advice import read_past_jobs, read_site
from tachograph.api.needs import read_ledger, read_needs
from tachograph.catalog import config
from tachograph.catalog.config import AdviceOptions, Configuration, SlurmOptions
from tachograph.catalog.rows import JobSummaryRow
from tachograph.cli import main
from tachograph.judge.advice.advise import advise
from tachograph.judge.advice.past_jobs import History
from tachograph.judge.advice.request import memory_mib, time_limit_s
from tachograph.judge.bounds import LEAST_S, peaks_of_need
from tachograph.judge.finding import read_findings
from tachograph.judge.ledger import LEDGER_COLUMNS
from tachograph.judge.partitions import freed_share
from tachograph.judge.steps import node_memory_mib
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter
from tachograph.lake.query import read_steps, read_summaries, read_verdicts
from tachograph.report.next_time import next_time

ALONE = AdviceOptions(least_runs=1)
PARTITIONS = """\
PartitionName=gpu
   State=UP OverSubscribe=EXCLUSIVE ExclusiveUser=NO MaxTime=UNLIMITED Nodes=a1
PartitionName=shared
   State=UP OverSubscribe=NO ExclusiveUser=NO MaxTime=4:00:00 Nodes=a1 MaxCPUsPerNode=96
PartitionName=test
   State=DOWN OverSubscribe=NO ExclusiveUser=NO MaxTime=UNLIMITED Nodes=a1

NodeName=a1 CPUTot=128 RealMemory=245760 Gres=gpu:4
"""


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a cluster with nodes given whole, and shared ones."""
    folder = tmp_path_factory.mktemp("freed")
    size = ("--nodes", "24", "--days", "2", "--interval", "120", "--seed", "11")
    command = ["lab", "simulate", str(folder / "cluster"), *size, "--lake", str(folder / "lake")]
    assert main([*command, "--quiet"]) == 0
    configured = ("--config", str(folder / "cluster" / "tachograph.toml"))
    assert main(["analyze", "--lake", str(folder / "lake"), *configured, "--quiet"]) == 0
    return folder


def partitions_recorded(settings: Configuration, folder: Path) -> Configuration:
    """Settings that name no partition: all is known from Slurm's record."""
    file = folder / "partitions.txt"
    file.write_text(PARTITIONS)
    return msgspec.structs.replace(settings, slurm=SlurmOptions(partitions_file=str(file)))


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("cluster", ["demo", "simulated"])
def test_job_ledger_and_advice_agree(
    request: pytest.FixtureRequest, tmp_path: Path, cluster: str, recorded: bool
) -> None:
    folder: Path = request.getfixturevalue(cluster)
    settings = config.load(str(folder / "cluster" / "tachograph.toml"))
    if recorded:
        settings = partitions_recorded(settings, tmp_path)
    lake = Lake.open(str(folder / "lake"))
    site = read_site(lake, settings)
    _, _, freed = read_ledger(lake, settings, JobFilter(), LEDGER_COLUMNS)
    past = {job.key: job for job in read_past_jobs(lake, settings, JobFilter(), site)}
    jobs = read_summaries(lake)
    needs = read_needs(lake, jobs)
    verdicts = read_verdicts(lake, jobs.filter(jobs["job_key"].is_in(list(needs))))
    size = pl.struct("user", "cluster", "name", "gpus")
    alone = set(jobs.filter(size.is_unique())["job_key"])
    changes = advised = 0
    for row in cast("Iterator[JobSummaryRow]", jobs.iter_rows(named=True)):
        key = row["job_key"]
        assert site.partitions.whole_nodes({**row, "exclusive": None}) is row["exclusive"]
        need = needs.get(key)
        if need is None:
            assert freed.get(key, 0.0) == 0.0
            continue
        change = site.partitions.freed(need.beside(row))
        assert freed[key] == freed_share(need.beside(row), site.partitions)
        of_job = read_findings(verdicts.filter(verdicts["job_key"] == key))
        following = next_time(row, of_job, need.runs_s, need.memory, site.partitions)
        line = following.line if following else ""
        if need.gpus == 0:
            assert following is not None
            assert following.note is not None
            assert freed[key] == 1.0
        elif change is None:
            assert "GPU" not in "".join(following.reasons if following else ())
            assert freed[key] == 0.0
        else:
            changes += 1
            assert line.startswith(f"#SBATCH {' '.join(change.options)}")
            assert change.gain in following.why  # type: ignore[union-attr]
            assert 0.0 < freed[key] <= 1.0
            assert_accepted(line, row, site.partitions)
        job = past.get(key)
        # without runs alike, and longer than what is no evidence: advice has the same of it
        if job is not None and need.gpus and key in alone and (job.elapsed_s or 0.0) >= LEAST_S:
            history = History.of([job], ALONE)
            gpus = advise(job.request, history, job.end, site, ALONE, brief=True).line("gpus")
            assert gpus is not None
            advised += gpus.value is not None
            assert (gpus.evidence.get("gain") if gpus.value else None) == (change and change.gain)
            words = (gpus.option or "").split()
            assert set(words) <= set(line.split())
    assert changes >= 3
    assert advised > 0


def assert_accepted(line: str, row: Mapping[str, Any], partitions: Any) -> None:
    options = dict(word.split("=") for word in line.split() if word.startswith("--"))
    name = options.get("--partition", row["partition"])
    use = partitions.use[(row["cluster"], name)]
    known = partitions.recorded.get(name)
    assert int(options["--gpus"]) <= use.gpus * int(options.get("--nodes", row["nodes"]))
    if name != row["partition"]:
        assert name == "shared"
        most_mib = use.memory_mib if known is None else known.memory_mib
        most_s = use.time_s if known is None else known.most_time_s
        limit_s = time_limit_s(options["--time"]) if "--time" in options else row["timelimit_s"]
        assert (memory_mib(options["--mem"]) or 0.0) <= most_mib
        assert limit_s <= most_s
        assert row["user"] in use.users or known is not None


def test_needs_do_not_depend_on_how_many_jobs_are_read_together(demo: Path) -> None:
    lake = Lake.open(str(demo / "lake"))
    jobs = read_summaries(lake)
    needs = read_needs(lake, jobs)
    assert len(needs) > 10
    assert read_needs(lake, jobs, together=3) == needs


def test_needs_are_those_of_runs_of_the_same_name_and_size(demo: Path) -> None:
    lake = Lake.open(str(demo / "lake"))
    jobs = read_summaries(lake).sort("start", "job_key")
    peaks_mib = node_memory_mib(read_steps(lake, jobs))
    rows = {row["job_key"]: row for row in jobs.iter_rows(named=True)}
    needs = read_needs(lake, jobs)
    several = stopped = killed = 0
    for key, need in needs.items():
        row = rows[key]
        group = [other for other in rows.values() if same_size(row, other)]
        completed = [other for other in group if other["state"] == "COMPLETED"]
        timed_out = [other for other in group if other["state"] == "TIMEOUT"]
        counted = completed if row["state"] == "TIMEOUT" else completed + timed_out
        assert need.runs_s == [other["elapsed_s"] for other in counted]
        like = [other for other in group if other["nodes"] == row["nodes"]]
        long_enough = [other for other in like if is_long_enough(other)]
        others = [other for other in like if not is_long_enough(other)]
        peaks = (last_peaks(runs, row, peaks_mib) for runs in (long_enough, others))
        assert need.memory.peaks == peaks_of_need(*peaks)
        assert need.memory.own == peaks_mib.get(key)
        requests_mib = [
            other["mem_requested_mib"] / other["nodes"]
            for other in like
            if other["state"] == "OUT_OF_MEMORY"
        ]
        assert need.memory.killed[: len(requests_mib)] == requests_mib
        several += len(counted) > 1
        stopped += bool(timed_out)
        killed += bool(requests_mib)
    assert several > 5
    assert stopped + killed > 0


def same_size(row: dict[str, Any], other: dict[str, Any]) -> bool:
    if row["name"] is None:
        return row is other
    return all(row[name] == other[name] for name in ("user", "cluster", "name", "gpus"))


def is_long_enough(row: dict[str, Any]) -> bool:
    return bool(row["state"] == "COMPLETED" and row["elapsed_s"] >= LEAST_S)


def last_peaks(
    runs: list[dict[str, Any]], row: dict[str, Any], peaks_mib: dict[str, float]
) -> list[float]:
    """Peaks of the last twenty runs, that of the job behind all others."""
    ordered = sorted(runs, key=lambda other: other is row)
    keys = [other["job_key"] for other in ordered[-20:]]
    return [peaks_mib[key] for key in keys if key in peaks_mib]
