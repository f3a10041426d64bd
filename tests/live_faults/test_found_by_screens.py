"""What screens with faults have found, one case each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tachograph.annexes.watch.live.fleet_rows import FleetRows, matching, natural, parse_filter
from tachograph.annexes.watch.live.monitor import Monitor
from tachograph.annexes.watch.live.snapshot import GpuAllocation, GpuId, Snapshot, SourceInfo
from tachograph.annexes.watch.live.sources.simulated import SimulatedSource
from tachograph.annexes.watch.live.view import GpuHistory
from tachograph.annexes.watch.tui import job_table
from tachograph.judge.workload.settings import WorkloadSettings
from tui_screens import Clock, app_of, lines_of, press, settled, watching

pytestmark = pytest.mark.anyio


class Changed:
    """A simulated fleet, each snapshot of which is changed as a test says."""

    def __init__(self, gpus: int, clock: Clock) -> None:
        self._source, self.clock = SimulatedSource(gpus, clock=clock), clock
        self.about = self._source.about
        self.change: Callable[[Snapshot], Snapshot] = lambda reported: reported

    def read(self) -> Snapshot:
        """Return the next snapshot."""
        return self.change(self._source.read())

    def close(self) -> None:
        """Nothing is held."""


def monitor_of(about: SourceInfo) -> Monitor:
    return Monitor(about, settings=WorkloadSettings(), history=GpuHistory(60))


def of_others(reported: Snapshot) -> Snapshot:
    """The same as if all were of another node that has one GPU less."""
    rows = slice(1, None)
    gpus = tuple(replace(gpu, node="a-node-before") for gpu in reported.gpus[rows])
    values = {name: column[rows] for name, column in reported.values.items()}
    return Snapshot(reported.t, gpus, reported.measured[rows], values)


@pytest.mark.parametrize("key", ["enter", "j"])
async def test_a_screen_that_stands_still_shows_its_own_gpus_when_others_have_come(
    key: str,
) -> None:
    source = Changed(8, Clock())
    app = app_of(source=source, clock=source.clock)
    app.feed._make_judge = lambda: monitor_of(source.about)
    async with watching(app=app, size=(120, 60)) as pilot:
        await press(pilot, "end", key, "space")
        before = lines_of(app)
        source.change = of_others
        for _ in range(2):
            app.clock.t += 400
            app.poll()
        app.feed.once()
        for width in (121, 120):
            await settled(pilot)
            await pilot.resize_terminal(width, 60)
        await settled(pilot)
        after = [line.replace("PAUSED", "") for line in lines_of(app)]
        assert after[4:40] == before[4:40]


def test_a_history_of_other_gpus_leaves_the_one_before_as_it_is() -> None:
    one, two = GpuId("n1", 0), GpuId("n1", 1)
    first = GpuHistory(4)
    first.add(Snapshot(1.0, (one, two), np.ones(2), {"power_w": np.array([10.0, 20.0])}))
    then = first.of((two,))
    then.add(Snapshot(2.0, (two,), np.ones(1), {"power_w": np.array([21.0])}))
    assert (first.times().tolist(), first.series("power_w", 1).tolist()) == ([1.0], [20.0])
    assert (then.times().tolist(), then.series("power_w", 0).tolist()) == ([1.0, 2.0], [20.0, 21.0])
    assert then.of((two,)) is then


def test_what_single_precision_does_not_hold_is_missing_in_the_history() -> None:
    kept = GpuHistory(2)
    kept.add(Snapshot(1.0, (GpuId("n1", 0),), np.ones(1), {"energy_j": np.array([1e300])}))
    assert np.isnan(kept.series("energy_j", 0)).all()


@pytest.mark.parametrize("key", ["x", "enter", "j"])
async def test_names_of_hosts_and_jobs_steer_no_terminal(key: str) -> None:
    evil = "n\x1b[2J\u202e\u200b\x07"

    def renamed(reported: Snapshot) -> Snapshot:
        gpus = tuple(replace(gpu, node=evil) for gpu in reported.gpus)
        held = dict.fromkeys(gpus, GpuAllocation(evil, evil))
        return replace(reported, gpus=gpus, allocations=held, devices={}, processes={})

    source = Changed(4, Clock())
    source.change = renamed
    app = app_of(source=source, clock=source.clock)
    async with watching(app=app, size=(150, 40)) as pilot:
        await pilot.press(key)
        app.show_note(f"no GPU {evil}")
        await settled(pilot)
        lines = lines_of(app)
        app.filter_by(f"user={evil}")
        await settled(pilot)
        lines += lines_of(app)
    assert all(line.isprintable() for line in lines)
    assert any("\\x1b[2J" in line for line in lines)


def test_a_job_that_shares_a_gpu_is_found() -> None:
    source = SimulatedSource(4, clock=Clock())
    reported = source.read()
    held = [("8,9", "ana,bo"), ("9", "bo"), ("89", None), ("8", "ana")]
    allocations = {
        gpu: GpuAllocation(job, user) for gpu, (job, user) in zip(reported.gpus, held, strict=True)
    }
    view = monitor_of(source.about).step(replace(reported, allocations=allocations))
    found = {
        job: facts.rows
        for job in ("8", "9", "89", "8,9")
        if (facts := job_table.job_facts(view, job))
    }
    assert found == {"8": (0, 3), "9": (0, 1), "89": (2,), "8,9": (0,)}
    rows = FleetRows(view)
    found_rows = {
        written: np.flatnonzero(matching(rows, parse_filter(written))).tolist()
        for written in ("job=8", "job=8,9", "user=bo")
    }
    assert found_rows == {"job=8": [0, 3], "job=8,9": [0], "user=bo": [0, 1]}


async def test_a_wrong_name_is_refused_before_anything_was_read() -> None:
    app = app_of(source=Changed(4, Clock()))
    app.poll = lambda: None  # type: ignore[method-assign]
    async with watching(app=app) as pilot:
        app.filter_by("nothing<3")
        await settled(pilot)
        assert "nothing" in lines_of(app)[-1]
        del app.poll
        app.poll()
        await settled(pilot)
        assert "sim001:3" in "\n".join(lines_of(app))


def test_names_of_thousands_of_digits_are_put_in_order() -> None:
    names = ["n" + "9" * 5000, "n10", "n9", "n009", "n1" + "0" * 5000, "", "n\uff11", "m"]
    assert sorted(names, key=natural)[:4] == ["", "m", "n9", "n009"]
    assert sorted(names, key=natural)[4:7] == ["n10", "n" + "9" * 5000, "n1" + "0" * 5000]


async def test_a_new_size_is_taken_though_the_timer_for_it_is_lost() -> None:
    app = app_of(4)
    async with watching(app=app) as pilot:
        app._resize_timer = app.set_timer(1e6, lambda: None)
        await pilot.resize_terminal(100, 30)
        assert len(lines_of(app)) == 24
        app.poll()
        await settled(pilot)
        assert (len(lines_of(app)), len(lines_of(app)[0])) == (30, 99)


async def test_a_key_behind_the_last_one_opens_nothing() -> None:
    app = app_of(4)
    async with app.run_test() as pilot:
        await settled(pilot)
        body = app.query_one("#body")
        parent = body._parent
        body._detach()
        app.open("help")
        body._attach(parent)  # type: ignore[arg-type]
        assert len(app._opened) == 1
