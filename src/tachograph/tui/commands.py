"""What can be written behind `:`: names of commands, what they take, how names are completed.

:sort power        :filter user=ana sm<20        :gpu nid001:3        :interval 5
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from tachograph.errors import UsageError


@dataclass(frozen=True, slots=True)
class Command:
    """One command. takes: a kind of `Names` that its words are of, "" for none; optional: they may be missing."""

    name: str
    takes: str
    text: str
    optional: bool = False


COMMANDS: tuple[Command, ...] = (
    Command("sort", "column", "sort the fleet; -power turns the order round"),
    Command("group", "group", "group the fleet by node, job, user or class; alone: not at all", optional=True),
    Command("filter", "filter", "show only what matches; alone: all", optional=True),
    Command("search", "filter", "put the cursor on the next GPU that matches"),
    Command("heat", "heat", "heat map by class, a number or a counter", optional=True),
    Command("table", "", "the fleet as a table"),
    Command("gpu", "gpu", "focus on a GPU"),
    Command("job", "job", "all GPUs of a job", optional=True),
    Command("user", "user", "only the GPUs of a user"),
    Command("plot", "counter", "lines of counters over time", optional=True),
    Command("events", "kind", "what changed; only of one kind: xid, health", optional=True),
    Command("fleet", "", "all GPUs"),
    Command("interval", "seconds", "look so often"),
    Command("speed", "factor", "recording: play so many times as fast"),
    Command("seek", "time", "recording: go on from 14:05:30, an ISO time, +60 or -60 seconds"),
    Command("pause", "", "pause, or go on"),
    Command("help", "", "keys, commands, what the source cannot see"),
    Command("quit", "", "quit; q as well"),
)
BY_NAME: Mapping[str, Command] = MappingProxyType({command.name: command for command in COMMANDS})
SHORT: Mapping[str, str] = MappingProxyType({"q": "quit", "q!": "quit", "qa": "quit", "h": "help", "e": "events"})


@dataclass(frozen=True, slots=True)
class Written:
    """A command that was read: its name, and the words behind it."""

    name: str
    words: str = ""


@dataclass(frozen=True, slots=True)
class Names:
    """What may be completed, by kind: column, group, heat, gpu, job, user, counter, kind."""

    by_kind: Mapping[str, Sequence[str]] = field(default_factory=dict)


def parse(line: str) -> Written:
    """Return the command of a line; its name may be cut short as long as it is one.

    >>> parse("sort power"), parse("int 5"), parse("q")
    (Written(name='sort', words='power'), Written(name='interval', words='5'), Written(name='quit', words=''))

    Errors: UsageError for no command, several, words that are missing or too many.
    """
    name, _, words = line.strip().lstrip(":").strip().partition(" ")
    words = words.strip()
    command = _find(name)
    if command.takes and not words and not command.optional:
        raise UsageError(
            f":{command.name} takes a {command.takes}", do=f"write :{command.name} {command.takes.upper()}"
        )
    if words and not command.takes:
        raise UsageError(f":{command.name} takes nothing", do=f"write :{command.name}")
    return Written(command.name, words)


def completions(line: str, names: Names) -> list[str]:
    """Return the lines that `line` may become: its last word completed.

    >>> completions("so", Names()), completions("sort po", Names({"column": ["power", "real"]}))
    (['sort '], ['sort power'])
    """
    head, found, last = line.rpartition(" ")
    if not found:
        return [f"{command.name} " if command.takes else command.name for command in COMMANDS if _begins(command, line)]
    name = line.split(" ", 1)[0]
    command = BY_NAME.get(SHORT.get(name, name))
    if command is None:
        return []
    sign = "-" if last.startswith("-") and command.takes == "column" else ""
    if command.takes == "filter":
        return [f"{head} {word}" for word in filter_words(last, names)]
    words = names.by_kind.get(command.takes, ())
    return [f"{head} {sign}{word}" for word in words if word.lower().startswith(last[len(sign) :].lower())]


def filter_words(word: str, names: Names) -> list[str]:
    """Return what one term of a filter may become: a column and its sign, or the names behind them.

    >>> filter_words("user=a", Names({"user": ["ana", "bo"]}))
    ['user=ana']
    """
    column, sign, begun = word.partition("=")
    if not sign:
        texts = [f"{name}=" for name in names.by_kind.get("text", ())]
        return [one for one in (*texts, *names.by_kind.get("number", ())) if one.startswith(word.lower())]
    column = column.removesuffix("!")
    quoted = (f"'{name}'" if " " in name else name for name in names.by_kind.get(column, ()))
    head = word[: len(word) - len(begun)]
    return [f"{head}{name}" for name in quoted if name.strip("'").lower().startswith(begun.strip("'").lower())]


def completed(line: str, found: Sequence[str]) -> str:
    """Return the line as far as all that it may become agree.

    >>> completed("s", ["sort ", "speed "]), completed("so", ["sort "])
    ('s', 'sort ')
    """
    if not found:
        return line
    shortest = min(found, key=len)
    for place, letter in enumerate(shortest):
        if any(one[place] != letter for one in found):
            return shortest[:place] if place > len(line) else line
    return shortest


def _begins(command: Command, begun: str) -> bool:
    return command.name.startswith(begun)


def _find(name: str) -> Command:
    if not name:
        raise UsageError("no command is written", do="Tab shows those there are")
    name = SHORT.get(name, name)
    if name in BY_NAME:
        return BY_NAME[name]
    found = [command for command in COMMANDS if command.name.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f":{name} may be {' or '.join(command.name for command in found)}")
    close = difflib.get_close_matches(name, list(BY_NAME), n=1, cutoff=0.5)
    raise UsageError(f"no command :{name}", do=f"did you mean :{close[0]}?" if close else "Tab shows those there are")
