"""The fleet live: who sees which GPUs, one monitor for all viewers."""

from __future__ import annotations

import re
import threading
from dataclasses import replace

import polars as pl
import pytest

from tachograph.annexes.serve.snapshot import running_jobs
from tachograph.annexes.watch import served_fleet as fleet
from tachograph.annexes.watch.live.discovery import SourceRequest
from tachograph.annexes.watch.live.fleet_report import GROUPINGS, FleetChoice, build_fleet_report
from tachograph.annexes.watch.live.monitor import Monitor
from tachograph.annexes.watch.live.selection import SelectedSource
from tachograph.annexes.watch.live.snapshot import GpuAllocation, GpuId, SourceProblem
from tachograph.annexes.watch.live.sources.simulated import SimulatedSource
from tachograph.annexes.watch.live.view import FleetView, GpuHistory
from tachograph.annexes.watch.served_fleet import (
    FleetWatch,
    LiveState,
    fleet_report,
    visible_allocations,
)
from tachograph.api.viewer import NOBODY, Role, Viewer
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import NotFoundError
from tachograph.judge.workload.classes import WORKLOAD_CLASSES, bottleneck
from tachograph.judge.workload.settings import WorkloadSettings

ANA, EVE, SUPPORT = (
    Viewer("ana", Role.USER),
    Viewer("eve", Role.MANAGER, frozenset({"chem"})),
    Viewer("s", Role.SUPPORT),
)
_LONG_S = 600.0  # code is compiled before the first poll, on a busy machine slowly
ONE, TWO, THREE, FOUR, FIVE = (GpuId("n1", place) for place in range(5))
HELD = {
    ONE: GpuAllocation("7", "ana"),
    TWO: GpuAllocation("8", "bo"),
    THREE: GpuAllocation("7,8", "ana,bo", 5.0),
    FOUR: GpuAllocation("9"),
    FIVE: GpuAllocation(user="ana"),
}


def _jobs(*rows: tuple[str, str, str]) -> pl.DataFrame:
    """Running jobs: id, user, account."""
    names = ["job_id", "user", "account"]
    frame = pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String()), orient="row")
    return running_jobs(
        frame.with_columns(
            display_id="job_id",
            partition=pl.lit("gpu"),
            end=pl.lit(None),
            cluster=pl.lit(None, pl.String),
        )
    )


def test_a_user_sees_own_gpus_and_no_name_of_others() -> None:
    assert visible_allocations(HELD, ANA, _jobs(("7", "ana", "bio"))) == {
        ONE: HELD[ONE],
        THREE: GpuAllocation("7", "ana"),
        FIVE: HELD[FIVE],
    }
    # Whose job is whose: unknown.
    assert visible_allocations(HELD, ANA, _jobs())[THREE] == GpuAllocation(None, "ana")
    assert visible_allocations(HELD, NOBODY, _jobs()) == {}
    # a job without a user is visible where the lake knows its own
    assert FOUR not in visible_allocations(HELD, ANA, _jobs())
    assert visible_allocations(HELD, ANA, _jobs(("9", "ana", "bio")))[FOUR] == GpuAllocation(
        "9", "ana"
    )
    # a manager sees jobs of the account, but not an old job of that number
    assert visible_allocations(HELD, EVE, _jobs(("8", "bo", "chem")))[TWO] == HELD[TWO]
    # Of another user than holds the GPU.
    assert visible_allocations(HELD, EVE, _jobs(("8", "cy", "chem"))) == {}


def _view(gpus: int = 64) -> FleetView:
    source = SimulatedSource(gpus, faults=True)
    monitor = Monitor(source.about, settings=WorkloadSettings(), history=GpuHistory(2))
    monitor.step(source.read())
    problem = SourceProblem("no answer", "host-of-bo", "ask bo")
    return monitor.step(replace(source.read(), problems=(problem,)))


@pytest.mark.parametrize("by", GROUPINGS)
def test_no_text_of_a_report_has_a_name_of_others(by: str) -> None:
    state = LiveState(1, _view())
    report = fleet_report(state, FleetChoice(by=by, filter="user=bo"), ANA, _jobs())
    assert report is not None
    everything = repr(report)
    assert "'ana'" in repr(fleet_report(state, FleetChoice(by=by), ANA, _jobs()))
    for user in ("bo", "chen", "dita", "emil"):
        assert f"'{user}'" not in everything
    assert "host-of-bo" not in everything
    others = {
        allocation.job_id
        for allocation in _view().snapshot.allocations.values()
        if allocation.user != "ana"
    }
    assert not [job for job in others if f"'{job}'" in everything]
    whole = fleet_report(state, FleetChoice(by=by), SUPPORT, _jobs())
    own = fleet_report(state, FleetChoice(by=by), ANA, _jobs())
    assert own is not None
    assert whole is not None
    assert len(own.heat) + int(own.others.split(" other GPUs")[0]) == len(whole.heat) == 64
    assert whole.others == ""


