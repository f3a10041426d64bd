"""Samples of some simulated nodes and one day as rows of the lake, without a file in between, and their commit.

Samples without defects are converted column by column; others are conformed like a recording, so the result is that of
reading the written files, bit by bit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tachograph.catalog.chunks import Reject
from tachograph.catalog.counters import COUNTERS_BY_NAME, Counter
from tachograph.catalog.errors import LakeError
from tachograph.catalog.tables import GPU_SAMPLES
from tachograph.catalog.units import factor
from tachograph.lake.conform import conform, resolve
from tachograph.lake.delta import Lake
from tachograph.simulate import defects as faults
from tachograph.simulate.defects import DefectLog, TelemetryDefect
from tachograph.simulate.plan import SimulationPlan
from tachograph.simulate.samples import I64, Array
from tachograph.simulate.telemetry import NodeTelemetry, as_written, column_name, day_of_nodes

_COLUMNS = {name: dtype for name, dtype in GPU_SAMPLES.schema.items() if name != "seq"}
LEVEL = 3  # of zstd: 1.6 % more bytes than compaction's 6, and a fifth of the time less
_OF_STATE = ("energy_j", "temperature_c", "idle_w")
_OF_RESETS = ("offset", "last")
STRETCH = "stretch"
_KEYS = {"ProducerName": "node", "gpu_id": "gpu"}


@dataclass(frozen=True, slots=True)
class ConformedDay:
    """A day of some nodes in the lake's schema without `seq`.

    `clean`: one row per (node, gpu, t), sorted, but wrong where defects are. `spans`: first and last row of each
    stretch of it that `touched` replaces; these rows carry the number of their stretch in `STRETCH`. They are as
    their producer wrote them: doubled, backwards. `removed`: rejects from them.
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
    """Samples with defects in a day: first and last row of each stretch, and its rows as LDMS would write them."""

    spans: list[tuple[int, int]] = field(default_factory=list)
    rows: list[pl.DataFrame] = field(default_factory=list)


def day_of(
    plan: SimulationPlan,
    sources: Sequence[NodeTelemetry],
    day: int,
    drawn: Mapping[tuple[int, int], list[TelemetryDefect]],
    log: DefectLog,
    *,
    now: datetime,
) -> ConformedDay:
    """Return the samples of nodes of one group on one day. The sources move on by a day, the log by its defects."""
    values, times, blocks = day_of_nodes(plan, sources, day, drawn, log)
    touched = _Stretches()
    for source, block in zip(sources, blocks, strict=True):
        if block.defects:
            of_node = slice(block.first, block.first + block.gpus * plan.samples_per_day)
            out = {name: column[of_node] for name, column in values.items()}
            frame = as_written([source], block.gpus, plan.samples_per_day, times[of_node], out)
            for begin, end, rows in faults.windows(frame, block, [column_name(name) for name in out], log):
                touched.spans.append((begin, end))
                touched.rows.append(rows)
    conformed, removed = _conformed(touched, list(values), now)
    unsupported = [_unsupported(COUNTERS_BY_NAME[name], column, touched.spans) for name, column in values.items()]
    removed = summed([*removed, *(reject for reject in unsupported if reject.count)])
    return ConformedDay(_clean(sources, plan.samples_per_day, times, values), tuple(touched.spans), conformed, removed)


