"""All commands as one tree of parsers, from which completion, manual page and reference are made.

Building it imports every command, so only these three use it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Protocol, cast

from tachograph.catalog.version import __version__
from tachograph.cli.options import Parser, actions, add_common, sentence
from tachograph.cli.registry import COMMANDS, GROUPS, CommandEntry, family_of, find, load

Declare = Callable[[Parser], None]
_REPEATED = {"*": "[{} ...]", "+": "{} ...", "?": "[{}]"}
SUMMARY = "the flight recorder for GPU jobs"


class DividedCommand(Protocol):
    """Interface of a command whose first argument chooses the other options: a source, a target."""

    def parts(self) -> Sequence[tuple[str, str, Declare]]:
        """Return name, line of help and declaration of the options of each part."""
        ...


@dataclass(frozen=True, slots=True)
class OptionText:
    """An option or an argument: how it is written, what it means."""

    written: str
    meaning: str


@dataclass(frozen=True, slots=True)
class CommandText:
    """A command, action, source or target, with its own arguments and options."""

    prog: str
    sentence: str
    synopsis: str
    arguments: tuple[OptionText, ...]
    options: tuple[OptionText, ...]
    parts: tuple[CommandText, ...]


def program_parser() -> Parser:
    """Return the parser of the program, with parsers of commands, actions, sources, targets."""
    program = Parser("tachograph", sentence(SUMMARY))
    program.add_argument(
        "--version", action="version", version=f"tachograph {__version__}", help="show the version"
    )
    first_words = program.add_subparsers(dest="command", metavar="COMMAND")
    families: dict[str, argparse._SubParsersAction[Parser]] = {}
    # `lake` before `lake compact`.
    for command in sorted(COMMANDS, key=lambda command: " " in command.name):
        first, _, second = command.name.partition(" ")
        if not second:
            parser = first_words.add_parser(
                first, description=sentence(command.sentence), help=command.sentence
            )
            _declare(parser, command)
            if family_of(first):
                families[first] = parser.add_subparsers(dest="below", metavar="COMMAND")
            continue
        if first not in families:
            heading = GROUPS[command.group]
            group = first_words.add_parser(first, description=heading, help=heading)
            families[first] = group.add_subparsers(dest="below", metavar="COMMAND")
        phrase = command.sentence
        _declare(
            families[first].add_parser(second, description=sentence(phrase), help=phrase), command
        )
    return program


def _declare(parser: Parser, command: CommandEntry) -> None:
    """Declare a command's options, or its parts with theirs, and the common options."""
    module = load(command)
    if hasattr(module, "parts"):
        subcommands = parser.add_subparsers(dest="part", metavar=command.name.upper())
        for name, phrase, declare in cast("DividedCommand", module).parts():
            declare(subcommands.add_parser(name, description=sentence(phrase), help=phrase))
    else:
        module.add_arguments(parser)
    add_common(parser)


def common_options() -> tuple[OptionText, ...]:
    """Return the options of every command."""
    parser = Parser("tachograph", "")
    add_common(parser)
    return tuple(_options(parser))


def command_texts(words: Sequence[str] = ()) -> tuple[CommandText, ...]:
    """Return the command that the words name, all commands without words.

    Errors: UsageError for an unknown one.
    """
    shared = frozenset(option.written for option in common_options())
    texts = []
    for command in [find(words)] if words else COMMANDS:
        parser = Parser(f"tachograph {command.name}", sentence(command.sentence))
        _declare(parser, command)
        texts.append(_command_text(parser, shared))
    return tuple(texts)


def _command_text(parser: argparse.ArgumentParser, shared: Set[str]) -> CommandText:
    positional = [
        action
        for action in parser._get_positional_actions()
        if not isinstance(action, argparse._SubParsersAction)
    ]
    options = tuple(option for option in _options(parser) if option.written not in shared)
    parts = tuple(_command_text(part, shared) for part in actions(parser).values())
    values = [
        _REPEATED.get(str(action.nargs), "{}").format(_metavar(action)) for action in positional
    ]
    words = (
        [" | ".join(part.prog.removeprefix(f"{parser.prog} ") for part in parts)]
        if parts
        else values
    )
    synopsis = " ".join([parser.prog, *words, *(["[options]"] if options or parts else [])])
    return CommandText(
        parser.prog,
        parser.description or "",
        synopsis,
        tuple(OptionText(_metavar(action), _help(parser, action)) for action in positional),
        options,
        parts,
    )


def _options(parser: argparse.ArgumentParser) -> Iterator[OptionText]:
    for action in parser._get_optional_actions():
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
            continue
        value = "" if action.nargs == 0 else f" {_metavar(action)}"
        yield OptionText(f"{', '.join(action.option_strings)}{value}", _help(parser, action))


def _metavar(action: argparse.Action) -> str:
    if action.choices is not None and action.metavar is None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    written = action.metavar or action.dest.upper()
    return written if isinstance(written, str) else " ".join(written)


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return parser._get_formatter()._expand_help(action) if action.help else ""
