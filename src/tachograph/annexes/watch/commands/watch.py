"""`tachograph watch`: GPUs live: on a screen, as a table, JSON or CSV."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from tachograph.catalog.errors import UsageError
from tachograph.catalog.units import real_number, whole_number
from tachograph.cli import narrate, output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, add_raw, configuration_of

if TYPE_CHECKING:
    from tachograph.annexes.watch.live.discovery import SourceRequest
    from tachograph.annexes.watch.live.monitor import Monitor
    from tachograph.annexes.watch.live.snapshot import LiveSource
    from tachograph.annexes.watch.live.view import FleetView
    from tachograph.catalog.arrays import Floats
    from tachograph.catalog.config import Configuration
    from tachograph.judge.workload.settings import WorkloadSettings

LEAST_S = 0.1  # DCGM and GPM update no faster
MOST_S = 3600.0
AGAIN_S = 0.3  # between the two polls of --once
FIRST_S = 3.5  # --once waits so long for values that a source reports late: dmon at its second tick
_UNBOUNDED = 100_000  # characters of a line without a terminal
_SOURCES = ("nvml", "dcgm-exporter", "dmon", "prometheus", "pm-sampling")
_PRESETS = ("ai", "hpc", "mem")
_CLASSIFIERS = ("default", "reference")


def add_arguments(parser: Parser) -> None:
    """Declare source, GPUs, format, and workload classifier."""
    source = parser.add_argument_group("source (default: the best available, named on stderr)")
    source.add_argument("--source", choices=_SOURCES, help="kind of the source")
    origin = source.add_mutually_exclusive_group()
    origin.add_argument(
        "--url",
        action="append",
        default=[],
        help="an exporter's address; hostlist allowed; repeatable",
    )
    origin.add_argument(
        "--recording", metavar="PATH", help="the last instant of a recording or a lake, once"
    )
    origin.add_argument("--simulate", type=whole_number(1), metavar="N", help="N simulated GPUs")
    gpus = parser.add_argument_group(
        "GPUs (default: those of your job; outside of a job all of this node)"
    )
    which = gpus.add_mutually_exclusive_group()
    which.add_argument("--gpus", metavar="LIST", help="0,1,3-5, NODE:0, UUIDs, PCI addresses")
    which.add_argument("--job", metavar="ID", help="GPUs of a job, on all its nodes")
    which.add_argument(
        "--all",
        action="store_true",
        help="all GPUs; of all nodes where [[sources]] name Prometheus or exporters",
    )
    form = parser.add_argument_group("format (default: a screen)")
    form.add_argument(
        "--once",
        action="store_true",
        help="print one table, or one round of --json or --csv, and exit",
    )
    form.add_argument(
        "--json",
        action="store_true",
        help="a list of objects: one line per round; with --once indented",
    )
    form.add_argument(
        "--csv",
        nargs="?",
        const="",
        metavar="COLUMNS",
        help="a line per GPU and round: all columns, or names with commas",
    )
    add_raw(form)
    form.add_argument(
        "--interval",
        type=real_number(LEAST_S, MOST_S),
        metavar="SECONDS",
        help="seconds between polls (default 1)",
    )
    judged = parser.add_argument_group(
        "workload classifier (default: [workload] of the configuration)"
    )
    judged.add_argument(
        "--classifier", choices=_CLASSIFIERS, help="reference: the rules as published"
    )
    judged.add_argument("--preset", choices=_PRESETS, help="weights of real utilisation")
    judged.add_argument(
        "--weights", metavar="LIST", help="weights as numbers: sm=3,tensor=3,dram=2,gr=1"
    )


def run(arguments: Arguments) -> int:
    """Show GPUs until the user or the source ends it."""
    from tachograph.annexes.watch.live.discovery import choose_source
    from tachograph.annexes.watch.live.render import csv_columns

    columns = None if arguments.csv is None else csv_columns(arguments.csv)
    _check(arguments)
    configuration = configuration_of(arguments)
    settings = _settings(arguments, configuration)
    if arguments.recording is not None:
        arguments.once = True  # it has one instant
    request = _request(arguments, configuration)
    source = choose_source(configuration, request)
    printed = arguments.once or arguments.json or columns is not None
    try:
        if not printed:
            _check_terminal()
        _narrate_source(source, Narrator.of(arguments))
        if not printed:
            return _on_screen(source, arguments, configuration, settings)
        return _print(source, arguments, configuration, settings, columns)
    finally:
        source.close()


def _check(arguments: Arguments) -> None:
    """Reject options that exclude each other, before any poll."""
    if arguments.json and arguments.csv is not None:
        raise UsageError("--json excludes --csv", do="give one of them")
    if arguments.source and (arguments.recording is not None or arguments.simulate is not None):
        raise UsageError("--source excludes --recording and --simulate", do="leave it out")


def _check_terminal() -> None:
    """Reject a screen without a terminal; a missing source is reported first."""
    if not output.on_terminal():
        raise UsageError("the screen needs a terminal", do="give --once, --json or --csv")
    if not narrate.on_terminal():
        raise UsageError(
            "the screen is drawn on stderr, which is not a terminal",
            do="give --once, --json or --csv",
        )


def _request(arguments: Arguments, configuration: Configuration) -> SourceRequest:
    from tachograph.annexes.watch.live.discovery import request_of

    usual = request_of(arguments, interval_s=_interval_s(arguments, configuration))
    return replace(
        usual, job=arguments.job, everything=arguments.all, recording=arguments.recording
    )


def _interval_s(arguments: Arguments, configuration: Configuration) -> float:
    return float(arguments.interval or max(LEAST_S, configuration.watch.interval_s))


def _settings(arguments: Arguments, configuration: Configuration) -> WorkloadSettings:
    """Settings of the workload classifier: the configuration, overridden by options."""
    import msgspec

    from tachograph.judge.workload.settings import REFERENCE, settings_of

    overrides: dict[str, object] = {}
    if configuration.workload.preset == REFERENCE:  # rules and weights can be replaced apart
        overrides |= {"preset": "ai", "classifier": REFERENCE}
    if arguments.classifier:
        overrides["classifier"] = arguments.classifier
    if arguments.preset:
        overrides |= {"preset": arguments.preset, "weights": {}}
    if arguments.weights is not None:
        if arguments.preset:
            raise UsageError("--preset excludes --weights", do="give one of them")
        overrides["weights"] = _weights(arguments.weights)
    return settings_of(msgspec.structs.replace(configuration.workload, **overrides))


def _weights(written: str) -> dict[str, float]:
    weights: dict[str, float] = {}
    for part in written.split(","):
        name, _, value = part.partition("=")
        try:
            weights[name.strip()] = float(value)
        except ValueError:
            raise UsageError(
                f"invalid weight '{part}'", where="--weights", do="write sm=3,tensor=3,dram=2,gr=1"
            ) from None
    return weights


def _narrate_source(source: LiveSource, narrator: Narrator) -> None:
    """Print the source and its unsupported counters."""
    from tachograph.annexes.watch.live.unsupported import unsupported_summary

    about = source.about
    narrator.say(about.sentence)
    for line in unsupported_summary(about):
        narrator.say(f"  {line}")


def _on_screen(
    source: LiveSource,
    arguments: Arguments,
    configuration: Configuration,
    settings: WorkloadSettings,
) -> int:
    from tachograph.annexes.watch.tui.app import WatchApp

    # Textual draws on stderr, which is a terminal.
    app = WatchApp(
        source,
        interval_s=_interval_s(arguments, configuration),
        settings=settings,
        history_s=configuration.watch.history_s,
        job=arguments.job,
        configuration=configuration,
    )
    return app.run() or 0


def _print(
    source: LiveSource,
    arguments: Arguments,
    configuration: Configuration,
    settings: WorkloadSettings,
    columns: tuple[str, ...] | None,
) -> int:
    """Print rounds one by one, or a single one."""
    from tachograph.annexes.watch.live.monitor import Monitor
    from tachograph.annexes.watch.live.render import csv_header, real_definition
    from tachograph.annexes.watch.live.view import GpuHistory

    interval_s = _interval_s(arguments, configuration)
    monitor = Monitor(source.about, settings=settings, history=GpuHistory(capacity=2))
    narrator = Narrator.of(arguments)
    if columns is not None:
        output.print_data(csv_header(columns))
        output.flush()
    before, due = None, time.monotonic()
    while True:
        view = _poll(source, monitor)
        until = time.monotonic() + FIRST_S
        moves = arguments.recording is None
        while (
            arguments.once
            and moves
            and time.monotonic() < until
            and _needs_another_poll(view, columns)
        ):
            time.sleep(min(interval_s, AGAIN_S))
            before, view = view, _poll(source, monitor)
        if arguments.once and columns is None and not arguments.json:
            narrator.say(f"  {real_definition(settings.weights)}")
        _print_round(view, before, arguments, settings, columns)
        # Nothing reported before a first poll.
        _narrate_problems(view, None if arguments.once else before, narrator)
        if arguments.once or any(problem.fatal for problem in view.snapshot.problems):
            return 0
        before, due = view, max(due + interval_s, time.monotonic())  # missed rounds are skipped
        time.sleep(max(0.0, due - time.monotonic()))


def _poll(source: LiveSource, monitor: Monitor) -> FleetView:
    snapshot = source.read()
    return monitor.step(snapshot, source.about)


def _needs_another_poll(view: FleetView, columns: tuple[str, ...] | None) -> bool:
    """Return whether values are missing that need two polls, such as rates."""
    from tachograph.annexes.watch.live.render import OF_TWO_POLLS
    from tachograph.judge.workload.classes import DECIDING

    made_of_two = columns is None or OF_TWO_POLLS & set(columns)
    supported = [name for name in DECIDING if name not in view.about.unsupported]
    counted = made_of_two and "pcie_replays" in view.snapshot.values
    return bool(counted and _nothing(view.errors.get("pcie_replays"))) or any(
        _nothing(view.snapshot.column(name)) for name in supported
    )


def _nothing(values: Floats | None) -> bool:
    return values is None or all(value != value for value in values.tolist())


def _print_round(
    view: FleetView,
    before: FleetView | None,
    arguments: Arguments,
    settings: WorkloadSettings,
    columns: tuple[str, ...] | None,
) -> None:
    from tachograph.annexes.watch.live import render

    if columns is not None:
        rows = range(len(view.snapshot.gpus))
        output.print_data(
            "".join(render.csv_row(view, row, columns, before, raw=arguments.raw) for row in rows)
        )
    elif arguments.json and arguments.once:
        output.print_json(render.json_rows(view, settings))
    elif arguments.json:
        output.print_json(render.json_rows(view, settings), indented=False)
    else:
        output.print_text(render.text_table(view, width=output.width(_UNBOUNDED)))
    output.flush()


def _narrate_problems(view: FleetView, before: FleetView | None, narrator: Narrator) -> None:
    """Report problems that are new."""
    earlier = () if before is None else before.snapshot.problems
    for problem in view.snapshot.problems:
        if problem not in earlier:
            narrator.say(problem.sentence)
