"""`tachograph interference`: accuracy of the estimator on published pairs, and micro-benchmarks that calibrate it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tachograph.catalog.errors import UsageError
from tachograph.cli import narrate, output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, actions_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tachograph.sharing.calibration import CalibrationFile
    from tachograph.sharing.demand import Calibration, Demand, Estimate, GpuCapacity, Sharing
    from tachograph.sharing.microbench.calibrate import Bench, ExperimentResult
    from tachograph.sharing.microbench.device import BenchDevice
    from tachograph.sharing.microbench.experiments import Experiment
    from tachograph.sharing.microbench.run import Conditions, MpsProcesses

_MEASURED_AS = "H100 NVL"  # model of the published numbers
_COMPARED = {
    "gain": "time one after the other over time of both at once: 2 is perfect overlap, 1 none",
    "first": "time of the first beside the second over its time alone",
    "second": "time of the second beside the first over its time alone",
    "both": "mean of the two slowdowns, each time beside the other over time alone",
    None: "runs alone only",
}
_MODES = 5  # times of a launch in a run of a pair: each alone, two one after the other, one together
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
    parser.add_argument("--runs", type=_runs, default=10, metavar="N", help="runs of each experiment (default: 10)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="only these experiments or groups; repeatable"
    )
    parser.add_argument("--mps", action="store_true", help="also under MPS; its daemon must be running")
    parser.add_argument(
        "--duration", type=_duration, default=50.0, metavar="MS", help="duration of a launch alone, in ms (default: 50)"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the calibration into FILE")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--list", action="store_true", help="list the experiments; no GPU needed")
    modes.add_argument("--dry-run", action="store_true", help="list the launches (dry run); no GPU needed")
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
    try:
        value = float(written)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 10_000:
        raise argparse.ArgumentTypeError(f"invalid duration '{written}' ms: not between 1 and 10000")
    return value


def run_bench(arguments: Arguments) -> int:
    """Run the micro-benchmarks, or list or compile them; return the exit code."""
    _check_names(arguments)
    if arguments.compile:
        return _compile(arguments)
    if arguments.list or arguments.dry_run:
        return _plan(arguments)
    from tachograph.sharing.microbench.cuda_device import CudaDevice
    from tachograph.sharing.microbench.mps import SHARE, MpsPairs, require_daemon
    from tachograph.sharing.microbench.run import conditions

    _check_target(arguments.output)
    os.environ.pop(SHARE, None)  # this process needs all SMs, also beside a daemon of MPS
    if arguments.mps:
        require_daemon()
    device = CudaDevice(arguments.device)
    processes = MpsPairs.of(arguments.device) if arguments.mps else None
    code = measure_bench(arguments, device, processes, lambda: conditions(device.pci_bus_id))
    if code and device.stuck:
        device.leave(code, output.flush)
    return code


def measure_bench(
    arguments: Arguments, device: BenchDevice, processes: MpsProcesses | None, observe: Callable[[], Conditions]
) -> int:
    """Run the chosen experiments on `device`, print results, write the calibration; return the exit code."""
    from tachograph.sharing.microbench.calibrate import calibrate
    from tachograph.sharing.microbench.experiments import chosen, experiments
    from tachograph.sharing.microbench.run import BenchPlan, bench

    wanted = chosen(experiments(device.gpu, device.free_bytes()), arguments.only)
    before = observe()
    with Narrator.of(arguments).steps() as progress:
        found = bench(
            device, wanted, plan=BenchPlan(arguments.runs, arguments.duration / 1e3), predictor=predict_bench,
            processes=processes, progress=progress,
        )  # fmt: skip
    after = observe()
    for warning in dict.fromkeys((*before.warnings(), *after.warnings())):
        narrate.remark(f"warning: {warning}")
    content = calibrate(found, lanes=device.lanes)
    if arguments.json:
        output.print_json({"calibration": content, "conditions": [before, after], "results": found.results})
    else:
        _show_bench(found, content, arguments)
    failed = [one for one in found.results if one.problem is not None]
    for one in failed:
        narrate.remark(f"{one.experiment.name}: {one.problem}")
    if arguments.output:
        _write(arguments.output, content, Narrator.of(arguments))
    return 1 if len(failed) == len(found.results) or found.stuck else 0


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
                           "kernels": dict(program.codes)})  # fmt: skip
        return 0
    output.print_text(f"{program.arch}: {program.kind} of {len(program.image)} bytes\n")
    if program.codes:
        rows = [
            [code.kernel, None if code.registers is None else str(code.registers), str(code.shared_bytes),
             str(code.instructions)]
            for code in program.codes.values()
        ]  # fmt: skip
        output.print_table(("kernel", ">registers", ">shared B", ">instructions"), rows, no_color=arguments.no_color)
    return 0


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
    pairs = sum(one.second is not None for one in wanted)
    launches = pairs * _MODES + sum(len(one.workloads) for one in wanted)
    seconds = launches * arguments.runs * arguments.duration / 1e3
    output.print_text(f"\n{len(wanted)} experiments, {arguments.runs} runs: about {seconds:.0f} s of launches.\n")


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
        [name, f"{entry.value:.4g}", " ".join(filter(None, (entry.provenance, entry.experiment))),
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
    from pathlib import Path

    if file is not None and not Path(file).absolute().parent.is_dir():
        raise UsageError("the folder does not exist", where=file, do="create the folder, or name another file")


def _write(file: str, content: CalibrationFile, narrator: Narrator) -> None:
    from pathlib import Path

    from tachograph.sharing.calibration import write_calibration

    with output.writing(file):
        write_calibration(Path(file), content)
    measured = sum(entry.provenance == "measured" for entry in content.calibration.values())
    narrator.say(f"wrote {file}: {measured} of {len(content.calibration)} values measured; "
                 f'configure it as interference.calibration = "{file}"')  # fmt: skip
