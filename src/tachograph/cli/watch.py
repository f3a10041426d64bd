"""`tachograph watch`: how GPUs are now, on a screen that goes on, as a table, as JSON, as CSV."""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from tachograph.catalog.errors import UsageError
from tachograph.catalog.units import plural, text
from tachograph.cli import narrate, output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, live_selection

if TYPE_CHECKING:
    from tachograph.catalog.arrays import Floats
    from tachograph.catalog.config import Configuration
    from tachograph.judge.workload.settings import WorkloadSettings
    from tachograph.live.discovery import SourceRequest
    from tachograph.live.monitor import Monitor
    from tachograph.live.selection import SelectedReplay
    from tachograph.live.snapshot import LiveSource
    from tachograph.live.view import View

LEAST_S = 0.1  # counters of DCGM and GPM are not new more often
MOST_S = 3600.0
AGAIN_S = 0.3  # between the two looks of --once
FIRST_S = 3.5  # so long --once waits for values that a source does not tell at once: dmon does at its second tick
_EARLY_S = 60.0  # before the end of a recording: then it is told
_SOURCES = ("nvml", "dcgm-exporter", "dmon", "prometheus")
_PRESETS = ("ai", "hpc", "mem")
_CLASSIFIERS = ("default", "reference")


def add_arguments(parser: Parser) -> None:
    """Declare source, GPUs, form, and how they are judged."""
    source = parser.add_argument_group("where it comes from (default: the best there is; a line says which)")
    source.add_argument("--source", choices=_SOURCES, help="this one")
    given = source.add_mutually_exclusive_group()
    given.add_argument("--url", action="append", default=[], help="an exporter's address; hostlist allowed; repeatable")
    given.add_argument("--recording", metavar="PATH", help="a recording, or a lake, played back")
    given.add_argument("--simulate", type=int, metavar="N", help="N GPUs that do not exist, to look around")
    source.add_argument(
        "--speed", type=_positive, default=1.0, metavar="X", help="of a recording: 10 is ten times as fast"
    )
    gpus = parser.add_argument_group("which GPUs (default: those of your job, outside of one all of this node)")
    which = gpus.add_mutually_exclusive_group()
    which.add_argument("--gpus", metavar="LIST", help="0,1,3-5, NODE:0, UUIDs, PCI addresses")
    which.add_argument("--job", metavar="ID", help="those of a job, on all its nodes")
    which.add_argument(
        "--all", action="store_true", help="all, of all nodes where [[sources]] name Prometheus or exporters"
    )
    form = parser.add_argument_group("in which form (default: a screen)")
    form.add_argument(
        "--once", action="store_true", help="print a table of now, or one round of --json or --csv, and end"
    )
    form.add_argument(
        "--json", action="store_true", help="a list of objects: one line a round; --once: for people, too"
    )
    form.add_argument(
        "--csv", nargs="?", const="", metavar="COLUMNS", help="a line per GPU and round: all, or names with commas"
    )
    form.add_argument("--interval", type=_interval, metavar="SECONDS", help="between two looks [watch.interval_s]")
    judged = parser.add_argument_group("how they are judged (default: [workload] of the configuration)")
    judged.add_argument("--classifier", choices=_CLASSIFIERS, help="reference: the rules as published")
    judged.add_argument("--preset", choices=_PRESETS, help="weights of real utilisation")
    judged.add_argument("--weights", metavar="LIST", help="the same by hand: sm=3,tensor=3,dram=2,gr=1")


