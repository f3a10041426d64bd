"""Commands in the order of `tachograph --help`; a new one needs one file and one line here.

A command's module has `add_arguments(parser) -> None` and `run(arguments) -> int` (the exit code),
and is imported only when its command is run. This module imports nothing heavy: `--help` depends on
it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Protocol, cast

from tachograph.catalog.doors import added_entries
from tachograph.catalog.errors import LakeError, UsageError
from tachograph.catalog.suggestions import did_you_mean
from tachograph.cli.narrate import remark
from tachograph.cli.options import Arguments, Parser, add_common, configuration_of, sentence

# {group: heading in the help}, in its order
GROUPS: Mapping[str, str] = MappingProxyType(
    {
        "start": "Start",
        "feed": "Feed the lake",
        "look": "Inspect jobs",
        "lake": "Maintain the lake",
        "act": "Inform users, act on jobs",
        "watch": "Inspect GPUs live",
        "share": "Share GPUs",
        "lab": "Classes, rules, simulated clusters",
        "site": "Of installed packages",
    }
)


# {module: extra}, as in pyproject.toml
EXTRA_OF_MODULE: Mapping[str, str] = MappingProxyType(
    {
        "matplotlib": "lab",
        "mcp": "mcp",
        "pynvml": "watch",
        "starlette": "serve",
        "textual": "watch",
        "uvicorn": "serve",
    }
)


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One command: its name, of one word or two, its module, one line of help, its group.

    A module that begins with a dot lies in `tachograph.cli`; installed packages name theirs whole.
    """

    name: str
    module: str
    sentence: str
    group: str


