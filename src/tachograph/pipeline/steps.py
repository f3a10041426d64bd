"""Job steps: their GPUs, times and activity.

steps, allocations that name a step, intervals of runs  ->  `JobSteps`  ->  one row of
`step_summaries` per step

Samples that name their step are its own (`explicit`). Otherwise a step had all GPUs of its job on
its nodes while it ran (`time`), unless the accounting gave it fewer, or another step ran beside it
on a node: which GPU was whose is not recorded, and it is `ambiguous`. A batch script holds the GPUs
while none of its `srun` steps does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from tachograph.catalog.config import AnalysisOptions
from tachograph.catalog.tables import GPU_KEY, STEP_SUMMARIES
from tachograph.lake.conform import in_schema
from tachograph.lake.places import host_name
from tachograph.pipeline.accumulators import merge_segments, out_of
from tachograph.pipeline.attribution import HANDOVER, INTERVALS_SCHEMA, Attribution
from tachograph.pipeline.statistics import seconds_between
from tachograph.pipeline.summaries import step_rows, summarize_gpus
from tachograph.sources.slurm.fields import BadRowError, expand_nodes

SHELLS = ("batch", "interactive")  # steps that start other steps
NEVER_ON_GPUS = ("extern",)  # holds what was started outside of any step
_STRETCH = ["run", "node", "start", "end"]


@dataclass(frozen=True, slots=True)
class StepRows:
    """The steps of some runs.

    steps: one row per step: `step_run`, its number (0, 1, ...); the `run` it belongs to; what was
    accounted; `end_known`, up to when it is analyzed; `attribution`. intervals: one row per (node,
    gpu, mig) and stretch [start, end) of a step, under its number as `run`; sorted, never
    overlapping.
    """

    steps: pl.DataFrame
    intervals: pl.DataFrame


def build_steps(steps: pl.DataFrame, allocations: pl.DataFrame, owned: Attribution) -> StepRows:
    """Return the steps of the runs of `owned`.

    `steps`: rows of STEPS; `allocations`: those with a step number.
    """
    runs = owned.runs.select(
        "run", "job_id", "until", run_cluster="cluster", run_start="start", run_gpus="gpus"
    )
    named = _of_runs(
        allocations.filter(pl.col("step").is_not_null() & pl.col("gpu").is_not_null()), runs
    )
    accounted = _of_runs(steps.filter(pl.col("start").is_not_null()), runs)
    if accounted.is_empty() and named.is_empty():
        return StepRows(
            _numbered(accounted).with_columns(attribution=pl.lit(None, pl.String)),
            pl.DataFrame(schema=INTERVALS_SCHEMA),
        )
    explicit = _inside(
        named.select(
            "run", "step", *GPU_KEY, start=pl.max_horizontal("start", "run_start"), end="end_known"
        ),
        owned.intervals,
        ["run", *GPU_KEY],
    )
    from_samples = (
        explicit.group_by("run", "step")
        .agg(pl.col("start").min(), pl.col("end").max())
        .join(accounted, on=["run", "step"], how="anti")
        .join(runs, on="run")
        .with_columns(end_known="end")
    )
    every = _numbered(
        pl.concat([accounted, from_samples], how="diagonal").select(accounted.columns)
    )
    numbers = every.select("step_run", "run", "step")
    mine = explicit.join(numbers, on=["run", "step"])
    by_time = every.join(named, on="run", how="anti")
    claims, unclear = _claims(by_time, owned.intervals)
    pieces = _inside(claims, owned.intervals, ["run", "node"])
    intervals = pl.concat(
        [
            frame.select(pl.col("step_run").alias("run"), *GPU_KEY, "start", "end")
            for frame in (mine, pieces)
        ]
    )
    certain = owned.runs.filter(pl.col("attribution") != "ambiguous").select("run")
    certain_steps = pl.concat(
        [by_time.join(certain, on="run", how="semi").select("step_run"), mine.select("step_run")]
    )
    certain_steps = (
        certain_steps.unique()
        .join(unclear, on="step_run", how="anti")
        .with_columns(known=pl.lit(value=True))
    )
    ways = mine.select("step_run").unique().with_columns(explicit=pl.lit(value=True))
    every = (
        every.join(certain_steps, on="step_run", how="left")
        .join(ways, on="step_run", how="left")
        .with_columns(
            attribution=pl.when("explicit")
            .then(pl.lit("explicit"))
            .when("known")
            .then(pl.lit("time"))
            .otherwise(pl.lit("ambiguous"))
        )
        .drop("known", "explicit")
    )
    return StepRows(every, intervals.select(*INTERVALS_SCHEMA).sort(*GPU_KEY, "start"))


def _numbered(steps: pl.DataFrame) -> pl.DataFrame:
    return (
        steps.sort("run", "start", "step")
        .with_row_index("step_run")
        .with_columns(pl.col("step_run").cast(pl.Int32))
    )


def _of_runs(rows: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """Assign rows of a job to its latest run begun before them; `end_known`: clip to its end."""
    joined = rows.drop("seq").with_row_index("row").join(runs, on="job_id", how="inner")
    same_cluster = (pl.col("cluster") == pl.col("run_cluster")).fill_null(value=True)
    begun = pl.coalesce("start", "run_start") + HANDOVER
    mine = joined.filter(
        same_cluster
        & (begun >= pl.col("run_start"))
        & (pl.coalesce("start", "run_start") <= pl.col("until"))
    )
    mine = mine.sort("row", "run_start").unique("row", keep="last", maintain_order=True)
    return mine.with_columns(
        end_known=pl.min_horizontal(pl.coalesce("end", "until"), "until")
    ).drop("row")


def _inside(stretches: pl.DataFrame, intervals: pl.DataFrame, on: Sequence[str]) -> pl.DataFrame:
    """Each stretch cut to the intervals of its run that it overlaps."""
    joined = stretches.join(intervals, on=list(on), how="inner", suffix="_held", nulls_equal=True)
    cut = joined.with_columns(
        start=pl.max_horizontal("start", "start_held"), end=pl.min_horizontal("end", "end_held")
    ).filter(pl.col("start") < pl.col("end"))
    return cut.drop("start_held", "end_held")


def _claims(steps: pl.DataFrame, intervals: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Stretches (step_run, run, node, start, end) held by steps by time, and the unclear steps."""
    units = intervals.group_by("run", "node").agg(units=pl.struct("gpu", "mig").n_unique())
    untracked = (pl.col("gpus") == 0) & (pl.col("run_gpus").fill_null(0) == 0)
    given = (
        pl.when(pl.col("step").is_in(NEVER_ON_GPUS))
        .then(0)
        .when(~untracked.fill_null(value=False))
        .then("gpus")
    )
    using = steps.with_columns(given=given).filter((pl.col("given") > 0).fill_null(value=True))
    placed = _placed(using, units)
    held = placed.group_by("step_run").agg(pl.col("units").sum(), pl.col("given").first())
    fewer = held.filter(pl.col("given") < pl.col("units")).select("step_run")
    shell = pl.col("step").is_in(SHELLS)
    tasks = placed.filter(~shell).sort("run", "node", "start", "end")
    latest = pl.col("end").cum_max().shift(1).over("run", "node")
    following = pl.col("start").shift(-1).over("run", "node")
    overlaps = (latest - pl.col("start") > HANDOVER) | (pl.col("end") - following > HANDOVER)
    shared = tasks.filter(overlaps).select("step_run")
    unclear = pl.concat([fewer, shared, _unplaced(using, placed)]).unique()
    alone = tasks.with_columns(end=pl.min_horizontal("end", following)).join(
        unclear, on="step_run", how="anti"
    )
    shells = _without(placed.filter(shell).join(unclear, on="step_run", how="anti"), tasks)
    columns = ["step_run", *_STRETCH]
    return pl.concat([alone.select(columns), shells.select(columns)]).filter(
        pl.col("start") < pl.col("end")
    ), unclear


