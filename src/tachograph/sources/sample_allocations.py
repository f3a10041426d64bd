"""Allocations from samples that name their job: which job or step held a GPU when.

A column of job ids (`columns.JOB_NAMES`), and one of steps where there is one, become rows of
`allocations`, one per (node, gpu, mig) and stretch of samples of one job and step. Their provenance
is `samples`: they are explicit, from the first sample to the last; what lies between them and the
ends of the run is left to attribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

import polars as pl

from tachograph.catalog.chunks import ChunkPart, Reject, chosen_cells, first_as_text
from tachograph.catalog.tables import GPU_KEY, TIME
from tachograph.sources.job_ids import ANY_JOB, IS_NAMED, SLURM_JOB
from tachograph.sources.metrics import NO_JOB

PROVENANCE = "samples"
# As long may two jobs be named at once where one follows the other.
HANDOVER = timedelta(seconds=60)
_POWER = r"^\d+(?:\.\d*)?[eE]\+?\d+$"
_FRACTION = rf"^\d+\.\d*$|{_POWER}"  # as programs write whole numbers: 605717.0, 6.05717e+05
# numbers that Slurm gives steps without one (slurm.h)
_STEPS: Mapping[str, str] = MappingProxyType(
    {"4294967290": "interactive", "4294967291": "batch", "4294967292": "extern"}
)


@dataclass(frozen=True, slots=True)
class NamedJobs:
    """Job ids and steps as written, one row each, and in plain form; null: none."""

    job_id: pl.Series
    step: pl.Series
    bad: pl.Series


def named_jobs(ids: pl.Series, steps: pl.Series | None = None) -> NamedJobs:
    """Return the jobs and steps named by two columns, row by row.

    No job: null, "", 0, -1, N/A and the like. `123.0` is step 0 of job 123, but a fraction where
    there is a column of steps, or where every id ends so. `bad`: neither a job id nor a mark for
    none.

    >>> named = named_jobs(pl.Series(["123", "123.batch", "N/A", "9_4", "what"]))
    >>> named.job_id.to_list(), named.step.to_list(), named.bad.to_list()
    (['123', '123', None, '9_4', None], [None, 'batch', None, None, None], [False, False, False, False, True])
    >>> named_jobs(pl.Series([605717.0, 0.0, None]), pl.Series([0.0, None, None])).step.to_list()
    ['0', None, None]
    """
    text = _text(ids)
    none = (
        text.is_null()
        | text.str.to_lowercase().is_in(sorted(NO_JOB))
        | text.str.contains(r"^[-+]?0*(?:\.0*)?$")
    )
    number = text.cast(pl.Float64, strict=False)
    fits = ((number == number.round()) & number.is_between(1, 9e17)).fill_null(value=False)
    dotted = text.str.extract(SLURM_JOB, 2)
    any_id = text.str.contains(ANY_JOB) & text.str.contains(IS_NAMED)
    plain = steps is not None or bool(((dotted == "0") | none).fill_null(value=False).all())
    fraction = fits & text.str.contains(_FRACTION if plain else _POWER).fill_null(value=False)
    frame = pl.DataFrame(
        {
            "text": text,
            "number": number,
            "none": none,
            "fraction": fraction,
            "dotted": dotted,
            "slurm": text.str.extract(SLURM_JOB, 1),
            "any_id": any_id,
        }
    )
    job = frame.select(
        pl.when("none").then(None)
        .when("fraction").then(pl.col("number").cast(pl.Int64, strict=False).cast(pl.String))
        .when(pl.col("slurm").is_not_null()).then("slurm")
        .when("any_id").then(pl.col("text").str.replace("^ƒ", "f"))
    ).to_series()  # fmt: skip
    step = (
        _steps(steps)
        if steps is not None
        else frame.select(pl.when(~pl.col("fraction")).then("dotted")).to_series()
    )
    held = job.is_not_null()
    return NamedJobs(
        job.alias("job_id"),
        chosen_cells(held, step).alias("step"),
        (~held & ~none).alias("bad"),
    )


def _text(column: pl.Series) -> pl.Series:
    """Text; whole numbers without fraction."""
    if column.dtype.is_float():
        whole = (column == column.round()) & column.is_finite() & (column.abs() < 9e17)
        as_int = column.cast(pl.Int64, strict=False).cast(pl.String)
        return chosen_cells(whole, as_int, column.fill_nan(None).cast(pl.String))
    return column.cast(pl.String).str.strip_chars()


def _steps(column: pl.Series) -> pl.Series:
    """Steps with Slurm's names; null: none."""
    text = (
        _text(column)
        .str.replace(r"^(\d+)\.0*$", "${1}")
        .str.replace(r"^[1-9]\d*(?:[_+]\d+)?\.(\S+)$", "${1}")
    )
    none = text.str.to_lowercase().is_in(sorted(NO_JOB - {"0"})) | text.str.starts_with("-")
    named = text.replace(dict(_STEPS))
    return chosen_cells(~none, named)


