"""The options every command has, and a parser whose errors are the project's."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from tachograph import __version__
from tachograph.cli import output
from tachograph.errors import UsageError


class Arguments(argparse.Namespace):
    """The options of one run; those every command has are declared here."""

    lake: str | None
    config: str | None
    quiet: bool
    no_color: bool
    json: bool


class Parser(argparse.ArgumentParser):
    """A parser that raises UsageError instead of ending the process, and accepts no abbreviated options."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Take `--sort -start` for what it says: argparse would take the column for an option."""
        return super().parse_known_args(None if args is None else _joined(args), namespace)

    def error(self, message: str) -> NoReturn:
        """Raise `message` as a UsageError that points to the help."""
        raise UsageError(message, do=f"see `{self.prog} --help`")

    def _print_message(self, message: str, file: object = None) -> None:
        output.print_text(message)


_MAY_BEGIN_WITH_DASH = "--sort"


def _joined(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with `--sort -x` as one; what stands behind `--` is a command, and stays as it is.

    >>> _joined(["--sort", "-energy_j", "--json", "--", "ls", "--sort", "size"])
    ['--sort=-energy_j', '--json', '--', 'ls', '--sort', 'size']
    """
    joined: list[str] = []
    for place, argument in enumerate(arguments):
        if argument == "--":
            return [*joined, *arguments[place:]]
        if joined and joined[-1] == _MAY_BEGIN_WITH_DASH:
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def sentence(words: str) -> str:
    """Return `words` as a sentence.

    >>> sentence("list the counters")
    'List the counters.'
    """
    return f"{words[0].upper()}{words[1:]}."


def add_common(parser: Parser) -> None:
    """Add the options every command has."""
    group = parser.add_argument_group("options of every command")
    group.add_argument(
        "--lake", metavar="DIR", help="the lake: a folder or an object store's address [$TACHOGRAPH_LAKE]"
    )
    group.add_argument("--config", metavar="FILE", help="the configuration [$TACHOGRAPH_CONFIG, ./tachograph.toml]")
    group.add_argument("--quiet", action="store_true", help="say nothing on stderr but errors")
    group.add_argument("--no-color", action="store_true", help="no colours [$NO_COLOR]")
    group.add_argument("--version", action="version", version=f"tachograph {__version__}", help="show the version")


Declare = Callable[[argparse.ArgumentParser], None]


def actions_of(parser: Parser) -> Callable[[str, str, Declare], None]:
    """Return what adds an action to a command: its name, a line of help, what declares the options of its own.

    Each prints JSON where asked, and takes the options of every command, before the action or behind it.
    """
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def add(name: str, words: str, declare: Declare) -> None:
        one: Parser = actions.add_parser(name, description=sentence(words), help=words)
        declare(one)
        add_json(one)
        known = len(one._actions)
        add_common(one)
        for option in one._actions[known:]:  # given before the action, they count as well
            option.default = argparse.SUPPRESS

    return add


def add_json(parser: Parser | argparse._MutuallyExclusiveGroup) -> None:
    """Add `--json`, for commands that print a table."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def seed(written: str) -> int:
    """Return the seed of a simulation, a whole number from 0 on, as argparse wants it.

    >>> seed("7")
    7
    """
    number = int(written)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{written} is below 0")
    return number


def add_as_of(parser: Parser) -> None:
    """Add `--as-of`."""
    parser.add_argument("--as-of", metavar="TIME", help="take this for now: jobs that run are looked at up to it")
