"""The last instant of a recording or another lake as a live source."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tachograph.annexes.watch.live.newest_snapshot import NodeClusters, device_of
from tachograph.annexes.watch.live.selection import is_of
from tachograph.annexes.watch.live.snapshot import (
    GpuAllocation,
    GpuDevice,
    GpuId,
    Snapshot,
    SourceInfo,
)
from tachograph.catalog.arrays import Floats, Longs
from tachograph.catalog.columns import local_time
from tachograph.catalog.config import SlurmOptions
from tachograph.catalog.counters import COUNTER_NAMES
from tachograph.catalog.errors import InputError
from tachograph.catalog.tables import ALLOCATIONS, DEVICES, GPU_KEY, JOBS, STEPS, TABLES
from tachograph.catalog.units import plural, text
from tachograph.lake.delta import Lake
from tachograph.lake.places import ClusterNames, NodePlaces, cluster_pairs, in_accounting
from tachograph.lake.query import SampleReader, read_latest
from tachograph.pipeline.attribution import attribute
from tachograph.pipeline.job_runs import build_runs, with_clusters, with_pod_jobs, with_raw_ids

if TYPE_CHECKING:
    from tachograph.catalog.config import Configuration

# Before the last values, in which an instant is searched at which more GPUs report.
LAST_S: Final = 900.0
_HOLD_INTERVALS = 3.0  # a value counts for so long without a new sample
_MARGIN_S = 0.5  # samples are not exactly an interval apart
_JUST_BEFORE_S = 0.001  # the end of a job, where it holds its GPUs still
_EARLY_S = 60.0  # before the end of a recording: then the distance is named
_PLACES = {
    "node": pl.String(),
    "gpu": pl.Int16(),
    "mig": pl.Int16(),
    "cluster": pl.String(),
    "place": pl.Int32(),
}


@dataclass(frozen=True, slots=True)
class RecordedAllocation:
    """A recorded allocation of a GPU; times in seconds since 1970."""

    gpu: GpuId
    start: float
    end: float
    allocation: GpuAllocation


def connect(configuration: Configuration, *, path: str, job: str | None = None) -> RecordingSource:
    """Return the last instant of the lake at `path`, or of a job in it.

    Errors: InputError, LakeError without a lake or samples.
    """
    local = "://" not in path
    if local and not Path(path).exists():
        raise InputError(
            "no such recording", where=path, do="name a folder of `tachograph record`, or a lake"
        )
    if local and not any((Path(path) / table / "_delta_log").is_dir() for table in TABLES):
        inside = Path(path) / "lake"
        do = "name a folder of `tachograph record`, or a lake"
        if inside.is_dir():
            do = f"name {inside}"
        raise InputError("no recording and no lake in this folder", where=path, do=do)
    return RecordingSource(Lake.open(path), job=job, zone_name=configuration.site.time_zone)


class RecordingSource:
    """Last instant of a lake when half of the GPUs (or of a job's) reported something.

    If half of them never reported in the last quarter of an hour with values: the instant at which
    most did. zone_name: of the times in its description.
    """

    def __init__(self, lake: Lake, *, job: str | None = None, zone_name: str = "UTC") -> None:
        samples = SampleReader(lake)
        if samples.span is None:
            raise InputError(
                "the lake has no GPU samples", where=lake.location, do="name another one"
            )
        first, last = samples.span
        listed, names = read_latest(lake, DEVICES), ClusterNames.of(lake)
        self._clusters = NodeClusters.of([listed], names)
        rows_of_gpus = self._clusters.resolve(listed).group_by(
            *GPU_KEY, "cluster", maintain_order=True
        )
        merged = rows_of_gpus.agg(pl.all().drop_nulls().last())
        devices = dict(map(device_of, merged.iter_rows(named=True)))
        self._gpus = tuple(sorted(devices, key=GpuId.order))
        notes = list(_recorder_notes(lake.location))
        self._devices = _with_slowdown(devices, notes, self._clusters)
        allocations = _allocations_of_lake(lake, listed, self._clusters, last)
        self._span = first.timestamp(), last.timestamp()
        of_job = [
            allocation
            for allocation in allocations
            if job is not None and is_of(allocation.allocation, allocation.gpu, (job,))
        ]
        ends = [allocation.end - _JUST_BEFORE_S for allocation in of_job]
        rows = self._rows(samples, min(last.timestamp(), max(ends, default=math.inf)), first)
        if rows.is_empty():
            raise InputError(
                "no GPU sample has a value", where=lake.location, do="name another recording"
            )
        interval_s = min((float(note["interval_s"]) for note in notes), default=0.0) or _interval_s(
            rows
        )
        self._hold_s = _HOLD_INTERVALS * interval_s + _MARGIN_S
        held = {allocation.gpu for allocation in of_job}
        counted = [index for index, gpu in enumerate(self._gpus) if gpu in held or not held]
        t = _instant(rows, counted, self._hold_s)
        self._snapshot = self._at(rows, t, allocations)
        described = [note["source"] for note in notes if note["source"]]
        unsupported: Mapping[str, str] = described[0]["blind"] if described else {}
        sentence = self._sentence(t, of_job=job is not None, zone_name=zone_name)
        self.about = SourceInfo("recording", sentence, unsupported)

    def read(self) -> Snapshot:
        """Return the snapshot of this instant."""
        return self._snapshot

    def close(self) -> None:
        """Nothing is open."""

    def _rows(self, samples: SampleReader, end: float, first: datetime) -> pl.DataFrame:
        """Samples of 15 minutes with values before `end`: place, t in seconds, counters."""
        gpu_indices = _indices_of(self._gpus)
        until = datetime.fromtimestamp(end, UTC) + timedelta(microseconds=1)
        reach_s = LAST_S
        while True:
            since = until - timedelta(seconds=reach_s)
            rows = self._clusters.resolve(samples.read(max(first, since), until))
            rows = rows.join(gpu_indices, on=[*GPU_KEY, "cluster"], how="inner", nulls_equal=True)
            rows = rows.filter(pl.any_horizontal(pl.col(COUNTER_NAMES).is_not_null()))
            if rows.height or since <= first:
                break
            reach_s *= 4.0  # the end of the lake may hold no values at all
        seconds = pl.col("t").dt.timestamp("us").cast(pl.Float64) / 1e6
        rows = rows.select("place", seconds.alias("t"), *COUNTER_NAMES)
        return rows.filter(pl.col("t") >= pl.col("t").max() - LAST_S).sort("t")

    def _at(self, rows: pl.DataFrame, t: float, allocations: list[RecordedAllocation]) -> Snapshot:
        """Last row of each GPU that is still valid at `t`."""
        newest = rows.filter((pl.col("t") <= t) & (pl.col("t") >= t - self._hold_s))
        newest = newest.unique("place", keep="last", maintain_order=True)
        indices: Longs = newest.get_column("place").cast(pl.Int64).to_numpy()
        measured = np.full(len(self._gpus), np.nan)
        measured[indices] = newest.get_column("t").to_numpy()
        values: dict[str, Floats] = {}
        for name in COUNTER_NAMES:
            column = newest.get_column(name)
            if column.null_count() < len(column):
                values[name] = np.full(len(self._gpus), np.nan)
                values[name][indices] = column.cast(pl.Float64).fill_null(math.nan).to_numpy()
        held = {
            allocation.gpu: allocation.allocation
            for allocation in allocations
            if allocation.start <= t < allocation.end
        }
        return Snapshot(t, self._gpus, measured, values, self._devices, held)

    def _sentence(self, t: float, *, of_job: bool, zone_name: str) -> str:
        first, last, now = (
            local_time(datetime.fromtimestamp(at, UTC), zone_name) for at in (*self._span, t)
        )
        # Named once, unless clocks changed meanwhile.
        first = first.removesuffix(last[len("2026-01-01 00:00:00") :])
        early_s = self._span[1] - t
        before = ""
        if early_s > _EARLY_S and not of_job:
            before = f", {text(early_s, 's')} before its end"
        some = ""
        reporting = int(np.isfinite(self._snapshot.measured).sum())
        if reporting < len(self._gpus):
            some = f"; {reporting:,} of {plural(len(self._gpus), 'GPU')} measured"
        return (
            f"recording of {plural(len(self._gpus), 'GPU')}, {first} to {last}; as of "
            f"{now}{before}{some}"
        )


def _instant(rows: pl.DataFrame, counted: Sequence[int], hold_s: float) -> float:
    """Return the last time at which half of the GPUs report, else most."""
    t: Floats = rows.get_column("t").to_numpy()
    indices: Longs = rows.get_column("place").cast(pl.Int64).to_numpy()
    relevant = np.isin(indices, counted)
    if relevant.any():
        t, indices = t[relevant], indices[relevant]
    best, largest, end = float(t[-1]), 0, len(t)
    while end:
        now = float(t[end - 1])
        begin = int(np.searchsorted(t, now - hold_s))
        reporting = len(np.unique(indices[begin:end]))
        if reporting > largest:
            best, largest = now, reporting
        if 2 * reporting >= len(counted):
            break
        end = begin
    return best


def _interval_s(rows: pl.DataFrame) -> float:
    """Median sampling interval of a GPU, s; 1 if none has two samples."""
    steps = (
        rows.select(pl.col("t").diff().over("place"))
        .drop_nulls()
        .filter(pl.col("t") > 0)
        .get_column("t")
    )
    return float(np.median(steps.to_numpy())) if len(steps) else 1.0


def _indices_of(gpus: tuple[GpuId, ...]) -> pl.DataFrame:
    rows = [(gpu.node, gpu.gpu, gpu.mig, gpu.cluster, at) for at, gpu in enumerate(gpus)]
    return pl.DataFrame(rows, schema=_PLACES, orient="row")


def _with_slowdown(
    devices: dict[GpuId, GpuDevice], notes: list[Mapping[str, Any]], clusters: NodeClusters
) -> Mapping[GpuId, GpuDevice]:
    """The devices with their throttling temperature, where a recorder noted it."""
    for note in notes:
        for entry in note["slowdown_c"]:
            cluster = clusters.cluster_of(entry["node"], None)
            gpu = GpuId(entry["node"], entry["gpu"], entry["mig"], cluster)
            if gpu in devices:
                devices[gpu] = replace(devices[gpu], slowdown_c=entry["slowdown_c"])
    return devices


def _recorder_notes(location: str) -> Iterator[Mapping[str, Any]]:
    """Notes of `tachograph record` beside the tables."""
    if "://" in location:
        return
    for file in sorted(Path(location, "recordings").glob("*.json")):
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(document, dict) and {"slowdown_c", "interval_s", "source"} <= document.keys():
            yield document


def _allocations_of_lake(
    lake: Lake, devices: pl.DataFrame, clusters: NodeClusters, last: datetime
) -> list[RecordedAllocation]:
    """Allocations, as in an analysis."""
    jobs = read_latest(lake, JOBS)
    pods = read_latest(lake, STEPS)
    allocations = with_raw_ids(with_pod_jobs(read_latest(lake, ALLOCATIONS), pods), jobs)
    if allocations.is_empty():
        return []
    allocations = in_accounting(allocations, clusters.same_clusters)
    accounted = in_accounting(devices, clusters.same_clusters)
    named = pl.concat([jobs["cluster"], allocations["cluster"]]).drop_nulls().unique()
    allocations = with_clusters(allocations, jobs, named)
    node_places = NodePlaces.of(cluster_pairs([accounted]), cluster_pairs([allocations]))
    allocations = node_places.named(allocations)
    # a job that runs still holds its GPUs at the last instant, which is not before its end
    now = last + timedelta(microseconds=1)
    runs = build_runs(jobs, allocations, slurm=SlurmOptions(), now=now, clusters=named)
    units = node_places.named(accounted)
    gpus = {
        unit: GpuId(*gpu)
        for unit, gpu in zip(
            units.select(GPU_KEY).iter_rows(),
            clusters.resolve(devices).select(*GPU_KEY, "cluster").iter_rows(),
            strict=True,
        )
    }
    owned = attribute(runs, allocations, units.select(GPU_KEY).unique()).intervals
    held = owned.join(
        runs.select("run", "display_id", "user", began=pl.col("start")),
        on="run",
        maintain_order="left",
    )
    return [
        RecordedAllocation(
            gpus[row["node"], row["gpu"], row["mig"]],
            row["start"].timestamp(),
            row["end"].timestamp(),
            GpuAllocation(row["display_id"], row["user"], row["began"].timestamp()),
        )
        for row in held.iter_rows(named=True)
        if (row["node"], row["gpu"], row["mig"]) in gpus  # else no telemetry names it
    ]