COMMANDS: tuple[CommandEntry, ...] = (
    CommandEntry(
        "demo",
        "tachograph.annexes.lab.commands.demo",
        "simulate a cluster with planted problems, analyze it, show the findings",
        "start",
    ),
    CommandEntry("init", ".init", "write a short tachograph.toml, to be edited", "start"),
    CommandEntry(
        "help",
        ".help",
        "show the commands, or the options of one; with --man the manual page",
        "start",
    ),
    CommandEntry(
        "completion",
        ".completion",
        "print the completion of commands for bash, zsh or fish",
        "start",
    ),
    CommandEntry(
        "version", ".version", "show the versions of Tachograph and of what it runs on", "start"
    ),
    CommandEntry("ingest", ".ingest", "read recordings and accounting into the lake", "feed"),
    CommandEntry("analyze", ".analyze", "summarize and judge the jobs with new data", "feed"),
    CommandEntry(
        "collect", ".collect", "keep a lake up to date: poll the sources, analyze, compact", "feed"
    ),
    CommandEntry(
        "status",
        ".status",
        "show the state of the collector: lag, errors, unreachable hosts, clocks",
        "feed",
    ),
    CommandEntry(
        "jobs", ".jobs", "list jobs with their GPU use and findings, filtered and sorted", "look"
    ),
    CommandEntry("job", ".job", "report one job: GPU use, problems, what to do", "look"),
    CommandEntry(
        "waste", ".waste", "account for unused GPU time: by cause and user, with its cost", "look"
    ),
    CommandEntry(
        "advise",
        ".advise",
        "advise what to request for a job, from what past jobs like it used",
        "look",
    ),
    CommandEntry(
        "serve",
        "tachograph.annexes.serve.commands.serve",
        "serve pages and a REST API of the lake",
        "look",
    ),
    CommandEntry(
        "mcp",
        "tachograph.annexes.serve.commands.mcp",
        "answer an assistant's questions about the lake on stdin and stdout",
        "look",
    ),
    CommandEntry(
        "seff",
        ".seff",
        "show what a job used of its CPUs, memory and GPUs, as Slurm's seff does",
        "look",
    ),
    CommandEntry(
        "record",
        "tachograph.annexes.watch.commands.record",
        "run a command, record its GPUs, report the job",
        "look",
    ),
    CommandEntry(
        "export",
        ".export",
        "export jobs to PostgreSQL, CSV, Parquet, Prometheus, ClusterCockpit",
        "look",
    ),
    CommandEntry(
        "study",
        "tachograph.annexes.lab.commands.study",
        "write the published study for this system: figures, numbers, answers",
        "look",
    ),
    CommandEntry("lake", ".lake", "show the contents of the lake: rows, gaps, rejects", "lake"),
    CommandEntry(
        "lake compact", ".compact", "rewrite days as few sorted files, merge duplicates", "lake"
    ),
    CommandEntry(
        "lake forget",
        ".forget",
        "forget a user: a pseudonym in place of the name, or all removed",
        "lake",
    ),
    CommandEntry(
        "lake counters",
        ".counters",
        "list the counters: units, kinds, meaning; with --json their names at each producer",
        "lake",
    ),
    CommandEntry(
        "lake devices", ".devices", "list the GPU models: peaks, memory, ridge points", "lake"
    ),
    CommandEntry(
        "act",
        "tachograph.annexes.act.commands.act",
        "act in rounds: alerts, policies, comments, advice, digests; a dry run by default",
        "act",
    ),
    CommandEntry(
        "act comment",
        "tachograph.annexes.act.commands.comment",
        "write summaries of ended jobs into Slurm's accounting (AdminComment)",
        "act",
    ),
    CommandEntry(
        "act digest",
        "tachograph.annexes.act.commands.digest",
        "show weekly digests of users: what was good, one thing to change",
        "act",
    ),
    CommandEntry(
        "act policy",
        "tachograph.annexes.act.commands.policy",
        "check and backtest policies for running jobs, show what they did",
        "act",
    ),
    CommandEntry(
        "watch",
        "tachograph.annexes.watch.commands.watch",
        "show GPUs live: on a screen, as a table, JSON or CSV",
        "watch",
    ),
    CommandEntry(
        "share kernels",
        "tachograph.annexes.share.commands.kernels",
        "report demand and sensitivity of kernels from Nsight Compute reports",
        "share",
    ),
    CommandEntry(
        "share colocate",
        "tachograph.annexes.share.commands.colocate",
        "propose which jobs of a lake could share a GPU, how, and why",
        "share",
    ),
    CommandEntry(
        "lab rules",
        "tachograph.annexes.lab.commands.rules",
        "list, check, run, back-test and import performance-pattern rules",
        "lab",
    ),
    CommandEntry(
        "lab classify",
        "tachograph.annexes.lab.commands.classify",
        "judge job classes again from stored minutes; print verdicts and intervals",
        "lab",
    ),
    CommandEntry(
        "lab tune",
        "tachograph.annexes.lab.commands.tune",
        "compare thresholds of job classes with labelled jobs, or propose some",
        "lab",
    ),
    CommandEntry(
        "lab scores",
        "tachograph.annexes.lab.commands.scores",
        "show the GPU scores of a job by each measurement method",
        "lab",
    ),
    CommandEntry(
        "lab simulate",
        "tachograph.annexes.lab.commands.simulate",
        "write a simulated cluster with its ground truth",
        "lab",
    ),
    CommandEntry(
        "lab accuracy",
        "tachograph.annexes.lab.commands.accuracy",
        "measure the accuracy of verdicts on simulated jobs",
        "lab",
    ),
)


# What `tachograph help` shows: what people meet first. The others are listed by `tachograph help
# --all`.
_FRONT_NAMES = (
    *("demo", "init", "ingest", "analyze", "collect", "status"),
    *("jobs", "job", "waste", "watch", "serve", "advise"),
)
FRONT = tuple(command for command in COMMANDS if command.name in _FRONT_NAMES)


class CommandModule(Protocol):
    """Interface of a command's module."""

    def add_arguments(self, parser: Parser) -> None:
        """Declare the command's own options."""

    def run(self, arguments: Arguments) -> int:
        """Run the command; return the exit code."""
        ...


def family_of(word: str) -> tuple[CommandEntry, ...]:
    """Return the commands of two words that begin with this one."""
    return tuple(command for command in COMMANDS if command.name.startswith(f"{word} "))


def group_alone(words: Sequence[str]) -> tuple[CommandEntry, ...]:
    """Return the commands of a group if the words are only its name; () otherwise.

    >>> [command.name for command in group_alone(["share"])], group_alone(["lake"]), group_alone(["share", "kernels"])
    (['share kernels', 'share colocate'], (), ())
    """
    is_command = any(command.name == words[0] for command in COMMANDS)
    return () if is_command or set(words[1:]) - {"-h", "--help"} else family_of(words[0])


