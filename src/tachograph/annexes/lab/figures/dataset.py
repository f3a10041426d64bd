"""Data set of a study: jobs, removals per filter, recorded samples, completeness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

import polars as pl

from tachograph.catalog.columns import must_exist
from tachograph.catalog.config import StudyFilters
from tachograph.catalog.counters import COUNTERS, Counter
from tachograph.catalog.errors import LakeError, NotFoundError, UsageError
from tachograph.catalog.units import plural, text
from tachograph.lake.filters import JobFilter, filter_jobs, filter_parts

# {reason: text}, in the order in which filters are counted
FILTER_REASONS: Mapping[str, str] = MappingProxyType(
    {
        "ambiguous_attribution": "its GPUs are not known",
        "still_running": "it had not ended",
        "no_samples": "it has no samples",
        "login_node": "it ran on a login node",
        "other_partition": "its partition is not studied",
        "staff_account": "its account is a staff account",
        "short": "it was too short",
        "idle": "its GPUs were idle",
    }
)


@dataclass(frozen=True, slots=True)
class Removal:
    """Effect of one filter: `jobs` it applies to; `removed` after earlier filters; `left`.

    `ignored`: it was switched off for this study and removed nothing.
    """

    reason: str
    sentence: str
    jobs: int
    removed: int
    left: int
    ignored: bool = False


@dataclass(frozen=True, slots=True)
class JobSet:
    """The jobs of a study, rows of job_summaries, and how they were selected.

    `recorded`: jobs of the lake; `chosen`: those left by the reader's choice, on which the filters
    then worked.
    """

    jobs: pl.DataFrame
    recorded: int
    chosen: int
    removals: tuple[Removal, ...]

    @property
    def left_out(self) -> int:
        """Jobs that the reader's choice left out."""
        return self.recorded - self.chosen


def choose_jobs(
    summaries: pl.DataFrame,
    findings: pl.DataFrame,
    wanted: JobFilter,
    *,
    filters: StudyFilters | None = None,
    no_filter: Sequence[str] = (),
) -> JobSet:
    """Return the selected jobs that no filter of the study leaves out.

    `filters`: as configured, for their sentences. `no_filter`: reasons that do not count; a job
    that has another one stays out. Errors: UsageError for a reason that does not exist;
    NotFoundError where no job is left, with the filters; LakeError where the lake holds no job.
    """
    must_exist(no_filter, tuple(FILTER_REASONS), what="filter", error=UsageError)
    selected = filter_jobs(summaries, findings, wanted)
    reasons = (
        selected.get_column("excluded")
        .str.split(",")
        .fill_null(pl.lit([], dtype=pl.List(pl.String)))
    )
    remaining = pl.Series([True], dtype=pl.Boolean).new_from_index(0, selected.height)
    removals = []
    for reason in _ordered_reasons(reasons):
        has, ignored = reasons.list.contains(reason), reason in no_filter
        removed = 0 if ignored else int((remaining & has).sum())
        remaining = remaining if ignored else remaining & ~has
        count = int(has.sum())
        sentence = _reason_sentence(reason, filters or StudyFilters())
        removals.append(
            Removal(reason, sentence, count, removed, int(remaining.sum()), ignored=ignored)
        )
    job_set = JobSet(selected.filter(remaining), summaries.height, selected.height, tuple(removals))
    if job_set.jobs.is_empty():
        raise _nothing(
            job_set,
            [
                name
                for name, alone in filter_parts(wanted)
                if filter_jobs(summaries, findings, alone).is_empty()
            ],
        )
    return job_set


def _reason_sentence(reason: str, filters: StudyFilters) -> str:
    """A filter as text, with its number."""
    match reason:
        case "short" if filters.min_elapsed_s:
            return f"it ran for less than {text(filters.min_elapsed_s, 's')}"
        case "idle" if filters.min_gpu_util_mean:
            return f"its mean utilisation is under {text(filters.min_gpu_util_mean, 'fraction')}"
        case _:
            return FILTER_REASONS.get(reason, reason)


def _ordered_reasons(reasons: pl.Series) -> list[str]:
    """All known reasons in their order, then those that only this lake has."""
    recorded = set(reasons.explode().drop_nulls())
    return [*FILTER_REASONS, *sorted(recorded - set(FILTER_REASONS))]


