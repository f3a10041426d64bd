"""A small site and what is done with its lake, step by step; and what readers see of a lake, to
compare.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from tachograph.catalog.chunks import Chunk, ChunkPart
from tachograph.catalog.config import CollectOptions
from tachograph.catalog.tables import ALL_TABLES, ANALYSES, GPU_SAMPLES, REJECTS, TABLES, LakeTable
from tachograph.cli import main
from tachograph.collect.collector import Collection, CollectPlan
from tachograph.collect.readers import PolledSource
from tachograph.collect.systemd import NO_NOTIFIER
from tachograph.lake.compact import compact
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest, watermark
from tachograph.lake.partitions import partitions, read_partition
from tachograph.lake.query import (
    read_findings,
    read_gpus,
    read_minutes,
    read_summaries,
)
from tachograph.lake.retention import rows_that_count
from tachograph.sources.registry import PollOutcome, Watermark

START = datetime(2026, 3, 1, 23, 50, tzinfo=UTC)  # ten minutes before midnight: two days
LENGTH_S = 1200
AS_OF = "2026-03-05T00:00:00"
NOW = datetime(2026, 3, 5, tzinfo=UTC)
LATER = timedelta(days=2)  # what killed analyses left is dropped by then
STREAM = "story:stream"
EXPIRE = "expire"
FORGET = "forget"
# Where time is short.
KILLED_ALONE = ("ingest samples", "analyze what is new", "compact again", EXPIRE, FORGET)
LAST = START + timedelta(seconds=600)  # of streams
_HEADER = (
    "timestamp,hostname,gpu_id,"
    "nersc_ldms_dcgm_gpu_utilization,nersc_ldms_dcgm_power_usage,nersc_ldms_dcgm_fb_used\n"
)
_SACCT = "JobID|JobIDRaw|Cluster|Partition|User|Submit|Start|End|Elapsed|State|NNodes|NodeList|AllocTRES|JobName\n"

Work = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Step:
    """One command: what it is called, and what it does to the lake at a place."""

    name: str
    work: Callable[[Path], int]


def run_story(folder: Path) -> tuple[Step, ...]:
    """Write the inputs into `folder` and return the steps, in order."""
    _write_inputs(folder)
    return (
        Step(
            "ingest samples", lambda lake: _main("ingest", "ldms", folder / "first", "--lake", lake)
        ),
        Step(
            "ingest accounting",
            lambda lake: _main(
                "ingest", "sacct", folder / "first.txt", "--trusted", "--lake", lake
            ),
        ),
        Step(
            "ingest map",
            lambda lake: _main("ingest", "allocation-map", folder / "map.csv", "--lake", lake),
        ),
        Step("analyze", analyze),
        Step("compact", lambda lake: _main("lake", "compact", "--lake", lake)),
        Step("stream", stream),
        Step("collect", collect),
        Step(
            "ingest late samples",
            lambda lake: _main("ingest", "ldms", folder / "late", "--lake", lake),
        ),
        Step(
            "ingest late accounting",
            lambda lake: _main("ingest", "sacct", folder / "late.txt", "--trusted", "--lake", lake),
        ),
        Step("analyze what is new", analyze),
        Step("compact again", lambda lake: _main("lake", "compact", "--lake", lake)),
        Step(EXPIRE, expire),
        Step(FORGET, partial(forget, folder / "key")),
    )


def expire(lake: Path) -> int:
    """Remove samples and minutes that are months old, but for the last day of the accounting;
    and replaced files.
    """
    os.environ |= {
        "TACHOGRAPH_RETENTION_SAMPLES": "1d",
        "TACHOGRAPH_RETENTION_MINUTES": "1d",
    }
    return _main("lake", "compact", "--expire", "--vacuum-hours", "0", "--lake", lake)


def forget(key: Path, lake: Path) -> int:
    """Replace the name of the user of all jobs, and delete the files that held it."""
    if not key.exists():
        key.write_text("0" * 64)
        key.chmod(0o600)
    return _main("lake", "forget", "--user", "ann", "--key", key, "--yes", "--now", "--lake", lake)


def analyze(lake: Path, *options: str) -> int:
    """Analyze as of a time that does not pass."""
    return _main("analyze", "--threads", "1", "--as-of", AS_OF, "--lake", lake, *options)


def settle(lake: Path) -> int:
    """Bring a lake to the state in which every history of the same inputs ends: all jobs done
    anew, days compacted.
    """
    code = analyze(lake, "--full")
    opened = Lake.open(str(lake))
    compact(
        opened,
        ALL_TABLES,
        counting=rows_that_count(opened, datetime.now(UTC) + LATER),
        vacuum_hours=0,
    )
    return code


def _main(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


class Tape:
    """A source that has ten minutes of a node; prints `done` once the lake has them."""

    def __init__(self, node: str, done: Callable[[], None]) -> None:
        self.node, self.done, self.outcome = node, done, PollOutcome()

    def poll(self, watermark: Watermark, *, now: datetime) -> Iterator[Chunk]:
        """Yield what the lake does not have."""
        begun = watermark(f"tape:{self.node}") or START
        if begun >= LAST:
            self.done()
        yield from _stream_chunks(f"tape:{self.node}", self.node, begun)

    def close(self) -> None:
        """Nothing is held."""


def collect(lake: Path) -> int:
    """Collect from two sources until the lake has all they report."""
    stopping, left = threading.Event(), {"n6", "n7"}

    def done(node: str) -> None:
        left.discard(node)
        if not left:
            stopping.set()

    sources = [
        PolledSource(f"tape:{node}", 0.05, Tape(node, partial(done, node))) for node in sorted(left)
    ]
    quiet = CollectOptions(listen="", analyze_s=3600, compact_s=3600)
    plan = CollectPlan(
        Lake.create(str(lake)),
        sources,
        quiet,
        ["--lake", str(lake), "--quiet"],
        retry_s=(0.05, 0.2),
    )
    plan.folder.mkdir(parents=True, exist_ok=True)
    Collection(plan, remark=lambda _: None, stopping=stopping, notifier=NO_NOTIFIER).run()
    return 0


def stream(lake: Path) -> int:
    """Read a stream on from its watermark, some samples at a time: what a feed does after a
    restart.
    """
    opened = Lake.create(str(lake))
    begun = watermark(opened, STREAM) or START
    ingest(opened, _stream_chunks(STREAM, "n4", begun), now=NOW)
    return 0


def _stream_chunks(stream: str, node: str, begun: datetime) -> Iterator[Chunk]:
    """Chunks of ten minutes of a node, cut where the reading begins; one value a minute is
    impossible.
    """
    length = timedelta(seconds=70 + begun.second)
    while begun < LAST:
        end = min(begun + length, LAST)
        times = [
            begun + timedelta(seconds=10 * place)
            for place in range((end - begun) // timedelta(seconds=10))
        ]
        power = [-1.0 if time.second == 30 else 100.0 + time.minute for time in times]
        frame = pl.DataFrame(
            {"t": times, "node": node, "gpu": 0, "power_w": power, "gpu_util": 0.5}
        )
        yield Chunk(
            stream,
            "story",
            "stream",
            (ChunkPart("gpu_samples", frame),),
            len(times),
            watermark=end,
            since=begun,
        )
        begun = end


def _write_inputs(folder: Path) -> None:
    for name in ("first", "late"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    files = {
        "first/a.csv": _samples("n1"),
        "first/b.csv": _samples("n2", end_s=800),
        "first/c.csv": _samples("n1", power_w=300, end_s=600)
        + _samples("n3", end_s=300),  # n1 again, with other values
        "late/d.csv": _samples("n3"),
        "late/e.csv": _samples("n2", first_s=700)
        + _samples("n1", power_w=350, first_s=300, end_s=900),
        "late/f.csv": _samples("n5", gpus=1) + "yesterday,n5,0,1,1,1\n",
    }
    for name, rows in files.items():
        (folder / name).write_text(_HEADER + rows)
    (folder / "first.txt").write_text(
        _SACCT + _job(1) + _job(2) + _job(3, state="RUNNING", end="Unknown")
    )
    (folder / "late.txt").write_text(_SACCT + _job(3) + _job(5, gpus=1))
    held = "".join(f"{number},n{number},0-1\n" for number in (1, 2, 3)) + "5,n5,0\n"
    (folder / "map.csv").write_text("job_id,node,gpu\n" + held)


def _samples(
    node: str, *, power_w: int = 200, first_s: int = 0, end_s: int = LENGTH_S, gpus: int = 2
) -> str:
    return "".join(
        f"{START + timedelta(seconds=second):%Y-%m-%dT%H:%M:%S},{node},{gpu},"
        f"{(second // 10 + gpu) % 10 * 10},{power_w},100\n"
        for gpu in range(gpus)
        for second in range(first_s, end_s, 10)
    )


def _job(number: int, *, state: str = "COMPLETED", end: str = "", gpus: int = 2) -> str:
    ended = end or f"{START + timedelta(seconds=LENGTH_S):%Y-%m-%dT%H:%M:%S}"
    start = f"{START:%Y-%m-%dT%H:%M:%S}"
    return (
        f"{number}|{number}|c|gpu|ann|2026-03-01T23:00:00|{start}|{ended}|00:20:00|{state}|1|n{number}"
        f"|cpu=4,gres/gpu={gpus}|train\n"
    )


def job_rows(
    number: int, node: str, start: datetime, end: datetime, *, gpus: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return a job's row of `jobs`, and its rows of `allocations`: it held these GPUs of one
    node.
    """
    job = {
        "cluster": "c", "job_id": str(number), "user": "ann", "state": "COMPLETED", "submit": start, "start": start,
        "end": end, "elapsed_s": (end - start).total_seconds(), "nodes": 1, "node_list": node, "gpus": gpus,
    }  # fmt: skip
    held = [
        {"cluster": "c", "job_id": str(number), "node": node, "gpu": gpu, "provenance": "explicit"}
        for gpu in range(gpus)
    ]
    return pl.DataFrame([job]), pl.DataFrame(held)


