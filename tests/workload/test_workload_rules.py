"""Workload classes: the logic of three values and the published rules against plain evaluators."""

from __future__ import annotations

import itertools
import math
import pickle
import random
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tachograph.catalog.config import WorkloadOptions, load
from tachograph.catalog.counters import COUNTERS_BY_NAME as COUNTERS
from tachograph.catalog.errors import ConfigError
from tachograph.judge.finding import EVIDENCE
from tachograph.judge.workload.arrays import MinuteLabeller
from tachograph.judge.workload.classes import (
    AXES,
    DECIDING,
    RULED,
    UNKNOWN,
    WORKLOAD_CLASSES,
    WORKLOAD_CODES,
    bottleneck,
)
from tachograph.judge.workload.rules import GpuReading, classify, enabling, real_utilisation
from tachograph.judge.workload.settings import PRESETS, WorkloadSettings, settings_of

NAMES = tuple(field.name for field in fields(GpuReading))
# a reading that is of no class but the last; golden readings change it
MIDDLE = GpuReading(0.35, 0.1, 0.25, 0.35, None, 0.05, None, 1e8, 1e8)
REFERENCE = WorkloadSettings(published=True)


def with_(**values: float | None) -> GpuReading:
    return replace(MIDDLE, **values)


# Class, a reading at its border, and one just short of it, by the default rules alone: where SMs
# are active, memory leads every pipe, or does not.
STREAMING = {"fp32_active": 0.3, "fp16_active": 0.0, "sm_active": 0.9}
DEFAULT_GOLDEN: list[tuple[str, GpuReading, GpuReading]] = [
    ("memory-bound", with_(**STREAMING, dram_active=0.5), with_(**STREAMING, dram_active=0.499)),
    ("memory-bound", with_(**STREAMING | {"fp32_active": 0.599}, dram_active=0.6),
     with_(**STREAMING | {"fp32_active": 0.6}, dram_active=0.6)),
    ("memory-bound", with_(**STREAMING | {"fp16_active": 0.599}, dram_active=0.6),
     with_(**STREAMING | {"fp16_active": 0.6}, dram_active=0.6)),
    ("memory-active", with_(**STREAMING, dram_active=0.4), with_(**STREAMING, dram_active=0.399)),
    ("busy, low SM use", with_(gr_engine_active=0.16, sm_active=0.009), with_(gr_engine_active=0.16, sm_active=0.011)),
    ("busy, low SM use", with_(gr_engine_active=0.9, sm_active=0.249), with_(gr_engine_active=0.9, sm_active=0.25)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "inside", "outside"), DEFAULT_GOLDEN)
def test_a_default_class_begins_at_its_thresholds(
    name: str, inside: GpuReading, outside: GpuReading
) -> None:
    assert classify(inside).name == name
    assert classify(outside).name != name
    assert labelled([inside, outside], WorkloadSettings())[0] == name
    assert labelled([inside, outside], WorkloadSettings())[1] != name


def test_active_sms_beside_traffic_are_undetermined_without_all_pipes() -> None:
    reading = with_(**STREAMING | {"fp16_active": None}, dram_active=0.6)
    found = classify(reading)
    assert (found.name, found.needs) == (UNKNOWN, ("fp16_active",))
    assert classify(reading, REFERENCE).name == "compute-heavy"
    # a pipe that is more active than memory decides, whatever the others do
    assert classify(replace(reading, fp32_active=0.7)).name == "compute-heavy"


def test_there_are_twelve_classes_and_unknown() -> None:
    assert WORKLOAD_CLASSES[-1] == UNKNOWN
    assert [one.name for one in RULED] == list(WORKLOAD_CLASSES[:-1]) == [
        "idle", "tensor-heavy compute", "tensor compute", "FP64 / HPC compute", "I/O or data-loading", "memory-bound",
        "compute-heavy", "compute-active", "memory-active", "busy, low SM use", "low utilization", "mixed / moderate",
    ]  # fmt: skip
    of_tensor_and_fp64 = ["compute"] * 3
    expected = [
        "idle",
        *of_tensor_and_fp64,
        "io",
        "memory",
        "compute",
        "compute",
        "memory",
        *["mixed"] * 3,
        "unknown",
    ]
    assert [bottleneck(name) for name in WORKLOAD_CLASSES] == expected
    colours = {
        "idle": "dim",
        "compute": "green",
        "io": "cyan",
        "memory": "magenta",
        "mixed": "yellow",
    }
    assert {one.bottleneck: one.colour for one in RULED} == colours
    assert all(f"workload_{code}" in EVIDENCE for code in WORKLOAD_CODES)


