"""The newest rows of polled sources as a snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl

from tachograph.annexes.watch.live.snapshot import GpuAllocation, GpuDevice, GpuId, Snapshot
from tachograph.catalog.arrays import Floats
from tachograph.catalog.counters import COUNTER_NAMES
from tachograph.catalog.tables import GPU_KEY
from tachograph.lake.newest_rows import ALLOCATIONS, DEVICES, SAMPLES, NewestTables
from tachograph.lake.places import PAIR, ClusterNames, cluster_pairs, in_accounting

_SINGLE_DIGITS = 7  # decimal digits that single precision holds


@dataclass(frozen=True, slots=True)
class NodeClusters:
    """Clusters of each node, as the accounting names them; empty where there are not several.

    same_clusters: as in `ClusterNames`. A cluster that the accounting has by no name keeps its own.
    """

    of_node: Mapping[str, frozenset[str]]
    same_clusters: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, telemetry: Sequence[pl.DataFrame], names: ClusterNames) -> NodeClusters:
        """Return the clusters in rows of telemetry."""
        pairs = in_accounting(cluster_pairs(telemetry), names.same).unique()
        named = set(pairs["cluster"])
        if not named or len(named | names.accounted) < 2:
            return cls({}, names.same)
        nodes = pairs.group_by("node").agg("cluster")
        of_node = {node: frozenset(clusters) for node, clusters in nodes.iter_rows()}
        return cls(of_node, names.same)

    def cluster_of(self, node: str, named: str | None) -> str | None:
        """Return the cluster of a row: the one it names, else the only one that has the node."""
        if not self.of_node:
            return None
        clusters = self.of_node.get(node, frozenset())
        if named in frozenset().union(*self.of_node.values()):
            return named
        return next(iter(clusters)) if len(clusters) == 1 else None

    def resolve(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return rows with their cluster, null where there are not several."""
        rows = in_accounting(rows, self.same_clusters)
        pairs = rows.select(PAIR).unique()
        clusters = [self.cluster_of(node, named) for node, named in pairs.iter_rows()]
        table = pairs.with_columns(resolved=pl.Series(clusters, dtype=pl.String))
        joined = rows.join(table, on=PAIR, how="left", nulls_equal=True, maintain_order="left")
        return joined.with_columns(cluster="resolved").drop("resolved")


def newest_snapshot(
    sources: Sequence[NewestTables], now: float, names: ClusterNames | None = None
) -> Snapshot:
    """Merge several sources: for each GPU and counter the latest value wins.

    names: of clusters, as a lake knows them.
    """
    telemetry = [source.table(name) for source in sources for name in (SAMPLES, DEVICES)]
    clusters = NodeClusters.of(telemetry, names or ClusterNames())
    current = []
    for source in sources:
        oldest = datetime.fromtimestamp(now - source.kept_s, UTC)
        current.append(source.table(SAMPLES).filter(pl.col("t") > oldest))
    samples = clusters.resolve(pl.concat(current)).sort("t", maintain_order=True)
    samples = samples.group_by(*GPU_KEY, "cluster").agg(pl.all().drop_nulls().last())
    samples = samples.sort("node", "cluster", "gpu", "mig", nulls_last=False)
    gpus = tuple(GpuId(*key) for key in samples.select(*GPU_KEY, "cluster").iter_rows())
    columns = {name: _numbers(samples[name]) for name in COUNTER_NAMES}
    values = {name: column for name, column in columns.items() if not np.isnan(column).all()}
    measured = samples["t"].dt.timestamp("us").cast(pl.Float64).to_numpy() / 1e6
    devices: dict[GpuId, GpuDevice] = {}
    for source in sources:
        for row in clusters.resolve(source.table(DEVICES)).iter_rows(named=True):
            gpu, device = device_of(row)
            devices[gpu] = device
    return Snapshot(now, gpus, measured, values, devices, _labelled(sources, clusters))


def device_of(row: Mapping[str, Any]) -> tuple[GpuId, GpuDevice]:
    """Return a row of `devices`, of a resolved cluster."""
    gpu = GpuId(row["node"], row["gpu"], row["mig"], row["cluster"])
    names = ("model", "uuid", "pci", "hbm_mib", "minor_number")
    return gpu, GpuDevice(**{name: row[name] for name in names})


def _numbers(column: pl.Series) -> Floats:
    """Column in double precision; single-precision values as they were written."""
    double = column.cast(pl.Float64)
    if column.dtype == pl.Float32:
        double = double.round_sig_figs(_SINGLE_DIGITS)
    return double.fill_null(np.nan).to_numpy()


def _labelled(
    sources: Sequence[NewestTables], clusters: NodeClusters
) -> Mapping[GpuId, GpuAllocation]:
    """Jobs that labels of samples name."""
    jobs: dict[GpuId, list[str]] = {}
    for source in sources:
        labels = clusters.resolve(source.table(ALLOCATIONS))
        for *gpu, job in labels.select(*GPU_KEY, "cluster", "job_id").iter_rows():
            jobs.setdefault(GpuId(*gpu), []).append(job)
    return {gpu: GpuAllocation(",".join(dict.fromkeys(names))) for gpu, names in jobs.items()}
