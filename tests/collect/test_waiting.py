"""Chunks that wait to be committed: in order for each source, bounded for all, never blocked by
another source.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
from fake_feeds import START, chunk_of

from tachograph.collect.readers import ChunkQueue, QueuedChunk


def handed(source: str, number: int = 0, *, reading: int = 0, end: bool = False) -> QueuedChunk:
    chunk = None if end else chunk_of(source, number, number + 1)
    return QueuedChunk(source, START + timedelta(seconds=number), chunk, reading)


def taken(waiting: ChunkQueue) -> QueuedChunk:
    found = waiting.take(within_s=0)
    assert found is not None
    waiting.done(found)
    return found


def test_first_in_first_out_and_the_older_poll_first() -> None:
    waiting = ChunkQueue(["a", "b"], limit=9)
    given = [
        handed("a", 1),
        handed("b", 0),
        handed("a", 2),
        handed("b", 3),
        handed("b", 3, end=True),
    ]
    assert all(waiting.put(one) for one in given)
    assert [taken(waiting) for _ in given] == [given[1], given[0], given[2], given[3], given[4]]
    assert waiting.take(within_s=0) is None
    assert waiting.is_empty


def test_what_is_taken_stays_until_it_is_done() -> None:
    waiting = ChunkQueue(["a"], limit=9)
    waiting.put(handed("a"))
    assert waiting.take(within_s=0) is waiting.take(within_s=0)
    assert not waiting.is_empty
    assert waiting.chunks("a") == 1


def put_later(waiting: ChunkQueue, one: QueuedChunk) -> tuple[threading.Thread, list[bool]]:
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(waiting.put(one)))
    thread.start()
    while thread.is_alive() and not waiting._changed._waiters:  # type: ignore[attr-defined]
        time.sleep(0.01)
    return thread, results


def test_a_source_waits_while_too_much_waits_and_every_source_may_have_one() -> None:
    waiting = ChunkQueue(["a", "b"], limit=2)
    assert waiting.put(handed("a", 0))
    assert waiting.put(handed("a", 1))
    assert waiting.put(handed("b", 2))  # has none yet
    thread, results = put_later(waiting, handed("a", 3))
    assert results == []
    taken(waiting)
    assert results == []  # still two
    taken(waiting)
    thread.join(60)
    assert results == [True]


@pytest.mark.parametrize("how", ["close", "forget"])
def test_closing_or_forgetting_ends_the_wait_for_space(how: str) -> None:
    waiting = ChunkQueue(["a"], limit=1)
    waiting.put(handed("a", 0))
    thread, results = put_later(waiting, handed("a", 1))
    waiting.close() if how == "close" else waiting.forget("a")
    thread.join(60)
    assert results == [False]
    assert waiting.is_empty is (how == "forget")


def test_after_closing_queued_chunks_are_committed_and_none_is_accepted() -> None:
    waiting = ChunkQueue(["a"], limit=9)
    waiting.put(handed("a", 0))
    waiting.close()
    assert not waiting.put(handed("a", 1))
    assert taken(waiting) is not None


def test_a_source_that_cannot_be_committed_does_not_delay_others() -> None:
    waiting = ChunkQueue(["a", "b"], limit=9)
    waiting.put(handed("a", 0))
    waiting.put(handed("b", 1))
    waiting.postpone("a", seconds=0.2)
    assert taken(waiting).source == "b"
    assert waiting.take(within_s=0) is None
    began = time.monotonic()
    found = waiting.take(within_s=60)
    assert found is not None
    assert 0.1 < time.monotonic() - began < 30


def test_a_reading_that_was_given_up_hands_over_no_more() -> None:
    waiting = ChunkQueue(["a"], limit=9)
    waiting.put(handed("a", 0))
    waiting.forget("a")
    assert waiting.is_empty
    assert not waiting.put(handed("a", 1, reading=0))
    assert waiting.reading("a") == 1
    assert waiting.put(handed("a", 0, reading=1))
