"""Intervals: for every GPU, from when to when its samples belong to which run.

Ranked by who says so: an explicit map (prolog, exporter), live indices (scontrol), the whole node. A run on part
of a node of which nobody said which part is ambiguous: it owns no samples, and the node's average is never its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any

import polars as pl

from tachograph.schema import TIME

RANK = {"explicit": 0, "live_index": 1, "whole_node": 2, "ambiguous": 3}
HANDOVER = timedelta(seconds=60)  # a job's recorded end may lie this far behind its successor's start

INTERVALS_SCHEMA = {
    "run": pl.Int32(),
    "node": pl.String(),
    "gpu": pl.Int16(),
    "mig": pl.Int16(),
    "start": TIME,
    "end": TIME,
}


@dataclass(frozen=True, slots=True)
class Attribution:
    """Who owns what.

    runs: one row per run that held or may have held GPUs, with `attribution`.
    intervals: one row per (node, gpu, mig) and stretch [start, end) owned by one run; they never overlap.
    contested: stretches that two runs claim with equal right; their samples belong to nobody.
    unsure: (run, node, start, end) where ambiguous runs were; they have no intervals.
    """

    runs: pl.DataFrame
    intervals: pl.DataFrame
    contested: pl.DataFrame
    unsure: pl.DataFrame


def attribute(runs: pl.DataFrame, allocations: pl.DataFrame, inventory: pl.DataFrame) -> Attribution:
    """Return who owns each GPU's samples.

    `inventory` has one row per (node, gpu, mig) known to exist. Order of rows is irrelevant.
    """
    placed = _place(runs, allocations)
    best = placed.with_columns(rank=pl.col("provenance").replace_strict(RANK, default=3, return_dtype=pl.Int8))
    best = best.filter(pl.col("rank") == pl.col("rank").min().over("run", "node"))
    told = best.filter(pl.col("gpu").is_not_null())
    asked = best.filter(pl.col("gpu").is_null()).join(told, on=["run", "node"], how="anti")
    whole, unclear = _whole_nodes(asked, told, runs, inventory, _accompanied(placed, runs))
    claims = pl.concat([_told_units(told, inventory), whole]).unique()
    intervals, contested = separate(claims)
    per_node = pl.concat(
        [
            told.select("run", "rank"),
            whole.select("run", rank=pl.lit(RANK["whole_node"], dtype=pl.Int8)),
            unclear.select("run", rank=pl.lit(RANK["ambiguous"], dtype=pl.Int8)),
        ]
    )
    worst = per_node.group_by("run").agg(pl.col("rank").max())
    named = runs.join(worst, on="run", how="left").with_columns(
        attribution=pl.col("rank")
        .fill_null(RANK["ambiguous"])
        .replace_strict({rank: name for name, rank in RANK.items()}, return_dtype=pl.String)
    )
    held = named.filter((pl.col("gpus").is_null() & pl.col("rank").is_not_null()) | (pl.col("gpus") > 0)).drop("rank")
    ambiguous = held.filter(pl.col("attribution") == "ambiguous")
    unambiguous = held.join(ambiguous, on="run", how="anti")
    unsure = placed.join(ambiguous, on="run", how="semi").select("run", "node", "start", "end").unique()
    return Attribution(held, intervals.join(unambiguous, on="run", how="semi"), contested, unsure)


def _place(runs: pl.DataFrame, allocations: pl.DataFrame) -> pl.DataFrame:
    """Allocations given to the runs they overlap, clipped to them.

    Of a job that was requeued, what is held for a run may end seconds after its next run began (the epilog), or has
    no end at all (its end was never recorded): that next run never had it.
    """
    keys = runs.select("run", "job_id", "start", "until", job_cluster="cluster")
    joined = allocations.drop("seq").with_row_index("row").join(keys, on="job_id", how="inner", suffix="_run")
    same_cluster = (pl.col("cluster") == pl.col("job_cluster")).fill_null(value=True)
    mine = joined.filter(same_cluster).with_columns(
        begun=pl.col("start"), open=pl.col("end").is_null(), over=pl.coalesce("end", "until")
    )
    clipped = mine.with_columns(start=pl.max_horizontal("start", "start_run"), end=pl.min_horizontal("over", "until"))
    of_no_length = (pl.col("start_run") == pl.col("until")) & (pl.col("start") <= pl.col("end"))
    clipped = clipped.filter((pl.col("start") < pl.col("end")) | of_no_length)
    first = pl.col("start_run").min().over("row", "job_cluster")
    of_earlier = (pl.col("begun") < pl.col("start_run")) & (first < pl.col("start_run"))
    rest = (pl.col("over") < pl.col("until")) & (pl.col("end") - pl.col("start") <= HANDOVER)
    kept = clipped.filter(~(of_earlier & (rest | pl.col("open"))).fill_null(value=False))
    return kept.select("run", "node", "gpu", "mig", "start", "end", "provenance").unique()


def _told_units(told: pl.DataFrame, inventory: pl.DataFrame) -> pl.DataFrame:
    """Named GPUs; one that is cut into MIG slices and was given whole stands for all its slices."""
    slices = inventory.filter(pl.col("mig").is_not_null()).select("node", "gpu", slice="mig")
    joined = told.join(slices, on=["node", "gpu"], how="left")
    return joined.with_columns(mig=pl.coalesce("mig", "slice")).select(*INTERVALS_SCHEMA, "rank").unique()


def _whole_nodes(
    asked: pl.DataFrame, told: pl.DataFrame, runs: pl.DataFrame, inventory: pl.DataFrame, accompanied: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Of nodes whose GPUs are not told: those that a run had whole, as claims on every GPU; and the others.

    A run had its nodes whole when it is exclusive, or when its GPUs are as many as theirs and those told elsewhere
    and it was alone on them: beside others, the node may have more GPUs than were seen so far.
    """
    there = inventory.group_by("node").agg(there=pl.col("gpu").n_unique().cast(pl.Int64))
    nodes = asked.select("run", "node").unique().join(there, on="node", how="left")
    unknown = pl.col("there").is_null().any()
    counted = nodes.group_by("run").agg(counted=pl.when(~unknown).then(pl.col("there").sum()))
    named = told.group_by("run").agg(named=pl.struct("node", "gpu", "mig").n_unique().cast(pl.Int64))
    sized = asked.join(counted, on="run", how="left").join(named, on="run", how="left")
    sized = sized.join(runs.select("run", "gpus", "exclusive"), on="run", how="left")
    all_of_them = pl.col("counted") + pl.col("named").fill_null(0) == pl.col("gpus")
    crowded = asked.join(accompanied, on=["run", "node"], how="semi").get_column("run").unique()
    alone = ~pl.col("run").is_in(crowded.implode())
    decided = sized.with_columns(whole=(pl.col("exclusive") | (all_of_them & alone)).fill_null(value=False))
    units = decided.filter(pl.col("whole")).drop("gpu", "mig").join(inventory, on="node", how="inner")
    whole = units.with_columns(rank=pl.lit(RANK["whole_node"], dtype=pl.Int8)).select(*INTERVALS_SCHEMA, "rank")
    return whole, decided.filter(~pl.col("whole"))


