"""Recordings as a live source: a lake or the spool of a recorder, with play, pause and seek."""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import polars as pl

from tachograph.catalog.arrays import Flags, Floats
from tachograph.catalog.config import SlurmOptions
from tachograph.catalog.counters import COUNTERS
from tachograph.catalog.errors import InputError, UsageError
from tachograph.catalog.spool import SPOOL_SUFFIX, SpoolRows, read_spool
from tachograph.catalog.tables import ALLOCATIONS, DEVICES, JOBS, TABLES
from tachograph.catalog.units import EPOCH, plural
from tachograph.lake.delta import Lake
from tachograph.lake.query import SampleReader, read_latest
from tachograph.live.selection import is_of
from tachograph.live.snapshot import GpuAllocation, GpuDevice, GpuId, Snapshot, SourceInfo, SourceProblem
from tachograph.pipeline.attribution import attribute
from tachograph.pipeline.job_runs import build_runs, with_raw_ids
from tachograph.sources.recording import SpooledRecording

if TYPE_CHECKING:
    from tachograph.catalog.config import Configuration

SINGLES = tuple(counter.name for counter in COUNTERS if counter.storage == "f32")
DOUBLES = tuple(counter.name for counter in COUNTERS if counter.storage != "f32")


@dataclass(frozen=True, slots=True)
class RecordedAllocation:
    """Who held a GPU from when to when, in seconds since 1970."""

    gpu: GpuId
    start: float
    end: float
    allocation: GpuAllocation


@dataclass(frozen=True, slots=True)
class RecordingHead:
    """Metadata of a recording, before its rows are read. first, last: microseconds since 1970."""

    gpus: tuple[GpuId, ...]
    devices: Mapping[GpuId, GpuDevice]
    allocations: Sequence[RecordedAllocation]
    first: int
    last: int
    rows: int
    interval_s: float | None = None
    unsupported: Mapping[str, str] = field(default_factory=dict)


class RecordedRows(Protocol):
    """A recording. Rows are those of counters `SINGLES` and `DOUBLES`, in order of time."""

    head: RecordingHead

    def rows(self, first: int, end: int) -> SpoolRows:
        """Return the rows of [first, end); places of GPUs are those in `reported.gpus`."""
        ...


def open_recorded(path: str) -> RecordedRows:
    """Return the recording in a lake, a folder of spools, or a spool. Errors: InputError, LakeError."""
    place = Path(path)
    if "://" not in path and not place.exists():
        raise InputError("no such recording", where=path, do="name a folder of `tachograph record`, or a lake")
    if place.is_file():
        return SpoolRecording([place])
    spools = [] if "://" in path else sorted(place.rglob(f"*{SPOOL_SUFFIX}"))
    if spools and not any((place / table / "_delta_log").is_dir() for table in TABLES):
        return SpoolRecording(spools)
    if "://" not in path and not any((place / table / "_delta_log").is_dir() for table in TABLES):
        inside = place / "lake"
        do = f"name {inside}" if inside.is_dir() else "name a folder of `tachograph record`, or a lake"
        raise InputError("no recording and no lake in this folder", where=path, do=do)
    return LakeRecording(Lake.open(path))


class SpoolRecording:
    """Spools, read whole, and once: they are of one job on one node."""

    def __init__(self, paths: Sequence[Path]) -> None:
        parts, recordings = zip(*map(_read_whole, paths), strict=True)
        self._rows, gpus = _joined(parts, recordings)
        if not len(self._rows.t):
            raise InputError("nothing was recorded yet", where=str(paths[0]), do="wait some seconds")
        devices = {_gpu(one): _device(one) for spooled in recordings for one in spooled.gpus.values()}
        first, last = int(self._rows.t[0]), int(self._rows.t[-1])
        self.head = RecordingHead(
            gpus, devices, [one for spooled in recordings for one in _allocations_of_spool(spooled)],
            first, last, len(self._rows.t), min(float(spooled.head["interval_s"]) for spooled in recordings),
            next((spooled.about["blind"] for spooled in recordings if spooled.about), {}),
        )  # fmt: skip

    def rows(self, first: int, end: int) -> SpoolRows:
        """Return the rows of [first, end)."""
        a, b = np.searchsorted(self._rows.t, [first, end]).tolist()
        rows = self._rows
        return SpoolRows(rows.t[a:b], rows.gpu[a:b], rows.singles[:, a:b], rows.doubles[:, a:b])


