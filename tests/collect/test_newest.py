"""What a collector publishes of its last polls, and when others believe it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import polars as pl
import pytest

from tachograph.annexes.watch.live.allocations import SlurmAllocations
from tachograph.annexes.watch.live.collected_source import CollectedSource, slurm_of
from tachograph.annexes.watch.live.snapshot import GpuAllocation, GpuId
from tachograph.catalog.chunks import Chunk, ChunkPart
from tachograph.catalog.tables import ALLOCATIONS, JOBS
from tachograph.collect.lock import CollectLock
from tachograph.collect.newest import (
    NEWEST_FOLDER,
    NewestFile,
    NewestFiles,
    NewestPublisher,
    clear_newest,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
T0 = NOW.timestamp()
LATE = 240.0  # of 60 s between polls
A, B = GpuId("a", 0), GpuId("b", 0)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of a collector that runs."""
    with CollectLock(tmp_path / "_collect").held(now=NOW, pause=time.sleep):
        yield tmp_path / "_collect"


def samples(at: datetime = NOW, **power_mw: float | None) -> ChunkPart:
    """A sample of each node's GPU, in another unit than the contract's."""
    rows = [(at, node, 0, value) for node, value in power_mw.items()]
    schema: dict[str, type[pl.DataType] | pl.DataType] = {
        "t": pl.Datetime("us", "UTC"),
        "node": pl.String,
        "gpu": pl.Int16,
        "power_w": pl.Float64,
    }
    return ChunkPart(
        "gpu_samples", pl.DataFrame(rows, schema=schema, orient="row"), {"power_w": "mW"}
    )


def labels(*rows: tuple[str, datetime | None], gpu: int | None = 0) -> ChunkPart:
    """A job begins or ends to hold the GPU of `a`."""
    schema: dict[str, type[pl.DataType] | pl.DataType] = {
        "job_id": pl.String,
        "end": pl.Datetime("us", "UTC"),
        "node": pl.String,
        "gpu": pl.Int16,
    }
    frame = pl.DataFrame([(*row, "a", gpu) for row in rows], schema=schema, orient="row")
    return ChunkPart(
        "allocations", frame.with_columns(start=NOW, provenance=pl.lit("explicit")), overlaps=True
    )


def chunk(*parts: ChunkPart, source: str = "dcgm-exporter") -> Chunk:
    return Chunk(source, source, "test", parts, 1)


def published(
    folder: Path, *parts: ChunkPart, name: str = "dcgm-exporter", polled: datetime = NOW
) -> NewestPublisher:
    publisher = NewestPublisher(folder, name, 60.0)
    polls(publisher, chunk(*parts), polled)
    return publisher


def polls(publisher: NewestPublisher, answer: Chunk, at: datetime = NOW) -> None:
    publisher.add(answer, at)
    publisher.publish(at)


def powers(folder: Path, now: float) -> dict[GpuId, float]:
    """The power of each GPU that is shown."""
    shown = source(folder, now).read()
    return dict(zip(shown.gpus, shown.column("power_w").tolist(), strict=True))


def source(folder: Path, now: float = T0) -> CollectedSource:
    return CollectedSource(folder, clock=lambda: now)


def test_a_poll_is_shown_in_the_units_of_the_contract(folder: Path) -> None:
    published(folder, samples(a=300_000.0, b=400_000.0))
    shown = source(folder, T0 + 2).read()
    assert shown.gpus == (A, B)
    assert shown.column("power_w").tolist() == [300.0, 400.0]
    assert (shown.t, shown.measured.tolist()) == (T0 + 2, [T0, T0])
    assert list(shown.values) == ["power_w"]
    assert shown.problems == ()


def test_the_last_value_counts_until_it_is_late(folder: Path) -> None:
    publisher = published(folder, samples(a=1000.0, b=2000.0))
    for seconds, power in ((60.0, 3000.0), (120.0, None)):
        at = NOW + timedelta(seconds=seconds)
        polls(publisher, chunk(samples(at, a=power)), at)
    assert powers(folder, T0 + 121) == {A: 3.0, B: 2.0}
    at = NOW + timedelta(seconds=LATE)
    polls(publisher, chunk(samples(at, a=4000.0)), at)
    assert powers(folder, T0 + LATE) == {A: 4.0}


