"""`tachograph collect`: keep a lake up to date: ask every configured source again and again, analyze, compact."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from tachograph.cli import narrate, output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser
from tachograph.cli.output import Heading
from tachograph.errors import InputError, LakeError, UsageError

if TYPE_CHECKING:
    from tachograph.collect.check import Checked
    from tachograph.collect.run import Plan
    from tachograph.collect.state import Status
    from tachograph.config import Configuration
    from tachograph.sources.feeds import FeedSettings


def add_arguments(parser: Parser) -> None:
    """Declare `--once`, `--check`, `--wait`."""
    parser.add_argument("--once", action="store_true", help="poll every source once, analyze, end (for cron)")
    parser.add_argument("--check", action="store_true", help="ask every source once, land nothing, tell what would be")
    parser.add_argument("--wait", action="store_true", help="where another process collects, begin when it ends")


def run(arguments: Arguments) -> int:
    """Collect until a signal says stop."""
    from tachograph import config

    if arguments.check and (arguments.once or arguments.wait):
        raise UsageError("--check goes with no other of --once, --wait", do="name one")
    configuration = config.load(arguments.config)
    location = config.lake_location(arguments.lake, configuration)
    plan = _plan(configuration, location, arguments)
    if arguments.check:
        return _check(plan, configuration, arguments)
    return _collect(plan, arguments)


def _plan(configuration: Configuration, location: str, arguments: Arguments) -> Plan:
    """Return the sources of the configuration, connected.

    Errors: ConfigError.
    """
    from tachograph.collect.reader import Source
    from tachograph.collect.run import Plan
    from tachograph.config import FILE_NAME
    from tachograph.lake import Lake
    from tachograph.sources.feeds import configured, load_feed

    def source_of(settings: FeedSettings) -> Source:
        connect = partial(load_feed(settings.source).connect, settings, configuration=configuration)
        return Source(settings.title, settings.every_s, connect(), connect)

    sources = [source_of(settings) for settings in configured(configuration, where=arguments.config or FILE_NAME)]
    options = ["--lake", location, "--quiet", *(["--config", arguments.config] if arguments.config else [])]
    return Plan(Lake(location), sources, configuration.collect, options)


def _collect(plan: Plan, arguments: Arguments) -> int:
    import os

    from tachograph.collect.notify import Notifier
    from tachograph.collect.run import collect

    notifier = Notifier.of(os.environ)
    say = Narrator.of(arguments).say
    done = collect(plan, tell=narrate.remark, say=say, once=arguments.once, wait=arguments.wait, notifier=notifier)
    if done is None:
        return 0
    if not arguments.once:
        say("stopped")
        return 0
    return _tell_once(done)


def _tell_once(status: Status) -> int:
    """Print what landed; return the exit code."""
    for name, source in status.sources.items():
        landed = ", ".join(f"{rows:,} {table}" for table, rows in source.rows.items() if rows) or "nothing new"
        output.print_text(f"{name}: {'failed' if source.failures else landed}\n")
    analysis = status.steps["analyze"]
    if analysis.runs:
        output.print_text(f"{'analysis failed' if analysis.failures else analysis.said}\n")
    if any(source.failures and source.errors.get("lake") for source in status.sources.values()) or analysis.failures:
        return LakeError.exit_code
    return InputError.exit_code if any(source.failures for source in status.sources.values()) else 0


def _check(plan: Plan, configuration: Configuration, arguments: Arguments) -> int:
    from tachograph.collect.check import check
    from tachograph.collect.state import utc_now

    checked = [check(source, plan.lake, now=utc_now()) for source in plan.sources]
    for source in plan.sources:
        source.feed.close()
    headings = (
        Heading("source"), Heading("every", right=True), Heading("from"), Heading("would land"), Heading("remarks"),
    )  # fmt: skip
    zone = configuration.site.time_zone
    rows = [_row(one, zone) for one in checked]
    output.print_table(headings, rows, title=f"Would collect into {plan.lake.location}", no_color=arguments.no_color)
    return InputError.exit_code if any(one.problem for one in checked) else 0


def _row(checked: Checked, zone: str) -> Sequence[str | None]:
    from tachograph.report.columns import local_time
    from tachograph.units import text

    known = [at for at in checked.watermarks.values() if at is not None]
    landing = ", ".join(f"{rows:,} {table}" for table, rows in checked.rows.items()) or "nothing"
    remarks = [checked.problem] if checked.problem else []
    remarks += ["and more"] if checked.more else []
    remarks += [f"{count:,} × {reason.replace('_', ' ')}" for reason, count in checked.rejects.items()]
    others = [f"{place}: {why}" for place, why in checked.unreachable.items() if why not in (checked.problem or "")]
    remarks += others[:3]
    begin = local_time(min(known), zone) if known else "the beginning"
    return checked.name, text(checked.every_s, "s"), begin, landing, "; ".join(remarks) or None
