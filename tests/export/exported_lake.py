"""A lake of four jobs to be exported, and the command."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from in_process import run_here
from madelake import NOW, Rows, fill, held, job, make_lake, summarized, utc
from tachograph.export.content import ExportContent, read_content
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter
from tachograph.lake.query import read_gpus, read_summaries, read_verdicts
from tachograph.pipeline.run import AnalysisReport

UGLY = 'bo"b\\,\x00\n{x}'  # a user's name with characters that need escaping
START, END = utc(1, 12), utc(1, 12, 30)


def busy(
    node: str, gpu: int, level: float, *, start: datetime = START, end: datetime = END, **given: Any
) -> Rows:
    """Samples every 30 s of a GPU at one level."""
    times = [
        start + timedelta(seconds=30 * place)
        for place in range(int((end - start).total_seconds() // 30))
    ]
    values = {
        "gpu_util": level,
        "power_w": 100 + 200 * level,
        "hbm_used_mib": 1000,
        "hbm_free_mib": 39000,
    }
    return [{"t": t, "node": node, "gpu": gpu, **values, **given} for t in times]


def exported_lake(folder: Path) -> Lake:
    """Jobs 1 (one of two GPUs idle), 2 (ugly, still runs), 3 (of an array, on a MIG slice), 4
    (nothing measured).
    """
    lake = make_lake(
        folder,
        gpu_samples=[
            *busy("n1", 0, 0.8), *busy("n1", 1, 0.0), *busy("n2", 0, 0.5), *busy("n3", 0, 0.25, mig=7),
        ],
        jobs=[
            job("1", START, END, cluster="c", user="ada", account="a", partition="gpu", gpus=2, name="train"),
            job("2", START, None, cluster="c", user=UGLY, account="a", partition="gpu", gpus=1),
            job("3", START, END, cluster="c", user="ada", account="b", partition="mig", gpus=1, array_job_id="2",
                display_id="2_1", state="TIMEOUT"),
            job("4", START, END, cluster="c", user="eve", account="b", partition="gpu", gpus=4),
        ],
        allocations=[
            *held("1", "n1", (0, 1), START, END, cluster="c"),
            *held("2", "n2", (0,), START, cluster="c"),
            *held("3", "n3", (0,), START, END, cluster="c", mig=7),
            *held("4", "n4", (0, 1, 2, 3), START, END, cluster="c"),
        ],
    )  # fmt: skip
    summarized(lake)
    return lake


def add_job(lake: Lake, job_id: str) -> AnalysisReport:
    """One more job of user zoe on a node of its own, analyzed; return what the analysis did."""
    node = f"n{job_id}"
    fill(
        lake,
        {
            "gpu_samples": busy(node, 0, 0.5),
            "jobs": [job(job_id, START, END, cluster="c", user="zoe", gpus=1)],
            "allocations": held(job_id, node, (0,), START, END, cluster="c"),
        },
        chunk=f"job-{job_id}",
    )
    return summarized(lake)[0]


def content_of(lake: Lake, wanted: JobFilter | None = None) -> ExportContent:
    """What is exported of a lake."""
    return read_content(lake, wanted or JobFilter(), now=NOW)


def in_lake(lake: Lake) -> dict[str, list[dict[str, Any]]]:
    """Rows of the lake's tables as reports read them."""
    summaries = read_summaries(lake)
    return {
        "job_summaries": summaries.sort("job_key").to_dicts(),
        "job_gpus": read_gpus(lake, summaries).to_dicts(),
        "findings": read_verdicts(lake, summaries).to_dicts(),
    }


def export(lake: Lake, *arguments: object) -> Any:
    """Run `tachograph export ... --json`; return what it printed."""
    done = run(lake, *arguments, "--json")
    assert (done.returncode, done.stderr) == (0, ""), done
    return json.loads(done.stdout)["written"]


def run(lake: Lake, *arguments: object) -> CompletedProcess[str]:
    """Run `tachograph export` in this process, which is fast."""
    return run_here(
        ["export", *map(str, arguments), "--lake", lake.location], Path.cwd(), os.environ
    )


def one_line(done: CompletedProcess[str], code: int, *parts: str) -> None:
    """Assert that it ended with `code` and one line that holds `parts` and what to do."""
    assert done.returncode == code, done
    [line] = done.stderr.splitlines()
    for part in ("tachograph: ", *parts, "; "):
        assert part in line
    assert len(line) < 500
