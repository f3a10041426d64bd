"""What must hold whatever the code does: identities of imbalance and energy, carried through to
what figures say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import polars as pl
import pytest

from in_memory import outcome
from jobframes import frame
from madelake import held, job, utc
from tachograph.annexes.lab.figures.numbers import FigureNumbers, Study
from tachograph.annexes.lab.figures.registry import find_figure, load_figure
from tachograph.catalog.config import AnalysisOptions
from tachograph.catalog.tables import JOB_SUMMARIES
from tachograph.pipeline.summaries import as_in_notebooks

STEP_S, SAMPLES = 10, 60
Level = Callable[[int, int], float]
CASES = [(g, k) for g in (2, 4, 8) for k in range(1, g + 1)]


def summaries(levels: Sequence[tuple[int, Level]], **counters: Level) -> pl.DataFrame:
    """Summaries of jobs of ten minutes, one per (GPUs, utilisation of GPU g at sample n), each
    on its own node.
    """
    start, rows, jobs, allocations = utc(1, 8), [], [], []
    end = start + timedelta(seconds=STEP_S * SAMPLES)
    for number, (gpus, level) in enumerate(levels):
        jobs.append(job(str(number), start, end, gpus=gpus))
        allocations += held(str(number), f"n{number}", range(gpus), start, end)
        for gpu in range(gpus):
            for n in range(SAMPLES):
                row = {
                    "node": f"n{number}",
                    "gpu": gpu,
                    "mig": None,
                    "t": start + timedelta(seconds=STEP_S * n),
                }
                row |= {"gpu_util": level(gpu, n), "energy_j": 0.0}
                rows.append(row | {name: value(gpu, n) for name, value in counters.items()})
    found = outcome(rows, jobs, allocations).jobs
    return frame(
        JOB_SUMMARIES,
        [found[str(number)] | {"job_key": str(number), "seq": 1} for number in range(len(levels))],
    )


def numbers(figure: str, jobs: pl.DataFrame) -> FigureNumbers:
    return load_figure(find_figure(figure)).compute(Study(jobs))


def near(value: float) -> Any:
    return pytest.approx(value, rel=1e-6, abs=1e-7)  # samples are single precision


@pytest.fixture(scope="module")
def k_of_g() -> pl.DataFrame:
    """Of each job's g GPUs the first k are busy at 0.8, then the same at 0.4."""

    def busy(k: int, level: float) -> Callable[[int, int], float]:
        return lambda gpu, n: level * (gpu < k)

    return summaries([(g, busy(k, level)) for level in (0.8, 0.4) for g, k in CASES])


def test_k_of_g_gpus(k_of_g: pl.DataFrame) -> None:
    """SI = 1 - k / g, which is at most 1 - 1 / g, at any level; the figure's median is theirs."""
    wanted = [1 - k / g for g, k in CASES] * 2
    for found, value in zip(k_of_g.get_column("spatial_imbalance"), wanted, strict=True):
        assert found == near(value)
    for found, gpus in k_of_g.select("spatial_imbalance", "gpus").iter_rows():
        assert found <= 1 - 1 / gpus + 1e-9
    facts = numbers("spatial_imbalance", k_of_g).facts
    ordered = sorted(wanted)
    assert facts["median"] == near(
        (ordered[len(ordered) // 2 - 1] + ordered[len(ordered) // 2]) / 2
    )
    assert facts["one_gpu_jobs"] == 2 * sum(k == 1 for _, k in CASES)
    assert facts["seen_jobs"] == len(wanted)


def test_on_for_a_share_of_the_time() -> None:
    """TI = 1 - d, whatever the level; constant use is steady."""
    shares = (0.1, 0.25, 0.5, 0.75, 1.0)
    levels = [
        (2, lambda gpu, n, d=d, v=v: v * (n < d * SAMPLES)) for v in (1.0, 0.3) for d in shares
    ]
    jobs = summaries(levels)
    for found, share in zip(jobs.get_column("temporal_imbalance"), shares * 2, strict=True):
        assert found == near(1 - share)
    assert numbers("temporal_imbalance", jobs).facts["median"] == near(0.5)


def test_scale_does_not_matter() -> None:
    """Half of everything is as uneven and as unsteady as everything."""
    shape = [[0.9, 0.2, 0.6], [0.1, 0.8, 0.4], [0.5, 0.5, 0.7]]
    whole, half = (
        summaries([(3, lambda gpu, n, s=s: s * shape[gpu][n % 3])]).row(0, named=True)  # type: ignore[misc]
        for s in (1.0, 0.5)
    )
    for name in ("spatial_imbalance", "temporal_imbalance"):
        assert whole[name] == near(half[name])
        assert whole[name] > 0.05
    assert whole["gpu_util_mean"] == near(2 * half["gpu_util_mean"])


def test_energy_of_constant_power() -> None:
    """n samples, 10 s apart, at P watts: the counter grows by P * 10 * (n - 1) J; over the run
    it is P * 10 * n.
    """
    watts = 250.0
    jobs = summaries(
        [(4, lambda gpu, n: 0.5)] * 3, energy_j=lambda gpu, n: 1e6 + watts * STEP_S * n
    )
    typed = jobs.with_columns(bound=pl.Series(["compute", "memory", "memory"]))
    grown, whole_j = watts * STEP_S * (SAMPLES - 1), 4 * watts * STEP_S * SAMPLES
    for row in typed.iter_rows(named=True):
        assert row["energy_j_mean"] == near(grown)
        assert row["energy_j"] == near(4 * grown)
        assert row["energy_j_estimated"] == near(whole_j)
        assert row["power_w_mean"] == near(watts)
    assert (
        as_in_notebooks(typed, AnalysisOptions()).get_column("energy_j").to_list()
        == [near(4 * grown)] * 3
    )
    facts = numbers("energy", typed).facts
    assert facts["typed_energy_kwh"] == near(3 * 4 * grown / 3.6e6)
    assert facts["memory_energy_kwh_share"] == near(2 / 3)
    assert (
        facts["compute_kwh_per_gpu_hour"] == facts["memory_kwh_per_gpu_hour"] == near(watts / 1000)
    )
