"""The manual page, in the language of man(7), made from the parsers of all commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from tachograph.catalog.errors import EXIT_CODES
from tachograph.catalog.version import __version__
from tachograph.cli.tree import SUMMARY, CommandText, OptionText, common_options

_DESCRIPTION = (
    "Tachograph takes what a cluster records anyway (GPU counters, the accounting of Slurm), "
    "works out which job held "
    "which GPU when, and reports what each job did with its GPUs, what was wrong, what it "
    "cost, and what to do. "
    "Output is data; progress and errors go to stderr."
)
ENVIRONMENT: Mapping[str, str] = MappingProxyType(
    {
        "TACHOGRAPH_CONFIG": "the configuration, in place of ./tachograph.toml",
        "TACHOGRAPH_LAKE": "the lake, where --lake is not given",
        "TACHOGRAPH_SECTION_KEY": "any key of the configuration, such as TACHOGRAPH_SITE_TIME_ZONE",
        "NO_COLOR": "no colours",
    }
)
_WRITTEN = str.maketrans({"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga"})


def manual_page(commands: Sequence[CommandText]) -> str:
    """Return the manual page of the program, with these commands."""
    return "\n".join(_lines(commands)) + "\n"


def _lines(commands: Sequence[CommandText]) -> Iterator[str]:
    yield f'.TH TACHOGRAPH 1 "" "Tachograph {_escaped(__version__)}" "User Commands"'
    yield from (".nh", ".ad l", ".SH NAME", rf"tachograph \- {SUMMARY}", ".SH SYNOPSIS")
    yield r"\fBtachograph\fR \fICOMMAND\fR [\fIoptions\fR]"
    yield from (".SH DESCRIPTION", _escaped(_DESCRIPTION), ".SH COMMANDS")
    for command in commands:
        yield from _command(command)
    yield ".SH OPTIONS OF EVERY COMMAND"
    yield from _tagged(common_options())
    yield ".SH EXIT STATUS"
    yield from _tagged(OptionText(str(code), meaning) for code, meaning in EXIT_CODES.items())
    yield ".SH ENVIRONMENT"
    yield from _tagged(OptionText(name, meaning) for name, meaning in ENVIRONMENT.items())
    yield ".SH FILES"
    yield from _tagged(
        (OptionText("./tachograph.toml", "the configuration; `tachograph init` writes it"),)
    )


def _command(command: CommandText) -> Iterator[str]:
    yield f'.SS "{_escaped(command.prog)}"'
    yield _escaped(command.sentence)
    yield from (".PP", rf"\fB{_escaped(command.synopsis)}\fR")
    yield from _tagged((*command.arguments, *command.options))
    for part in command.parts:
        yield from _command(part)


def _tagged(options: Iterable[OptionText]) -> Iterator[str]:
    for option in options:
        yield from (".TP", rf"\fB{_escaped(option.written)}\fR", _escaped(option.meaning) or r"\&")


def _escaped(text: str) -> str:
    r"""Return text with every character escaped that man(7) would take for a command.

    >>> _escaped(r".5 of 'a-b' \ c") == r"\&.5 of \(aqa\-b\(aq \e c"
    True
    """
    written = " ".join(text.split()).translate(_WRITTEN)
    return rf"\&{written}" if written.startswith(".") else written
