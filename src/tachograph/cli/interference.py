"""`tachograph interference`: accuracy of the estimator on published pairs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tachograph.cli import output
from tachograph.cli.options import Arguments, Parser, actions_of

if TYPE_CHECKING:
    pass

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


def _of_accuracy(parser: argparse.ArgumentParser) -> None:
    """No options of its own; the help explains the numbers."""
    parser.epilog = _READ_AS


def run(arguments: Arguments) -> int:
    """Run the action."""
    return _accuracy(arguments)


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