def test_typical_profiles_are_of_their_class_and_within_their_bounds() -> None:
    for one in RULED:
        sm, tensor, dram, gr, io, fp64 = one.profile
        reading = GpuReading(sm, tensor, dram, gr, None, fp64, None, io * 2.5e9, 0.0, 0.0, 0.0, 0.0)
        assert classify(reading).name == classify(reading, REFERENCE).name == one.name
        for axis, (low, high) in one.bounds.items():
            assert low <= one.profile[AXES.index(axis)] <= high


# three values, once more: plain Python, None for unknown
Truth = bool | None


def least(value: float | None, threshold: float) -> Truth:
    return None if value is None else value >= threshold


def negated(one: Truth) -> Truth:
    return None if one is None else not one


def below(value: float | None, threshold: float) -> Truth:
    return negated(least(value, threshold))


def every(*parts: Truth) -> Truth:
    return (
        False
        if any(part is False for part in parts)
        else None
        if any(part is None for part in parts)
        else True
    )


def some(*parts: Truth) -> Truth:
    return negated(every(*map(negated, parts)))


def plain(r: GpuReading, weights: tuple[float, ...]) -> str:
    """The class by the table, evaluated rule by rule; a range stands in for real utilisation."""
    gr = r.gr_engine_active if r.gr_engine_active is not None else r.gpu_util
    parts = list(zip((r.sm_active, r.tensor_active, r.dram_active, gr), weights, strict=True))
    low = sum((value or 0) * weight for value, weight in parts)
    high = sum((1 if value is None else value) * weight for value, weight in parts)
    unused: Truth = False if low >= 0.05 else True if high < 0.05 else None
    io = some(least(r.pcie_tx_bytes_per_s, 1e9), least(r.pcie_rx_bytes_per_s, 1e9))
    tensor, dfma = r.tensor_active, r.tensor_dfma_active
    if dfma is not None:
        other, matrix = None if tensor is None else tensor - dfma, least(dfma, 0.2)
    else:
        other, matrix = tensor, False if tensor is not None and tensor < 0.2 else None
    sm, dram = r.sm_active, r.dram_active
    pipes = (tensor, r.fp64_active, r.fp32_active, r.fp16_active)
    leads = every(*(None if pipe is None or dram is None else pipe < dram for pipe in pipes))
    rules = (
        ("idle", every(unused, below(gr, 0.05), below(dram, 0.05), negated(io))),
        ("tensor-heavy compute", every(least(other, 0.5), least(sm, 0.6))),
        ("tensor compute", every(least(other, 0.15), least(sm, 0.4))),
        ("FP64 / HPC compute", every(some(least(r.fp64_active, 0.2), matrix), least(sm, 0.5))),
        ("I/O or data-loading", every(io, below(sm, 0.3))),
        ("memory-bound", every(least(dram, 0.5), below(sm, 0.5))),
        ("memory-bound", every(least(dram, 0.5), least(sm, 0.5), leads)),
        ("memory-active", every(least(dram, 0.4), least(sm, 0.5), leads)),
        ("compute-heavy", least(sm, 0.8)),
        ("compute-active", least(sm, 0.5)),
        ("memory-active", least(dram, 0.4)),
        ("busy, low SM use", every(engine_alone(gr, sm), below(sm, 0.25))),
        ("low utilization", every(below(gr, 0.15), below(sm, 0.15), below(dram, 0.15))),
    )
    for name, holds in rules:
        if holds is None:
            return UNKNOWN
        if holds:
            return name
    return WORKLOAD_CLASSES[11]


def engine_alone(gr: float | None, sm: float | None) -> Truth:
    """Whether the engine is active in 15 % of the time more than the SMs, which are in 0..1."""
    if gr is None:
        return None
    least_difference, most_difference = gr - (1 if sm is None else sm), gr - (sm or 0)
    return True if least_difference >= 0.15 else False if most_difference < 0.15 else None


def published(r: GpuReading, weights: tuple[float, ...]) -> str:
    """The published table, in percent, what is missing being 0."""
    sm, tensor, dram, fp64, memcpy = (
        100 * (value or 0)
        for value in (r.sm_active, r.tensor_active, r.dram_active, r.fp64_active, r.mem_copy_util)
    )
    gr = 100 * ((r.gr_engine_active if r.gr_engine_active is not None else r.gpu_util) or 0)
    w = weights
    real = min(100, max(0, w[0] * sm + w[1] * tensor + w[2] * dram + w[3] * gr))
    io = memcpy >= 40 or max(r.pcie_rx_bytes_per_s or 0, r.pcie_tx_bytes_per_s or 0) >= 1e9
    if real < 5 and gr < 5 and dram < 5 and not io:
        return "idle"
    if tensor >= 50 and sm >= 60:
        return "tensor-heavy compute"
    if tensor >= 15 and sm >= 40:
        return "tensor compute"
    if fp64 >= 20 and sm >= 50:
        return "FP64 / HPC compute"
    if io and sm < 30:
        return "I/O or data-loading"
    if dram >= 50 and sm < 50:
        return "memory-bound"
    if sm >= 80:
        return "compute-heavy"
    if sm >= 50:
        return "compute-active"
    if dram >= 40:
        return "memory-active"
    if gr >= 40 and sm < 25:
        return "busy, low SM use"
    if gr < 15 and sm < 15 and dram < 15:
        return "low utilization"
    return "mixed / moderate"


