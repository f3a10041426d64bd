"""Simulated host counters: CPU, load, network, file systems, cache misses, as LDMS.

It follows from the GPUs' work (`timeline`), so waiting jobs also wait on the host, except
busy-waiting ones: such a process spins on its CPUs, without network traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

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
    Occupancy,
)
from tachograph.catalog.tables import TIME

Flags = NDArray[np.bool_]
INTERVAL_S = 60
CPUS = 64
NETWORK_PACKET, CACHE_LINE = 4096.0, 64.0  # bytes
# {what is counted: (LDMS column, growth on a node on which only daemons run)}: CPU times as shares
# of all CPUs, load in runnable tasks, the rest per second
_COUNTERS: Mapping[str, tuple[str, float]] = {
    "user": ("procstat_user", 0.0012),
    "nice": ("procstat_nice", 0.0001),
    "system": ("procstat_sys", 0.0010),
    "iowait": ("procstat_iowait", 0.0001),
    "load": ("loadavg_load1min", 0.12),
    "rx_bytes": ("rx_bytes#hsn0", 2.4e3),
    "tx_bytes": ("tx_bytes#hsn0", 1.9e3),
    "rx_packets": ("rx_packets#hsn0", 14.0),
    "tx_packets": ("tx_packets#hsn0", 11.0),
    "read_bytes": ("client.lstats.read_bytes#llite.scratch", 40.0),
    "write_bytes": ("client.lstats.write_bytes#llite.scratch", 25.0),
    "l1": ("PAPI_L1_DCM", 1.1e5),
    "llc": ("PAPI_L3_TCM", 6.0e3),
}
COUNTED = tuple(_COUNTERS)
QUIET = [growth for _, growth in _COUNTERS.values()]
_PIPES = ("fp64", "fp32", "fp16", "hmma", "imma", "dfma")
_JIFFIES = COUNTED[:4]
_IDLE_COLUMN = "procstat_idle"
# how often in a node and day, and how long in samples
_GAPS, _GAP_SAMPLES, _REBOOTS, _LOST = 0.15, (5, 90), 0.05, 0.002
_LACKING = 0.04  # share of nodes without cache counters, and without any
DEFECTS = {"kind": pl.String(), "node": pl.String(), "start": TIME, "end": TIME}


def write_hosts(
    plan: SimulationPlan,
    folder: Path,
    held: Occupancy,
    *,
    take: Callable[[Path], None] | None = None,
) -> tuple[list[Path], pl.DataFrame]:
    """Write host samples, one file per day and part of the nodes; return files and defects.

    `take` is called with each file, which is then not returned.
    """
    files, defects = list[Path](), [pl.DataFrame(schema=DEFECTS)]
    keep = take or files.append
    nodes = plan.nodes()
    lacking = _lacking(plan)
    wide = np.array([len(held.runs[row.run].places) > 1 for row in held.allocations] + [False])
    step = max(1, plan.rows_per_file // (plan.seconds // INTERVAL_S))
    for part, at in enumerate(range(0, len(nodes), step)):
        of_nodes = []
        for node in nodes[at : at + step]:
            lines = held.timelines(plan, node)
            of_nodes.append(_of_node(plan, node, lines, wide, lacking.get(node.index)))
        samples = pl.concat([frame for frame, _ in of_nodes])
        planted = pl.concat([noted for _, noted in of_nodes])
        defects.append(planted.sort(pl.col("start").dt.date(), maintain_order=True))
        for day in range(plan.days):
            begin_ns = (plan.start_s + 86400 * day) * 10**9
            of_day = pl.col("ts_ns").is_between(begin_ns, begin_ns + 86400 * 10**9, closed="left")
            file = folder / f"hosts-{plan.start + timedelta(days=day):%Y-%m-%d}-{part:03d}.parquet"
            samples.filter(of_day).write_parquet(
                file, compression="zstd", compression_level=1, statistics=False
            )
            keep(file)
    return sorted(files), pl.concat(defects)


def _lacking(plan: SimulationPlan) -> dict[int, str]:
    """Return {node: missing counters}; on small clusters none are missing."""
    nodes = len(plan.nodes())
    if not plan.defects or nodes < 4:
        return {}
    count = max(1, round(_LACKING * nodes))
    indexes = (
        np.random.default_rng([plan.seed, 21]).choice(nodes, 2 * count, replace=False).tolist()
    )
    return {
        **dict.fromkeys(indexes[:count], "no_cache_counters"),
        **dict.fromkeys(indexes[count:], "no_host_samples"),
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
    grown += np.outer(elapsed, QUIET)
    grown *= np.exp(rng.normal(0.0, 0.12, grown.shape))
    load = grown[:, COUNTED.index("load")] / elapsed
    busy = grown[:, : len(_JIFFIES)]
    busy *= np.minimum(1.0, 0.99 * elapsed / np.maximum(busy.sum(axis=1), 1e-9))[:, None]
    idle = elapsed - busy.sum(axis=1)
    recorded, reboot, defects = _defects(plan, node, seconds, rng, lacks)
    total = _counted(np.column_stack([grown, idle]), reboot, rng)
    total[:, [*range(len(_JIFFIES)), len(COUNTED)]] *= 100.0 * CPUS
    whole = np.floor(total[recorded]).astype(np.int64)
    whole[:, COUNTED.index("load")] = np.round(100 * load[recorded])
    names = [column for column, _ in _COUNTERS.values()]
    frame = pl.DataFrame(whole, schema=[*names, _IDLE_COLUMN])
    if lacks == "no_cache_counters":
        frame = frame.with_columns(pl.lit(None, pl.Int64).alias(name) for name in names[-2:])
    stamps = np.round((seconds[recorded] + plan.start_s) * 1e6).astype(np.int64) * 1000
    return frame.select(
        pl.lit(node.name).alias("ProducerName"), pl.Series("ts_ns", stamps), pl.all()
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
        periods, duties = line.level[:, COLUMN["period_s"]], line.level[:, COLUMN["duty"]]
        period = np.where(periods > 0, periods, 1.0).astype(float)
        duty = np.where(periods > 0, duties, 1.0).astype(float)
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
    rates = {
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
    return np.column_stack([rates.get(name, np.zeros(len(util))) for name in COUNTED])


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
    return np.flatnonzero(~missing), reboot, pl.DataFrame(rows, schema=DEFECTS, orient="row")
