"""Two samples of GPM: how far apart, what is asked of them, what becomes of codes, NaN and
units.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pynvml
import pytest
from in_process_nvml import Clock, Code, InProcessNvml, handle, source_of

from tachograph.annexes.watch.live.sources.nvml_calls import (
    GPM_METRICS,
    MIN_GAP_S,
    GpmGauge,
    GpmMetrics,
)


def answers(reported: dict[int, float], codes: dict[int, int] | None = None) -> Any:
    def fill(_: InProcessNvml, asked: Any) -> None:
        for place in range(asked.numMetrics):
            metric = asked.metrics[place]
            metric.nvmlReturn = (codes or {}).get(metric.metricId, 0)
            if metric.metricId in reported:
                metric.value = reported[metric.metricId]

    return fill


def with_gpm(reported: dict[int, float], codes: dict[int, int] | None = None) -> dict[str, Any]:
    return {
        "nvmlGpmSampleAlloc": lambda _: empty_sample(),
        "nvmlGpmSampleFree": None,
        "nvmlGpmSampleGet": None,
        "nvmlGpmMetricsGet": answers(reported, codes),
    }


class Pairs:
    """Which samples were compared, by their number."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, Any]] = []

    def between(self, older: Any, newer: Any) -> tuple[Any, list[int]]:
        self.seen.append((older, newer))
        return np.zeros(len(GPM_METRICS)), [0] * len(GPM_METRICS)


def test_each_sample_is_compared_with_the_one_before() -> None:
    numbers = iter(("a", "b"))
    taken: list[str] = []
    nvml = InProcessNvml(1, with_gpm({}))
    nvml.answers["nvmlGpmSampleAlloc"] = lambda *_: next(numbers)
    nvml.answers["nvmlGpmSampleGet"] = lambda _, __, sample: taken.append(sample)
    gauge, pairs = GpmGauge(nvml, handle(0)), Pairs()
    for now in (0.0, 1.0, 2.0, 3.0):
        gauge.read(pairs, now)  # type: ignore[arg-type]
    assert pairs.seen == list(pairwise(taken))
    assert set(taken) == {"a", "b"}
    gauge.close()
    assert nvml.calls.count("nvmlGpmSampleFree") == 2


def test_samples_are_not_taken_too_close() -> None:
    nvml = InProcessNvml(1, with_gpm({}))
    gauge, metrics = GpmGauge(nvml, handle(0)), GpmMetrics(nvml)
    gauge.read(metrics, 10.0)
    assert gauge.values is None
    gauge.read(metrics, 10.0 + MIN_GAP_S / 2)
    assert nvml.calls.count("nvmlGpmSampleGet") == 1
    assert gauge.wait_s(10.0 + MIN_GAP_S / 2) == pytest.approx(MIN_GAP_S / 2)
    gauge.read(metrics, 10.0 + MIN_GAP_S)
    assert gauge.values is not None


def test_units_codes_and_what_was_not_filled_in() -> None:
    reported = {2: 50.0, 3: float("nan"), 5: 80.0, 20: 3.0}
    nvml = InProcessNvml(1, with_gpm(reported, {5: pynvml.NVML_ERROR_UNKNOWN}))
    values, codes = GpmMetrics(nvml).between(empty_sample(), empty_sample())
    found = dict(zip((metric.counter for metric in GPM_METRICS), values.tolist(), strict=True))
    assert found["sm_active"] == 0.5
    assert found["pcie_tx_bytes_per_s"] == 3 * 1024 * 1024
    assert np.isnan([found["sm_occupancy"], found["tensor_active"], found["dram_active"]]).all()
    assert codes[[metric.id for metric in GPM_METRICS].index(5)] == pynvml.NVML_ERROR_UNKNOWN


def test_the_last_answer_is_not_told_twice() -> None:
    nvml = InProcessNvml(1, with_gpm({2: 50.0}))
    metrics = GpmMetrics(nvml)
    metrics.between(empty_sample(), empty_sample())
    nvml.answers["nvmlGpmMetricsGet"] = None  # succeeds, and fills in nothing
    values, _ = metrics.between(empty_sample(), empty_sample())
    assert np.isnan(values).all()


def test_the_first_read_waits_for_the_second_sample_and_others_do_not() -> None:
    clock = Clock()
    nvml = InProcessNvml(2, with_gpm({2: 40.0}))
    gpus = source_of(nvml, clock)
    gpus.start()
    assert sum(clock.slept) == pytest.approx(MIN_GAP_S, abs=1e-3)
    clock.slept.clear()
    clock.now += 0.05
    assert gpus.read().values["sm_active"].tolist() == [0.4, 0.4]  # too early: as before
    clock.now += 1
    gpus.read()
    assert clock.slept == []


def test_ten_reads_a_second_are_ten_measurements_although_clocks_jitter() -> None:
    clock = Clock()
    nvml = InProcessNvml(1, with_gpm({2: 40.0}))
    gpus = source_of(nvml, clock)
    gpus.start()
    nvml.calls.clear()
    clock.slept.clear()
    for step in range(20):
        due = 200.0 + 0.1 * step + 0.004 * (step % 2)
        clock.now = max(clock.now, due)
        gpus.read()
    assert nvml.calls.count("nvmlGpmMetricsGet") == 20
    assert max(clock.slept) < 0.01


def test_a_gpu_without_gpm_is_not_asked_at_every_read() -> None:
    clock = Clock()
    nvml = InProcessNvml(1)
    gpus = source_of(nvml, clock)
    gpus.start()
    nvml.calls.clear()
    for _ in range(50):
        clock.now += 1
        gpus.read()
    assert nvml.calls.count("nvmlGpmSampleAlloc") == 0
    assert nvml.calls.count("nvmlDeviceGetPowerUsage") == 50
    clock.now += 60
    gpus.read()
    assert nvml.calls.count("nvmlGpmSampleAlloc") == 1


def test_an_unknown_answer_begins_anew() -> None:
    clock = Clock()
    nvml = InProcessNvml(1, with_gpm({2: 40.0}))
    gpus = source_of(nvml, clock)
    gpus.start()
    nvml.answers["nvmlGpmMetricsGet"] = Code(pynvml.NVML_ERROR_UNKNOWN)
    clock.now += 1
    broken = gpus.read()
    assert np.isnan(broken.column("sm_active")).all()
    assert broken.value("power_w", 0) == 100.0
    assert [problem.sentence for problem in broken.problems] == ["n:0: GPM: Unknown Error; retried"]
    nvml.answers["nvmlGpmMetricsGet"] = answers({2: 60.0})
    for _ in range(2):
        clock.now += 1
        after = gpus.read()
    assert after.value("sm_active", 0) == 0.6
    assert after.problems == ()


def empty_sample() -> Any:
    return pynvml.c_nvmlGpmSample_t()