def _placed(steps: pl.DataFrame, units: pl.DataFrame) -> pl.DataFrame:
    """One row per step and node of its run: (step_run, step, given, run, node, units, start,
    end).
    """
    lists = steps.select("node_list").unique().drop_nulls()["node_list"].to_list()
    expanded = pl.DataFrame(
        [(written, node) for written in lists for node in _nodes(written)],
        schema={"node_list": pl.String, "host": pl.String},
        orient="row",
    )
    named = steps.join(expanded, on="node_list", how="inner").join(
        units.with_columns(host=host_name("node")), on=["run", "host"], how="inner"
    )
    here = units.group_by("run").len("run_nodes")
    unnamed = steps.filter(pl.col("node_list").is_null()).join(here, on="run", how="inner")
    on_all = unnamed.filter(
        pl.col("nodes").is_null() | (pl.col("nodes") >= pl.col("run_nodes"))
    ).join(units, on="run")
    columns = [
        "step_run",
        "step",
        "given",
        "run",
        "node",
        "units",
        "start",
        pl.col("end_known").alias("end"),
    ]
    return pl.concat([named.select(columns), on_all.select(columns)])


def _unplaced(steps: pl.DataFrame, placed: pl.DataFrame) -> pl.DataFrame:
    """Steps on unnamed nodes of their run."""
    nowhere = steps.join(placed, on="step_run", how="anti")
    return nowhere.filter(pl.col("node_list").is_null() & (pl.col("nodes") > 0)).select("step_run")


