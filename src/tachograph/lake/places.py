"""Nodes of several clusters under one name: which rows are of the same node.

Rows that name no cluster are of the only cluster that has such a node. Where two clusters have it,
the rows of a cluster whose telemetry names it are a node of their own, called by node and cluster
while GPUs are numbered and jobs analyzed; nothing is stored under such a name. One cluster may have
a name in telemetry and another one in the accounting (`same_clusters`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import msgspec
import polars as pl

from tachograph.catalog.chunks import CLUSTER_MARK, ChunkPart
from tachograph.catalog.tables import (
    ALLOCATIONS,
    ANALYSES,
    BY_SAMPLES,
    DEVICES,
    GPU_KEY,
    JOB_SUMMARIES,
    JOBS,
    NODE_SAMPLES,
    LakeTable,
)
from tachograph.lake.conform import resolve
from tachograph.lake.delta import Lake
from tachograph.lake.partitions import Partition, read_partition
from tachograph.lake.problems import lake_errors

PAIR = ("node", "cluster")
# Shares of nodes that two names of one cluster have in common, our choice: nearly all that jobs
# held have telemetry, and not every node with telemetry had a job.
LEAST_HELD, LEAST_RECORDED = 0.9, 0.5
_PLACES = {"node": pl.String(), "cluster": pl.String(), "place": pl.String()}


def cluster_pairs(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the (node, cluster) of rows that name both, each once."""
    named = [
        frame.select(pl.col(PAIR).cast(pl.String))
        for frame in frames
        if {*PAIR} <= {*frame.columns} and frame["cluster"].null_count() < frame.height
    ]
    return pl.concat([pl.DataFrame(schema=_PLACES).select(PAIR), *named]).drop_nulls().unique()


def same_clusters(
    telemetry: pl.DataFrame, accounting: pl.DataFrame, *, accounted: pl.Series
) -> dict[str, str]:
    """Return {name in telemetry: name in the accounting} of clusters that have two names.

    `telemetry`, `accounting`: pairs; `accounted`: all names of the accounting. Two names are of one
    cluster where each is on one side only, the nodes of each are, beside its own, those of the
    other alone (where a third cluster has a node of such a name, nothing is certain), and most
    nodes have both: clusters whose telemetry and accounting are missing may share a few names.
    """
    pairs = pl.concat([telemetry, accounting]).unique()
    neighbours = pairs.join(pairs.rename({"cluster": "other"}), on="node")
    others = (
        neighbours.filter(pl.col("cluster") != pl.col("other"))
        .group_by("cluster")
        .agg(pl.col("other").unique())
        .filter(pl.col("other").list.len() == 1)
        .with_columns(pl.col("other").list.first())
    )
    only = dict(others.iter_rows())
    nodes_of = {name: {*nodes} for name, nodes in pairs.group_by("cluster").agg("node").iter_rows()}
    recorded, named = set(telemetry["cluster"]), {*accounting["cluster"], *accounted}
    return {
        name: only[name]
        for name in sorted(only)
        if name not in named
        and only[name] not in recorded
        and only.get(only[name]) == name
        and _are_most(nodes_of[name], nodes_of[only[name]])
    }


def _are_most(recorded: Set[str], held: Set[str]) -> bool:
    """Return whether the nodes with telemetry and those that jobs held are those of one cluster."""
    shared = len(recorded & held)
    return shared >= LEAST_HELD * len(held) and shared >= LEAST_RECORDED * len(recorded)


def in_accounting(frame: pl.DataFrame, same: Mapping[str, str]) -> pl.DataFrame:
    """Return rows with the accounting's names of clusters; `same`: of `same_clusters`."""
    if not same or "cluster" not in frame.columns:
        return frame
    return frame.with_columns(pl.col("cluster").cast(pl.String).replace(dict(same)))


def read_same_clusters(lake: Lake) -> dict[str, str]:
    """Return the `same_clusters` of the last analysis; before the first, those of the rows."""
    if lake.version(ANALYSES) < 0 and lake.version(JOB_SUMMARIES) < 0:
        return RecordedClusters.of(lake, sampled_pairs(lake)).same
    names = lake.latest(ANALYSES, ("same_clusters",))["same_clusters"].to_list()
    return msgspec.json.decode(names[-1], type=dict[str, str]) if names and names[-1] else {}


@dataclass(frozen=True, slots=True)
class ClusterNames:
    """What a lake knows of the names of clusters, for rows that are not in it.

    `same`: of `same_clusters`; `accounted`: names of the accounting.
    """

    same: Mapping[str, str] = field(default_factory=dict)
    accounted: frozenset[str] = frozenset()

    @classmethod
    def of(cls, lake: Lake) -> ClusterNames:
        """Return the names that a lake has. Errors: LakeError."""
        return cls(read_same_clusters(lake), frozenset(read_accounted(lake)))