@pytest.mark.parametrize(
    ("age_s", "current"),
    [(0.0, True), (LATE, True), (LATE + 1, False), (-4.0, True), (-6.0, False), (-86400.0, False)],
)
def test_a_poll_that_is_old_or_of_a_clock_ahead_is_not_believed(
    folder: Path, age_s: float, current: bool
) -> None:
    published(folder, samples(a=1000.0))
    read = source(folder, T0 + age_s)
    assert read.is_current() is current
    assert any(problem.fatal for problem in read.read().problems) is not current


def test_samples_of_a_history_that_is_read_up_are_not_those_of_now(folder: Path) -> None:
    publisher = published(folder, samples(NOW - timedelta(days=3), a=1000.0))
    assert not source(folder).is_current()
    history = replace(chunk(samples(a=1.0), labels(("7", None))), watermark=NOW - timedelta(days=3))
    polls(publisher, history)
    assert not source(folder).is_current()
    polls(publisher, replace(chunk(samples(a=1.0)), watermark=NOW))
    assert source(folder).read().allocations == {A: GpuAllocation("7")}


def test_nothing_is_believed_of_a_collector_that_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "_collect"
    with CollectLock(folder).held(now=NOW, pause=time.sleep):
        published(folder, samples(a=1000.0))
        read = source(folder)
        assert read.read().problems == ()
    assert not read.is_current()
    last = read.read()
    assert (last.gpus, [problem.fatal for problem in last.problems]) == ((A,), [True])
    assert source(tmp_path / "absent").is_current() is False


def test_a_source_without_values_is_named_beside_others(folder: Path) -> None:
    published(folder, samples(a=1000.0), polled=NOW - timedelta(seconds=LATE + 1))
    published(folder, samples(b=2000.0), name="prometheus:main")
    shown = source(folder).read()
    assert shown.gpus == (B,)
    (problem,) = shown.problems
    assert (
        problem.sentence
        == "dcgm-exporter: the collector has no values since 11:55:59 UTC; see its status"
    )


def test_of_a_gpu_that_two_sources_have_the_later_value_of_each_counter_counts(
    folder: Path,
) -> None:
    published(folder, samples(NOW - timedelta(seconds=10), a=1000.0))
    other = replace(samples(a=None), frame=samples(a=None).frame.with_columns(gpu_util=0.5))
    published(folder, other, name="prometheus:main")
    shown = source(folder).read()
    assert (shown.value("power_w", 0), shown.value("gpu_util", 0)) == (1.0, 0.5)
    assert shown.measured.tolist() == [T0]


def test_labels_name_jobs_from_their_begin_to_their_end(folder: Path) -> None:
    publisher = published(
        folder, samples(a=1.0), labels(("7", None), ("8", None)), labels(("9", None), gpu=None)
    )
    assert source(folder).read().allocations == {A: GpuAllocation("7,8")}
    polls(publisher, chunk(samples(a=1.0), labels(("7", NOW))))
    assert source(folder).read().allocations == {A: GpuAllocation("8")}


@pytest.mark.parametrize("name", ["../../escaped", "/tmp/escaped", "a\0b", "x" * 5000, "<script>"])
def test_the_name_of_a_source_is_no_path(folder: Path, name: str) -> None:
    published(folder, samples(a=1.0), name=name)
    (path,) = folder.rglob("*.newest")
    assert path.parent == folder / NEWEST_FOLDER
    assert [poll.file.name for poll in NewestFiles(folder).polls()] == [name]


