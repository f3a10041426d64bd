"""Rows of a recording, a stretch of time at a time: from a lake, or from a spool that has not become tables yet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl

from tachograph.attribute.intervals import attribute
from tachograph.attribute.runs import build_runs
from tachograph.config import Slurm
from tachograph.counters import COUNTERS
from tachograph.errors import InputError
from tachograph.lake import Lake
from tachograph.lake.problems import lake_errors
from tachograph.lake.resolve import resolve
from tachograph.live.snapshot import Device, Gpu, Holder
from tachograph.schema import ALLOCATIONS, DEVICES, GPU_SAMPLES, JOBS, TABLES, TIME
from tachograph.sources.recording import Spooled
from tachograph.spool import SUFFIX, Rows, read_spool

SINGLES = tuple(counter.name for counter in COUNTERS if counter.storage == "f32")
DOUBLES = tuple(counter.name for counter in COUNTERS if counter.storage != "f32")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Tenure:
    """Who held a GPU from when to when, in seconds since 1970."""

    gpu: Gpu
    start: float
    end: float
    holder: Holder


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of a recording before its rows are read. first, last: microseconds since 1970."""

    gpus: tuple[Gpu, ...]
    devices: Mapping[Gpu, Device]
    tenures: Sequence[Tenure]
    first: int
    last: int
    rows: int
    interval_s: float | None = None
    blind: Mapping[str, str] = field(default_factory=dict)


class Recorded(Protocol):
    """A recording. Rows are those of counters `SINGLES` and `DOUBLES`, in order of time."""

    told: Told

    def rows(self, first: int, end: int) -> Rows:
        """Return the rows of [first, end); places of GPUs are those in `told.gpus`."""
        ...


def open_recorded(path: str) -> Recorded:
    """Return what was recorded in a lake, a folder of spools, or a spool. Errors: InputError, LakeError."""
    place = Path(path)
    if "://" not in path and not place.exists():
        raise InputError("no such recording", where=path, do="name a folder of `tachograph record`, or a lake")
    if place.is_file():
        return OfSpools([place])
    spools = [] if "://" in path else sorted(place.rglob(f"*{SUFFIX}"))
    if spools and not any((place / table / "_delta_log").is_dir() for table in TABLES):
        return OfSpools(spools)
    if "://" not in path and not any((place / table / "_delta_log").is_dir() for table in TABLES):
        inside = place / "lake"
        do = f"name {inside}" if inside.is_dir() else "name a folder of `tachograph record`, or a lake"
        raise InputError("no recording and no lake is in this folder", where=path, do=do)
    return OfLake(Lake.open(path))


class OfSpools:
    """Spools are read whole, and once: they are of one job on one node."""

    def __init__(self, paths: Sequence[Path]) -> None:
        parts, told = zip(*map(_read_whole, paths), strict=True)
        self._rows, gpus = _together(parts, told)
        if not len(self._rows.t):
            raise InputError("nothing was recorded yet", where=str(paths[0]), do="wait some seconds")
        devices = {_gpu(one): _device(one) for spooled in told for one in spooled.gpus.values()}
        first, last = int(self._rows.t[0]), int(self._rows.t[-1])
        self.told = Told(
            gpus, devices, [one for spooled in told for one in _tenures_of_spool(spooled)],
            first, last, len(self._rows.t), min(float(spooled.head["interval_s"]) for spooled in told),
            next((spooled.about["blind"] for spooled in told if spooled.about), {}),
        )  # fmt: skip

    def rows(self, first: int, end: int) -> Rows:
        """Return the rows of [first, end)."""
        a, b = np.searchsorted(self._rows.t, [first, end]).tolist()
        rows = self._rows
        return Rows(rows.t[a:b], rows.gpu[a:b], rows.singles[:, a:b], rows.doubles[:, a:b])


