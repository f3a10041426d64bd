"""A collection in this process: what is committed, what is reported, what goes on when something
does not work.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from collecting import collecting, plan_of, until
from fake_feeds import START, STEP, Answer, Scripted, Tape, chunk_of, nothing, number_of

from tachograph.catalog.chunks import Chunk
from tachograph.catalog.config import CollectOptions
from tachograph.catalog.errors import ConfigError, InputError, LakeError
from tachograph.catalog.tables import GPU_SAMPLES, REJECTS, LakeTable
from tachograph.collect import readers
from tachograph.collect.collector import Collection, CollectPlan
from tachograph.collect.readers import NO_THREAD, PolledSource
from tachograph.collect.status import AHEAD_S, SourceStatus, read_status
from tachograph.collect.systemd import NO_NOTIFIER
from tachograph.collect.writer import UNREADABLE_CHUNK
from tachograph.lake.delta import AppendResult, Lake
from tachograph.lake.ingest import watermark
from tachograph.sources.registry import SourceFeed, Watermark

NAME = "fake:one"


def lying(lake: Lake) -> list[tuple[str, int]]:
    """(node, number) of every row in the files of the samples, sorted."""
    if lake.delta(GPU_SAMPLES) is None:
        return []
    frame = lake.scan(GPU_SAMPLES).select("node", "t").collect()
    return sorted((node, number_of(t)) for node, t in frame.rows())


def all_of(node: str, count: int) -> list[tuple[str, int]]:
    return [(node, number) for number in range(count)]


def status_of(plan: CollectPlan, name: str = NAME) -> SourceStatus:
    status = read_status(plan.folder)
    assert status is not None
    return status.sources[name]


def gives(begin: int, end: int, **given: Any) -> Answer:
    def answer(known: Watermark) -> Iterator[Chunk]:
        yield chunk_of(NAME, begin, end, **given)

    return answer


def fails(message: str) -> Answer:
    def answer(known: Watermark) -> Iterator[Chunk]:
        yield from ()
        raise InputError(message, where="http://node1", do="look there")

    return answer


def test_several_sources_are_committed_and_their_feeds_closed(tmp_path: Path) -> None:
    tapes = [Tape("fake:one", 90, 0.001), Tape("fake:two", 50, 0.002), Tape("fake:three", 7, 0)]
    plan = plan_of(tmp_path / "lake", [PolledSource(tape.stream, 0.05, tape) for tape in tapes])
    with collecting(plan) as reported:
        until(lambda: len(lying(plan.lake)) == 147)
    assert lying(plan.lake) == sorted(
        all_of("fake:one", 90) + all_of("fake:two", 50) + all_of("fake:three", 7)
    )
    assert reported == []
    assert all(tape.closed for tape in tapes)
    status = status_of(plan)
    assert (status.rows, status.rows_read, status.rejects) == ({"gpu_samples": 90}, 90, {})
    assert status.watermarks[NAME] == watermark(plan.lake, NAME)


def test_nodes_of_a_source_get_the_names_that_are_configured(tmp_path: Path) -> None:
    source = PolledSource(NAME, 0.05, Tape(NAME, 7, 0), aliases={NAME: "n1"})
    plan = plan_of(tmp_path / "lake", [source])
    with collecting(plan):
        until(lambda: len(lying(plan.lake)) == 7)
    assert lying(plan.lake) == all_of("n1", 7)


def test_a_poll_that_looked_before_a_commit_does_not_take_the_watermark_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first: dict[str, datetime] = {}  # what a reader sees, however much has been committed since
    polls_at_the_end = 0

    def seen_long_ago(lake: Lake, stream: str) -> datetime | None:
        nonlocal polls_at_the_end
        found = watermark(lake, stream)
        polls_at_the_end += found == START + 90 * STEP
        return None if found is None else first.setdefault(stream, found)

    monkeypatch.setattr(readers, "watermark", seen_long_ago)
    tape = Tape(NAME, 90, 0.001)
    plan = plan_of(tmp_path / "lake", [PolledSource(NAME, 0.01, tape)])
    with collecting(plan):
        until(lambda: polls_at_the_end > 2)
    assert first[NAME] < START + 90 * STEP
    assert status_of(plan).watermarks[NAME] == START + 90 * STEP


def test_a_failing_source_is_reported_once_retried_and_reported_when_it_works(
    tmp_path: Path,
) -> None:
    feed = Scripted([fails("refused"), fails("refused"), fails("silent"), gives(0, 5), nothing])
    plan = plan_of(tmp_path / "lake", [PolledSource(NAME, 0.02, feed)])
    with collecting(plan) as reported:
        until(lambda: len(feed.polls) > 6)
    assert reported == [
        "fake:one: http://node1: refused; look there",
        "fake:one: http://node1: silent; look there",
        "fake:one: works again",
    ]
    status = status_of(plan)
    assert (status.errors, status.failures, len(lying(plan.lake))) == ({"input": 3}, 0, 5)
    assert status.last_error == "http://node1: silent; look there"
    waits = [(later - before).total_seconds() for before, later in pairwise(feed.polls)]
    assert waits[0] >= 0.02
    assert waits[1] >= 0.04
    assert waits[2] >= 0.08


def test_a_watermark_is_never_ahead_of_our_own_clock(tmp_path: Path) -> None:
    """Whatever a source reports: samples between now and then are still to come."""
    asked: list[datetime | None] = []

    def ahead(known: Watermark) -> Iterator[Chunk]:
        asked.append(known(NAME))
        later = datetime.now(UTC) + timedelta(hours=1)
        yield replace(chunk_of(NAME, len(asked) - 1, len(asked)), watermark=later)

    plan = plan_of(tmp_path / "lake", [PolledSource(NAME, 0.05, Scripted([ahead]))])
    with collecting(plan):
        until(lambda: len(asked) > 3 and len(lying(plan.lake)) > 2)
    reached = watermark(plan.lake, NAME)
    assert reached is not None
    assert reached <= datetime.now(UTC) + timedelta(seconds=AHEAD_S)
    assert len(lying(plan.lake)) > 2


@pytest.mark.slow
def test_a_source_that_hangs_keeps_no_other_from_landing_and_the_process_from_stopping(
    tmp_path: Path,
) -> None:
    released = threading.Event()

    def hangs(known: Watermark) -> Iterator[Chunk]:
        released.wait(300)
        yield from ()

    slow = PolledSource("fake:slow", 0.05, Scripted([hangs]))
    plan = plan_of(tmp_path / "lake", [slow, PolledSource(NAME, 0.05, Tape(NAME, 60, 0.001))])
    began = time.monotonic()
    with collecting(plan):
        until(lambda: len(lying(plan.lake)) == 60)
    assert time.monotonic() - began < 100
    released.set()


def test_never_are_two_polls_of_a_source_under_way_and_missed_ones_are_skipped(
    tmp_path: Path,
) -> None:
    under_way, most = [], []

    def slow(known: Watermark) -> Iterator[Chunk]:
        under_way.append(1)
        most.append(len(under_way))
        time.sleep(0.09)
        under_way.pop()
        yield from ()

    feed = Scripted([slow])
    with collecting(plan_of(tmp_path / "lake", [PolledSource(NAME, 0.04, feed)])):
        until(lambda: len(feed.polls) >= 6)
    assert set(most) == {1}
    offsets = [(poll - feed.polls[0]).total_seconds() / 0.04 for poll in feed.polls]
    assert all(later - before > 2 for before, later in pairwise(offsets))


class Full(Lake):
    """A lake that takes no samples while its disk is full."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.is_full = True
        self.refused = 0

    def append(self, table: LakeTable, frame: pl.DataFrame, **how: Any) -> AppendResult:
        if self.is_full and table is GPU_SAMPLES:
            self.refused += 1
            raise LakeError("the disk is full", where=self.uri(table))
        return super().append(table, frame, **how)


