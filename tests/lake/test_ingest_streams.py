"""Streams that never end: rows and watermark land in one step; what overlaps lands as far as it is new."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest
from lake_rows import NOW, START, lying, merged_rows, samples

from tachograph.ingest import ingest, watermark
from tachograph.lake import Lake
from tachograph.lake.news import news
from tachograph.schema import ALLOCATIONS, GPU_SAMPLES, REJECTS
from tachograph.sources import Chunk, Part, Pending

STREAM = "prometheus:main"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.create(str(tmp_path / "lake"))


def part_of_stream(seconds: Sequence[float], *, until: float, overlaps: bool = False, power_w: float = 1.0) -> Chunk:
    part = Part("gpu_samples", samples(seconds=seconds, power_w=power_w), overlaps=overlaps)
    return Chunk(STREAM, "test", "here", (part,), len(seconds), watermark=START + timedelta(seconds=until))


def test_a_stream_goes_on_where_it_was(lake: Lake) -> None:
    assert watermark(lake, STREAM) is None
    ingest(lake, [part_of_stream([0, 10], until=20), part_of_stream([20, 30], until=40)], now=NOW)
    assert watermark(lake, STREAM) == START + timedelta(seconds=40)
    again = ingest(lake, [part_of_stream([0, 10], until=20), part_of_stream([20, 30], until=40)], now=NOW)
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
    assert news(lake, GPU_SAMPLES, frame)["t"].to_list() == frame["t"].gather([1, 2, 3]).to_list()


def test_a_key_with_null_is_found_again(lake: Lake) -> None:
    row = {"job_id": "1", "node": "n1", "gpu": 0, "provenance": "explicit"}
    frame = ALLOCATIONS.empty().drop("seq")
    frame = pl.concat([frame, pl.DataFrame([row])], how="diagonal_relaxed").cast(frame.schema)
    assert news(lake, ALLOCATIONS, frame).height == 1
    lake.append(ALLOCATIONS, frame, app_id="a")
    assert news(lake, ALLOCATIONS, frame).height == 0


def test_what_is_there_is_not_asked_for_again(lake: Lake) -> None:
    asked = []

    def fetch() -> Chunk:
        asked.append(1)
        return Chunk("window", "test", "here", (Part("gpu_samples", samples(seconds=[0])),), 1)

    for _ in range(2):
        report = ingest(lake, [Pending("window", "test", "here", fetch)], now=NOW)
    assert (len(asked), report.chunks_known, lying(lake)) == (1, 1, 1)
