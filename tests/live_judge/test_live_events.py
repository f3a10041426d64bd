"""Events between polls: what is one and what is none, when it is reported, its text, what rings the bell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from tachograph.judge.health import XID_CRITICAL, XID_MEANINGS
from tachograph.judge.workload.settings import WorkloadSettings
from tachograph.live.monitor import Monitor
from tachograph.live.snapshot import GpuAllocation, GpuDevice, GpuId, Snapshot, SourceInfo, SourceProblem
from tachograph.live.view import EventKind, History, LiveEvent

FINE = {"sm_active": 0.9, "tensor_active": 0.0, "dram_active": 0.3, "gr_engine_active": 0.9, "fp64_active": 0.0,
        "pcie_tx_bytes_per_s": 0.0, "pcie_rx_bytes_per_s": 0.0, "gpu_temp_c": 60.0, "mem_temp_c": 60.0,
        "pcie_replays": 5.0, "row_remap_failure": 0.0, "remapped_rows_uncorrectable": 0.0, "xid": 0.0,
        "throttle_reasons": 0.0}  # fmt: skip
A, B = GpuId("n1", 0), GpuId("n1", 1)
Values = Mapping[str, float]


class Story:
    """Looks at GPUs, one a second unless `at` says when; gives the events that each look adds."""

    def __init__(self, gpus: Sequence[GpuId] = (A,), *, hold_s: float = 10, memory_s: float = 60) -> None:
        self.gpus = list(gpus)
        how = WorkloadSettings(smoothing_s=hold_s, event_memory_s=memory_s)
        self.monitor = Monitor(SourceInfo("made", ""), settings=how, history=History(3))
        self.t = 0.0
        self.before: tuple[LiveEvent, ...] = ()

    def poll(
        self,
        *reported: Values | None,
        at: float | None = None,
        allocations: Mapping[GpuId, GpuAllocation] | None = None,
        problems: Sequence[SourceProblem] = (),
        **changed: float,
    ) -> list[LiveEvent]:
        """`reported` of each GPU, None: it reports nothing; by default all are FINE but for `changed`."""
        self.t = self.t + 1 if at is None else at
        values: Sequence[Values | None] = reported or [FINE | changed] * len(self.gpus)
        measured = np.array([self.t if one else math.nan for one in values])
        columns = {name: np.array([(one or {}).get(name, math.nan) for one in values]) for name in FINE}
        devices = {gpu: GpuDevice("NVIDIA H100 80GB HBM3") for gpu in self.gpus}
        view = self.monitor.step(
            Snapshot(self.t, tuple(self.gpus), measured, columns, devices, allocations or {}, problems=tuple(problems))
        )
        new = view.events[len(self.before) :]
        assert view.events[: len(self.before)] == self.before
        self.before = view.events
        return list(new)

    def texts(self, *reported: Values | None, **how: float) -> list[str]:
        return [event.text for event in self.poll(*reported, **how)]  # type: ignore[arg-type]


def only(events: list[LiveEvent], kind: EventKind) -> tuple[str, bool, GpuId | None]:
    (event,) = events
    assert event.kind == kind
    return event.text, event.alarm, event.gpu


def test_nothing_happens_where_nothing_changes() -> None:
    story = Story([A, B])
    for _ in range(30):
        assert story.poll(allocations={A: GpuAllocation("7", "ana")}) == []


def test_what_was_there_at_the_first_look_is_no_event() -> None:
    story = Story()
    first = story.poll(xid=31, throttle_reasons=4, gpu_temp_c=99, allocations={A: GpuAllocation("7")})
    assert first == []
    assert story.poll(xid=31, throttle_reasons=4, gpu_temp_c=99, allocations={A: GpuAllocation("7")}) == []


def test_faulty_memory_and_forced_slowdowns_are_told_at_the_first_look() -> None:
    events = Story().poll(remapped_rows_uncorrectable=2, throttle_reasons=0x40)
    assert [(event.kind, event.text, event.alarm) for event in events] == [
        (EventKind.HEALTH, "CRIT: 2 memory rows remapped after uncorrectable errors.", True),
        (EventKind.THROTTLE, "Clocks lowered: heat (the hardware's limit).", True),
    ]


def test_health_worsens_at_once_and_heals_after_a_while() -> None:
    story = Story()
    story.poll()
    story.poll()
    hot = story.poll(gpu_temp_c=96)
    assert only(hot, EventKind.HEALTH) == ("HOT, before: OK: GPU at 96 °C, limit 95 °C.", False, A)
    for place in range(20):  # around the limit: nothing more is reported
        assert story.poll(gpu_temp_c=94 if place % 4 else 96) == []
    for _ in range(6):
        assert story.poll() == []
    worse = story.poll(row_remap_failure=1)
    assert only(worse, EventKind.HEALTH) == ("CRIT, before: HOT: remapping a faulty memory row has failed.", True, A)
    healed = [story.poll() for _ in range(12)]
    assert [only(events, EventKind.HEALTH)[0] for events in healed if events] == ["OK, before: CRIT."]
    assert healed[10]
    assert not healed[9]


def test_replays_stay_a_while_and_are_told_once() -> None:
    story = Story(memory_s=30)
    for _ in range(3):
        assert story.poll() == []
    assert only(story.poll(pcie_replays=8), EventKind.HEALTH)[0] == "WARN, before: OK: 3 PCIe replays in 30 s."
    later = [text for _ in range(60) for text in story.texts(pcie_replays=8)]
    assert later == ["OK, before: WARN."]


def test_unknown_health_is_no_event() -> None:
    story = Story()
    story.poll()
    story.poll()
    assert story.poll(mem_temp_c=math.nan) == []
    assert story.poll() == []


def test_a_class_that_is_shown_changes_once() -> None:
    story = Story(hold_s=20)
    idle = FINE | {"sm_active": 0.0, "gr_engine_active": 0.0, "dram_active": 0.0}
    for _ in range(25):
        assert story.poll() == []
    assert story.poll(idle) == []  # one dip
    assert [story.poll() for _ in range(20)] == [[]] * 20
    changes = [text for _ in range(60) for text in story.texts(idle)]
    assert changes[-1].startswith("Now idle, before: ")
    assert len(changes) <= 4  # on the way the means pass through other classes
    assert all(event.kind == EventKind.CLASS and not event.alarm for event in story.before)


@pytest.mark.parametrize("code", [*XID_MEANINGS, 999])
def test_only_a_change_of_the_xid_is_an_event(code: int) -> None:
    story = Story()
    story.poll(xid=109)
    meaning = XID_MEANINGS.get(code, "see NVIDIA's list of XID errors")
    assert only(story.poll(xid=code), EventKind.XID) == (f"XID {code}: {meaning}.", code in XID_CRITICAL, A)
    assert story.poll(xid=code) == []
    assert story.poll(xid=math.nan) == []
    assert story.poll(xid=code) == []
    assert story.poll(xid=0) == []  # the driver was loaded anew


def test_clocks_by_reason() -> None:
    story = Story()
    story.poll()
    assert story.poll(throttle_reasons=0x1 | 0x2 | 0x10 | 0x100) == []  # idle, requested, in step: no trouble
    assert only(story.poll(throttle_reasons=0x4), EventKind.THROTTLE) == (
        "Clocks lowered: the power limit.",
        False,
        A,
    )
    for place in range(30):  # now and then at the limit
        assert story.poll(throttle_reasons=0x4 if place % 5 == 0 else 0x1) == []
    assert story.texts(throttle_reasons=0x4 | 0x8) == ["Clocks lowered: a hardware slowdown."]
    assert story.before[-1].alarm
    rest = [text for _ in range(15) for text in story.texts(throttle_reasons=0x4)]
    assert rest == ["Clocks no longer lowered: a hardware slowdown."]
    assert story.poll(throttle_reasons=math.nan) == []
    rest = [text for _ in range(15) for text in story.texts(throttle_reasons=0)]
    assert rest == ["Clocks no longer lowered: the power limit."]


def test_a_gpu_is_lost_and_comes_back() -> None:
    story = Story([A, B])
    story.poll()
    reported = [story.poll(FINE, None) for _ in range(9)]
    lost = [event for events in reported for event in events]
    assert only(lost, EventKind.LOST) == ("No values any more.", True, B)
    assert reported.index(lost) == 4  # five seconds after it reported something
    assert only(story.poll(), EventKind.LOST) == ("Back after 10 s.", False, B)
    assert story.poll(FINE, None) == []
    assert story.poll() == []  # too short to be lost


def test_a_gpu_that_is_named_no_more_is_lost() -> None:
    story = Story([A, B])
    story.poll()
    story.gpus = [A]
    reported = [text for _ in range(9) for text in story.texts()]
    assert reported == ["No longer listed by the source."]
    assert story.before[-1].gpu == B


def test_of_very_many_gpus_the_same_is_told_once() -> None:
    story = Story([GpuId(f"n{place:03d}", 0) for place in range(500)])
    story.poll()
    events = [event for _ in range(9) for event in story.poll(*[None] * 500)]
    assert [(event.kind, event.gpu, event.text) for event in events] == [
        (EventKind.LOST, GpuId("n000", 0), "No values any more. Same on 499 more GPUs, the last n499:0.")
    ]
    assert len(story.poll()) == 17


def test_another_job() -> None:
    story = Story([A, B])
    assert story.poll(allocations={}) == []
    assert story.poll(allocations={A: GpuAllocation("7", "ana")}) == []  # who holds them is known from now on
    reported = story.poll(allocations={A: GpuAllocation("7", "ana"), B: GpuAllocation("8", "bo")})
    assert only(reported, EventKind.JOB) == ("Allocated to job 8 of bo.", False, B)
    assert story.poll(allocations={A: GpuAllocation("7", "ana", 5.0), B: GpuAllocation("8", "bo")}) == []
    reported = story.poll(allocations={A: GpuAllocation("9", None), B: GpuAllocation("8", "bo")})
    assert only(reported, EventKind.JOB) == ("Allocated to job 9, before: job 7.", False, A)
    assert story.poll(allocations={}, problems=[SourceProblem("squeue does not answer")])[0].kind == EventKind.SOURCE
    reported = story.poll(allocations={A: GpuAllocation("9")}, problems=[SourceProblem("squeue does not answer")])
    assert only(reported, EventKind.JOB) == ("Job 8 released it.", False, B)
    assert only(story.poll(allocations={}, problems=[]), EventKind.JOB)[0] == "Job 9 released it."


def test_problems_of_the_source_begin_and_end() -> None:
    story = Story()
    story.poll()
    down = [SourceProblem(f"no answer within {after} s", "http://n1:9400", "is it running?") for after in (1, 2, 3)]
    begun = [event for each in down for event in story.poll(problems=[each])]
    assert only(begun, EventKind.SOURCE) == ("http://n1:9400: no answer within 1 s; is it running?", False, None)
    assert [story.poll(), story.poll()] == [[], []]
    assert story.poll(problems=down[:1]) == []  # it was not over
    ended = [event for _ in range(8) for event in story.poll()]
    assert only(ended, EventKind.SOURCE)[0] == "Resolved: http://n1:9400: no answer within 1 s."
    fatal = story.poll(problems=[SourceProblem("the recording ends", fatal=True)])
    assert only(fatal, EventKind.SOURCE) == ("the recording ends.", True, None)
    many = story.poll(problems=[SourceProblem("refused", f"host{'x' * place}") for place in range(100)])
    assert len(many) == 17
    assert many[-1].text == "84 more problems like these."


def test_memory_is_bounded() -> None:
    story = Monitor(SourceInfo("made", ""), settings=WorkloadSettings(), history=History(2), keep_events=25)
    for t in range(300):
        values = {"xid": np.array([float(t + 1)])}
        events = story.step(Snapshot(t, (A,), np.array([float(t)]), values)).events
    assert len(events) == 25
    assert [event.t for event in events] == sorted(event.t for event in events)
    assert events[-1].t == 299
