"""Smoothing of many GPUs at once against `smooth` of each: clocks that jump, gaps, values and
GPUs that come and go.
"""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from one_gpu import Smoothed, smooth
from tachograph.annexes.watch.live.monitor import SmoothingWindow
from tachograph.judge.workload.arrays import COUNTERS
from tachograph.judge.workload.classes import WORKLOAD_CLASSES
from tachograph.judge.workload.rules import GpuReading
from tachograph.judge.workload.settings import PRESETS, WorkloadSettings

LEVELS = [0.0, 0.04, 0.1, 0.15, 0.2, 0.3, 0.45, 0.55, 0.7, 0.9]
# what a GPU does next: how much its clock moves (0: the value is read again), and its reading;
# None: it tells nothing
VALUE = st.one_of(st.sampled_from(LEVELS), st.floats(0, 1), st.none())
MADE = st.builds(
    GpuReading,
    sm_active=VALUE,
    tensor_active=VALUE,
    dram_active=VALUE,
    gr_engine_active=VALUE,
    fp64_active=st.sampled_from([0.0, 0.3, None]),
    pcie_tx_bytes_per_s=st.sampled_from([0.0, 2e9, None]),
    pcie_rx_bytes_per_s=st.just(0.0),
)
STEADY = st.sampled_from(LEVELS).map(
    lambda level: GpuReading(level, level / 2, 0.2, level, None, 0.0, None, 0.0, 0.0)
)
READING = st.one_of(STEADY, STEADY, MADE, st.none())
MOVE = st.sampled_from([0.0, 1.0, 1.0, 1.0, 2.0, 2.5, 4.0, 9.9, 10.0, 11.0, 0.1, -3.0])
SERIES = st.lists(st.tuples(MOVE, READING), min_size=1, max_size=40)


@settings(max_examples=settings().max_examples // 3)
@given(
    st.lists(SERIES, min_size=1, max_size=5),
    st.sampled_from([0.0, 4.0, 10.0]),
    st.sampled_from([*PRESETS.values()]),
    st.booleans(),
)
def test_all_at_once_are_as_one_by_one(
    gpus: list[list[tuple[float, GpuReading | None]]],
    window_s: float,
    weights: tuple[float, float, float, float],
    published: bool,
) -> None:
    how = WorkloadSettings(weights, published=published, smoothing_s=window_s)
    window, clocks = SmoothingWindow(how), [100.0] * len(gpus)
    window.rearrange(np.full(len(gpus), -1))
    alone: list[Smoothed | None] = [None] * len(gpus)
    for poll in range(max(map(len, gpus))):
        measured, readings = [math.nan] * len(gpus), [GpuReading()] * len(gpus)
        for place, series in enumerate(gpus):
            if poll >= len(series) or (reading := series[poll][1]) is None:
                continue
            clocks[place] += series[poll][0]
            before = alone[place]
            measured[place] = clocks[place]
            readings[place] = reading
            if before is None or clocks[place] != before.t:
                alone[place] = smooth(before, clocks[place], reading, how)
        values = {
            name: np.array([math.nan if (v := getattr(r, name)) is None else v for r in readings])
            for name in COUNTERS
        }
        # Looks come fast: nothing is given up for its age.
        labels = window.step(200.0, np.array(measured), values)
        for place, one in enumerate(alone):
            if one is not None:
                assert WORKLOAD_CLASSES[labels.shown[place]] == one.shown.name


BUSY = {"sm_active": 0.9, "tensor_active": 0.0, "dram_active": 0.3, "gr_engine_active": 0.9, "fp64_active": 0.0,
        "pcie_tx_bytes_per_s": 0.0, "pcie_rx_bytes_per_s": 0.0}  # fmt: skip


def columns(size: int, **changed: float) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    return {name: np.full(size, value) for name, value in (BUSY | changed).items()}


def test_other_gpus_keep_what_is_theirs() -> None:
    window = SmoothingWindow(WorkloadSettings(smoothing_s=10))
    window.rearrange(np.array([-1, -1]))
    for t in range(8):
        window.step(t, np.array([t, t], float), columns(2))
    window.rearrange(np.array([-1, 1]))  # the first goes, another one comes in its place
    labels = window.step(
        8, np.array([8.0, 8.0]), columns(2, sm_active=0.0, gr_engine_active=0.0, dram_active=0.0)
    )
    assert [WORKLOAD_CLASSES[place] for place in labels.shown] == ["idle", "compute-heavy"]
    assert labels.means["sm_active"].tolist() == [0.0, sum([0.9] * 8) / 9]


def test_memory_is_that_of_the_window() -> None:
    """Also when looks are many, and where a GPU is lost that never left its window."""
    window = SmoothingWindow(WorkloadSettings(smoothing_s=3))
    window.rearrange(np.array([-1, -1]))
    for t in np.arange(0.0, 30.0, 0.1):
        measured = np.array([t, t if t < 1 else np.nan])
        window.step(float(t), measured, columns(2))
    assert len(window._polls) <= 31
    crowded = SmoothingWindow(WorkloadSettings(smoothing_s=1e6), most_polls=80)
    crowded.rearrange(np.array([-1]))
    for poll in range(200):
        labels = crowded.step(poll, np.array([float(poll)]), columns(1))
    assert len(crowded._polls) <= 80
    assert WORKLOAD_CLASSES[labels.shown[0]] == "compute-heavy"
