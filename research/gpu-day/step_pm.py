"""Step A: SM and DRAM activity by PM sampling, NVML's GPM and Nsight Compute, of the same kernels.

Measured are raw values: every PM sample, every reading of NVML, when which workload ran, and a
report of each kernel. `analyze` makes the tables of them, on any machine.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

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
from step_document import Cell, ResultTable, StepDocument

from tachograph.annexes.share.nsight.launches import Launch

STEADY = ("gemm-bf16", "gemm-fp64", "gemm-fp32", "copy", "spmv", "attention-forward")
# Their launches take so long that a profiled kernel, alone, has another activity than the time.
LAUNCH_BOUND = ("tiny-kernels", "gemm-bf16-1024")
GOAL = 0.01  # relative difference of SM activity
_EACH_S, _INTERVAL_S, _GPM_S = 4.0, 0.01, 0.5
_START_S = 15.0  # of a sampler
_PROFILE_S = 60.0
_LEAST_S = 20.0  # for a profile
_EDGE_S = 0.3  # of a workload's time, at both ends, in which nothing is compared
SM, GPC, WARPS, DRAM, DRAM_ELAPSED = PROFILED[:5]
ELAPSED = "sm__cycles_elapsed.avg"
_RAW = ("pm.jsonl", "gpm.jsonl", "spans.json")


def measure(tools: DayTools, document: StepDocument) -> None:
    """Sample all workloads unless that was done, then profile those that have no report yet."""
    lacking = refused_sampling(tools) or has_torch(tools)
    if lacking:
        document.state = "skipped"
        document.not_measured = [f"PM sampling beside GPM and Nsight Compute: {lacking}"]
        return
    document.not_measured = []
    folder = tools.out / "pm"
    if not all((folder / name).exists() for name in _RAW):
        _sample(tools, document, folder)
        document.save(tools.out)
    for name in tools.chosen(STEADY):
        if tools.left_s < (5.0 if tools.rehearse else _LEAST_S):
            raise StepError(f"time is up: the profile of {name} comes next")
        try:
            profile(tools, name, _PROFILE_S)
        except StepError as problem:
            document.not_measured.append(f"{name}, ncu: {problem}")


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


def _sample(tools: DayTools, document: StepDocument, folder: Path) -> None:
    """Run all workloads in one process, so that PyTorch loads once, beside both samplers.

    What a sampler that ends, or a time that is up, leaves of the others is kept.
    """
    folder.mkdir(exist_ok=True)
    names = tools.chosen((*STEADY, *LAUNCH_BOUND))
    each_s = 2.0 if tools.rehearse else _EACH_S
    scratch = tools.out / "scratch"
    scratch.mkdir(exist_ok=True)
    spans = scratch / "spans.json"
    spans.write_text("[]", encoding="utf-8")
    words = [*names, "--seconds", f"{each_s:g}", "--result", str(spans)]
    words += ["--rehearse"] if tools.rehearse else []
    pm = sampling(tools, "--raw", "--interval", str(_INTERVAL_S))
    gpm = tools.python("gpm_sample.py", "--gpu", str(tools.gpu), "--interval", str(_GPM_S))
    files = {"pm.jsonl": (pm, tools.pm_environment()), "gpm.jsonl": (gpm, tools.environment)}
    with ExitStack() as stack:
        samplers = {}
        for name, (command, environment) in files.items():
            output = stack.enter_context((scratch / name).open("w", encoding="utf-8"))
            sampler = stack.enter_context(started(command, environment, output=output))
            _wait_for_output(sampler, scratch / name)
            samplers[name] = sampler
        try:
            left_s = max(1.0, tools.left_s)
            tools.run(tools.python("workloads.py", *words), left_s)
        except StepError as problem:
            document.not_measured.append(str(problem))
        for name, sampler in samplers.items():
            if sampler.poll() is not None and sampler.stderr is not None:
                problem_lines = (sampler.stderr.read().strip() or "no message").splitlines()
                document.not_measured.append(f"{name} ended early: {problem_lines[-1]}")
    for name in _RAW:
        (scratch / name).replace(folder / name)


def _wait_for_output(sampler: subprocess.Popen[str], file: Path) -> None:
    """Return once a sampler has written something, has ended, or takes too long."""
    end = time.monotonic() + _START_S
    while not file.stat().st_size and sampler.poll() is None and time.monotonic() < end:
        time.sleep(0.1)


@dataclass(frozen=True, slots=True)
class RawSamples:
    """PM samples: (begin, end) by the clock of the machine in s, {metric: count} of each."""

    metrics: tuple[str, ...]
    rows: tuple[tuple[float, float, tuple[float, ...]], ...]

    @classmethod
    def read(cls, text: str) -> RawSamples:
        """Those of a file of `pm_sample.py --raw`.

        The least distance between the GPU's clock and this machine's is the truest: others contain
        the wait until samples were read.
        """
        metrics: tuple[str, ...] = ()
        lines = []
        for line in JsonLines.of(text).rows:
            if line["kind"] == "head":
                metrics = tuple(line["metrics"])
            elif line["rows"]:
                lines.append(line)
        if not lines:
            return cls(metrics, ())
        offset_s = min(line["read"] - line["rows"][-1][1] / 1e9 for line in lines)
        rows = (
            (begin / 1e9 + offset_s, end / 1e9 + offset_s, tuple(values))
            for line in lines
            for begin, end, *values in line["rows"]
            if 0 < begin < end
        )
        return cls(metrics, tuple(rows))

    def sums(self, begin: float, end: float) -> dict[str, float]:
        """Return the sums of the samples within a time, with their number and length.

        >>> two = RawSamples(("a",), ((0.0, 1.0, (3.0,)), (1.0, 2.0, (4.0,)), (2.0, 3.0, (5.0,))))
        >>> two.sums(0.0, 2.5)
        {'a': 7.0, 'samples': 2.0, 'seconds': 2.0}
        """
        inside = [row for row in self.rows if begin <= row[0] and row[1] <= end]
        columns = zip(*(values for _, _, values in inside), strict=True)
        found = dict(zip(self.metrics, map(sum, columns), strict=False))
        seconds = sum(last - first for first, last, _ in inside)
        return {**found, "samples": float(len(inside)), "seconds": seconds}


def share(counts: Mapping[str, float | None], part: str, whole: str) -> float | None:
    """Return the share of cycles, None where one of them is unknown or none passed.

    >>> share({"a": 1.0, "b": 4.0}, "a", "b"), share({"a": 1.0}, "a", "b")
    (0.25, None)
    """
    numerator, denominator = counts.get(part), counts.get(whole)
    return None if numerator is None or not denominator else numerator / denominator


def analyze(out: Path, document: StepDocument) -> None:
    """Make the tables of a step from its raw values."""
    folder = out / "pm"
    if not all((folder / name).exists() for name in _RAW):
        return
    samples = RawSamples.read((folder / "pm.jsonl").read_text(encoding="utf-8"))
    readings = JsonLines.of((folder / "gpm.jsonl").read_text(encoding="utf-8")).rows
    spans = json.loads((folder / "spans.json").read_text(encoding="utf-8"))
    activity = ResultTable(
        "SM activity: PM sampling over two divisors, GPM, ncu",
        [
            "workload",
            "samples",
            "over SM cycles",
            "over GPC cycles",
            "GPM",
            "ncu",
            "to GPM, %",
            "to ncu, %",
            "within 1 %",
        ],
    )
    memory = ResultTable(
        "DRAM activity: that of ncu at the clock of the samples",
        [
            "workload",
            "sampled",
            "GPM",
            "ncu",
            "SM clock sampled, MHz",
            "SM clock of ncu, MHz",
            "ncu at that clock",
        ],
    )
    columns = ["workload", "pipe", "sampled", "GPM"]
    pipes = ResultTable("Pipes, share of their peak: PM sampling and GPM", columns)
    for span in spans if isinstance(spans, list) else [spans]:
        name = span["name"]
        begin, end = span["begin"] + _EDGE_S, span["end"] - _EDGE_S
        sampled: dict[str, float | None] = dict(samples.sums(begin, end))
        gpm = _means(readings, begin + _GPM_S, end)  # a reading is of the time before it
        kernel = _profiled(out / "profiles" / f"{name}.csv") if name in STEADY else {}
        activity.rows.append(_activity(name, sampled, gpm, kernel))
        memory.rows.append(_memory(name, sampled, gpm, kernel))
        pipes.rows += _pipes(name, sampled, gpm)
    document.tables = [activity, memory, pipes]


def _activity(
    name: str,
    sampled: Mapping[str, float | None],
    gpm: Mapping[str, float],
    kernel: Mapping[str, float | None],
) -> list[Cell]:
    ours = share(sampled, SM, ELAPSED)
    theirs = {"gpm": gpm.get("sm_active"), "ncu": share(kernel, SM, ELAPSED)}
    apart = [None if ours is None or not other else ours / other - 1 for other in theirs.values()]
    known = [abs(one) for one in apart if one is not None]
    within = max(known) <= GOAL if known else None
    percent: list[Cell] = [None if one is None else 100 * one for one in apart]
    return [
        name,
        sampled["samples"],
        ours,
        share(sampled, SM, GPC),
        *theirs.values(),
        *percent,
        within,
    ]


def _memory(
    name: str,
    sampled: Mapping[str, float | None],
    gpm: Mapping[str, float],
    kernel: Mapping[str, float | None],
) -> list[Cell]:
    """A product moves the same bytes at any clock, in a time that follows it; a copy does not."""
    clock = share(sampled, ELAPSED, "seconds")
    of_ncu = share(kernel, ELAPSED, "seconds")
    theirs = share(kernel, DRAM, DRAM_ELAPSED)
    scaled = None
    if clock is not None and of_ncu and theirs is not None:
        scaled = theirs * clock / of_ncu
    clocks: list[Cell] = [None if one is None else one / 1e6 for one in (clock, of_ncu)]
    ours = share(sampled, DRAM, DRAM_ELAPSED)
    return [name, ours, gpm.get("dram_active"), theirs, *clocks, scaled]


def _pipes(
    name: str, sampled: Mapping[str, float | None], gpm: Mapping[str, float]
) -> list[list[Cell]]:
    """Means of percent: samples are of one length."""
    rows: list[list[Cell]] = []
    for pipe, word in (("tensor", "pipe_tensor"), ("fp64", "pipe_fp64"), ("fp32", "pipe_fma")):
        percent = [
            value / sampled["samples"]
            for metric, value in sampled.items()
            if word in metric
            and "pct_of_peak" in metric
            and value is not None
            and sampled["samples"]
        ]
        rows.append([name, pipe, percent[0] / 100 if percent else None, gpm.get(f"{pipe}_active")])
    return rows


def _means(readings: Sequence[Mapping[str, float]], begin: float, end: float) -> dict[str, float]:
    inside = [row for row in readings if begin <= row["t"] <= end]
    names = set.intersection(*map(set, inside)) if inside else set()
    return {name: mean(row[name] for row in inside) for name in names}


def _profiled(report: Path) -> dict[str, float | None]:
    """Cycles of all kernels of a step, and their seconds; empty without a report."""
    from tachograph.annexes.share.nsight.reports import read_report
    from tachograph.catalog.errors import TachographError

    if not report.exists():
        return {}
    try:
        counts = added_up(read_report(report).launches)
    except TachographError:
        return {}
    duration_ns = counts.pop("gpu__time_duration.sum", None)
    return {**counts, "seconds": None if duration_ns is None else duration_ns / 1e9}


def added_up(launches: Sequence[Launch]) -> dict[str, float | None]:
    """Return what was counted in all launches, added up; None where one of them lacks it."""
    found: dict[str, float | None] = {}
    for metric in PROFILED:
        each = [launch.metrics.get(metric) for launch in launches]
        known = [value for value in each if value is not None]
        found[metric] = sum(known) if known and len(known) == len(each) else None
    return found
