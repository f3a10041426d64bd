"""A recording, or any lake, shown as if it were now: as fast as wished, held, moved to another time.

Rows are read a stretch of time ahead, so that memory does not grow with the recording. What a GPU told last is shown
until it tells something else, falls silent (a row without values), or has told nothing for some intervals.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import numpy as np

from tachograph.arrays import Flags, Floats
from tachograph.errors import UsageError
from tachograph.live.snapshot import Gpu, Holder, Problem, Snapshot
from tachograph.live.source import About
from tachograph.live.visible import is_of
from tachograph.units import plural

if TYPE_CHECKING:
    from tachograph.config import Configuration
    from tachograph.live.sources.recorded_rows import Recorded, Tenure
    from tachograph.spool import Rows

ENDED: Final = "the recording ended"
_GO_ON: Final = "press q, { to start again, or :seek TIME"
WINDOW_ROWS: Final = 100_000  # read at a time, about 15 MB
_SHORTEST_S = 10.0  # of a window
_SILENT_INTERVALS = 3.0  # so long values are shown that nobody confirms
_MARGIN_S = 0.5
LAST_S: Final = 900.0  # before the last values, within which an instant is looked for at which more GPUs tell
_JUST_BEFORE_S = 0.001  # the end, where a job holds its GPUs still


def connect(configuration: Configuration, *, path: str, speed: float = 1.0) -> RecordingSource:
    """Return the recording at `path`: a folder of `tachograph record`, a lake, a spool.

    Errors: InputError, LakeError for what is none; UsageError for a speed that is none.
    """
    from tachograph.live.sources.recorded_rows import open_recorded

    return RecordingSource(open_recorded(path), speed=speed)


class RecordingSource:
    """Plays a recording back: `speed` seconds of it in a second; `paused`; `seek`. It begins at its first sample."""

    def __init__(
        self,
        recorded: Recorded,
        *,
        speed: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        window_rows: int = WINDOW_ROWS,
    ) -> None:
        self._recorded = recorded
        self._told = recorded.told
        self._clock = clock
        self._speed = _checked(speed)
        self._paused = False
        self._anchor: tuple[float, float] | None = None  # by our clock, by the recording's; set by the first look
        self._at = self.start
        length_s = max(1e-6, self.end - self.start)
        self._window_s = max(_SHORTEST_S, window_rows * length_s / max(1, self._told.rows))
        self._interval_s = self._told.interval_s or 1.0
        self._interval_seen = False
        self._hold_s = _SILENT_INTERVALS * self._interval_s + _MARGIN_S
        self._values: Floats = np.zeros((0, 0))
        self._measured: Floats = np.zeros(0)
        self._rows: Rows | None = None
        self._next = 0  # row of the window that has not been shown
        self._read_to = 0  # microseconds up to which rows were read
        self._names: tuple[str, ...] = ()
        self._tenures = _Tenures(self._told.tenures)
        self._forget()

    @property
    def about(self) -> About:
        """What it is, and of when."""
        first, last = (f"{datetime.fromtimestamp(t, UTC):%Y-%m-%d %H:%M:%S}" for t in (self.start, self.end))
        count = len(self._told.gpus)
        words = f"recording of {plural(count, 'GPU')}, {first} to {last} UTC"
        speed = "" if self._speed == 1.0 else f", {self._speed:g} times as fast"
        return About("recording", words + speed, self._interval_s, self._told.blind)

    @property
    def start(self) -> float:
        """When its first sample was measured (seconds since 1970)."""
        return self._told.first / 1e6

    @property
    def end(self) -> float:
        """When its last sample was measured."""
        return self._told.last / 1e6

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
        """Whether it stands still."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._settle(self.position)
        self._paused = paused

    def seek(self, t: float) -> None:
        """Go on from `t` (seconds since 1970), or from the end of the recording that is closer."""
        self._settle(min(max(t, self.start), self.end))

    def to_first(self, job: str) -> None:
        """Go on from where a job began; from where it is now, if none of this id is known."""
        span = self._span(job)
        if span is not None:
            self.seek(span[0])

    def to_last(self, job: str | None = None) -> None:
        """Stand still at the last instant at which half of the GPUs, or of those of a job, told something.

        Where so many never did in the last quarter of an hour that has values: at that of it at which most did. It is
        looked for in growing steps, so instants between them may be passed over.
        """
        first, last = (job and self._span(job)) or (self.start, self.end - _JUST_BEFORE_S)
        self.paused, back = True, 0.0
        place, most, reach = first, 0, first
        while True:
            self.seek(max(reach, last - back))
            telling, all_of_them = self._telling(job)
            if telling and not most:
                reach = max(first, self._at - LAST_S)
            if telling > most:
                place, most = self._at, telling
            if self._at <= reach or (telling and 2 * telling >= all_of_them):
                break
            back = 2 * back or self._hold_s
        self.seek(place)

    def _telling(self, job: str | None) -> tuple[int, int]:
        """How many GPUs, of a job where one is named, tell something now; of how many."""
        now = self.read()
        holders = [now.holders.get(gpu) for gpu in now.gpus]
        rows = [row for row, one in enumerate(holders) if job is None or (one is not None and is_of(one, (job,)))]
        return int(np.isfinite(now.measured[rows]).sum()), len(rows)

    def _span(self, job: str) -> tuple[float, float] | None:
        """When a job held GPUs, as far as that lies in the recording."""
        held = [one for one in self._told.tenures if is_of(one.holder, (job,))]
        if not held:
            return None
        first, end = min(one.start for one in held), max(one.end for one in held)
        return max(self.start, first), min(self.end, end - _JUST_BEFORE_S)

    def read(self) -> Snapshot:
        """Return how it was at this instant of the recording."""
        if self._anchor is None:
            self._settle(self._at)
        t = self.position
        if t < self._at or self._rows is None:
            self._forget()
        self._at = t
        self._advance(t)
        silent = ~(t - self._measured <= self._hold_s)
        values: Mapping[str, Floats] = {
            name: np.where(silent, np.nan, self._values[row]) for row, name in enumerate(self._names) if self._ever[row]
        }
        ended = t >= self.end and not self._paused
        problems = (Problem(ENDED, do=_GO_ON, fatal=True),) if ended else ()
        return Snapshot(
            t, self._told.gpus, np.where(silent, np.nan, self._measured), values, self._told.devices,
            self._tenures.at(t), problems=problems,
        )  # fmt: skip

    def close(self) -> None:
        """Let go of what was read."""
        self._rows = None

    def _settle(self, t: float) -> None:
        """Let `t` be now."""
        if t < self._at:
            self._rows = None
        self._anchor = (self._clock(), t)
        if self._paused or t < self._at:
            self._at = t

    def _forget(self) -> None:
        """Begin anew, from what is needed to know how it was at the instant that is now."""
        from tachograph.live.sources.recorded_rows import DOUBLES, SINGLES

        self._names = (*SINGLES, *DOUBLES)
        self._values = np.full((len(self._names), len(self._told.gpus)), np.nan)
        self._measured = np.full(len(self._told.gpus), np.nan)
        self._ever: Flags = np.zeros(len(self._names), np.bool_)
        self._rows = None
        self._next = 0

    def _advance(self, t: float) -> None:
        """Take in all rows up to `t`."""
        until = round(t * 1e6)
        if self._rows is None or until - self._read_to > self._hold_s * 1e6:  # far ahead: what lies between is old
            self._read_to = max(self._told.first, until - round(self._hold_s * 1e6))
            self._read_on()
        while True:
            self._take(until)
            if self._read_to > until or self._read_to > self._told.last:
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
            self._hold_s = _SILENT_INTERVALS * self._interval_s + _MARGIN_S

    def _take(self, until: int) -> None:
        """Let the rows of the window up to `until` be what was told last."""
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
        told = np.concatenate([rows.singles[:, last].astype(np.float64), rows.doubles[:, last]])
        self._values[:, gpus] = told
        known = ~np.isnan(told)
        self._measured[gpus] = np.where(known.any(0), rows.t[last] / 1e6, np.nan)
        self._ever |= known.any(1)


