"""The description of the data of a study, counted by hand."""

from __future__ import annotations

from datetime import timedelta

import polars as pl
import pytest

from jobframes import START, frame, summary
from tachograph.annexes.lab.figures.dataset import (
    Dataset,
    DatasetModel,
    RecordedSamples,
    choose_jobs,
    describe_dataset,
)
from tachograph.catalog.counters import COUNTERS
from tachograph.catalog.tables import FINDINGS, JOB_SUMMARIES
from tachograph.lake.filters import JobFilter


def dataset(
    *jobs: dict[str, object], gpus: list[tuple[str, int, str | None]] | None = None
) -> Dataset:
    rows = [
        summary(job_key=f"c:{place}:1", job_id=str(place), **job) for place, job in enumerate(jobs)
    ]
    chosen = choose_jobs(frame(JOB_SUMMARIES, rows), FINDINGS.empty(), JobFilter())
    units = pl.DataFrame(
        gpus or [],
        schema={"node": pl.String, "gpu": pl.Int16, "gpu_model": pl.String},
        orient="row",
    )
    return describe_dataset(chosen, units, lake="somewhere", recorded=RecordedSamples(1000))


def test_sums_and_shares() -> None:
    found = dataset(
        {"user": "a", "coverage": 0.5, "energy_j": 10.0, "samples": 7, "gpu_util_max": 0.5, "elapsed_s": 3600.0},
        {"user": "b", "coverage": 1.0, "samples": 5, "gpu_util_max": 1.0, "power_w_sampled_mean": 90.0},
        {"user": "a", "coverage": 0.8, "energy_j": 32.0, "samples": 8, "xid_max": 31.0},
        {"user": None, "excluded": "short", "samples": 100, "mem_temp_c_max": 50.0},
        gpus=[
            ("n1", 0, "A40"), ("n1", 0, "A40"), ("n1", 1, "A40"), ("n2", 0, None),
            ("n3", 0, "H200"), ("n4", 0, "H200"), ("n4", 1, "H200"),
        ],
    )  # fmt: skip
    assert (found.recorded_jobs, found.chosen_jobs, found.jobs, found.users) == (4, 4, 3, 2)
    assert (found.samples, found.energy_j, found.energy_jobs) == (20, 42.0, 2)
    assert found.gpu_hours == 4 * 1 + 4 * 2 + 4 * 2
    assert (found.coverage_median, found.coverage_jobs, found.coverage_low_jobs) == (0.8, 3, 1)
    assert found.coverage_low_share == pytest.approx(1 / 3)
    assert (found.nodes, found.gpus) == (4, 6)
    assert found.models == (
        DatasetModel("H200", 2, 3),
        DatasetModel("A40", 1, 2),
        DatasetModel("not known", 1, 1),
    )
    assert (found.first, found.last) == (START, START + timedelta(hours=2))


def test_counters_nobody_measured_are_named() -> None:
    found = dataset({"gpu_util_max": 0.5, "power_w_sampled_mean": 90.0}, {"gpu_util_max": 0.0})
    assert {one.counter: one.jobs for one in found.partly_measured} == {"power_w": 1}
    assert "gpu_util" not in found.never_measured
    assert len(found.never_measured) == len(COUNTERS) - 2


def test_what_nobody_measured_is_not_zero() -> None:
    found = dataset({"samples": None})
    assert (found.energy_j, found.coverage_median, found.coverage_low_share) == (None, None, None)
    assert (found.nodes, found.gpus, found.models) == (0, 0, ())
