"""Batches: samples of several chunks, resolved together before they are written.

Two recordings of the same samples that hold other counters become one row per sample at once, and
what follows one another becomes one file, so compaction finds nothing to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise

import polars as pl

from tachograph.catalog.tables import LakeTable
from tachograph.lake.conform import precedes, resolve, resolve_days

FILE_ROWS = 4_000_000  # what an analysis reads at a time


@dataclass(frozen=True, slots=True)
class BatchDays:
    """Resolved rows per day; `within`: repeated inside each frame; `across`: repeated between
    frames, by day.
    """

    days: dict[date, pl.DataFrame]
    within: tuple[int, ...]
    across: Counter[date]


def resolve_batch(frames: Sequence[pl.DataFrame], table: LakeTable) -> BatchDays:
    """Return the rows of frames by day, with unique keys; later frames take precedence.

    Grain: the frames are in the table's schema, `seq` included and constant.
    """
    by_day: dict[date, list[pl.DataFrame]] = {}
    across: Counter[date] = Counter()
    within: list[int] = []
    for group in _same_samples(frames, table):
        side_by_side, repeated_between = _side_by_side(group, table)
        parts = list(resolve_days(side_by_side, table))
        merged = side_by_side.height - sum(rows.height for _, rows, _ in parts)
        if merged and len(group) > 1:  # which of the rows of a key counts depends on the frame, too
            for frame in group:
                repeated_alone = 0
                for day, rows, count in resolve_days(frame, table):
                    by_day.setdefault(day, []).append(rows)
                    repeated_alone += count
                within.append(repeated_alone)
            continue
        within += [sum(count for _, _, count in parts)] * len(group)
        for day, rows, _ in parts:
            by_day.setdefault(day, []).append(rows)
        across.update(repeated_between)
    days: dict[date, pl.DataFrame] = {}
    for day in sorted(by_day):
        rows, repeated = _put_together(by_day.pop(day), table)
        days[day] = rows
        across[day] += repeated
    return BatchDays(days, tuple(within), across)


def between_nodes(rows: pl.DataFrame, *, limit: int = FILE_ROWS) -> Iterator[pl.DataFrame]:
    """Yield rows, sorted by node, in pieces of at most `limit` rows, but never less than a node."""
    begin = end = 0
    for length in rows["node"].rle().struct.field("len") if rows.height > limit else ():
        if end > begin and end + length - begin > limit:
            yield rows.slice(begin, end - begin)
            begin = end
        end += length
    yield rows.slice(begin)


def _same_samples(frames: Sequence[pl.DataFrame], table: LakeTable) -> list[list[pl.DataFrame]]:
    """Neighbours whose rows have the same keys in the same order, together."""
    groups: list[list[pl.DataFrame]] = []
    for frame in frames:
        if groups and table.completes and _have_same_keys(groups[-1][0], frame, table):
            groups[-1].append(frame)
        else:
            groups.append([frame])
    return groups


def _have_same_keys(earlier: pl.DataFrame, later: pl.DataFrame, table: LakeTable) -> bool:
    return earlier.height == later.height and all(
        earlier[name].equals(later[name], null_equal=True) for name in ("t", *table.key)
    )


def _side_by_side(
    frames: Sequence[pl.DataFrame], table: LakeTable
) -> tuple[pl.DataFrame, Counter[date]]:
    """Merge frames with the same keys row by row, taking the last non-null value per column.

    Also returned: how many rows of each day add no value to those of the frames before.
    """
    merged = frames[0]
    repeated: Counter[date] = Counter()
    for later in frames[1:]:
        names = [
            column.name
            for column in later.get_columns()
            if column.name not in (*table.key, "seq") and column.null_count() < later.height
        ]
        repeated.update(_days_of_repeated(merged, later, names))
        merged = merged.with_columns(_latest(merged[name], later[name]) for name in names)
    return merged, repeated


def _days_of_repeated(
    merged: pl.DataFrame, later: pl.DataFrame, names: Sequence[str]
) -> dict[date, int]:
    """How many rows of each day have no value of `names` that is null in `merged`."""
    if any(
        merged[name].null_count() == merged.height and not later[name].null_count()
        for name in names
    ):
        return {}
    adds = [later[name].is_not_null() & merged[name].is_null() for name in names]
    repeated = later.filter(~pl.any_horizontal(pl.lit(value=False), *adds))
    return dict(repeated["t"].dt.date().value_counts().iter_rows())


def _latest(old: pl.Series, new: pl.Series) -> pl.Series:
    """Values of `new`, and where it has none those of `old`."""
    if not new.null_count() or old.null_count() == len(old):
        return new
    return pl.select(pl.coalesce(new, old)).to_series()


def _put_together(frames: Sequence[pl.DataFrame], table: LakeTable) -> tuple[pl.DataFrame, int]:
    """A day's frames, each of them resolved, as one, and how many rows repeat others of them."""
    if len(frames) == 1:
        return frames[0], 0
    ordered = sorted(frames, key=lambda frame: frame.row(0, named=True)["node"] or "")
    if all(precedes(earlier, later, table) for earlier, later in pairwise(ordered)):
        return pl.concat(ordered), 0
    # In one piece: rows of several are gathered at half the speed.
    return resolve(pl.concat(frames, rechunk=True), table, repeats=True)
