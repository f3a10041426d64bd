"""A commit that stands is never undone, whatever goes wrong after it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from tachograph.catalog.chunks import Chunk, ChunkPart
from tachograph.catalog.tables import (
    ALLOCATIONS,
    DEVICES,
    GPU_SAMPLES,
    JOBS,
    NODE_SAMPLES,
    REJECTS,
    LakeTable,
)
from tachograph.lake.compact import compact
from tachograph.lake.conform import resolve
from tachograph.lake.data_files import DataFile
from tachograph.lake.delta import AppendResult, Lake
from tachograph.lake.ingest import ingest


class InterruptedLake(Lake):
    """Ctrl-C arrives just after a commit has succeeded."""

    def _commit(
        self,
        delta: DeltaTable,
        table: LakeTable,
        actions: Sequence[AddAction | RemoveAction],
        transactions: list[Transaction],
    ) -> bool:
        super()._commit(delta, table, actions, transactions)
        raise KeyboardInterrupt


def samples(node: str) -> pl.DataFrame:
    schema = {name: dtype for name, dtype in NODE_SAMPLES.schema.items() if name != "seq"}
    row = {"t": datetime(2026, 1, 1, tzinfo=UTC), "node": node, "cpu_power_w": 1.0}
    return pl.DataFrame([row], schema=schema)


def test_an_interrupt_after_the_commit_keeps_its_files(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        InterruptedLake.create(str(tmp_path)).append(NODE_SAMPLES, samples("n1"), app_id="a")
    lake = Lake.open(str(tmp_path))
    assert lake.latest(NODE_SAMPLES)["node"].to_list() == ["n1"]
    assert lake.append(NODE_SAMPLES, samples("n1"), app_id="a").known


def test_an_interrupt_after_a_replacement_keeps_its_files(tmp_path: Path) -> None:
    lake = Lake.create(str(tmp_path))
    lake.append(NODE_SAMPLES, samples("n1"), app_id="a")
    files = lake.files(NODE_SAMPLES)
    rows = lake.read_files(NODE_SAMPLES, files).collect()
    with pytest.raises(KeyboardInterrupt):
        InterruptedLake(str(tmp_path)).replace(NODE_SAMPLES, files, [(files[0].day, rows)])
    assert lake.latest(NODE_SAMPLES)["node"].to_list() == ["n1"]


def test_a_merged_row_is_as_new_as_its_newest_part() -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    ended = {"job_id": "1", "submit": begin, "start": begin, "end": begin, "seq": 1}
    late = {"job_id": "1", "submit": begin, "start": begin, "account": "physics", "seq": 2}
    merged, count = resolve(pl.DataFrame([ended, late], schema=JOBS.schema), JOBS)
    assert count == 1
    assert merged.select("account", "seq").row(0) == ("physics", 2)


class KilledLake(Lake):
    """A compaction is killed before its commit, or after it."""

    def __init__(self, location: str, *, after: bool) -> None:
        super().__init__(location)
        self.after = after

    def replace(self, table: LakeTable, files: Sequence[DataFile], rows: Any, **given: Any) -> bool:
        if self.after:
            super().replace(table, files, rows, **given)
        else:
            list(rows)
        raise KeyboardInterrupt


@pytest.mark.parametrize("after", [False, True])
def test_rows_merged_by_a_compaction_that_was_killed_are_counted_once(
    tmp_path: Path, after: bool
) -> None:
    lake = Lake.create(str(tmp_path))
    for name in ("first", "again"):
        lake.append(NODE_SAMPLES, samples("n1"), app_id=name)
    with pytest.raises(KeyboardInterrupt):
        compact(KilledLake(lake.location, after=after), [NODE_SAMPLES])
    # The next compaction meets other files than the killed one.
    lake.append(NODE_SAMPLES, samples("n1"), app_id="late")
    for _ in range(2):
        compact(lake, [NODE_SAMPLES])
        assert lake.latest(REJECTS)["removed"].sum() == 2
        assert lake.scan(NODE_SAMPLES).collect().height == 1


def test_rows_merged_between_chunks_are_counted_by_the_next_run(tmp_path: Path) -> None:
    chunks = [
        Chunk(name, name, "s", (ChunkPart("node_samples", samples("n1")),), 1)
        for name in ("first", "again")
    ]
    with pytest.raises(KeyboardInterrupt):
        ingest(InterruptedLake.create(str(tmp_path)), chunks, now=datetime(2026, 2, 1, tzinfo=UTC))
    lake = Lake.open(str(tmp_path))
    for _ in range(2):
        ingest(lake, chunks, now=datetime(2026, 2, 1, tzinfo=UTC))
        assert lake.scan(NODE_SAMPLES).collect().height == 1
        assert lake.latest(REJECTS)["removed"].to_list() == [1]


def a_map(name: str, *jobs: str) -> Chunk:
    rows = [
        {"cluster": "c", "job_id": job, "node": "n1", "gpu": 0, "provenance": "explicit"}
        for job in jobs
    ]
    part = ChunkPart("allocations", pl.DataFrame(rows), overlaps=True, rows_used=len(jobs))
    return Chunk(name, name, "map", (part,), len(jobs))


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize(
    ("jobs", "duplicates"),
    [(("1", "2"), []), (("1", "2", "2"), [1]), (("0", "1"), [1]), (("0", "0", "1", "1"), [3])],
)
def test_rows_of_a_map_that_a_killed_run_landed_are_its_own(
    tmp_path: Path, jobs: tuple[str, ...], duplicates: list[int], killed: bool
) -> None:
    now = datetime(2026, 2, 1, tzinfo=UTC)
    lake = Lake.create(str(tmp_path))
    ingest(lake, [a_map("before", "0")], now=now)
    if killed:
        with pytest.raises(KeyboardInterrupt):
            ingest(InterruptedLake(lake.location), [a_map("new", *jobs)], now=now)
    report = ingest(lake, [a_map("new", *jobs)], now=now)
    assert (report.duplicates, report.rows) == (
        sum(duplicates),
        {"allocations": len(jobs) - sum(duplicates)},
    )
    assert lake.latest(REJECTS)["removed"].to_list() == duplicates
    assert sorted(lake.latest(ALLOCATIONS)["job_id"]) == sorted({"0", *jobs})


class NoDevicesLake(Lake):
    """A process is killed once samples have landed, and before the GPUs they show have."""

    def append(self, table: LakeTable, frame: pl.DataFrame, **given: Any) -> AppendResult:
        if table is DEVICES:
            raise KeyboardInterrupt
        return super().append(table, frame, **given)


def test_a_gpu_whose_samples_landed_alone_is_noted_when_the_stream_is_read_again(
    tmp_path: Path,
) -> None:
    lake = Lake.create(str(tmp_path))
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    frame = pl.DataFrame({"t": [begin], "node": "n1", "gpu": 0, "power_w": 1.0})
    part = ChunkPart("gpu_samples", frame)
    chunks = [
        Chunk(
            "stream",
            "test",
            "here",
            (part,),
            1,
            watermark=begin + timedelta(minutes=minutes),
            since=begin,
        )
        for minutes in (1, 2)
    ]
    with pytest.raises(KeyboardInterrupt):
        ingest(NoDevicesLake(lake.location), chunks[:1], now=begin)
    ingest(lake, chunks[1:], now=begin)  # cut elsewhere than before
    assert lake.latest(DEVICES)["node"].to_list() == ["n1"]
    assert lake.scan(GPU_SAMPLES).collect().height == 1