class LakeRecording:
    """Tables, read for the requested time span."""

    def __init__(self, lake: Lake) -> None:
        self._samples = SampleReader(lake)
        if self._samples.span is None:
            raise InputError("the lake has no GPU samples", where=lake.location, do="name another one")
        first, last = self._samples.span
        devices = dict(_devices_of(lake))
        gpus = tuple(sorted(devices, key=GpuId.order))
        self._places = pl.DataFrame(
            {
                "node": pl.Series([gpu.node for gpu in gpus], dtype=pl.String),
                "gpu": pl.Series([gpu.gpu for gpu in gpus], dtype=pl.Int16),
                "mig": pl.Series([gpu.mig for gpu in gpus], dtype=pl.Int16),
                "place": pl.Series(range(len(gpus)), dtype=pl.Int32),
            }
        )
        recordings = list(_recorder_notes(lake.location))
        slowdown = {_gpu(one): one["slowdown_c"] for note in recordings for one in note["slowdown_c"]}
        for gpu, limit in slowdown.items():
            if gpu in devices:
                known = devices[gpu]
                devices[gpu] = GpuDevice(known.model, known.uuid, known.pci, known.hbm_mib, limit)
        intervals = [float(note["interval_s"]) for note in recordings]
        sources = [note["source"] for note in recordings if note["source"]]
        unsupported: Mapping[str, str] = sources[0]["blind"] if sources else {}
        self.head = RecordingHead(
            gpus, devices, _allocations_of_lake(lake, self._places, last), _microseconds(first), _microseconds(last),
            self._samples.rows, min(intervals, default=None), unsupported,
        )  # fmt: skip

    def rows(self, first: int, end: int) -> SpoolRows:
        """Return the rows of [first, end). Errors: LakeError."""
        frame = self._samples.read(_moment(first), _moment(end))
        frame = frame.join(self._places, on=["node", "gpu", "mig"], how="inner", nulls_equal=True)
        frame = frame.sort("t", "place")
        return SpoolRows(
            frame.get_column("t").cast(pl.Int64).to_numpy(),
            frame.get_column("place").to_numpy(),
            np.array([_values(frame, name) for name in SINGLES], np.float32).reshape(len(SINGLES), frame.height),
            np.array([_values(frame, name) for name in DOUBLES], np.float64).reshape(len(DOUBLES), frame.height),
        )


def _values(frame: pl.DataFrame, name: str) -> Any:
    column = frame.get_column(name)
    return (column.cast(pl.Float64) if name in DOUBLES else column).fill_null(float("nan")).to_numpy()


def _devices_of(lake: Lake) -> Iterator[tuple[GpuId, GpuDevice]]:
    """Every GPU in the lake."""
    for one in read_latest(lake, DEVICES).to_dicts():
        yield _gpu(one), _device(one)


def _gpu(entry: Mapping[str, Any]) -> GpuId:
    return GpuId(entry["node"], entry["gpu"], entry["mig"])


def _device(entry: Mapping[str, Any]) -> GpuDevice:
    return GpuDevice(
        entry.get("model"),
        entry.get("uuid"),
        entry.get("pci"),
        entry.get("hbm_mib"),
        entry.get("slowdown_c"),
        entry.get("minor_number"),
    )


def _recorder_notes(location: str) -> Iterator[Mapping[str, Any]]:
    """Spools of `tachograph record` beside the tables, without other files."""
    if "://" in location:
        return
    for file in sorted(Path(location, "recordings").glob("*.json")):
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(document, dict) and {"slowdown_c", "interval_s", "source"} <= document.keys():
            yield document


def _allocations_of_lake(lake: Lake, places: pl.DataFrame, last: datetime) -> list[RecordedAllocation]:
    """Allocations, as in an analysis."""
    jobs = read_latest(lake, JOBS)
    allocations = with_raw_ids(read_latest(lake, ALLOCATIONS), jobs)
    if allocations.is_empty():
        return []
    runs = build_runs(jobs, allocations, slurm=SlurmOptions(), now=last)
    owned = attribute(runs, allocations, places.drop("place")).intervals
    named = owned.join(runs.select("run", "display_id", "user", began=pl.col("start")), on="run", maintain_order="left")
    return [
        RecordedAllocation(
            GpuId(row["node"], row["gpu"], row["mig"]), row["start"].timestamp(), row["end"].timestamp(),
            GpuAllocation(row["display_id"], row["user"], row["began"].timestamp()),
        )
        for row in named.iter_rows(named=True)
    ]  # fmt: skip


