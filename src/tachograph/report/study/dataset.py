"""What a study is made of: when, which nodes and GPUs, how many jobs, samples, GPU-hours, how complete they are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import polars as pl

from tachograph.counters import COUNTERS, Counter
from tachograph.report.study.jobs import JobSet, Removal

LOW_COVERAGE = 0.8
UNKNOWN_MODEL = "not known"


@dataclass(frozen=True, slots=True)
class Model:
    """One GPU model: nodes that have it, GPUs of it that studied jobs held."""

    model: str
    nodes: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Measured:
    """In how many of the studied jobs a counter was measured."""

    counter: str
    jobs: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the lake's samples are, all jobs and none: how many, from when to when (UTC). None: not known."""

    samples: int
    first: datetime | None = None
    last: datetime | None = None


@dataclass(frozen=True, slots=True)
class Dataset:
    """The data behind a study.

    `first`, `last`: of the studied jobs, UTC. `samples`, `gpu_hours`, `energy_j` are theirs; `energy_jobs` have an
    energy. Coverage: samples over those expected; `coverage_low_jobs` have less than 0.8, of `coverage_jobs` in which
    it is known. `stale`: the configuration changed after the last analysis.
    """

    lake: str
    first: datetime
    last: datetime
    recorded_jobs: int
    chosen_jobs: int
    removals: tuple[Removal, ...]
    jobs: int
    users: int
    nodes: int
    gpus: int
    models: tuple[Model, ...]
    samples: int
    recorded: Recorded
    gpu_hours: float
    energy_j: float | None
    energy_jobs: int
    coverage_median: float | None
    coverage_jobs: int
    coverage_low_jobs: int
    counters: tuple[Measured, ...]
    stale: bool = False

    @property
    def coverage_low_share(self) -> float | None:
        """Share of jobs with low coverage, of those in which it is known."""
        return self.coverage_low_jobs / self.coverage_jobs if self.coverage_jobs else None

    @property
    def never_measured(self) -> tuple[str, ...]:
        """Counters that no studied job has."""
        return tuple(one.counter for one in self.counters if not one.jobs)

    @property
    def partly_measured(self) -> tuple[Measured, ...]:
        """Counters that some of the studied jobs have, not all."""
        return tuple(one for one in self.counters if 0 < one.jobs < self.jobs)


def describe_dataset(
    chosen: JobSet, gpus: pl.DataFrame, *, lake: str, recorded: Recorded, stale: bool = False
) -> Dataset:
    """Return the description of the jobs of a study; `gpus` are rows of their job_gpus (node, gpu, gpu_model)."""
    jobs = chosen.jobs
    coverage = jobs.get_column("coverage").drop_nulls()
    energy = jobs.get_column("energy_j").drop_nulls()
    units = gpus.select("node", "gpu", pl.col("gpu_model").fill_null(UNKNOWN_MODEL)).unique()
    return Dataset(
        lake=lake,
        first=jobs.select(pl.col("start").min()).item(),
        last=jobs.select(pl.col("as_of").max()).item(),
        recorded_jobs=chosen.recorded,
        chosen_jobs=chosen.chosen,
        removals=chosen.removals,
        jobs=jobs.height,
        users=jobs.get_column("user").drop_nulls().n_unique(),
        nodes=units.get_column("node").n_unique(),
        gpus=units.select("node", "gpu").n_unique(),
        models=_models(units),
        samples=int(jobs.get_column("samples").sum()),
        recorded=recorded,
        gpu_hours=float(jobs.get_column("gpu_hours").sum()),
        energy_j=float(energy.sum()) if len(energy) else None,
        energy_jobs=len(energy),
        coverage_median=None if coverage.is_empty() else float(coverage.to_frame().select(pl.all().median()).item()),
        coverage_jobs=len(coverage),
        coverage_low_jobs=int((coverage < LOW_COVERAGE).sum()),
        counters=tuple(Measured(counter.name, _jobs_with(jobs, counter)) for counter in COUNTERS),
        stale=stale,
    )


def _models(units: pl.DataFrame) -> tuple[Model, ...]:
    found = (
        units.group_by("gpu_model")
        .agg(nodes=pl.col("node").n_unique(), gpus=pl.len())
        .sort("gpus", "gpu_model", descending=[True, False])
    )
    return tuple(Model(model, nodes, gpus) for model, nodes, gpus in found.select("gpu_model", "nodes", "gpus").rows())


def _jobs_with(jobs: pl.DataFrame, counter: Counter) -> int:
    """Jobs in which the counter was measured; codes have no mean, power is measured where it was sampled."""
    column = "power_w_sampled_mean" if counter.name == "power_w" else f"{counter.name}_max"
    return jobs.height - jobs.get_column(column).null_count()
