"""Feeds for tests: a tape of samples that goes on with the clock, and one whose answers are
given.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import polars as pl

from tachograph.catalog.chunks import Chunk, ChunkPart
from tachograph.sources.registry import PollOutcome, Watermark

START = datetime(2026, 3, 1, tzinfo=UTC)
STEP = timedelta(seconds=10)


def samples(node: str, begin: int, end: int) -> pl.DataFrame:
    """Samples number `begin` to `end` of the one GPU of a node."""
    numbers = range(begin, end)
    return pl.DataFrame(
        {
            "t": [START + number * STEP for number in numbers],
            "node": [node] * len(numbers),
            "gpu": [0] * len(numbers),
            "gpu_util": [number % 101 / 100 for number in numbers],
        },
        schema={
            "t": pl.Datetime("us", "UTC"),
            "node": pl.String,
            "gpu": pl.Int16,
            "gpu_util": pl.Float64,
        },
    )


def number_of(moment: datetime | None) -> int:
    """How many samples there are before a watermark."""
    return 0 if moment is None else (moment - START) // STEP


def chunk_of(stream: str, begin: int, end: int, *, frame: pl.DataFrame | None = None) -> Chunk:
    """What a stream reports about samples `begin` to `end`."""
    rows = samples(stream, begin, end) if frame is None else frame
    return Chunk(
        stream,
        "fake",
        "tape",
        (ChunkPart("gpu_samples", rows),),
        end - begin,
        watermark=START + end * STEP,
    )


@dataclass
class Tape:
    """A source that has one more sample every `sample_s`, `count` in all, and gives them in
    chunks of `size`.
    """

    stream: str
    count: int
    sample_s: float = 0.001
    size: int = 20
    began: float = field(default_factory=time.monotonic)
    outcome: PollOutcome = field(default_factory=PollOutcome)
    closed: bool = False

    def poll(self, watermark: Watermark, *, now: datetime) -> Iterator[Chunk]:
        begin = number_of(watermark(self.stream))
        present = (
            min(self.count, int((time.monotonic() - self.began) / self.sample_s))
            if self.sample_s
            else self.count
        )
        for first in range(begin, present, self.size):
            yield chunk_of(self.stream, first, min(present, first + self.size))

    def close(self) -> None:
        self.closed = True


Answer = Callable[[Watermark], Iterator[Chunk]]


@dataclass
class Scripted:
    """A source whose polls are given: each a function of the watermarks; the last is repeated."""

    answers: Sequence[Answer]
    polls: list[datetime] = field(default_factory=list)
    outcome: PollOutcome = field(default_factory=PollOutcome)
    closed: bool = False

    def poll(self, watermark: Watermark, *, now: datetime) -> Iterator[Chunk]:
        self.polls.append(now)
        yield from self.answers[min(len(self.polls), len(self.answers)) - 1](watermark)

    def close(self) -> None:
        self.closed = True


def nothing(watermark: Watermark) -> Iterator[Chunk]:
    yield from ()
