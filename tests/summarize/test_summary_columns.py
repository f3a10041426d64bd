"""What summaries say beside the metrics: exclusions, coverage, pipes, volumes, coarse times,
devices.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pytest

from in_memory import Outcome, outcome
from jobframes import frame, summary
from madelake import configured, held, job, utc
from tachograph.catalog.config import AnalysisOptions, Configuration, NodeOptions, StudyFilters
from tachograph.catalog.tables import JOB_SUMMARIES, RATE_VOLUMES
from tachograph.pipeline.gpu_inventory import gpu_facts
from tachograph.pipeline.summaries import LEAST_POPULATION, used_pipes

START = utc(23, 12)


def made(
    seconds: float = 600,
    *,
    gpus: int = 2,
    times: list[float] | None = None,
    configuration: Configuration | None = None,
    end: datetime | None = None,
    row: dict[str, Any] | None = None,
    **levels: Any,
) -> Outcome:
    """A job on GPUs of n1: constant levels every 10 s, or at the given seconds."""
    given = times if times is not None else [10.0 * i for i in range(int(seconds // 10))]
    values = levels or {"gpu_util": 0.5}
    samples = [
        {"t": START + timedelta(seconds=s), "node": "n1", "gpu": gpu, **values}
        for gpu in range(gpus)
        for s in given
    ]
    jobs = [
        job("1", START, end or START + timedelta(seconds=seconds), gpus=gpus, node_list="n1")
        | (row or {})
    ]
    return outcome(
        samples, jobs, held("1", "n1", range(gpus)), configuration=configuration, now=utc(24)
    )


def first(found: Outcome) -> dict[str, Any]:
    return found.jobs["1"]


NO_LIMITS = configured(filters=StudyFilters(min_elapsed_s=0, min_gpu_util_mean=0))
ALL_FILTERS = StudyFilters(gpu_partitions=("gpu",), staff_accounts=("staff",), login_nodes=("n1",))


@pytest.mark.parametrize(
    ("reason", "given"),
    [
        (None, {}),
        ("short", {"seconds": 179}),
        (None, {"seconds": 180}),
        ("idle", {"gpu_util": 0.009}),
        (None, {"gpu_util": 0.011}),
        (
            "other_partition,login_node",
            {"row": {"partition": "debug"}, "configuration": configured(filters=ALL_FILTERS)},
        ),
        (
            "staff_account,login_node",
            {"row": {"account": "staff"}, "configuration": configured(filters=ALL_FILTERS)},
        ),
        ("login_node", {"configuration": configured(filters=StudyFilters(login_nodes=("n1",)))}),
        ("still_running", {"row": {"end": None, "elapsed_s": None, "state": "RUNNING"}}),
        ("short,idle", {"seconds": 100, "gpu_util": 0.0}),
        (None, {"seconds": 10, "gpu_util": 0.0, "configuration": NO_LIMITS}),
        (None, {"power_w": 100.0}),  # utilisation that was not measured is no reason
    ],
)
def test_exclusions(reason: str | None, given: dict[str, Any]) -> None:
    assert first(made(**given))["excluded"] == reason


def test_exclusion_of_ambiguous_and_silent_jobs() -> None:
    jobs = [
        job("1", START, START + timedelta(hours=1), gpus=1),
        job("2", START, START + timedelta(hours=1), gpus=2),
    ]
    allocations = [*held("1", "n1"), *held("2", "n2", [0, 1])]
    devices = [{"node": node, "gpu": gpu} for node in ("n1", "n2") for gpu in range(2)]
    found = outcome([], jobs, allocations, devices=devices).jobs
    assert {name: row["excluded"] for name, row in found.items()} == {
        "1": "ambiguous_attribution",
        "2": "no_samples",
    }
    assert (found["2"]["samples"], found["2"]["coverage"], found["2"]["gpus_seen"]) == (0, 0.0, 0)
    assert (found["2"]["gpu_util_mean"], found["2"]["gpus_never_used"], found["2"]["energy_j"]) == (
        None,
        None,
        None,
    )
    assert found["2"]["gpu_hours"] == 2


@pytest.mark.parametrize(
    ("times", "coverage"),
    [
        ([10.0 * i for i in range(60)], 1.0),
        ([10.0 * i for i in range(30)], 0.5),  # it stopped
        ([10.0 * i for i in range(60) if i % 4], 0.75),
        ([10.0 * i + 0.3 * (i % 2) for i in range(60)], 1.0),  # jitter
        ([0.0], None),  # one sample: no interval, so nobody knows how many were to be expected
    ],
)
def test_coverage(times: list[float], coverage: float | None) -> None:
    row = first(made(times=times))
    assert row["coverage"] == (None if coverage is None else pytest.approx(coverage, rel=0.02))
    assert row["samples"] == 2 * len(times)
    assert row["interval_s"] == (pytest.approx(10, rel=0.04) if len(times) > 1 else None)


def test_coverage_counts_gpus_without_samples() -> None:
    """Two GPUs held, one of them silent: half."""
    samples = [
        {"t": START + timedelta(seconds=10 * i), "node": "n1", "gpu": 0, "gpu_util": 0.5}
        for i in range(60)
    ]
    jobs = [job("1", START, START + timedelta(seconds=600), gpus=2)]
    found = outcome(samples, jobs, held("1", "n1", [0, 1]))
    row = first(found)
    assert (row["coverage"], row["gpus"], row["gpus_seen"], row["gpus_never_used"]) == (
        0.5,
        2,
        1,
        0,
    )
    assert row["spatial_imbalance"] is None  # of one GPU there is none
    assert row["gpu_util_mean"] == 0.5  # a mean is of what was measured
    silent = found.gpus["1", "n1", 1, None]
    assert (silent["samples"], silent["first_t"], silent["gpu_util_mean"]) == (0, None, None)


def test_volume_of_what_was_not_measured_is_null() -> None:
    assert [first(made())[volume] for volume in RATE_VOLUMES.values()] == [None] * 4
    # One sample spans nothing.
    assert first(made(times=[0.0], pcie_tx_bytes_per_s=5.0))["pcie_tx_bytes"] is None


def test_times_to_the_minute() -> None:
    """Accounted 90 s between 12:00 and 12:01: energy and mean power are over the 90 s, samples
    those in between.
    """
    row = {"time_precision_s": 60.0, "elapsed_s": 90.0}
    found = first(made(60, gpus=1, row=row, power_w=200.0, times=[10.0 * i for i in range(9)]))
    assert found["elapsed_s"] == 90
    assert found["samples"] == 6
    assert (found["energy_j"], found["energy_j_estimated"]) == (
        pytest.approx(200 * 50),
        pytest.approx(200 * 90),
    )
    assert found["power_w_mean"] == pytest.approx(200)
    assert found["gpu_hours"] == 90 / 3600
    fine = first(made(60, gpus=1, row=row | {"time_precision_s": 0.0}, power_w=200.0))
    assert (fine["energy_j"], fine["energy_j_estimated"]) == (
        pytest.approx(200 * 50),
        pytest.approx(200 * 60),
    )


def test_run_without_elapsed_is_as_long_as_its_times() -> None:
    assert first(made(row={"elapsed_s": None}))["elapsed_s"] == 600


def test_gpus_of_a_job_whose_accounting_names_none() -> None:
    row = first(made(row={"gpus": None}))
    assert (row["gpus"], row["gpu_hours"]) == (2, 2 * 600 / 3600)


def test_models_and_capacity() -> None:
    """Without a measured capacity the catalogue's counts; two models are joined."""
    models = configured(
        nodes=NodeOptions(models={"n1": "NVIDIA A100-SXM4-40GB", "n2": "NVIDIA H100 80GB HBM3"})
    )
    samples = [
        {"t": START + timedelta(seconds=10 * i), "node": node, "gpu": 0, "hbm_used_mib": 20_480.0}
        for node in ("n1", "n2")
        for i in range(6)
    ]
    jobs = [job("1", START, START + timedelta(seconds=60), gpus=2)]
    allocations = [*held("1", "n1", [0]), *held("1", "n2", [0])]
    row = first(outcome(samples, jobs, allocations, configuration=models))
    assert row["gpu_model"] == "A100 SXM 40GB+H100 SXM 80GB"
    assert row["hbm_mib"] == 40_960
    assert row["hbm_peak_fraction"] == 0.5
    unknown = first(outcome(samples, jobs, allocations))
    assert (unknown["gpu_model"], unknown["hbm_mib"], unknown["hbm_peak_fraction"]) == (
        None,
        None,
        None,
    )


