"""A lake of six jobs to be studied, one for each way to be left out, and the command."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from madelake import Rows, held, job, make_lake, summarized, utc
from tachograph.cli import main
from tachograph.lake.delta import Lake

START, END = utc(1, 12), utc(1, 12, 30)
TOML = '[site]\ncluster = "Test <site>"\ntime_zone = "Europe/Berlin"\n'


def level(place: int, gpu: int) -> float:
    """Utilisation at the place-th sample: GPU 0 is busy, GPU 1 in every other six minutes."""
    return 0.75 if gpu == 0 or place // 12 % 2 == 0 else 0.0


def samples(node: str, gpu: int, *, factor: float = 1.0, end: datetime = END, **given: Any) -> Rows:
    """Samples of one GPU every 30 s."""
    times = [
        START + timedelta(seconds=30 * place)
        for place in range(int((end - START).total_seconds() // 30))
    ]
    return [
        {
            "t": t, "node": node, "gpu": gpu, "gpu_util": factor * level(place, gpu), "fp64_active": factor * 0.25,
            "dram_active": factor * 0.5, "power_w": 100.0, "hbm_used_mib": 10_000, **given,
        }
        for place, t in enumerate(times)
    ]  # fmt: skip


def studied_lake(folder: Path) -> Lake:
    """Jobs 1, 2 are studied; 3 is short and idle, 4 idle, 5 still runs, 6 has no samples."""
    brief = START + timedelta(minutes=2)
    lake = make_lake(
        folder,
        gpu_samples=[
            *samples("n1", 0), *samples("n1", 1), *samples("n2", 0, factor=0.5), *samples("n2", 1, factor=0.5),
            *samples("n3", 0, factor=0.0, end=brief), *samples("n4", 0, factor=0.0), *samples("n5", 0),
        ],
        jobs=[
            job("1", START, END, user="ada", account="a", partition="gpu", gpus=2),
            job("2", START, END, user="bob", account="a", partition="gpu", gpus=2),
            job("3", START, brief, user="bob", account="a", partition="gpu", gpus=1),
            job("4", START, END, user="eve", account="b", partition="gpu", gpus=1),
            job("5", START, None, user="eve", account="b", partition="gpu", gpus=1),
            job("6", START, END, user="eve", account="b", partition="gpu", gpus=1),
        ],
        allocations=[
            *held("1", "n1", (0, 1), START, END), *held("2", "n2", (0, 1), START, END),
            *held("3", "n3", (0,), START, brief), *held("4", "n4", (0,), START, END),
            *held("5", "n5", (0,), START), *held("6", "n6", (0,), START, END),
        ],
        devices=[
            {"node": node, "gpu": gpu, "model": "NVIDIA A100-SXM4-40GB", "hbm_mib": 40960}
            for node, gpu in (("n1", 0), ("n1", 1), ("n2", 0), ("n2", 1))
        ],
    )  # fmt: skip
    summarized(lake)
    return lake


@dataclass(frozen=True)
class Done:
    """What a command left: exit code, stdout, stderr."""

    code: int
    out: str
    err: str


def configuration_beside(lake: Path) -> Path:
    """The file with TOML beside a lake, which is written once: other workers may read it now."""
    file = lake.parent / "study.toml"
    if not file.exists():
        file.write_text(TOML, encoding="utf-8")
    return file


def figures(lake: Path, *arguments: str) -> Done:
    """Run `tachograph study` in this process, configured by TOML beside the lake."""
    config = configuration_beside(lake)
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(["study", "--lake", str(lake), "--config", str(config), *arguments])
    return Done(code, out.getvalue(), err.getvalue())
