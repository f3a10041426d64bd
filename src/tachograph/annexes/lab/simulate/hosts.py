"""Simulated host counters: CPU, load, network, file systems, cache misses, as LDMS.

It follows from the GPUs' work (`timeline`), so waiting jobs also wait on the host, except
busy-waiting ones: such a process spins on its CPUs, without network traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tachograph.annexes.lab.simulate.plan import SimulatedNode, SimulationPlan
from tachograph.annexes.lab.simulate.samples import (
    COLUMN,
    F32,
    F64,
    I64,
    ActivityTimeline,
    SimulatedAllocation,
    timelines,
)
from tachograph.annexes.lab.simulate.workload import SimulatedRun
from tachograph.catalog.tables import TIME

Flags = NDArray[np.bool_]
INTERVAL_S = 60
CPUS = 64
NETWORK_PACKET, CACHE_LINE = 4096.0, 64.0  # bytes
# CPU times as shares of all CPUs, load in runnable tasks, the rest per second
COUNTED = (
    *("user", "nice", "system", "iowait", "load"),
    *("rx_bytes", "tx_bytes", "rx_packets", "tx_packets", "read_bytes", "write_bytes", "l1", "llc"),
)
_PLACE: Mapping[str, int] = MappingProxyType({name: place for place, name in enumerate(COUNTED)})
# of a node on which nothing runs: its daemons
QUIET: Mapping[str, float] = MappingProxyType(
    {
        "user": 0.0012,
        "nice": 0.0001,
        "system": 0.0010,
        "iowait": 0.0001,
        "load": 0.12,
        "rx_bytes": 2.4e3,
        "tx_bytes": 1.9e3,
        "rx_packets": 14.0,
        "tx_packets": 11.0,
        "read_bytes": 40.0,
        "write_bytes": 25.0,
        "l1": 1.1e5,
        "llc": 6.0e3,
    }
)
_PIPES = ("fp64", "fp32", "fp16", "hmma", "imma", "dfma")
_JIFFIES = ("user", "nice", "system", "iowait")
_COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "user": "procstat_user",
        "nice": "procstat_nice",
        "system": "procstat_sys",
        "iowait": "procstat_iowait",
        "load": "loadavg_load1min",
        "rx_bytes": "rx_bytes#hsn0",
        "tx_bytes": "tx_bytes#hsn0",
        "rx_packets": "rx_packets#hsn0",
        "tx_packets": "tx_packets#hsn0",
        "read_bytes": "client.lstats.read_bytes#llite.scratch",
        "write_bytes": "client.lstats.write_bytes#llite.scratch",
        "l1": "PAPI_L1_DCM",
        "llc": "PAPI_L3_TCM",
    }
)
_IDLE_COLUMN = "procstat_idle"
_OF_PAPI = ("l1", "llc")
# how often in a node and day, and how long in samples
_GAPS, _GAP_SAMPLES, _REBOOTS, _LOST = 0.15, (5, 90), 0.05, 0.002
_LACKING = 0.04  # share of nodes without cache counters, and without any
DEFECTS: Mapping[str, pl.DataType] = MappingProxyType(
    {"kind": pl.String(), "node": pl.String(), "start": TIME, "end": TIME}
)


@dataclass(frozen=True, slots=True)
class HostDay:
    """Host samples of some nodes on one day in LDMS format; `part` numbers the nodes."""

    part: int
    day: int
    frame: pl.DataFrame
    defects: pl.DataFrame

    def name(self, plan: SimulationPlan) -> str:
        """File name."""
        return f"hosts-{plan.start + timedelta(days=self.day):%Y-%m-%d}-{self.part:03d}.parquet"


def host_days(
    plan: SimulationPlan,
    runs: Sequence[SimulatedRun],
    allocations: Sequence[SimulatedAllocation],
    held: Mapping[tuple[int, int], list[int]],
) -> Iterator[HostDay]:
    """Yield host samples day by day, some nodes at a time; `held`: `timeline.by_gpu`."""
    nodes = plan.nodes()
    lacking = _lacking(plan)
    wide = np.array([len(runs[row.run].places) > 1 for row in allocations] + [False])
    step = max(1, plan.rows_per_file // (plan.seconds // INTERVAL_S))
    for part, at in enumerate(range(0, len(nodes), step)):
        made = [
            _of_node(
                plan,
                node,
                timelines(plan, node, runs, allocations, held),
                wide,
                lacking.get(node.index),
            )
            for node in nodes[at : at + step]
        ]
        frame, defects = (
            pl.concat([each[0] for each in made]),
            pl.concat([each[1] for each in made]),
        )
        for day in range(plan.days):
            begin = pl.lit(plan.start + timedelta(days=day), dtype=TIME)
            end = begin + pl.duration(days=1)
            of_day = frame.filter(
                (pl.col("ts_ns") >= begin.dt.epoch("ns")) & (pl.col("ts_ns") < end.dt.epoch("ns"))
            )
            noted = defects.filter((pl.col("start") >= begin) & (pl.col("start") < end))
            yield HostDay(part, day, of_day, noted)


def write_hosts(
    plan: SimulationPlan,
    folder: Path,
    runs: Sequence[SimulatedRun],
    allocations: Sequence[SimulatedAllocation],
    held: Mapping[tuple[int, int], list[int]],
    *,
    take: Callable[[Path], None] | None = None,
) -> tuple[list[Path], pl.DataFrame]:
    """Write host samples, one file per day and part of the nodes; return files and defects.

    `take` is called with each file, which is then not returned.
    """
    files, defects = list[Path](), [pl.DataFrame(schema=DEFECTS)]
    for day in host_days(plan, runs, allocations, held):
        file = folder / day.name(plan)
        day.frame.write_parquet(file, compression="zstd", compression_level=1, statistics=False)
        if take is None:
            files.append(file)
        else:
            take(file)
        defects.append(day.defects)
    return sorted(files), pl.concat(defects)


def _lacking(plan: SimulationPlan) -> dict[int, str]:
    """Return {node: missing counters}; on small clusters none are missing."""
    nodes = len(plan.nodes())
    if not plan.defects or nodes < 4:
        return {}
    each = max(1, round(_LACKING * nodes))
    chosen = np.random.default_rng([plan.seed, 21]).choice(nodes, 2 * each, replace=False).tolist()
    return {
        **dict.fromkeys(chosen[:each], "no_cache_counters"),
        **dict.fromkeys(chosen[each:], "no_host_samples"),
    }


def _of_node(
    plan: SimulationPlan,
    node: SimulatedNode,
    lines: Sequence[ActivityTimeline],
    wide: Flags,
    lacks: str | None,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """All samples of one node, and its defects."""
    rng = np.random.default_rng([plan.seed, 22, node.index])
    seconds = _times(plan, rng)
    elapsed = np.diff(seconds, prepend=seconds[0] - INTERVAL_S)
    grown = _grown(lines, wide, np.append(seconds[0] - INTERVAL_S, seconds))
    grown += np.outer(elapsed, [QUIET[name] for name in COUNTED])
    grown *= np.exp(rng.normal(0.0, 0.12, grown.shape))
    load = grown[:, _PLACE["load"]] / elapsed
    busy = grown[:, : len(_JIFFIES)]
    busy *= np.minimum(1.0, 0.99 * elapsed / np.maximum(busy.sum(axis=1), 1e-9))[:, None]
    idle = elapsed - busy.sum(axis=1)
    kept, reboot, defects = _defects(plan, node, seconds, rng, lacks)
    total = _counted(np.column_stack([grown, idle]), reboot, rng)
    jiffies = [*(_PLACE[name] for name in _JIFFIES), len(COUNTED)]
    total[:, jiffies] *= 100.0 * CPUS
    whole = np.floor(total[kept]).astype(np.int64)
    columns = {_COLUMNS[name]: pl.Series(whole[:, _PLACE[name]]) for name in COUNTED}
    columns[_COLUMNS["load"]] = pl.Series(np.round(100 * load[kept]).astype(np.int64))
    for name in _OF_PAPI if lacks == "no_cache_counters" else ():
        columns[_COLUMNS[name]] = pl.repeat(None, len(whole), dtype=pl.Int64, eager=True)
    stamps = np.round((seconds[kept] + plan.start_s) * 1e6).astype(np.int64) * 1000
    keys = {
        "ProducerName": pl.repeat(node.name, len(whole), eager=True),
        "ts_ns": pl.Series(stamps),
    }
    return pl.DataFrame(
        {**keys, **columns, _IDLE_COLUMN: pl.Series(whole[:, len(COUNTED)])}
    ), defects


def _times(plan: SimulationPlan, rng: np.random.Generator) -> F64:
    """When the node samples, in seconds after the plan's start."""
    steps: F64 = np.arange(0, plan.seconds, INTERVAL_S, dtype=np.float64) + float(
        rng.uniform(0.05, 0.95)
    )
    jitter: F64 = rng.uniform(0.0, 0.04, steps.size)
    return np.add(steps, jitter) if plan.defects else steps


