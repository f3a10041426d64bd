"""Step C: shares of cycles by PM sampling beside those of Nsight Compute, of the same kernels."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from day_tools import (
    PROFILED,
    DayTools,
    JsonLines,
    StepError,
    has_torch,
    pm_gpu,
    profile,
    started,
)
from step_document import ResultTable, StepDocument
from workloads import KERNELS

from tachograph.annexes.share.nsight.launches import Launch
from tachograph.catalog.devices import match_device

_SAMPLED_S, _PROFILE_S = 4.0, 60.0
_INTERVAL_S = 0.01
_START_S = 60.0  # PyTorch loads, and the workload warms up
SM, ELAPSED, WARPS, DRAM, DRAM_ELAPSED = PROFILED[:5]
# {what is compared: (cycles, cycles it is a share of)}; occupancy is divided by the warps that an
# SM holds, too
SHARES: Mapping[str, tuple[str, str]] = {
    "sm_active": (SM, ELAPSED),
    "sm_occupancy": (WARPS, ELAPSED),
    "dram_active": (DRAM, DRAM_ELAPSED),
}
_COLUMNS: Mapping[str, str] = {
    SM: "sm_cycles_active", ELAPSED: "gpc_cycles_elapsed", WARPS: "warps_active", DRAM: "dram_cycles_active",
    DRAM_ELAPSED: "dram_cycles_elapsed",
}  # fmt: skip
# Its waits are no kernels: what profiles kernels does not see them.
_NO_REPLAY = ("training-stalls",)


def measure(tools: DayTools, document: StepDocument) -> None:
    """Sample and profile the workloads that are not in the document yet."""
    lacking = refused_sampling(tools) or has_torch(tools)
    if lacking:
        document.state = "skipped"
        document.not_measured = [f"PM sampling beside Nsight Compute: {lacking}"]
        return
    warps = _warps(document.device)
    rows: dict[str, Any] = document.result.setdefault("workloads", {})
    for name in tools.chosen(list(KERNELS)):
        if name in rows:
            continue
        if tools.left_s < (5.0 if tools.rehearse else 25.0):
            _show(document)
            raise StepError(f"time is up: {name} comes next")
        rows[name] = _workload(tools, name, warps)
        _show(document)
        document.save(tools.out)


def refused_sampling(tools: DayTools) -> str | None:
    """Return why nothing can be sampled here: no library, or no permission; None where it can."""
    try:
        words = sampling(tools, "--duration", "0.5")
        tools.run(words, 60.0, environment=tools.pm_environment())
    except StepError as problem:
        return str(problem)
    return None


def sampling(tools: DayTools, *options: str) -> list[str]:
    """The program that samples the GPU. Errors: StepError where that is not known."""
    return tools.python("pm_sample.py", "--gpu", pm_gpu(tools), *options)


def _warps(model: str | None) -> int | None:
    device = match_device(model)
    return None if device is None else device.max_warps_per_sm


def _workload(tools: DayTools, name: str, warps: int | None) -> dict[str, Any]:
    """Shares by each way, and why one is missing."""
    found: dict[str, Any] = {"sampled": None, "profiled": None, "problems": []}
    try:
        found["sampled"] = _sampled(tools, name, warps)
    except StepError as problem:
        found["problems"].append(f"sampling: {problem}")
    try:
        if name in _NO_REPLAY:
            raise StepError("its waits for data are no kernels")
        found["profiled"] = _profiled(tools, name, warps)
    except StepError as problem:
        found["problems"].append(f"ncu: {problem}")
    return found


def _sampled(tools: DayTools, name: str, warps: int | None) -> dict[str, float | None]:
    folder = tools.out / "scratch"
    folder.mkdir(exist_ok=True)
    steps = folder / f"{name}.steps"
    steps.unlink(missing_ok=True)
    words = [
        name,
        "--seconds",
        "600",
        "--result",
        str(folder / f"{name}.json"),
        "--steps",
        str(steps),
    ]
    words += ["--rehearse"] if tools.rehearse else []
    seconds = 1.0 if tools.rehearse else _SAMPLED_S
    options = ["--interval", str(_INTERVAL_S), "--duration", f"{seconds:g}"]
    with started(tools.python("workloads.py", *words), tools.environment) as process:
        wait_for_steps(tools, process, steps, _START_S)
        printed = tools.run(
            sampling(tools, *options), seconds + 40.0, environment=tools.pm_environment()
        )
    whole = [row for row in JsonLines.of(printed).rows if row.get("kind") == "whole"]
    if len(whole) != 1:
        raise StepError(f"{len(whole)} lines of the whole time instead of one")
    sums = {metric: whole[0].get(column) for metric, column in _COLUMNS.items()}
    return {**shares(sums, warps), "samples": whole[0]["pm_samples"], "lost_s": whole[0]["lost_s"]}


def wait_for_steps(
    tools: DayTools, process: subprocess.Popen[str], steps: Path, limit_s: float
) -> None:
    """Return once a workload works. Errors: StepError where it ended, or does not begin in time."""
    end = time.monotonic() + min(limit_s, tools.left_s)
    while time.monotonic() < end:
        if steps.exists() and steps.stat().st_size:
            return
        if process.poll() is not None:
            _, problem = process.communicate()
            raise StepError(
                f"the workload ended: {(problem.strip() or 'no message').splitlines()[-1]}"
            )
        time.sleep(0.1)
    raise StepError(f"the workload did not begin within {limit_s:.0f} s")


def _profiled(tools: DayTools, name: str, warps: int | None) -> dict[str, float | None]:
    from tachograph.annexes.share.nsight.reports import read_report
    from tachograph.catalog.errors import TachographError

    try:
        launches = read_report(profile(tools, name, _PROFILE_S)).launches
    except TachographError as problem:
        raise StepError(str(problem)) from None
    return {**shares(added_up(launches), warps), "launches": len(launches)}


def added_up(launches: Sequence[Launch]) -> dict[str, float | None]:
    """Return the cycles of all launches, added up; None where one of them lacks the metric."""
    found: dict[str, float | None] = {}
    for metric in _COLUMNS:
        each = [launch.metrics.get(metric) for launch in launches]
        known = [value for value in each if value is not None]
        found[metric] = sum(known) if known and len(known) == len(each) else None
    return found


def shares(sums: Mapping[str, float | None], warps: int | None) -> dict[str, float | None]:
    """Return the share of cycles of each of SHARES, 0..1; None where cycles, or the warps of an SM,
    are unknown.

    >>> shares({SM: 50.0, ELAPSED: 100.0, WARPS: 1600.0, DRAM: None, DRAM_ELAPSED: 10.0}, 64)
    {'sm_active': 0.5, 'sm_occupancy': 0.25, 'dram_active': None}
    """
    found: dict[str, float | None] = {}
    for name, (part, of) in SHARES.items():
        value, whole = sums.get(part), sums.get(of)
        share = None if value is None or not whole else value / whole
        if name == "sm_occupancy" and share is not None:
            share = share / warps if warps else None
        found[name] = share
    return found


def _show(document: StepDocument) -> None:
    columns = [
        "workload",
        *(f"{name}, {way}" for name in SHARES for way in ("sampled", "ncu", "difference")),
    ]
    table = ResultTable("Shares of cycles, 0..1: PM sampling beside Nsight Compute", columns)
    differences: dict[str, list[float]] = {name: [] for name in SHARES}
    document.not_measured = []
    for workload, one in document.result["workloads"].items():
        row: list[Any] = [workload]
        for name in SHARES:
            ours, theirs = ((one[way] or {}).get(name) for way in ("sampled", "profiled"))
            apart = None if ours is None or theirs is None else ours - theirs
            row += [ours, theirs, apart]
            differences[name] += [] if apart is None else [abs(apart)]
        table.rows.append(row)
        document.not_measured += [f"{workload}: {problem}" for problem in one["problems"]]
    total = ResultTable("Absolute differences", ["share", "workloads", "mean", "largest"])
    for name, each in differences.items():
        total.rows.append(
            [name, len(each), sum(each) / len(each) if each else None, max(each, default=None)]
        )
    document.tables = [table, total]