def added_commands() -> tuple[CommandEntry, ...]:
    """Return the commands that installed packages add, each of one word."""
    return added_entries("commands", CommandEntry)


def find(words: Sequence[str]) -> CommandEntry:
    """Return the command that the words begin with: of two words if one exists, else of one.

    Errors: UsageError naming the closest one.
    """
    by_name = {command.name: command for command in COMMANDS}
    first, second = words[0], words[1] if len(words) > 1 and not words[1].startswith("-") else ""
    members = family_of(first)
    name = f"{first} {second}" if members and second else first
    if name in by_name:
        return by_name[name]
    for entry in added_commands():
        if entry.name in (first, name):
            return entry
    # A command of two words is known by its second one, too: that is what people remember.
    names = {command.name.rpartition(" ")[2]: command.name for command in COMMANDS}
    words_before = 2 if members and second else 1
    moved = "study" if first == "figures" else names.get(words[words_before - 1])
    if moved is not None:
        import shlex

        do = f"it is `tachograph {moved} {shlex.join(words[words_before:])}".rstrip() + "`"
    else:
        topic = f" {first}" if members else ""
        close = {command.name: command.name for command in members or COMMANDS}
        do = did_you_mean(
            name,
            close if members else names | close,
            otherwise=f"see `tachograph help{topic}`",
            form="`tachograph {}`",
        )
    raise UsageError(f"unknown command '{name}'", do=do)


def load(command: CommandEntry) -> CommandModule:
    """Return the module of `command`, imported now."""
    return cast("CommandModule", import_module(command.module, "tachograph.cli"))


def parser_of(command: CommandEntry, module: CommandModule) -> Parser:
    """Return the parser of a command: its own options, then those of every command."""
    parser = Parser(f"tachograph {command.name}", sentence(command.sentence))
    module.add_arguments(parser)
    add_common(parser)
    below = [f"`tachograph {member.name}`" for member in family_of(command.name)]
    if below:
        parser.epilog = f"Commands below this one: {', '.join(below)}."
    return parser


def execute(argv: Sequence[str]) -> int:
    """Run one command with its arguments, and return its exit code.

    Errors: UsageError for options that do not fit, and those of the command.
    """
    command = find(argv)
    try:
        return _run(command, argv[command.name.count(" ") + 1 :])
    except ModuleNotFoundError as problem:
        module = (problem.name or "").partition(".")[0]
        if module not in EXTRA_OF_MODULE:
            raise
        raise UsageError(
            f"`tachograph {command.name}` needs {module}, which is not installed",
            do=f"pip install 'tachograph[{EXTRA_OF_MODULE[module]}]'",
        ) from None


def _run(command: CommandEntry, words: Sequence[str]) -> int:
    module = load(command)
    try:
        arguments = parser_of(command, module).parse_args(words, Arguments())
    except SystemExit:  # argparse has shown the help or the version
        return 0
    _warn_of_shared_cache()
    try:
        return module.run(arguments)
    except BaseException as problem:
        damaged = _damaged_file(problem, arguments)
        if damaged is not None:
            raise damaged from problem
        raise


def _damaged_file(problem: BaseException, arguments: Arguments) -> LakeError | None:
    """Return the damaged data file behind a reader's error, or None."""
    if "polars" not in sys.modules:
        return None
    from tachograph.lake.problems import UNREADABLE, damaged_file_error

    if not isinstance(problem, UNREADABLE):
        return None
    from tachograph.catalog.config import lake_location

    return damaged_file_error(lake_location(arguments.lake, configuration_of(arguments)))


def _warn_of_shared_cache() -> None:
    """Write why compiled functions are not kept: another user could put code into their folder."""
    from tachograph.catalog.private_files import compiled_folder, why_not_private

    folder = compiled_folder(os.environ)
    reason = "" if folder is None else why_not_private(folder)
    if reason:
        do = "remove that permission, or name a private folder in $NUMBA_CACHE_DIR"
        remark(f"compiled functions are not kept: {reason}; {do}")
