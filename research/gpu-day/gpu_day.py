"""Ten minutes on a real GPU: what needs one, most valuable first, as raw values that are analyzed
later.

    python research/gpu-day/gpu_day.py --out DIR

What is in DIR already is not done again; the same command goes on after an interruption.
`--rehearse` goes the same way against stand-ins, without a GPU. research/README.md says what each
step measures.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from day_pack import PACK, unpack
from workloads import SITE

if TYPE_CHECKING:
    from day_tools import DayTools

HERE = Path(__file__).resolve().parent
TOTAL_S = 10 * 60.0
_LEAST_S = 10.0  # less is not begun
_MARGIN_S = 10.0  # a step ends by itself before it is ended
_PATIENCE_S = 25.0  # for a step to end what it started


@dataclass(frozen=True, slots=True)
class DayStep:
    """A step. limit_s: its hard stop. rehearsed_s: the same in a rehearsal."""

    name: str
    title: str
    limit_s: float
    rehearsed_s: float = 240.0


# most valuable first
STEPS: tuple[DayStep, ...] = (
    DayStep("pm", "A. PM sampling beside Nsight Compute and GPM", 175.0),
    DayStep("pairs", "B. Pairs of kernels not seen before", 235.0),
    DayStep("overhead", "C. Overhead at 1 Hz", 175.0),
    DayStep("summary", "Summary of all steps", 15.0),
)
_ALWAYS = ("summary",)  # of what the others have so far: done again each time


@dataclass(frozen=True, slots=True)
class DayOptions:
    """What was asked for."""

    out: Path
    gpu: int
    rehearse: bool
    few: tuple[str, ...]
    pack: Path
    collect: Path | None


def paths(pack: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with this folder, the sources beside it, and the packages of a
    pack, if there is one.
    """
    repository = HERE.parents[1]
    folders = (repository / "src", repository / "research", pack / "site")
    parts = [str(HERE), *(str(folder) for folder in folders if folder.is_dir())]
    parts = [environment["PYTHONPATH"], *parts] if environment.get("PYTHONPATH") else parts
    return {**environment, "PYTHONPATH": os.pathsep.join(parts), SITE: str(pack / "site")}


def plan(only: Sequence[str], seconds: float, *, rehearse: bool) -> list[tuple[DayStep, float]]:
    """Return (step, its hard stop in s) of what is asked for, as far as the time goes.

    >>> [(step.name, limit) for step, limit in plan(["pm", "pairs"], 300.0, rehearse=False)]
    [('pm', 175.0), ('pairs', 125.0)]
    """
    found = []
    for step in selected(only):
        limit_s = min(step.rehearsed_s if rehearse else step.limit_s, seconds)
        if limit_s >= _LEAST_S:
            found.append((step, limit_s))
            seconds -= limit_s
    return found


def selected(only: Sequence[str]) -> list[DayStep]:
    """Return the steps that are named, all where none is."""
    return [step for step in STEPS if not only or step.name in only]


def run_day(options: DayOptions, only: Sequence[str], seconds: float) -> int:
    """Run what is left of all steps; 0 where all are finished. A step that takes less time
    leaves it to the others.
    """
    from step_document import load

    end = time.monotonic() + seconds
    chosen = selected(only)
    for step in chosen:
        had = load(options.out, step.name)
        if had is not None and had.finished and step.name not in _ALWAYS:
            _say(f"{step.title}: {had.state} before")
            continue
        planned = plan([step.name], end - time.monotonic(), rehearse=options.rehearse)
        if not planned and step.name not in _ALWAYS:
            _say(f"{step.title}: not begun, the time is up; the same command goes on with it")
            continue
        limit_s = planned[0][1] if planned else step.limit_s
        _say(f"{step.title}: at most {limit_s:.0f} s")
        begun = time.monotonic()
        code = _child(options, step, limit_s)
        found = load(options.out, step.name)
        state = found.state if found is not None else f"no result, exit code {code}"
        why = f" ({found.not_measured[-1]})" if found and found.not_measured else ""
        _say(f"{step.title}: {state} after {time.monotonic() - begun:.0f} s{why}")
        _collect(options)
    documents = [load(options.out, step.name) for step in chosen]
    return 0 if all(one is not None and one.finished for one in documents) else 1


