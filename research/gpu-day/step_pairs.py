"""Step B: pairs of kernels that no constant was checked with: of the bench, in streams and under
MPS with half of the SMs each, and of real kernels.

Measured are times and reports. `analyze` predicts from them, on any machine.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from day_tools import REPOSITORY, DayTools, StepError, has_torch, profile
from real_pairs import NAMES, PAIRS
from step_document import Cell, ResultTable, StepDocument

from pair_numbers import checks, pair_errors

_BENCH_S, _MPS_S = 60.0, 70.0  # of the step
_REAL_S = 60.0  # PyTorch loads, and all pairs
_DURATION_MS, _RUNS = 30.0, 5
_PROFILE_S = 60.0  # of one workload, start of PyTorch and of the profiler included
_LEAST_S = 20.0  # for a profile
# `*-full` of pipes is measured with half of the SMs each since 2026-12.
_STREAMS = (
    "unseen",
    "bandwidth-all",
    "issue-all",
    "tensor-full",
    "alu-full",
    "xu-full",
    "fma-full",
    "shared-full",
)
_UNDER_MPS = ("unseen",)


def measure(tools: DayTools, document: StepDocument) -> None:
    """Run the bench, then pairs of real kernels; every part goes on where it was interrupted."""
    document.not_measured = []
    _bench(tools, document, "calibration.toml", _BENCH_S, _STREAMS)
    document.save(tools.out)
    lacking = has_torch(tools)
    if lacking:
        document.not_measured.append(f"pairs of real kernels: {lacking}")
    else:
        _real(tools, document)
    document.save(tools.out)
    _bench_under_mps(tools, document)
    if lacking:
        return
    for name in NAMES:
        try:
            if tools.left_s < _LEAST_S and not tools.rehearse:
                raise StepError("the time was up")
            profile(tools, name, _PROFILE_S)
        except StepError as problem:
            document.not_measured.append(f"prediction for {name}: {problem}")


def bench_command(tools: DayTools, file: Path, options: Sequence[str]) -> list[str]:
    """Return the bench, or the same on a simulated GPU."""
    program = REPOSITORY / "research" / "calibrate.py"
    rehearsed = ["--rehearse"] if tools.rehearse else []
    return [*tools.python(str(program)), "-o", str(file), "--device", "0", *rehearsed, *options]


def _bench(
    tools: DayTools,
    document: StepDocument,
    name: str,
    seconds: float,
    only: Sequence[str],
    *more: str,
) -> None:
    """Run experiments of the bench into its file."""
    file = tools.out / name
    minutes = max(0.1, min(seconds, tools.left_s) / 60)
    options = [
        "--minutes",
        f"{minutes:.2f}",
        "--duration",
        f"{_DURATION_MS:g}",
        "--runs",
        str(_RUNS),
    ]
    options += [word for group in only for word in ("--only", group)]
    try:
        tools.run(bench_command(tools, file, [*options, *more]), seconds + 30.0)
    except StepError as problem:
        document.not_measured.append(f"{name}: {problem}")


def _bench_under_mps(tools: DayTools, document: StepDocument) -> None:
    program = shutil.which("nvidia-cuda-mps-control", path=tools.environment.get("PATH"))
    why = None
    if tools.rehearse:
        why = "a rehearsal has one simulated GPU in one process"
    elif program is None:
        why = "no MPS here"
    if program is None or why is not None:
        document.not_measured.append(f"pairs under MPS: {why}")
        return
    try:
        with _mps_daemon(program, tools.out / "mps", tools.environment) as environment:
            inside = replace(tools, environment={**tools.environment, **environment})
            _bench(inside, document, "calibration-mps.toml", _MPS_S, _UNDER_MPS, "--mps")
    except (OSError, subprocess.SubprocessError) as problem:
        document.not_measured.append(f"pairs under MPS: {problem}")


@contextmanager
def _mps_daemon(program: str, folder: Path, before: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Run a daemon of MPS of our own, in folders of our own; it ends with the block."""
    pipes, logs = folder / "pipe", folder / "log"
    for one in (pipes, logs):
        one.mkdir(parents=True, exist_ok=True)
    found = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs)}
    environment = {**before, **found}
    subprocess.run([program, "-d"], env=environment, check=True, timeout=20, capture_output=True)
    try:
        yield found
    finally:
        subprocess.run(
            [program],
            input="quit\n",
            text=True,
            env=environment,
            check=False,
            timeout=30,
            capture_output=True,
        )


