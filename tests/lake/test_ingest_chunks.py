"""From chunks to the lake: each once, interrupted ones finished, every row accounted for."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_rows import NOW, START, chunk, lying, merged_rows, rows, samples

from tachograph.catalog.chunks import Chunk, ChunkPart, Reject
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import SchemaError
from tachograph.catalog.tables import DEVICES, GPU_SAMPLES, NODE_SAMPLES, REJECTS, LakeTable
from tachograph.lake.batch import between_nodes
from tachograph.lake.compact import compact
from tachograph.lake.conform import conform, resolve
from tachograph.lake.delta import AppendResult, BatchResult, Lake
from tachograph.lake.ingest import IngestReport, ingest
from tachograph.sources import ldms as source


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.create(str(tmp_path / "lake"))


class Dying(Lake):
    """A lake whose process dies before its N-th append."""

    def __init__(self, location: str, *, appends: int) -> None:
        super().__init__(location)
        self.appends = appends

    def append(self, table: LakeTable, frame: pl.DataFrame, **how: Any) -> AppendResult:
        self._count()
        return super().append(table, frame, **how)

    def append_batch(self, table: LakeTable, frames: Mapping[str, pl.DataFrame]) -> BatchResult:
        self._count()
        return super().append_batch(table, frames)

    def _count(self) -> None:
        if not self.appends:
            raise KeyboardInterrupt
        self.appends -= 1


def ugly() -> Chunk:
    """10 samples: 2 duplicates, 1 in the future, 1 too early, 1 without node; 3 impossible
    values. 3 rows of nodes.
    """
    frame = pl.concat(
        [
            samples(
                seconds=[0, 10, 10, 20, 20, 30], gpu_util=[0.1, 0.2, 0.3, 1.5, -0.5, float("nan")]
            ),
            *bad(),
        ]
    )
    of_node = pl.DataFrame(
        {"t": [START] * 3, "node": ["n1", "n1", "n2"], "node_power_w": [1.0, 2.0, 3.0]}
    )
    of_node = of_node.with_columns(pl.col("t").cast(NODE_SAMPLES.schema["t"]))
    return Chunk(
        "ugly",
        "test",
        "ugly.csv",
        (ChunkPart("gpu_samples", frame), ChunkPart("node_samples", of_node)),
        13,
    )


def bad() -> list[pl.DataFrame]:
    ahead = (NOW - START + timedelta(minutes=11)).total_seconds()
    return [
        samples(seconds=[ahead]),
        samples(seconds=[ahead - 120]),  # nine minutes ahead: a clock may be
        samples(seconds=[-3600 * 24 * 366 * 21]),
        samples(seconds=[40]).with_columns(node=pl.lit(None, dtype=pl.String)),
    ]


def test_every_row_is_kept_or_counted(lake: Lake) -> None:
    report = ingest(lake, [ugly()], now=NOW)
    whole_rows = sum(count for (_, _, column), count in report.rejects.items() if column is None)
    assert report.rows_read == 13 == lying(lake) + lying(lake, NODE_SAMPLES) + whole_rows
    assert report.rejects == {
        ("gpu_samples", "time_in_future", None): 1,
        ("gpu_samples", "time_too_early", None): 1,
        ("gpu_samples", "no_node", None): 1,
        ("gpu_samples", "duplicate", None): 2,
        ("gpu_samples", "not_finite", "gpu_util"): 1,
        ("gpu_samples", "out_of_range", "gpu_util"): 2,
        ("node_samples", "duplicate", None): 1,
    }
    assert report.duplicates == 3
    frame = lake.scan(GPU_SAMPLES).sort("t").select("gpu_util").collect()
    assert frame["gpu_util"].to_list()[:4] == [pytest.approx(0.1), pytest.approx(0.3), None, None]


def test_a_second_ingest_changes_nothing(lake: Lake) -> None:
    chunks = [ugly(), chunk("more", samples("n2"))]
    ingest(lake, chunks, now=NOW)
    tables = (GPU_SAMPLES, NODE_SAMPLES, DEVICES, REJECTS)
    versions = [lake.version(table) for table in tables]
    report = ingest(lake, chunks, now=NOW)
    assert (report.chunks, report.chunks_known, report.rows, report.rejects) == (2, 2, {}, {})
    assert [lake.version(table) for table in tables] == versions


@pytest.mark.parametrize("appends", range(4))
def test_an_interrupted_chunk_is_finished_by_the_next_run(
    lake: Lake, tmp_path: Path, appends: int
) -> None:
    whole = Lake.create(str(tmp_path / "whole"))
    expected = ingest(whole, [ugly()], now=NOW)
    with pytest.raises(KeyboardInterrupt):
        ingest(Dying(lake.location, appends=appends), [ugly()], now=NOW)
    report = ingest(lake, [ugly()], now=NOW)
    assert (report.rejects, report.duplicates, report.rows) == (
        expected.rejects,
        expected.duplicates,
        expected.rows,
    )
    for table in (GPU_SAMPLES, NODE_SAMPLES, DEVICES, REJECTS):
        assert rows(lake, table) == rows(whole, table)
        assert lying(lake, table) == lying(whole, table)


def test_recordings_of_the_same_samples_are_merged_when_they_come(
    lake: Lake, tmp_path: Path
) -> None:
    """Other counters of the same samples: one row each, in one file a day, and compaction finds
    nothing to do.
    """
    power, load = (
        samples(seconds=range(0, 1200, 10), power_w=100.0),
        samples(seconds=range(0, 1200, 10), gpu_util=0.5),
    )
    report = ingest(lake, [chunk("power", power), chunk("load", load)], now=NOW)
    assert (report.rows, report.duplicates, lying(lake)) == ({"gpu_samples": 120}, 0, 120)
    assert (report.completing, merged_rows(lake)) == (120, 0)
    files = lake.files(GPU_SAMPLES)
    assert len(files) == 2
    compact(lake, [GPU_SAMPLES])
    assert lake.files(GPU_SAMPLES) == files
    apart = Lake.create(str(tmp_path / "apart"))
    for one in (chunk("power", power), chunk("load", load)):
        ingest(apart, [one], now=NOW)
    compact(apart, [GPU_SAMPLES])
    assert rows(apart) == rows(lake)
    assert merged_rows(apart) == 0
    assert ingest(lake, [chunk("power", power), chunk("load", load)], now=NOW).chunks_known == 2


def test_a_recording_that_adds_no_counter_repeats_each_day(lake: Lake) -> None:
    """Two of three have a counter of their own beside one that both have."""
    seconds = range(0, 1200, 10)  # 60 of each day
    parts = [
        samples(seconds=seconds, power_w=100.0, gpu_util=0.5),
        samples(seconds=seconds, sm_active=0.5, gpu_util=0.5),
        samples(seconds=seconds, power_w=100.0, gpu_util=[0.5, None] * 60),
    ]
    chunks = [chunk(str(place), part) for place, part in enumerate(parts)]
    report = ingest(lake, chunks, now=NOW)
    assert (report.completing, report.duplicates) == (120, 120)
    between = lake.latest(REJECTS).filter(source="compact", reason="duplicate")
    assert between["removed"].to_list() == [60, 60]


COUNTERS = ("gpu_util", "power_w", "sm_active")
Rows = list[tuple[int, int, frozenset[str]]]  # GPU, reading, counters
SOME_ROWS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 2), st.frozensets(st.sampled_from(COUNTERS))),
    max_size=8,
)


def some_samples(written: Rows) -> pl.DataFrame:
    frames = [
        samples("n1", gpu, seconds=[50_000 * reading], **{name: [0.5] for name in counters})  # type: ignore[arg-type]
        for gpu, reading, counters in written
    ]
    return pl.concat([samples(seconds=[]), *frames], how="diagonal_relaxed")


def repeats(written: Rows) -> int:
    """How many rows add no counter to those of their sample above them."""
    there: dict[tuple[int, int], set[str]] = {}
    repeated = 0
    for gpu, reading, counters in written:
        sample = gpu, reading
        repeated += sample in there and counters <= there[sample]
        there.setdefault(sample, set()).update(counters)
    return repeated


@given(SOME_ROWS)
def test_a_row_repeats_others_if_it_adds_no_counter(written: Rows) -> None:
    keys = {(gpu, reading) for gpu, reading, _ in written}
    frame = conform(some_samples(written), GPU_SAMPLES, now=NOW).frame
    stamped = frame.with_columns(seq=pl.lit(0, pl.Int64)).select(*GPU_SAMPLES.schema)
    resolved, counted = resolve(stamped, GPU_SAMPLES, repeats=True)
    assert (resolved.height, counted) == (len(keys), repeats(written))


@given(st.lists(SOME_ROWS, min_size=1, max_size=3), st.booleans())
@settings(max_examples=settings().max_examples // 4)
def test_rows_are_new_repeat_others_or_complete_them(
    tmp_path_factory: pytest.TempPathFactory, written: list[Rows], again: bool
) -> None:
    lake = Lake.create(str(tmp_path_factory.mktemp("lake")))
    frames = [some_samples(rows_of_chunk) for rows_of_chunk in written]
    chunks = [chunk(f"{place}", frame) for place, frame in enumerate(frames)]
    chunks += [chunk(f"{place} again", frame) for place, frame in enumerate(frames) if again]
    report = ingest(lake, chunks, now=NOW)
    stored = report.rows.get("gpu_samples", 0)
    assert stored + report.duplicates + report.completing == report.rows_read
    assert stored == lying(lake)
    counted = sum(
        count for (_, reason, _), count in report.rejects.items() if reason == "duplicate"
    )
    assert report.duplicates == counted + merged_between(lake)
    # rows of one chunk are put together first
    if all(len(of_chunk) == len({row[:2] for row in of_chunk}) for of_chunk in written):
        every = [row for of_chunk in written for row in of_chunk]
        assert report.duplicates == repeats(every * 2 if again else every)


def merged_between(lake: Lake) -> int:
    """Return how many duplicates between chunks are counted in the rejects."""
    between = lake.latest(REJECTS).filter(source="compact", reason="duplicate")
    return int(between["removed"].sum())


@pytest.mark.parametrize(("most", "files"), [(320, 1), (200, 2)])
def test_pieces_of_one_day_are_committed_together(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, most: int, files: int
) -> None:
    """A day that comes in pieces, one time after the other, is one file up to a number of rows."""
    monkeypatch.setattr("tachograph.lake.ingest.BATCH_ROWS", 100)
    monkeypatch.setattr("tachograph.lake.ingest.DAY_ROWS", most)
    of_times = [range(begin, begin + 400, 10) for begin in range(3600, 5200, 400)]
    pieces = [
        chunk(str(number), pl.concat(samples(node, seconds=times) for node in ("n1", "n2")))
        for number, times in enumerate(of_times)
    ]
    ingest(lake, pieces, now=NOW)
    assert (len(lake.files(GPU_SAMPLES)), lying(lake)) == (files, 320)
    [done] = compact(lake, [GPU_SAMPLES])
    assert done.rows_before == (0 if files == 1 else 320)
    assert len(rows(lake)) == 320


def test_a_day_of_many_rows_is_cut_between_nodes() -> None:
    frame = pl.concat(
        samples(f"n{number}", seconds=range(count)) for number, count in enumerate((3, 4, 9, 1, 2))
    )
    pieces = list(between_nodes(frame, limit=8))
    assert [piece["node"].unique(maintain_order=True).to_list() for piece in pieces] == [
        ["n0", "n1"],
        ["n2"],
        ["n3", "n4"],
    ]
    assert pl.concat(pieces).equals(frame)
    assert len(list(between_nodes(frame, limit=19))) == 1


def test_the_same_chunk_twice_in_a_row_counts_once(lake: Lake) -> None:
    report = ingest(
        lake, [chunk("a", samples()), chunk("b", samples("n2")), chunk("a", samples())], now=NOW
    )
    assert (report.chunks_known, report.rows, lying(lake)) == (1, {"gpu_samples": 120}, 120)


def test_a_batch_that_was_killed_is_finished_beside_other_chunks(lake: Lake) -> None:
    one, two, three = (chunk(name, samples(name)) for name in ("n1", "n2", "n3"))
    with pytest.raises(KeyboardInterrupt):
        ingest(Dying(lake.location, appends=1), [one, two], now=NOW)
    assert lake.mark(REJECTS, "n1") is None
    ingest(lake, [three, two, one], now=NOW)
    assert lying(lake) == 180
    assert lake.latest(DEVICES)["node"].to_list() == ["n1", "n2", "n3"]
    assert [lake.mark(REJECTS, name) for name in ("n1", "n2", "n3")] == [1, 1, 1]


def test_removals_are_kept_with_one_example(lake: Lake) -> None:
    ingest(lake, [ugly()], now=NOW)
    kept = lake.latest(REJECTS).sort("target", "reason", "removed")
    assert kept["removed"].sum() == 9
    row = kept.filter(pl.col("reason") == "out_of_range").row(0, named=True)
    assert (row["source"], row["origin"], row["column"], row["example"]) == (
        "test",
        "ugly.csv",
        "gpu_util",
        "1.5",
    )


def test_what_the_reader_gave_up_is_counted_too(lake: Lake) -> None:
    part = ChunkPart("gpu_samples", samples(), rejects=(Reject("ragged_row", None, 7, "a,b"),))
    report = ingest(lake, [Chunk("a", "test", "a.csv", (part,), 67)], now=NOW)
    assert report.rejects == {("gpu_samples", "ragged_row", None): 7}
    assert report.examples == {("gpu_samples", "ragged_row", None): "a,b"}
    assert report.rows_read == lying(lake) + report.rejected


def test_an_unknown_column_stops_the_chunk_and_not_those_before(lake: Lake) -> None:
    chunks = [chunk("good", samples()), chunk("bad", samples().with_columns(fan=pl.lit(1.0)))]
    report = IngestReport()
    with pytest.raises(SchemaError, match="has no column fan"):
        ingest(lake, chunks, now=NOW, report=report)
    assert (report.chunks, lying(lake), lake.mark(REJECTS, "good"), lake.mark(REJECTS, "bad")) == (
        2,
        60,
        1,
        None,
    )


def test_a_chunk_of_which_a_part_is_wrong_lands_not_at_all(lake: Lake) -> None:
    wrong = pl.DataFrame({"node": ["n1"], "node_power_w": [1.0], "fan": [1.0]})
    parts = (ChunkPart("gpu_samples", samples()), ChunkPart("node_samples", wrong))
    with pytest.raises(SchemaError, match="has no column fan"):
        ingest(lake, [Chunk("a", "test", "a.csv", parts, 61)], now=NOW)
    assert [lake.version(table) for table in (GPU_SAMPLES, NODE_SAMPLES, DEVICES, REJECTS)] == [
        -1
    ] * 4


def test_devices_are_noted_as_they_are_seen(lake: Lake) -> None:
    ingest(lake, [chunk("a", samples("n1", 0), samples("n1", 1, mig=3))], now=NOW)
    ingest(lake, [chunk("b", samples("n1", 0, hbm_used_mib=100.0, hbm_free_mib=900.0))], now=NOW)
    ingest(lake, [chunk("c", samples("n1", 0, hbm_used_mib=5.0, hbm_free_mib=5.0))], now=NOW)
    found = lake.latest(DEVICES).select("node", "gpu", "mig", "usable_mib").rows()
    assert found == [("n1", 0, None, 1000.0), ("n1", 1, 3, None)]


@pytest.mark.recorded
@pytest.mark.parametrize(
    "order",
    [
        ("job_51911473.json", "pmt-data-export-2.json"),
        ("pmt-data-export-2.json", "job_51911473.json"),
    ],
)
def test_two_real_exports_of_one_job_complete_each_other(
    lake: Lake, recorded: Path, order: tuple[str, str]
) -> None:
    counters = []
    for name in order:
        options = argparse.Namespace(
            files=[str(recorded / "nersc_perlmutter" / name)], time_zone="UTC", job_start=[]
        )
        alone = Lake.create(f"{lake.location}-{name}")
        now = datetime(2026, 11, 1, tzinfo=UTC)
        for target in (lake, alone):
            ingest(target, source.read(options, configuration=Configuration(), now=now), now=now)
        frame = alone.scan(GPU_SAMPLES).collect()
        keys = frame.select("node", "gpu", "t").sort(pl.all()).rows()
        counters.append(
            (keys, {column.name for column in frame if column.null_count() < frame.height}, frame)
        )
    assert counters[0][0] == counters[1][0]
    together = counters[0][1] | counters[1][1]
    assert counters[0][1] != counters[1][1]
    compact(lake, [GPU_SAMPLES])
    merged = lake.scan(GPU_SAMPLES).collect()
    assert {column.name for column in merged if column.null_count() < merged.height} == together
    assert merged.height == counters[0][2].height
    for _, names, frame in counters:
        only = sorted(names - (counters[0][1] & counters[1][1]))
        left, right = (f.sort("node", "gpu", "t").select(only) for f in (frame, merged))
        assert left.equals(right)
