"""Reports that take seconds are made once, one at a time, and kept."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tachograph.annexes.serve.background import Background, CachedResults, SharedObjects
from tachograph.api.pages import Pending
from tachograph.catalog.errors import LakeError, NotFoundError


def test_a_report_is_made_once_and_pending_until_then() -> None:
    background, go, calls = Background(), threading.Event(), []

    def make(progress: object) -> bytes:
        calls.append(progress)
        assert callable(progress)
        progress("draw energy", 3, 13)
        go.wait(60)
        return b"drawn"

    first = background.get("study", make, wait_s=0.2)
    assert isinstance(first, Pending)
    assert (first.doing, first.done, first.total) == ("draw energy", 3, 13)
    assert isinstance(background.get("study", make, wait_s=0.0), Pending)
    go.set()
    assert background.get("study", make, wait_s=60) == b"drawn"
    assert background.get("study", make) == b"drawn"
    assert len(calls) == 1


def test_an_error_is_raised_and_the_next_request_tries_again() -> None:
    background, calls = Background(), []

    def make(_: object) -> bytes:
        calls.append(1)
        if len(calls) == 1:
            raise NotFoundError("no job")
        return b"made"

    with pytest.raises(NotFoundError):
        background.get("key", make, wait_s=60)
    assert background.get("key", make, wait_s=60) == b"made"


def test_one_viewer_leaves_room_for_others() -> None:
    background, go = Background(waiting_of_one=2), threading.Event()
    for key in ("a", "b"):
        background.get(key, lambda _: b"%d" % go.wait(60), owner="ann", wait_s=0)
    with pytest.raises(LakeError, match="too many"):
        background.get("c", lambda _: b"%d" % go.wait(60), owner="ann", wait_s=0)
    assert isinstance(
        background.get("a", lambda _: b"%d" % go.wait(60), owner="ann", wait_s=0), Pending
    ), "it was requested"
    assert isinstance(background.get("c", lambda _: b"made", owner="bob", wait_s=0), Pending)
    go.set()
    assert background.get("c", lambda _: b"made", owner="bob", wait_s=60) == b"made"


def test_too_many_that_wait_are_refused_and_old_ones_make_room() -> None:
    background, go = Background(kept_bytes=8, waiting=2), threading.Event()

    def make(_: object) -> bytes:
        go.wait(60)
        return b"made"

    assert isinstance(background.get(1, make, wait_s=0), Pending)
    assert isinstance(background.get(2, make, wait_s=0), Pending)
    with pytest.raises(LakeError, match="too many"):
        background.get(3, make, wait_s=0)
    go.set()
    assert [background.get(key, make, wait_s=60) for key in (1, 2, 3, 4)] == [b"made"] * 4
    assert background.get(4, lambda _: b"again", wait_s=60) == b"made"
    assert background.get(1, lambda _: b"again", wait_s=60) == b"again"


def test_shared_objects_may_need_each_other_and_are_all_closed() -> None:
    closed = []

    class Shared:
        def __init__(self, name: str) -> None:
            self.name = name

        def close(self) -> None:
            closed.append(self.name)
            if self.name == "inner":
                raise OSError("cannot be closed")

    objects = SharedObjects()

    def outer() -> Shared:
        objects.get("inner", lambda: Shared("inner"))
        return Shared("outer")

    assert objects.get("outer", outer) is objects.get("outer", outer)
    with pytest.raises(OSError, match="cannot be closed"):
        objects.close()
    assert sorted(closed) == ["inner", "outer"]
    with pytest.raises(LakeError, match="the server is stopping"):
        objects.get("late", lambda: Shared("late"))


def test_a_result_is_computed_once_however_many_threads_want_it() -> None:
    results, begun, go = CachedResults[int](2), threading.Event(), threading.Event()
    calls: list[str] = []

    def compute() -> int:
        calls.append("slow")
        begun.set()
        go.wait(60)
        return 7

    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(results.get, "slow", compute)
        assert begun.wait(60)
        later = [threads.submit(results.get, "slow", compute) for _ in range(7)]
        assert results.get("other", lambda: 1) == 1  # it does not wait for the slow one
        go.set()
        assert [each.result(60) for each in (first, *later)] == [7] * 8
    assert calls == ["slow"]
    assert results.get("third", lambda: 3) == 3  # the oldest goes
    assert results.get("slow", lambda: 8) == 8


def test_a_result_that_failed_is_computed_again() -> None:
    results = CachedResults[int](2)
    with pytest.raises(ZeroDivisionError):
        results.get("key", lambda: 1 // 0)
    assert results.get("key", lambda: 1) == 1
