"""Metrics of one job as the published notebooks define them, from its samples, with loops: no array
library.

Written from what the notebooks define (numbers of figures in brackets), not from how they do it.
Samples are rows in LDMS units: percent, mJ, MiB; what summaries do not contain is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

P = "nersc_ldms_dcgm_"
PIPES = {
    "fp64": "fp64_active",
    "fp32": "fp32_active",
    "fp16": "fp16_active",
    "tensor": "tensor_active",
}
TICK_S, TICKS = 10, 6  # windows of six samples 10 s apart
CAPACITY_MIB = {40: 40_960, 80: 81_920}
Unit = tuple[str, int]
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NotebookJob:
    """One job: its numbers; `spatial_imbalance` None for one GPU or no activity at all."""

    gpus: int
    gpu_hours: float
    spatial_imbalance: float | None
    temporal_imbalance: float
    pipes: list[str]
    energy_j: float
    power_w: float
    hbm_peak_fraction: float


def notebook_job(samples: Iterable[Row], elapsed_s: float, *, capacity_gb: int = 40) -> NotebookJob:
    """Return the numbers of a job with these samples; `t_s` is their time, `node` and `gpu`
    whose they are.
    """
    of_gpu: dict[Unit, list[Row]] = defaultdict(list)
    for row in samples:
        of_gpu[row["node"], row["gpu"]].append(row)
    gpus = len(of_gpu)
    energy = sum(rows[-1][f"{P}total_energy_consumption"] - rows[0][f"{P}total_energy_consumption"]
                 for rows in of_gpu.values()) / 1000  # fmt: skip
    used = max(row[f"{P}fb_used"] for rows in of_gpu.values() for row in rows)
    return NotebookJob(
        gpus=gpus,
        gpu_hours=elapsed_s / 3600 * gpus,
        spatial_imbalance=_spatial(of_gpu) if gpus > 1 else None,
        temporal_imbalance=max(_temporal(rows) for rows in of_gpu.values()),
        pipes=[pipe for pipe, name in PIPES.items() if _job_mean(of_gpu, P + name) > 0.005],
        energy_j=energy,
        power_w=energy / (gpus * elapsed_s),
        hbm_peak_fraction=min(used / CAPACITY_MIB[capacity_gb], 1.0),
    )


def _job_mean(of_gpu: Mapping[Unit, list[Row]], name: str) -> float:
    return fmean(fmean(row[name] for row in rows) for rows in of_gpu.values())


def _spatial(of_gpu: Mapping[Unit, list[Row]]) -> float | None:
    """Windows from the first sample of any GPU; one in which nothing ran counts as 0 (6)."""
    begin = min(row["t_s"] for rows in of_gpu.values() for row in rows)
    windows: dict[int, dict[Unit, float]] = defaultdict(lambda: defaultdict(float))
    for unit, rows in of_gpu.items():
        for row in rows:
            windows[int((row["t_s"] - begin + TICK_S / 2) // TICK_S) // TICKS][unit] += row[
                f"{P}gpu_utilization"
            ]
    found = []
    for sums in windows.values():
        most = max(sums.values())
        found.append(1 - sum(sums.values()) / (most * len(of_gpu)) if most > 0 else 0.0)
    active = any(max(sums.values()) > 0 for sums in windows.values())
    return fmean(found) if active else None


def _temporal(rows: list[Row]) -> float:
    """A GPU that did nothing counts as 0 (8)."""
    values = [row[f"{P}gpu_utilization"] for row in rows]
    return 1 - sum(values) / (len(values) * max(values)) if max(values) > 0 else 0.0