def sample_allocations(rows: pl.DataFrame, *, cluster: str | None = None) -> tuple[ChunkPart, ...]:
    """Return the allocations that samples name as a chunk part; empty without jobs.

    `rows`: t, node, gpu, mig (may be missing), `job` and `step` (may be missing) as they were
    written. Samples of other jobs end a stretch, samples of none and gaps do not. It ends one
    sampling period after the last sample. A job that is named together with another, sample by
    sample, is recorded on the node without GPUs. Rejects: `bad_job_id` and `several_jobs`, counting
    samples.
    """
    if "gpu" not in rows.columns:
        return ()
    raw = ["job", *(["step"] if "step" in rows.columns else [])]
    unit = [name for name in GPU_KEY if name in rows.columns]
    timed = rows.lazy().select("t", *unit, *raw).drop_nulls(["t", "node", "gpu", "job"])
    pieces = timed.group_by(*unit, *raw).agg(*_extent()).collect()
    pieces, rejects = _with_names(pieces, raw)
    mixed = _mixed(pieces, unit)
    shared = pl.DataFrame(schema={"node": pl.String, "job_id": pl.String})
    if mixed.height:
        names = pieces.select(*raw, "job_id", "named_step").unique()
        here = timed.join(mixed.lazy(), on=unit, how="semi", nulls_equal=True)
        named_samples = here.join(names.lazy(), on=raw, how="inner", nulls_equal=True).collect()
        shared, rejects = _shared(named_samples, unit, rejects)
        pieces = pl.concat(
            [
                pieces.join(mixed, on=unit, how="anti", nulls_equal=True),
                _stretches(named_samples, unit, raw),
            ]
        )
    if pieces.is_empty():
        return (ChunkPart("allocations", pl.DataFrame(), rejects=rejects),) if rejects else ()
    return (ChunkPart("allocations", _held(pieces, shared, unit, cluster), rejects=rejects),)


def _stretches(samples: pl.DataFrame, unit: list[str], raw: list[str]) -> pl.DataFrame:
    """Return alternating stretches of several jobs or steps, one row each."""
    key = [*unit, *raw, "job_id", "named_step"]
    numbered = samples.sort(*unit, "t", maintain_order=True).with_columns(
        run=pl.struct(key).rle_id()
    )
    stretches = numbered.group_by("run", *key).agg(*_extent())
    return stretches.select(*unit, *raw, "start", "last", "samples", "job_id", "named_step")


def _shared(
    samples: pl.DataFrame, unit: list[str], rejects: tuple[Reject, ...]
) -> tuple[pl.DataFrame, tuple[Reject, ...]]:
    """Return (node, job_id) that samples name together with another job for over a minute."""
    several = samples.filter(pl.col("job_id").n_unique().over(*unit, "t") > 1)
    long = pl.col("t").max() - pl.col("t").min() > HANDOVER
    shared = several.group_by("node", "job_id").agg(long=long).filter("long").drop("long")
    removed = several.join(shared, on=["node", "job_id"], how="semi")
    if removed.is_empty():
        return shared, rejects
    example = removed.select(pl.concat_str("node", pl.lit(": "), "job_id")).item(0, 0)
    return shared, (*rejects, Reject("several_jobs", "job_id", removed.height, example))


def _extent() -> tuple[pl.Expr, ...]:
    t = pl.col("t")
    return t.min().alias("start"), t.max().alias("last"), pl.len().alias("samples")


def _with_names(pieces: pl.DataFrame, raw: list[str]) -> tuple[pl.DataFrame, tuple[Reject, ...]]:
    """Add the names of job and step; invalid job ids are counted."""
    named = named_jobs(pieces["job"], pieces["step"] if "step" in raw else None)
    count = int(pieces["samples"].filter(named.bad).sum())
    example = first_as_text(pieces["job"].filter(named.bad)) if count else None
    rejects = (Reject("bad_job_id", "job_id", count, example),) if count else ()
    named_pieces = pieces.with_columns(named.job_id, named.step.alias("named_step")).filter(
        pl.col("job_id").is_not_null()
    )
    return named_pieces, rejects


def _mixed(pieces: pl.DataFrame, unit: list[str]) -> pl.DataFrame:
    """GPUs where jobs or steps overlap in time: the order of the samples decides there."""
    ordered = pieces.sort(*unit, "start", "last")
    before = pl.col("last").cum_max().shift(1).over(unit)
    return ordered.filter(pl.col("start") <= before).select(unit).unique()


def _held(
    pieces: pl.DataFrame, shared: pl.DataFrame, unit: list[str], cluster: str | None
) -> pl.DataFrame:
    """Rows of `allocations`; of shared jobs only the node is known.

    The sampling period is the distance of a piece's samples, or that of most pieces, where gaps are
    part of it.
    """
    numbers = [
        pl.col(name).cast(pl.Float64, strict=False).cast(pl.Int16, strict=False)
        for name in unit[1:]
    ]
    ordered = pieces.with_columns(numbers).drop_nulls("gpu").sort(*unit, "start")
    following = pl.col("start").shift(-1).over(unit)
    distance = (pl.col("last") - pl.col("start")).dt.total_microseconds() / (pl.col("samples") - 1)
    spacing_us = pl.when(pl.col("samples") > 1).then(distance)
    usual = pl.coalesce(
        spacing_us.median(), (following - pl.col("last")).dt.total_microseconds().median()
    )
    period = pl.min_horizontal(spacing_us, usual).fill_null(0).cast(pl.Int64).clip(1)
    ordered = ordered.with_columns(end=pl.col("last") + pl.duration(microseconds=period))
    ends = (
        pl.when(following > pl.col("last"))
        .then(pl.min_horizontal("end", following))
        .otherwise("end")
    )
    rows = ordered.with_columns(ends.alias("end"), pl.lit(PROVENANCE).alias("provenance"))
    if shared.height:
        of_shared = rows.join(shared, on=["node", "job_id"], how="semi").group_by("node", "job_id")
        nodes = of_shared.agg(pl.col("start").min(), pl.col("end").max()).with_columns(
            provenance=pl.lit("node_list")
        )
        rows = pl.concat(
            [rows.join(shared, on=["node", "job_id"], how="anti"), nodes], how="diagonal"
        )
    return rows.select(
        pl.lit(cluster, dtype=pl.String).alias("cluster"),
        "job_id",
        pl.col("named_step").alias("step"),
        *unit,
        pl.col("start", "end").cast(TIME),
        "provenance",
    )
