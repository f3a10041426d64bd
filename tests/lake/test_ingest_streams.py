"""Streams that never end: rows and watermark land in one step; what overlaps lands as far as it
is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import pytest
from lake_rows import NOW, START, lying, merged_rows, samples

from tachograph.catalog.chunks import Chunk, ChunkPart, PendingChunk
from tachograph.catalog.tables import ALLOCATIONS, GPU_SAMPLES, REJECTS, LakeTable
from tachograph.lake.delta import AppendResult, Lake
from tachograph.lake.ingest import ingest, new_rows, watermark

STREAM = "prometheus:main"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.create(str(tmp_path / "lake"))


def part_of_stream(
    seconds: Sequence[float], *, until: float, overlaps: bool = False, power_w: float = 1.0
) -> Chunk:
    part = ChunkPart("gpu_samples", samples(seconds=seconds, power_w=power_w), overlaps=overlaps)
    return Chunk(
        STREAM, "test", "here", (part,), len(seconds), watermark=START + timedelta(seconds=until)
    )


def test_a_stream_goes_on_where_it_was(lake: Lake) -> None:
    assert watermark(lake, STREAM) is None
    ingest(lake, [part_of_stream([0, 10], until=20), part_of_stream([20, 30], until=40)], now=NOW)
    assert watermark(lake, STREAM) == START + timedelta(seconds=40)
    again = ingest(
        lake, [part_of_stream([0, 10], until=20), part_of_stream([20, 30], until=40)], now=NOW
    )
    assert (again.chunks, again.chunks_known, again.rows, lying(lake)) == (2, 2, {}, 4)
    ingest(lake, [part_of_stream([40], until=50)], now=NOW)
    assert lying(lake) == 5


def test_what_a_stream_removed_is_counted_for_each_part_of_it(lake: Lake) -> None:
    for until in (20, 40):
        ingest(lake, [part_of_stream([until - 20, until - 10], until=until, power_w=-1.0)], now=NOW)
    assert lake.latest(REJECTS)["removed"].to_list() == [2, 2]


def test_of_an_overlap_only_what_is_new_lands(lake: Lake) -> None:
    ingest(lake, [part_of_stream([0, 10, 30], until=40)], now=NOW)
    report = ingest(lake, [part_of_stream([0, 10, 20, 30], until=50, overlaps=True)], now=NOW)
    assert (report.rows["gpu_samples"], lying(lake)) == (1, 4)
    assert merged_rows(lake) == 0


def test_a_value_that_was_missing_or_is_another_is_news(lake: Lake) -> None:
    ingest(lake, [part_of_stream([0, 10, 20], until=40)], now=NOW)
    frame = samples(seconds=[0, 10, 20, 30]).with_columns(
        pl.Series("power_w", [None, 1.0, 2.0, 1.0], pl.Float32),
        gpu_util=pl.Series([None, 0.5, None, None], dtype=pl.Float32),
    )
    assert (
        new_rows(lake, GPU_SAMPLES, frame)["t"].to_list() == frame["t"].gather([1, 2, 3]).to_list()
    )


def test_a_key_with_null_is_found_again(lake: Lake) -> None:
    row = {"job_id": "1", "node": "n1", "gpu": 0, "provenance": "explicit"}
    frame = ALLOCATIONS.empty().drop("seq")
    frame = pl.concat([frame, pl.DataFrame([row])], how="diagonal_relaxed").cast(frame.schema)
    assert new_rows(lake, ALLOCATIONS, frame).height == 1
    lake.append(ALLOCATIONS, frame, app_id="a")
    assert new_rows(lake, ALLOCATIONS, frame).height == 0


class DyingBeforeRejects(Lake):
    """A lake whose process dies when the rows of a chunk have landed and its watermark has not."""

    def append(self, table: LakeTable, frame: pl.DataFrame, **how: Any) -> AppendResult:
        if table is REJECTS:
            raise KeyboardInterrupt
        return super().append(table, frame, **how)


def test_what_a_killed_process_had_landed_lands_no_second_time_in_a_longer_chunk(
    lake: Lake,
) -> None:
    ingest(lake, [part_of_stream([0], until=10)], now=NOW)
    with pytest.raises(KeyboardInterrupt):
        ingest(DyingBeforeRejects(lake.location), [part_of_stream([10, 20], until=30)], now=NOW)
    assert watermark(lake, STREAM) == START + timedelta(seconds=10)
    report = ingest(lake, [part_of_stream([10, 20, 30, 40], until=50)], now=NOW)
    assert (report.rows, lying(lake), report.duplicates) == ({"gpu_samples": 2}, 5, 0)


def test_a_part_is_known_again_whatever_other_tables_the_chunk_fills(lake: Lake) -> None:
    with pytest.raises(KeyboardInterrupt):
        ingest(DyingBeforeRejects(lake.location), [part_of_stream([0, 10], until=20)], now=NOW)
    longer = part_of_stream([0, 10, 20], until=30)
    devices = ChunkPart("devices", pl.DataFrame({"node": ["n1"], "gpu": [0], "model": ["L4"]}))
    ingest(lake, [replace(longer, parts=(devices, *longer.parts))], now=NOW)
    assert lying(lake) == 3


def test_of_two_that_read_one_stream_each_row_lands_once(lake: Lake) -> None:
    one = replace(part_of_stream([0, 10, 20], until=30), since=START)
    # Read before the first had landed.
    other = replace(part_of_stream([0, 10, 20, 30, 40], until=50), since=START)
    ingest(lake, [one], now=NOW)
    report = ingest(lake, [other], now=NOW)
    assert (report.rows["gpu_samples"], lying(lake)) == (2, 5)


def test_a_row_that_another_process_lands_at_the_last_moment_lands_once(lake: Lake) -> None:
    class Overtaken(Lake):
        """While this one is about to append, another process lands a part of the same stream."""

        others: ClassVar[list[Chunk]] = [part_of_stream([0, 10], until=20)]

        def append(self, table: LakeTable, frame: pl.DataFrame, **how: Any) -> AppendResult:
            if self.others:
                ingest(lake, [self.others.pop()], now=NOW)
            return super().append(table, frame, **how)

    report = ingest(Overtaken(lake.location), [part_of_stream([0, 10, 20], until=30)], now=NOW)
    assert (report.rows["gpu_samples"], lying(lake), watermark(lake, STREAM)) == (
        1,
        3,
        START + timedelta(seconds=30),
    )


def test_what_is_there_is_not_asked_for_again(lake: Lake) -> None:
    asked = []

    def fetch() -> Chunk:
        asked.append(1)
        return Chunk("window", "test", "here", (ChunkPart("gpu_samples", samples(seconds=[0])),), 1)

    for _ in range(2):
        report = ingest(lake, [PendingChunk("window", "test", "here", fetch)], now=NOW)
    assert (len(asked), report.chunks_known, lying(lake)) == (1, 1, 1)
