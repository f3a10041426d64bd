"""A small lake: three jobs with one GPU each, one of them hot."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from madelake import held, job, make_lake, utc
from tachograph.lake.delta import Lake

ACTIVITY = {"1": 0.2, "2": 0.35, "3": 0.9}
HIGHEST_C = {"1": 90.0, "2": 80.0, "3": 50.0}
BEGIN = utc(3)
HOURS = 1


def samples(name: str, begin: datetime) -> list[dict[str, Any]]:
    """One sample of one GPU in each minute."""
    return [
        {
            "node": f"n{name}", "gpu": 0, "t": begin + timedelta(minutes=minute), "gpu_util": ACTIVITY[name],
            "gpu_temp_c": HIGHEST_C[name],
        }
        for minute in range(60 * HOURS)
    ]  # fmt: skip


def ruled_lake(folder: Path) -> Lake:
    """Return the lake, not analyzed yet."""
    end = BEGIN + timedelta(hours=HOURS)
    jobs = [job(name, BEGIN, end, user=f"user{name}", account="chem", gpus=1) for name in ACTIVITY]
    rows = [row for name in ACTIVITY for row in samples(name, BEGIN)]
    own = [row for name in ACTIVITY for row in held(name, f"n{name}", (0,), BEGIN, end)]
    return make_lake(folder, jobs=jobs, gpu_samples=rows, allocations=own)
