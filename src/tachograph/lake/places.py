"""Nodes of several clusters under one name: which rows are of the same node.

Rows that name no cluster are of the only cluster that has such a node. Where two clusters have it,
the rows of a cluster whose telemetry names it are a node of their own, called by node and cluster
while GPUs are numbered and jobs analyzed; nothing is stored under such a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from tachograph.catalog.chunks import CLUSTER_MARK, ChunkPart
from tachograph.catalog.tables import GPU_KEY, LakeTable
from tachograph.lake.conform import resolve
from tachograph.lake.delta import Lake
from tachograph.lake.partitions import Partition, read_partition

PAIR = ("node", "cluster")
_PLACES = {"node": pl.String(), "cluster": pl.String(), "place": pl.String()}


def cluster_pairs(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the (node, cluster) of rows that name both, each once."""
    named = [
        frame.select(pl.col(PAIR).cast(pl.String))
        for frame in frames
        if {*PAIR} <= {*frame.columns} and frame["cluster"].null_count() < frame.height
    ]
    return pl.concat([pl.DataFrame(schema=_PLACES).select(PAIR), *named]).drop_nulls().unique()


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
        known = set(self.table["place"])
        gpus = tuple(
            gpu if gpu.node in known else gpu._replace(node=gpu.node.partition(CLUSTER_MARK)[0])
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