def _clean(sources: Sequence[NodeTelemetry], samples: int, times: I64, values: Mapping[str, Array]) -> pl.DataFrame:
    """Every row in the lake's schema, wrong where a defect is."""
    keys = as_written(sources, times.size // samples // len(sources), samples, times, {}).rename(_KEYS)
    counters = [_converted(COUNTERS_BY_NAME[name], column) for name, column in values.items()]
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
    """Zeros of counters that the device does not support, outside of the stretches."""
    zeros = 0
    if counter.zero_is_missing:
        zeros = given.size - int(np.count_nonzero(given))
        zeros -= sum(end - begin - int(np.count_nonzero(given[begin:end])) for begin, end in spans)
    return Reject("unsupported", counter.name, zeros, "0.0")


def _conformed(touched: _Stretches, names: Sequence[str], now: datetime) -> tuple[pl.DataFrame, tuple[Reject, ...]]:
    """The rows of the stretches, numbered, and the rejects from them."""
    if not touched.rows:
        return pl.DataFrame(schema={**_COLUMNS, STRETCH: pl.Int64}), ()
    written = pl.concat(touched.rows).rename({**_KEYS, **{column_name(name): name for name in names}})
    units = {name: COUNTERS_BY_NAME[name].ldms_unit or COUNTERS_BY_NAME[name].unit for name in names}
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


@dataclass(frozen=True, slots=True)
class FillTask:
    """The work of one process: `day` of the nodes of `sources`, which are part number `part` of the plan.

    `drawn`: the defects of these nodes. `name`: of the fill, the same in every run.
    """

    plan: SimulationPlan
    lake: str
    folder: Path
    name: str
    part: int
    day: int
    sources: Sequence[NodeTelemetry]
    drawn: Mapping[tuple[int, int], list[TelemetryDefect]]

    @property
    def transaction(self) -> str:
        """Name of the commit of the chunk."""
        return f"fill:{self.name}:{self.part}:{self.day}"

    def state(self, day: int) -> Path:
        """File of the state before `day`."""
        return self.folder / f"part-{self.part:04d}-day-{day:04d}.npz"


@dataclass(slots=True)
class RemovedValues:
    """Removed values and planted defects so far in a part."""

    rejects: tuple[Reject, ...] = ()
    log: DefectLog = field(default_factory=DefectLog)


def run_task(task: FillTask) -> int:
    """Simulate and commit the chunk; return its rows, 0 where it was committed before.

    Errors: LakeError when it cannot be written, or the state that it begins with is gone.
    """
    lake = Lake.create(task.lake, level=LEVEL)
    if lake.mark(GPU_SAMPLES, task.transaction) is not None:
        task.state(task.day).unlink(missing_ok=True)
        return 0
    removed = _restore(task)
    day = day_of(task.plan, task.sources, task.day, task.drawn, removed.log, now=datetime.now(UTC))
    frame, duplicates = _resolved(day)
    twice = (Reject("duplicate", None, duplicates),) if duplicates else ()
    removed.rejects = summed((*removed.rejects, *day.removed, *twice))
    _keep(task, removed)
    lake.append(GPU_SAMPLES, frame, app_id=task.transaction)
    task.state(task.day).unlink(missing_ok=True)
    return frame.height


def removed_by(task: FillTask) -> RemovedValues:
    """Return what was removed and planted in the task's part before its day."""
    with np.load(task.state(task.day)) as arrays:
        return _removed(arrays)


def _resolved(day: ConformedDay) -> tuple[pl.DataFrame, int]:
    """The day with each key once, and how many rows were merged away."""
    rows, merged = resolve(day.touched.with_columns(pl.lit(0, dtype=pl.Int64).alias("seq")), GPU_SAMPLES)
    return day.with_touched(rows), merged


def _restore(task: FillTask) -> RemovedValues:
    """Put the sources into the state before the day."""
    if not task.day:
        return RemovedValues()
    file = task.state(task.day)
    if not file.exists():
        raise LakeError(
            "the state of the fill is gone", where=str(file), do="fill a new lake from the start, in a new folder"
        )
    with np.load(file) as archive:
        arrays = dict(archive)
    for place, source in enumerate(task.sources):
        for name in _OF_STATE:
            setattr(source.state, name, arrays[name][place])
        for name in _OF_RESETS:
            getattr(source.resets, name)[:] = arrays[name][place]
        source.state.last_ns = int(arrays["last_ns"][place])
    return _removed(arrays)


def _removed(arrays: Mapping[str, Any]) -> RemovedValues:
    notes = json.loads(str(arrays["notes"]))
    return RemovedValues(
        tuple(Reject(*row) for row in notes["rejects"]), DefectLog([tuple(row) for row in notes["defects"]])
    )


def _keep(task: FillTask, removed: RemovedValues) -> None:
    """Write the state after the day, whole or not at all."""
    states: dict[str, Any] = {name: np.stack([getattr(s.state, name) for s in task.sources]) for name in _OF_STATE}
    resets: dict[str, Any] = {name: np.stack([getattr(s.resets, name) for s in task.sources]) for name in _OF_RESETS}
    rejects = [(each.reason, each.column, each.count, each.example) for each in removed.rejects]
    notes = np.array(json.dumps({"rejects": rejects, "defects": removed.log.rows}))
    file = task.state(task.day + 1)
    half = file.with_suffix(".half")
    with half.open("wb") as out:
        np.savez(out, last_ns=[s.state.last_ns for s in task.sources], notes=notes, **states, **resets)
    half.replace(file)
