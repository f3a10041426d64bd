"""Attribution: the GPUs of the site, and when each belongs to which run of a job.

runs (job_runs), allocations, inventory  ->  intervals (who owns the samples of a GPU)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any

import polars as pl

from tachograph.catalog.chunks import CLUSTER_MARK
from tachograph.catalog.tables import BY_SAMPLES, GPU_KEY, TIME
from tachograph.lake.places import host_name, without_places
from tachograph.pipeline.statistics import seconds_between

RANK = {"explicit": 0, "live_index": 1, "whole_node": 2, "ambiguous": 3}
# A job's recorded end may be this much later than its successor's start.
HANDOVER = timedelta(seconds=60)
MPS_OF_GPU = 100  # as Slurm counts it unless configured otherwise
NO_SHARES = pl.DataFrame(
    schema={"node": pl.String, "shards_of_gpu": pl.Float64, "mps_of_gpu": pl.Float64}
)
SECOND = timedelta(seconds=1)  # Slurm tells times in whole seconds

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
    """Owners of GPUs over time.

    runs: one row per run that held or may have held GPUs, with `attribution`; `unplaced`: no record
    names a node of it; `ambiguous_because`: why it is ambiguous, else null; `telemetry_cluster`:
    clusters that telemetry of its nodes names, none of them its own; `shares`: it has only shares
    of GPUs, so the number of its `gpus` is null; `gpu_share`, `share_by`: how many GPUs these
    amount to, and how that is known. intervals: one row per (node, gpu, mig) and
    stretch [start, end) owned by one run; they never overlap. contested: stretches that two runs
    claim with equal right; their samples belong to no run. handovers: seconds in which a GPU went
    from one run to another, `run`: the later; their samples belong to no run. unsure: (run, node,
    start, end) where ambiguous runs were; they have no intervals.
    """

    runs: pl.DataFrame
    intervals: pl.DataFrame
    contested: pl.DataFrame
    handovers: pl.DataFrame
    unsure: pl.DataFrame


def attribute(
    runs: pl.DataFrame,
    allocations: pl.DataFrame,
    inventory: pl.DataFrame,
    node_shares: pl.DataFrame = NO_SHARES,
) -> Attribution:
    """Return who owns each GPU's samples.

    `inventory` has one row per (node, gpu, mig) known to exist; `node_shares` one per node whose
    GPUs have shares: `shards_of_gpu`, `mps_of_gpu`. Order of rows is irrelevant.
    """
    placed = _place(runs, allocations)
    sharing = _sharing(placed, runs)
    best = _best_records(placed)
    elsewhere = _sampled_elsewhere(placed, inventory)
    shares = _gpu_shares(best, sharing, runs, node_shares)
    runs = _with_shares(runs, shares, sharing).join(
        _telemetry_clusters(elsewhere), on="run", how="left"
    )
    best = best.drop("shared", "share").unique()

    # Samples name a node and not always its cluster: what may be of another one claims nothing,
    # unless the samples themselves name the job.
    renamed = best.filter(pl.col("gpu").is_null()).join(elsewhere, on=["run", "node"], how="semi")
    foreign = pl.concat(
        [_beside_other_clusters(placed, runs), renamed.select("run", "node")]
    ).unique()
    by_samples = best.filter(provenance=BY_SAMPLES)
    by_records = best.filter(pl.col("provenance") != BY_SAMPLES)
    best = pl.concat([by_records.join(foreign, on=["run", "node"], how="anti"), by_samples])

    named, shared = _of_one_holder(best, sharing, runs)
    finest, overruled = _finer(named)
    gpu_claims, too_many = _named_by_samples(finest, runs)
    unnamed = best.filter(pl.col("gpu").is_null()).join(gpu_claims, on=["run", "node"], how="anti")
    accompanied = _accompanied(placed, runs)
    mixed = _nodes_of_several_clusters(placed, runs)
    node_claims, unclear = _whole_nodes(
        unnamed, gpu_claims, runs, inventory, accompanied, mixed=mixed
    )
    claims = pl.concat([_named_units(gpu_claims, inventory), node_claims]).unique()
    separated, contested = separate(claims)
    intervals, handovers = _between_runs(
        separated, placed.filter(pl.col("provenance") == BY_SAMPLES)
    )

    doubts = {  # by reason, the first that holds
        "other_names": renamed.join(gpu_claims, on=["run", "node"], how="anti"),
        "other_clusters": foreign.join(gpu_claims, on=["run", "node"], how="anti"),
        "contradicted": _contradicted(claims, separated),
        "other_slices": overruled,
        "too_many_samples": too_many,
        "shared_gpus": shared,
        "unknown_numbers": unclear.filter(pl.col("rank") <= RANK["live_index"]),
        "other_jobs": unclear.join(accompanied, on=["run", "node"], how="semi"),
        "part_of_nodes": unclear,
    }
    held = _gpu_runs(_ranked(runs, gpu_claims, node_claims, doubts))
    ambiguous = held.filter(pl.col("attribution") == "ambiguous")
    unambiguous = held.join(ambiguous, on="run", how="anti")
    unsure = (
        placed.join(ambiguous, on="run", how="semi").select("run", "node", "start", "end").unique()
    )
    return Attribution(
        runs=held,
        intervals=intervals.join(unambiguous, on="run", how="semi"),
        contested=contested,
        handovers=handovers.join(unambiguous, on="run", how="semi"),
        unsure=unsure,
    )


def _best_records(placed: pl.DataFrame) -> pl.DataFrame:
    """Of each run and node the records of the best provenance, with its `rank`."""
    ranks = {**RANK, BY_SAMPLES: RANK["explicit"]}
    ranked = placed.with_columns(
        rank=pl.col("provenance").replace_strict(
            ranks, default=RANK["ambiguous"], return_dtype=pl.Int8
        )
    )
    return ranked.filter(pl.col("rank") == pl.col("rank").min().over("run", "node"))


def _with_shares(runs: pl.DataFrame, shares: pl.DataFrame, sharing: pl.Series) -> pl.DataFrame:
    """Runs with `shares`: it has only shares of GPUs, and what `_gpu_shares` says of these.

    Such a run has no number of GPUs: null, where the accounting says 0.
    """
    only_shares = pl.col("run").is_in(sharing.implode())
    return runs.join(shares, on="run", how="left").with_columns(
        shares=only_shares, gpus=pl.when(~only_shares).then("gpus")
    )


def _telemetry_clusters(elsewhere: pl.DataFrame) -> pl.DataFrame:
    """(run, telemetry_cluster): what telemetry calls the clusters of the run's nodes."""
    clusters = pl.col("telemetry").unique().sort().str.join(", ")
    return elsewhere.group_by("run").agg(telemetry_cluster=clusters)