def test_a_reported_capacity_counts_before_the_catalogue_and_that_before_used_plus_free() -> None:
    units = pl.DataFrame(
        {
            "node": ["n1", "n1", "n1"],
            "gpu": pl.Series([0, 1, 2], dtype=pl.Int16),
            "mig": pl.Series([None, None, 1], dtype=pl.Int16),
            "model": ["NVIDIA A100-SXM4-40GB"] * 3,
            "mig_profile": ["", None, "2g.10gb"],
            "hbm_mib": [40_441.0, None, None],
            "usable_mib": [39_900.0, 40_018.0, 9_856.0],
        }
    )
    facts, _ = gpu_facts(units)
    assert facts.get_column("hbm_mib").to_list() == [40_441.0, 40_960.0, 9_856.0]
    assert facts.get_column("gpu_model").to_list() == ["A100 SXM 40GB"] * 3
    assert facts.get_column("mig_share").to_list() == [1.0, 1.0, 2 / 7]


def summaries(*means: tuple[float | None, float | None]) -> pl.DataFrame:
    """Summaries with means of FP64 and tensor."""
    rows = [
        summary(job_key=f"c:{i}:1", job_id=str(i), fp64_active_mean=fp64, tensor_active_mean=tensor)
        for i, (fp64, tensor) in enumerate(means)
    ]
    return frame(JOB_SUMMARIES, rows)