@pytest.mark.slow
def test_a_full_disk_loses_nothing_bounds_the_queue_and_is_reported_once(tmp_path: Path) -> None:
    lake = Full(str(tmp_path / "lake"))
    tape = Tape(NAME, 300, 0.0, size=10)
    made = plan_of(
        lake.location, [PolledSource(NAME, 0.02, tape)], CollectOptions(listen="", waiting_chunks=3)
    )
    plan = CollectPlan(lake, made.sources, made.collect, retry_s=(0.02, 0.1))
    with collecting(plan) as reported:
        until(lambda: lake.refused >= 4)
        assert lying(lake) == []
        lake.is_full = False
        until(lambda: len(lying(lake)) == 300)
        until(lambda: len(reported) == 2)
    assert reported == [
        f"{NAME}: {lake.uri(GPU_SAMPLES)}: the disk is full",
        f"{NAME}: works again",
    ]
    assert lying(lake) == all_of(NAME, 300)
    assert status_of(plan).errors["lake"] >= 4


def test_a_chunk_that_is_not_understood_is_stepped_over_counted_and_seen(tmp_path: Path) -> None:
    strange = pl.DataFrame(
        {"t": [datetime(2026, 3, 1, tzinfo=UTC)] * 5, "node": ["n"] * 5, "colour": ["red"] * 5}
    )
    feed = Scripted([gives(0, 5), gives(5, 10, frame=strange), gives(10, 15), nothing])
    plan = plan_of(tmp_path / "lake", [PolledSource(NAME, 0.1, feed)])
    states = []
    with collecting(plan) as reported:
        until(
            lambda: (
                watermark(plan.lake, NAME) is not None
                and number_of(watermark(plan.lake, NAME)) == 15
            )
        )
        until(lambda: len(reported) == 2)
        states.append(number_of(watermark(plan.lake, NAME)))
    assert [number for _, number in lying(plan.lake)] == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    (row,) = plan.lake.latest(REJECTS).rows(named=True)
    assert (row["reason"], row["removed"], row["target"]) == (UNREADABLE_CHUNK, 5, "gpu_samples")
    assert "colour" in row["example"]
    assert "colour" in reported[0]
    assert reported[1] == f"{NAME}: works again"
    status = status_of(plan)
    assert (status.errors, status.rejects) == (
        {"schema": 1},
        {"gpu_samples": {UNREADABLE_CHUNK: 5}},
    )


