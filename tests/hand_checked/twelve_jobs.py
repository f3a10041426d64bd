"""Twelve jobs on eight nodes of four A100 40 GB, and one that still runs: telemetry, accounting,
map as files.

Telemetry every 10 s with LDMS column names and units (percent, mJ, MiB, B/s); accounting in local
time, Pacific daylight time, seven hours behind UTC. Counters are constant within a job unless its
function reports otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl

STEP = 10
P = "nersc_ldms_dcgm_"
Levels = dict[str, float | int]
AT = datetime(2025, 4, 23, 17, 0, tzinfo=UTC)  # 10:00 there

CONFIGURATION = """\
[site]
time_zone = "America/Los_Angeles"
[slurm]
shared = ["shared"]
[nodes.models]
"n[01-08]" = "NVIDIA A100-SXM4-40GB"
"""

IDLE: Levels = {
    "gpu_utilization": 0, "sm_active": 0.0, "sm_occupancy": 0.0, "gr_engine_active": 0.0, "fp16_active": 0.0,
    "fp32_active": 0.0, "fp64_active": 0.0, "tensor_active": 0.0, "tensor_hmma_active": 0.0, "tensor_imma_active": 0.0,
    "DCGM_FI_PROF_PIPE_TENSOR_DFMA_ACTIVE": 0.0, "dram_active": 0.0, "mem_copy_utilization": 0,
    "fb_used": 4, "fb_free": 40533, "pcie_tx_bytes": 0, "pcie_rx_bytes": 0, "nvlink_tx_bytes": 0, "nvlink_rx_bytes": 0,
    "power_usage": 60.0, "gpu_temp": 30, "memory_temp": 35, "DCGM_FI_DEV_SM_CLOCK": 210, "DCGM_FI_DEV_MEM_CLOCK": 1215,
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": 1, "DCGM_FI_DEV_XID_ERRORS": 0, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 0,
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 0, "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": 3,
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0,
}  # fmt: skip


def balanced(_: str, g: int, s: int) -> Levels:
    """Every counter with a value of its own on each GPU g."""
    return {
        "gpu_utilization": 80, "sm_active": 0.5 + 0.05 * g, "sm_occupancy": 0.3 + 0.05 * g,
        "gr_engine_active": 0.9 - 0.1 * g, "fp16_active": 0.01 * g, "fp32_active": 0.02 * (g + 1),
        "fp64_active": 0.1 + 0.1 * g, "tensor_active": 0.05 * g, "tensor_hmma_active": 0.04 * g,
        "tensor_imma_active": 0.01, "DCGM_FI_PROF_PIPE_TENSOR_DFMA_ACTIVE": 0.02, "dram_active": 0.2 + 0.1 * g,
        "mem_copy_utilization": 30 + g, "fb_used": 10_000 + 1000 * g, "fb_free": 30_000 - 1000 * g,
        "pcie_tx_bytes": 10**9 * (g + 1), "pcie_rx_bytes": 2 * 10**9, "nvlink_tx_bytes": 3 * 10**9 * g,
        "nvlink_rx_bytes": 4 * 10**9, "power_usage": 200.0 + 50 * g, "gpu_temp": 60 + g, "memory_temp": 70 + g,
        "DCGM_FI_DEV_SM_CLOCK": 1410 - 10 * g, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": 4 if g == 3 and s < 150 else 0,
        "DCGM_FI_DEV_XID_ERRORS": 79 if g == 1 and s >= 300 else 0, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": s // 60 * g,
    }  # fmt: skip


def one_of_four(_: str, g: int, s: int) -> Levels:
    return {"gpu_utilization": 50, "power_usage": 300.0} if g == 0 else {}


def on_and_off(_: str, g: int, s: int) -> Levels:
    """GPU 0 and 1 at 100 % for the first half, GPU 2 and 3 at 40 % throughout."""
    return {"gpu_utilization": 40} if g > 1 else {"gpu_utilization": 100 if s < 300 else 0}


def idle(_: str, g: int, s: int) -> Levels:
    return {"fb_used": 1694, "fb_free": 38_843}


def cold_start(_: str, g: int, s: int) -> Levels:
    return {"gpu_utilization": 0 if s < 300 else 20}


def memory_bound(_: str, g: int, s: int) -> Levels:
    """A third of the samples above the ridge."""
    return {"gpu_utilization": 90, "fp64_active": 0.7 if s < 200 else 0.1, "dram_active": 0.6}


def compute_bound(_: str, g: int, s: int) -> Levels:
    return {"gpu_utilization": 90, "fp64_active": 0.6, "dram_active": 0.2}


def tensor(_: str, g: int, s: int) -> Levels:
    return {
        "gpu_utilization": 95,
        "tensor_active": 0.5,
        "tensor_hmma_active": 0.5,
        "dram_active": 0.3,
    }


def two_on_a_shared_node(_: str, g: int, s: int) -> Levels:
    return {"gpu_utilization": 70 if g == 2 else 30}


def two_nodes(node: str, g: int, s: int) -> Levels:
    return (
        {"gpu_utilization": 60, "power_usage": 300.0}
        if node == "n05"
        else {"gpu_utilization": 30, "power_usage": 100.0}
    )


def level(percent: int) -> Callable[[str, int, int], Levels]:
    return lambda node, g, s: {"gpu_utilization": percent}


@dataclass(frozen=True, slots=True)
class Made:
    """One run: when, where, what its GPUs did (node, GPU, seconds since its start), what
    accounting reports.
    """

    job_id: str
    start: datetime
    seconds: int
    nodes: tuple[str, ...]
    gpus: int
    levels: Callable[[str, int, int], Levels]
    state: str = "COMPLETED"
    partition: str = "regular"
    running: bool = False


def _at(minutes: int) -> datetime:
    return AT + timedelta(minutes=minutes)


RUNS = (
    Made("101", _at(0), 600, ("n01",), 4, balanced),
    Made("102", _at(20), 600, ("n01",), 4, one_of_four),
    Made("103", _at(40), 600, ("n01",), 4, on_and_off),
    Made("104", _at(0), 600, ("n02",), 4, idle),
    Made("105", _at(20), 600, ("n02",), 4, cold_start),
    Made("106", _at(40), 600, ("n02",), 4, memory_bound),
    Made("107", _at(0), 600, ("n03",), 4, compute_bound),
    Made("108", _at(20), 600, ("n03",), 4, tensor),
    Made("109", _at(0), 600, ("n04",), 1, two_on_a_shared_node, partition="shared"),
    Made("110", _at(0), 600, ("n04",), 1, two_on_a_shared_node, partition="shared"),
    Made("111", datetime(2025, 4, 23, 23, 50, tzinfo=UTC), 1200, ("n05", "n06"), 8, two_nodes),
    Made("112", _at(0), 300, ("n07",), 4, level(90), state="NODE_FAIL"),
    Made("112", _at(30), 600, ("n07",), 4, level(10)),
    Made("113", _at(60), 600, ("n08",), 4, level(55), state="RUNNING", running=True),
)
MIDNIGHT = datetime(2025, 4, 24, tzinfo=UTC)
RESETS = {("n06", 0): MIDNIGHT, ("n06", 1): MIDNIGHT - timedelta(seconds=300)}


def telemetry(node: str) -> pl.DataFrame:
    """Rows of one node from a minute before its first job to a minute behind its last; energy
    adds up as it should.
    """
    mine = [run for run in RUNS if node in run.nodes]
    first = min(run.start for run in mine) - timedelta(seconds=60)
    last = max(run.start + timedelta(seconds=run.seconds) for run in mine) + timedelta(seconds=60)
    rows = []
    for g in range(4):
        joules, power = 1e6 * (g + 1), 0.0
        for step in range(int((last - first).total_seconds()) // STEP):
            t = first + timedelta(seconds=step * STEP)
            levels = dict(IDLE)
            for run in mine:
                if run.start <= t < run.start + timedelta(seconds=run.seconds):
                    levels |= run.levels(node, g, int((t - run.start).total_seconds()))
            joules = 0.0 if RESETS.get((node, g)) == t else joules + power * STEP
            power = float(levels["power_usage"])
            named = {
                name if name.startswith("DCGM") else P + name: value
                for name, value in levels.items()
            }
            stamp = t.strftime("%Y-%m-%d %H:%M:%S.%f")
            rows.append(
                {"timestamp": stamp, "hostname": f"{node}.example.org", "gpu_id": g, **named}
                | {f"{P}total_energy_consumption": round(joules * 1000)}
            )
    return pl.DataFrame(rows)


_FIELDS = (
    *(
        "JobID",
        "JobIDRaw",
        "Cluster",
        "Partition",
        "QOS",
        "Account",
        "User",
        "Submit",
        "Start",
        "End",
    ),
    *("Elapsed", "State", "ExitCode", "NNodes", "NodeList", "AllocTRES"),
)


def accounting() -> str:
    """What `sacct --parsable2 --duplicates` prints, one line per run."""
    lines = ["|".join(_FIELDS)]
    for run in RUNS:
        local = run.start - timedelta(hours=7)
        end = local + timedelta(seconds=run.seconds)
        submit = local - timedelta(minutes=5)
        nodes = run.nodes[0] if len(run.nodes) == 1 else "n[05-06]"
        tres = f"billing=64,cpu=64,gres/gpu:a100={run.gpus},gres/gpu={run.gpus},mem=100G,node={len(run.nodes)}"
        lines.append(
            f"{run.job_id}|{run.job_id}|alps|{run.partition}|normal|m1|anna|{submit:%FT%T}|{local:%FT%T}"
            f"|{'Unknown' if run.running else f'{end:%FT%T}'}|{timedelta(seconds=run.seconds)}|{run.state}|0:0"
            f"|{len(run.nodes)}|{nodes}|{tres}"
        )
    return "\n".join(lines) + "\n"


def write_all(folder: Path) -> None:
    """Write tachograph.toml, sacct.txt, map.csv, telemetry/ (a Parquet file among CSV), and
    late.csv.

    Of job 107 the second half is in late.csv only.
    """
    (folder / "tachograph.toml").write_text(CONFIGURATION)
    (folder / "sacct.txt").write_text(accounting())
    (folder / "map.csv").write_text("job_id,node,gpu\n109,n04,2\n")
    (folder / "telemetry").mkdir()
    for node in sorted({node for run in RUNS for node in run.nodes}):
        frame = telemetry(node)
        if node == "n03":
            half = (pl.col("timestamp") >= "2025-04-23 17:05") & (
                pl.col("timestamp") < "2025-04-23 17:10"
            )
            frame.filter(half).write_csv(folder / "late.csv")
            frame = frame.filter(~half)
        if node == "n02":
            frame.with_columns(pl.col("timestamp").str.to_datetime(time_zone="UTC")).write_parquet(
                folder / "telemetry" / f"{node}.parquet"
            )
        else:
            frame.write_csv(folder / "telemetry" / f"{node}.csv")
