"""Step C: what observation at 1 Hz costs a workload, in windows between windows without it.

Measured are rates of work. `analyze` makes the table of them, on any machine.
"""

from __future__ import annotations

import selectors
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from day_tools import DayTools, StepError, has_torch, started
from proof_numbers import overhead
from step_document import Cell, ResultTable, StepDocument
from step_pm import refused_sampling, sampling

GOAL = 0.003  # at one sample a second
_WORKLOAD = "gemm-bf16"
_WINDOW_S, _SETTLE_S = 3.0, 2.5  # an observer starts Python before the window begins
_FIRST_S = 10.0  # until PM sampling prints its first line
_LOOKS = 5  # at the clock in a window
_MOST_WINDOWS = 20  # that are waited for two steps of the workload
_ROUNDS, _MOST_ROUNDS = 6, 12  # that are needed for the interval, and as time allows
_START_S = 60.0
_OBSERVED_S = 2 * _WINDOW_S + 4.0  # a window with an observer, which starts, and one without
_DCGM_FIELDS = "1001,1002,1003,1004,1005,203,252,155"


@dataclass(frozen=True, slots=True)
class Observer:
    """A way to observe the GPU. kind: `nvml`, `pm` or `dcgm`."""

    name: str
    kind: str
    options: tuple[str, ...]

    def command(self, tools: DayTools) -> list[str]:
        """The program that observes until it is ended."""
        if self.kind == "pm":
            return sampling(tools, *self.options)
        if self.kind == "dcgm":
            return ["dcgmi", "dmon", "-i", str(tools.gpu), "-e", _DCGM_FIELDS, *self.options]
        return tools.python("gpm_sample.py", "--gpu", str(tools.gpu), *self.options)


# The last ones are left out where six rounds of all do not fit into the time of the step.
OBSERVERS: tuple[Observer, ...] = (
    # what `record` and `watch` poll
    Observer("NVML with GPM, 1 Hz", "nvml", ("--interval", "1")),
    Observer("PM sampling, reported at 1 Hz", "pm", ()),
    Observer("DCGM profiling fields, 1 Hz", "dcgm", ("-d", "1000")),
)


def measure(tools: DayTools, document: StepDocument) -> None:
    """Measure round after round while the time lasts, six at least where it is not up before."""
    lacking = has_torch(tools)
    if lacking:
        document.state, document.not_measured = "skipped", [f"overhead: {lacking}"]
        return
    observers = _usable(tools, document)
    rounds: list[dict[str, Any]] = document.result.setdefault("rounds", [])
    needed, most, window_s = (2, 2, 0.5) if tools.rehearse else (_ROUNDS, _MOST_ROUNDS, _WINDOW_S)
    folder = tools.out / "scratch"
    folder.mkdir(exist_ok=True)
    steps = folder / "overhead.steps"
    steps.unlink(missing_ok=True)
    words = [
        _WORKLOAD,
        "--seconds",
        "900",
        "--result",
        str(folder / "overhead.json"),
        "--steps",
        str(steps),
    ]
    words += ["--rehearse"] if tools.rehearse else []
    with started(tools.python("workloads.py", *words), tools.environment) as process:
        _wait_for_steps(tools, process, steps, _START_S)
        time.sleep(0.0 if tools.rehearse else 6.0)  # until the clocks are steady
        clock = sm_clock(tools)
        observers = _fitting(tools, document, observers, needed)
        longest = (_WINDOW_S + len(observers) * _OBSERVED_S) * (3 if tools.rehearse else 1)
        while len(rounds) < most and (tools.left_s > longest or not rounds):
            rounds.append(
                _round(tools, observers, steps, window_s, clock, backward=len(rounds) % 2 == 1)
            )
            document.save(tools.out)
    if len(rounds) < needed:
        document.not_measured.append(f"{needed - len(rounds)} of {needed} rounds: the time was up")


