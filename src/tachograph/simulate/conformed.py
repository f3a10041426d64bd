"""Samples of some nodes and one day as they lie in the lake, without a file in between.

What no defect touches is converted column by column; the rest goes through the gates that a recording goes through,
so the result is that of reading the written files, bit by bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import polars as pl

from tachograph.counters import BY_NAME, Counter
from tachograph.schema import GPU_SAMPLES, Reject, conform
from tachograph.simulate import defects as faults
from tachograph.simulate.defects import Block, Defect, Log
from tachograph.simulate.plan import Plan
from tachograph.simulate.samples import DTYPES, I64, Array
from tachograph.simulate.telemetry import Source, as_written, column_name, fill_block
from tachograph.units import factor

_COLUMNS = {name: dtype for name, dtype in GPU_SAMPLES.schema.items() if name != "seq"}
STRETCH = "stretch"
_KEYS = {"ProducerName": "node", "gpu_id": "gpu"}


@dataclass(frozen=True, slots=True)
class Day:
    """A day of some nodes in the lake's schema without `seq`.

    `clean`: one row per (node, gpu, t), sorted, but wrong where defects are. `spans`: first and last row of each
    stretch of it that `touched` replaces; these rows carry the number of their stretch in `STRETCH`. They are as
    their producer wrote them: doubled, backwards. `removed`: what had to go from them.
    """

    clean: pl.DataFrame
    spans: tuple[tuple[int, int], ...]
    touched: pl.DataFrame
    removed: tuple[Reject, ...]

    def with_touched(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the day with `rows`, which are `touched` in order and each key once, in the place of what is wrong."""
        if not self.spans:
            return self.clean
        heights = np.bincount(rows.get_column(STRETCH).to_numpy(), minlength=len(self.spans))
        given = rows.select(self.clean.columns)
        pieces: list[pl.DataFrame] = []
        at = taken = 0
        for (begin, end), height in zip(self.spans, heights.tolist(), strict=True):
            pieces += [self.clean.slice(at, begin - at), given.slice(taken, height)]
            at, taken = end, taken + height
        return pl.concat([*pieces, self.clean.slice(at)], rechunk=True)


@dataclass(slots=True)
class _Stretches:
    """What defects touch in a day: first and last row of each stretch, and its rows as LDMS would write them."""

    spans: list[tuple[int, int]] = field(default_factory=list)
    rows: list[pl.DataFrame] = field(default_factory=list)


def day_of(
    plan: Plan,
    sources: Sequence[Source],
    day: int,
    drawn: Mapping[tuple[int, int], list[Defect]],
    log: Log,
    *,
    now: datetime,
) -> Day:
    """Return the samples of nodes of one group on one day. The sources move on by a day, the log by its defects."""
    group = plan.groups[sources[0].node.group]
    names = faults.measured(plan, group)
    per_node = group.gpus * plan.samples_per_day
    values: dict[str, Array] = {n: np.empty(per_node * len(sources), DTYPES.get(n, np.float32)) for n in names}
    times = np.empty(per_node * len(sources), np.int64)
    touched = _Stretches()
    for place, source in enumerate(sources):
        first = place * per_node
        out = {name: column[first : first + per_node] for name, column in values.items()}
        block = fill_block(plan, source, day, drawn.get((source.node.index, day), []), first, out)
        written = np.tile(faults.apply_values(block, out, source.resets, log), group.gpus)
        times[first : first + per_node] = written
        if block.defects:
            _touch(touched, plan, source, block, written, out, log)
    rows, removed = _conformed(touched, names, now)
    unsupported = [_unsupported(BY_NAME[name], values[name], touched.spans) for name in names]
    removed = summed([*removed, *(reject for reject in unsupported if reject.count)])
    return Day(_clean(sources, plan.samples_per_day, times, values), tuple(touched.spans), rows, removed)


def _touch(
    touched: _Stretches, plan: Plan, source: Source, block: Block, times: I64, out: Mapping[str, Array], log: Log
) -> None:
    """Add what defects touch in one node's day."""
    frame = as_written([source], block.gpus, plan.samples_per_day, times, out)
    for begin, end, rows in faults.windows(frame, block, [column_name(name) for name in out], log):
        touched.spans.append((begin, end))
        touched.rows.append(rows)


def _clean(sources: Sequence[Source], samples: int, times: I64, values: Mapping[str, Array]) -> pl.DataFrame:
    """Every row in the lake's schema, wrong where a defect is."""
    keys = as_written(sources, times.size // samples // len(sources), samples, times, {}).rename(_KEYS)
    counters = [_converted(BY_NAME[name], column) for name, column in values.items()]
    frame = keys.select(_time(), "node", "gpu").with_columns(counters)
    rest = [pl.lit(None, dtype=dtype).alias(name) for name, dtype in _COLUMNS.items() if name not in frame.columns]
    return frame.with_columns(rest).select(*_COLUMNS)


def _time() -> pl.Expr:
    """Times as readers of numbers since 1970 take them."""
    return pl.from_epoch(pl.col("ts_ns") // 1000, time_unit="us").dt.replace_time_zone("UTC").alias("t")


def _converted(counter: Counter, given: Array) -> pl.Series:
    """A counter in its contract unit and type: the arithmetic of `conform`, without its checks."""
    storage = np.float64 if counter.storage == "f64" else np.float32
    unit = counter.ldms_unit or counter.unit
    values = given if unit == counter.unit else given.astype(np.float64) * factor(unit, counter.unit)
    series = pl.Series(counter.name, values.astype(storage, copy=False))
    if counter.zero_is_missing and not given.all():
        series = pl.select(pl.when(pl.Series(given != 0)).then(series)).to_series().alias(counter.name)
    return series


def _unsupported(counter: Counter, given: Array, spans: Sequence[tuple[int, int]]) -> Reject:
    """Zeros that mean that the device does not tell, outside of the stretches."""
    zeros = 0
    if counter.zero_is_missing:
        zeros = given.size - int(np.count_nonzero(given))
        zeros -= sum(end - begin - int(np.count_nonzero(given[begin:end])) for begin, end in spans)
    return Reject("unsupported", counter.name, zeros, "0.0")


def _conformed(touched: _Stretches, names: Sequence[str], now: datetime) -> tuple[pl.DataFrame, tuple[Reject, ...]]:
    """The rows of the stretches, numbered, and what had to go from them."""
    if not touched.rows:
        return pl.DataFrame(schema={**_COLUMNS, STRETCH: pl.Int64}), ()
    written = pl.concat(touched.rows).rename({**_KEYS, **{column_name(name): name for name in names}})
    units = {name: BY_NAME[name].ldms_unit or BY_NAME[name].unit for name in names}
    conformed = conform(written.select(_time(), "node", "gpu", *names), GPU_SAMPLES, now=now, units=units)
    numbers = np.repeat(np.arange(len(touched.rows)), [rows.height for rows in touched.rows])
    return conformed.frame.with_columns(pl.Series(STRETCH, numbers, dtype=pl.Int64)), conformed.rejects


def summed(rejects: Sequence[Reject]) -> tuple[Reject, ...]:
    """Return one reject per reason and column, with the first example.

    >>> summed([Reject("duplicate", None, 2), Reject("duplicate", None, 3)])
    (Reject(reason='duplicate', column=None, count=5, example=None),)
    """
    found: dict[tuple[str, str | None], Reject] = {}
    for each in rejects:
        before = found.get((each.reason, each.column))
        count, example = (before.count, before.example) if before else (0, None)
        found[each.reason, each.column] = Reject(each.reason, each.column, count + each.count, example or each.example)
    return tuple(found.values())