def _nodes_of_several_clusters(placed: pl.DataFrame, runs: pl.DataFrame) -> pl.Series:
    """Names that nodes of more than one cluster have."""
    of_clusters = placed.join(runs.select("run", "cluster"), on="run").select("node", "cluster")
    pairs = without_places(of_clusters.drop_nulls().unique()).unique()
    return pairs.filter(pl.col("node").is_duplicated())["node"].unique()


def _ranked(
    runs: pl.DataFrame,
    gpu_claims: pl.DataFrame,
    node_claims: pl.DataFrame,
    doubts: Mapping[str, pl.DataFrame],
) -> pl.DataFrame:
    """Runs with `attribution`, the worst of their nodes; `unplaced`; and `ambiguous_because`.

    doubts: {reason: runs of which it holds}, the first that holds is the run's.
    """
    reasons = [
        frame.select("run", ambiguous_because=pl.lit(reason)) for reason, frame in doubts.items()
    ]
    first_reason = pl.concat(reasons).unique("run", keep="first", maintain_order=True)
    ranks = [
        gpu_claims.group_by("run", "node").agg(pl.col("rank").min()).drop("node"),
        node_claims.select("run", rank=pl.lit(RANK["whole_node"], dtype=pl.Int8)),
        first_reason.select("run", rank=pl.lit(RANK["ambiguous"], dtype=pl.Int8)),
    ]
    worst = pl.concat(ranks).group_by("run").agg(pl.col("rank").max())
    names = {rank: name for name, rank in RANK.items()}
    ranked = runs.join(worst, on="run", how="left").with_columns(
        unplaced=pl.col("rank").is_null(),
        attribution=pl.col("rank")
        .fill_null(RANK["ambiguous"])
        .replace_strict(names, return_dtype=pl.String),
    )
    because = pl.when("unplaced").then(pl.lit("unplaced")).otherwise("ambiguous_because")
    return (
        ranked.join(first_reason, on="run", how="left")
        .with_columns(ambiguous_because=because)
        .drop("rank")
    )


