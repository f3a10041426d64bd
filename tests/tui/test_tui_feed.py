"""The thread that polls: slow sources, broken ones; keys work meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from tachograph.annexes.watch.live.feed import FeedFailure, ViewFeed
from tachograph.annexes.watch.live.snapshot import Snapshot, SourceInfo, SourceProblem
from tachograph.annexes.watch.live.sources.simulated import SimulatedSource
from tachograph.annexes.watch.live.view import FleetView
from tachograph.annexes.watch.tui.app import WatchApp
from tachograph.catalog.errors import NotFoundError
from tui_screens import StandIn, app_of, lines_of, settled, watching

pytestmark = pytest.mark.anyio


class Scripted:
    """A fleet that answers as scripted: at each poll the next of `acts` may raise, wait or
    change the snapshot.
    """

    def __init__(self, *acts: Callable[[Snapshot], Snapshot]) -> None:
        self._fleet, self._acts, self.polls = SimulatedSource(8), list(acts), 0
        self.about: SourceInfo = self._fleet.about

    def read(self) -> Snapshot:
        self.polls += 1
        reported = self._fleet.read()
        return self._acts.pop(0)(reported) if self._acts else reported

    def close(self) -> None:
        """Nothing is held."""


def raises(error: Exception) -> Callable[[Snapshot], Snapshot]:
    def act(reported: Snapshot) -> Snapshot:
        raise error

    return act


def waits(event: threading.Event) -> Callable[[Snapshot], Snapshot]:
    def act(reported: Snapshot) -> Snapshot:
        event.wait(120)
        return reported

    return act


def came_of(
    source: Scripted, polls: int, *, interval_s: float = 0.001
) -> list[FleetView | FeedFailure]:
    """What the thread delivers, until it did so often or gave up."""
    came: list[FleetView | FeedFailure] = []
    done = threading.Event()

    def deliver(one: FleetView | FeedFailure) -> None:
        came.append(one)
        if len(came) == polls:
            done.set()

    feed = ViewFeed(source, lambda: StandIn(source.about), interval_s=interval_s, deliver=deliver)
    feed.start()
    done.wait(60)
    feed.stop()
    return came[:polls]


def test_a_failure_is_told_and_the_next_look_is_tried() -> None:
    source = Scripted(
        raises(NotFoundError("no GPU", where="n1", do="look again")),
        raises(ZeroDivisionError("oops")),
    )
    first, second, third = came_of(source, 3)
    assert isinstance(first, FeedFailure)
    assert (first.problem.sentence, first.detail) == ("n1: no GPU; look again", "")
    assert isinstance(second, FeedFailure)
    assert second.problem.sentence == "this refresh: ZeroDivisionError: oops"
    assert "Traceback" in second.detail
    assert isinstance(third, FleetView)


def test_nothing_is_asked_after_the_end() -> None:
    def ends(reported: Snapshot) -> Snapshot:
        return replace(reported, problems=(SourceProblem("it ended", fatal=True),))

    source = Scripted(ends)
    came_of(source, 1)
    time.sleep(0.05)
    assert source.polls == 1


async def test_keys_work_while_the_source_hangs() -> None:
    hangs = threading.Event()
    source = Scripted(lambda reported: reported, waits(hangs))
    app = WatchApp(source, interval_s=0.01, judge=StandIn(source.about))
    async with app.run_test(size=(80, 24)) as pilot:
        while source.polls < 2:
            await asyncio.sleep(0.01)
        before = time.monotonic()
        await pilot.press("down", "down", "g")
        assert "sim001 (8)" in "\n".join(lines_of(app))
        assert time.monotonic() - before < 60
        assert source.polls == 2
        hangs.set()


async def test_problems_stand_in_the_header_until_they_are_gone() -> None:
    def troubled(reported: Snapshot) -> Snapshot:
        problems = tuple(
            SourceProblem("no answer", f"http://n{place}", "is it on?") for place in range(4)
        )
        return replace(reported, problems=problems)

    source = Scripted(troubled, raises(RuntimeError("what\x1b[2J")))
    app = app_of(source=source)
    async with watching(app=app, polls=1) as pilot:
        assert lines_of(app)[2:4] == [
            "! http://n0: no answer; is it on?",
            "! 3 more problems (? lists them)",
        ]
        app.poll()
        await settled(pilot)
        assert lines_of(app)[2] == r"! this refresh: RuntimeError: what\x1b[2J"
        app.poll()
        await settled(pilot)
        assert not any(line.startswith("!") for line in lines_of(app))
        assert sum(line.startswith("sim001:") for line in lines_of(app)) == 8
