"""Which jobs a study is about: those of the lake, less what the reader left out, less what each filter leaves out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import polars as pl

from tachograph.config import Filters
from tachograph.errors import LakeError, NotFoundError
from tachograph.report.columns import must_exist
from tachograph.report.filters import JobFilter, filter_jobs, parts
from tachograph.units import plural, text

# {reason: what it says of a job}, in the order in which filters are counted
REASONS: Mapping[str, str] = MappingProxyType(
    {
        "ambiguous_attribution": "it is not known which GPUs were its own",
        "still_running": "it had not ended",
        "no_samples": "no sample belongs to it",
        "login_node": "it ran on a login node",
        "other_partition": "its partition is not one of those studied",
        "staff_account": "its account is the staff's",
        "short": "it was too short",
        "idle": "its GPUs were idle",
    }
)


@dataclass(frozen=True, slots=True)
class Removal:
    """What one filter did: `jobs` it applies to, of those chosen; `removed` by it after those before; `left` then.

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
    """The jobs of a study, rows of job_summaries, and how they were come by.

    `recorded`: jobs of the lake; `chosen`: those left by the reader's choice, on which the filters then worked.
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
    filters: Filters | None = None,
    no_filter: Sequence[str] = (),
) -> JobSet:
    """Return the jobs that are wanted and that no filter of the study leaves out.

    `filters`: as configured, to say what they mean. `no_filter`: reasons that do not count; a job that has another one
    stays out.
    Errors: NotFoundError for a reason that does not exist, and where no job is left, telling what removed them;
    LakeError where the lake holds no job.
    """
    must_exist(no_filter, tuple(REASONS), what="filter")
    chosen = filter_jobs(summaries, findings, wanted)
    reasons = chosen.get_column("excluded").str.split(",").fill_null(pl.lit([], dtype=pl.List(pl.String)))
    left = pl.Series([True], dtype=pl.Boolean).new_from_index(0, chosen.height)
    removals = []
    for reason in _in_order(reasons):
        has, ignored = reasons.list.contains(reason), reason in no_filter
        removed = 0 if ignored else int((left & has).sum())
        left = left if ignored else left & ~has
        count = int(has.sum())
        sentence = _sentence(reason, filters or Filters())
        removals.append(Removal(reason, sentence, count, removed, int(left.sum()), ignored=ignored))
    found = JobSet(chosen.filter(left), summaries.height, chosen.height, tuple(removals))
    if found.jobs.is_empty():
        raise _nothing(
            found, [name for name, alone in parts(wanted) if filter_jobs(summaries, findings, alone).is_empty()]
        )
    return found


def _sentence(reason: str, filters: Filters) -> str:
    """What a filter says of a job, with its number."""
    match reason:
        case "short" if filters.min_elapsed_s:
            return f"it ran for less than {text(filters.min_elapsed_s, 's')}"
        case "idle" if filters.min_gpu_util_mean:
            return f"its mean utilisation is under {text(filters.min_gpu_util_mean, 'fraction')}"
        case _:
            return REASONS.get(reason, reason)


def _in_order(reasons: pl.Series) -> list[str]:
    """All known reasons in their order, then those that only this lake knows."""
    seen = set(reasons.explode().drop_nulls())
    return [*REASONS, *sorted(seen - set(REASONS))]


def _nothing(found: JobSet, alone: Sequence[str]) -> LakeError | NotFoundError:
    """What to tell where no job is left; `alone`: restrictions of which each by itself leaves none."""
    if not found.recorded:
        return LakeError(
            "there is no job to study", do="ingest the accounting of the time of the samples, then `tachograph analyze`"
        )
    if not found.chosen:
        each = f" (by itself already: {'; '.join(alone)})" if alone else ""
        return NotFoundError(
            f"no job is left to study: your choice leaves out all {plural(found.recorded, 'job')}{each}",
            do="leave out, or widen, what restricts it",
        )
    told = [f"{removal.reason} {removal.jobs:,}" for removal in found.removals if removal.jobs]
    some = next(removal.reason for removal in found.removals if removal.jobs and not removal.ignored)
    outside = f" ({found.left_out:,} more were left out by your options)" if found.left_out else ""
    return NotFoundError(
        f"no job is left to study: of {plural(found.chosen, 'job')}{outside} the filters leave out {', '.join(told)}",
        do=f"let jobs back in with --no-filter {some}, or change [filters] and run `tachograph analyze`",
    )
