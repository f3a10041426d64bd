"""`tachograph interference`: accuracy of the estimator on published pairs, and micro-benchmarks that calibrate it."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tachograph.catalog.errors import UsageError
from tachograph.cli import narrate, output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, actions_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tachograph.sharing.calibration import CalibrationFile, PlanRecord
    from tachograph.sharing.demand import Calibration, Demand, Estimate, GpuCapacity, Sharing
    from tachograph.sharing.microbench.calibrate import Bench, ExperimentResult
    from tachograph.sharing.microbench.conditions import Conditions
    from tachograph.sharing.microbench.device import BenchDevice
    from tachograph.sharing.microbench.experiments import Experiment
    from tachograph.sharing.microbench.machine_code import Code
    from tachograph.sharing.microbench.run import BenchPlan, MpsProcesses

_MEASURED_AS = "H100 NVL"  # model of the published numbers
_COMPARED = {
    "gain": "time one after the other over time of both at once: 2 is perfect overlap, 1 none",
    "first": "time of the first beside the second over its time alone",
    "second": "time of the second beside the first over its time alone",
    "both": "mean of the two slowdowns, each time beside the other over time alone",
    None: "runs alone only",
}
_HELD_OUT = "Other GPUs (V100: wangpeiwen/gpu-util-interference)"
_READ_AS = (
    "A number is a slowdown, the time beside the other over the time alone, or a gain, the time one after the other "
    "over the time together: see the third column. 'fitted': whether a constant saw a number of the table; 'GPU left "
    "out', 'resource left out': the error without any constant that this GPU, or kernels on this resource, gave. "
    "Beside it are two rules that need no model: nothing is slowed; all are, by the largest sum of their demands. "
    "'under upper': measured slowdowns at or under the upper value. 'wrongly safe': pairs called safe that were slowed "
    "1.2x or more."
)


def add_arguments(parser: Parser) -> None:
    """Declare the actions, each with its own options."""
    action = actions_of(parser)
    action("accuracy", "compare the estimator with published measurements", _of_accuracy)
    action("bench", "run micro-benchmarks on a GPU to calibrate the estimator", add_bench_arguments)


def _of_accuracy(parser: argparse.ArgumentParser) -> None:
    """No options of its own; the help explains the numbers."""
    parser.epilog = _READ_AS


def run(arguments: Arguments) -> int:
    """Run the action."""
    return _accuracy(arguments) if arguments.action == "accuracy" else run_bench(arguments)


def _accuracy(arguments: Arguments) -> int:
    from tachograph.report import estimator_accuracy as report
    from tachograph.sharing.accuracy import estimator_accuracy

    found = estimator_accuracy()
    if arguments.json:
        output.print_json(report.accuracy_json(found))
        return 0
    output.print_text(f"{report.headline(found)}\n\n")
    output.print_table(list(report.SUMMARY_HEADINGS), report.summary_rows(found), no_color=arguments.no_color)
    for title, rows in (("The twenty of the paper (H100 NVL)", found.twenty), (_HELD_OUT, found.held_out)):
        output.print_text(f"\n{title}\n\n")
        output.print_table(list(report.ROW_HEADINGS), report.table_rows(rows), no_color=arguments.no_color)
    output.print_text("\n".join(("", "What constants saw:", *(f"  {line}" for line in report.constants()), "")))
    return 0


def add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `bench`; the caller adds `--json` and the options of every command."""
    parser.add_argument("--device", type=int, default=0, metavar="N", help="number of the GPU (default: 0)")
    parser.add_argument(
        "--runs", type=_runs, default=10, metavar="N", help="runs of each experiment, fewer where time is short (10)"
    )
    parser.add_argument(
        "--minutes", type=_minutes, default=8.0, metavar="N", help="how long all of it may take, in min (default: 8)"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="only these experiments or groups; repeatable"
    )
    parser.add_argument("--mps", action="store_true", help="also under MPS; its daemon must be running")
    parser.add_argument(
        "--duration", type=_duration, default=50.0, metavar="MS", help="duration of a launch alone, in ms (default: 50)"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write results into FILE, and go on where it ends")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--list", action="store_true", help="list the experiments; no GPU needed")
    modes.add_argument("--dry-run", action="store_true", help="list the launches (dry run); no GPU needed")
    modes.add_argument("--once", action="store_true", help="launch each kernel once, to be profiled")
    modes.add_argument("--prove", metavar="REPORT", help="check that kernels load what they name; no GPU needed")
    modes.add_argument(
        "--compile",
        nargs="?",
        const="sm_90",
        metavar="ARCH",
        help="only compile the kernels (sm_90); no GPU needed",
    )
    parser.add_argument(
        "--as", dest="model", default=_MEASURED_AS, metavar="MODEL",
        help=f"GPU model of --list and --dry-run (default: {_MEASURED_AS})",
    )  # fmt: skip


