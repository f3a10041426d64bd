"""Jobs made minute by minute, judged as an analysis judges them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import polars as pl

from jobframes import START, frame, gpus, minutes, summary
from tachograph.catalog.config import ClassOptions
from tachograph.catalog.tables import HOST_CHARACTERISTICS, JOB_NODE_MINUTES, JOB_SUMMARIES
from tachograph.judge import job_classes as class_verdicts
from tachograph.judge.finding import Finding, read_findings
from tachograph.pipeline.timelines import timelines_of

Levels = dict[str, float]
WORKING: Levels = {
    "gpu_util": 0.9, "sm_active": 0.6, "tensor_active": 0.3, "dram_active": 0.2, "fp32_active": 0.1, "power_w": 280.0,
    "pcie_tx_bytes_per_s": 1e9, "pcie_rx_bytes_per_s": 1e9, "nvlink_tx_bytes_per_s": 5e9, "nvlink_rx_bytes_per_s": 5e9,
}  # fmt: skip
RESTING: Levels = dict.fromkeys(WORKING, 0.0) | {
    "power_w": 60.0,
    "dram_active": 3e-8,
    "pcie_tx_bytes_per_s": 2e5,
}
# A hung collective.
WAITING: Levels = RESTING | {"gpu_util": 1.0, "sm_active": 0.15, "power_w": 90.0}
BUSY_HOST: Levels = {
    "cpu_user": 0.5, "cpu_nice": 0.0, "load_average": 40.0, "l1_misses_per_s": 5e8, "llc_misses_per_s": 5e7,
    "network_rx_bytes_per_s": 1e8, "network_tx_bytes_per_s": 1e8, "network_rx_packets_per_s": 1e5,
    "network_tx_packets_per_s": 1e5, "fs_read_bytes_per_s": 1e7, "fs_write_bytes_per_s": 1e7,
    "fs_read_operations_per_s": 100.0, "fs_write_operations_per_s": 100.0,
}  # fmt: skip
QUIET_HOST: Levels = {name: 0.001 * level for name, level in BUSY_HOST.items()}


def phases(*parts: tuple[int, Levels | None], wobble: float = 0.2) -> list[Levels | None]:
    """Return the levels of each minute: (minutes, levels), None: not measured. Work goes up and
    down by `wobble`.
    """
    found: list[Levels | None] = []
    for length, levels in parts:
        for _ in range(length):
            factor = (
                1 + wobble * (len(found) % 5 - 2) / 2 if levels in (WORKING, BUSY_HOST) else 1.0
            )
            found.append(
                None if levels is None else {name: level * factor for name, level in levels.items()}
            )
    return found


def gpu_minutes(levels: Sequence[Levels | None], *, without: Sequence[str] = ()) -> pl.DataFrame:
    """Return job_minutes of one GPU; columns `without` are null."""
    names = [name for name in WORKING if name not in without and name != "gpu_util"]
    columns = {
        name: [None if each is None else each.get(name) for each in levels] for name in names
    }
    # a minute without gpu_util still has its row: jobframes leaves out the minutes of which that is
    # None
    made = minutes([None if each is None else each["gpu_util"] for each in levels], **columns)
    return made.with_columns(gpu_util=pl.lit(None, pl.Float32)) if "gpu_util" in without else made


def node_minutes(
    levels: Sequence[Levels | None], *, node: str = "n1", without: Sequence[str] = ()
) -> pl.DataFrame:
    """Return job_node_minutes of one node."""
    rows: list[dict[str, Any]] = [
        {"job_key": "c:100:1", "job_id": "100", "seq": 1, "node": node, "minute": minute}
        | {"t": START + timedelta(minutes=minute)}
        | {name: each[name] for name in HOST_CHARACTERISTICS if name not in without}
        for minute, each in enumerate(levels)
        if each is not None
    ]
    return frame(JOB_NODE_MINUTES, rows)


def verdicts(
    minute_rows: pl.DataFrame | None = None,
    *,
    of_gpus: pl.DataFrame | None = None,
    nodes: pl.DataFrame | None = None,
    settings: ClassOptions | None = None,
    **given: Any,
) -> dict[str, Finding]:
    """Return {code: finding} of one job on A100; how long it ran follows from its minutes unless
    it is given.
    """
    rows = minutes() if minute_rows is None else minute_rows
    both = [frame["minute"].max() for frame in (rows, nodes) if frame is not None and frame.height]
    given.setdefault(
        "elapsed_s", 60.0 * (max(int(str(last)) for last in both) + 1) if both else 7200.0
    )
    job = pl.DataFrame(
        [summary(**({"gpu_model": "A100 SXM 40GB"} | given))], schema=JOB_SUMMARIES.schema
    )
    found = class_verdicts.judge_classes(
        job,
        gpus() if of_gpus is None else of_gpus,
        timelines_of(rows, idle_util=0.01),
        JOB_NODE_MINUTES.empty() if nodes is None else nodes,
        settings or ClassOptions(),
    )
    return {finding.code: finding for finding in read_findings(found)}