def test_lists_have_the_verdicts_of_the_monitor() -> None:
    view = _view()
    report = build_fleet_report(view, FleetChoice())
    sick = {
        view.snapshot.gpus[row].name
        for row in range(64)
        if view.state(row) in ("CRIT", "WARN", "HOT")
    }
    assert {cells[0] for cells in report.sick.cells} == sick != set()
    held = [
        row
        for row, gpu in enumerate(view.snapshot.gpus)
        if view.label(row) == "idle" and gpu in view.snapshot.allocations
    ]
    limits = [bottleneck(WORKLOAD_CLASSES[label]) for label in view.labels.tolist()]
    working = sum(limit in ("compute", "memory", "io", "mixed") for limit in limits)
    assert report.headline.startswith(f"{working} of 64 GPUs at work; {len(held)} held idle; ")
    assert f"; {len(sick)} unhealthy" in report.headline
    shares = re.findall(r"(\d+) (?:of 64|held|free|idle|of unknown)", report.headline)
    assert sum(map(int, shares)) == 64
    assert {cells[0] for cells in report.held.cells} == {
        view.snapshot.gpus[row].name for row in held
    }


class _Opened:
    """Sources that were opened."""

    def __init__(self) -> None:
        self.requests: list[SourceRequest] = []
        self.closed = threading.Event()

    def __call__(self, request: SourceRequest) -> SelectedSource:
        from tachograph.annexes.watch.live.discovery import choose_source

        self.requests.append(request)
        if request.simulate is None:
            raise NotFoundError("no GPU telemetry source found; tried: nvml")
        return choose_source(Configuration(), request, environment={})


def _watch(opened: _Opened, wanted: SourceRequest | None = None) -> FleetWatch:
    return FleetWatch(Configuration(), "nowhere", wanted, opener=opened)


def _runs(watch: FleetWatch) -> bool:
    return watch.is_running


def test_one_monitor_for_all_viewers_which_ends_some_time_after_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = _Opened()
    watch = _watch(opened, SourceRequest(simulate=8))
    watch.interval_s = 0.05
    assert not _runs(watch)
    first = watch.state(wait_s=_LONG_S)
    assert first.view is not None
    while watch.state(wait_s=_LONG_S).number == first.number:
        threading.Event().wait(0.01)
    assert len(opened.requests) == 1
    monkeypatch.setattr(fleet, "LINGER_S", 0.0)
    for _ in range(600):
        if not _runs(watch):
            break
        threading.Event().wait(0.1)
    assert not _runs(watch)
    monkeypatch.setattr(fleet, "LINGER_S", 60.0)
    assert watch.state(wait_s=_LONG_S).number > first.number, "never a number that a page has seen"
    watch.close()


def test_a_page_of_one_poll_is_made_once_for_all_who_see_the_same() -> None:
    watch, made = _watch(_Opened()), list[int]()

    def make(number: int) -> dict[str, object]:
        made.append(number)
        return {"number": number}

    for number in (1, 1, 2, 1):
        shown = watch.page("ana", number, lambda number=number: make(number))  # type: ignore[misc]
        assert shown["number"] >= number, "never an older poll than is asked for"
    watch.page("eve", 2, lambda: make(2))
    assert made == [1, 2, 2]


def test_a_source_that_is_requested_and_absent_is_a_problem() -> None:
    opened = _Opened()
    watch = _watch(opened, SourceRequest(source="nvml"))
    state = watch.state(wait_s=_LONG_S)
    watch.close()
    assert state.view is None
    assert state.problem is not None
    assert state.problem.what.startswith("no GPU telemetry source found")
    assert fleet_report(state, FleetChoice(), SUPPORT, _jobs()) is None


def test_without_a_live_source_the_lake_is_tried() -> None:
    opened = _Opened()
    watch = _watch(opened)
    watch.state(wait_s=_LONG_S)
    watch.close()
    assert [request.recording for request in opened.requests[:2]] == [None, "nowhere"]


def _simulated(gpus: int) -> SelectedSource:
    return SelectedSource(SimulatedSource(gpus), None)


@pytest.mark.parametrize(("wanted", "gpus"), [(None, 4), (SourceRequest(simulate=8), 8)])
def test_what_a_collector_has_is_not_polled_again(wanted: SourceRequest | None, gpus: int) -> None:
    configuration = Configuration()
    requests: list[SourceRequest] = []

    def opened(request: SourceRequest) -> SelectedSource:
        requests.append(request)
        return _simulated(8)

    watch = FleetWatch(
        configuration, "nowhere", wanted, opener=opened, collected=lambda _: _simulated(4)
    )
    state = watch.state(wait_s=_LONG_S)
    watch.close()
    assert state.view is not None
    assert len(state.view.snapshot.gpus) == gpus
    assert len(requests) == (gpus == 8)