def _nodes(written: str) -> tuple[str, ...]:
    try:
        return expand_nodes(written)
    except BadRowError:
        return ()


def _without(shells: pl.DataFrame, tasks: pl.DataFrame) -> pl.DataFrame:
    """The stretches of `shells` in which no task ran on the node."""
    busy = tasks.select("run", "node", busy_start="start", busy_end="end")
    inside = shells.join(busy, on=["run", "node"], how="inner").filter(
        (pl.col("busy_start") < pl.col("end")) & (pl.col("busy_end") > pl.col("start"))
    )
    rows = pl.concat(
        [inside, shells.with_columns(busy_start=pl.col("end"), busy_end=pl.col("end"))],
        how="vertical",
    ).sort("step_run", "node", "busy_start", "busy_end")
    before = pl.col("busy_end").cum_max().shift(1).over("step_run", "node")
    return rows.with_columns(
        start=pl.max_horizontal("start", pl.coalesce(before, "start")), end=pl.col("busy_start")
    ).filter(pl.col("start") < pl.col("end"))


@dataclass(slots=True)
class OpenSteps:
    """Segments of steps whose runs are incomplete."""

    steps: StepRows
    segments: list[pl.DataFrame] = field(default_factory=list)

    def add(self, segments: pl.DataFrame) -> None:
        """Add the steps of a partition."""
        if segments.height:
            self.segments.append(segments)

    def summarize(
        self, runs: pl.DataFrame, facts: pl.DataFrame, *, analysis: AnalysisOptions
    ) -> pl.DataFrame:
        """Remove and return the step_summaries of some runs, without `seq`."""
        mine = self.steps.steps.join(runs.select("run", "job_key"), on="run", maintain_order="left")
        if mine.is_empty():
            return STEP_SUMMARIES.empty().drop("seq")
        numbers = mine["step_run"]
        gone = np.zeros(self.steps.steps.height, np.bool_)
        gone[numbers.to_numpy()] = True
        as_runs = mine.select(
            pl.exclude("run", "step_run", "until", "end_known"),
            run="step_run",
            until="end_known",
            elapsed_s=pl.lit(None, pl.Float64),
            time_precision_s=pl.lit(None, pl.Float64),
        )
        held_s = seconds_between("start", "end").sum()
        intervals = self.steps.intervals.join(as_runs, on="run", how="semi")
        held = intervals.group_by("run", *GPU_KEY, maintain_order=True).agg(held_s=held_s)
        gpus = summarize_gpus(
            merge_segments(out_of(self.segments, gone)), held, as_runs, facts, analysis=analysis
        )
        return in_schema(step_rows(as_runs, gpus), STEP_SUMMARIES)