def seen(location: Path) -> dict[str, str]:
    """Return {what: digest} of what readers see of a lake, and of what ingest removed.

    Errors: AssertionError when a file that counts is gone or holds other rows than the log reports.
    """
    lake = Lake.open(str(location))
    found: dict[str, Any] = {}
    for table in ALL_TABLES:
        if lake.delta(table) is not None:
            lies = lake.scan(table).collect().height
            assert lies == sum(file.rows for file in lake.files(table)), (
                f"{table.name}: rows are missing"
            )
    for table in TABLES.values():
        if table is not REJECTS:
            found[table.name] = _rows(lake, table)
    found["removed"] = _removed(lake)
    if lake.delta(ANALYSES) is not None:
        found |= _computed(lake)
    found["samples that lie there and that were merged"] = _lies(lake) + _merged(lake)
    return {what: _digest(rows) for what, rows in found.items()}


def _digest(rows: object) -> str:
    text = repr(rows)
    return (
        text
        if len(text) < 40
        else f"{hashlib.sha256(text.encode()).hexdigest()[:16]} of {len(text)}"
    )


def _rows(lake: Lake, table: LakeTable) -> list[tuple[Any, ...]]:
    """What a reader sees of a table, in its order, without `seq`."""
    if not table.by_day:
        return lake.latest(table).drop("seq").rows()
    read = [read_partition(lake, table, part)[0] for part in partitions(lake, table)]
    return pl.concat([table.empty(), *read]).drop("seq").sort(*table.sort, nulls_last=False).rows()


