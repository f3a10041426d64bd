"""Killed at any moment and run again, the lake is the one of a run that was never killed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from lake_jobs import compacted, computed
from lake_rows import lying, rows

from tachograph.catalog.tables import ALL_TABLES, ANALYSES, REJECTS, TABLES
from tachograph.lake.delta import Lake

pytestmark = pytest.mark.slow

KILLS_PER_STEP = 3
SPANS_S = (0.3, 1.5, 0.4)  # how long ingest, analyze and compact take, about: kills fall within

# Imports once; each line on stdin, [lake, step, seconds], is a child that does the step and is killed after so long.
NURSERY = """
import json, os, signal, sys, time
from lake_jobs import whole_way
from tachograph.pipeline.run import analyze
from tachograph.lake.delta import Lake
for line in sys.stdin:
    location, step, seconds = json.loads(line)
    child = os.fork()
    if not child:
        try:
            whole_way()[step](Lake.create(location))
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Nursery:
    """Runs steps in children of one process, and kills them."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", NURSERY]
        here = Path(__file__).parent
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=here)

    def run(self, lake: Lake, step: int, *, kill_after_s: float | None = None) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([lake.location, step, kill_after_s]) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


def test_a_lake_whose_writers_are_killed_again_and_again_ends_up_the_same(tmp_path: Path) -> None:
    killed, never = Lake.create(str(tmp_path / "killed")), Lake.create(str(tmp_path / "never"))
    moment = random.Random(20260301)
    ends: list[int] = []
    nursery = Nursery()
    with nursery.process:
        for step in range(6):
            moments = [moment.uniform(0, SPANS_S[step % 3]) for _ in range(KILLS_PER_STEP)]
            ends += [nursery.run(killed, step, kill_after_s=seconds) for seconds in moments]
            assert nursery.run(killed, step) == 0
            assert nursery.run(never, step) == 0
    assert set(ends) <= {-9, 0}
    assert ends.count(-9) >= len(ends) // 3
    compare(killed, never)
    later = datetime.now(UTC) + timedelta(days=2)  # what killed analyses left is dropped
    for lake in (killed, never):
        compacted(lake, later)
    compare(killed, never)
    for table in ALL_TABLES:
        if table.by_day or table.name in ("job_gpus", "findings"):
            assert lying(killed, table) == lying(never, table), table.name


def compare(killed: Lake, never: Lake) -> None:
    for table in TABLES.values():
        if table is not REJECTS:
            assert rows(killed, table) == rows(never, table), table.name
    assert removed(killed) == removed(never)
    assert computed(killed) == computed(never)
    columns = ["method", "as_of", "jobs", "samples", "attributed"]
    assert killed.latest(ANALYSES).select(columns).rows() == never.latest(ANALYSES).select(columns).rows()


def removed(lake: Lake) -> list[tuple[object, ...]]:
    """Rejects; those of a compaction are named after files, which have other names in each lake."""
    chunk = pl.when(pl.col("source") == "compact").then(pl.lit("")).otherwise(pl.col("chunk"))
    return lake.latest(REJECTS).drop("seq").with_columns(chunk=chunk).sort(pl.all()).rows()