def _real(tools: DayTools, document: StepDocument) -> None:
    """Pairs of real kernels; what the file has is not measured again."""
    file = tools.out / "real-pairs.json"
    seconds = max(0.0, min(_REAL_S, tools.left_s - 10.0))
    words = ["--out", str(file), "--seconds", f"{seconds:.0f}"]
    words += ["--rehearse"] if tools.rehearse else []
    try:
        tools.run(tools.python("real_pairs.py", *words), seconds + 30.0)
    except StepError as problem:
        document.not_measured.append(f"pairs of real kernels: {problem}")
    had = len(_pairs(tools.out))
    if had < len(PAIRS):
        document.not_measured.append(f"{len(PAIRS) - had} of {len(PAIRS)} pairs of real kernels")


def _pairs(out: Path) -> list[dict[str, Any]]:
    """The measured pairs; none where the time was up before the first."""
    file = out / "real-pairs.json"
    if not file.exists():
        return []
    found: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return found


def analyze(out: Path, document: StepDocument) -> None:
    """Make the tables of a step from its files: predictions beside what was measured."""
    document.tables = [
        *_bench_tables(out / "calibration.toml", "streams"),
        *_bench_tables(out / "calibration-mps.toml", "mps"),
    ]
    if _pairs(out):
        document.tables += _real_tables(out, document)


def _bench_tables(file: Path, mode: str) -> Iterator[ResultTable]:
    from microbench.bench_file import read_bench_file

    if not file.exists():
        return
    columns = ["experiment", "compared", "predicted", "measured", "low", "high", "error, %"]
    table = ResultTable(f"Predicted beside measured, {mode}", columns)
    for one in read_bench_file(file).experiments:
        if one.mode == mode and one.measured is not None:
            error = None if one.predicted is None else 100 * (one.predicted / one.measured - 1)
            table.rows.append(
                [one.name, one.compared, one.predicted, one.measured, one.low, one.high, error]
            )
        elif one.mode == mode and one.problem is not None:
            table.rows.append([f"{one.name}: {one.problem}", one.compared, *[None] * 5])
    yield table


def _real_tables(out: Path, document: StepDocument) -> Iterator[ResultTable]:
    from tachograph.annexes.share.calibration import read_calibration
    from tachograph.annexes.share.demand import Calibration
    from tachograph.annexes.share.nsight.reports import read_report
    from tachograph.catalog.errors import TachographError

    reports: dict[str, Any] = {}
    for name in NAMES:
        try:
            reports[name] = read_report(out / "profiles" / f"{name}.csv").launches
        except TachographError:
            continue  # the step says why it was not profiled
    calibration = out / "calibration.toml"
    by = read_calibration(calibration) if calibration.exists() else Calibration()
    found = checks(_pairs(out), reports, by)
    document.result["real_pairs"] = [asdict(one) for one in found]
    title = "Slowdowns of real kernels, which no constant was checked with"
    columns = ["kernel", "beside", "measured", "predicted", "error, %"]
    table = ResultTable(title, [*columns, "low", "high", "covered", "called safe"])
    for one in found:
        error: Cell = None if one.error is None else 100 * one.error
        row: list[Cell] = [one.name, one.beside, one.measured, one.predicted, error]
        table.rows.append([*row, one.low, one.high, one.covered, one.safe])
    yield table
    total = pair_errors(found)
    document.result["errors"] = asdict(total)
    columns = ["checked", "mean error, %", "worst error, %", "coverage, %"]
    errors = ResultTable(
        "Errors of the model on real kernels", [*columns, "high, over measured", "wrongly safe"]
    )
    percent = [
        None if one is None else 100 * one
        for one in (total.mean_error, total.worst_error, total.coverage)
    ]
    errors.rows.append([total.checked, *percent, total.width, total.wrongly_safe])
    yield errors