def labelled(readings: list[GpuReading], settings: WorkloadSettings) -> list[str]:
    columns = {
        name: np.array(
            [math.nan if (v := getattr(r, name)) is None else v for r in readings], np.float32
        )
        for name in NAMES
    }
    return [WORKLOAD_CLASSES[place] for place in MinuteLabeller(settings)(columns, len(readings))]


def grid() -> list[GpuReading]:
    """Every combination of values around the thresholds of the main counters, and of missing
    ones.
    """
    return [
        GpuReading(sm, tensor, dram, gr, None, fp64, None, pcie, None if pcie is None else 0.0, copy)
        for sm, tensor, dram, gr, fp64, pcie, copy in itertools.product(
            (None, 0.01, 0.2, 0.27, 0.45, 0.55, 0.9), (None, 0.0, 0.16, 0.55), (None, 0.01, 0.1, 0.45, 0.6),
            (None, 0.01, 0.1, 0.5), (None, 0.0, 0.3), (None, 0.0, 2e9), (None, 0.5),
        )
    ]  # fmt: skip


def drawn(number: int) -> list[GpuReading]:
    """Readings of which a third of the values is missing; many are at thresholds or just below."""
    draw = random.Random(5)
    edges = [0.0, 0.01, 0.05, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0]

    def value(name: str) -> float | None:
        if draw.random() < 0.3:
            return None
        if "bytes" in name:
            return draw.choice([0.0, 9.9e8, 1e9, 3e10])
        chosen = draw.choice(edges) if draw.random() < 0.6 else draw.random()
        chosen = max(0.0, chosen - draw.choice([0.0, 0.001]))
        # What the lake keeps, so that arrays and readings see the same.
        return float(np.float32(chosen))

    return [GpuReading(**{name: value(name) for name in NAMES}) for _ in range(number)]


@pytest.mark.parametrize("weights", [*PRESETS.values(), (1.0, 0.0, 0.0, 0.0), (0.0, 0.5, 0.5, 0.0)])
def test_three_values_as_plain_python_has_them(weights: tuple[float, float, float, float]) -> None:
    readings, settings = [*grid(), *drawn(3000)], WorkloadSettings(weights)
    expected = [plain(r, weights) for r in readings]
    assert labelled(readings, settings) == expected
    some_of_them = random.Random(3).sample(range(len(readings)), 3000)
    assert [classify(readings[place], settings).name for place in some_of_them] == [
        expected[p] for p in some_of_them
    ]
    assert set(expected) == set(WORKLOAD_CLASSES)


def test_what_is_decided_stays_so_whatever_is_missing() -> None:
    """Soundness: a class determined without a counter is the class with it, whatever its value."""
    draw, checked = random.Random(8), 0
    for reading in drawn(1500):
        before = classify(reading)
        missing = [name for name in DECIDING if getattr(reading, name) is None]
        if before.name == UNKNOWN or not missing:
            continue
        for _ in range(8):
            filled = {name: draw.random() * (3e9 if "bytes" in name else 1) for name in missing}
            if "gr_engine_active" in filled and reading.gpu_util is not None:
                del filled["gr_engine_active"]
            checked += 1
            assert classify(replace(reading, **filled)).name == before.name
    assert checked > 500


def test_reference_is_the_published_table() -> None:
    readings = [*grid(), *drawn(3000)]
    for weights in PRESETS.values():
        settings = WorkloadSettings(weights, published=True)
        expected = [published(r, weights) for r in readings]
        assert labelled(readings, settings) == expected
        assert [classify(r, settings).name for r in readings[::7]] == expected[::7]
    assert set(expected) == set(WORKLOAD_CLASSES[:-1])


