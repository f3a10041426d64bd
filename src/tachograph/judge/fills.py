"""What GPUs may have done in the time in which nothing was measured: states, and when which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import polars as pl

from tachograph.catalog.counters import COUNTERS, CounterKind

PIECE_MINUTES = 15
BURST, BURSTS_EVERY = 2, 6  # minutes
# pieces in which a fill is in its state
_PIECES = {"begin": 1, "end": 1, "both": 2}


@dataclass(frozen=True, slots=True)
class State:
    """What a GPU does: counters between 0 and 1 (others are 0), power as a part of the highest.

    `links`: they carry as much as can be.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    power: float = 1.0
    links: bool = False

    def fraction(self, name: str) -> float:
        """Return the value of a counter between 0 and 1."""
        return self.values.get(name, 0.0)


@dataclass(frozen=True, slots=True)
class Fill:
    """What the GPUs of a job may have done while nothing was measured: a state.

    `who`: which of them, by their mean activity; the others were idle. `when`: in which part of the
    unmeasured time, else in the state `rest`: bursts of two minutes of six, or a quarter of an hour
    at its begin, its end, or both. `errors`: errors happened, and levels were as high as can be.
    `steady`: in place of a state, they did what they did in the time that was measured; `alike`:
    those that were measured less did as much, over the whole run, as those that were measured most.
    """

    state: State
    rest: State
    who: Literal["all", "busiest", "least busy"] = "all"
    when: Literal["always", "bursts", "begin", "end", "both"] = "always"
    errors: bool = False
    steady: bool = False
    alike: bool = False


_FRACTIONS = tuple(c.name for c in COUNTERS if c.kind is CounterKind.FRACTION)
_KERNELS = {"gpu_util": 1.0, "gr_engine_active": 1.0}
_SMS = {"sm_active": 1.0, "sm_occupancy": 1.0}
IDLE = State(power=0.1)
_BUSY = State(dict.fromkeys(_FRACTIONS, 1.0))
_WAITING = State(_KERNELS, power=0.25)  # a collective that waits for another process
_HALF_BUSY = State(dict.fromkeys(_FRACTIONS, 0.5), power=0.5)
_FEW_SMS = State(
    _KERNELS | {"sm_active": 0.1, "sm_occupancy": 0.1, "dram_active": 0.02, "fp32_active": 0.02},
    power=0.5,
)
_COPYING = State(_KERNELS | _SMS | {"dram_active": 1.0, "mem_copy_util": 1.0})
_FROM_HOST = replace(_WAITING, links=True)
_PLAIN = State(
    _KERNELS | {"sm_active": 1.0, "fp64_active": 1.0, "fp32_active": 1.0, "fp16_active": 1.0}
)
FILLS: tuple[Fill, ...] = (
    Fill(IDLE, IDLE),
    Fill(replace(_BUSY, links=True), IDLE, errors=True),
    *(Fill(state, IDLE) for state in (_HALF_BUSY, _WAITING, _FEW_SMS, _COPYING)),
    *(Fill(state, IDLE) for state in (_FROM_HOST, _PLAIN)),
    Fill(replace(_BUSY, links=True), IDLE, when="bursts"),
    *(Fill(_BUSY, IDLE, who=who) for who in ("busiest", "least busy")),
    *(Fill(_BUSY, IDLE, when=when) for when in ("begin", "end", "both")),
    *(Fill(_BUSY, _WAITING, when=when) for when in ("begin", "end", "both")),
    Fill(_BUSY, IDLE, steady=True),
    Fill(_BUSY, IDLE, steady=True, alike=True),
)


def settings_of(fills: Mapping[int, Fill]) -> pl.DataFrame:
    """Return a row for each fill: its `_number`, and what it says, so that all are computed alike.

    `_state_...`, `_rest_...`: counters in both of its states. `_piece_s`: length of its part; null:
    it is the share `_flat`.
    """
    return pl.DataFrame(
        [
            {
                "_number": number,
                "_who": fill.who,
                "_when": fill.when,
                "_errors": fill.errors,
                "_alike": fill.alike,
                "_piece_s": _PIECES.get(fill.when, 0) * PIECE_MINUTES * 60.0 or None,
                "_flat": BURST / BURSTS_EVERY if fill.when == "bursts" else 1.0,
                **_levels("_state", fill.state),
                **_levels("_rest", fill.rest),
            }
            for number, fill in fills.items()
        ],
        schema_overrides={"_piece_s": pl.Float64()},
    )


def _levels(role: str, state: State) -> dict[str, float]:
    levels = {counter.name: state.fraction(counter.name) for counter in COUNTERS}
    for counter in COUNTERS:
        if counter.kind is CounterKind.RATE:
            levels[counter.name] = counter.high if state.links else 0.0
    levels |= {"power": state.power, "links": float(state.links)}
    return {f"{role}_{name}": float(value) for name, value in levels.items()}


def read_by(expressions: Iterable[pl.Expr], settings: pl.DataFrame) -> pl.DataFrame:
    """Return the columns of settings that expressions of minutes read: these are many rows."""
    read = {"_number", "_who", "_when"}
    for expression in expressions:
        read.update(expression.meta.root_names())
    return settings.select(name for name in settings.columns if name in read)


def for_each(settings: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows for each of some fills, with its columns of `settings_of`.

    `_of`: the key of the job; no key of a job has a line break.
    """
    key = pl.concat_str("job_key", pl.lit("\n"), "_number")
    crossed = settings.join(rows, how="cross", maintain_order="left_right")
    return crossed.with_columns(key, _of="job_key")


def part_in_state(share: pl.Expr) -> pl.Expr:
    """Return the part of its unmeasured time in which a GPU is in the state of a fill.

    `share`: that time, of its run.
    """
    seconds = share * pl.col("_run_s")
    piece = (pl.col("_piece_s") / seconds).clip(0.0, 1.0)
    part = pl.when(pl.col("_piece_s").is_null()).then("_flat").otherwise(piece)
    who = pl.col("_who")
    has = (who == "all") | ((who == "busiest") & pl.col("_busiest"))
    return pl.when(has | ((who == "least busy") & pl.col("_least"))).then(part).otherwise(0.0)


def gpus_in_state() -> pl.Expr:
    """Return how many of the GPUs without samples in a minute are in the state of a fill."""
    missing, when = pl.col("_missing"), pl.col("_when")
    doing = pl.when(pl.col("_who") == "all").then(missing).otherwise(missing.clip(upper_bound=1))
    in_part = (
        pl.when(when == "bursts")
        .then(pl.col("minute") % BURSTS_EVERY < BURST)
        .when(when == "begin")
        .then("_at_begin")
        .when(when == "end")
        .then("_at_end")
        .when(when == "both")
        .then(pl.col("_at_begin") | pl.col("_at_end"))
        .otherwise(pl.lit(value=True))
    )
    return doing * in_part