def _read_whole(path: Path) -> tuple[list[SpoolRows], SpooledRecording]:
    records = read_spool(path)
    head = next(records)
    if isinstance(head, SpoolRows):
        raise InputError("the recording has no head", where=str(path), do="copy it again")
    spooled, parts = SpooledRecording(head), []
    for record in records:
        if isinstance(record, SpoolRows):
            parts.append(record)
        else:
            spooled.take(record)
    return parts, spooled


def _joined(
    parts: Sequence[list[SpoolRows]], recordings: Sequence[SpooledRecording]
) -> tuple[SpoolRows, tuple[GpuId, ...]]:
    """All rows in order of time, and the GPUs to which their places lead."""
    gpus = tuple(sorted({_gpu(one) for spooled in recordings for one in spooled.gpus.values()}, key=GpuId.order))
    places = {gpu: place for place, gpu in enumerate(gpus)}
    moved: list[SpoolRows] = []
    for rows_of, spooled in zip(parts, recordings, strict=True):
        leads = np.zeros(max(spooled.gpus, default=0) + 1, np.int32)
        for place, one in spooled.gpus.items():
            leads[place] = places[_gpu(one)]
        singles = [spooled.head["singles"].index(name) for name in SINGLES]
        doubles = [spooled.head["doubles"].index(name) for name in DOUBLES]
        moved += [SpoolRows(r.t, leads[r.gpu], r.singles[singles], r.doubles[doubles]) for r in rows_of]
    if not moved:
        empty = np.zeros((0, 0))
        return SpoolRows(np.zeros(0, np.int64), np.zeros(0, np.int32), empty.astype(np.float32), empty), gpus
    t = np.concatenate([rows.t for rows in moved])
    order = np.argsort(t, kind="stable")
    return SpoolRows(
        t[order],
        np.concatenate([rows.gpu for rows in moved])[order],
        np.concatenate([rows.singles for rows in moved], axis=1)[:, order],
        np.concatenate([rows.doubles for rows in moved], axis=1)[:, order],
    ), gpus


def _allocations_of_spool(spooled: SpooledRecording) -> Iterator[RecordedAllocation]:
    job = spooled.head["job"]
    start = float(spooled.head["start"])
    end = float(spooled.end["end"]) if spooled.end else float("inf")
    for one in spooled.gpus.values():
        yield RecordedAllocation(
            _gpu(one), start, end, GpuAllocation(job["display_id"] or job["job_id"], job["user"], start)
        )


