"""What commands do: each a function of the app and its words, in a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from tachograph.counters import NAMES as COUNTERS
from tachograph.errors import NotFoundError, UsageError
from tachograph.live.snapshot import Gpu
from tachograph.live.source import Replay
from tachograph.live.view import EventKind
from tachograph.tui.commands import Names, parse
from tachograph.tui.fleet_columns import SORTED_BY
from tachograph.tui.fleet_filter import parse as parse_filter
from tachograph.tui.fleet_rows import GROUPS, NUMBERS, SHORT, TEXTS
from tachograph.tui.heat import BY_CLASS
from tachograph.tui.screens import Takes
from tachograph.tui.seeking import seconds_of
from tachograph.workload.classes import CLASSES
from tachograph.workload.health import STATES

if TYPE_CHECKING:
    from textual.message import Message

    from tachograph.tui.app import WatchApp
    from tachograph.tui.fleet import FleetScreen


def perform(app: WatchApp, line: str) -> None:
    """Do what a line says. Errors: UsageError, NotFoundError."""
    written = parse(line)
    DONE[written.name](app, written.words)


def names_of(app: WatchApp) -> Names:
    """Return what may be completed now."""
    view = app.view
    told = tuple(view.snapshot.values) if view else ()
    holders = view.snapshot.holders.values() if view else ()
    jobs = sorted({job for holder in holders for job in holder.jobs})
    users = sorted({holder.user for holder in holders if holder.user})
    gpus = view.snapshot.gpus if view else ()
    nodes = list(dict.fromkeys(gpu.node for gpu in gpus))
    by_kind = {
        "column": (*SORTED_BY, "age", *told),
        "group": GROUPS,
        "heat": (BY_CLASS, *NUMBERS, *told),
        "counter": (*dict.fromkeys((*SHORT, "mem", "nvlink", *(told or COUNTERS))),),
        "gpu": [gpu.name for gpu in gpus],
        "job": jobs,
        "user": users,
        "node": nodes,
        "class": CLASSES,
        "health": STATES,
        "kind": tuple(EventKind),
        "text": TEXTS,
        "number": (*NUMBERS, *told),
    }
    return Names(by_kind)


def preview(app: WatchApp, message: Message) -> str:
    """Return what to say while a line is written: what it may become, or what is wrong. A filter holds at once."""
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


def _fleet(app: WatchApp) -> FleetScreen:
    """The fleet, brought to the front."""
    app.open("fleet")
    return cast("FleetScreen", app.fleet)


def _sort(app: WatchApp, words: str) -> None:
    _fleet(app).sort_by(words.lstrip("-"), reverse=words.startswith("-"))


def _group(app: WatchApp, words: str) -> None:
    _fleet(app).group_by(words)


def _filter(app: WatchApp, words: str) -> None:
    _fleet(app).filter_by(words)


def _search(app: WatchApp, words: str) -> None:
    if not _fleet(app).seek(words):
        raise NotFoundError(f"no GPU is {words}")


def _heat(app: WatchApp, words: str) -> None:
    _fleet(app).heat_by(words or BY_CLASS)


def _table(app: WatchApp, words: str) -> None:
    _fleet(app).heat_by("")


def _user(app: WatchApp, words: str) -> None:
    _fleet(app).filter_by(f"user='{words}'" if " " in words else f"user={words}")


def _gpu(app: WatchApp, words: str) -> None:
    gpu = _named(app.view.snapshot.gpus if app.view else (), words)
    fleet = _fleet(app)
    fleet.go_to(gpu)
    app.open("focus", gpu)


def _named(gpus: tuple[Gpu, ...], name: str) -> Gpu:
    found = [gpu for gpu in gpus if gpu.name == name]
    if not found and len({gpu.node for gpu in gpus}) == 1:
        found = [gpu for gpu in gpus if gpu.name.partition(":")[2] == name]
    if not found:
        raise NotFoundError(f"no GPU {name}", do="Tab shows those there are")
    return found[0]


def _job(app: WatchApp, words: str) -> None:
    jobs = names_of(app).by_kind["job"]
    if words and not set(words.split(",")) <= set(jobs):
        raise NotFoundError(f"no job {words} holds one of these GPUs", do="Tab shows those that do")
    app.open("job", words or None)


def _plot(app: WatchApp, words: str) -> None:
    if words:
        _open_with(app, "plot", words)
    else:
        app.open("plot")


def _events(app: WatchApp, words: str) -> None:
    _open_with(app, "events", words)


def _open_with(app: WatchApp, name: str, words: str) -> None:
    """Open a screen, and give it what was written."""
    app.open(name)
    seen = app.seen
    if isinstance(seen, Takes):
        app.show_view()  # it knows the names that are written from a view
        seen.take(words)


def _interval(app: WatchApp, words: str) -> None:
    app.pace(_positive(words, "interval"))


def _speed(app: WatchApp, words: str) -> None:
    app.play(_positive(words, "speed"))


def _seek(app: WatchApp, words: str) -> None:
    source = app.feed.source
    if not isinstance(source, Replay):
        raise UsageError("only a recording can be moved to another time", do="start tachograph watch --recording PATH")
    now = app.view.snapshot.t if app.view else source.start
    app.seek(seconds_of(words, now=now, start=source.start, end=source.end))


def _positive(words: str, of: str) -> float:
    try:
        value = float(words.removesuffix("s").removesuffix("x"))
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"{words!r} is no {of}", do=f"write a number above 0, for example :{of} 5")
    return value


def _opens(name: str) -> Callable[[WatchApp, str], None]:
    return lambda app, words: app.open(name)


DONE: Mapping[str, Callable[[WatchApp, str], None]] = MappingProxyType(
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
        "pause": lambda app, words: app.action_pause(),
        "help": lambda app, words: app.action_help(),
        "quit": lambda app, words: app.exit(0),
    }
)
