"""Health of GPUs: states in their order, what is missing, limits by model, and events that stay
visible.
"""

from __future__ import annotations

import itertools

import pytest

from one_gpu import EventMemory, remember
from tachograph.judge.health import (
    INPUTS,
    STATES,
    HealthLimits,
    HealthReading,
    health_of,
    health_reason,
    limits_of,
    needed,
    worst,
)

A100 = limits_of("A100 SXM 40GB")
FINE = HealthReading(0, 0, 0, 60, 70)


@pytest.mark.parametrize(
    ("model", "normal", "warning", "critical"),
    [
        ("A100 SXM 40GB", 85, 93, 95),
        ("NVIDIA A100-SXM4-40GB", 85, 93, 95),
        ("a100", 85, 93, 95),
        ("H100 SXM 80GB", 85, 95, 105),
        ("NVIDIA H100 80GB HBM3", 85, 95, 105),
        ("H200 SXM 141GB", 80, 95, 105),
        ("NVIDIA H200", 80, 95, 105),
        ("NVIDIA GH200 480GB", 85, 93, 105),
        ("GH200 96GB", 85, 93, 105),
        ("gh200", 85, 93, 105),
        ("Quadro RTX 6000", 85, 92, 105),
        ("NVIDIA RTX 6000 Ada Generation", 85, 92, 105),
        ("rtx6000", 85, 92, 105),
        ("NVIDIA RTX A6000", 85, 93, 105),
        ("RTXA6000", 85, 93, 105),
        ("RTX A6000", 85, 93, 105),
        ("NVIDIA H20", 85, 93, 105),
        ("something new", 85, 93, 105),
        (None, 85, 93, 105),
    ],
)
def test_temperatures_of_a_model(
    model: str | None, normal: float, warning: float, critical: float
) -> None:
    limits = limits_of(model)
    assert (limits.normal_c, limits.warning_c, limits.critical_c) == (normal, warning, critical)
    assert limits.memory_warning_c == warning


def test_the_devices_own_slowdown_counts_before_the_table() -> None:
    assert limits_of("A100 SXM 40GB", 87).warning_c == 87
    assert limits_of("A100 SXM 40GB", 87).memory_warning_c == 93
    assert limits_of("A100 SXM 80GB").warning_c == 89  # publicly recorded of this very model
    assert limits_of("A100 SXM 80GB", 91).warning_c == 91
    assert limits_of("A100 SXM 80GB").critical_c == 92


def plain(values: dict[str, float | None], limits: HealthLimits) -> str:
    """Any problem seen is reported, worst first; else what is missing is unknown."""
    if any(
        values[name] for name in ("remapped_rows_uncorrectable", "row_remap_failure", "ecc_dbe")
    ):
        return "CRIT"
    if any(values[name] for name in ("pcie_replays", "ecc_sbe", "nvlink_errors")):
        return "WARN"
    gpu, memory = values["gpu_temp_c"], values["mem_temp_c"]
    if (gpu is not None and gpu >= limits.warning_c) or (
        memory is not None and memory >= limits.memory_warning_c
    ):
        return "HOT"
    return "unknown" if any(values[name] is None for name in needed(limits)) else "OK"


@pytest.mark.parametrize(
    "model", ["A100 SXM 40GB", "V100 SXM2 16GB", "RTX A6000", "Quadro RTX 6000", "GH200 96GB"]
)
def test_states_as_plain_python_has_them(model: str) -> None:
    limits, seen = limits_of(model), set()
    temperatures = (None, 40.0, limits.warning_c - 0.5, limits.warning_c, limits.memory_warning_c)
    counts = ((None, 0.0, 1.0), (None, 0.0, 2.0), (None, 0.0, 5.0))
    errors = [(None, 0.0, 3.0)] * 3
    for combination in itertools.product(*counts, temperatures, temperatures, *errors):
        values = dict(zip(INPUTS, combination, strict=True))
        found = health_of(HealthReading(**values), limits)
        assert found.state == plain(values, limits)
        assert all(values[name] is None for name in found.needs)
        assert (found.state != "unknown") or found.needs
        seen.add(found.state)
    assert seen == set(STATES)


def test_what_a_device_cannot_tell_is_not_asked_for() -> None:
    assert needed(A100) == INPUTS[:5]
    assert needed(limits_of("V100 SXM2 16GB")) == ("pcie_replays", "gpu_temp_c", "mem_temp_c")
    assert needed(limits_of("Quadro RTX 6000")) == ("pcie_replays", "gpu_temp_c")
    assert needed(limits_of("L40S")) == INPUTS[:4]
    assert needed(limits_of(None)) == INPUTS[:5]


def test_new_errors_are_named_with_their_time() -> None:
    reading = HealthReading(0, 0, None, 60, 70, ecc_dbe=1, ecc_sbe=1200, nvlink_errors=2)
    assert health_reason(reading, A100, within_s=600) == (
        "1 uncorrectable ECC error in 10 min, 2 NVLink or XGMI errors in 10 min, "
        "1,200 corrected ECC errors in 10 min"
    )
    assert health_of(HealthReading(0, 0, 0, 60, 70, 0, 0, 0), A100).state == "OK"


def test_missing_is_unknown_and_names_what() -> None:
    assert health_of(FINE, A100).state == "OK"
    found = health_of(HealthReading(None, 0, 0, 60, None), A100)
    assert (found.state, found.needs) == ("unknown", ("row_remap_failure", "mem_temp_c"))
    hot = health_of(HealthReading(None, 0, 0, 99, None), A100)
    assert (hot.state, hot.needs) == ("HOT", ("row_remap_failure",))  # it may be worse, not better


def test_worst_of_several() -> None:
    assert worst(["OK", "unknown", "HOT", "WARN"]) == "WARN"
    assert worst(["OK", "unknown"]) == "unknown"
    assert worst([]) is None


def test_replays_stay_visible_for_a_while_and_no_longer() -> None:
    memory, states = EventMemory(), {}
    for t in range(0, 1400, 10):
        memory = remember(memory, t, 7.0 if t < 100 else 9.0, keep_s=600)
        states[t] = health_of(HealthReading(0, 0, memory.replays, 60, 70), A100).state
    assert states[0] == "unknown"  # one count shows no increase
    assert {states[t] for t in range(10, 100, 10)} == {"OK"}
    assert {states[t] for t in range(100, 700, 10)} == {"WARN"}
    assert {states[t] for t in range(700, 1400, 10)} == {"OK"}
    assert len(memory.events) <= 2  # it does not grow


def test_a_replay_counter_that_went_back_began_anew() -> None:
    memory = EventMemory()
    for t, count in enumerate((50.0, 50.0, 0.0, 3.0, None)):
        memory = remember(memory, float(t), count, keep_s=600)
    assert memory.replays == 3