def test_missing_counters_are_not_zero() -> None:
    """The verdicts of the published rules: no SM activity is memory-active, no data idle."""
    training = GpuReading(tensor_active=0.0, dram_active=0.45, gr_engine_active=0.99, fp64_active=0.0,
                       pcie_tx_bytes_per_s=0.0, pcie_rx_bytes_per_s=0.0, fp32_active=0.0, fp16_active=0.0)  # fmt: skip
    assert classify(training, REFERENCE).name == "memory-active"
    found = classify(training)
    assert (found.name, found.bottleneck, found.needs) == (UNKNOWN, "unknown", ("sm_active",))
    assert found.label == "unknown (needs SM_ACTIVE)"
    assert found.message == "let DCGM record SM_ACTIVE (DCGM_FI_PROF_SM_ACTIVE, field 1002)"
    assert classify(GpuReading(), REFERENCE).name == "idle"
    assert classify(GpuReading()).needs == DECIDING


def test_needs_are_missing_and_enough() -> None:
    """Every counter that is named is missing, has a DCGM field, and with all of them the class
    is known.
    """
    tried = 0
    for reading in drawn(1000):
        found = classify(reading)
        assert bool(found.needs) == (found.name == UNKNOWN) == (found.message is not None)
        assert all(
            getattr(reading, name) is None and COUNTERS[name].dcgm_id for name in found.needs
        )
        for value in (0.0, 0.33, 0.95) if found.needs else ():
            tried += 1
            assert classify(replace(reading, **dict.fromkeys(found.needs, value))).name != UNKNOWN
    assert tried > 500
    assert str(COUNTERS["fp64_active"].dcgm_id) in enabling(["fp64_active"])


def test_tensor_work_in_double_precision_is_fp64() -> None:
    """Whether the tensor counter counts it or not."""
    for tensor in (0.0, 0.6):
        solver = with_(
            sm_active=0.9, fp64_active=0.02, tensor_active=tensor, tensor_dfma_active=0.6
        )
        assert classify(solver).name == "FP64 / HPC compute"
    assert classify(solver, REFERENCE).name == "tensor-heavy compute"
    assert classify(replace(solver, tensor_dfma_active=None)).name == "tensor-heavy compute"
    assert (
        classify(with_(sm_active=0.9, tensor_active=0.7, tensor_dfma_active=0.1)).name
        == "tensor-heavy compute"
    )


def test_real_utilisation() -> None:
    reading = GpuReading(sm_active=0.8, tensor_active=0.4, dram_active=0.6, gpu_util=0.9)
    for weights, expected in (("ai", 0.63), ("hpc", 0.705), ("mem", 0.695)):
        assert real_utilisation(
            reading, settings_of(WorkloadOptions(preset=weights))
        ) == pytest.approx(expected)
    assert real_utilisation(replace(reading, sm_active=None)) is None
    assert real_utilisation(replace(reading, sm_active=5.0)) == 1.0
    assert real_utilisation(replace(reading, sm_active=-9.0)) == 0.0
    custom = settings_of(WorkloadOptions(weights={"sm": 2.0, "gr": 6.0}))
    assert custom.weights == (0.25, 0.0, 0.0, 0.75)
    assert real_utilisation(
        GpuReading(sm_active=0.4, gr_engine_active=0.8), custom
    ) == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("key", "configured"),
    [
        ("preset", WorkloadOptions(preset="hcp")),
        ("classifier", WorkloadOptions(classifier="published")),
        ("weights", WorkloadOptions(weights={"sn": 1.0})),
        ("weights", WorkloadOptions(weights={"sm": -1.0, "dram": 2.0})),
        ("weights", WorkloadOptions(weights={"sm": 0.0})),
        ("weights", WorkloadOptions(weights={"sm": math.nan})),
        ("smoothing_s", WorkloadOptions(smoothing_s=-1.0)),
        ("event_memory_s", WorkloadOptions(event_memory_s=math.nan)),
    ],
)
def test_a_setting_that_is_none_is_named(key: str, configured: WorkloadOptions) -> None:
    with pytest.raises(ConfigError, match=f"workload.{key}"):
        settings_of(configured)


@pytest.mark.parametrize(("text", "published"), [("mem", False), ("reference", True)])
def test_a_site_chooses_the_rules(tmp_path: Path, text: str, published: bool) -> None:
    file = tmp_path / "tachograph.toml"
    file.write_text(f'[workload]\npreset = "{text}"\n', encoding="utf-8")
    settings = settings_of(load(str(file)).workload)
    assert (settings.published, settings.weights) == (
        published,
        PRESETS["ai" if published else text],
    )


def test_a_labeller_travels() -> None:
    labeller = MinuteLabeller(WorkloadSettings(PRESETS["hpc"], published=True))
    again: Any = pickle.loads(pickle.dumps(labeller))
    assert again == labeller
    means = {"sm_active": np.array([0.9, np.nan], np.float32)}
    assert [WORKLOAD_CLASSES[place] for place in again(means, 2)] == ["compute-heavy", "idle"]