def _runs(written: str) -> int:
    if not written.isdecimal() or not 1 <= int(written) <= 1000:
        raise argparse.ArgumentTypeError(f"invalid number of runs '{written}': not between 1 and 1000")
    return int(written)


def _duration(written: str) -> float:
    return _between(written, 1, 10_000, "duration", "ms")


def _minutes(written: str) -> float:
    return _between(written, 0.5, 10_000, "time", "min")


def _between(written: str, least: float, most: float, what: str, unit: str) -> float:
    try:
        value = float(written)
    except ValueError:
        value = 0.0
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"invalid {what} '{written}' {unit}: not between {least:g} and {most:g}")
    return value


def run_bench(arguments: Arguments) -> int:
    """Run the micro-benchmarks, or list, compile or check them; return the exit code."""
    _check_names(arguments)
    if arguments.compile:
        return _compile(arguments)
    if arguments.prove:
        return _prove(arguments)
    if arguments.list or arguments.dry_run:
        return _plan(arguments)
    from tachograph.sharing.microbench.conditions import conditions
    from tachograph.sharing.microbench.cuda_device import CudaDevice
    from tachograph.sharing.microbench.mps import SHARE, MpsPairs, require_daemon

    _check_target(arguments.output)
    os.environ.pop(SHARE, None)  # this process needs all SMs, also beside a daemon of MPS
    if arguments.mps:
        require_daemon()
    device = CudaDevice(arguments.device)
    if arguments.once:
        return launch_kernels(arguments, device)
    processes = MpsPairs.of(arguments.device) if arguments.mps else None
    code = measure_bench(arguments, device, processes, lambda: conditions(device.pci_bus_id))
    if code and device.stuck:
        device.leave(code, output.flush)
    return code