def test_after_a_lake_went_back_another_feed_reads_as_one_remembers_what_it_gave(
    tmp_path: Path,
) -> None:
    made: list[Scripted] = []
    gone = threading.Event()

    def more(known: Watermark) -> Iterator[Chunk]:
        if gone.is_set():
            yield chunk_of(NAME, 5, 10)

    def connect() -> SourceFeed:
        if len(made) == 1:
            made.append(Scripted([nothing]))
            raise ConfigError("a file with a secret is gone")
        made.append(Scripted([gives(0, 5), more]))  # what was given once is not given again
        return made[-1]

    plan = plan_of(tmp_path / "lake", [PolledSource(NAME, 0.1, connect(), connect)])
    with collecting(plan) as reported:
        until(lambda: number_of(watermark(plan.lake, NAME)) == 5)
        for table in (GPU_SAMPLES, REJECTS):
            shutil.rmtree(plan.lake.uri(table))
        gone.set()
        until(lambda: number_of(watermark(plan.lake, NAME)) == 10)
    assert lying(plan.lake) == all_of(NAME, 10)
    assert made[0].closed
    assert reported[0] == f"{NAME}: a file with a secret is gone"


def test_a_defect_of_a_source_is_its_failure_and_ends_neither_others_nor_the_process(
    tmp_path: Path,
) -> None:
    made: list[Scripted] = []

    def wrong(known: Watermark) -> Iterator[Chunk]:
        yield chunk_of(NAME, 0, 5)
        raise ZeroDivisionError("a defect")

    def connect() -> SourceFeed:
        made.append(Scripted([wrong] if not made else [gives(5, 9), nothing]))
        return made[-1]

    tape = Tape("fake:two", 40, 0.0)
    sources = [PolledSource(NAME, 0.05, connect(), connect), PolledSource("fake:two", 0.05, tape)]
    plan = plan_of(tmp_path / "lake", sources)
    with collecting(plan) as reported:
        until(lambda: len(lying(plan.lake)) == 49)
        until(lambda: len(reported) == 2)
    first, *trace = reported[0].splitlines()
    assert first.startswith(f"{NAME}: ZeroDivisionError: a defect; please report")
    assert trace[0] == "Traceback (most recent call last):"
    assert reported[1] == f"{NAME}: works again"
    assert [feed.closed for feed in made] == [True, True]
    assert status_of(plan).errors == {"defect": 1}