def _accompanied(placed: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """(run, node) where another run that may have GPUs was on the node too, for longer than a hand-over."""
    gpu_runs = runs.filter(pl.col("gpus").is_null() | (pl.col("gpus") > 0))
    stays = placed.join(gpu_runs, on="run", how="semi").group_by("run", "node")
    # two stays overlap by more than a hand-over exactly when they overlap with their ends that much earlier
    cut = stays.agg(pl.col("start").min(), end=pl.col("end").max() - HANDOVER)
    cut = cut.filter(pl.col("start") < pl.col("end")).sort("node", "start", "run")
    before = pl.col("end").cum_max().shift(1).over("node") > pl.col("start")
    after = pl.col("start").shift(-1).over("node") < pl.col("end")
    return cut.filter(before.fill_null(value=False) | after.fill_null(value=False)).select("run", "node")


def separate(claims: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return (intervals, contested) from claims that may overlap on a GPU.

    A better rank wins; of equal rank, an overlap of a minute or less is a hand-over and goes to the run that
    began later; a longer one is contested and goes to nobody. Empty claims are left out.
    """
    claims = claims.filter(pl.col("start") < pl.col("end"))
    unit = ["node", "gpu", "mig"]
    ordered = claims.sort(*unit, "start", "end", "run")
    clash = pl.col("start") < pl.col("end").cum_max().shift(1).over(unit)
    crowded = ordered.filter(clash.fill_null(value=False)).select(unit).unique()
    clean = ordered.join(crowded, on=unit, how="anti", nulls_equal=True).select(*INTERVALS_SCHEMA)
    owned: list[tuple[object, ...]] = []
    contested: list[tuple[object, ...]] = []
    fought = ordered.join(crowded, on=unit, how="semi", nulls_equal=True)
    for key, group in fought.group_by(unit, maintain_order=True):
        for run, start, end in _sweep(group):
            target = contested if run is None else owned
            target.append((run, *key, start, end))
    frames = [pl.DataFrame(rows, schema=INTERVALS_SCHEMA, orient="row") for rows in (owned, contested)]
    return pl.concat([clean, frames[0]]).sort(*unit, "start"), frames[1].drop("run")


def _sweep(group: pl.DataFrame) -> list[tuple[int | None, object, object]]:
    """Stretches of one GPU between any two borders of its claims, each with its owner; None where contested."""
    claims = sorted(group.select("start", "end", "rank", "run").iter_rows())
    borders = sorted({border for start, end, _, _ in claims for border in (start, end)})
    stretches: list[tuple[int | None, object, object]] = []
    here: list[tuple[Any, ...]] = []
    begun = 0
    for low, high in pairwise(borders):
        here = [claim for claim in here if claim[1] > low]
        while begun < len(claims) and claims[begun][0] <= low:
            here.append(claims[begun])
            begun += 1
        if not here:
            continue
        rank = min(claim[2] for claim in here)
        equals = sorted((claim for claim in here if claim[2] == rank), key=lambda claim: (claim[0], claim[3]))
        owner: int | None = equals[-1][3]
        if len({claim[3] for claim in equals}) > 1:
            overlap = min(claim[1] for claim in equals) - max(claim[0] for claim in equals)
            owner = owner if overlap <= HANDOVER and equals[-1][0] > equals[0][0] else None
        if stretches and stretches[-1][0] == owner and stretches[-1][2] == low:
            stretches[-1] = (owner, stretches[-1][1], high)
        else:
            stretches.append((owner, low, high))
    return stretches
