"""Workers that are jobs of a real Slurm: the numbers of threads, also when a job ends; refusals,
patience.
"""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from worker_lakes import NOW, Simulated, copied, same

from servers.slurm import SlurmCluster
from servers.slurm.cluster import wait_for
from tachograph.catalog.config import WorkerOptions
from tachograph.catalog.errors import WorkersError
from tachograph.judge.job_judge import JobJudge
from tachograph.lake.delta import Lake
from tachograph.pipeline.dask_workers import JOB_NAME, workers
from tachograph.pipeline.run import analyze

pytestmark = pytest.mark.slow

SHAPE = WorkerOptions(
    partition="cpu", account="root", cores=1, memory="3GB", interface="lo", wait_s=90
)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    return Simulated.of(tmp_path_factory.mktemp("simulated") / "cluster")


@pytest.fixture(scope="module")
def raw(simulated: Simulated, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake that nobody analyzed."""
    return simulated.lake(str(tmp_path_factory.mktemp("raw") / "lake"))


@pytest.fixture(scope="module")
def by_threads(raw: Lake, simulated: Simulated, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """The same lake, analyzed on threads."""
    lake = copied(raw, tmp_path_factory.mktemp("threads"))
    analyze(lake, simulated.configuration, judge=JobJudge, now=NOW, threads=2)
    return lake


@pytest.fixture
def folder(slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the lake is; the environment is that of somebody who uses the cluster."""
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    place = slurm.jobs / tmp_path.name
    place.mkdir()
    return place


def ours(slurm: SlurmCluster, *states: str) -> list[str]:
    """Jobs that are workers, of the states or of any in which they wait or run."""
    return slurm.command(
        "squeue", "-h", "-n", JOB_NAME, "-o", "%i", "-t", ",".join(states) or "PD,R,CG"
    ).split()


def test_jobs_come_to_the_numbers_of_threads(
    slurm: SlurmCluster, raw: Lake, by_threads: Lake, simulated: Simulated, folder: Path
) -> None:
    lake = copied(raw, folder)
    text = simulated.cluster.configuration.read_text(encoding="utf-8")
    options = [f"--partition={SHAPE.partition}", f"--account={SHAPE.account}"]
    keys = {"cores": 1, "interface": SHAPE.interface, "job_extra_directives": options}
    shape = "".join(f"{name} = {json.dumps(value)}\n" for name, value in keys.items())
    (folder / "tachograph.toml").write_text(f"{text}\n[workers]\n{shape}", encoding="utf-8")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tachograph", "analyze"),
            *("--lake", "lake", "--as-of", NOW.isoformat(), "--workers", "slurm:2"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    logs = folder / "tachograph-workers"
    assert done.stderr == f"waiting for 2 Slurm jobs, named tachograph; logs: {logs}\n"
    assert same(by_threads, lake)
    wait_for(lambda: not ours(slurm), "the jobs' end", 60)
    told = [file.read_text() for file in logs.glob("tachograph-*.err")]
    assert any("Registered to:      tls://" in text for text in told)
    assert not [path for path in logs.iterdir() if path.name.startswith(".")]  # keys


def test_a_job_that_ends_is_asked_for_again(
    slurm: SlurmCluster, raw: Lake, by_threads: Lake, simulated: Simulated, folder: Path
) -> None:
    lake = copied(raw, folder)
    shape = replace(SHAPE, log_directory=str(folder / "logs"))
    with workers("slurm:1", shape, lake, report=lambda words: None) as pool:
        first = ours(slurm, "R")
        slurm.command("scancel", *first)
        wait_for(lambda: not pool.everywhere(len, ""), "the worker's end", 30)
        analyze(lake, simulated.configuration, judge=JobJudge, now=NOW, pool=pool)
        second = ours(slurm, "R")
        assert (
            stat.S_IMODE(next((folder / "logs").glob(".*/key.pem")).parent.stat().st_mode) == 0o700
        )
    assert len(first) == len(second) == 1
    assert first != second
    assert same(by_threads, lake)
    wait_for(lambda: not ours(slurm), "the job's end", 30)


def test_what_slurm_refuses_is_told_in_its_words(raw: Lake, folder: Path) -> None:
    shape = replace(SHAPE, partition="none", log_directory=str(folder / "logs"))
    with (
        pytest.raises(
            WorkersError,
            match=r"^Slurm refuses the job: .*partition.*; fix \[workers\] of the conf",
        ),
        workers("slurm:1", shape, raw, report=lambda words: None),
    ):
        pass


def test_jobs_that_do_not_start_are_told_and_taken_back(
    slurm: SlurmCluster, raw: Lake, folder: Path
) -> None:
    logs = folder / "logs"
    shape = replace(SHAPE, wait_s=3.0, job_extra_directives=("--hold",), log_directory=str(logs))
    with (
        pytest.raises(WorkersError, match=rf"^0 of 2 workers came within 3 s; see {logs}$"),
        workers("slurm:2", shape, raw, report=lambda words: None),
    ):
        pass
    wait_for(lambda: not ours(slurm), "the jobs' end", 60)
    assert len(ours(slurm, "CA")) >= 2