class OfLake:
    """Tables are read for the stretch that is asked for."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._files = [file for file in lake.files(GPU_SAMPLES) if file.rows and file.first and file.last]
        if not self._files:
            raise InputError("the lake has no GPU samples", where=lake.location, do="name another one")
        first = min(file.first for file in self._files if file.first)
        last = max(file.last for file in self._files if file.last)
        devices = dict(_devices_of(lake))
        gpus = tuple(sorted(devices, key=_order))
        self._places = pl.DataFrame(
            {
                "node": pl.Series([gpu.node for gpu in gpus], dtype=pl.String),
                "gpu": pl.Series([gpu.gpu for gpu in gpus], dtype=pl.Int16),
                "mig": pl.Series([gpu.mig for gpu in gpus], dtype=pl.Int16),
                "place": pl.Series(range(len(gpus)), dtype=pl.Int32),
            }
        )
        recordings = list(_told_by_recorder(lake.location))
        slowdown = {_gpu(one): one["slowdown_c"] for told in recordings for one in told["slowdown_c"]}
        for gpu, limit in slowdown.items():
            if gpu in devices:
                known = devices[gpu]
                devices[gpu] = Device(known.model, known.uuid, known.pci, known.hbm_mib, limit)
        intervals = [float(told["interval_s"]) for told in recordings]
        sources = [told["source"] for told in recordings if told["source"]]
        blind: Mapping[str, str] = sources[0]["blind"] if sources else {}
        self.told = Told(
            gpus, devices, _tenures_of_lake(lake, self._places, last), _microseconds(first), _microseconds(last),
            sum(file.rows for file in self._files), min(intervals, default=None), blind,
        )  # fmt: skip

    def rows(self, first: int, end: int) -> Rows:
        """Return the rows of [first, end). Errors: LakeError."""
        low, high = _moment(first), _moment(end)
        files = [file for file in self._files if file.first and file.last and file.first < high and file.last >= low]
        inside = (pl.col("t") >= pl.lit(low, dtype=TIME)) & (pl.col("t") < pl.lit(high, dtype=TIME))
        with lake_errors(self._lake.uri(GPU_SAMPLES)):
            frame = self._lake.read_files(GPU_SAMPLES, files).filter(inside).collect()
        frame, _ = resolve(frame, GPU_SAMPLES)
        frame = frame.join(self._places, on=["node", "gpu", "mig"], how="inner", nulls_equal=True)
        frame = frame.sort("t", "place")
        return Rows(
            frame.get_column("t").cast(pl.Int64).to_numpy(),
            frame.get_column("place").to_numpy(),
            np.array([_values(frame, name) for name in SINGLES], np.float32).reshape(len(SINGLES), frame.height),
            np.array([_values(frame, name) for name in DOUBLES], np.float64).reshape(len(DOUBLES), frame.height),
        )


def _values(frame: pl.DataFrame, name: str) -> Any:
    column = frame.get_column(name)
    return (column.cast(pl.Float64) if name in DOUBLES else column).fill_null(float("nan")).to_numpy()


def _devices_of(lake: Lake) -> Iterator[tuple[Gpu, Device]]:
    """Every GPU that the lake knows."""
    for one in lake.latest(DEVICES).to_dicts():
        yield _gpu(one), _device(one)


def _gpu(told: Mapping[str, Any]) -> Gpu:
    return Gpu(told["node"], told["gpu"], told["mig"])


def _device(told: Mapping[str, Any]) -> Device:
    return Device(told.get("model"), told.get("uuid"), told.get("pci"), told.get("hbm_mib"), told.get("slowdown_c"))


def _order(gpu: Gpu) -> tuple[str, int, int]:
    return gpu.node, gpu.gpu, -1 if gpu.mig is None else gpu.mig


def _told_by_recorder(location: str) -> Iterator[Mapping[str, Any]]:
    """What `tachograph record` left beside the tables; files of others are not its own."""
    if "://" in location:
        return
    for file in sorted(Path(location, "recordings").glob("*.json")):
        try:
            told = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(told, dict) and {"slowdown_c", "interval_s", "source"} <= told.keys():
            yield told


def _tenures_of_lake(lake: Lake, places: pl.DataFrame, last: datetime) -> list[Tenure]:
    """Who held which GPU, as an analysis would have it."""
    jobs, allocations = lake.latest(JOBS), lake.latest(ALLOCATIONS)
    if allocations.is_empty():
        return []
    runs = build_runs(jobs, allocations, slurm=Slurm(), now=last)
    owned = attribute(runs, allocations, places.drop("place")).intervals
    named = owned.join(runs.select("run", "display_id", "user", began=pl.col("start")), on="run", maintain_order="left")
    return [
        Tenure(
            Gpu(row["node"], row["gpu"], row["mig"]), row["start"].timestamp(), row["end"].timestamp(),
            Holder(row["display_id"], row["user"], row["began"].timestamp()),
        )
        for row in named.iter_rows(named=True)
    ]  # fmt: skip


def _read_whole(path: Path) -> tuple[list[Rows], Spooled]:
    records = read_spool(path)
    head = next(records)
    if isinstance(head, Rows):
        raise InputError("the recording has no head", where=str(path), do="copy it again")
    spooled, parts = Spooled(head), []
    for record in records:
        if isinstance(record, Rows):
            parts.append(record)
        else:
            spooled.take(record)
    return parts, spooled


def _together(parts: Sequence[list[Rows]], told: Sequence[Spooled]) -> tuple[Rows, tuple[Gpu, ...]]:
    """All rows in order of time, and the GPUs to which their places lead."""
    gpus = tuple(sorted({_gpu(one) for spooled in told for one in spooled.gpus.values()}, key=_order))
    places = {gpu: place for place, gpu in enumerate(gpus)}
    moved: list[Rows] = []
    for rows_of, spooled in zip(parts, told, strict=True):
        leads = np.zeros(max(spooled.gpus, default=0) + 1, np.int32)
        for place, one in spooled.gpus.items():
            leads[place] = places[_gpu(one)]
        singles = [spooled.head["singles"].index(name) for name in SINGLES]
        doubles = [spooled.head["doubles"].index(name) for name in DOUBLES]
        moved += [Rows(r.t, leads[r.gpu], r.singles[singles], r.doubles[doubles]) for r in rows_of]
    if not moved:
        empty = np.zeros((0, 0))
        return Rows(np.zeros(0, np.int64), np.zeros(0, np.int32), empty.astype(np.float32), empty), gpus
    t = np.concatenate([rows.t for rows in moved])
    order = np.argsort(t, kind="stable")
    return Rows(
        t[order],
        np.concatenate([rows.gpu for rows in moved])[order],
        np.concatenate([rows.singles for rows in moved], axis=1)[:, order],
        np.concatenate([rows.doubles for rows in moved], axis=1)[:, order],
    ), gpus


def _tenures_of_spool(spooled: Spooled) -> Iterator[Tenure]:
    job = spooled.head["job"]
    start = float(spooled.head["start"])
    end = float(spooled.end["end"]) if spooled.end else float("inf")
    for one in spooled.gpus.values():
        yield Tenure(_gpu(one), start, end, Holder(job["display_id"] or job["job_id"], job["user"], start))


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _moment(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)
