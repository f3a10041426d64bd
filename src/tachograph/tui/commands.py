"""Commands behind `:`: their names, arguments, completion, and actions.

:sort power        :filter user=ana sm<20        :gpu nid001:3        :interval 5
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, cast

from tachograph.catalog.counters import COUNTER_NAMES as COUNTERS
from tachograph.catalog.errors import NotFoundError, UsageError
from tachograph.catalog.suggestions import did_you_mean
from tachograph.judge.health import STATES
from tachograph.judge.workload.classes import WORKLOAD_CLASSES
from tachograph.live.fleet_rows import COLUMN_ALIASES, GROUPS, NUMBERS, TEXTS, parse_filter
from tachograph.live.snapshot import GpuId, ReplaySource
from tachograph.live.view import EventKind
from tachograph.tui.fleet_table import SORTED_BY
from tachograph.tui.heat import BY_CLASS
from tachograph.tui.screens import TakesArguments

if TYPE_CHECKING:
    from textual.message import Message
    from textual.widget import Widget

    from tachograph.live.feed import ViewFeed
    from tachograph.live.view import View
    from tachograph.tui.fleet import FleetScreen


@dataclass(frozen=True, slots=True)
class ScreenCommand:
    """One command. takes: a kind of `CompletionNames`, "" for no argument; optional: it may be missing."""

    name: str
    takes: str
    text: str
    optional: bool = False


COMMANDS: tuple[ScreenCommand, ...] = (
    ScreenCommand("sort", "column", "sort the fleet; -power reverses the order"),
    ScreenCommand(
        "group", "group", "group the fleet by node, job, user or class; without one: no groups", optional=True
    ),
    ScreenCommand("filter", "filter", "show only matching GPUs; without one: all", optional=True),
    ScreenCommand("search", "filter", "move the cursor to the next matching GPU"),
    ScreenCommand("heat", "heat", "heat map by class, a number or a counter", optional=True),
    ScreenCommand("table", "", "the fleet as a table"),
    ScreenCommand("gpu", "gpu", "focus on a GPU"),
    ScreenCommand("job", "job", "all GPUs of a job", optional=True),
    ScreenCommand("user", "user", "GPUs of one user"),
    ScreenCommand("plot", "counter", "counters over time", optional=True),
    ScreenCommand("events", "kind", "events, of one type: xid, health", optional=True),
    ScreenCommand("fleet", "", "all GPUs"),
    ScreenCommand("interval", "seconds", "poll interval"),
    ScreenCommand("speed", "factor", "recording: playback speed"),
    ScreenCommand("seek", "time", "recording: continue from 14:05:30, an ISO time, +60 or -60 seconds"),
    ScreenCommand("pause", "", "pause or continue"),
    ScreenCommand("help", "", "keys, commands, unsupported counters"),
    ScreenCommand("quit", "", "quit; also q"),
)
COMMANDS_BY_NAME: Mapping[str, ScreenCommand] = MappingProxyType({command.name: command for command in COMMANDS})
COMMAND_ALIASES: Mapping[str, str] = MappingProxyType(
    {"q": "quit", "q!": "quit", "qa": "quit", "h": "help", "e": "events"}
)


@dataclass(frozen=True, slots=True)
class WrittenCommand:
    """A parsed command: its name and arguments."""

    name: str
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class CompletionNames:
    """Candidates of completion, by kind: column, group, heat, gpu, job, user, counter, kind."""

    by_kind: Mapping[str, Sequence[str]] = field(default_factory=dict)


def parse_command(line: str) -> WrittenCommand:
    """Return the command of a line; its name may be abbreviated while unique.

    >>> parse_command("sort power"), parse_command("q").name, parse_command("int 5").name
    (WrittenCommand(name='sort', arguments='power'), 'quit', 'interval')

    Errors: UsageError for an unknown or ambiguous command, for missing or too many arguments.
    """
    name, _, arguments = line.strip().lstrip(":").strip().partition(" ")
    arguments = arguments.strip()
    command = _find(name)
    if command.takes and not arguments and not command.optional:
        raise UsageError(
            f":{command.name} takes a {command.takes}", do=f"write :{command.name} {command.takes.upper()}"
        )
    if arguments and not command.takes:
        raise UsageError(f":{command.name} takes no argument", do=f"write :{command.name}")
    return WrittenCommand(command.name, arguments)


def completions(line: str, names: CompletionNames) -> list[str]:
    """Return the completions of `line`: its last word completed.

    >>> completions("so", CompletionNames()), completions("sort po", CompletionNames({"column": ["power", "real"]}))
    (['sort '], ['sort power'])
    """
    head, found, last = line.rpartition(" ")
    if not found:
        return [f"{command.name} " if command.takes else command.name for command in COMMANDS if _begins(command, line)]
    name = line.split(" ", 1)[0]
    command = COMMANDS_BY_NAME.get(COMMAND_ALIASES.get(name, name))
    if command is None:
        return []
    sign = "-" if last.startswith("-") and command.takes == "column" else ""
    if command.takes == "filter":
        return [f"{head} {word}" for word in filter_words(last, names)]
    candidates = names.by_kind.get(command.takes, ())
    return [f"{head} {sign}{word}" for word in candidates if word.lower().startswith(last[len(sign) :].lower())]


def filter_words(word: str, names: CompletionNames) -> list[str]:
    """Return the completions of one term of a filter: a column and its sign, or the names after them.

    >>> filter_words("user=a", CompletionNames({"user": ["ana", "bo"]}))
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
    """Return the line up to the common prefix of its completions.

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


def _begins(command: ScreenCommand, begun: str) -> bool:
    return command.name.startswith(begun)


def _find(name: str) -> ScreenCommand:
    if not name:
        raise UsageError("no command", do="Tab lists them")
    name = COMMAND_ALIASES.get(name, name)
    if name in COMMANDS_BY_NAME:
        return COMMANDS_BY_NAME[name]
    found = [command for command in COMMANDS if command.name.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f":{name} may be {' or '.join(command.name for command in found)}")
    raise UsageError(
        f"no command :{name}", do=did_you_mean(name, COMMANDS_BY_NAME, otherwise="Tab lists them", form=":{}")
    )


_STEP = re.compile(r"^([+-]\d+(?:\.\d*)?)\s*(s|min|m|h|)$")
_SIZES = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_CLOCK = re.compile(r"^(\d{1,2}):(\d\d)(?::(\d\d))?$")


def seconds_of(written: str, *, now: float, start: float, end: float) -> float:
    """Return a written time, in seconds since 1970; times without a zone are local, as they are shown.

    A clock time is on the day that puts it into the recording. now: the shown instant.

    >>> seconds_of("+60", now=1000.0, start=0.0, end=5000.0), seconds_of("-5min", now=1000.0, start=0.0, end=5000.0)
    (1060.0, 700.0)

    Errors: UsageError for an invalid time, and for one outside of the recording; a step stops at its ends.
    """
    text = written.strip()
    if step := _STEP.match(text):
        return min(max(start, now + float(step[1]) * _SIZES[step[2]]), end)
    try:
        found = _at(text, now)
        moments = [one.timestamp() for one in found]
    except (ValueError, OverflowError):
        raise UsageError(
            f"invalid time {written!r}", do="write 14:05:30, 2026-11-21T14:05:30, or +60 and -60 seconds"
        ) from None
    for moment in moments:
        if int(start) <= moment <= end + 1:
            return min(max(start, moment), end)
    first, last = (time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(t)) for t in (start, end))
    raise UsageError(f"{text} is not in the recording", do=f"write a time from {first} to {last}")


def _at(text: str, now: float) -> list[datetime]:
    """Possible instants: of a clock time this day, the one before and the next."""
    clock = _CLOCK.match(text)
    if clock is None:
        return [datetime.fromisoformat(text)]
    hour, minute, second = (int(part or 0) for part in clock.groups())
    local = datetime.fromtimestamp(now, UTC).astimezone().replace(tzinfo=None)
    day = local.replace(hour=hour, minute=minute, second=second, microsecond=0)
    return [day, day - timedelta(days=1), day + timedelta(days=1)]


class WatchProgram(Protocol):
    """The part of the app that commands use."""

    view: View | None
    feed: ViewFeed
    filter_before: str

    @property
    def seen(self) -> Widget:
        """The visible screen."""
        ...

    @property
    def fleet(self) -> Widget:
        """The fleet, the first of all screens."""
        ...

    def open(self, name: str, of: GpuId | str | None = None) -> None:
        """Show a screen."""
        ...

    def show_view(self) -> None:
        """Pass the view to the visible screen."""
        ...

    def pace(self, interval_s: float) -> None:
        """Set the poll interval."""
        ...

    def play(self, speed: float) -> None:
        """Set the speed of a recording."""
        ...

    def seek(self, t: float) -> None:
        """Continue from another time of a recording."""
        ...

    def action_pause(self) -> None:
        """Pause or continue."""
        ...

    def action_help(self) -> None:
        """Show or hide the help."""
        ...

    def exit(self, result: int | None = None) -> None:
        """End with an exit code."""
        ...


def perform_command(app: WatchProgram, line: str) -> None:
    """Execute a line. Errors: UsageError, NotFoundError."""
    written = parse_command(line)
    COMMAND_ACTIONS[written.name](app, written.arguments)


def completion_names(app: WatchProgram) -> CompletionNames:
    """Return the current candidates of completion."""
    view = app.view
    reported = tuple(view.snapshot.values) if view else ()
    allocations = view.snapshot.allocations.values() if view else ()
    jobs = sorted({job for allocation in allocations for job in allocation.jobs})
    users = sorted({allocation.user for allocation in allocations if allocation.user})
    gpus = view.snapshot.gpus if view else ()
    nodes = list(dict.fromkeys(gpu.node for gpu in gpus))
    by_kind = {
        "column": (*SORTED_BY, "age", *reported),
        "group": GROUPS,
        "heat": (BY_CLASS, *NUMBERS, *reported),
        "counter": (*dict.fromkeys((*COLUMN_ALIASES, "mem", "nvlink", *(reported or COUNTERS))),),
        "gpu": [gpu.name for gpu in gpus],
        "job": jobs,
        "user": users,
        "node": nodes,
        "class": WORKLOAD_CLASSES,
        "health": STATES,
        "kind": tuple(EventKind),
        "text": TEXTS,
        "number": (*NUMBERS, *reported),
    }
    return CompletionNames(by_kind)


def preview_line(app: WatchProgram, message: Message) -> str:
    """Return the hint while a line is written: its completions, or its error. A filter applies at once."""
    kind, text = getattr(message, "kind", ""), getattr(message, "text", "")
    candidates: list[str] = getattr(message, "candidates", [])
    if kind in ("filter", "search"):
        try:
            if kind == "filter":
                _fleet(app).filter_by(text)
            else:
                parse_filter(text)
        except UsageError as error:
            if kind == "filter":
                _fleet(app).filter_by(app.filter_before)
            return str(error)
    return "  ".join(line.rpartition(" ")[2] or line for line in map(str.strip, candidates))


def _fleet(app: WatchProgram) -> FleetScreen:
    """The fleet, brought to the front."""
    app.open("fleet")
    return cast("FleetScreen", app.fleet)


def _sort(app: WatchProgram, arguments: str) -> None:
    _fleet(app).sort_by(arguments.lstrip("-"), reverse=arguments.startswith("-"))


def _group(app: WatchProgram, arguments: str) -> None:
    _fleet(app).group_by(arguments)


def _filter(app: WatchProgram, arguments: str) -> None:
    _fleet(app).filter_by(arguments)


def _search(app: WatchProgram, arguments: str) -> None:
    if not _fleet(app).seek(arguments):
        raise NotFoundError(f"no GPU matches {arguments}")


def _heat(app: WatchProgram, arguments: str) -> None:
    _fleet(app).heat_by(arguments or BY_CLASS)


def _table(app: WatchProgram, arguments: str) -> None:
    _fleet(app).heat_by("")


def _user(app: WatchProgram, arguments: str) -> None:
    _fleet(app).filter_by(f"user='{arguments}'" if " " in arguments else f"user={arguments}")


def _gpu(app: WatchProgram, arguments: str) -> None:
    gpu = _named(app.view.snapshot.gpus if app.view else (), arguments)
    fleet = _fleet(app)
    fleet.go_to(gpu)
    app.open("focus", gpu)


def _named(gpus: tuple[GpuId, ...], name: str) -> GpuId:
    found = [gpu for gpu in gpus if gpu.name == name]
    if not found and len({gpu.node for gpu in gpus}) == 1:
        found = [gpu for gpu in gpus if gpu.name.partition(":")[2] == name]
    if not found:
        raise NotFoundError(f"no GPU {name}", do="Tab lists them")
    return found[0]


def _job(app: WatchProgram, arguments: str) -> None:
    jobs = completion_names(app).by_kind["job"]
    if arguments and not set(arguments.split(",")) <= set(jobs):
        raise NotFoundError(f"no job {arguments} holds one of these GPUs", do="Tab lists those that do")
    app.open("job", arguments or None)


def _plot(app: WatchProgram, arguments: str) -> None:
    if arguments:
        _open_with(app, "plot", arguments)
    else:
        app.open("plot")


def _events(app: WatchProgram, arguments: str) -> None:
    _open_with(app, "events", arguments)


def _open_with(app: WatchProgram, name: str, arguments: str) -> None:
    """Open a screen, and pass it the written arguments."""
    app.open(name)
    seen = app.seen
    if isinstance(seen, TakesArguments):
        app.show_view()  # it takes the names from a view
        seen.take(arguments)


def _interval(app: WatchProgram, arguments: str) -> None:
    app.pace(_positive(arguments, "interval"))


def _speed(app: WatchProgram, arguments: str) -> None:
    app.play(_positive(arguments, "speed"))


def _seek(app: WatchProgram, arguments: str) -> None:
    source = app.feed.source
    if not isinstance(source, ReplaySource):
        raise UsageError("only a recording can be moved to another time", do="start tachograph watch --recording PATH")
    now = app.view.snapshot.t if app.view else source.start
    app.seek(seconds_of(arguments, now=now, start=source.start, end=source.end))


def _positive(text: str, of: str) -> float:
    try:
        value = float(text.removesuffix("s").removesuffix("x"))
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"invalid {of} {text!r}", do=f"write a number above 0, for example :{of} 5")
    return value


def _opens(name: str) -> Callable[[WatchProgram, str], None]:
    return lambda app, arguments: app.open(name)


COMMAND_ACTIONS: Mapping[str, Callable[[WatchProgram, str], None]] = MappingProxyType(
    {
        "sort": _sort,
        "group": _group,
        "filter": _filter,
        "search": _search,
        "heat": _heat,
        "table": _table,
        "gpu": _gpu,
        "job": _job,
        "user": _user,
        "plot": _plot,
        "events": _events,
        "fleet": _opens("fleet"),
        "interval": _interval,
        "speed": _speed,
        "seek": _seek,
        "pause": lambda app, arguments: app.action_pause(),
        "help": lambda app, arguments: app.action_help(),
        "quit": lambda app, arguments: app.exit(0),
    }
)