def _microseconds(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def _moment(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


ENDED: Final = "the recording ended"
_GO_ON: Final = "press q, { to start again, or :seek TIME"
WINDOW_ROWS: Final = 100_000  # read at a time, about 15 MB
_SHORTEST_S = 10.0  # of a window
_HOLD_INTERVALS = 3.0  # values are shown for so long without a new sample
_MARGIN_S = 0.5
LAST_S: Final = 900.0  # before the last values, in which an instant is searched at which more GPUs report
_JUST_BEFORE_S = 0.001  # the end, where a job holds its GPUs still


def connect(configuration: Configuration, *, path: str, speed: float = 1.0) -> RecordingSource:
    """Return the recording at `path`: a folder of `tachograph record`, a lake, a spool.

    Errors: InputError, LakeError for no recording; UsageError for an invalid speed.
    """
    return RecordingSource(open_recorded(path), speed=speed)


class RecordingSource:
    """Plays a recording back: `speed` seconds of it in a second; `paused`; `seek`. It begins at its first sample."""

    def __init__(
        self,
        recorded: RecordedRows,
        *,
        speed: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        window_rows: int = WINDOW_ROWS,
    ) -> None:
        self._recorded = recorded
        self._head = recorded.head
        self._clock = clock
        self._speed = _checked(speed)
        self._paused = False
        self._anchor: tuple[float, float] | None = None  # by our clock, by the recording's; set by the first poll
        self._at = self.start
        length_s = max(1e-6, self.end - self.start)
        self._window_s = max(_SHORTEST_S, window_rows * length_s / max(1, self._head.rows))
        self._interval_s = self._head.interval_s or 1.0
        self._interval_seen = False
        self._hold_s = _HOLD_INTERVALS * self._interval_s + _MARGIN_S
        self._values: Floats = np.zeros((0, 0))
        self._measured: Floats = np.zeros(0)
        self._rows: SpoolRows | None = None
        self._next = 0  # row of the window that has not been shown
        self._read_to = 0  # microseconds up to which rows were read
        self._names: tuple[str, ...] = ()
        self._timeline = _AllocationTimeline(self._head.allocations)
        self._forget()

    @property
    def about(self) -> SourceInfo:
        """Description of the recording, and its time span."""
        first, last = (f"{datetime.fromtimestamp(t, UTC):%Y-%m-%d %H:%M:%S}" for t in (self.start, self.end))
        count = len(self._head.gpus)
        words = f"recording of {plural(count, 'GPU')}, {first} to {last} UTC"
        speed = "" if self._speed == 1.0 else f", {self._speed:g} times as fast"
        return SourceInfo("recording", words + speed, self._interval_s, self._head.unsupported)

    @property
    def start(self) -> float:
        """When its first sample was measured (seconds since 1970)."""
        return self._head.first / 1e6

    @property
    def end(self) -> float:
        """When its last sample was measured."""
        return self._head.last / 1e6

    @property
    def position(self) -> float:
        """The instant of the recording that is now, at most its end."""
        if self._anchor is None or self._paused:
            return self._at
        ours, its = self._anchor
        return min(self.end, its + (self._clock() - ours) * self._speed)

    @property
    def speed(self) -> float:
        """Seconds of the recording in a second."""
        return self._speed

    @speed.setter
    def speed(self, speed: float) -> None:
        self._settle(self.position)
        self._speed = _checked(speed)

    @property
    def paused(self) -> bool:
        """Whether it is paused."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._settle(self.position)
        self._paused = paused

    def seek(self, t: float) -> None:
        """Continue from `t` (seconds since 1970), or from the closer end of the recording."""
        self._settle(min(max(t, self.start), self.end))

    def to_first(self, job: str) -> None:
        """Continue from the start of a job; from the current position, if this id is unknown."""
        span = self._span(job)
        if span is not None:
            self.seek(span[0])

    def to_last(self, job: str | None = None) -> None:
        """Pause at the last instant at which half of the GPUs, or of those of a job, reported something.

        Where so many never did in the last quarter of an hour with values: at its instant at which most did. The
        search has growing steps, so instants between them may be skipped.
        """
        first, last = (job and self._span(job)) or (self.start, self.end - _JUST_BEFORE_S)
        self.paused, back = True, 0.0
        place, most, reach = first, 0, first
        while True:
            self.seek(max(reach, last - back))
            reporting, all_of_them = self._reporting(job)
            if reporting and not most:
                reach = max(first, self._at - LAST_S)
            if reporting > most:
                place, most = self._at, reporting
            if self._at <= reach or (reporting and 2 * reporting >= all_of_them):
                break
            back = 2 * back or self._hold_s
        self.seek(place)

    def _reporting(self, job: str | None) -> tuple[int, int]:
        """How many GPUs, of a job where one is named, report something now; of how many."""
        now = self.read()
        allocations = [now.allocations.get(gpu) for gpu in now.gpus]
        rows = [row for row, one in enumerate(allocations) if job is None or (one is not None and is_of(one, (job,)))]
        return int(np.isfinite(now.measured[rows]).sum()), len(rows)

    def _span(self, job: str) -> tuple[float, float] | None:
        """When a job held GPUs, as far as that is in the recording."""
        held = [one for one in self._head.allocations if is_of(one.allocation, (job,))]
        if not held:
            return None
        first, end = min(one.start for one in held), max(one.end for one in held)
        return max(self.start, first), min(self.end, end - _JUST_BEFORE_S)

    def read(self) -> Snapshot:
        """Return the snapshot at this instant of the recording."""
        if self._anchor is None:
            self._settle(self._at)
        t = self.position
        if t < self._at or self._rows is None:
            self._forget()
        self._at = t
        self._advance(t)
        outdated = ~(t - self._measured <= self._hold_s)
        values: Mapping[str, Floats] = {
            name: np.where(outdated, np.nan, column)
            for name, column, ever in zip(self._names, self._values, self._ever.tolist(), strict=True)
            if ever
        }
        ended = t >= self.end and not self._paused
        problems = (SourceProblem(ENDED, do=_GO_ON, fatal=True),) if ended else ()
        return Snapshot(
            t, self._head.gpus, np.where(outdated, np.nan, self._measured), values, self._head.devices,
            self._timeline.at(t), problems=problems,
        )  # fmt: skip

    def close(self) -> None:
        """Release the rows."""
        self._rows = None

    def _settle(self, t: float) -> None:
        """Set the position to `t`."""
        if t < self._at:
            self._rows = None
        self._anchor = (self._clock(), t)
        if self._paused or t < self._at:
            self._at = t

    def _forget(self) -> None:
        """Restart, from the rows that determine the state at the current instant."""
        self._names = (*SINGLES, *DOUBLES)
        self._values = np.full((len(self._names), len(self._head.gpus)), np.nan)
        self._measured = np.full(len(self._head.gpus), np.nan)
        self._ever: Flags = np.zeros(len(self._names), np.bool_)
        self._rows = None
        self._next = 0

    def _advance(self, t: float) -> None:
        """Apply all rows up to `t`."""
        until = round(t * 1e6)
        if self._rows is None or until - self._read_to > self._hold_s * 1e6:  # far ahead: rows between are outdated
            self._read_to = max(self._head.first, until - round(self._hold_s * 1e6))
            self._read_on()
        while True:
            self._take(until)
            if self._read_to > until or self._read_to > self._head.last:
                return
            self._read_on()

    def _read_on(self) -> None:
        """Read the next window."""
        begin = self._read_to
        self._read_to = begin + round(self._window_s * 1e6)
        self._rows = self._recorded.rows(begin, self._read_to)
        self._next = 0
        if not self._interval_seen and len(self._rows.t):
            self._interval_seen = True
            self._interval_s = _interval_s(self._rows) or self._interval_s
            self._hold_s = _HOLD_INTERVALS * self._interval_s + _MARGIN_S

    def _take(self, until: int) -> None:
        """Make the rows of the window up to `until` the last reported values."""
        rows = self._rows
        if rows is None:
            return
        end = int(np.searchsorted(rows.t, until, side="right"))
        if end <= self._next:
            return
        span = slice(self._next, end)
        self._next = end
        gpus, backward = np.unique(rows.gpu[span][::-1], return_index=True)
        last = end - 1 - backward
        latest = np.concatenate([rows.singles[:, last].astype(np.float64), rows.doubles[:, last]])
        self._values[:, gpus] = latest
        known = ~np.isnan(latest)
        self._measured[gpus] = np.where(known.any(0), rows.t[last] / 1e6, np.nan)
        self._ever |= known.any(1)


class _AllocationTimeline:
    """Allocations at an instant; determined again only after a change."""

    def __init__(self, allocations: Sequence[RecordedAllocation]) -> None:
        self._recorded = sorted(allocations, key=lambda one: one.start)
        self._changes = sorted({moment for one in allocations for moment in (one.start, one.end)})
        self._place: int | None = None
        self._allocations: Mapping[GpuId, GpuAllocation] = {}

    def at(self, t: float) -> Mapping[GpuId, GpuAllocation]:
        """{GPU: its allocation} at `t`."""
        place = bisect_right(self._changes, t)
        if place != self._place:
            self._place = place
            self._allocations = {one.gpu: one.allocation for one in self._recorded if one.start <= t < one.end}
        return self._allocations


def _interval_s(rows: SpoolRows) -> float | None:
    """Seconds between two samples of a GPU, the median; None where none has two."""
    order = np.lexsort((rows.t, rows.gpu))
    t, gpu = rows.t[order], rows.gpu[order]
    steps = np.diff(t)[(np.diff(gpu) == 0) & (np.diff(t) > 0)]
    return float(np.median(steps)) / 1e6 if len(steps) else None


def _checked(speed: float) -> float:
    if not 0 < speed < float("inf"):
        raise UsageError(f"speed {speed:g} is none", do="give a number above 0; Space pauses")
    return speed
