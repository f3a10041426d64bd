"""`tachograph help [COMMAND]`: the commands, the options of a command, or the manual page.

`tachograph --help` prints the same; so this module imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Sequence

from tachograph.catalog.errors import EXIT_CODES
from tachograph.cli import output
from tachograph.cli.options import Arguments, Parser
from tachograph.cli.registry import (
    COMMANDS,
    FRONT,
    GROUPS,
    CommandEntry,
    added_commands,
    execute,
    group_alone,
)

_HEAD = """usage: tachograph COMMAND [options]

The flight recorder for GPU jobs: what each job did with its GPUs, what was wrong, what it cost, what to do.
"""
_TAIL = """
`tachograph help --all` lists every command, `tachograph help COMMAND` the options of one, as
`tachograph COMMAND --help` does; `tachograph help --man` prints the manual page, `tachograph completion SHELL`
what a shell completes commands by, `tachograph --version` the version. `record` ends with the exit code of the
command that it ran.
"""


def add_arguments(parser: Parser) -> None:
    """Declare the command, and its action, source or target."""
    parser.add_argument(
        "command", nargs="*", metavar="COMMAND", help="a command, and its action, source or target"
    )
    parser.add_argument("--all", action="store_true", help="list every command")
    parser.add_argument(
        "--man",
        action="store_true",
        help="print the manual page, of all commands or one: pipe it to `man -l -`",
    )


def run(arguments: Arguments) -> int:
    """Print the help."""
    if arguments.man:
        from tachograph.cli.manual import manual_page
        from tachograph.cli.tree import command_texts

        output.print_data(manual_page(command_texts(arguments.command)))
        return 0
    group = group_alone(arguments.command) if arguments.command else ()
    if group:
        output.print_text(overview(group))
        return 0
    if arguments.command:
        return execute([*arguments.command, "--help"])
    output.print_text(overview((*COMMANDS, *added_commands()) if arguments.all else FRONT))
    return 0


def overview(commands: Sequence[CommandEntry] = FRONT) -> str:
    """Return commands by group, and the exit codes."""
    width = max(len(command.name) for command in commands)
    parts = [_HEAD]
    for group, heading in GROUPS.items():
        members = [command for command in commands if command.group == group]
        lines = [f"  {command.name:<{width}}  {command.sentence}\n" for command in members]
        if lines:
            parts.append("".join([f"{heading}:\n", *lines]))
    parts.append(
        "".join(
            [
                "Exit codes:\n",
                *(f"  {code:>3}  {meaning}\n" for code, meaning in EXIT_CODES.items()),
            ]
        )
    )
    return "\n".join(parts) + _TAIL