def _wait_for_steps(
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


def _fitting(
    tools: DayTools, document: StepDocument, observers: list[Observer], needed: int
) -> list[Observer]:
    """Return the first observers of which as many rounds as needed fit into the time."""
    count = len(observers)
    while count > 1 and needed * (_WINDOW_S + count * _OBSERVED_S) > tools.left_s:
        count -= 1
    left_out = [] if tools.rehearse else observers[count:]
    document.not_measured += [f"{one.name}: no time for {needed} rounds" for one in left_out]
    return [one for one in observers if one not in left_out]


def _usable(tools: DayTools, document: StepDocument) -> list[Observer]:
    why: dict[str, str | None] = {"nvml": None, "pm": refused_sampling(tools)}
    why["dcgm"] = (
        None if shutil.which("dcgmi") and not tools.rehearse else "DCGM (`dcgmi`) is not installed"
    )
    document.not_measured = [f"{one.name}: {why[one.kind]}" for one in OBSERVERS if why[one.kind]]
    return [one for one in OBSERVERS if why[one.kind] is None]


Clock = Callable[[], float | None]


def sm_clock(tools: DayTools) -> Clock:
    """Return what reads the clock of the SMs, MHz: who counts may lock it, which costs more than
    the counting.
    """
    if tools.rehearse:
        return lambda: None
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(tools.gpu)
    except Exception:  # noqa: BLE001 rates are measured all the same
        return lambda: None

    def read() -> float | None:
        try:
            return float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
        except pynvml.NVMLError:
            return None

    return read


def _round(
    tools: DayTools,
    observers: Sequence[Observer],
    steps: Path,
    window_s: float,
    clock: Clock,
    *,
    backward: bool,
) -> dict[str, Any]:
    """Rates without and with each observer: every window with one lies between two without any."""
    order = list(reversed(observers)) if backward else list(observers)
    found: dict[str, Any] = {}
    before, mhz_before = _rate(tools, None, steps, window_s, clock)
    for one in order:
        observed: float | None = None
        mhz: float | None = None
        try:
            observed, mhz = _rate(tools, one, steps, window_s, clock)
        except StepError as problem:
            found.setdefault("problems", {})[one.name] = str(problem)
        after, mhz_after = _rate(tools, None, steps, window_s, clock)
        found[one.name] = {
            "without": (before + after) / 2,
            "observed": observed,
            "sm_mhz": [mhz_before, mhz],
        }
        before, mhz_before = after, mhz_after
    return found


def _rate(
    tools: DayTools, observer: Observer | None, steps: Path, window_s: float, clock: Clock
) -> tuple[float, float | None]:
    """Units of work per second in a window, and the mean clock of the SMs in it, MHz.

    Errors: StepError where the observer ended, or no work was done.
    """
    with ExitStack() as stack:
        if observer is not None:
            environment = tools.pm_environment() if observer.kind == "pm" else tools.environment
            process = stack.enter_context(started(observer.command(tools), environment))
            if observer.kind == "pm":
                _wait_for_output(process)
            else:
                time.sleep(_SETTLE_S)
        begin = time.time()
        looks: list[float | None] = []
        found: float | None = None
        # On a busy machine no two steps may have ended in a window: then it is a longer one.
        while found is None and time.time() - begin < _MOST_WINDOWS * window_s:
            for _ in range(_LOOKS):
                time.sleep(window_s / _LOOKS)
                looks.append(clock())
            found = rate(steps.read_text(encoding="utf-8").splitlines(), begin, time.time())
        if observer is not None and process.poll() is not None:
            _, problem = process.communicate()
            raise StepError((problem.strip() or "it ended early").splitlines()[-1])
    if found is None:
        raise StepError("no step of the workload ended in the window")
    return found, _mean(looks)


def _wait_for_output(process: subprocess.Popen[str]) -> None:
    """Return once an observer prints, or has ended: the start of CUDA and CUPTI is not what is
    measured.
    """
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.select(_FIRST_S)


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of what is known.

    >>> _mean([1.0, None, 2.0]), _mean([None])
    (1.5, None)
    """
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def rate(lines: Sequence[str], begin: float, end: float) -> float | None:
    """Return units per second between the ends of the first and the last step of a window; None of
    less than two.

    >>> rate(["1.0 10", "2.0 30", "3.0 50", "9.0 70", "9.5"], 0.5, 4.0)
    20.0
    """
    inside = []
    for line in lines:
        cells = line.split()
        if len(cells) == 2 and begin <= float(cells[0]) <= end:
            inside.append((float(cells[0]), int(cells[1])))
    if len(inside) < 2:
        return None
    (first, had), (last, done) = inside[0], inside[-1]
    return (done - had) / (last - first)


def analyze(document: StepDocument) -> None:
    """Make the table of a step from its rates."""
    title = f"Overhead on {_WORKLOAD}, with 95 % intervals (goal: {GOAL:.1%} at most)"
    table = ResultTable(title, [
        "observed by", "rounds", "overhead, %", "low, %", "high, %", "goal reached",
        "SM clock without, MHz", "SM clock with, MHz",
    ])  # fmt: skip
    for one in OBSERVERS:
        pairs = [
            row[one.name]
            for row in document.result.get("rounds", ())
            if row.get(one.name, {}).get("observed")
        ]
        if pairs:
            table.rows.append([one.name, *_row(pairs)])
    document.tables = [table] if table.rows else []


def _row(pairs: Sequence[Mapping[str, Any]]) -> list[Cell]:
    """Return rounds, overhead, its interval and verdict, and the clocks.

    Of one round there is an overhead, but no interval, and so no verdict.

    >>> _row([{"without": 101.0, "observed": 100.0, "sm_mhz": [1500.0, None]}])
    [1, 1.0, None, None, 'one round: no interval', 1500.0, None]
    """
    clocks = [_mean([pair.get("sm_mhz", (None, None))[at] for pair in pairs]) for at in (0, 1)]
    found = overhead([pair["without"] for pair in pairs], [pair["observed"] for pair in pairs])
    if found is None:
        single = round(100 * (pairs[0]["without"] / pairs[0]["observed"] - 1), 9)
        return [len(pairs), single, None, None, "one round: no interval", *clocks]
    interval: list[Cell] = [100 * found.fraction, 100 * found.low, 100 * found.high]
    return [found.pairs, *interval, _verdict(found.low, found.high), *clocks]


def _verdict(low: float, high: float) -> str:
    """Return whether the goal is reached, as far as the interval decides it.

    >>> _verdict(-0.001, 0.002), _verdict(0.001, 0.02), _verdict(0.01, 0.02)
    ('yes', 'undetermined', 'no')
    """
    return "yes" if high <= GOAL else "no" if low > GOAL else "undetermined"
