"""Identities that hold for any job (spec of the metrics): imbalance, roofline labels, energy,
accuracy of sums.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from in_memory import Outcome, outcome
from madelake import configured, held, job, utc
from tachograph.catalog.config import AnalysisOptions

START = utc(23, 23, 40)
FEW = settings(max_examples=settings().max_examples // 7)
level = st.integers(0, 64).map(lambda n: n / 64)  # exact in single precision


def made_job(
    series: Sequence[dict[str, Sequence[float | None]]],
    *,
    analysis: AnalysisOptions | None = None,
    step: float = 10.0,
    seconds: float | None = None,
    **devices: Any,
) -> Outcome:
    """One job on node n1: of GPU i the values of some counters, one per `step` seconds from its
    start.
    """
    samples = [
        {"t": START + timedelta(seconds=step * i), "node": "n1", "gpu": gpu}
        | {name: values[i] for name, values in counters.items()}
        for gpu, counters in enumerate(series)
        for i in range(len(next(iter(counters.values()))))
    ]
    length = seconds or step * max(len(next(iter(counters.values()))) for counters in series)
    jobs = [job("1", START, START + timedelta(seconds=length), gpus=len(series))]
    configuration = configured(analysis=analysis)
    found = [{"node": "n1", "gpu": gpu, **devices} for gpu in range(len(series))]
    return outcome(
        samples,
        jobs,
        held("1", "n1", range(len(series))),
        devices=found,
        configuration=configuration,
    )


def summary(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return made_job(*args, **kwargs).jobs["1"]


def close(found: float | None, wanted: float, relative: float = 1e-12) -> bool:
    return found is not None and math.isclose(found, wanted, rel_tol=relative, abs_tol=1e-12)


busy = st.lists(st.lists(level, min_size=144, max_size=144), min_size=2, max_size=4)


@FEW
@given(busy, st.sampled_from([60, 300, 900]))
def test_bounds_and_scale_of_imbalance(levels: list[list[float]], window_s: int) -> None:
    """144 samples at 12.5 s fill 30 minutes, over midnight, so that windows of 1, 5 and 15
    minutes are equal.
    """
    analysis = AnalysisOptions(window_s=window_s)
    row = summary([{"gpu_util": series} for series in levels], analysis=analysis, step=12.5)
    half = summary(
        [{"gpu_util": [v / 2 for v in series]} for series in levels], analysis=analysis, step=12.5
    )
    for name in ("spatial_imbalance", "temporal_imbalance"):
        assert row[name] == half[name] if row[name] is None else close(half[name], row[name])
    if row["spatial_imbalance"] is not None:
        assert -1e-12 <= row["spatial_imbalance"] <= 1 - 1 / len(levels) + 1e-12
    if row["temporal_imbalance"] is not None:
        least = min(math.fsum(series) / len(series) for series in levels if any(series))
        assert -1e-12 <= row["temporal_imbalance"] <= 1 - least + 1e-12


@FEW
@given(busy)
def test_spatial_imbalance_and_mean(levels: list[list[float]]) -> None:
    """Complete samples, equal windows, none all zero: SI <= 1 - mean utilisation."""
    levels[0] = [max(value, 1 / 64) for value in levels[0]]
    row = summary(
        [{"gpu_util": series} for series in levels],
        analysis=AnalysisOptions(window_s=300),
        step=12.5,
    )
    assert row["spatial_windows"] == 6
    assert row["spatial_imbalance"] <= 1 - row["gpu_util_mean"] + 1e-12


@FEW
@given(st.integers(50, 700), st.integers(2, 300), st.integers(0, 9))
def test_energy_of_constant_power(watts: int, n: int, late: int) -> None:
    """n samples 10 s apart: the counter itself has grown by P x 10 x (n - 1); over the run it is
    P x seconds.
    """
    counter = [1e6 + watts * 10 * i for i in range(n)]
    found = made_job([{"energy_j": counter, "power_w": [float(watts)] * n}], seconds=10 * n + late)
    gpu, row = found.gpus["1", "n1", 0, None], found.jobs["1"]
    assert gpu["energy_j_mean"] == row["energy_j_max"] == watts * 10 * (n - 1)
    assert close(row["energy_j"], watts * 10 * (n - 1))
    assert close(row["energy_j_estimated"], watts * (10 * n + late))
    assert row["energy_source"] == "counter"
    assert close(row["power_w_mean"], watts)
    integrated = summary([{"power_w": [float(watts)] * n}], seconds=10 * n + late)
    assert close(integrated["energy_j"], watts * 10 * (n - 1))
    assert close(integrated["energy_j_estimated"], watts * (10 * n + late))
    assert integrated["energy_source"] == "power"


def test_label_needs_every_pipe_that_is_measured() -> None:
    """The second sample lacks FP32, which the GPU does measure: it is not labelled for FP64
    either.
    """
    row = summary(
        [
            {
                "fp64_active": [0.5, 0.5, 0.1],
                "fp32_active": [0.0, None, 0.0],
                "dram_active": [0.25, 0.25, 0.25],
            }
        ]
    )
    assert (row["compute_fraction"], row["memory_fraction"], row["bound"]) == (0.5, 0.5, None)
    assert row["memory_fraction_fp32"] == 1.0
    assert row["bound_fp16"] is None
    assert row["idle_fraction_fp16"] is None


def test_nothing_is_labelled_where_a_side_is_never_measured() -> None:
    for series in ({"dram_active": [0.5] * 4}, {"fp64_active": [0.5] * 4}):
        row = summary([series])
        names = ("bound", "compute_fraction", "memory_fraction", "idle_fraction")
        assert [row[name] for name in names] == [None] * 4


@FEW
@given(st.lists(st.tuples(level, level), min_size=1, max_size=80))
def test_fp64_label_is_fp64_not_below_dram(pairs: list[tuple[float, float]]) -> None:
    row = summary(
        [{"fp64_active": [f for f, _ in pairs], "dram_active": [d for _, d in pairs]}],
        model="A100-SXM4-40GB",
    )
    working = [(f, d) for f, d in pairs if f > 0]
    compute = sum(f >= d for f, d in working)
    if not working:
        assert row["compute_fraction"] is None
        assert row["bound"] is None
    else:
        assert close(row["compute_fraction"], compute / len(working))
        majority = (
            "compute"
            if 2 * compute > len(working)
            else "memory"
            if 2 * compute < len(working)
            else None
        )
        assert row["bound"] == majority
    assert close(row["idle_fraction"], 1 - len(working) / len(pairs))
    assert sum(row["intensity_histogram"] or [0]) == sum(f > 0 and d > 0 for f, d in pairs)


single = st.floats(0, 3e9, width=32).filter(lambda v: v == 0 or v > 1e-30)


@FEW
@given(st.lists(single, min_size=1, max_size=400), st.floats(0, 1, width=32))
def test_sums_are_those_of_exact_addition(values: list[float], tiny: float) -> None:
    """Rates over 39 orders of magnitude, the greatest ones first, and many small ones behind
    them.
    """
    ordered = sorted(values, reverse=True) + [tiny] * 200
    assert all(struct.unpack("f", struct.pack("f", value))[0] == value for value in ordered)
    row = summary([{"pcie_tx_bytes_per_s": ordered, "nvlink_tx_bytes_per_s": ordered[::-1]}])
    exact = math.fsum(ordered) / len(ordered)
    assert close(row["pcie_tx_bytes_per_s_mean"], exact, 1e-9)
    assert close(row["nvlink_tx_bytes_per_s_mean"], exact, 1e-9)
    area = math.fsum((a + b) / 2 * 10 for a, b in pairwise(ordered))
    assert close(row["pcie_tx_bytes"], area, 1e-9)
