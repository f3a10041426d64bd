"""Minutes of a partition on their way into the lake: written where they are made, in the order of the table.

Minutes that midnight cuts, or that a run shares with itself because it lost a GPU and had it again, are not written:
their other part is elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time

import numpy as np
import polars as pl
from deltalake.transaction import AddAction
from numpy.typing import NDArray

from tachograph.arrays import Ints, Longs, Singles
from tachograph.lake import Lake
from tachograph.reduce.kernel import MINUTE_US
from tachograph.reduce.timelines import empty, of_slots
from tachograph.schema import TIME
from tachograph.summarize.schema import JOB_MINUTES, MINUTE_MAXIMA, MINUTE_MEANS

DAY_US = 86_400_000_000
UNIT = ("node", "gpu", "mig")
_VALUES = (*MINUTE_MEANS, *MINUTE_MAXIMA)
CUT: Mapping[str, pl.DataType] = {
    "run": pl.Int32(),
    **{name: JOB_MINUTES.schema[name] for name in (*UNIT, "minute", "t", "samples", *_VALUES)},
}


@dataclass(frozen=True, slots=True)
class Minutes:
    """Minutes of a partition, in order of segment and time.

    owner: one row per segment (run, node, gpu, mig). begin: first minute of each segment, and behind the last their
    number. values: {counter: mean or maximum}, NaN where nobody measured.
    """

    owner: pl.DataFrame
    begin: Longs
    minute: Ints
    samples: Ints
    values: Mapping[str, Singles]


def nothing() -> Minutes:
    """Return no minutes."""
    owner = pl.DataFrame(schema={name: CUT[name] for name in ("run", *UNIT)})
    return Minutes(owner, np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.int32), {})


@dataclass(frozen=True, slots=True)
class Written:
    """file: where the whole minutes are, which no reader sees yet; None where there are none. cut: rows of the others.

    timeline: of the whole minutes.
    """

    file: AddAction | None
    cut: pl.DataFrame
    timeline: pl.DataFrame


def write_minutes(
    lake: Lake, minutes: Minutes, keys: pl.DataFrame, *, number: int, day: date, idle_util: float
) -> Written:
    """Write the whole minutes of a partition as one file; return what is to land, and what is left.

    `keys`: run, job_key, job_id, start. Errors: LakeError when it cannot be written.
    """
    if not len(minutes.minute):
        return Written(None, pl.DataFrame(schema=CUT), empty())
    owner = minutes.owner.join(keys, on="run", how="left", maintain_order="left")
    lengths = np.diff(minutes.begin)
    start = owner.get_column("start").to_physical().to_numpy()
    t = np.repeat(start, lengths) + minutes.minute * np.int64(MINUTE_US)
    whole = ~_cut(minutes, t, day)
    order = _order(minutes, owner)
    whole &= ~_shared(minutes, owner, order)
    first, behind = minutes.begin[:-1][order], minutes.begin[1:][order]
    slots = _ranges(first, behind)
    segment = np.repeat(order, behind - first)
    if not whole.all():
        kept = whole[slots]
        left = np.flatnonzero(~whole)
        cut = _rows(minutes, owner, np.repeat(np.arange(len(lengths)), lengths)[left], left, t, number)
        slots, segment = slots[kept], segment[kept]
    else:
        cut = _rows(minutes, owner, segment[:0], slots[:0], t, number)
    rows = _rows(minutes, owner, segment, slots, t, number).select(*JOB_MINUTES.schema)
    run = minutes.owner.get_column("run").to_numpy()
    return Written(
        lake.stage(JOB_MINUTES, rows, day=day) if rows.height else None,
        cut.select(*CUT),
        of_slots(run, minutes.begin, minutes.minute, whole, minutes.values, idle_util=idle_util),
    )


def _cut(minutes: Minutes, t: Longs, day: date) -> NDArray[np.bool_]:
    """True for minutes that began before the day, or end after it: only a segment's first and last can."""
    midnight = int(datetime.combine(day, time(), UTC).timestamp()) * 1_000_000
    cut = np.zeros(len(t), np.bool_)
    first, last = minutes.begin[:-1], minutes.begin[1:] - 1
    cut[first] = t[first] < midnight
    cut[last] |= t[last] + MINUTE_US > midnight + DAY_US
    return cut


def _order(minutes: Minutes, owner: pl.DataFrame) -> Longs:
    """Segments in the order of the table."""
    placed = owner.select("job_key", *UNIT, minute=minutes.minute[minutes.begin[:-1]])
    order: Longs = placed.select(pl.arg_sort_by(JOB_MINUTES.sort)).to_series().cast(pl.Int64).to_numpy()
    return order


def _shared(minutes: Minutes, owner: pl.DataFrame, order: Longs) -> NDArray[np.bool_]:
    """True for a minute in which a segment ends and the next one of the same run and GPU begins."""
    shared = np.zeros(len(minutes.minute), np.bool_)
    same = owner.select("run", *UNIT)[order.tolist()].select(pl.all_horizontal(pl.all().eq_missing(pl.all().shift(-1))))
    here = np.flatnonzero(same.to_series().to_numpy()[:-1])
    last, following = minutes.begin[1:][order[here]] - 1, minutes.begin[:-1][order[here + 1]]
    twice = minutes.minute[last] == minutes.minute[following]
    shared[last[twice]] = shared[following[twice]] = True
    return shared


def _ranges(first: Longs, behind: Longs) -> Longs:
    """The numbers from each `first` to before its `behind`, one range behind the other.

    >>> _ranges(np.array([5, 0]), np.array([7, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    lengths = behind - first
    begun = np.cumsum(lengths) - lengths
    numbers: Longs = np.arange(int(lengths.sum())) + np.repeat(first - begun, lengths)
    return numbers


def _rows(minutes: Minutes, owner: pl.DataFrame, segment: Longs, slot: Longs, t: Longs, number: int) -> pl.DataFrame:
    """Some minutes as rows of the table, and whose they are (`run`)."""
    place = pl.Series(segment)
    columns = {name: owner.get_column(name).gather(place) for name in ("run", "job_key", "job_id", *UNIT)}
    columns["t"] = pl.Series(t[slot]).cast(TIME)
    columns["minute"], columns["samples"] = pl.Series(minutes.minute[slot]), pl.Series(minutes.samples[slot])
    for name in _VALUES:
        if name in minutes.values:
            columns[name] = pl.Series(minutes.values[name][slot]).fill_nan(None)
        else:
            columns[name] = pl.repeat(None, len(slot), dtype=pl.Float32, eager=True)
    columns["seq"] = pl.repeat(number, len(slot), dtype=pl.Int64, eager=True)
    return pl.DataFrame(columns)
