"""Findings on recorded jobs of a real system, from their samples by plain arithmetic."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from jobframes import gpus, minutes, summary
from one_job import findings_of
from tachograph.catalog.config import Thresholds
from tachograph.judge.finding import Finding

pytestmark = pytest.mark.recorded
ENGINE = "nersc_ldms_dcgm_gr_engine_active"


def _by_gpu(file: Path) -> dict[tuple[str, int], list[float]]:
    values: dict[tuple[str, int], list[float]] = defaultdict(list)
    for row in json.loads(file.read_text())["data"]:
        if row[ENGINE] is not None:
            values[row["hostname"], row["gpu_id"]].append(row[ENGINE])
    return values


def _found(file: Path, **given: Any) -> dict[str, Finding]:
    values = _by_gpu(file)
    rows = gpus(
        *(
            {
                "node": node,
                "gpu": gpu,
                "gr_engine_active_mean": mean(seen),
                "gr_engine_active_max": max(seen),
            }
            for (node, gpu), seen in values.items()
        )
    )
    row = summary(
        gpus=len(values),
        gpus_seen=len(values),
        elapsed_s=200.0,
        gr_engine_active_mean=mean(mean(seen) for seen in values.values()),
        gr_engine_active_max=max(max(seen) for seen in values.values()),
        **given,
    )
    return {finding.code: finding for finding in findings_of(row, rows, minutes(), Thresholds())}


def test_a_job_that_used_one_gpu_of_a_node(recorded: Path) -> None:
    found = _found(recorded / "nersc_perlmutter" / "job_51906088.json")
    assert list(found) == ["one_gpu_of_many"]
    assert "GPU 2 was at" in found["one_gpu_of_many"].sentence


def test_the_same_job_on_a_shared_node_is_not_judged(recorded: Path) -> None:
    found = _found(recorded / "nersc_perlmutter" / "job_51906088.json", attribution="ambiguous")
    assert list(found) == ["ambiguous_attribution"]


def test_a_job_that_used_none_of_eight(recorded: Path) -> None:
    found = _found(recorded / "nersc_perlmutter" / "job_51911473.json")
    assert list(found) == ["idle_job"]
    assert found["idle_job"].evidence["gpus_seen"] == 8


def test_a_cold_start_of_sixteen_minutes(recorded: Path) -> None:
    samples = json.loads((recorded / "nersc_perlmutter" / "metrics-data.json").read_text())[
        "46599456"
    ]
    per_minute: dict[int, list[float]] = defaultdict(list)
    for row in samples:
        per_minute[row["Floored Relative Time"] // 60].append(
            row["nersc_ldms_dcgm_gpu_utilization"] / 100
        )
    levels = [mean(per_minute[minute]) for minute in range(max(per_minute) + 1)]
    row = summary(gpu_util_mean=mean(levels), elapsed_s=len(levels) * 60.0)
    found = {
        finding.code: finding for finding in findings_of(row, gpus(), minutes(levels), Thresholds())
    }
    assert list(found) == ["cold_start"]  # which covers low_utilisation
    # 0.25 % at 870 s is no work, 6.8 % at 960 s is.
    assert found["cold_start"].evidence["interval_s"] == 16 * 60
