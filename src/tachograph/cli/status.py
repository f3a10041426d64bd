"""`tachograph status`: state of the collector; exit code 0: healthy, 1: a source is late or failing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tachograph.catalog.units import printable
from tachograph.cli import output
from tachograph.cli.options import Arguments, Parser, add_json, configuration_of

if TYPE_CHECKING:
    from datetime import datetime

    from tachograph.catalog.config import Configuration
    from tachograph.service.collect.status import CollectOverview, SourceStatus

UNHEALTHY = 1
_NAMED = 5  # endpoints and hosts
_STEPS = {"analyze": "analysis", "compact": "compaction"}


def add_arguments(parser: Parser) -> None:
    """Declare `--json`."""
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Print sources, their errors, the last analysis and compaction."""
    from tachograph.catalog import config
    from tachograph.service.collect.status import overview, state_folder, utc_now
    from tachograph.sources.registry import configured_feeds

    configuration = configuration_of(arguments)
    location = config.lake_location(arguments.lake, configuration)
    where = arguments.config or config.FILE_NAME
    settings = configured_feeds(configuration, where=where) if configuration.sources else []
    found = overview(
        location,
        state_folder(location, configuration.collect.state),
        settings,
        now=utc_now(),
    )
    if arguments.json:
        output.print_json(found.as_json())
    else:
        _print(found, configuration, arguments)
    return 0 if found.is_healthy else UNHEALTHY


def _print(found: CollectOverview, configuration: Configuration, arguments: Arguments) -> None:
    zone = configuration.site.time_zone
    output.print_text(f"{_headline(found, zone)}\n\n")
    if not found.sources:
        output.print_text("No sources configured: add [[sources]] to the configuration.\n")
        return
    headings = (
        *("source", "state", "last success", "read up to", ">lag"),
        *(">rows", ">rejected", ">errors", ">waiting"),
    )
    rows = [_row(source, found.now, zone) for source in found.sources]
    output.print_table(headings, rows, title=f"Sources (times: {zone})", no_color=arguments.no_color)
    remarks = list(_remarks(found, zone))
    if remarks:
        output.print_text("\n" + "".join(f"{printable(remark)}\n" for remark in remarks))


def _headline(found: CollectOverview, zone: str) -> str:
    from tachograph.catalog.units import text

    if found.holder is not None:
        who = f"process {found.holder.pid} on {found.holder.host}, since {_time(found.holder.since, zone)}"
        if found.hangs and found.status is not None:
            unresponsive = text((found.now - found.status.updated).total_seconds(), "s")
            return f"Collector hangs: {who}, no status for {unresponsive}; restart it. Lake: {found.lake}"
        return f"Collector running: {who}. Lake: {found.lake}"
    if found.status is None:
        return f"No collector has run yet. Lake: {found.lake}"
    stopped, updated = found.status.stopped, found.status.updated
    how = f"stopped at {_time(stopped, zone)}" if stopped else f"ended unexpectedly after {_time(updated, zone)}"
    return f"No collector running: the last one {how}. Lake: {found.lake}"


def _row(source: SourceStatus, now: datetime, zone: str) -> tuple[str | None, ...]:
    from tachograph.catalog.units import text

    lag = source.lag_s(now)
    rejected = sum(sum(reasons.values()) for reasons in source.rejects.values())
    return (
        source.name,
        source.condition(now),
        _time(source.last_success, zone),
        _time(source.read_up_to, zone),
        None if lag is None else text(max(0.0, lag), "s"),
        f"{sum(source.rows.values()):,}",
        f"{rejected:,}",
        f"{sum(source.errors.values()):,}",
        f"{source.chunks_waiting:,}",
    )


def _remarks(found: CollectOverview, zone: str) -> Iterator[str]:
    """Sentences: errors, unreachable endpoints, clocks, steps."""
    for source in found.sources:
        if source.last_error is not None:
            yield f"{source.name}: last error at {_time(source.last_error_at, zone)}: {source.last_error}"
        if source.unreachable:
            named = "; ".join(f"{place}: {why}" for place, why in list(source.unreachable.items())[:_NAMED])
            more = ", ..." if len(source.unreachable) > _NAMED else ""
            yield f"{source.name}: {len(source.unreachable)} unreachable: {named}{more}"
        yield from _clocks(source)
    for name, step in found.steps.items():
        what = _STEPS.get(name, name)
        if step.last_success is not None:
            result = f": {step.result}" if step.result else ""
            yield f"Last {what} at {_time(step.last_success, zone)}, {_took(step.last_duration_s)}{result}"
        if step.is_failing:
            yield f"{what.capitalize()} fails, last at {_time(step.last_error_at, zone)}: {step.last_error}"


def _clocks(source: SourceStatus) -> Iterator[str]:
    skewed = source.skewed()
    if skewed:
        named = ", ".join(
            f"{host} {abs(skew):.1f} s {'ahead' if skew > 0 else 'behind'}"
            for host, skew in list(skewed.items())[:_NAMED]
        )
        more = f" and {len(skewed) - _NAMED} more" if len(skewed) > _NAMED else ""
        yield f"{source.name}: clock differs from this host by more than 1 s: {named}{more}"


def _took(seconds: float | None) -> str:
    from tachograph.catalog.units import text

    return f"took {text(seconds, 's')}"


def _time(moment: datetime | None, zone: str) -> str | None:
    from tachograph.catalog.columns import local_time

    return None if moment is None else local_time(moment, zone)