def _gpu_runs(ranked: pl.DataFrame) -> pl.DataFrame:
    """Runs that held GPUs, or may have.

    A run of an unknown number of GPUs may have, unless the accounting names its nodes and no record
    places it on a GPU's node.
    """
    named_somewhere = ~pl.col("unplaced") | pl.col("node_list").is_null()
    unknown_number = pl.col("gpus").is_null() & named_somewhere
    return ranked.filter(unknown_number | (pl.col("gpus") > 0))


def _place(runs: pl.DataFrame, allocations: pl.DataFrame) -> pl.DataFrame:
    """Allocations assigned to the runs they overlap, and clipped to them.

    What is held for a run of a requeued job may end seconds after its next run began (the epilog),
    or have no end (never recorded): the next run never had it.
    """
    keys = runs.select("run", "job_id", "start", "until", job_cluster="cluster")
    joined = (
        allocations.drop("seq")
        .with_row_index("row")
        .join(keys, on="job_id", how="inner", suffix="_run")
    )
    same_cluster = (pl.col("cluster") == pl.col("job_cluster")).fill_null(value=True)
    mine = joined.filter(same_cluster).with_columns(
        begun=pl.col("start"), open=pl.col("end").is_null(), over=pl.coalesce("end", "until")
    )
    clipped = mine.with_columns(
        start=pl.max_horizontal("start", "start_run"), end=pl.min_horizontal("over", "until")
    )
    of_no_length = (pl.col("start_run") == pl.col("until")) & (pl.col("start") <= pl.col("end"))
    clipped = clipped.filter((pl.col("start") < pl.col("end")) | of_no_length)
    first = pl.col("start_run").min().over("row", "job_cluster")
    of_earlier = (pl.col("begun") < pl.col("start_run")) & (first < pl.col("start_run"))
    rest = (pl.col("over") < pl.col("until")) & (pl.col("end") - pl.col("start") <= HANDOVER)
    kept = clipped.filter(~(of_earlier & (rest | pl.col("open"))).fill_null(value=False))
    held = ("run", "node", "gpu", "mig", "start", "end", "provenance")
    return kept.select(*held, "shared", "share").unique()


def _sharing(placed: pl.DataFrame, runs: pl.DataFrame) -> pl.Series:
    """Runs with shares of GPUs and no whole GPU, by the accounting or by their GPU records."""
    accounted = (pl.max_horizontal("shards", "mps") > 0) & (pl.col("gpus").fill_null(0) == 0)
    of_accounting = runs.filter(accounted)["run"]
    recorded = placed.group_by("run").agg(pl.col("shared").fill_null(value=False).any(), pl.len())
    of_records = recorded.filter("shared").join(
        runs.filter(pl.col("gpus") > 0), on="run", how="anti"
    )
    return pl.concat([of_accounting, of_records["run"]]).unique()


def _gpu_shares(
    best: pl.DataFrame, sharing: pl.Series, runs: pl.DataFrame, node_shares: pl.DataFrame
) -> pl.DataFrame:
    """(run, gpu_share, share_by): how many GPUs the shares of each of these runs amount to.

    `count`: its records name its part of each GPU, or its nodes how many shards or MPS a GPU has;
    of MPS Slurm usually counts 100. Else `time`: where all GPUs are named, the jobs on one at the
    same time have equal parts of it; not where a job on the node may share it unnamed.
    """
    of_time = pl.DataFrame(schema={"run": pl.Int32, "by_time": pl.Float64})
    mine = best.filter(pl.col("run").is_in(sharing.implode()))
    unnamed = mine.filter(pl.col("gpu").is_null()).select("run")
    named = mine.join(unnamed, on="run", how="anti")
    recorded = named.group_by("run", "node", "gpu").agg(pl.col("share").max())
    unknown = pl.col("share").is_null().any()
    counted = recorded.group_by("run").agg(by_records=pl.when(~unknown).then(pl.col("share").sum()))
    if named.height:
        of_time = _equal_parts(named, best, runs)
    facts = runs.filter(pl.col("run").is_in(sharing.implode())).select("run", "shards", "mps")
    joined = facts.join(counted, on="run", how="left").join(of_time, on="run", how="left")
    joined = joined.join(_of_nodes(mine, node_shares), on="run", how="left")
    of_shards = pl.col("shards") / pl.col("shards_of_gpu")
    of_mps = pl.col("mps") / pl.col("mps_of_gpu").fill_null(MPS_OF_GPU)
    of_mps = pl.when(pl.col("shards").is_null()).then(of_mps)
    count = pl.coalesce("by_records", of_shards, of_mps)
    source = pl.when(count.is_not_null()).then(pl.lit("count"))
    return joined.select(
        "run",
        gpu_share=pl.coalesce(count, "by_time"),
        share_by=source.when(pl.col("by_time").is_not_null()).then(pl.lit("time")),
    )


