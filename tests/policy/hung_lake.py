"""A lake with a running job that worked, then stopped; more minutes can be added."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from madelake import fill, held, job, summarized
from tachograph.lake.delta import Lake

NODE = "gpu01"
LEVELS = {
    "W": {
        "gpu_util": 0.95,
        "tensor_active": 0.3,
        "dram_active": 0.2,
        "sm_active": 0.6,
        "power_w": 300.0,
    },
    "I": {
        "gpu_util": 0.0,
        "tensor_active": 0.0,
        "dram_active": 0.0,
        "sm_active": 0.0,
        "power_w": 60.0,
    },
}


def hung_lake(
    folder: Path,
    job_id: int | str,
    start: datetime,
    *,
    course: str = "W" * 20 + "I" * 30,
    **facts: Any,
) -> Lake:
    """Return the lake, analyzed at the end of the course: a letter a minute, W at work, I idle."""
    lake = Lake.create(str(folder))
    known = {
        "cluster": None,
        "user": "daemon",
        "account": "physics",
        "partition": "gpu",
        "qos": "normal",
        **facts,
    }
    row = job(
        str(job_id),
        start,
        None,
        **known,
        name="train",
        gpus=4,
        node_list=NODE,
        timelimit_s=720000.0,
    )
    devices = [
        {"t": start, "node": NODE, "gpu": gpu, "model": "NVIDIA A100-SXM4-80GB"} for gpu in range(4)
    ]
    tables = {
        "jobs": [row],
        "allocations": held(str(job_id), NODE, range(4), start),
        "devices": devices,
    }
    fill(lake, tables, chunk="accounting", now=start)
    then(lake, start, course)
    return lake


def then(lake: Lake, start: datetime, course: str, *, after: int = 0) -> None:
    """Add minutes from `after` minutes on, and analyze."""
    samples = [
        {
            "t": start + timedelta(minutes=after + minute, seconds=30 * half),
            "node": NODE,
            "gpu": gpu,
            **LEVELS[letter],
        }
        for minute, letter in enumerate(course)
        for half in range(2)
        for gpu in range(4)
    ]
    end = start + timedelta(minutes=after + len(course))
    fill(lake, {"gpu_samples": samples}, chunk=f"from {after}", now=end)
    summarized(lake, now=end)