@dataclass(frozen=True, slots=True)
class RecordedClusters:
    """Who has a node of a name, by all rows of a lake: (node, cluster) pairs.

    `sampled`: of telemetry; `labelled`: of jobs that samples name; `held`: of the accounting and
    maps. `accounted`: all names of the accounting.
    """

    sampled: pl.DataFrame
    labelled: pl.DataFrame
    held: pl.DataFrame
    accounted: pl.Series

    @classmethod
    def of(cls, lake: Lake, sampled: pl.DataFrame) -> RecordedClusters:
        """Return the clusters of a lake. `sampled`: of `sampled_pairs`. Errors: LakeError."""
        by_samples = pl.col("provenance") == BY_SAMPLES
        labelled = cluster_pairs([_pairs_of(lake, ALLOCATIONS, by_samples)])
        held = cluster_pairs([_pairs_of(lake, ALLOCATIONS, ~by_samples)])
        return cls(sampled, labelled, held, read_accounted(lake))

    @property
    def same(self) -> dict[str, str]:
        """The `same_clusters` of these rows."""
        telemetry = pl.concat([self.sampled, self.labelled]).unique()
        return same_clusters(telemetry, self.held, accounted=self.accounted)

    @property
    def possible_names(self) -> dict[str, tuple[str, ...]]:
        """Return {name in telemetry: names in the accounting of clusters that may be meant}.

        They have nodes of the same names; or one has this name, and none of these nodes.
        """
        on_nodes = self.sampled.join(self.held.rename({"cluster": "name"}), on="node")
        named = self.sampled.filter(pl.col("cluster").is_in(self.accounted.implode()))
        possible = pl.concat(
            [on_nodes.select("cluster", "name"), named.select("cluster", name="cluster")]
        )
        names = possible.group_by("cluster").agg(pl.col("name").unique().sort())
        return {cluster: tuple(of_cluster) for cluster, of_cluster in names.iter_rows()}


def sampled_pairs(lake: Lake) -> pl.DataFrame:
    """Return the (node, cluster) that telemetry in a lake names. Errors: LakeError."""
    tables = [_pairs_of(lake, DEVICES)]
    if any("cluster" not in file.empty for file in lake.files(NODE_SAMPLES)):
        tables.append(_pairs_of(lake, NODE_SAMPLES))
    return cluster_pairs(tables)


def read_accounted(lake: Lake) -> pl.Series:
    """Return the names of clusters in the accounting, each once. Errors: LakeError."""
    with lake_errors(lake.uri(JOBS)):
        return lake.scan(JOBS).select("cluster").drop_nulls().unique().collect()["cluster"]


def _pairs_of(lake: Lake, table: LakeTable, where: pl.Expr | bool = True) -> pl.DataFrame:
    with lake_errors(lake.uri(table)):
        return lake.scan(table).filter(where).select(PAIR).unique().collect(engine="streaming")


def without_places(frame: pl.DataFrame) -> pl.DataFrame:
    """Return rows with the names of nodes as they are stored."""
    return frame.with_columns(host_name("node").alias("node"))


def host_name(column: str) -> pl.Expr:
    """Return the name of a node without its cluster."""
    return pl.col(column).str.split(CLUSTER_MARK).list.first()


def may_be_of(cluster: str | pl.Expr) -> pl.Expr:
    """Return whether a row may be of the cluster in a column: none of the two is another one."""
    other = pl.col(cluster) if isinstance(cluster, str) else cluster
    return (pl.col("cluster") == other).fill_null(value=True)


@dataclass(frozen=True, slots=True)
class NodePlaces:
    """Names that tell nodes of one name apart: (node, cluster, place)."""

    table: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_PLACES))

    @classmethod
    def of(cls, sampled: pl.DataFrame, others: pl.DataFrame | None = None) -> NodePlaces:
        """Return the places of nodes that several clusters have.

        `sampled`: pairs of telemetry, `others`: those that only jobs name.
        """
        pairs = sampled if others is None else pl.concat([sampled, others]).unique()
        several = pairs.group_by("node").len().filter(pl.col("len") > 1)
        shared = sampled.join(several, on="node", how="semi")
        return cls(shared.with_columns(place=pl.concat_str(*PAIR, separator=CLUSTER_MARK)))

    def named(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return rows, of tables with `cluster`, with the places of their nodes."""
        if self.table.is_empty() or not {*PAIR} <= {*frame.columns}:
            return frame
        rows = frame.with_columns(pl.col(PAIR).cast(pl.String))
        joined = rows.join(self.table, on=PAIR, how="left", maintain_order="left")
        return joined.with_columns(node=pl.coalesce("place", "node")).drop("place")

    def devices(self, devices: pl.DataFrame) -> pl.DataFrame:
        """Return rows of `devices`, in the order of commits, one per (place, gpu, mig)."""
        if devices["cluster"].null_count() == devices.height:
            return devices
        merged = self.named(devices).group_by(GPU_KEY, maintain_order=True)
        return merged.agg(pl.all().drop_nulls().last()).select(devices.columns)

    def part(self, part: ChunkPart) -> ChunkPart:
        """Return a part, and the GPUs of its labels, with places."""
        names = set(self.table["place"])
        gpus = tuple(
            gpu if gpu.node in names else gpu._replace(node=gpu.node.partition(CLUSTER_MARK)[0])
            for gpu in part.gpus
        )
        return replace(part, frame=self.named(part.frame), gpus=gpus)


def read_places(
    lake: Lake, table: LakeTable, part: Partition, columns: Sequence[str], places: NodePlaces
) -> pl.DataFrame:
    """Return the samples of a partition as `read_partition` does, with the places of nodes.

    Samples that name no cluster complete those of the only cluster that has the node.
    """
    if not part.has("cluster"):
        return read_partition(lake, table, part, columns)[0]
    names = list(dict.fromkeys((*table.key, *columns, "seq")))
    frame = places.named(read_partition(lake, table, part, names)[0])
    nulls = frame["cluster"].null_count()
    if 0 < nulls < frame.height:
        frame = resolve(frame.with_columns(cluster=pl.lit(None, pl.String)), table)[0]
    return frame.select(columns)