class _Tenures:
    """Who holds which GPU at an instant; looked up anew only where something has changed."""

    def __init__(self, tenures: Sequence[Tenure]) -> None:
        self._tenures = sorted(tenures, key=lambda one: one.start)
        self._changes = sorted({moment for one in tenures for moment in (one.start, one.end)})
        self._place: int | None = None
        self._holders: Mapping[Gpu, Holder] = {}

    def at(self, t: float) -> Mapping[Gpu, Holder]:
        """{GPU: its holder} at `t`."""
        place = bisect_right(self._changes, t)
        if place != self._place:
            self._place = place
            self._holders = {one.gpu: one.holder for one in self._tenures if one.start <= t < one.end}
        return self._holders


def _interval_s(rows: Rows) -> float | None:
    """Seconds between two samples of a GPU, the median; None where none has two."""
    order = np.lexsort((rows.t, rows.gpu))
    t, gpu = rows.t[order], rows.gpu[order]
    steps = np.diff(t)[(np.diff(gpu) == 0) & (np.diff(t) > 0)]
    return float(np.median(steps)) / 1e6 if len(steps) else None


def _checked(speed: float) -> float:
    if not 0 < speed < float("inf"):
        raise UsageError(f"speed {speed:g} is none", do="give a number above 0; pause to stand still")
    return speed
