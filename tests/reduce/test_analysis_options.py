"""Every option of [analysis]: a job small enough for the head, once with and once without it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from in_memory import outcome
from madelake import configured, held, job, utc
from tachograph.catalog.config import AnalysisOptions
from tachograph.catalog.tables import OTHER_IMBALANCES

START = utc(23, 12)


def two_gpus(
    minutes: Sequence[tuple[float, float]],
    counter: str = "gpu_util",
    at: Sequence[float] = (0, 30),
    **option: Any,
) -> dict[str, Any]:
    """Summary of a job of two GPUs: each pair is their level for a minute, sampled at the
    seconds `at` of it.
    """
    samples = [
        {
            "t": START + timedelta(minutes=minute, seconds=second),
            "node": "n1",
            "gpu": gpu,
            counter: levels[gpu],
        }
        for minute, levels in enumerate(minutes)
        for gpu in range(2)
        for second in at
    ]
    jobs = [job("1", START, START + timedelta(minutes=len(minutes)), gpus=2)]
    configuration = configured(analysis=AnalysisOptions(**option))
    return outcome(samples, jobs, held("1", "n1", [0, 1]), configuration=configuration).jobs["1"]


def test_windows_in_which_all_is_zero() -> None:
    """Two minutes on one GPU alone (1 - 1/2), two minutes at zero: left out, or counted as 0."""
    levels = [(1.0, 0.0), (0.0, 0.0), (1.0, 0.0), (0.0, 0.0)]
    plain, notebooks = two_gpus(levels), two_gpus(levels, count_zero_windows=True)
    assert plain["spatial_imbalance"] == 0.5
    assert notebooks["spatial_imbalance"] == (0.5 + 0 + 0.5 + 0) / 4
    assert plain["spatial_zero_fraction"] == notebooks["spatial_zero_fraction"] == 2 / 4
    assert plain["spatial_windows"] == notebooks["spatial_windows"] == 4


def test_job_in_which_all_is_zero() -> None:
    plain, notebooks = (
        two_gpus([(0.0, 0.0)] * 3),
        two_gpus([(0.0, 0.0)] * 3, count_zero_windows=True),
    )
    assert plain["spatial_imbalance"] is None
    assert notebooks["spatial_imbalance"] == 0
    assert plain["spatial_zero_fraction"] == 1


def test_temporal_imbalance_of_an_idle_gpu() -> None:
    """GPU 1 never works: null for it, so the job has that of GPU 0; or 0, which is never the
    largest.
    """
    levels = [(1.0, 0.0), (0.5, 0.0)]
    assert two_gpus(levels)["temporal_imbalance"] == 1 - (1 + 0.5) / (2 * 1)
    assert two_gpus([(0.0, 0.0)] * 2)["temporal_imbalance"] is None
    assert two_gpus([(0.0, 0.0)] * 2, zero_temporal_imbalance=True)["temporal_imbalance"] == 0


def test_imbalance_of_other_counters() -> None:
    levels = [(1.0, 0.0), (0.5, 0.0)]
    for name in OTHER_IMBALANCES:
        asked = two_gpus(levels, name, imbalance_counters=(name,))
        assert asked[f"spatial_imbalance_{name}"] == 0.5
        assert asked[f"temporal_imbalance_{name}"] == 1 - 1.5 / 2
        assert asked["spatial_imbalance"] is None
        unasked = two_gpus(levels, name, imbalance_counters=("gpu_util",))
        assert unasked[f"spatial_imbalance_{name}"] is None
        assert unasked[f"temporal_imbalance_{name}"] is None


def test_imbalance_of_utilisation_is_always_there() -> None:
    row = two_gpus([(1.0, 0.0), (0.5, 0.0)], imbalance_counters=("sm_active",))
    assert (row["spatial_imbalance"], row["temporal_imbalance"]) == (0.5, 0.25)


def volume(silence_s: float, **option: Any) -> float | None:
    """Bytes of a job at 100 B/s, sampled for a minute every 10 s, then silent, then for a minute
    again.
    """
    times = [*range(0, 61, 10), *(60 + silence_s + 10 * i for i in range(7))]
    samples = [
        {
            "t": START + timedelta(seconds=second),
            "node": "n1",
            "gpu": 0,
            "pcie_tx_bytes_per_s": 100.0,
            "power_w": 50.0,
        }
        for second in times
    ]
    jobs = [job("1", START, START + timedelta(seconds=times[-1] + 10), gpus=1)]
    configuration = configured(analysis=AnalysisOptions(**option))
    found: float | None = outcome(
        samples, jobs, held("1", "n1", [0]), configuration=configuration
    ).jobs["1"]["pcie_tx_bytes"]
    return found


def test_gaps_are_not_integrated() -> None:
    """Three intervals of 10 s are no gap, more is one; the option moves the border."""
    assert volume(30) == 100 * (60 + 30 + 60)
    assert volume(31) == 100 * (60 + 60)
    assert volume(31, max_gap_intervals=4.0) == 100 * (60 + 31 + 60)
    assert volume(600) == 100 * (60 + 60)
