"""`tachograph completion SHELL`: the completion script for bash, zsh or fish."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping

from tachograph.catalog.errors import UsageError
from tachograph.cli import output
from tachograph.cli.options import Arguments, Parser, parsers

SHELLS = ("bash", "zsh", "fish")
_FILES = frozenset({"FILE", "REPORT", "PATH"})
_FOLDERS = frozenset({"DIR"})


def add_arguments(parser: Parser) -> None:
    """Declare the shell."""
    parser.add_argument(
        "shell", metavar="SHELL", choices=SHELLS, help=f"one of {', '.join(SHELLS)}"
    )


def run(arguments: Arguments) -> int:
    """Print the completion."""
    try:
        import shtab
    except ModuleNotFoundError:
        raise UsageError(
            "completion needs shtab, which is not installed", do="pip install shtab"
        ) from None
    from tachograph.cli.tree import program_parser

    program = program_parser()
    values = option_values()
    for parser in parsers(program):
        for action in parser._actions:
            _offer(action, parser.prog, values, files=shtab.FILE, folders=shtab.DIRECTORY)
    output.print_data(shtab.complete(program, shell=arguments.shell))
    return 0


def _offer(
    action: argparse.Action,
    prog: str,
    values: Mapping[str, Iterable[str]],
    *,
    files: object,
    folders: object,
) -> None:
    """Add to an action what its value is completed with: names, files, folders."""
    named = (
        values[name] for name in (*action.option_strings, f"{prog} {action.dest}") if name in values
    )
    if (
        action.choices is None
        and action.nargs != 0
        and (value_kind := next(named, None)) is not None
    ):
        action.choices = list(value_kind)
    elif action.choices is None and action.metavar in _FILES | _FOLDERS:
        vars(action)["complete"] = files if action.metavar in _FILES else folders


def option_values() -> Mapping[str, Iterable[str]]:
    """Return the choices of options and arguments that the parser itself does not check."""
    from tachograph.catalog.codes import CODES
    from tachograph.catalog.doors import annex_function
    from tachograph.cli.registry import COMMANDS
    from tachograph.judge.finding import VERDICTS
    from tachograph.lake.filters import ATTRIBUTIONS, JOB_STATES
    from tachograph.report.jobs import KNOWN

    return {
        "--attribution": ATTRIBUTIONS,
        "--columns": KNOWN,
        "--figure": annex_function("figure_names")(),
        "--finding": CODES,
        "--format": annex_function("figure_formats")(),
        "--sort": KNOWN,
        "--state": JOB_STATES,
        "--verdict": VERDICTS,
        "tachograph help command": sorted(
            {word for command in COMMANDS for word in command.name.split()}
        ),
    }
