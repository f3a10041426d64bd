"""What is derived from the catalogue, and events of XID errors, without a library."""

from __future__ import annotations

from types import SimpleNamespace

import pynvml
from in_process_nvml import Code, InProcessNvml, handle

from tachograph.annexes.watch.live.sources import nvml_calls
from tachograph.annexes.watch.live.sources.nvml_calls import CALLS, GPM_METRICS, XidEvents
from tachograph.catalog.counters import COUNTERS


def test_every_counter_of_the_catalogue_is_asked_for_once() -> None:
    asked = [counter for call in CALLS for counter in call.counters] + [
        metric.counter for metric in GPM_METRICS
    ]
    assert sorted([*asked, "xid"]) == sorted(counter.name for counter in COUNTERS if counter.nvml)
    assert len(asked) == len(set(asked))


def test_every_call_exists_in_the_library() -> None:
    for call in CALLS:
        name = call.name.partition(".")[0]
        assert hasattr(pynvml, name), name
    for counter in COUNTERS:
        if counter.nvml and counter.nvml.startswith("GPM "):
            _, number, name = counter.nvml.split()
            ours = [
                value
                for key, value in vars(pynvml).items()
                if key.startswith(f"NVML_GPM_METRIC_{name}")
            ]
            assert int(number) in ours


def test_codes_are_those_of_the_library() -> None:
    for name in (
        "UNINITIALIZED",
        "NOT_SUPPORTED",
        "NO_PERMISSION",
        "DRIVER_NOT_LOADED",
        "LIBRARY_NOT_FOUND",
    ):
        assert getattr(nvml_calls, name) == getattr(pynvml, f"NVML_ERROR_{name}")
    for name in (
        "FUNCTION_NOT_FOUND",
        "GPU_IS_LOST",
        "RESET_REQUIRED",
        "IN_USE",
        "GPU_NOT_FOUND",
        "UNKNOWN",
    ):
        assert getattr(nvml_calls, name) == getattr(pynvml, f"NVML_ERROR_{name}")
    assert nvml_calls.VERSION_MISMATCH == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH


def test_memory_of_an_old_driver_is_told_in_the_old_way() -> None:
    reported = SimpleNamespace(total=10, used=4, free=6)

    def old(handle: object, version: int | None = None) -> SimpleNamespace:
        if version:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return reported

    nvml = SimpleNamespace(nvmlDeviceGetMemoryInfo=old, nvmlMemory_v2=2, NVMLError=pynvml.NVMLError)
    assert nvml_calls.memory(nvml, handle(0)) == {"total": 10, "used": 4, "free": 6}


def event(index: int, code: int, instance: int = 0xFFFFFFFF, kind: int = 8) -> SimpleNamespace:
    return SimpleNamespace(
        device=handle(index), eventType=kind, eventData=code, gpuInstanceId=instance
    )


def test_the_last_event_counts_and_others_are_left() -> None:
    nvml = InProcessNvml(3, {"nvmlDeviceRegisterEvents": {0: None, 1: None, 2: Code(4)}})
    events = XidEvents(nvml)
    for index in range(3):
        events.register(index, handle(index))
    nvml.events += [
        event(0, 13),
        event(1, 31, instance=7),
        event(1, 1, kind=1),
        event(2, 48),
        event(0, 79),
    ]
    assert events.take() == {(0, None): 79, (1, 7): 31}
    assert events.take() == {}
    assert not events.registered(2)
    assert "not permitted" in events.refused[2]


def test_a_flood_of_events_does_not_hold_up_a_read() -> None:
    nvml = InProcessNvml(1, {"nvmlDeviceRegisterEvents": None})
    events = XidEvents(nvml)
    events.register(0, handle(0))
    nvml.events += [event(0, code) for code in range(1000)]
    assert events.take() == {(0, None): 255}


def test_what_the_recipe_adds_would_be_told() -> None:
    """CONTRIBUTING shows a counter that is the reserved memory."""
    new = SimpleNamespace(total=10, reserved=1, used=3, free=6)
    answers = {"nvmlDeviceGetMemoryInfo": lambda _, *__: new}
    assert nvml_calls.memory(InProcessNvml(1, answers), handle(0))["reserved"] == 1
