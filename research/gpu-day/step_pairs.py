"""Step B: the calibration of this GPU, what it predicts beside what is measured, and pairs of
real kernels.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from day_tools import REPOSITORY, DayTools, StepError, has_torch, profile
from real_pairs import NAMES
from step_document import Cell, ResultTable, StepDocument

from pair_numbers import checks, pair_errors

_BENCH_S, _MPS_S = 210.0, 60.0  # of the step
_DURATION_MS, _RUNS = 30.0, 5
_PROFILE_S = 60.0  # of one workload, start of PyTorch and of the profiler included
_FEW = ("bandwidth", "fp64-3")  # of a rehearsal with few workloads
_MPS_GROUPS = ("bandwidth", "pitfalls")


def measure(tools: DayTools, document: StepDocument) -> None:
    """Calibrate, then run pairs of real kernels; every part goes on where it was interrupted."""
    document.not_measured = []
    document.tables = []
    _bench(tools, document, "calibration.toml", "streams", _BENCH_S, ())
    document.save(tools.out)
    _bench_under_mps(tools, document)
    document.save(tools.out)
    lacking = has_torch(tools)
    if lacking:
        document.not_measured.append(f"pairs of real kernels: {lacking}")
        return
    _real(tools, document)


def bench_command(tools: DayTools, file: Path, options: Sequence[str]) -> list[str]:
    """Return the bench, or the same on a simulated GPU."""
    program = REPOSITORY / "research" / "calibrate.py"
    rehearsed = ["--rehearse"] if tools.rehearse else []
    return [*tools.python(str(program)), "-o", str(file), "--device", "0", *rehearsed, *options]


def _bench(
    tools: DayTools,
    document: StepDocument,
    name: str,
    mode: str,
    seconds: float,
    more: Sequence[str],
) -> None:
    """Run the bench into its file, and show what is in it."""
    from microbench.bench_file import read_bench_file

    file = tools.out / name
    minutes = max(0.1, min(seconds, tools.left_s - 60.0) / 60)
    options = [
        "--minutes",
        f"{minutes:.2f}",
        "--duration",
        f"{_DURATION_MS:g}",
        "--runs",
        str(_RUNS),
        *more,
    ]
    if tools.few and not more:
        options += [word for group in _FEW for word in ("--only", group)]
    try:
        tools.run(bench_command(tools, file, options), seconds + 60.0)
    except StepError as problem:
        document.not_measured.append(f"bench, {mode}: {problem}")
    if not file.exists():
        return
    found = read_bench_file(file)
    if not more:
        title = "Calibration, from launches that ran alone"
        table = ResultTable(title, ["value", "this GPU", "provenance", "residual", "note"])
        table.rows = [
            [key, one.value, one.provenance, one.residual, one.note]
            for key, one in found.calibration.items()
        ]
        document.tables.append(table)
    columns = [
        "experiment",
        "compared",
        "published calibration",
        "own calibration",
        "measured",
        "error, %",
    ]
    table = ResultTable(f"Predicted beside measured, {mode}", columns)
    for one in found.experiments:
        if one.measured is not None and one.mode == mode:
            error = None if one.calibrated is None else 100 * (one.calibrated / one.measured - 1)
            table.rows.append(
                [one.name, one.compared, one.predicted, one.calibrated, one.measured, error]
            )
        elif one.problem is not None:
            document.not_measured.append(f"{one.name}, {one.mode}: {one.problem}")
    document.tables.append(table)


def _bench_under_mps(tools: DayTools, document: StepDocument) -> None:
    program = shutil.which("nvidia-cuda-mps-control", path=tools.environment.get("PATH"))
    if not tools.mps or tools.rehearse or program is None:
        why = (
            "the option --mps was not given"
            if not tools.mps
            else "a rehearsal has one simulated GPU in one process"
        )
        document.not_measured.append(
            f"pairs under MPS: {why if program or not tools.mps else 'no MPS here'}"
        )
        return
    only = [word for group in _MPS_GROUPS for word in ("--only", group)]
    try:
        with _mps_daemon(program, tools.out / "mps", tools.environment) as environment:
            inside = DayTools(
                tools.out, tools.gpu, tools.until, False, {**tools.environment, **environment}
            )
            _bench(inside, document, "calibration-mps.toml", "mps", _MPS_S, ["--mps", *only])
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
        subprocess.run([program], input="quit\n", text=True, env=environment, check=False, timeout=30,
                       capture_output=True)  # fmt: skip


def _real(tools: DayTools, document: StepDocument) -> None:
    """Pairs of real kernels, which the calibration did not see, and what it predicts from their
    profiles.
    """
    from tachograph.annexes.share.calibration import read_calibration
    from tachograph.annexes.share.demand import Calibration
    from tachograph.annexes.share.nsight.reports import read_report
    from tachograph.catalog.errors import TachographError

    file = tools.out / "real-pairs.json"
    words = ["--out", str(file), "--seconds", f"{max(1.0, tools.left_s - 90.0):.0f}"]
    tools.run(
        tools.python("real_pairs.py", *words, *(["--rehearse"] if tools.rehearse else [])),
        tools.left_s,
    )
    pairs = json.loads(file.read_text(encoding="utf-8"))
    reports: dict[str, Any] = {}
    for name in NAMES:
        try:
            reports[name] = read_report(profile(tools, name, _PROFILE_S)).launches
        except (StepError, TachographError) as problem:
            document.not_measured.append(f"prediction for {name}: {problem}")
    calibration = tools.out / "calibration.toml"
    by = read_calibration(calibration) if calibration.exists() else Calibration()
    found = checks(pairs, reports, by)
    total = pair_errors(found)
    document.result["real_pairs"] = [asdict(one) for one in found]
    document.result["errors"] = asdict(total)
    columns = [
        "kernel",
        "beside",
        "measured",
        "predicted",
        "error, %",
        "worst predicted",
        "covered",
        "called safe",
    ]
    table = ResultTable("Slowdowns of real kernels, which the calibration did not see", columns)
    for one in found:
        error: Cell = None if one.error is None else 100 * one.error
        table.rows.append(
            [one.name, one.beside, one.measured, one.predicted, error, one.worst, one.covered, one.safe]
        )  # fmt: skip
    errors = ResultTable(
        "Errors of the model on real kernels",
        [
            "checked",
            "mean error, %",
            "worst error, %",
            "coverage of the worst predicted, %",
            "wrongly safe",
        ],
    )
    percent = [
        None if one is None else 100 * one
        for one in (total.mean_error, total.worst_error, total.coverage)
    ]
    errors.rows.append([total.checked, *percent, total.wrongly_safe])
    document.tables += [table, errors]
    document.not_measured += sorted(
        {text for one in found if one.name == one.beside for text in one.unknown}
    )
    missing = len(NAMES) * (len(NAMES) + 1) // 2 - len(pairs)
    if missing:
        raise StepError(f"time is up: {missing} pairs of real kernels come next")
