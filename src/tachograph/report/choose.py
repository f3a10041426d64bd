"""Which run of which job a person means by an id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from tachograph.errors import NotFoundError, UsageError
from tachograph.units import plural

_LISTED = 8
_BATCH_STEPS = (".batch", ".extern", ".interactive")


@dataclass(frozen=True, slots=True)
class ChosenJob:
    """The row of job_summaries that is meant, and those of the job's other runs (requeued), latest first."""

    row: Mapping[str, Any]
    other_runs: tuple[Mapping[str, Any], ...] = ()


def choose_job(
    summaries: pl.DataFrame, wanted: str, *, cluster: str | None = None, run: int | None = None
) -> ChosenJob:
    """Return the job called `wanted`: a raw id, an id as people write it (123_4, 123+1), or a job_key.

    A step (123.0, 123.batch) means its job. Of several runs the latest, or the `run`-th (1 is the first).
    Errors: NotFoundError for an unknown id, and for an array or heterogeneous job as a whole, naming its parts;
    UsageError when the id exists on several clusters, or there are not so many runs.
    """
    name = _without_step(wanted.strip())
    rows = summaries if cluster is None else summaries.filter(pl.col("cluster") == cluster)
    exact = rows.filter((pl.col("display_id") == name) | (pl.col("job_key") == name))
    parts = rows.filter((pl.col("array_job_id") == name) | (pl.col("het_job_id") == name))
    found = exact if exact.height else rows.filter(pl.col("job_id") == name)
    if not exact.height and (_names(parts) - _names(found)):
        raise _whole(name, parts)
    if found.is_empty():
        of = "" if cluster is None else f" of cluster {cluster!r}"
        raise NotFoundError(f"no job {wanted!r}{of}", do="`tachograph jobs` lists the jobs that were analysed")
    clusters = sorted({str(value) for value in found["cluster"].drop_nulls()})
    if len(clusters) > 1:
        raise UsageError(f"job {name} exists on clusters {', '.join(clusters)}", do="say which cluster")
    runs = list(found.sort("submit", "start", nulls_last=False).iter_rows(named=True))
    if run is not None and not 1 <= run <= len(runs):
        raise UsageError(f"job {name} has {plural(len(runs), 'run')}, not {run}")
    chosen = len(runs) - 1 if run is None else run - 1
    return ChosenJob(runs[chosen], tuple(reversed([other for place, other in enumerate(runs) if place != chosen])))


def _without_step(name: str) -> str:
    base, dot, step = name.rpartition(".")
    return base if dot and (step.isdigit() or f".{step}" in _BATCH_STEPS) else name


def _names(rows: pl.DataFrame) -> set[str]:
    return set(rows.select(pl.coalesce("display_id", "job_id")).to_series())


def _whole(name: str, parts: pl.DataFrame) -> NotFoundError:
    ids: Sequence[str] = sorted(_names(parts), key=lambda part: (len(part), part))
    listed = ", ".join(ids[:_LISTED]) + (f" and {len(ids) - _LISTED} more" if len(ids) > _LISTED else "")
    array = parts["array_job_id"].drop_nulls().len() > 0
    return NotFoundError(
        f"{name} is {'an array' if array else 'a heterogeneous job'}",
        do=f"name one of its {'tasks' if array else 'components'}: {listed}",
    )