def _grown(lines: Sequence[ActivityTimeline], wide: Flags, edges: F64) -> F64:
    """Growth of each counter by the GPUs' work between neighbouring `edges` (s)."""
    total = np.zeros((edges.size, len(COUNTED)))
    for line in lines:
        rates = _rates(line.level, wide[line.allocation]) / [
            len(lines) if name in _JIFFIES else 1.0 for name in COUNTED
        ]
        period = np.where(
            line.level[:, COLUMN["period_s"]] > 0, line.level[:, COLUMN["period_s"]], 1.0
        ).astype(float)
        duty = np.where(
            line.level[:, COLUMN["period_s"]] > 0, line.level[:, COLUMN["duty"]], 1.0
        ).astype(float)
        origin, begin = line.origin_s.astype(float), line.begin_s.astype(float)
        start = _worked(begin - origin, period, duty)
        lasted = _worked(np.append(begin[1:], begin[-1]) - origin, period, duty) - start
        before = np.cumsum(rates * lasted[:, None], axis=0) - rates * lasted[:, None]
        at = np.maximum(np.searchsorted(begin, edges, "right") - 1, 0)
        inside = _worked(edges - origin[at], period[at], duty[at]) - start[at]
        total += before[at] + rates[at] * np.maximum(inside, 0.0)[:, None]
    return np.diff(total, axis=0)


