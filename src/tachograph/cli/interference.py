"""`tachograph interference`: tell the errors of the estimator, calibrate it on a GPU, simulate a day of sharing."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from tachograph.cli import interference_bench, interference_day, output
from tachograph.cli.options import Arguments, Parser, actions_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tachograph.interference.sharing.accuracy import Judged

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
    action(
        "bench", "run micro-benchmarks on a GPU, and calibrate the estimator by them", interference_bench.add_arguments
    )
    action("day", "simulate a day of jobs placed with and without advice", interference_day.add_arguments)


def _of_accuracy(parser: argparse.ArgumentParser) -> None:
    """It has no options of its own; its help tells what the numbers are."""
    parser.epilog = _READ_AS


def run(arguments: Arguments) -> int:
    """Do what the action says."""
    actions: dict[str, Callable[[Arguments], int]] = {
        "accuracy": _accuracy,
        "bench": interference_bench.run,
        "day": interference_day.run,
    }
    return actions[arguments.action](arguments)


def _accuracy(arguments: Arguments) -> int:
    from tachograph.interference.sharing.accuracy import accuracy
    from tachograph.report.interference_accuracy import accuracy_json, sentences

    found = accuracy()
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


def _show(judged: Sequence[Judged], left_out: str, arguments: Arguments) -> None:
    from tachograph.report.interference_accuracy import table_rows

    titles = ["table", "case", "number", "measured", "predicted", "error", *([left_out] if left_out else [])]
    headings = [output.Heading(title, right=place > 2) for place, title in enumerate(titles)]
    rows = [row[: len(titles)] for row in table_rows(judged)]
    output.print_table(headings, rows, no_color=arguments.no_color)