def _lies(lake: Lake) -> int:
    return int(lake.scan(GPU_SAMPLES).select(pl.len()).collect().item())


def _merged(lake: Lake) -> int:
    rejects = lake.latest(REJECTS).filter(
        (pl.col("reason") == "duplicate") & (pl.col("target") == GPU_SAMPLES.name)
    )
    return int(rejects.get_column("removed").sum())


def _removed(lake: Lake) -> list[tuple[Any, ...]]:
    """What was removed, summed up: a stream's chunks end elsewhere, and a compaction is named
    after files.
    """
    removed = lake.latest(REJECTS).filter(pl.col("source") != "compact")
    return (
        removed.group_by("source", "target", "reason", "column")
        .agg(pl.col("removed").sum())
        .sort(pl.all())
        .rows()
    )


def _computed(lake: Lake) -> dict[str, Any]:
    """The computed tables as reports read them."""
    summaries = read_summaries(lake)
    minutes = read_minutes(lake, summaries)
    frames = {
        "job_summaries": summaries,
        "job_gpus": read_gpus(lake, summaries),
        "job_minutes": minutes,
        "findings": read_findings(lake, summaries),
        "analyses": lake.latest(ANALYSES)
        .tail(1)
        .select("method", "as_of", "seq")
        .with_columns(seq=0),
    }
    return {name: frame.drop("seq").rows() for name, frame in frames.items()}


def orphans(location: Path) -> list[str]:
    """Return the data files on the disk that no log names."""
    lake = Lake.open(str(location))
    left = []
    for table in ALL_TABLES:
        named = {f"{lake.uri(table)}/{file.path}" for file in lake.files(table)}
        left += [
            str(path)
            for path in Path(lake.uri(table)).rglob("*.parquet")
            if "_delta_log" not in path.parts and str(path) not in named
        ]
    return left