def _of_nodes(mine: pl.DataFrame, node_shares: pl.DataFrame) -> pl.DataFrame:
    """(run, shards_of_gpu, mps_of_gpu), null where nodes of a run differ or are not known."""
    nodes = mine.select("run", "node", host=host_name("node")).unique()
    described = nodes.join(node_shares.rename({"node": "host"}), on="host", how="left")
    names = ("shards_of_gpu", "mps_of_gpu")
    agreed = [pl.when(pl.col(name).n_unique() == 1).then(pl.col(name).first()) for name in names]
    return described.group_by("run").agg(**dict(zip(names, agreed, strict=True)))


def _equal_parts(named: pl.DataFrame, best: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """(run, by_time): mean number of GPUs, each divided by the runs that hold it at the time."""
    gpu = ["node", "gpu"]
    unplaced = best.filter(pl.col("gpu").is_null()).select("run", "node", "start", "end")
    unsure = _overlapping(named, unplaced, on=["node"]).select("run").unique()
    mine = named.join(unsure, on="run", how="anti").select("run", *gpu).unique()
    stays = _merged(best.join(mine.select(gpu).unique(), on=gpu, how="semi"), gpu)
    borders = pl.concat(
        [
            stays.select(*gpu, at=end, more=pl.lit(change, dtype=pl.Int64))
            for end, change in (("start", 1), ("end", -1))
        ]
    )
    steps = borders.group_by(*gpu, "at").agg(pl.col("more").sum()).sort(*gpu, "at")
    steps = steps.with_columns(
        holders=pl.col("more").cum_sum().over(gpu), following=pl.col("at").shift(-1).over(gpu)
    ).with_columns(length_s=seconds_between("at", "following"))
    part_s = pl.when(pl.col("holders") > 0).then(pl.col("length_s") / pl.col("holders"))
    passed = part_s.fill_null(0.0).cum_sum().shift(1, fill_value=0.0).over(gpu)
    # what one holder has had of the GPU by each border: a stay has had what it adds up to
    steps = steps.with_columns(passed_s=passed)
    for end in ("start", "end"):
        of_end = steps.select(*gpu, pl.col("at").alias(end), pl.col("passed_s").alias(f"{end}_s"))
        stays = stays.join(of_end, on=[*gpu, end], how="left")
    seconds = stays.group_by("run").agg(held_s=(pl.col("end_s") - pl.col("start_s")).sum())
    timed = seconds.join(mine.select("run").unique(), on="run", how="semi")
    timed = timed.join(runs.select("run", "start", "until"), on="run")
    length_s = seconds_between("start", "until")
    return timed.select("run", by_time=pl.col("held_s") / pl.when(length_s > 0).then(length_s))


def _merged(rows: pl.DataFrame, unit: list[str]) -> pl.DataFrame:
    """(run, *unit, start, end) of stays, with those that touch or overlap as one."""
    latest = pl.col("end").cum_max().shift(1).over("run", *unit)
    ordered = rows.sort(*unit, "start", "end").with_columns(
        new=(pl.col("start") > latest).fill_null(value=True)
    )
    numbered = ordered.with_columns(stretch=pl.col("new").cum_sum().over("run", *unit))
    stretches = numbered.group_by("run", *unit, "stretch", maintain_order=True)
    return stretches.agg(pl.col("start").min(), pl.col("end").max()).drop("stretch")


def _of_one_holder(
    best: pl.DataFrame, sharing: pl.Series, runs: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """GPUs recorded by name, split: those with one certain holder, and those that may be shared.

    Samples of a GPU belong to all its holders. It may be held by another run that is named on it;
    or by one that has shares on the node, or an unknown number of GPUs, none of them named, for
    longer than a hand-over.
    """
    named = best.filter(pl.col("gpu").is_not_null())
    mine = named.filter(pl.col("run").is_in(sharing.implode()))
    if mine.is_empty():
        return named, mine
    may_share = pl.concat([sharing, runs.filter(pl.col("gpus").is_null())["run"]])
    unplaced = best.filter(pl.col("gpu").is_null() & pl.col("run").is_in(may_share.implode()))
    others = [(["node", "gpu"], named), (["node"], unplaced)]
    overlaps = [
        _overlapping(mine, other.select("run", *on, "start", "end"), on=on) for on, other in others
    ]
    disputed = mine.join(pl.concat(overlaps), on=["run", "node", "gpu"], how="semi")
    return named.join(disputed, on=["run", "node", "gpu"], how="anti"), disputed


def _overlapping(mine: pl.DataFrame, others: pl.DataFrame, *, on: list[str]) -> pl.DataFrame:
    """Rows of `mine` that overlap with a row of another run by more than a hand-over.

    Overlaps are counted, of all runs and of the run itself: thousands of jobs may have had shares
    of one GPU, so their pairs would fill the memory.
    """
    # two stays overlap by more than a hand-over exactly when they overlap with their ends that much
    # earlier
    rows, stays = (
        frame.with_columns(cut=pl.col("end") - HANDOVER).filter(pl.col("start") < pl.col("cut"))
        for frame in (mine, others)
    )
    rows = _with_overlaps(rows, stays, "of_all", on)
    rows = _with_overlaps(rows, stays, "of_run", ["run", *on])
    return rows.filter(pl.col("of_all") > pl.col("of_run")).select(mine.columns)


def _with_overlaps(
    rows: pl.DataFrame, stays: pl.DataFrame, name: str, by: list[str]
) -> pl.DataFrame:
    """Rows with the number of stays of the same `by` that overlap with each, as column `name`.

    These are the stays that began before the end of the row, without those over by its start.
    """
    number = pl.int_range(1, pl.len() + 1).over(by)
    begun = stays.sort("start").select(*by, begin="start", begun=number)
    over = stays.sort("cut").select(*by, finish="cut", over=number)
    rows = rows.sort("cut").join_asof(
        begun,
        left_on="cut",
        right_on="begin",
        by=by,
        allow_exact_matches=False,
        check_sortedness=False,
    )
    rows = rows.sort("start").join_asof(
        over, left_on="start", right_on="finish", by=by, check_sortedness=False
    )
    count = pl.col("begun").fill_null(0) - pl.col("over").fill_null(0)
    return rows.with_columns(count.alias(name)).drop("begun", "over")


def _named_by_samples(named: pl.DataFrame, runs: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(Claims of GPUs by name, claims of runs with more sampled than allocated GPUs).

    Samples show a job on a GPU from the first to the last of them. It held the GPU before, between
    and after as well, from the start to the end of its run, as far as samples name no other job
    there; of these rests any better record is another's.
    """
    ours = pl.col("provenance") == BY_SAMPLES
    others = named.filter(~ours).drop("provenance")
    sampled = named.filter(ours).drop("provenance")
    if sampled.is_empty():
        return others, sampled
    unit = list(GPU_KEY)
    rank = pl.lit(RANK["explicit"], dtype=pl.Int8)
    shown = _merged(sampled, unit).with_columns(rank=rank).sort(*unit, "start", "run")
    times = shown.join(
        runs.select("run", "gpus", first="start", last="until"), on="run", maintain_order="left"
    )
    before = pl.col("end").cum_max().shift(1).over(unit)
    after = pl.col("start").shift(-1).over(unit)
    of_last = (pl.col("run").shift(-1).over(unit) != pl.col("run")).fill_null(value=True)
    ahead = times.with_columns(start=pl.max_horizontal("first", before), end="start")
    behind = times.with_columns(start="end", end=pl.min_horizontal("last", after))
    # those of no length are left out later, as all such claims are
    rests = pl.concat([ahead, behind.filter(of_last)])
    rests = rests.with_columns(rank=pl.lit(RANK["whole_node"], dtype=pl.Int8))
    # Slices count as GPUs.
    named_gpus = times.group_by("run", "gpus").agg(named=pl.struct("node", "gpu").n_unique())
    too_many = named_gpus.filter((pl.col("gpus") > 0) & (pl.col("named") > pl.col("gpus"))).select(
        "run"
    )
    claims = pl.concat([others, *(frame.select(others.columns) for frame in (shown, rests))])
    return claims, too_many


def _contradicted(claims: pl.DataFrame, intervals: pl.DataFrame) -> pl.DataFrame:
    """Return runs with a named GPU that better records mostly give to other runs."""
    unit = ["run", *GPU_KEY]
    lengths = (pl.col("end") - pl.col("start")).filter(pl.col("start") < pl.col("end")).sum()
    at_most, got = (frame.group_by("run").agg(length=lengths) for frame in (claims, intervals))
    whole = at_most.join(got, on=["run", "length"], how="semi")  # got all that they claim
    claims = claims.join(whole, on="run", how="anti")
    named = claims.filter(pl.col("rank") <= RANK["live_index"]).sort(*unit, "start", "end")
    begun = pl.max_horizontal("start", pl.col("end").cum_max().shift(1).over(unit))
    stretches = named.with_columns(length=pl.col("end") - begun).filter(
        pl.col("length") > timedelta(0)
    )
    claimed = stretches.group_by(unit).agg(claimed=pl.col("length").sum())
    owned = intervals.group_by(unit).agg(owned=(pl.col("end") - pl.col("start")).sum())
    both = claimed.join(owned, on=unit, how="left", nulls_equal=True)
    lost = pl.col("claimed") - pl.col("owned").fill_null(timedelta(0))
    return both.filter((lost > HANDOVER) & (lost * 2 > pl.col("claimed"))).select("run").unique()


def _finer(named: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Whole GPUs without those whose slices are recorded, too; and those sliced for other runs.

    A record of the whole GPU may name any one of the jobs that share it: a record of a slice counts
    before it.
    """
    gpu = ["node", "gpu"]
    whole, slices = named.filter(pl.col("mig").is_null()), named.filter(pl.col("mig").is_not_null())
    unsliced = whole.join(slices, on=["run", *gpu], how="anti")
    overruled = _overlapping(unsliced, slices, on=gpu)
    return pl.concat(
        [unsliced.join(overruled, on=unsliced.columns, how="anti", nulls_equal=True), slices]
    ), overruled


def _named_units(named: pl.DataFrame, inventory: pl.DataFrame) -> pl.DataFrame:
    """GPUs by name; a whole GPU with MIG slices becomes all its slices."""
    slices = inventory.filter(pl.col("mig").is_not_null()).select("node", "gpu", slice="mig")
    joined = named.join(slices, on=["node", "gpu"], how="left")
    return (
        joined.with_columns(mig=pl.coalesce("mig", "slice"))
        .select(*INTERVALS_SCHEMA, "rank")
        .unique()
    )


def _whole_nodes(
    unnamed: pl.DataFrame,
    named: pl.DataFrame,
    runs: pl.DataFrame,
    inventory: pl.DataFrame,
    accompanied: pl.DataFrame,
    *,
    mixed: pl.Series,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Nodes without recorded GPUs: those a run had whole, as claims on every GPU; and the others.

    A run had its nodes whole when it is exclusive, or when its GPUs are as many as theirs and those
    recorded elsewhere and it was alone on them: beside others, the node may have more GPUs than
    were seen so far. Where clusters have nodes of one name (`mixed`), GPUs beyond its own are those
    of another cluster, so their number decides for exclusive runs, too. A run with shares has the
    GPU of each node that has no other one, where no other run shares it.
    """
    there = inventory.group_by("node").agg(there=pl.col("gpu").n_unique().cast(pl.Int64))
    nodes = unnamed.select("run", "node").unique().join(there, on="node", how="left")
    unknown = pl.col("there").is_null().any()
    counted = nodes.group_by("run").agg(
        counted=pl.when(~unknown).then(pl.col("there").sum()),
        single=(pl.col("there") == 1).all() & ~unknown,
    )
    numbers = named.group_by("run").agg(
        named=pl.struct("node", "gpu", "mig").n_unique().cast(pl.Int64)
    )
    sized = unnamed.join(counted, on="run", how="left").join(numbers, on="run", how="left")
    sized = sized.join(runs.select("run", "gpus", "exclusive", "shares"), on="run", how="left")
    all_of_them = pl.col("counted") + pl.col("named").fill_null(0) == pl.col("gpus")
    shared_units = unnamed.join(accompanied, on=["run", "node"], how="semi")["run"].unique()
    alone = ~pl.col("run").is_in(shared_units.implode())
    of_one_cluster = ~pl.col("node").is_in(mixed.implode())
    whole_gpus = (pl.col("exclusive") & (of_one_cluster | all_of_them)) | (all_of_them & alone)
    one_holder = pl.when("shares").then(pl.col("single") & alone).otherwise(whole_gpus)
    decided = sized.with_columns(whole=one_holder.fill_null(value=False))
    units = (
        decided.filter(pl.col("whole")).drop("gpu", "mig").join(inventory, on="node", how="inner")
    )
    whole = units.with_columns(rank=pl.lit(RANK["whole_node"], dtype=pl.Int8)).select(
        *INTERVALS_SCHEMA, "rank"
    )
    return whole, decided.filter(~pl.col("whole"))


def _accompanied(placed: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """(run, node) where another run that may have GPUs overlapped for longer than a hand-over."""
    gpu_runs = runs.filter(pl.col("gpus").is_null() | (pl.col("gpus") > 0))
    stays = placed.join(gpu_runs, on="run", how="semi").group_by("run", "node")
    # two stays overlap by more than a hand-over exactly when they overlap with their ends that much
    # earlier
    cut = stays.agg(pl.col("start").min(), end=pl.col("end").max() - HANDOVER)
    cut = cut.filter(pl.col("start") < pl.col("end")).sort("node", "start", "run")
    before = pl.col("end").cum_max().shift(1).over("node") > pl.col("start")
    after = pl.col("start").shift(-1).over("node") < pl.col("end")
    return cut.filter(before | after).select("run", "node")


def _beside_other_clusters(placed: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """(run, node) where a run of another cluster was on a node of this name at the same time.

    Samples name the node and not its cluster, so they may be of either; not so where telemetry
    names the run's own cluster.
    """
    gpu_runs = runs.filter(pl.col("gpus").is_null() | (pl.col("gpus") > 0))
    of_cluster = gpu_runs.filter(pl.col("cluster").is_not_null()).select("run", "cluster")
    if of_cluster["cluster"].n_unique() < 2:
        return placed.select("run", "node").clear()
    ends = (pl.col("start").min(), pl.col("end").max())
    stays = placed.join(of_cluster, on="run").group_by("run", "node", "cluster").agg(ends)
    stays = stays.with_columns(host=host_name("node"))
    mixed = stays.filter(pl.col("cluster").n_unique().over("host") > 1).sort("end", "run")
    stays_beside = [mixed.select("run", "node").clear()]
    for cluster in mixed["cluster"].unique().sort():
        others = mixed.filter(pl.col("cluster") != cluster).sort("start", "run")
        begun = others.select("host", "start", until=pl.col("end").cum_max().over("host"))
        unnamed = mixed.filter(pl.col("node") == pl.col("host"), cluster=cluster)
        mine = unnamed.rename({"start": "begin"})
        near = mine.join_asof(
            begun,
            left_on="end",
            right_on="start",
            by="host",
            allow_exact_matches=False,
            check_sortedness=False,
        )
        stays_beside.append(near.filter(pl.col("until") > pl.col("begin")).select("run", "node"))
    return pl.concat(stays_beside)


def _sampled_elsewhere(placed: pl.DataFrame, inventory: pl.DataFrame) -> pl.DataFrame:
    """(run, node, telemetry) of nodes of which only other clusters have telemetry, and these."""
    names = pl.col("node").str.split_exact(CLUSTER_MARK, 1).struct
    of_clusters = inventory.select(node=names.field("field_0"), telemetry=names.field("field_1"))
    others = of_clusters.drop_nulls().join(inventory, on="node", how="anti").unique()
    return placed.select("run", "node").unique().join(others, on="node")


def separate(claims: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return (intervals, contested) from claims that may overlap on a GPU.

    A better rank wins; of equal rank, an overlap of a minute or less is a hand-over and goes to the
    run that began later; a longer one is contested and goes to no run. Empty claims are left out.
    """
    claims = claims.filter(pl.col("start") < pl.col("end"))
    unit = ["node", "gpu", "mig"]
    ordered = claims.sort(*unit, "start", "end", "run")
    clash = pl.col("start") < pl.col("end").cum_max().shift(1).over(unit)
    shared_units = ordered.filter(clash).select(unit).unique()
    clean = ordered.join(shared_units, on=unit, how="anti", nulls_equal=True).select(
        *INTERVALS_SCHEMA
    )
    owned: list[tuple[object, ...]] = []
    contested: list[tuple[object, ...]] = []
    overlapping = ordered.join(shared_units, on=unit, how="semi", nulls_equal=True)
    for key, group in overlapping.group_by(unit, maintain_order=True):
        for run, start, end in _sweep(group):
            target = contested if run is None else owned
            target.append((run, *key, start, end))
    frames = [
        pl.DataFrame(rows, schema=INTERVALS_SCHEMA, orient="row") for rows in (owned, contested)
    ]
    return _joined(pl.concat([clean, frames[0]]).sort(*unit, "start")), frames[1].drop("run")


def _joined(intervals: pl.DataFrame) -> pl.DataFrame:
    """Sorted intervals, with consecutive ones of a run and GPU merged."""
    goes_on = (pl.col("run") == pl.col("run").shift(1)) & (
        pl.col("start") == pl.col("end").shift(1)
    )
    piece = (~goes_on.over(*GPU_KEY).fill_null(value=False)).cum_sum().alias("piece")
    numbered = intervals.with_columns(piece)
    ends = (pl.col("start").first(), pl.col("end").last())
    whole = numbered.group_by("piece", "run", *GPU_KEY, maintain_order=True).agg(ends)
    return whole.select(*INTERVALS_SCHEMA)


def _between_runs(
    intervals: pl.DataFrame, by_samples: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return intervals without seconds in which the GPU was just handed over; and these.

    If a run ends and another starts in the same second, samples of this second belong to neither. A
    start with a fraction of a second decides, and so do samples that name their job (`by_samples`:
    rows of such runs and GPUs).
    """
    follows = (pl.col("start") == pl.col("end").shift(1)) & (
        pl.col("run") != pl.col("run").shift(1)
    )
    whole = pl.col("start").dt.microsecond() == 0
    named = by_samples.select("run", "node", "gpu", named=pl.lit(value=True)).unique()
    marked = intervals.with_columns(unsure=follows.over(*GPU_KEY).fill_null(value=False) & whole)
    marked = marked.join(named, on=["run", "node", "gpu"], how="left", maintain_order="left")
    unsure = pl.col("unsure") & pl.col("named").is_null()
    rest = marked.with_columns(
        start=pl.when(unsure).then(pl.col("start") + SECOND).otherwise("start")
    )
    between = marked.filter(unsure).with_columns(
        end=pl.min_horizontal("end", pl.col("start") + SECOND)
    )
    columns = list(INTERVALS_SCHEMA)
    return rest.filter(pl.col("start") < pl.col("end")).select(columns), between.select(columns)


def _sweep(group: pl.DataFrame) -> list[tuple[int | None, object, object]]:
    """Return one GPU's stretches between claim boundaries, with owner; None: contested."""
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
        equals = sorted(
            (claim for claim in here if claim[2] == rank), key=lambda claim: (claim[0], claim[3])
        )
        owner: int | None = equals[-1][3]
        if len({claim[3] for claim in equals}) > 1:
            overlap = min(claim[1] for claim in equals) - max(claim[0] for claim in equals)
            owner = owner if overlap <= HANDOVER and equals[-1][0] > equals[0][0] else None
        if stretches and stretches[-1][0] == owner and stretches[-1][2] == low:
            stretches[-1] = (owner, stretches[-1][1], high)
        else:
            stretches.append((owner, low, high))
    return stretches
