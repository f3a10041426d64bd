"""`tachograph collect`: keep a lake up to date: poll the sources, analyze, compact."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from tachograph.catalog.errors import InputError, LakeError, UsageError
from tachograph.cli import narrate, output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, configuration_of

if TYPE_CHECKING:
    from tachograph.catalog.config import Configuration
    from tachograph.collect.collector import CollectPlan, SourceCheck
    from tachograph.collect.readers import PolledSource
    from tachograph.collect.status import CollectStatus
    from tachograph.sources.registry import FeedSettings


def add_arguments(parser: Parser) -> None:
    """Declare `--once`, `--check`, `--wait`."""
    parser.add_argument(
        "--once", action="store_true", help="poll every source once, analyze, exit (for cron)"
    )
    parser.add_argument(
        "--check", action="store_true", help="poll each source once, commit nothing (dry run)"
    )
    parser.add_argument(
        "--wait", action="store_true", help="if another process collects, wait until it ends"
    )


def run(arguments: Arguments) -> int:
    """Collect until a signal ends it."""
    from tachograph.catalog import config

    if arguments.check and (arguments.once or arguments.wait):
        raise UsageError("--check excludes --once and --wait", do="give one of them")
    configuration = configuration_of(arguments)
    location = config.lake_location(arguments.lake, configuration)
    plan = _plan(configuration, location, arguments)
    if arguments.check:
        return _check(plan, configuration, arguments)
    return _collect(plan, arguments)


def _plan(configuration: Configuration, location: str, arguments: Arguments) -> CollectPlan:
    """Return the sources of the configuration, connected.

    Errors: ConfigError.
    """
    from tachograph.catalog.config import FILE_NAME
    from tachograph.collect.collector import CollectPlan
    from tachograph.collect.readers import PolledSource
    from tachograph.collect.status import utc_now
    from tachograph.lake.delta import Lake
    from tachograph.sources.registry import configured_feeds, load_feed, of_site, start_time
    from tachograph.sources.slurm.fields import node_aliases

    aliases = node_aliases(configuration)

    def source_of(settings: FeedSettings) -> PolledSource:
        of = of_site(configuration, settings.cluster)
        connect = partial(load_feed(settings.source).connect, settings, configuration=of)
        feed, begin = connect(), None
        if settings.begins_at:
            zone = of.site.time_zone
            begin = start_time(settings.begins_at, now=utc_now(), zone_name=zone)
        return PolledSource(
            settings.title,
            settings.every_s,
            feed,
            connect,
            cluster=settings.cluster,
            begin=begin,
            aliases=aliases,
        )

    sources = [
        source_of(settings)
        for settings in configured_feeds(configuration, where=arguments.config or FILE_NAME)
    ]
    options = [
        "--lake",
        location,
        "--quiet",
        *(["--config", arguments.config] if arguments.config else []),
    ]
    return CollectPlan(Lake(location), sources, configuration.collect, options)


def _collect(plan: CollectPlan, arguments: Arguments) -> int:
    import os

    from tachograph.collect.collector import collect
    from tachograph.collect.systemd import SystemdNotifier

    notifier = SystemdNotifier.of(os.environ)
    say = Narrator.of(arguments).say
    done = collect(
        plan,
        remark=narrate.remark,
        narrate=say,
        once=arguments.once,
        wait=arguments.wait,
        notifier=notifier,
    )
    if done is None:
        return 0
    if not arguments.once:
        say("stopped")
        return 0
    return _print_once(done)


def _print_once(status: CollectStatus) -> int:
    """Print the committed rows of each source; return the exit code."""
    for name, source in status.sources.items():
        committed = (
            ", ".join(f"{rows:,} {table}" for table, rows in source.rows.items() if rows)
            or "nothing new"
        )
        output.print_text(f"{name}: {'failed' if source.failures else committed}\n")
    analysis = status.steps["analyze"]
    if analysis.runs:
        output.print_text(f"{'analysis failed' if analysis.failures else analysis.result}\n")
    if (
        any(source.failures and source.errors.get("lake") for source in status.sources.values())
        or analysis.failures
    ):
        return LakeError.exit_code
    return InputError.exit_code if any(source.failures for source in status.sources.values()) else 0


def _check(plan: CollectPlan, configuration: Configuration, arguments: Arguments) -> int:
    from tachograph.collect.collector import check_source
    from tachograph.collect.status import utc_now

    checked = [check_source(source, plan.lake, now=utc_now()) for source in plan.sources]
    for source in plan.sources:
        source.feed.close()
    headings = ("source", ">every", "from", "would commit", "remarks")
    zone = configuration.site.time_zone
    rows = [
        _row(source_check, _begin(source, source_check, zone))
        for source, source_check in zip(plan.sources, checked, strict=True)
    ]
    output.print_table(
        headings, rows, title=f"Dry run; lake: {plan.lake.location}", no_color=arguments.no_color
    )
    return InputError.exit_code if any(source_check.problem for source_check in checked) else 0


def _begin(source: PolledSource, checked: SourceCheck, zone: str) -> str:
    """Return where the reading of a source continues, or begins."""
    from tachograph.catalog.columns import local_time

    watermarks = [at for at in checked.watermarks.values() if at is not None]
    begin = min(watermarks, default=source.begin)
    return "the beginning" if begin is None else local_time(begin, zone)


def _row(checked: SourceCheck, begin: str) -> Sequence[str | None]:
    from tachograph.catalog.units import text

    rows_by_table = (
        ", ".join(f"{rows:,} {table}" for table, rows in checked.rows.items()) or "nothing"
    )
    remarks = []
    if checked.problem:
        remarks.append(checked.problem)
    if checked.more:
        remarks.append("more chunks available")
    remarks += [
        f"{count:,} × {reason.replace('_', ' ')}" for reason, count in checked.rejects.items()
    ]
    others = [
        f"{address}: {why}"
        for address, why in checked.unreachable.items()
        if why not in (checked.problem or "")
    ]
    remarks += others[:3]
    return (
        checked.name,
        text(checked.every_s, "s"),
        begin,
        rows_by_table,
        "; ".join(remarks) or None,
    )
