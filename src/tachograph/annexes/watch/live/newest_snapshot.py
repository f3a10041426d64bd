"""The newest rows of polled sources as a snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import numpy as np
import polars as pl

from tachograph.annexes.watch.live.snapshot import GpuAllocation, GpuDevice, GpuId, Snapshot
from tachograph.catalog.arrays import Floats
from tachograph.catalog.counters import COUNTER_NAMES
from tachograph.catalog.tables import GPU_KEY
from tachograph.lake.newest_rows import ALLOCATIONS, DEVICES, HOLDING, SAMPLES, NewestTables

_SINGLE_DIGITS = 7  # decimal digits that single precision holds


def newest_snapshot(sources: Sequence[NewestTables], now: float) -> Snapshot:
    """Merge several sources: for each GPU and counter the latest value wins."""
    current = []
    for source in sources:
        oldest = datetime.fromtimestamp(now - source.kept_s, UTC)
        current.append(source.table(SAMPLES).filter(pl.col("t") > oldest))
    samples = pl.concat(current).sort("t", maintain_order=True)
    samples = (
        samples.group_by(GPU_KEY).agg(pl.all().drop_nulls().last()).sort(*GPU_KEY, nulls_last=False)
    )
    gpus = tuple(GpuId(*key) for key in samples.select(*GPU_KEY).iter_rows())
    columns = {name: _numbers(samples[name]) for name in COUNTER_NAMES}
    values = {name: column for name, column in columns.items() if not np.isnan(column).all()}
    measured = samples["t"].dt.timestamp("us").cast(pl.Float64).to_numpy() / 1e6
    devices: dict[GpuId, GpuDevice] = {}
    for source in sources:
        for row in source.table(DEVICES).iter_rows(named=True):
            devices[GpuId(row["node"], row["gpu"], row["mig"])] = GpuDevice(
                row["model"],
                row["uuid"],
                row["pci"],
                row["hbm_mib"],
                minor_number=row["minor_number"],
            )
    return Snapshot(now, gpus, measured, values, devices, _labelled(sources))


def _numbers(column: pl.Series) -> Floats:
    """Column in double precision; single-precision values as they were written."""
    double = column.cast(pl.Float64)
    if column.dtype == pl.Float32:
        double = double.round_sig_figs(_SINGLE_DIGITS)
    return double.fill_null(np.nan).to_numpy()


def _labelled(sources: Sequence[NewestTables]) -> Mapping[GpuId, GpuAllocation]:
    """Jobs that labels of samples name."""
    jobs: dict[GpuId, list[str]] = {}
    for source in sources:
        for node, gpu, mig, job in source.table(ALLOCATIONS).select(*HOLDING).iter_rows():
            jobs.setdefault(GpuId(node, gpu, mig), []).append(job)
    return {gpu: GpuAllocation(",".join(dict.fromkeys(names))) for gpu, names in jobs.items()}
