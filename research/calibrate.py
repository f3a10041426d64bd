"""Measure a GPU with kernels that each load one resource, and write the calibration that
`tachograph share colocate` reads.

    make calibrate ARGS='-o h200.toml'

After every experiment all results are in the file; the same command goes on where it was
interrupted. `--rehearse` does all of it on a simulated GPU. README.md beside this file says what is
measured, and how.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from microbench.bench_file import BenchFile, PlanRecord
from microbench.bench_state import BenchState, begun_before, results_of
from microbench.conditions import Conditions, conditions
from microbench.cuda_device import CudaDevice, compile_kernels
from microbench.device import BenchDevice
from microbench.experiments import Experiment, chosen, experiments
from microbench.fits import Bench, ExperimentResult, gpu_words
from microbench.mps import SHARE, MpsPairs, require_daemon
from microbench.proofs import PROFILE_COMMAND, launch_once, proofs
from microbench.run import TIME_UP, BenchPlan, Deadline, MpsProcesses, bench
from microbench.simulated_device import SimulatedGpu
from tachograph.annexes.share.demand import (
    H100_NVL,
    Calibration,
    Demand,
    Estimate,
    GpuCapacity,
    Sharing,
)
from tachograph.annexes.share.estimate import estimate
from tachograph.annexes.share.nsight.reports import read_reports
from tachograph.catalog.errors import InputError, TachographError, UsageError
from tachograph.cli import output

_COMPARED = {
    "gain": "time one after the other over time of both at once: 2 is perfect overlap, 1 none",
    "first": "time of the first beside the second over its time alone",
    "second": "time of the second beside the first over its time alone",
    "both": "mean of the two slowdowns, each time beside the other over time alone",
}


def options() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = argparse.ArgumentParser(
        prog="calibrate.py", description="measure a GPU, and write its calibration"
    )
    parser.add_argument(
        "--device", type=int, default=0, metavar="N", help="number of the GPU (default: 0)"
    )
    parser.add_argument(
        "--runs", type=_runs, default=10, metavar="N", help="runs of each experiment, at most (10)"
    )
    parser.add_argument(
        "--minutes", type=_minutes, default=8.0, metavar="N", help="how long all of it may take (8)"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="an experiment or group; repeatable",
    )
    parser.add_argument(
        "--mps", action="store_true", help="also under MPS; its daemon must be running"
    )
    parser.add_argument(
        "--duration",
        type=_duration,
        default=50.0,
        metavar="MS",
        help="of a launch alone, in ms (50)",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write FILE, or go on where it ends"
    )
    parser.add_argument("--rehearse", action="store_true", help="on a simulated GPU")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument(
        "--list", action="store_true", help="list the experiments on an H100 NVL; no GPU needed"
    )
    modes.add_argument(
        "--compile",
        metavar="ARCH",
        help="only compile the kernels, such as for sm_90; no GPU needed",
    )
    modes.add_argument(
        "--once", action="store_true", help="launch each kernel once, to be profiled"
    )
    modes.add_argument("--prove", type=Path, metavar="REPORT", help="check by its profile that each kernel loads what "
                       "it names; no GPU needed")  # fmt: skip
    return parser


def _runs(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"invalid number of runs '{text}': not between 1 and 1000")
    return int(text)


def _duration(text: str) -> float:
    return _between(text, 1, 10_000)


def _minutes(text: str) -> float:
    return _between(text, 0.1, 10_000)


def _between(text: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"'{text}' is not between {least:g} and {most:g}")
    return value


def main(words: Sequence[str] | None = None) -> int:
    """Run the micro-benchmarks, or list, compile or check them; return the exit code."""
    arguments = options().parse_args(words)
    try:
        return _run(arguments)
    except TachographError as problem:
        _narrate(str(problem))
        return problem.exit_code


def _run(arguments: argparse.Namespace) -> int:
    if arguments.compile:
        program = compile_kernels(arguments.compile)
        output.print_text(f"{program.arch}: {program.kind} of {len(program.image)} bytes\n")
        return 0
    if arguments.prove:
        return _prove(arguments.prove)
    if arguments.list:
        _list(chosen(experiments(H100_NVL), arguments.only), arguments)
        return 0
    if arguments.output is not None and not arguments.output.absolute().parent.is_dir():
        raise UsageError(
            "the folder does not exist",
            where=str(arguments.output),
            do="create it, or name another file",
        )
    if arguments.rehearse:
        return measure(arguments, SimulatedGpu(), None, Conditions)
    os.environ.pop(SHARE, None)  # this process needs all SMs, also beside a daemon of MPS
    if arguments.mps:
        require_daemon()
    device = CudaDevice(arguments.device)
    if arguments.once:
        _once(device)
        return 0
    processes = MpsPairs.of(arguments.device) if arguments.mps else None
    code = measure(arguments, device, processes, lambda: conditions(device.pci_bus_id))
    if code and device.stuck:
        device.leave(code, output.flush)
    return code


def measure(
    arguments: argparse.Namespace,
    device: BenchDevice,
    processes: MpsProcesses | None,
    observe: Callable[[], Conditions],
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Run what is missing of the chosen experiments on `device`, print all results; return the exit
    code.

    After every experiment all results are in the file. `clock`: in s, for the time that all may
    take.
    """
    deadline = Deadline.after(arguments.minutes * 60, clock)
    wanted = chosen(experiments(device.gpu, device.free_bytes()), arguments.only)
    plan, record = _planned(arguments, wanted, mps=processes is not None)
    earlier = None if arguments.output is None else begun_before(arguments.output, device, record)
    if earlier is not None and earlier.plan is not None:
        record, plan = earlier.plan, BenchPlan(earlier.plan.runs, plan.target_s)
    state = BenchState(arguments.output, device, record)

    def save(results: Bench) -> None:
        with output.writing(str(arguments.output)):
            state.write(results)

    before = observe()
    results = bench(
        device,
        wanted,
        plan=plan,
        predictor=predict,
        processes=processes,
        progress=_show_progress,
        before=() if earlier is None else results_of(earlier, wanted),
        date=None if earlier is None else earlier.date,
        deadline=deadline,
        save=save,
    )
    after = observe()
    for warning in dict.fromkeys((*before.warnings(), *after.warnings())):
        _narrate(f"warning: {warning}")
    content = state.content(results)
    _show(results, content)
    failed = [one for one in results.results if one.problem is not None]
    late = [one for one in failed if one.problem == TIME_UP]
    for one in failed:
        if one not in late:
            _narrate(f"{one.experiment.name}: {one.problem}")
    if late:
        _narrate(f"{len(late)} experiments {TIME_UP}")
    if arguments.output is not None:
        save(results)
        measured = sum(entry.provenance == "measured" for entry in content.calibration.values())
        _narrate(
            f"wrote {arguments.output}: {measured} of {len(content.calibration)} values measured; "
            f'configure it as interference.calibration = "{arguments.output}"'
        )
    return 1 if len(failed) == len(results.results) or results.stuck else 0