def test_files_that_cannot_be_read_are_left_out(folder: Path) -> None:
    published(folder, samples(a=1.0))
    (path,) = folder.rglob("*.newest")
    good = path.read_bytes()
    files = NewestFiles(folder)
    assert len(files.polls()) == 1
    without_rows = msgspec.structs.replace(
        msgspec.msgpack.decode(good, type=NewestFile), tables={"gpu_samples": b""}
    )
    wrong = [msgspec.msgpack.encode(content) for content in (without_rows, {"name": 7})]
    for content in (b"", b"\xff", good[: len(good) // 2], *wrong):
        path.write_bytes(content)
        assert files.polls() == []
    path.unlink()
    path.mkdir()
    assert files.polls() == []


def test_files_are_as_private_as_their_folder_and_go_with_the_next_process(folder: Path) -> None:
    folder.chmod(0o750)
    published(folder, samples(a=1.0))
    (path,) = folder.rglob("*.newest")
    assert (path.parent.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o750, 0o640)
    clear_newest(folder)
    assert not list(folder.rglob("*.newest"))


def answer(*jobs: tuple[str, str | None, int], places: tuple[tuple[str, str, int], ...]) -> Chunk:
    """Running jobs: id, user, number of GPUs; `places`: job, node, GPU."""
    rows = [
        {"job_id": job, "display_id": f"{job}_0", "user": user, "gpus": gpus, "start": NOW}
        for job, user, gpus in jobs
    ]
    held = [
        {"job_id": job, "node": node, "gpu": gpu, "provenance": "live_index"}
        for job, node, gpu in places
    ]
    frames = (
        pl.DataFrame(found, schema=dict(table.empty().drop("seq").schema))
        for found, table in ((rows, JOBS), (held, ALLOCATIONS))
    )
    return chunk(
        *(ChunkPart(*part) for part in zip(("jobs", "allocations"), frames, strict=True)),
        source="slurm-live",
    )


def refused() -> SlurmAllocations:
    raise AssertionError("Slurm is polled")


OWN = SlurmAllocations({None: {("z", 9): GpuAllocation("1")}})


def test_slurm_is_polled_by_the_collector_alone(folder: Path) -> None:
    publisher = NewestPublisher(folder, "slurm-live", 60.0)
    assert source(folder).slurm(lambda: OWN, minor_numbers=True) is OWN
    places = (("7", "a.example.org", 0), ("8", "b", 0), ("8", "b", 1))
    polls(publisher, answer(("7", "ana", 1), ("8", "bo", 2), places=places))
    reported = source(folder).slurm(refused, minor_numbers=False)
    assert reported.gpus[None]["a", 0] == GpuAllocation("7_0", "ana", T0)
    assert set(reported.gpus[None]) == {("a", 0), ("b", 0), ("b", 1)}
    assert set(reported.jobs[None]) == {"7", "8"}
    assert (reported.complete, reported.minor_numbers) == (True, False)
    assert source(folder, T0 + LATE + 1).slurm(lambda: OWN, minor_numbers=True) is OWN
    polls(publisher, chunk(source="slurm-live"))  # nothing runs
    assert source(folder).slurm(refused, minor_numbers=True).gpus == {}


@pytest.mark.parametrize(
    ("chunk_of", "complete"),
    [
        (answer(("7", "ana", 1), ("8", "bo", 2), places=(("7", "a", 0), ("8", "b", 0))), False),
        (answer(("7", "ana", 1), ("8", "ana", 0), places=(("7", "a", 0),)), False),
        (answer(("7", "ana", 1), ("8", "bo", 0), places=(("7", "a", 0),)), True),
    ],
)
def test_gpus_are_free_only_where_all_others_are_known(
    folder: Path, chunk_of: Chunk, complete: bool
) -> None:
    polls(NewestPublisher(folder, "slurm-live", 60.0), chunk_of)
    assert slurm_of(NewestFiles(folder).polls()).complete is complete


def test_an_answer_without_users_is_not_enough_for_who_may_see_what(folder: Path) -> None:
    publisher = NewestPublisher(folder, "slurm-live", 60.0)
    polls(publisher, answer(("7", None, 1), places=(("7", "a", 0),)))
    assert source(folder).slurm(lambda: OWN, minor_numbers=True) is OWN