def pipes(found: pl.DataFrame) -> list[list[str] | None]:
    return found.get_column("pipes").to_list()


def test_pipes_above_the_threshold() -> None:
    made_up = summaries((0.5, 0.0), (0.005, 0.006), (None, 0.1), (None, None), (0.0, 0.0))
    found = used_pipes(made_up, made_up, analysis=AnalysisOptions())
    assert pipes(found) == [["fp64"], ["tensor"], ["tensor"], None, []]


def test_threshold_is_an_option() -> None:
    made_up = summaries((0.5, 0.02), (0.05, 0.2))
    found = used_pipes(made_up, made_up, analysis=AnalysisOptions(pipe_threshold=0.1))
    assert pipes(found) == [["fp64"], ["tensor"]]


def test_threshold_is_at_least_the_fifth_percentile() -> None:
    """FP64 means 0.001, 0.002, ... 0.2: the fifth percentile is 0.001 + 0.05 x 199 x 0.001 =
    0.01095.
    """
    population = summaries(*((0.001 * (i + 1), None) for i in range(200)))
    some = summaries((0.0109, None), (0.011, None))
    assert pipes(used_pipes(some, population, analysis=AnalysisOptions())) == [[], ["fp64"]]
    assert pipes(used_pipes(some, population, analysis=AnalysisOptions(pipe_percentile=False))) == [
        ["fp64"],
        ["fp64"],
    ]


def test_few_jobs_have_no_percentile() -> None:
    few = summaries(*((0.5 + 0.001 * i, None) for i in range(LEAST_POPULATION - 1)))
    assert pipes(used_pipes(few, few, analysis=AnalysisOptions())) == [["fp64"]] * few.height
    many = summaries(*((0.5 + 0.001 * i, None) for i in range(LEAST_POPULATION)))
    assert pipes(used_pipes(many, many, analysis=AnalysisOptions()))[:5] == [[]] * 5


def test_pipes_of_no_jobs() -> None:
    assert used_pipes(summaries(), summaries(), analysis=AnalysisOptions()).height == 0


def powered(power_w: list[float | None], **others: float) -> dict[str, Any]:
    """A job on one GPU, a value of power every 10 s."""
    samples = [
        {"t": START + timedelta(seconds=10 * i), "node": "n1", "gpu": 0, "power_w": value, **others}
        for i, value in enumerate(power_w)
    ]
    jobs = [job("1", START, START + timedelta(seconds=600), gpus=1, node_list="n1")]
    return first(outcome(samples, jobs, held("1", "n1", range(1)), now=utc(24)))


def test_a_counter_that_stands_still_is_not_believed() -> None:
    row = powered([300.0] * 60, energy_j=0.0)
    assert row["energy_source"] == "power"
    assert row["energy_j_estimated"] == pytest.approx(300.0 * 600, rel=1e-6)