def run(arguments: Arguments) -> int:
    """Show until the user, or the source, ends it."""
    from tachograph.catalog import config
    from tachograph.live.discovery import choose_source
    from tachograph.live.render import csv_columns
    from tachograph.live.selection import SelectedReplay

    columns = None if arguments.csv is None else csv_columns(arguments.csv)
    _check(arguments)
    configuration = config.load(arguments.config)
    settings = _settings(arguments, configuration)
    wanted = _wanted(arguments, configuration)
    source = choose_source(configuration, wanted)
    printed = arguments.once or arguments.json or columns is not None
    try:
        if not printed:
            _check_terminal()
        _tell(source, Narrator.of(arguments))
        if arguments.once and isinstance(source, SelectedReplay):
            source.to_last(arguments.job)
            Narrator.of(arguments).say(_instant(source, of_job=arguments.job is not None))
        if not printed:
            return _on_screen(source, arguments, configuration, settings)
        return _print(source, arguments, configuration, settings, columns)
    finally:
        source.close()


def _check(arguments: Arguments) -> None:
    """Refuse what does not fit together before anything is asked."""
    if arguments.json and arguments.csv is not None:
        raise UsageError("--json and --csv are both given", do="give one of them")
    if arguments.speed != 1.0 and arguments.recording is None:
        raise UsageError("--speed is of a recording", do="name one with --recording")
    if arguments.source and (arguments.recording is not None or arguments.simulate is not None):
        raise UsageError("--source names another source", do="leave it out")


def _check_terminal() -> None:
    """Refuse to draw a screen where there is none; a source that is missing is told first."""
    if not output.on_terminal():
        raise UsageError("there is no terminal to show a screen on", do="give --once, --json or --csv")
    if not narrate.on_terminal():
        raise UsageError("the screen is drawn on stderr, which is no terminal", do="give --once, --json or --csv")


def _wanted(arguments: Arguments, configuration: Configuration) -> SourceRequest:
    usual = live_selection(arguments, interval_s=_interval_s(arguments, configuration))
    return replace(usual, everything=arguments.all, recording=arguments.recording, speed=arguments.speed)


def _interval_s(arguments: Arguments, configuration: Configuration) -> float:
    return float(arguments.interval or max(LEAST_S, configuration.watch.interval_s))


def _settings(arguments: Arguments, configuration: Configuration) -> WorkloadSettings:
    """How GPUs are judged: the configuration, and the options over it."""
    import msgspec

    from tachograph.judge.workload.settings import settings_of

    chosen: dict[str, object] = {}
    if arguments.classifier:
        chosen["classifier"] = arguments.classifier
    if arguments.preset:
        chosen |= {"preset": arguments.preset, "weights": {}}
    if arguments.weights is not None:
        if arguments.preset:
            raise UsageError("--preset and --weights are both given", do="give one of them")
        chosen["weights"] = _weights(arguments.weights)
    return settings_of(msgspec.structs.replace(configuration.workload, **chosen))