def test_no_thread_for_a_source_is_its_failure(tmp_path: Path) -> None:
    def wants_thread(known: Watermark) -> Iterator[Chunk]:
        yield from ()
        raise RuntimeError("can't start new thread")

    plan = plan_of(
        tmp_path / "lake",
        [PolledSource(NAME, 0.05, Scripted([wants_thread, gives(0, 5), nothing]))],
    )
    with collecting(plan) as reported:
        until(lambda: len(reported) == 2)
    assert reported == [f"{NAME}: {NO_THREAD}", f"{NAME}: works again"]
    assert lying(plan.lake) == all_of(NAME, 5)


def test_a_defect_of_the_writer_ends_the_process_with_its_traceback_after_a_clean_stop(
    tmp_path: Path,
) -> None:
    class Broken(Lake):
        def append(self, table: LakeTable, frame: pl.DataFrame, **how: Any) -> AppendResult:
            raise ZeroDivisionError("a defect")

    feed = Scripted([gives(0, 5)])
    made = plan_of(tmp_path / "lake", [PolledSource(NAME, 0.05, feed)])
    plan = CollectPlan(Broken(made.lake.location), made.sources, made.collect)
    collection = Collection(
        plan, remark=lambda line: None, stopping=threading.Event(), notifier=NO_NOTIFIER
    )
    with pytest.raises(ZeroDivisionError, match="a defect"):
        collection.run()
    assert feed.closed
    status = read_status(plan.folder)
    assert status is not None
    assert status.stopped is not None


@pytest.mark.slow
def test_once_polls_each_source_once_and_analyzes(tmp_path: Path) -> None:
    tape, broken = Tape("fake:one", 40, 0.0), Scripted([fails("refused")])
    plan = plan_of(
        tmp_path / "lake",
        [PolledSource("fake:one", 60, tape), PolledSource("fake:two", 60, broken)],
    )
    status = Collection(
        plan, remark=lambda line: None, stopping=threading.Event(), notifier=NO_NOTIFIER
    ).once()
    assert lying(plan.lake) == all_of("fake:one", 40)
    assert (status.sources["fake:one"].failures, status.sources["fake:two"].failures) == (0, 1)
    analysis = status.steps["analyze"]
    assert (analysis.runs, analysis.failures, analysis.last_success is None) == (1, 0, False)
    assert tape.closed
    assert broken.closed


def test_what_was_known_outlives_the_process(tmp_path: Path) -> None:
    first = plan_of(
        tmp_path / "lake", [PolledSource(NAME, 0.02, Scripted([gives(0, 5), fails("refused")]))]
    )
    with collecting(first):
        until(lambda: read_status(first.folder) is not None)
        until(lambda: len(lying(first.lake)) == 5)
        until(lambda: status_of(first).last_success is not None and status_of(first).watermarks)
    before = status_of(first)
    again = Scripted([fails("again")])
    second = plan_of(tmp_path / "lake", [PolledSource(NAME, 3600, again)])
    with collecting(second) as reported:
        until(lambda: reported)
    after = status_of(second)
    assert before.last_success is not None
    assert after.last_success == before.last_success
    assert after.watermarks == before.watermarks == {NAME: chunk_of(NAME, 0, 5).watermark}
    assert (after.rows, after.errors) == ({}, {"input": 1})