def predict(
    demands: tuple[Demand, Demand], gpu: GpuCapacity, sharing: Sharing, calibration: Calibration
) -> Estimate:
    """Return the estimate of a pair."""
    return estimate(demands, gpu=gpu, calibration=calibration, sharing=sharing)


def _planned(
    arguments: argparse.Namespace, wanted: Sequence[Experiment], *, mps: bool
) -> tuple[BenchPlan, PlanRecord]:
    """As many runs as fit into the time."""
    asked = BenchPlan(arguments.runs, arguments.duration / 1e3)
    plan = asked.within(arguments.minutes * 60, wanted, mps=mps)
    return plan, PlanRecord(
        asked.runs, plan.runs, arguments.duration, [one.name for one in wanted], mps
    )


def _once(device: BenchDevice) -> None:
    """Launch each kernel once, and show their times."""
    cells = [[one.words, f"{1e3 * seconds:.3f}"] for one, seconds in launch_once(device)]
    output.print_table(("launch", ">ms"), cells)
    output.print_text(f"\nprofile it: {PROFILE_COMMAND}\n")


def _prove(report: Path) -> int:
    """Show what a report proves; 1 where a kernel does not reach what it has to."""
    reports = read_reports([report], remark=_narrate)
    results = proofs(launch for report in reports for launch in report.launches)
    if all(one.value is None for one in results):
        raise InputError(
            "no kernel of the bench was measured",
            where=str(report),
            do=f"profile it: {PROFILE_COMMAND}",
        )
    rows = [
        [
            one.kernel,
            one.metric,
            None if one.value is None else f"{one.value:.1f}",
            f"{one.least:.0f}",
            one.verdict,
        ]
        for one in results
    ]
    output.print_table(("kernel", "metric", ">%", ">least", "verdict"), rows)
    return 1 if any(one.verdict == "below" for one in results) else 0


def _list(wanted: Sequence[Experiment], arguments: argparse.Namespace) -> None:
    output.print_text(f"{gpu_words(H100_NVL)}\n\n")
    rows = []
    for one in wanted:
        second = None if one.second is None else one.second.words
        compared = None if one.second is None else one.compared
        rows.append(
            [one.name, one.first.words, second, compared, _number(one.published), one.question]
        )
    headings = ("experiment", "first", "second", "compared", ">published", "tests")
    output.print_table(headings, rows)
    explained = "".join(f"  {name}: {meaning}\n" for name, meaning in _COMPARED.items())
    plan, _ = _planned(arguments, wanted, mps=arguments.mps)
    seconds = plan.seconds(wanted, mps=arguments.mps)
    output.print_text(
        f"\n{explained}\n{len(wanted)} experiments, {plan.runs} runs: about {seconds:.0f} s.\n"
    )


def _show(results: Bench, content: BenchFile) -> None:
    output.print_text(f"{gpu_words(results.gpu)}; {results.driver}; {results.date}\n\n")
    headings = [
        *(
            "experiment",
            "sharing mode",
            "compared",
            ">predicted",
            ">calibrated",
            ">measured",
            ">lowest",
            ">highest",
        ),
        *(">error", ">published"),
    ]
    rows = [_row(one) for one in results.results if one.experiment.second is not None]
    output.print_table(headings, rows)
    entries = []
    for name, entry in content.calibration.items():
        value = None if entry.value is None else f"{entry.value:.4g}"
        residual = None if entry.residual is None else f"{entry.residual:.1%}"
        source = " ".join(filter(None, (entry.provenance, entry.experiment)))
        entries.append([name, value, source, residual, entry.note or None])
    output.print_text("\n")
    output.print_table(["value", ">", "source", ">residual", "note"], entries, title="Calibration")


def _row(one: ExperimentResult) -> list[str | None]:
    measured = one.measured
    predicted = None if one.expected is None else one.expected.value
    calibrated = None if one.calibrated is None else one.calibrated.value
    shown: list[str | None] = [one.experiment.name, one.mode, one.experiment.compared]
    shown += [_number(predicted), _number(calibrated)]
    if measured is None:
        shown += [None] * 4
    else:
        error = None if predicted is None else f"{predicted / measured.median - 1:+.1%}"
        shown += [_number(measured.median), _number(measured.low), _number(measured.high), error]
    return [*shown, _number(one.published)]


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"


def _show_progress(doing: str, done: int, total: int) -> None:
    if sys.stderr.isatty():
        _narrate(f"{done + 1}/{total} {doing}")


def _narrate(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