def _weights(written: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in written.split(","):
        name, _, value = part.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            raise UsageError(f"--weights: {part!r} is no weight", do="write sm=3,tensor=3,dram=2,gr=1") from None
    return found


def _tell(source: LiveSource, narrator: Narrator) -> None:
    """Say what is shown, and what it cannot see."""
    from tachograph.live.unsupported import unsupported_lines

    about = source.about
    narrator.say(about.sentence)
    for line in unsupported_lines(about):
        narrator.say(f"  {line}")


def _instant(source: SelectedReplay, *, of_job: bool) -> str:
    """When it is on a recording that stands still, how long before its end, and how many GPUs told something then."""
    now = source.read()
    telling, count = sum(t == t for t in now.measured.tolist()), len(now.gpus)
    early_s = source.end - now.t
    before = f", {text(early_s, 's')} before its end" if early_s > _EARLY_S and not of_job else ""
    some = "" if telling == count else f"; {telling:,} of {plural(count, 'GPU')} told something"
    return f"as it was at {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(now.t))} UTC{before}{some}"


def _on_screen(
    source: LiveSource, arguments: Arguments, configuration: Configuration, settings: WorkloadSettings
) -> int:
    from tachograph.tui import app

    return app.run(
        source,
        interval_s=_interval_s(arguments, configuration),
        settings=settings,
        history_s=configuration.watch.history_s,
        job=arguments.job,
        configuration=configuration,
    )


def _print(
    source: LiveSource,
    arguments: Arguments,
    configuration: Configuration,
    settings: WorkloadSettings,
    columns: tuple[str, ...] | None,
) -> int:
    """Print one round after the other, or one."""
    from tachograph.live.monitor import Monitor
    from tachograph.live.render import csv_header
    from tachograph.live.view import History

    interval_s = _interval_s(arguments, configuration)
    monitor = Monitor(source.about, settings=settings, history=History(capacity=2), keep_events=0)
    narrator = Narrator.of(arguments)
    if columns is not None:
        output.print_text(csv_header(columns))
        output.flush()
    before, due = None, time.monotonic()
    while True:
        view = _look(source, monitor)
        until = time.monotonic() + FIRST_S
        moves = not getattr(source, "paused", False)  # the last instant of a recording stays as it is
        while arguments.once and moves and time.monotonic() < until and _needs_another_look(view, columns):
            time.sleep(min(interval_s, AGAIN_S))
            before, view = view, _look(source, monitor)
        _print_round(view, before, arguments, settings, columns)
        _tell_problems(view, None if arguments.once else before, narrator)  # of a first look nothing was told
        if arguments.once or any(problem.fatal for problem in view.snapshot.problems):
            return 0
        before, due = view, max(due + interval_s, time.monotonic())  # what was missed is not made up for
        time.sleep(max(0.0, due - time.monotonic()))


def _look(source: LiveSource, monitor: Monitor) -> View:
    snapshot = source.read()
    return monitor.step(snapshot, source.about)


def _needs_another_look(view: View, columns: tuple[str, ...] | None) -> bool:
    """Whether something is not told yet that takes two looks: rates, health (new replays), the first values of some."""
    from tachograph.live.discovery import DECIDING
    from tachograph.live.render import OF_TWO_LOOKS

    made_of_two = columns is None or OF_TWO_LOOKS & set(columns)
    told = [name for name in DECIDING if name not in view.about.blind]
    counted = made_of_two and view.replays is not None and "pcie_replays" in view.snapshot.values
    return bool(counted and _nothing(view.replays)) or any(_nothing(view.snapshot.column(name)) for name in told)


def _nothing(values: Floats | None) -> bool:
    return values is None or all(value != value for value in values.tolist())


def _print_round(
    view: View, before: View | None, arguments: Arguments, settings: WorkloadSettings, columns: tuple[str, ...] | None
) -> None:
    import msgspec

    from tachograph.live import render

    if columns is not None:
        output.print_text("".join(render.csv_row(view, row, columns, before) for row in range(len(view.snapshot.gpus))))
    elif arguments.json and arguments.once:
        output.print_json(render.json_rows(view, settings))
    elif arguments.json:
        output.print_text(msgspec.json.encode(render.json_rows(view, settings)).decode() + "\n")
    else:
        output.print_text(render.text_table(view, width=output.width(_UNBOUNDED)))
    output.flush()


_UNBOUNDED = 100_000  # characters of a line where no terminal says otherwise


def _tell_problems(view: View, before: View | None, narrator: Narrator) -> None:
    """Say what went wrong, when it is news."""
    known = () if before is None else before.snapshot.problems
    for problem in view.snapshot.problems:
        if problem not in known:
            narrator.say(problem.sentence)


def _positive(written: str) -> float:
    """A number above 0, as argparse wants it."""
    try:
        number = float(written)
    except ValueError:
        number = 0.0
    if not (number > 0 and math.isfinite(number)):
        raise argparse.ArgumentTypeError(f"{written} is no number above 0")
    return number


def _interval(written: str) -> float:
    number = _positive(written)
    if number < LEAST_S:
        raise argparse.ArgumentTypeError(f"{written} s is less than {LEAST_S:g} s: counters are not new more often")
    if number > MOST_S:
        raise argparse.ArgumentTypeError(f"{written} s is more than {MOST_S:g} s")
    return number
