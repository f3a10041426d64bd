"""Views of snapshots: labels and health as those of each GPU alone, GPUs that come and go, age,
reasons, memory.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from tachograph.annexes.watch.live.monitor import GONE_S, Monitor
from tachograph.annexes.watch.live.snapshot import (
    GpuDevice,
    GpuId,
    Snapshot,
    SourceInfo,
    SourceProblem,
)
from tachograph.annexes.watch.live.view import FleetView, GpuHistory, gpu_reasons
from tachograph.judge.workload.classes import UNKNOWN
from tachograph.judge.workload.settings import WorkloadSettings

ABOUT = SourceInfo("made", "made for tests")
BUSY = {"sm_active": 0.9, "tensor_active": 0.0, "dram_active": 0.3, "gr_engine_active": 0.9, "fp64_active": 0.0,
        "pcie_tx_bytes_per_s": 0.0, "pcie_rx_bytes_per_s": 0.0, "gpu_temp_c": 60.0, "mem_temp_c": 60.0,
        "pcie_replays": 5.0, "row_remap_failure": 0.0, "remapped_rows_uncorrectable": 0.0, "xid": 0.0,
        "throttle_reasons": 0.0}  # fmt: skip
IDLE = BUSY | {"sm_active": 0.0, "dram_active": 0.0, "gr_engine_active": 0.0}
A, B, C = GpuId("n1", 0), GpuId("n1", 1), GpuId("n2", 0)


def snapshot(
    t: float,
    reported: Mapping[GpuId, Mapping[str, float]],
    *,
    measured: Mapping[GpuId, float] | None = None,
    devices: Mapping[GpuId, GpuDevice] | None = None,
    problems: Sequence[SourceProblem] = (),
) -> Snapshot:
    """GPUs with their values; one without any reports nothing."""
    gpus, names = tuple(reported), sorted({name for values in reported.values() for name in values})
    when = [(measured or {}).get(gpu, t if reported[gpu] else math.nan) for gpu in gpus]
    values = {name: np.array([reported[gpu].get(name, math.nan) for gpu in gpus]) for name in names}
    return Snapshot(
        t, gpus, np.array(when, np.float64), values, devices or {}, problems=tuple(problems)
    )


def monitor(settings: WorkloadSettings | None = None) -> Monitor:
    return Monitor(ABOUT, settings=settings or WorkloadSettings(), history=GpuHistory(50))


def test_what_is_read_again_is_no_new_reading() -> None:
    """An exporter that measures every 10 s is polled every second: the window holds what it
    measured, no more.
    """
    made = monitor(WorkloadSettings(smoothing_s=60))
    for t in range(41):
        view = made.step(snapshot(t, {A: IDLE if t < 10 else BUSY}, measured={A: t // 10 * 10}))
        assert view.stale_s.tolist() == [t % 10]
        assert view.means["sm_active"][0] == pytest.approx(0.9 * (t // 10) / (t // 10 + 1))


def test_a_silent_gpu_is_unknown_and_its_label_comes_back() -> None:
    made = monitor()
    for t in range(5):
        made.step(snapshot(t, {A: BUSY, B: BUSY}))
    view = made.step(snapshot(7, {A: BUSY, B: {}}))
    assert view.current.tolist() == [True, False]
    assert [view.label(row) for row in (0, 1)] == ["compute-heavy", UNKNOWN]
    assert (view.state(1), math.isnan(view.real[1]), view.stale_s.tolist()) == (
        "unknown",
        True,
        [0.0, 3.0],
    )
    assert gpu_reasons(view, 1).why == "no values now"
    view = made.step(snapshot(8, {A: BUSY, B: IDLE}))
    assert view.label(1) == "compute-heavy"  # smoothed on


def test_a_gpu_that_never_told_anything_has_no_age() -> None:
    view = monitor().step(snapshot(0, {A: BUSY, B: {}}))
    assert np.isnan(view.stale_s).tolist() == [False, True]


def test_a_gpu_that_is_named_no_more_stays_for_a_while() -> None:
    made, device = (
        monitor(),
        {A: GpuDevice("NVIDIA H200"), B: GpuDevice("NVIDIA H200"), C: GpuDevice("A100")},
    )
    for t in range(3):
        made.step(snapshot(t, {A: BUSY, B: BUSY, C: BUSY}, devices=device))
    view = made.step(snapshot(3, {A: BUSY, C: BUSY}, devices={A: device[A], C: device[C]}))
    assert view.snapshot.gpus == (A, B, C)  # in its place
    assert view.current.tolist() == [True, False, True]
    assert view.snapshot.devices == device
    assert view.history.series("sm_active", 1).tolist() == pytest.approx(
        [0.9, 0.9, 0.9, math.nan], nan_ok=True
    )
    view = made.step(snapshot(4, {A: BUSY, B: BUSY, C: BUSY}, devices=device))
    assert view.current.tolist() == [True] * 3
    assert view.label(1) == "compute-heavy"
    for later in (5.0, 4 + GONE_S - 1):
        assert made.step(snapshot(later, {C: BUSY, A: BUSY})).snapshot.gpus == (C, A, B)
    view = made.step(snapshot(5 + GONE_S, {C: BUSY, A: BUSY}))
    assert view.snapshot.gpus == (C, A)
    assert [view.label(row) for row in (0, 1)] == ["compute-heavy"] * 2


def test_a_fleet_that_is_gone_and_another_one() -> None:
    made = monitor()
    made.step(snapshot(0, {A: BUSY}))
    view = made.step(snapshot(1, {}))
    assert (view.snapshot.gpus, view.current.tolist()) == ((A,), [False])
    view = made.step(snapshot(2, {B: IDLE, GpuId("n1", 0, 3): IDLE}))
    assert view.snapshot.gpus == (B, GpuId("n1", 0, 3), A)
    empty = monitor().step(snapshot(0, {}))
    assert empty.snapshot.gpus == ()


def test_the_slowdown_temperature_of_the_device_counts() -> None:
    made, hot = monitor(), {A: BUSY | {"gpu_temp_c": 88.0}}
    for t in range(2):
        view = made.step(snapshot(t, hot, devices={A: GpuDevice("NVIDIA A100-SXM4-40GB")}))
    assert view.state(0) == "OK"
    view = made.step(
        snapshot(2, hot, devices={A: GpuDevice("NVIDIA A100-SXM4-40GB", slowdown_c=87.0)})
    )
    assert view.state(0) == "HOT"
    reported = gpu_reasons(view, 0)
    assert (reported.limits.warning_c, reported.health_why) == (87.0, "GPU at 88 °C, limit 87 °C")


def test_reasons_name_rule_values_and_what_is_missing() -> None:
    about = SourceInfo("made", "", unsupported={"sm_active": "run nv-hostengine"})
    made = Monitor(about, settings=WorkloadSettings(), history=GpuHistory(5))
    known = {**BUSY, "sm_active": 0.72, "tensor_active": 0.61}
    lacking = {
        name: value for name, value in BUSY.items() if name not in ("sm_active", "mem_temp_c")
    }
    for t in range(2):
        view = made.step(snapshot(t, {A: known, B: lacking | {"tensor_active": 0.6}}))
    first, second = gpu_reasons(view, 0), gpu_reasons(view, 1)
    assert first.why == "TENSOR 61 % >= 50 %, SM 72 % >= 60 %"
    assert (first.classified.name, first.health.state) == ("tensor-heavy compute", "OK")
    assert second.classified.needs == ("sm_active",)
    assert second.health.needs == ("mem_temp_c",)
    assert second.why == "tensor-heavy compute is undetermined: SM_ACTIVE is missing"


def test_reasons_say_why_a_class_stays() -> None:
    made = monitor(WorkloadSettings(smoothing_s=20))
    for t in range(10):
        made.step(snapshot(t, {A: BUSY}))
    for t in range(10, 14):
        view = made.step(snapshot(t, {A: IDLE}))
    assert view.label(0) == "compute-heavy"
    assert (
        gpu_reasons(view, 0).why
        == "now compute-active (SM 64 % >= 50 %); compute-heavy shown until the change lasts"
    )


def test_views_stay_as_they_were() -> None:
    """What a step gave is not changed by later ones."""
    made = monitor(WorkloadSettings(smoothing_s=2))
    views: list[FleetView] = []
    kept: list[list[list[float]]] = []
    for t in range(12):
        view = made.step(snapshot(t, {A: BUSY if t % 5 else IDLE, **({B: IDLE} if t % 3 else {})}))
        views.append(view)
        kept.append(
            [array.tolist() for array in (view.labels, view.health, view.current, view.stale_s)]
        )
    for view, before in zip(views, kept, strict=True):
        now = [array.tolist() for array in (view.labels, view.health, view.current, view.stale_s)]
        assert repr(now) == repr(before)


def test_history_is_a_ring_of_single_precision() -> None:
    history = GpuHistory(4)
    for t in range(10):
        reported = (
            {A: {"power_w": float(t)}}
            if t < 8
            else {B: {"power_w": 1.0, "sm_active": 0.5}, A: {"power_w": float(t)}}
        )
        history.add(snapshot(t, reported))
    assert history.times().tolist() == [6, 7, 8, 9]
    assert history.series("power_w", 1).tolist() == [6, 7, 8, 9]
    assert history.series("power_w", 0).tolist() == pytest.approx(
        [math.nan, math.nan, 1, 1], nan_ok=True
    )
    assert history.series("sm_active", 0).tolist() == pytest.approx(
        [math.nan, math.nan, 0.5, 0.5], nan_ok=True
    )
    assert np.isnan(history.series("xid", 0)).tolist() == [True] * 4
    assert history.bytes == 2 * 4 * 2 * 4 + 4 * 8  # counters x snapshots x GPUs, and their times


def test_the_way_to_the_first_view_has_no_tables_and_no_compiler() -> None:
    code = (
        "import sys\nfrom tachograph.annexes.watch.live.monitor import Monitor\n"
        "from tachograph.annexes.watch.live.sources.simulated import SimulatedSource\n"
        "from tachograph.annexes.watch.live.view import GpuHistory\nfrom tachograph.judge.workload.settings "
        "import WorkloadSettings\n"
        "source = SimulatedSource(4)\n"
        "Monitor(source.about, settings=WorkloadSettings(), "
        "history=GpuHistory(9)).step(source.read())\n"
        "print([name for name in ('numba', 'polars', 'matplotlib', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
