"""Real utilisation, classes and health of what is live, against the published tables as plain
if-chains.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from plain_numbers import BOTTLENECKS, MODELS, PRESETS, Values, health, kind, real
from tachograph.annexes.watch.live.monitor import Monitor
from tachograph.annexes.watch.live.render import json_rows
from tachograph.annexes.watch.live.snapshot import GpuDevice, GpuId, Snapshot, SourceInfo
from tachograph.annexes.watch.live.view import FleetView, GpuHistory, gpu_reasons
from tachograph.catalog.config import WorkloadOptions
from tachograph.judge.workload.settings import settings_of

ABOUT = SourceInfo("made", "made for tests")
# thresholds of the table and their neighbours
FRACTIONS = (None, 0.0, 0.02, 0.049999, 0.05, 0.149999, 0.15, 0.2, 0.249, 0.25, 0.299, 0.3, 0.39, 0.4, 0.499, 0.5, 0.59,
             0.6, 0.79, 0.8, 1.0)  # fmt: skip
BYTES = (None, 0.0, 999_999_999.0, 1e9, 5e9)
DRAWN = {
    **dict.fromkeys(
        (
            *(
                "sm_active",
                "tensor_active",
                "dram_active",
                "gr_engine_active",
                "gpu_util",
                "fp64_active",
            ),
            *("tensor_dfma_active", "mem_copy_util", "fp32_active", "fp16_active"),
        ),
        FRACTIONS,
    ),
    **dict.fromkeys(("pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"), BYTES),
}
WEIGHTS = {"sm": 3.0, "dram": 2.0, "gr": 1.0}


def drawn(count: int, missing: float) -> list[Values]:
    rng = random.Random(7 + int(100 * missing))
    found: list[Values] = []
    for _ in range(count):
        low = rng.random() < 0.3
        values: Values = {}
        for name, given in DRAWN.items():
            some = given[1:4] if low and name != "sm_active" else given[1:]
            values[name] = None if rng.random() < missing else rng.choice(some)
        if values["tensor_active"] is not None and values["tensor_dfma_active"] is not None:
            values["tensor_dfma_active"] = min(
                values["tensor_active"], values["tensor_dfma_active"]
            )
        found.append(values)
    return found


def snapshot_of(
    readings: Sequence[Values], devices: Sequence[GpuDevice] = (), t: float = 1e9
) -> Snapshot:
    gpus = tuple(GpuId("n1", place) for place in range(len(readings)))
    names = dict.fromkeys(name for one in readings for name in one)
    columns = {
        name: np.array([math.nan if (v := one.get(name)) is None else v for one in readings])
        for name in names
    }
    return Snapshot(t, gpus, np.full(len(gpus), t), columns, dict(zip(gpus, devices, strict=False)))


def judged(readings: Sequence[Values], workload: WorkloadOptions) -> FleetView:
    return Monitor(ABOUT, settings=settings_of(workload), history=GpuHistory(2)).step(
        snapshot_of(readings)
    )


@pytest.mark.parametrize(
    ("how", "missing"),
    [("ai", 0.0), ("ai", 0.4), ("hpc", 0.08), ("mem", 0.08), ("own", 0.08), ("published", 0.08)],
)
def test_classes_are_those_of_the_table(how: str, missing: float) -> None:
    readings = drawn(1500, missing)
    published = how == "published"
    workload = {
        "own": WorkloadOptions(weights=WEIGHTS),
        "published": WorkloadOptions(classifier="reference"),
    }.get(how, WorkloadOptions(preset=how))
    weights = {"own": (0.5, 0.0, 2 / 6, 1 / 6), "published": PRESETS["ai"]}.get(how) or PRESETS[how]
    view = judged(readings, workload)
    reported = json_rows(view)
    seen = Counter[str]()
    for row, values in enumerate(readings):
        wanted = kind(values, weights, published=published)
        seen[wanted] += 1
        assert reported[row]["class"] == wanted, values
        assert reported[row]["bottleneck"] == BOTTLENECKS[wanted]
        filled = {
            name: value or 0.0 for name, value in values.items() if name != "gr_engine_active"
        }
        engine = values["gr_engine_active"]
        filled["gr_engine_active"] = (values["gpu_util"] or 0.0) if engine is None else engine
        utilised = real(filled if published else values, weights)
        given = reported[row]["real_utilisation"]
        assert given == (None if utilised is None else pytest.approx(utilised, abs=1e-9)), values
        needs = reported[row]["needs"]
        assert isinstance(needs, list)
        assert bool(needs) == (wanted == "unknown")
        assert all(values[name] is None for name in needs)
    assert (seen["unknown"] > 0) == (missing > 0 and not published)
    assert len(seen) == 12 + (seen["unknown"] > 0)


def test_what_a_class_needs_is_asked_of_the_window_it_is_made_of() -> None:
    """The last reading alone could be classed: SM 30 % rules tensor work out; the means of the
    window cannot.
    """
    base: Values = {"dram_active": 0.2, "gr_engine_active": 0.9, "fp64_active": 0.0, "pcie_tx_bytes_per_s": 0.0,
                    "pcie_rx_bytes_per_s": 0.0, "tensor_active": None}  # fmt: skip
    monitor = Monitor(ABOUT, settings=settings_of(WorkloadOptions()), history=GpuHistory(20))
    for second, sm in enumerate([0.9] * 9 + [0.3]):
        view = monitor.step(snapshot_of([{**base, "sm_active": sm}], t=1e9 + second))
    assert kind({**base, "sm_active": 0.3}, PRESETS["ai"]) != "unknown"
    (one,) = json_rows(view)
    assert (one["class"], one["needs"]) == ("unknown", ["tensor_active"])
    assert gpu_reasons(view, 0).classified.needs == ("tensor_active",)


FAULTS: tuple[Values, ...] = (
    {},
    {"row_remap_failure": 1.0},
    {"remapped_rows_uncorrectable": 3.0},
    {"row_remap_failure": None},
    {"remapped_rows_uncorrectable": None},
    {"mem_temp_c": None},
    {"gpu_temp_c": None},
    {"pcie_replays": None},
    {"row_remap_failure": None, "remapped_rows_uncorrectable": 1.0},
)


def test_health_is_that_of_the_table_for_every_model() -> None:
    cases = list(
        itertools.product(
            MODELS,
            (None, 88.0),
            (60.0, 88.0, 91.0, 92.0, 93.0, 95.0),
            (50.0, 94.0),
            FAULTS,
            (0.0, 2.0),
        )
    )
    good: Values = {
        "row_remap_failure": 0.0,
        "remapped_rows_uncorrectable": 0.0,
        "pcie_replays": 7.0,
        "power_w": 1.0,
    }
    first = [
        {**good, "gpu_temp_c": gpu, "mem_temp_c": memory, **fault}
        for _, _, gpu, memory, fault, _ in cases
    ]
    later = [
        {
            **one,
            "pcie_replays": None if one["pcie_replays"] is None else one["pcie_replays"] + case[-1],
        }
        for one, case in zip(first, cases, strict=True)
    ]
    devices = [GpuDevice(model, slowdown_c=slowdown) for model, slowdown, *_ in cases]
    monitor = Monitor(ABOUT, settings=settings_of(WorkloadOptions()), history=GpuHistory(2))
    before = monitor.step(snapshot_of(first, devices))
    view = monitor.step(snapshot_of(later, devices, t=1e9 + 1))
    seen = Counter[str]()
    for row, (model, slowdown, *_, new) in enumerate(cases):
        replays = None if later[row]["pcie_replays"] is None else new
        wanted = health(later[row], model, slowdown, replays)
        seen[wanted] += 1
        assert view.state(row) == wanted, (cases[row], later[row])
        assert before.state(row) == health(first[row], model, slowdown, None)
        if row % 11 == 0:
            assert gpu_reasons(view, row).health.state == wanted
    assert all(seen[state] > 50 for state in ("CRIT", "WARN", "HOT", "OK", "unknown")), seen


def test_replays_are_seen_as_long_as_they_are_remembered() -> None:
    monitor = Monitor(
        ABOUT, settings=settings_of(WorkloadOptions(event_memory_s=60)), history=GpuHistory(2)
    )
    cool: Values = {
        "row_remap_failure": 0.0,
        "remapped_rows_uncorrectable": 0.0,
        "gpu_temp_c": 40.0,
        "mem_temp_c": 40.0,
    }
    counts = {0: 5.0, 10: 5.0, 20: 8.0, 70: 8.0, 79: 8.0, 81: 8.0, 90: 2.0, 160: 2.0}
    states = []
    for second, count in counts.items():
        reading: Values = {**cool, "pcie_replays": count}
        view = monitor.step(snapshot_of([reading], [GpuDevice("NVIDIA H200")], t=1e9 + second))
        states.append(view.state(0))
    assert states == ["unknown", "OK", "WARN", "WARN", "WARN", "OK", "WARN", "OK"]