def _worked(elapsed: F64, period: F64, duty: F64) -> F64:
    """Return seconds of work in the first `elapsed`, for work at the start of each period."""
    rounds = np.floor(elapsed / period)
    return np.asarray(
        (rounds * duty + np.minimum(elapsed / period - rounds, duty)) * period, np.float64
    )


def _rates(level: F32, wide: Flags) -> F64:
    """Growth of counters per second by a GPU's process and level; CPU times as shares of its
    CPUs.
    """
    util, dram, rx, nvlink = (
        level[:, COLUMN[name]].astype(float) for name in ("util", "dram", "pcie_rx", "nvlink")
    )
    resting = dram < 1e-4
    spins, loads = (
        resting & (util > 0.5),
        (rx >= 3e8) & ~level[:, [COLUMN[name] for name in _PIPES]].any(axis=1),
    )
    works = ~resting & ~loads
    others = np.where(
        works & wide, 2e6 + 0.05 * nvlink + 0.3 * rx, np.where(works, 3e4 * util, 0.0)
    )
    read = np.where(loads, rx, np.where(works, 0.02 * rx, 0.0))
    write = np.where(works, 1.5e6 * util, 0.0)
    found = {
        "user": np.select([spins, loads, works], [0.98, 0.12, 0.04 + 0.30 * util]),
        "system": np.select([spins, loads, works], [0.01, 0.05, 0.01 + 0.02 * util]),
        "iowait": np.select([loads, works], [0.04, 0.002]),
        "load": np.select([spins, loads, works], [CPUS / 4.0, 3.0, 1.0 + 6.0 * util]),
        "rx_bytes": others + read,
        "tx_bytes": others + write,
        "rx_packets": (others + read) / NETWORK_PACKET,
        "tx_packets": (others + write) / NETWORK_PACKET,
        "read_bytes": read,
        "write_bytes": write,
        "l1": np.where(works, 2e8 * util, 0.0) + read / CACHE_LINE,
        "llc": np.where(works, 1e7 * (util + dram), 0.0) + 0.3 * read / CACHE_LINE,
    }
    return np.column_stack([found.get(name, np.zeros(len(util))) for name in COUNTED])


def _counted(grown: F64, reboot: int | None, rng: np.random.Generator) -> F64:
    """Counters from increments: of a node up for a while, restarting at zero after a reboot."""
    up = rng.uniform(1e5, 5e6) * np.maximum(grown.mean(axis=0), 0.0) / INTERVAL_S
    total = np.cumsum(grown, axis=0) + up
    if reboot is not None:
        total[reboot:] -= total[reboot - 1]
    return np.asarray(total, np.float64)


def _defects(
    plan: SimulationPlan,
    node: SimulatedNode,
    seconds: F64,
    rng: np.random.Generator,
    lacks: str | None,
) -> tuple[I64, int | None, pl.DataFrame]:
    """Return the samples present, the first after a reboot, and the planted defects."""
    count, days = seconds.size, plan.days
    missing = np.zeros(count, np.bool_)
    reboot: int | None = None
    noted: list[tuple[str, int, int]] = []
    if plan.defects:
        missing = rng.random(count) < _LOST
        for _ in range(int(rng.poisson(_GAPS * days))):
            first = int(rng.integers(0, count - 1))
            last = min(first + int(rng.integers(*_GAP_SAMPLES)), count - 1)
            missing[first : last + 1] = True
            noted.append(("gap", first, last))
        if rng.random() < min(1.0, _REBOOTS * days):
            reboot = int(rng.integers(1, count))
            noted.append(("counter_reset", reboot, reboot))
    if lacks is not None:
        noted.append((lacks, 0, count - 1))
        missing |= lacks == "no_host_samples"
    rows = []
    for kind, first, last in noted:
        begin = plan.start + timedelta(seconds=float(seconds[first]))
        end = plan.start + timedelta(seconds=float(seconds[last]))
        rows.append((kind, node.name, begin, end))
    return np.flatnonzero(~missing), reboot, pl.DataFrame(rows, schema=dict(DEFECTS), orient="row")