def _child(options: DayOptions, step: DayStep, limit_s: float) -> int | None:
    """Run one step as a process; what it started ends with it."""
    from day_tools import end_session, end_with_parent

    words = [
        "--out",
        str(options.out),
        "--gpu",
        str(options.gpu),
        "--step",
        step.name,
        "--pack",
        str(options.pack),
    ]
    words += ["--seconds", f"{limit_s:.1f}", *(["--rehearse"] if options.rehearse else [])]
    words += ["--workloads", ",".join(options.few)] if options.few else []
    process = subprocess.Popen(
        [sys.executable, str(HERE / "gpu_day.py"), *words],
        env=paths(options.pack, os.environ),
        start_new_session=True,
        preexec_fn=end_with_parent,  # noqa: PLW1509 no thread runs yet
    )

    def interrupted(number: int, frame: FrameType | None) -> None:
        end_session(process, _PATIENCE_S)
        raise SystemExit(128 + number)

    before = {one: signal.signal(one, interrupted) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(limit_s)
        if process.poll() is None:
            _say(f"{step.title}: ended after {limit_s:.0f} s")
    finally:
        end_session(process, _PATIENCE_S)
        for one, handler in before.items():
            signal.signal(one, handler)
    return process.returncode


def _collect(options: DayOptions) -> None:
    """Bring report and archive to where results are collected, after every step."""
    from step_collect import bundle

    if options.collect is None:
        return
    options.collect.mkdir(parents=True, exist_ok=True)
    bundle(options.out, options.collect / "gpu-day-results.tar.gz")
    if (options.out / "report.md").exists():
        shutil.copy(options.out / "report.md", options.collect)


def run_step(options: DayOptions, name: str, seconds: float, command: str) -> int:
    """Run one step in this process; its document says how far it came. 0 where it is finished."""
    import step_collect
    import step_overhead
    import step_pairs
    import step_pm
    from day_tools import DayTools, StepError, gpu_facts
    from step_document import StepDocument, load

    _end_with_children()
    pm_site = options.pack / "site-pm"
    environment = paths(options.pack, os.environ)
    tools = DayTools(
        options.out, options.gpu, time.monotonic() + seconds - min(_MARGIN_S, seconds / 4), options.rehearse,
        environment, pm_site if pm_site.is_dir() else None, options.few,
    )  # fmt: skip
    if options.rehearse:
        from rehearsal import stand_ins

        tools = stand_ins(tools)
    title = next(step.title for step in STEPS if step.name == name)
    document = load(options.out, name) or StepDocument(name, title)
    document.state, document.command, document.rehearsal = "begun", command, options.rehearse
    try:
        if name not in _ALWAYS:
            facts = gpu_facts(tools)
            if document.device not in (None, facts["device"]):
                raise StepError(
                    f"{name}.json is of another GPU, {document.device}: name another folder"
                )
            document.device, document.driver = facts["device"], facts["driver"]
            if not options.rehearse:
                tools = _one_gpu(tools, facts["uuid"])
        if name == "summary":
            measured = tuple(step.name for step in STEPS if step.name != "summary")
            step_collect.report(tools, document, measured)
        else:
            measure = {
                "pm": step_pm.measure,
                "pairs": step_pairs.measure,
                "overhead": step_overhead.measure,
            }
            measure[name](tools, document)
        document.state = document.state if document.finished else "done"
    except StepError as problem:
        document.not_measured.append(str(problem))
    document.save(options.out)
    return 0 if document.finished else 1


def _one_gpu(tools: DayTools, uuid: str) -> DayTools:
    """The same, so that CUDA sees the GPU that NVML was asked about: their orders differ."""
    from dataclasses import replace

    return replace(tools, environment={**tools.environment, "CUDA_VISIBLE_DEVICES": uuid})


def _end_with_children() -> None:
    """Leave by an exception at SIGTERM, so that what was started is ended."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def _say(sentence: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {sentence}\n")
    sys.stderr.flush()


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", required=True, type=Path, metavar="DIR", help="folder of all results"
    )
    parser.add_argument("--gpu", type=int, default=0, help="its index in NVML (default: 0)")
    parser.add_argument(
        "--minutes", type=float, default=TOTAL_S / 60, help="of all steps (default: 10)"
    )
    parser.add_argument("--only", metavar="STEPS", default="", help="some steps, with commas")
    parser.add_argument(
        "--workloads", metavar="NAMES", default="", help="some workloads of A, with commas"
    )
    parser.add_argument(
        "--collect", type=Path, metavar="DIR", help="copy report and archive here after every step"
    )
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="go on from gpu-day-results.tar.gz"
    )
    parser.add_argument("--pack", type=Path, default=PACK, help="what `make gpu-day-pack` made")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU, against stand-ins")
    parser.add_argument("--list", action="store_true", help="list the steps and their times")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    return parser


def main() -> int:
    """Run the day, or one step of it."""
    parser = _arguments()
    arguments = parser.parse_args()
    only = [name for name in arguments.only.split(",") if name]
    known = [step.name for step in STEPS]
    if unknown := [name for name in only if name not in known]:
        parser.error(f"--only {','.join(unknown)}: use some of {', '.join(known)}")
    few = tuple(name for name in arguments.workloads.split(",") if name)
    collect = None if arguments.collect is None else arguments.collect.absolute()
    options = DayOptions(
        arguments.out.absolute(), arguments.gpu, arguments.rehearse, few, arguments.pack.absolute(),
        collect,
    )  # fmt: skip
    if arguments.list:
        for step in STEPS:
            sys.stdout.write(f"{step.name:<10} {step.limit_s:>4.0f} s  {step.title}\n")
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    unpack(options.pack)
    if arguments.step:
        return run_step(options, arguments.step, arguments.seconds, _typed(options))
    if arguments.resume is not None:
        from step_collect import unbundle

        unbundle(arguments.resume, options.out)
    return run_day(options, only, arguments.minutes * 60)


def _typed(options: DayOptions) -> str:
    more = ["--rehearse"] if options.rehearse else []
    return " ".join(["python research/gpu-day/gpu_day.py --out DIR", *more])


if __name__ == "__main__":
    raise SystemExit(main())
