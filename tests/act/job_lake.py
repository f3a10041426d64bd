"""A lake with one job of the real Slurm: it held four GPUs for an hour and used one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from madelake import fill, held, job, summarized
from tachograph.lake.delta import Lake

NODE = "gpu01"
_MINUTES = 60


HOST = {"cpus": 16, "cpu_time_s": 7200.0, "mem_requested_mib": 65536.0}


def job_lake(
    folder: Path, job_id: int, *, ended: bool = True, runs: int = 1, hosts: bool = False
) -> Lake:
    """Return the lake, analyzed; the job ended ten minutes ago, and it is the last of so many
    runs of its name. hosts: with CPUs and host memory in the accounting.
    """
    end = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=10)
    first = end - timedelta(hours=2 * runs)
    lake = Lake.create(str(folder))
    devices = [
        {"t": first, "node": NODE, "gpu": gpu, "model": "NVIDIA A100-SXM4-80GB"} for gpu in range(4)
    ]
    fill(lake, {"devices": devices}, chunk="devices", now=end)
    for number in range(runs):
        last = number == runs - 1
        add_run(
            lake,
            job_id - (runs - 1 - number),
            end - timedelta(hours=2 * (runs - 1 - number)),
            ended or not last,
            hosts=hosts,
        )
    summarized(lake, now=end + timedelta(minutes=5))
    return lake


def add_run(
    lake: Lake, job_id: int, end: datetime, ended: bool = True, *, hosts: bool = False
) -> None:
    """Add a job that ended then, or has not ended."""
    start = end - timedelta(minutes=_MINUTES)
    facts = {
        "cluster": "testing",
        "user": "daemon",
        "account": "physics",
        "partition": "gpu",
        "name": "train",
    }
    row = job(
        str(job_id),
        start,
        end if ended else None,
        **facts,
        gpus=4,
        node_list=NODE,
        timelimit_s=7200.0,
        **(HOST if hosts else {}),
    )
    step = {"cluster": "testing", "job_id": str(job_id), "step": "batch", "start": start}
    step |= {"end": row["end"], "nodes": 1, "tasks": 1, "max_rss_mib": 8192.0, "state": "COMPLETED"}
    samples = [
        {
            "t": start + timedelta(seconds=30 * place),
            "node": NODE,
            "gpu": gpu,
            "gpu_util": 0.9 if gpu == 0 else 0.0,
            "hbm_used_mib": 40000.0 if gpu == 0 else 2.0,
            "power_w": 300.0 if gpu == 0 else 60.0,
        }
        for place in range(2 * _MINUTES)
        for gpu in range(4)
    ]
    allocations = held(
        str(job_id), NODE, range(4), start, end if ended else None, cluster="testing"
    )
    tables = {"jobs": [row], "allocations": allocations, "gpu_samples": samples}
    fill(lake, tables | ({"steps": [step]} if hosts else {}), chunk=f"job {job_id}", now=end)
