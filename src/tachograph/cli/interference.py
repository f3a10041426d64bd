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
from tachograph.cli.output import TableHeading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tachograph.sharing.accuracy import CheckedEstimate
    from tachograph.sharing.calibration import CalibrationFile
    from tachograph.sharing.demand import Calibration, Demand, Estimate, GpuCapacity, Sharing
    from tachograph.sharing.microbench.calibrate import Bench, ExperimentResult
    from tachograph.sharing.microbench.device import BenchDevice
    from tachograph.sharing.microbench.experiments import Experiment
    from tachograph.sharing.microbench.run import Conditions, MpsProcesses


_MEASURED_AS = "H100 NVL"  # of which numbers are published
_COMPARED = {
    "gain": "time one after the other over time of both at once: 2 is perfect overlap, 1 none",
    "first": "time of the first beside the second over its time alone",
    "second": "time of the second beside the first over its time alone",
    "both": "mean of the two slowdowns, each time beside the other over time alone",
    None: "runs alone only",
}
_MODES = 5  # times of a launch in a run of a pair: each alone, two one after the other, one together


def add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the action; `--json` and those of every command are added by the caller."""
    parser.add_argument("--device", type=int, default=0, metavar="N", help="number of the GPU (default: 0)")
    parser.add_argument("--runs", type=_runs, default=10, metavar="N", help="runs of each experiment (default: 10)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="these experiments, or groups; repeatable"
    )
    parser.add_argument("--mps", action="store_true", help="under MPS as well, whose daemon you have started")
    parser.add_argument(
        "--duration", type=_duration, default=50.0, metavar="MS", help="of each launch alone, in ms (default: 50)"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the calibration into FILE")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--list", action="store_true", help="show what each experiment tests; needs no GPU")
    modes.add_argument("--dry-run", action="store_true", help="show what would be launched; needs no GPU")
    modes.add_argument(
        "--compile", nargs="?", const="sm_90", metavar="ARCH", help="only compile the kernels (sm_90); needs no GPU"
    )
    parser.add_argument(
        "--as", dest="model", default=_MEASURED_AS, metavar="MODEL",
        help=f"the GPU that --list and --dry-run are for (default: {_MEASURED_AS})",
    )  # fmt: skip


def _runs(written: str) -> int:
    if not written.isdecimal() or not 1 <= int(written) <= 1000:
        raise argparse.ArgumentTypeError(f"{written!r} is no number of runs, from 1 to 1000")
    return int(written)


def _duration(written: str) -> float:
    try:
        value = float(written)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 10_000:
        raise argparse.ArgumentTypeError(f"{written!r} is no duration in ms, from 1 to 10000")
    return value


def run_bench(arguments: Arguments) -> int:
    """Do what the options ask for; return the exit code."""
    _check_names(arguments)
    if arguments.compile:
        return _compile(arguments)
    if arguments.list or arguments.dry_run:
        return _plan(arguments)
    from tachograph.sharing.microbench.cuda_device import CudaDevice
    from tachograph.sharing.microbench.mps import SHARE, MpsPairs, demand_daemon
    from tachograph.sharing.microbench.run import conditions

    _check_target(arguments.output)
    os.environ.pop(SHARE, None)  # this process needs all SMs, also beside a daemon of MPS
    if arguments.mps:
        demand_daemon()
    device = CudaDevice(arguments.device)
    processes = MpsPairs.of(arguments.device) if arguments.mps else None
    code = measure_bench(arguments, device, processes, lambda: conditions(device.pci_bus_id))
    if code and device.stuck:
        device.leave(code, output.flush)
    return code


def measure_bench(
    arguments: Arguments, device: BenchDevice, processes: MpsProcesses | None, observe: Callable[[], Conditions]
) -> int:
    """Run the chosen experiments on `device`, print what came out, write the calibration; return the exit code."""
    from tachograph.sharing.microbench.calibrate import calibrate
    from tachograph.sharing.microbench.experiments import chosen, experiments
    from tachograph.sharing.microbench.run import BenchPlan, bench

    wanted = chosen(experiments(device.gpu, device.free_bytes()), arguments.only)
    before = observe()
    with Narrator.of(arguments).steps() as told:
        found = bench(
            device, wanted, plan=BenchPlan(arguments.runs, arguments.duration / 1e3), predictor=predict_bench,
            processes=processes, told=told,
        )  # fmt: skip
    after = observe()
    for words in dict.fromkeys((*before.warnings(), *after.warnings())):
        narrate.remark(f"beware: {words}")
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
    """Return what the estimator says."""
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
        headings = [
            TableHeading("kernel"),
            *(TableHeading(name, right=True) for name in ("registers", "shared B", "instructions")),
        ]
        rows = [
            [code.kernel, None if code.registers is None else str(code.registers), str(code.shared_bytes),
             str(code.instructions)]
            for code in program.codes.values()
        ]  # fmt: skip
        output.print_table(headings, rows, no_color=arguments.no_color)
    return 0


def _plan(arguments: Arguments) -> int:
    from dataclasses import fields

    from tachograph.sharing.microbench.calibrate import gpu_words
    from tachograph.sharing.microbench.experiments import chosen, experiments, gpu_called

    gpu = gpu_called(arguments.model)
    wanted = chosen(experiments(gpu), arguments.only)
    if arguments.json:
        told = {one.name: getattr(gpu, one.name) for one in fields(gpu) if one.name != "told_by"}
        output.print_json({"gpu": told, "experiments": wanted})
        return 0
    output.print_text(f"{gpu_words(gpu)}\n\n")
    (_list if arguments.list else _launches)(wanted, arguments)
    return 0


def _list(wanted: Sequence[Experiment], arguments: Arguments) -> None:
    headings = [
        TableHeading("experiment"),
        TableHeading("tests"),
        TableHeading("compared"),
        TableHeading("published", right=True),
    ]
    rows = [
        [one.name, one.question, None if one.second is None else one.compared, _number(one.published)] for one in wanted
    ]
    output.print_table(headings, rows, no_color=arguments.no_color)
    found = {row[2] for row in rows}
    output.print_text("\ncompared:\n")
    output.print_text("".join(f"  {name or '–'}: {words}\n" for name, words in _COMPARED.items() if name in found))


def _published(one: Experiment) -> str | None:
    """What was measured in streams, under MPS."""
    under = None if one.published_shares is None else f"{one.published_shares:g} MPS"
    return ", ".join(filter(None, (_number(one.published), under))) or None


def _launches(wanted: Sequence[Experiment], arguments: Arguments) -> None:
    headings = [TableHeading(name) for name in ("experiment", "first", "second", "under MPS")]
    rows = [
        [one.name, one.first.words, None if one.second is None else one.second.words,
         None if one.shares is None else " + ".join(f"{share:.4g}" for share in one.shares),
         f"{one.bytes_needed / 1e9:.2f}"]
        for one in wanted
    ]  # fmt: skip
    output.print_table([*headings, TableHeading("GB", right=True)], rows, no_color=arguments.no_color)
    pairs = sum(one.second is not None for one in wanted)
    launches = pairs * _MODES + sum(len(one.workloads) for one in wanted)
    seconds = launches * arguments.runs * arguments.duration / 1e3
    output.print_text(f"\n{len(wanted)} experiments, {arguments.runs} runs: about {seconds:.0f} s of launches.\n")


def _show_bench(found: Bench, content: CalibrationFile, arguments: Arguments) -> None:
    from tachograph.sharing.microbench.calibrate import gpu_words

    output.print_text(f"{gpu_words(found.gpu)}; {found.driver}; {found.date}\n\n")
    headings = [TableHeading("experiment"), TableHeading("way"), TableHeading("compared")]
    headings += [
        TableHeading(name, right=True)
        for name in ("predicted", "calibrated", "measured", "lowest", "highest", "error", "published")
    ]
    rows = [_row(one) for one in found.results if one.experiment.second is not None]
    output.print_table(headings, rows, no_color=arguments.no_color)
    headings = [
        TableHeading("value"),
        TableHeading("", right=True),
        TableHeading("told by"),
        TableHeading("residual", right=True),
    ]
    entries = [
        [name, f"{entry.value:.4g}", " ".join(filter(None, (entry.provenance, entry.experiment))),
         None if entry.residual is None else f"{entry.residual:.1%}", entry.note or None]
        for name, entry in content.calibration.items()
    ]  # fmt: skip
    output.print_text("\n")
    output.print_table([*headings, TableHeading("note")], entries, title="Calibration", no_color=arguments.no_color)


def _row(one: ExperimentResult) -> list[str | None]:
    measured, expected, own = one.measured, one.expected, one.calibrated
    predicted = None if expected is None else expected.value
    error = None if measured is None or predicted is None else f"{predicted / measured.median - 1:+.1%}"
    return [
        one.experiment.name, one.way, one.experiment.compared, _number(predicted),
        None if own is None else _number(own.value),
        *([None] * 3 if measured is None else map(_number, (measured.median, measured.low, measured.high))),
        error, _number(one.published),
    ]  # fmt: skip


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"


def _check_names(arguments: Arguments) -> None:
    """Before a GPU is looked for; whether it has the experiment is seen when it is there.

    Errors: NotFoundError, UsageError for a GPU or an experiment that nobody knows.
    """
    from tachograph.sharing.microbench.experiments import chosen, every_experiment, gpu_called

    gpu_called(arguments.model)
    if arguments.only:
        chosen(every_experiment(), arguments.only)


def _check_target(file: str | None) -> None:
    """Before minutes of measuring: what is written at the end has to find its folder."""
    from pathlib import Path

    if file is not None and not Path(file).absolute().parent.is_dir():
        raise UsageError("its folder does not exist", where=file, do="make the folder, or name another file")


def _write(file: str, content: CalibrationFile, narrator: Narrator) -> None:
    from pathlib import Path

    from tachograph.sharing.calibration import write_calibration

    with output.writing(file):
        write_calibration(Path(file), content)
    measured = sum(entry.provenance == "measured" for entry in content.calibration.values())
    narrator.say(f"wrote {file}: {measured} of {len(content.calibration)} values measured; "
                 f'use it with interference.calibration = "{file}"')  # fmt: skip


_HELD_OUT = "Another GPU, of 80 SMs, held out: nothing was fitted to it (wangpeiwen/gpu-util-interference)"


_READ_AS = (
    "A number is a slowdown, the time beside the other over the time alone (table 2, pitfalls, section 4.3, bandwidth) "
    "or a gain, the time one after the other over the time together (all others): the third column tells which. One "
    "constant is fitted: how much the latency of DRAM grows with its load, from kernels of table 2 that ran alone. "
    "'without its table': the error where nothing from that table is used. Nothing is fitted to the other GPU."
)


def add_arguments(parser: Parser) -> None:
    """Declare the actions, each with its own options."""
    action = actions_of(parser)
    action("accuracy", "tell the errors of the estimator against published measurements", _of_accuracy)
    action("bench", "run micro-benchmarks on a GPU, and calibrate the estimator by them", add_bench_arguments)


def _of_accuracy(parser: argparse.ArgumentParser) -> None:
    """It has no options of its own; its help tells what the numbers are."""
    parser.epilog = _READ_AS


def run(arguments: Arguments) -> int:
    """Do what the action says."""
    actions: dict[str, Callable[[Arguments], int]] = {
        "accuracy": _accuracy,
        "bench": run_bench,
    }
    return actions[arguments.action](arguments)


def _accuracy(arguments: Arguments) -> int:
    from tachograph.report.sharing_json import accuracy_json, sentences
    from tachograph.sharing.accuracy import estimator_accuracy

    found = estimator_accuracy()
    if arguments.json:
        output.print_json(accuracy_json(found))
        return 0
    _show(found.twenty, "without its table", arguments)
    output.print_text(f"\n{_HELD_OUT}\n\n")
    _show(found.held_out, "", arguments)
    lines = sentences(found.twenty, whose=f"{len(found.twenty)} published numbers", left_out=True)
    lines += sentences(found.held_out, whose=f"{len(found.held_out)} of another GPU, held out", left_out=False)
    output.print_text("\n" + "\n".join(lines) + "\n")
    return 0


def _show(judged: Sequence[CheckedEstimate], left_out: str, arguments: Arguments) -> None:
    from tachograph.report.sharing_json import table_rows

    titles = ["table", "case", "number", "measured", "predicted", "error", *([left_out] if left_out else [])]
    headings = [output.TableHeading(title, right=place > 2) for place, title in enumerate(titles)]
    rows = [row[: len(titles)] for row in table_rows(judged)]
    output.print_table(headings, rows, no_color=arguments.no_color)
