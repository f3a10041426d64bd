"""One writer and ten readers over one lake: `make readers` (MINUTES=10). Prints a JSON object; 1
when a reader failed.

The writer ingests chunks of known rows, analyzes, and compacts with a vacuum, in a loop. Replaced
files are dated back, so that a vacuum of one hour deletes those replaced a minute ago: readers
never take so long. What readers hold it to:

- a chunk has its rows in a table, or none; what was seen once is seen again, however days are
  rewritten
- every summary has the rows of `job_gpus` that belong to it
- no read fails, and `tachograph jobs --json` prints as many jobs as there are, or more

    python tests/chaos/readers.py --minutes 0.2
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
from child import Child
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction
from story import NOW, START, job_rows

from tachograph.catalog.chunks import Chunk, ChunkPart
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import TachographError
from tachograph.catalog.tables import ALL_TABLES, GPU_SAMPLES, LakeTable
from tachograph.cli import main as tachograph
from tachograph.judge.job_judge import JobJudge
from tachograph.lake.compact import compact
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest
from tachograph.lake.partitions import partitions, read_partition
from tachograph.lake.query import (
    read_consistently,
    read_findings,
    read_gpus,
    read_summaries,
)
from tachograph.lake.retention import rows_that_count
from tachograph.pipeline.run import analyze

READERS = 10
GPUS = 2
ROWS = 360  # of a chunk and GPU: an hour, every ten seconds; the node reports the chunk
GRACE_S = 60.0
VACUUM_HOURS = 1
# Chunks between analyses; every second one does all jobs anew and is followed by a compaction.
EVERY = 3
FAILURES = (
    TachographError,
    DeltaError,
    pl.exceptions.PolarsError,
    LookupError,
    OSError,
    ValueError,
)
DEADLINE_S = 30.0  # after the end for what is under way


class AgeingLake(Lake):
    """A lake whose replaced files look an hour less a minute older than they are."""

    def _commit(
        self,
        delta: DeltaTable,
        table: LakeTable,
        actions: Sequence[AddAction | RemoveAction],
        transactions: list[Transaction],
    ) -> bool:
        back = int((VACUUM_HOURS * 3600 - GRACE_S) * 1000)
        return super()._commit(
            delta, table, [_older(action, back) for action in actions], transactions
        )


def _older(action: AddAction | RemoveAction, back_ms: int) -> AddAction | RemoveAction:
    if not isinstance(action, RemoveAction):
        return action
    return RemoveAction(
        path=action.path,
        deletion_timestamp=(action.deletion_timestamp or 0) - back_ms,
        data_change=action.data_change,
        size=action.size,
        partition_values=action.partition_values,
    )


def chunk(number: int) -> Chunk:
    """Return a chunk of one job on a node of its own: its accounting, and an hour of samples of
    its two GPUs.
    """
    node = f"n{number:05}"
    begin = START + timedelta(minutes=10 * (number % 200))
    times = [begin + timedelta(seconds=10 * place) for place in range(ROWS)]
    frames = [
        pl.DataFrame({"t": times, "node": node, "gpu": gpu, "gpu_util": 0.5, "power_w": 200.0})
        for gpu in range(GPUS)
    ]
    jobs, held = job_rows(number, node, begin, begin + timedelta(hours=1), gpus=GPUS)
    parts = (
        ChunkPart("gpu_samples", pl.concat(frames)),
        ChunkPart("jobs", jobs),
        ChunkPart("allocations", held),
    )
    return Chunk(f"chunk-{number}", "readers", node, parts, ROWS * GPUS)


def write(location: str, until: float) -> dict[str, Any]:
    """Ingest, analyze, compact until then; return how often."""
    lake = AgeingLake.create(location)
    done: Counter[str] = Counter()
    while time.monotonic() < until:
        ingest(lake, [chunk(done["chunks"])], now=NOW)
        done["chunks"] += 1
        if done["chunks"] % EVERY == 0:
            analyze(
                lake,
                Configuration(),
                judge=JobJudge,
                now=NOW,
                threads=1,
                full=done["analyses"] % 2 == 1,
            )
            done["analyses"] += 1
            if done["analyses"] % 2 == 0:
                replaced = compact(
                    lake,
                    ALL_TABLES,
                    counting=rows_that_count(lake, datetime.now(UTC)),
                    vacuum_hours=VACUUM_HOURS,
                )
                done["compactions"] += 1
                done["files replaced"] += sum(
                    max(0, one.files_before - one.files_after) for one in replaced
                )
    return dict(done)


def read_chunks(lake: Lake, known: dict[str, Any]) -> None:
    """See every chunk whole, and those that were seen before."""
    counts: Counter[str] = Counter()
    for part in partitions(lake, GPU_SAMPLES):
        rows, _ = read_partition(lake, GPU_SAMPLES, part, ["node", "gpu", "t"])
        counts.update(dict(rows.group_by("node").len().iter_rows()))
    torn = {node: count for node, count in counts.items() if count != ROWS * GPUS}
    _must(not torn, f"half chunks: {torn}")
    gone = set(known.get("nodes", ())) - set(counts)
    _must(not gone, f"chunks are gone: {sorted(gone)[:5]}")
    known["nodes"] = list(counts)


def read_results(lake: Lake, known: dict[str, Any]) -> None:
    """See summaries with all their GPUs and findings."""

    def read_all() -> tuple[pl.DataFrame, pl.DataFrame]:
        summaries = read_summaries(lake)
        read_findings(lake, summaries)
        return summaries, read_gpus(lake, summaries)

    summaries, gpus = read_consistently(lake, read_all)
    short = summaries.join(gpus.group_by("job_key").len(), on="job_key", how="left").filter(
        pl.col("len") != GPUS
    )
    missing = summaries.join(gpus, on="job_key", how="anti")
    _must(
        not short.height and not missing.height,
        f"{short.height + missing.height} summaries without their GPUs",
    )
    _must(
        summaries.height >= known.get("jobs", 0),
        f"{summaries.height} summaries, there were {known.get('jobs')}",
    )
    known["jobs"] = summaries.height


def read_command(lake: Lake, known: dict[str, Any]) -> None:
    """See what `tachograph jobs --json` prints."""
    with redirect_stdout(io.StringIO()) as out:
        code = tachograph(["jobs", "--json", "--lake", lake.location])
    jobs = json.loads(out.getvalue()) if code == 0 else []
    _must(code == 0 and len(jobs) >= known.get("printed", 0), f"exit code {code}, {len(jobs)} jobs")
    known["printed"] = len(jobs)


READS: tuple[Callable[[Lake, dict[str, Any]], None], ...] = (
    read_chunks,
    read_results,
    read_command,
)


def _must(holds: bool, printed: str) -> None:
    if not holds:
        raise LookupError(printed)


def read(location: str, until: float, first: int) -> dict[str, Any]:
    """Read in turn until then; return how often, and what went wrong."""
    done: Counter[str] = Counter()
    known: dict[str, Any] = {}
    wrong: list[str] = []
    longest = 0.0
    turn = first
    while time.monotonic() < until and len(wrong) < 3:
        one = READS[turn % len(READS)]
        begun = time.monotonic()
        try:
            one(Lake.open(location), known)
        except FAILURES as problem:
            wrong.append(f"{one.__name__}: {type(problem).__name__}: {problem}"[:400])
        longest = max(longest, time.monotonic() - begun)
        done[one.__name__] += 1
        turn += 1
    return {"reads": dict(done), "wrong": wrong, "longest_s": round(longest, 2)}


def play(location: Path, seconds: float, *, readers: int = READERS) -> dict[str, Any]:
    """Let a writer and readers at a lake; return what came of it."""
    folder = location / "told"
    folder.mkdir(parents=True)
    lake = str(location / "lake")
    first = _child(lambda: _fill(lake), folder / "first.json")
    if first.wait():
        raise RuntimeError((folder / "said.txt").read_text())
    until = time.monotonic() + seconds
    works: list[Callable[[], dict[str, Any]]] = [lambda: write(lake, until)]
    works += [lambda number=number: read(lake, until, number) for number in range(readers)]  # type: ignore[misc]
    children = [_child(work, folder / f"{place}.json") for place, work in enumerate(works)]
    while any(child.poll() is None for child in children):
        time.sleep(0.05)
        if time.monotonic() > until + DEADLINE_S:
            for child in children:
                if child.poll() is None:
                    os.kill(child.id, signal.SIGKILL)
    codes = [child.code for child in children]
    if any(codes):
        raise RuntimeError(f"exit codes {codes}: {(folder / 'said.txt').read_text()[-2000:]}")
    written, *found = [
        json.loads((folder / f"{place}.json").read_text()) for place in range(len(children))
    ]
    reads: Counter[str] = Counter()
    for one in found:
        reads.update(one["reads"])
    return {
        "readers": readers,
        "seconds": round(seconds),
        "written": written,
        "reads": dict(reads),
        "longest_read_s": max(one["longest_s"] for one in found),
        "grace_s": GRACE_S,
        "wrong": [printed for one in found for printed in one["wrong"]],
    }


def _fill(lake: str) -> dict[str, Any]:
    """What readers may count on from the beginning: one analyzed job."""
    opened = AgeingLake.create(lake)
    ingest(opened, [chunk(0)], now=NOW)
    analyze(opened, Configuration(), judge=JobJudge, now=NOW, threads=1)
    return {}


def _child(work: Callable[[], dict[str, Any]], reported: Path) -> Child:
    def do() -> int:
        reported.write_text(json.dumps(work()))
        return 0

    return Child(do, reported.parent / "said.txt")


def main() -> int:
    """Play, print; 1 when a reader saw what it must not see."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--readers", type=int, default=READERS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="readers-") as name:
        found = play(Path(name), options.minutes * 60, readers=options.readers)
    sys.stdout.write(f"{json.dumps(found, indent=1)}\n")
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
