"""Windows of imbalance of random minutes, cut at midnight and into partitions, in plain Python."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from jobframes import frame
from madelake import utc
from tachograph.catalog.config import AnalysisOptions
from tachograph.catalog.tables import GPU_SAMPLES, JOB_GPUS, JOB_MINUTES, TIME
from tachograph.pipeline.windows import (
    BORDER_WINDOWS,
    IMBALANCE,
    MinuteSlots,
    Windows,
    fold_windows,
    spatial_imbalance,
    windows_of,
)

MIDNIGHT = utc(24)
DAYS = (utc(23), MIDNIGHT)
UNITS = {name: GPU_SAMPLES.schema[name] for name in ("node", "gpu", "mig")}


@dataclass(frozen=True)
class Held:
    """A GPU that a run held, with (samples, sum) by minute and side of midnight; NaN: unknown."""

    run: int
    gpu: int
    interval_s: float
    sums: dict[tuple[int, bool], tuple[int, float]]


def _case(source: random.Random, starts: dict[int, datetime], *, split: bool) -> list[Held]:
    """Runs on one to three GPUs each; run 1 has GPU 0 for two minutes of run 0."""
    rows = []
    for run, start in starts.items():
        gpus = [0] * (run < 2) + [3 * run + place for place in range(1, source.randint(2, 4))]
        intervals = source.choice([[30.0], [50.0, 51.0], [10.0, 30.0, 600.0]])
        unknown = not split or len(intervals) == 1
        for gpu in gpus:
            interval_s = source.choice([*intervals, *([math.nan] if unknown else [])])
            sums: dict[tuple[int, bool], tuple[int, float]] = {}
            for minute in range(40):
                if gpu == 0 and (run == 1) != (12 <= minute < 14):
                    continue
                begin = start + timedelta(minutes=minute)
                count = source.choice([0, 1, 2, 4])
                total = count * source.choice([0.0, 0.0, 0.5, 1.0]) * (minute // 10 % 3 != 1)
                if begin < MIDNIGHT:
                    sums[minute, False] = (count, total)
                if begin + timedelta(minutes=1) > MIDNIGHT:
                    sums[minute, True] = (count, total)
            rows.append(Held(run, gpu, interval_s, sums))
    return rows


def _slots(rows: list[Held], *, late: bool) -> MinuteSlots:
    """The minutes of one side of midnight: by GPU, and on it by time."""
    gpus = sorted({row.gpu for row in rows})
    pieces = []
    for row in rows:
        minutes = sorted(minute for minute, is_late in row.sums if is_late == late)
        first = 0
        for place in range(1, len(minutes) + 1):
            if place == len(minutes) or minutes[place] != minutes[place - 1] + 1:
                pieces.append((row.gpu, minutes[first], row.run, row, minutes[first:place]))
                first = place
    pieces.sort(key=lambda piece: piece[:3])
    each = [(place, minute, piece[3]) for place, piece in enumerate(pieces) for minute in piece[4]]
    values = [row.sums[minute, late] for _, minute, row in each]
    counts, totals = (np.array([value[part] for value in values]) for part in (0, 1))
    return MinuteSlots(
        run=np.array([piece[2] for piece in pieces], np.int32),
        stripe=np.array([gpus.index(piece[0]) for piece in pieces], np.int64),
        begin=np.cumsum([0, *(len(piece[4]) for piece in pieces)]),
        segment=np.array([place for place, *_ in each], np.int64),
        minute=np.array([minute for _, minute, _ in each], np.int32),
        sums={"gpu_util": (counts.astype(np.int32), totals.astype(np.float64))},
        units=pl.DataFrame([("n1", gpu, None) for gpu in gpus], schema=UNITS, orient="row"),
        steady_us=np.array([1e6 * piece[3].interval_s for piece in pieces]),
    )


def _wanted(
    rows: list[Held], length: int, runs: Iterable[int]
) -> dict[int, tuple[int, int, float]]:
    """{run: windows, those in which all is zero, the sum of sum / maximum of the others}"""
    found = {}
    for run in runs:
        mine = [row for row in rows if row.run == run]
        spans = [min(row.interval_s, 60.0 * length) for row in mine]
        known = [span for span in spans if not math.isnan(span)]
        varied = bool(known) and max(known) > 1.02 * min(known)
        counts: dict[int, int] = defaultdict(int)
        sums: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for row, span in zip(mine, spans, strict=True):
            weight = span / min(known) if varied and not math.isnan(span) else 1.0
            for (minute, _), (count, total) in row.sums.items():
                counts[minute // length] += count
                sums[minute // length][row.gpu] += weight * total
        windows = [sums[window] for window, count in counts.items() if count]
        active = [window for window in windows if max(window.values()) > 0]
        added = sum(sum(sums.values()) / max(sums.values()) for sums in active)
        found[run] = (len(windows), len(windows) - len(active), added)
    return found


def _folded(
    rows: list[Held], starts: dict[int, datetime], length: int, *, split: bool
) -> dict[int, tuple[int, int, float]]:
    analysis = AnalysisOptions(window_s=60 * length, imbalance_counters=("gpu_util", "sm_active"))
    begun = pl.DataFrame(
        list(starts.items()), schema={"run": pl.Int32, "start": TIME}, orient="row"
    )
    carried = pl.DataFrame(schema=BORDER_WINDOWS)
    settled = [pl.DataFrame(schema=IMBALANCE)]
    for midnight in DAYS:
        parts: list[Windows] = []
        for part in [rows[::2], rows[1::2]] if split else [rows]:
            slots = _slots(part, late=midnight == MIDNIGHT)
            whole = frozenset() if split else starts.keys()
            day: date = midnight.date()
            parts.append(windows_of(slots, starts, whole, analysis=analysis, day=day))
        folded, carried = fold_windows(
            parts, carried, begun, analysis=analysis, day=day, last=midnight == MIDNIGHT
        )
        settled += [folded, *(windows.settled for windows in parts)]
        for run, window in carried.select("run", "window").iter_rows():
            # it goes on on the next day
            assert starts[run] + timedelta(minutes=length * (window + 1)) > MIDNIGHT
    assert carried.is_empty()
    added = pl.concat(settled).group_by("run").agg(pl.exclude("run", "counter").sum())
    return {row[0]: row[1:] for row in added.iter_rows()}


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("length", [1, 5])
def test_imbalance_of_random_minutes_is_that_of_plain_python(length: int, *, split: bool) -> None:
    source = random.Random(length)
    for _ in range(12):
        seconds = [source.choice([-1830, -1800, -1770, -2700, -60]) for _ in range(3)]
        starts = {run: MIDNIGHT + timedelta(seconds=at) for run, at in enumerate(seconds)}
        rows = _case(source, starts, split=split)
        counts = {run: sum(row.run == run for row in rows) for run in starts}
        measured = {run: count + source.randint(0, 1) for run, count in counts.items()}
        wanted = {run: row for run, row in _wanted(rows, length, starts).items() if row[0]}
        found = _folded(rows, starts, length, split=split)
        assert found.keys() == wanted.keys()
        for run, row in wanted.items():
            assert found[run] == pytest.approx(row, abs=1e-9)
        for counted in (False, True):
            stored = _stored(rows, starts, measured, length, count_zero_windows=counted)
            for run, (windows, zero, added) in wanted.items():
                over = windows if counted else windows - zero
                imbalance = windows - zero - added / measured[run]
                mean = imbalance / over if measured[run] > 1 and over else None
                assert stored[run] == pytest.approx((mean, windows, zero / windows), abs=1e-6)


def _stored(
    rows: list[Held],
    starts: dict[int, datetime],
    measured: dict[int, int],
    length: int,
    *,
    count_zero_windows: bool,
) -> dict[int, tuple[float | None, int, float]]:
    """The same from stored minutes, whose parts beside midnight are put together."""
    stored, gpus = [], []
    for row in rows:
        of_gpu = {"job_key": str(row.run), "seq": 1, "node": "n1", "gpu": row.gpu}
        interval_s = None if math.isnan(row.interval_s) else row.interval_s
        gpus.append(of_gpu | {"interval_s": interval_s})
        for minute in {minute for minute, _ in row.sums}:
            parts = [row.sums.get((minute, late), (0, 0.0)) for late in (False, True)]
            count = sum(part[0] for part in parts)
            mean = sum(part[1] for part in parts) / count if count else None
            t = starts[row.run] + timedelta(minutes=minute)
            stored.append(of_gpu | {"t": t, "minute": minute, "samples": count, "gpu_util": mean})
    jobs = [(str(run), 1, number) for run, number in measured.items()]
    named = {"job_key": pl.String, "seq": pl.Int64, "gpus": pl.Int64}
    found = spatial_imbalance(
        frame(JOB_MINUTES, stored).lazy(),
        pl.DataFrame(jobs, schema=named, orient="row"),
        frame(JOB_GPUS, gpus),
        window_s=60 * length,
        count_zero_windows=count_zero_windows,
    )
    return {int(row[0]): row[1:] for row in found.iter_rows()}