def _nothing(job_set: JobSet, alone: Sequence[str]) -> LakeError | NotFoundError:
    """Return the error for an empty study; `alone`: restrictions that leave no job by
    themselves.
    """
    if not job_set.recorded:
        return LakeError(
            "there is no job to study",
            do="ingest the accounting of the time of the samples, then `tachograph analyze`",
        )
    if not job_set.chosen:
        by_itself = f" (by itself already: {'; '.join(alone)})" if alone else ""
        return NotFoundError(
            (
                "no job is left to study: your choice leaves out all "
                f"{plural(job_set.recorded, 'job')}{by_itself}"
            ),
            do="leave out, or widen, what restricts it",
        )
    counts = [f"{removal.reason} {removal.jobs:,}" for removal in job_set.removals if removal.jobs]
    some = next(
        removal.reason for removal in job_set.removals if removal.jobs and not removal.ignored
    )
    outside = (
        f" ({job_set.left_out:,} more were left out by your options)" if job_set.left_out else ""
    )
    return NotFoundError(
        (
            f"no job is left to study: of {plural(job_set.chosen, 'job')}{outside} the filters "
            f"leave out {', '.join(counts)}"
        ),
        do=(
            f"let jobs back in with --no-filter {some}, or change [filters] and run `tachograph "
            "analyze`"
        ),
    )


LOW_COVERAGE = 0.8
UNKNOWN_MODEL = "not known"


@dataclass(frozen=True, slots=True)
class DatasetModel:
    """One GPU model: number of nodes, and of GPUs held by studied jobs."""

    model: str
    nodes: int
    gpus: int


@dataclass(frozen=True, slots=True)
class MeasuredCounter:
    """Number of studied jobs with a counter."""

    counter: str
    jobs: int


@dataclass(frozen=True, slots=True)
class RecordedSamples:
    """All samples of the lake: number, first and last time (UTC); None: unknown."""

    samples: int
    first: datetime | None = None
    last: datetime | None = None


@dataclass(frozen=True, slots=True)
class Dataset:
    """The data behind a study.

    `lake`: its location; "" for viewers who may not see it. `first`, `last`: of the studied jobs,
    UTC. `samples`, `gpu_hours`, `energy_j` are theirs; `energy_jobs` have an energy. Coverage:
    samples over expected samples; `coverage_low_jobs` have less than 0.8, of `coverage_jobs` with
    known coverage. `stale`: the configuration changed after the last analysis.
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
    models: tuple[DatasetModel, ...]
    samples: int
    recorded: RecordedSamples
    gpu_hours: float
    energy_j: float | None
    energy_jobs: int
    coverage_median: float | None
    coverage_jobs: int
    coverage_low_jobs: int
    counters: tuple[MeasuredCounter, ...]
    stale: bool = False

    @property
    def coverage_low_share(self) -> float | None:
        """Share of jobs with low coverage, of those in which it is known."""
        return self.coverage_low_jobs / self.coverage_jobs if self.coverage_jobs else None

    @property
    def never_measured(self) -> tuple[str, ...]:
        """Counters that no studied job has."""
        return tuple(recorded.counter for recorded in self.counters if not recorded.jobs)

    @property
    def partly_measured(self) -> tuple[MeasuredCounter, ...]:
        """Counters that some of the studied jobs have, not all."""
        return tuple(recorded for recorded in self.counters if 0 < recorded.jobs < self.jobs)


def describe_dataset(
    chosen: JobSet, gpus: pl.DataFrame, *, lake: str, recorded: RecordedSamples, stale: bool = False
) -> Dataset:
    """Return the description of a study's jobs; `gpus`: job_gpus (node, gpu, gpu_model)."""
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
        coverage_median=None
        if coverage.is_empty()
        else float(coverage.to_frame().select(pl.all().median()).item()),
        coverage_jobs=len(coverage),
        coverage_low_jobs=int((coverage < LOW_COVERAGE).sum()),
        counters=tuple(
            MeasuredCounter(counter.name, _jobs_with(jobs, counter)) for counter in COUNTERS
        ),
        stale=stale,
    )


def _models(units: pl.DataFrame) -> tuple[DatasetModel, ...]:
    by_model = (
        units.group_by("gpu_model")
        .agg(nodes=pl.col("node").n_unique(), gpus=pl.len())
        .sort("gpus", "gpu_model", descending=[True, False])
    )
    return tuple(
        DatasetModel(model, nodes, gpus)
        for model, nodes, gpus in by_model.select("gpu_model", "nodes", "gpus").rows()
    )


def _jobs_with(jobs: pl.DataFrame, counter: Counter) -> int:
    """Jobs with the counter measured; codes have no mean, power counts where sampled."""
    column = "power_w_sampled_mean" if counter.name == "power_w" else f"{counter.name}_max"
    return jobs.height - jobs.get_column(column).null_count()