def measure_bench(
    arguments: Arguments,
    device: BenchDevice,
    processes: MpsProcesses | None,
    observe: Callable[[], Conditions],
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Run what is missing of the chosen experiments on `device`, print all results; return the exit code.

    After every experiment all results are in the file. `clock`: in s, for the time that all may take.
    """
    from tachograph.sharing.microbench.experiments import chosen, experiments
    from tachograph.sharing.microbench.run import TIME_UP, Deadline, bench
    from tachograph.sharing.microbench.state import BenchState, begun_before, results_of

    deadline = Deadline.after(arguments.minutes * 60, clock)
    wanted = chosen(experiments(device.gpu, device.free_bytes()), arguments.only)
    plan, record = _planned(arguments, wanted, mps=processes is not None)
    file = None if not arguments.output else Path(arguments.output)
    had = None if file is None else begun_before(file, device, record)
    if had is not None and had.plan is not None:
        record, plan = had.plan, replace(plan, runs=had.plan.runs)
    state = BenchState(file, device, record)

    def save(found: Bench) -> None:
        with output.writing(str(file)):
            state.write(found)

    before = observe()
    with Narrator.of(arguments).steps() as progress:
        found = bench(
            device, wanted, plan=plan, predictor=predict_bench, processes=processes, progress=progress,
            before=() if had is None else results_of(had, wanted), date=None if had is None else had.date,
            deadline=deadline, save=save,
        )  # fmt: skip
    after = observe()
    for warning in dict.fromkeys((*before.warnings(), *after.warnings())):
        narrate.remark(f"warning: {warning}")
    content = state.content(found)
    if arguments.json:
        output.print_json({"calibration": content, "conditions": [before, after], "results": found.results})
    else:
        _show_bench(found, content, arguments)
    failed = [one for one in found.results if one.problem is not None]
    late = [one for one in failed if one.problem == TIME_UP]
    for one in failed:
        if one not in late:
            narrate.remark(f"{one.experiment.name}: {one.problem}")
    if late:
        narrate.remark(f"{len(late)} experiments {TIME_UP}")
    if file is not None:
        save(found)
        _wrote(str(file), content, Narrator.of(arguments))
    return 1 if len(failed) == len(found.results) or found.stuck else 0


def _planned(arguments: Arguments, wanted: Sequence[Experiment], *, mps: bool) -> tuple[BenchPlan, PlanRecord]:
    """As many runs as fit into the time."""
    from tachograph.sharing.calibration import PlanRecord
    from tachograph.sharing.microbench.run import BenchPlan

    asked = BenchPlan(arguments.runs, arguments.duration / 1e3)
    plan = asked.within(arguments.minutes * 60, wanted, mps=mps)
    return plan, PlanRecord(asked.runs, plan.runs, arguments.duration, [one.name for one in wanted], mps)


def launch_kernels(arguments: Arguments, device: BenchDevice) -> int:
    """Launch each kernel once, and show their times; return the exit code."""
    from tachograph.sharing.microbench.proofs import PROFILE_COMMAND, launch_once

    found = list(launch_once(device))
    if arguments.json:
        rows = [{"kernel": one.kernel, "launch": one.words, "seconds": seconds} for one, seconds in found]
        output.print_json({"launches": rows, "profile": PROFILE_COMMAND})
        return 0
    cells = [[one.words, f"{1e3 * seconds:.3f}"] for one, seconds in found]
    output.print_table(("launch", ">ms"), cells, no_color=arguments.no_color)
    output.print_text(f"\nprofile it: {PROFILE_COMMAND}\n")
    return 0


def _prove(arguments: Arguments) -> int:
    """Show what a report proves; 1 where a kernel does not reach what it has to."""
    from tachograph.catalog.errors import InputError
    from tachograph.nsight.reports import read_reports
    from tachograph.sharing.microbench.proofs import PROFILE_COMMAND, proofs

    reports = read_reports([Path(arguments.prove)], remark=narrate.remark)
    found = proofs(launch for report in reports for launch in report.launches)
    if all(one.value is None for one in found):
        raise InputError(
            "no kernel of the bench was measured", where=arguments.prove, do=f"profile it with {PROFILE_COMMAND}"
        )
    if arguments.json:
        output.print_json([
            {"kernel": one.kernel, "metric": one.metric, "value": one.value, "least": one.least, "verdict": one.verdict}
            for one in found
        ])  # fmt: skip
    else:
        rows = [
            [one.kernel, one.metric, None if one.value is None else f"{one.value:.1f}", f"{one.least:.0f}", one.verdict]
            for one in found
        ]
        output.print_table(("kernel", "metric", ">%", ">least", "verdict"), rows, no_color=arguments.no_color)
    return 1 if any(one.verdict == "below" for one in found) else 0


def predict_bench(
    demands: tuple[Demand, Demand], gpu: GpuCapacity, sharing: Sharing, calibration: Calibration
) -> Estimate:
    """Return the estimate of a pair."""
    from tachograph.sharing.estimate import estimate

    return estimate(demands, gpu=gpu, calibration=calibration, sharing=sharing)


def _compile(arguments: Arguments) -> int:
    from tachograph.sharing.microbench.cuda_device import compile_kernels

    program = compile_kernels(arguments.compile)
    if arguments.json:
        output.print_json({"arch": program.arch, "kind": program.kind, "bytes": len(program.image),
                           "kernels": {name: _code_json(code) for name, code in program.codes.items()}})  # fmt: skip
        return 0
    output.print_text(f"{program.arch}: {program.kind} of {len(program.image)} bytes\n")
    for counted in {code.arch for code in program.codes.values() if not code.loaded}:
        output.print_text(f"the driver compiles it; instructions are those of {counted}\n")
    if program.codes:
        rows = [
            [code.kernel, None if code.registers is None else str(code.registers), str(code.shared_bytes),
             str(code.instructions), *_loop_cells(code)]
            for code in program.codes.values()
        ]  # fmt: skip
        headings = ("kernel", ">registers", ">shared B", ">instructions", ">in loop", "by pipeline")
        output.print_table(headings, rows, no_color=arguments.no_color)
    return 0


def _code_json(code: Code) -> dict[str, object]:
    """`loop`: what an iteration of the loop that works issues; null where no loop is known."""
    from tachograph.sharing.microbench.workloads import KERNELS

    loop = code.working_loop(KERNELS[code.kernel].operation)
    return {
        "registers": code.registers, "shared_bytes": code.shared_bytes, "instructions": code.instructions,
        "arch": code.arch, "loaded": code.loaded,
        "loop": None if loop is None else {"issued": len(loop.instructions), "pipes": dict(loop.pipes)},
    }  # fmt: skip


def _loop_cells(code: Code) -> tuple[str | None, str | None]:
    """Instructions of the loop that works, all and by pipeline."""
    from tachograph.sharing.microbench.workloads import KERNELS

    loop = code.working_loop(KERNELS[code.kernel].operation)
    if loop is None:
        return None, None
    return str(len(loop.instructions)), ", ".join(f"{pipe} {count}" for pipe, count in sorted(loop.pipes.items()))


def _plan(arguments: Arguments) -> int:
    from dataclasses import fields

    from tachograph.sharing.microbench.calibrate import gpu_words
    from tachograph.sharing.microbench.experiments import chosen, experiments, gpu_called

    gpu = gpu_called(arguments.model)
    wanted = chosen(experiments(gpu), arguments.only)
    if arguments.json:
        capacity = {one.name: getattr(gpu, one.name) for one in fields(gpu) if one.name != "sources"}
        output.print_json({"gpu": capacity, "experiments": wanted})
        return 0
    output.print_text(f"{gpu_words(gpu)}\n\n")
    (_list if arguments.list else _launches)(wanted, arguments)
    return 0


def _list(wanted: Sequence[Experiment], arguments: Arguments) -> None:
    headings = ("experiment", "tests", "compared", ">published")
    rows = [
        [one.name, one.question, None if one.second is None else one.compared, _number(one.published)] for one in wanted
    ]
    output.print_table(headings, rows, no_color=arguments.no_color)
    found = {row[2] for row in rows}
    output.print_text("\ncompared:\n")
    output.print_text("".join(f"  {name or '–'}: {meaning}\n" for name, meaning in _COMPARED.items() if name in found))


def _launches(wanted: Sequence[Experiment], arguments: Arguments) -> None:
    rows = [
        [one.name, one.first.words, None if one.second is None else one.second.words,
         None if one.shares is None else " + ".join(f"{share:.4g}" for share in one.shares),
         f"{one.bytes_needed / 1e9:.2f}"]
        for one in wanted
    ]  # fmt: skip
    output.print_table(("experiment", "first", "second", "under MPS", ">GB"), rows, no_color=arguments.no_color)
    plan, _ = _planned(arguments, wanted, mps=arguments.mps)
    seconds = plan.seconds(wanted, mps=arguments.mps)
    output.print_text(f"\n{len(wanted)} experiments, {plan.runs} runs: about {seconds:.0f} s.\n")


def _show_bench(found: Bench, content: CalibrationFile, arguments: Arguments) -> None:
    from tachograph.sharing.microbench.calibrate import gpu_words

    output.print_text(f"{gpu_words(found.gpu)}; {found.driver}; {found.date}\n\n")
    headings = [
        *("experiment", "sharing mode", "compared", ">predicted", ">calibrated", ">measured", ">lowest", ">highest"),
        *(">error", ">published"),
    ]
    rows = [_row(one) for one in found.results if one.experiment.second is not None]
    output.print_table(headings, rows, no_color=arguments.no_color)
    entries = [
        [name, None if entry.value is None else f"{entry.value:.4g}",
         " ".join(filter(None, (entry.provenance, entry.experiment))),
         None if entry.residual is None else f"{entry.residual:.1%}", entry.note or None]
        for name, entry in content.calibration.items()
    ]  # fmt: skip
    output.print_text("\n")
    headings = ["value", ">", "source", ">residual", "note"]
    output.print_table(headings, entries, title="Calibration", no_color=arguments.no_color)


def _row(one: ExperimentResult) -> list[str | None]:
    measured, expected, own = one.measured, one.expected, one.calibrated
    predicted = None if expected is None else expected.value
    error = None if measured is None or predicted is None else f"{predicted / measured.median - 1:+.1%}"
    return [
        one.experiment.name, one.mode, one.experiment.compared, _number(predicted),
        None if own is None else _number(own.value),
        *([None] * 3 if measured is None else map(_number, (measured.median, measured.low, measured.high))),
        error, _number(one.published),
    ]  # fmt: skip


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"


def _check_names(arguments: Arguments) -> None:
    """Validate names before a GPU is opened.

    Errors: NotFoundError, UsageError for an unknown GPU or experiment.
    """
    from tachograph.sharing.microbench.experiments import chosen, every_experiment, gpu_called

    gpu_called(arguments.model)
    if arguments.only:
        chosen(every_experiment(), arguments.only)


def _check_target(file: str | None) -> None:
    """Check the folder of the output before minutes of measuring."""
    if file is not None and not Path(file).absolute().parent.is_dir():
        raise UsageError("the folder does not exist", where=file, do="create the folder, or name another file")


def _wrote(file: str, content: CalibrationFile, narrator: Narrator) -> None:
    measured = sum(entry.provenance == "measured" for entry in content.calibration.values())
    narrator.say(f"wrote {file}: {measured} of {len(content.calibration)} values measured; "
                 f'configure it as interference.calibration = "{file}"')  # fmt: skip
