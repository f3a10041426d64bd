"""Jobs on a real Slurm, seen by `tachograph watch`: whose GPUs are whose, from outside and from
inside a job.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from servers.exporter import Exporter, exporter
from servers.slurm import SlurmCluster
from servers.slurm.cluster import wait_for
from tachograph.annexes.watch.live.allocations import (
    SlurmAllocations,
    allocation_poller,
    free_gpus,
    merged_allocations,
)
from tachograph.annexes.watch.live.collected_source import CollectedSource
from tachograph.catalog.config import load
from tachograph.cli import main
from tachograph.collect.newest import NewestFiles

pytestmark = pytest.mark.slow

NODES = ("gpu01", "gpu02", "gpu03", "gpu04")
SMALL = ("-c", "1", "--mem=100M")
SCRIPT = "env > env.$SLURM_JOB_ID; sleep 120"


@dataclass(frozen=True)
class Running:
    """Jobs that run while GPUs are watched, and the GPUs that scontrol says they hold."""

    cluster: SlurmCluster
    served: Exporter
    pair: int
    wide: int
    sweep: int

    def held(self, job: str) -> set[tuple[str, int]]:
        """GPUs of a job, by what `scontrol` prints."""
        found = set()
        for node, indices in re.findall(
            r"Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=gpu:\d+\(IDX:([\d,-]+)\)",
            self.cluster.command("scontrol", "--details", "show", "job", job),
        ):
            for part in indices.split(","):
                low, _, high = part.partition("-")
                hosts = self.cluster.command("scontrol", "show", "hostnames", node).split()
                found |= {
                    (host, gpu) for host in hosts for gpu in range(int(low), int(high or low) + 1)
                }
        return found


def _runs(cluster: SlurmCluster, job: int) -> bool:
    return cluster.state(job) == "RUNNING"


def _reported(cluster: SlurmCluster, job: int) -> bool:
    file = cluster.jobs / f"env.{job}"
    return file.exists() and "SLURM_JOB_GPUS" in file.read_text()


@pytest.fixture(scope="module")
def running(slurm: SlurmCluster) -> Iterator[Running]:
    """Two GPUs of a node, one on each of two nodes, and an array of two tasks."""
    with exporter(
        {node: {gpu: {"DCGM_FI_DEV_GPU_UTIL": 10 * gpu} for gpu in range(4)} for node in NODES}
    ) as served:
        jobs: list[int] = []
        try:
            jobs.append(slurm.submit(SCRIPT, "--gres=gpu:2", "-w", "gpu02", *SMALL))
            jobs.append(
                slurm.submit(
                    SCRIPT, "-N2", "--gres=gpu:1", "-w", "gpu01,gpu02", *SMALL, user="mail"
                )
            )
            jobs.append(slurm.submit(SCRIPT, "--array=3-4", "--gres=gpu:1", "-w", "gpu03", *SMALL))
            for job in jobs:
                wait_for(partial(_runs, slurm, job), f"job {job} runs", 60)
            wait_for(partial(_reported, slurm, jobs[0]), "the job writes its environment", 30)
            yield Running(slurm, served, *jobs)
        finally:
            slurm.command("scancel", *map(str, jobs))
            slurm.wait(*jobs, within_s=240)


@pytest.fixture
def configured(running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Running:
    """The folder in which the command is run, outside of jobs."""
    node = running.served.url("gpu02")  # the first one of this host is that of the node
    others = [url for url in running.served.urls if url != node]
    urls = ", ".join(f'"{url}"' for url in (node, *others))
    (tmp_path / "tachograph.toml").write_text(
        f'[[sources]]\nsource = "dcgm-exporter"\nurls = [{urls}]\n[[sources]]\nsource = "slurm-live"\n'
    )
    for name in [
        name for name in os.environ if name.startswith(("SLURM_", "CUDA_", "TACHOGRAPH_"))
    ]:
        monkeypatch.delenv(name)
    for name, value in running.cluster.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return running


def seen(
    capsys: pytest.CaptureFixture[str], *options: str
) -> dict[tuple[str, int], tuple[str | None, str | None]]:
    """{GPU that is shown: its job and user}"""
    assert main(["watch", "--once", "--json", "--quiet", *options]) == 0
    reported = json.loads(capsys.readouterr().out)
    return {(one["node"], one["gpu"]): (one["job_id"], one["user"]) for one in reported}


def test_a_job_is_found_by_its_id(configured: Running, capsys: pytest.CaptureFixture[str]) -> None:
    for job, user in ((configured.pair, "daemon"), (configured.wide, "mail")):
        held = configured.held(str(job))
        assert len(held) == 2
        assert seen(capsys, "--job", str(job)) == dict.fromkeys(held, (str(job), user))


def test_tasks_of_an_array_are_found_alone_and_together(
    configured: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = [f"{configured.sweep}_{task}" for task in (3, 4)]
    assert seen(capsys, "--job", str(configured.sweep)) == {
        gpu: (task, "daemon") for task in tasks for gpu in configured.held(task)
    }
    assert seen(capsys, "--job", tasks[0]) == dict.fromkeys(
        configured.held(tasks[0]), (tasks[0], "daemon")
    )


def test_a_job_that_does_not_run_is_not_found(
    configured: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", "--once", "--job", "99999"]) == 6
    reported = capsys.readouterr().err
    assert "job 99999 has no GPU in view; jobs in view: " in reported
    assert str(configured.pair) in reported


def test_inside_a_job_its_own_gpus_are_shown(
    configured: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = (configured.cluster.jobs / f"env.{configured.pair}").read_text()
    reported = dict(
        line.split("=", 1) for line in written.splitlines() if line.startswith(("SLURM", "CUDA"))
    )
    assert reported["SLURM_JOB_ID"] == str(configured.pair)
    for name, value in reported.items():
        monkeypatch.setenv(name, value)
    own = seen(capsys)
    assert own.keys() == configured.held(str(configured.pair))
    assert {job for job, _ in own.values()} == {str(configured.pair)}


def refused() -> SlurmAllocations:
    raise AssertionError("Slurm is polled again")


def test_a_collector_has_the_same_holders_as_who_polls_slurm_itself(
    configured: Running, tmp_path: Path
) -> None:
    poller = allocation_poller(load(None))
    assert poller is not None
    folder = tmp_path / "lake" / "_collect"
    options = ["--lake", str(tmp_path / "lake"), "--quiet"]
    with subprocess.Popen([sys.executable, "-m", "tachograph", "collect", *options]) as collector:
        try:
            source = CollectedSource(folder)
            wait_for(lambda: len(NewestFiles(folder).polls()) == 2, "both sources are polled", 120)
            snapshot = source.read()
            reported = source.slurm(refused, minor_numbers=True)
            polled = poller()
        finally:
            collector.terminate()
    holders = merged_allocations(snapshot, reported)
    assert {one.user for one in holders.values()} == {"daemon", "mail"}
    assert holders == merged_allocations(snapshot, polled)
    assert free_gpus(snapshot, reported) == free_gpus(snapshot, polled)
    # squeue shows ended jobs of earlier tests for some minutes, of which a collector keeps nothing
    running = {
        cluster: {job: jobs[job] for job in jobs if job in reported.jobs[cluster]}
        for cluster, jobs in polled.jobs.items()
    }
    assert (reported.jobs, reported.complete) == (running, polled.complete)
