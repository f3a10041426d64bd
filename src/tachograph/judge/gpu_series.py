"""State of each GPU of a job per minute (work, polling, idle), and when it stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tachograph.judge.activity import UNIT, gpu_label

LEAST_WORK = 5  # minutes at work of a GPU that took part
AT_WORK = 0.1  # of its usual arithmetic or memory traffic: a GPU is at work
# Activity of pipes and memory below which a GPU does no work, whatever is usual for it.
NOTHING = 0.002
_USES = 0.01  # and from which on a GPU counts as used at all
# Utilisation of a GPU that waits by polling; of one that does nothing.
LOOKS_BUSY, LOOKS_IDLE = 0.5, 0.15
_SM_POLLS = 0.003  # SM activity of one that polls, where utilisation is not measured

WORKING, POLLING, IDLE, UNCLEAR, UNMEASURED = 3, 2, 1, 0, -1
_WORK = ("fp64_active", "fp32_active", "fp16_active", "tensor_active", "dram_active")
_COPY = "mem_copy_util"  # memory traffic in another way, where nothing better is measured
_READ = (*_WORK, _COPY, "gpu_util", "gr_engine_active", "sm_active", "power_w")
GpuStates = NDArray[np.int8]
Values = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class GpuSeries:
    """GPUs x minutes: states, and what they are made of; NaN where not measured.

    `stop`: the minute after the last one at work (0: it never worked); `quiet`: the first measured
    minute from then on (`minutes` where there is none). Work stopped between the two.
    """

    units: Sequence[tuple[str, int, int | None]]
    state: GpuStates
    util: Values
    sm: Values
    power: Values
    work: Values
    stop: NDArray[np.int64]
    quiet: NDArray[np.int64]

    @classmethod
    def of(
        cls, units: Sequence[tuple[str, int, int | None]], minutes: pl.DataFrame
    ) -> GpuSeries | None:
        """The series of `units`; None where nothing shows whether they worked."""
        place = pl.DataFrame({"place": range(len(units))}).with_columns(
            pl.Series(name, [unit[at] for unit in units], dtype=minutes.schema[name])
            for at, name in enumerate(UNIT)
        )
        names = [name for name in _READ if name in minutes.columns]
        rows = minutes.select(*UNIT, "minute", *names).join(
            place, on=UNIT, how="inner", nulls_equal=True
        )
        rows = rows.filter(pl.col("minute") >= 0)
        if rows.is_empty():
            return None
        length = int(rows.get_column("minute").to_numpy().max()) + 1
        at = (rows.get_column("place").to_numpy(), rows.get_column("minute").to_numpy())
        empty = np.full((len(units), length), np.nan, np.float32)
        columns = dict.fromkeys(_READ, empty)
        for name in names:
            columns[name] = empty.copy()
            columns[name][at] = (
                rows.get_column(name).cast(pl.Float32).fill_null(float("nan")).to_numpy()
            )
        work = _largest(*(columns[name] for name in _WORK))
        work = np.where(np.isnan(work), columns[_COPY], work)
        if np.isnan(work).all():
            return None
        util = np.where(
            np.isnan(columns["gpu_util"]), columns["gr_engine_active"], columns["gpu_util"]
        )
        state = _states(work, util, columns["sm_active"])
        stop, quiet = _stops(state)
        return cls(units, state, util, columns["sm_active"], columns["power_w"], work, stop, quiet)

    @property
    def length(self) -> int:
        """Minutes up to the last that was measured of any GPU."""
        return int(self.state.shape[1])

    @property
    def worked(self) -> NDArray[np.int64]:
        """Places of the GPUs that took part in the work."""
        return np.flatnonzero((self.state == WORKING).sum(1) >= LEAST_WORK)

    def gap(self) -> int:
        """Minutes from one measured minute to the next, as is usual for its GPUs."""
        steps = [np.diff(np.flatnonzero(row != UNMEASURED)) for row in self.state]
        every = np.concatenate(steps) if steps else np.empty(0)
        return round(float(np.median(every))) if every.size else 1

    def label(self, place: int) -> str:
        """The name of a GPU; with its node where the job had several."""
        several = len({node for node, *_ in self.units}) > 1
        node, gpu, mig = self.units[place]
        return gpu_label({"node": node, "gpu": gpu, "mig": mig}, with_node=several)

    def of_node(self, node: str) -> set[int]:
        """Places of the GPUs of a node."""
        return {place for place, unit in enumerate(self.units) if unit[0] == node}

    def shares(
        self, places: NDArray[np.int64], begin: int, end: int
    ) -> dict[int, tuple[float, dict[int, float]]]:
        """{place: share of the window's minutes that are measured, {state: its share of those}}."""
        shares = {}
        expected = max(1.0, (end - begin) / self.gap())
        for place in places.tolist():
            seen = self.state[place, begin:end]
            seen = seen[seen != UNMEASURED]
            kinds = {
                kind: np.count_nonzero(seen == kind) / max(1, seen.size)
                for kind in (WORKING, POLLING, IDLE)
            }
            shares[place] = (min(1.0, seen.size / expected), kinds)
        return shares

    def mean(self, values: Values, place: int, begin: int, end: int) -> float | None:
        """The mean of a counter in a window; None where it was not measured."""
        part = values[place, begin:end]
        part = part[~np.isnan(part)]
        return float(part.mean()) if part.size else None

    def power_at_work(self, place: int) -> float | None:
        """Usual power of a GPU at work, W."""
        part = self.power[place][self.state[place] == WORKING]
        part = part[~np.isnan(part)]
        return float(np.median(part)) if part.size else None


def _largest(*values: Values) -> Values:
    """The largest of what was measured; NaN where nothing was."""
    stacked = np.stack(values)
    most = np.where(np.isnan(stacked), -np.inf, stacked).max(0)
    return np.asarray(np.where(most == -np.inf, np.nan, most), np.float32)


def _states(work: Values, util: Values, sm: Values) -> GpuStates:
    """State of each GPU in each minute. A single minute with work among others is no work:
    something read memory.
    """
    usual = []
    for row in work:
        used = row[row >= _USES]
        usual.append(np.median(used) if used.size else np.inf)
    working = work >= np.maximum(NOTHING, AT_WORK * np.array(usual))[:, None]
    seen = ~np.isnan(work)
    polling = np.where(np.isnan(util), sm >= _SM_POLLS, util >= LOOKS_BUSY)
    idle = np.where(np.isnan(util), sm < _SM_POLLS, util < LOOKS_IDLE)
    state = np.full(work.shape, UNMEASURED, np.int8)
    state[seen] = UNCLEAR
    state[seen & ~working & idle] = IDLE
    state[seen & ~working & polling] = POLLING
    state[seen & working] = WORKING
    for row in state:
        measured = np.flatnonzero(row != UNMEASURED)
        alone = _alone(row[measured] == WORKING)
        row[measured[alone]] = UNCLEAR
    return state


def _alone(working: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Minutes at work with none at work among the two before and the two after."""
    padded = np.concatenate([np.zeros(2, np.bool_), working, np.zeros(2, np.bool_)])
    near = padded[:-4] | padded[1:-3] | padded[3:-1] | padded[4:]
    return np.asarray(working & ~near, np.bool_)


def _stops(state: GpuStates) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    length = state.shape[1]
    stop, quiet = np.zeros(len(state), np.int64), np.full(len(state), length, np.int64)
    for place, row in enumerate(state):
        at_work = np.flatnonzero(row == WORKING)
        stop[place] = at_work[-1] + 1 if at_work.size else 0
        after = np.flatnonzero(row[stop[place] :] != UNMEASURED)
        if after.size:
            quiet[place] = stop[place] + after[0]
    return stop, quiet


def longest_pause(states: GpuStates) -> int:
    """Longest run of idle or unmeasured minutes between minutes of work of one GPU."""
    at_work = np.flatnonzero(states == WORKING)
    return int(np.diff(at_work).max()) - 1 if at_work.size > 1 else 0
