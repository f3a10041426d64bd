"""State of a collector as text: summary, a row per source, sentences on problems."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from tachograph.catalog.columns import local_time
from tachograph.catalog.units import text
from tachograph.collect.status import AHEAD_S, CollectOverview, SourceStatus

SOURCE_HEADINGS = (
    *("source", "state", "last success", "read up to", ">lag"),
    *(">rows", ">rejected", ">errors", ">skipped", ">waiting"),
)
_NAMED = 5  # endpoints and hosts
_STEPS = {"analyze": "analysis", "compact": "compaction"}


def status_headline(collection: CollectOverview, zone: str) -> str:
    """Return whether a collector runs, and since when or until when."""
    lake = f". Lake: {collection.lake}" if collection.lake else ""
    if collection.holder is not None:
        process = (
            f"process {collection.holder.pid} on {collection.holder.host}, "
            if collection.holder.pid
            else ""
        )
        who = f"{process}since {_time(collection.holder.since, zone)}"
        if collection.full_disk:
            return (
                f"Disk full: {collection.full_disk}: nothing more is committed; free some space. "
                f"Collector: {who}{lake}"
            )
        if collection.hangs and collection.status is not None:
            unresponsive = text((collection.now - collection.status.updated).total_seconds(), "s")
            return f"Collector hangs: {who}, no status for {unresponsive}; restart it{lake}"
        return f"Collector running: {who}{lake}"
    if collection.status is None:
        return f"No collector has run yet{lake}"
    stopped, updated = collection.status.stopped, collection.status.updated
    how = (
        f"stopped at {_time(stopped, zone)}"
        if stopped
        else f"ended unexpectedly after {_time(updated, zone)}"
    )
    return f"No collector running: the last one {how}{lake}"


def source_row(source: SourceStatus, now: datetime, zone: str) -> tuple[str | None, ...]:
    """Return a source as texts, in the order of SOURCE_HEADINGS; None: unknown."""
    lag = source.lag_s(now)
    rejected = sum(sum(reasons.values()) for reasons in source.rejects.values())
    return (
        source.name,
        source.condition(now),
        _time(source.last_success, zone),
        _time(source.read_up_to, zone),
        None if lag is None else text(lag if lag < -AHEAD_S else max(0.0, lag), "s"),
        f"{sum(source.rows.values()):,}",
        f"{rejected:,}",
        f"{sum(source.errors.values()):,}",
        f"{source.skipped:,}",
        f"{source.chunks_waiting:,}",
    )


def status_remarks(collection: CollectOverview, zone: str) -> Iterator[str]:
    """Yield sentences: errors, unreachable endpoints, clocks, steps."""
    if collection.full_disk and collection.holder is None:
        yield f"Disk full: {collection.full_disk}; free some space"
    for source in collection.sources:
        if source.last_error is not None:
            yield (
                f"{source.name}: last error at {_time(source.last_error_at, zone)}: "
                f"{source.last_error}"
            )
        if source.unreachable:
            named = "; ".join(
                f"{address}: {why}" for address, why in list(source.unreachable.items())[:_NAMED]
            )
            more = ", ..." if len(source.unreachable) > _NAMED else ""
            yield f"{source.name}: {len(source.unreachable)} unreachable: {named}{more}"
        if source.other_nodes:
            named = "; ".join(
                f"{address} names {node}"
                for address, node in list(source.other_nodes.items())[:_NAMED]
            )
            more = ", ..." if len(source.other_nodes) > _NAMED else ""
            yield (
                f"{source.name}: {len(source.other_nodes)} with another node than their own: "
                f"{named}{more}"
            )
        yield from _gaps(source, collection.now)
        yield from _clocks(source, collection.now)
    for name, step in collection.steps.items():
        what = _STEPS.get(name, name)
        if step.last_success is not None:
            result = f": {step.result}" if step.result else ""
            yield (
                f"Last {what} at {_time(step.last_success, zone)}, "
                f"{_took(step.last_duration_s)}{result}"
            )
        if step.is_failing:
            yield (
                f"{what.capitalize()} fails, last at {_time(step.last_error_at, zone)}: "
                f"{step.last_error}"
            )


def _gaps(source: SourceStatus, now: datetime) -> Iterator[str]:
    hour = source.last_hour(now)
    if hour.skipped:
        yield (
            f"{source.name}: {hour.skipped:,} of {hour.polls + hour.skipped:,} polls of the "
            "last hour were skipped, "
            f"longest gap {text(hour.longest_gap_s, 's')}: this host is overloaded or stood "
            "still, or a poll took "
            f"longer than every_s = {source.every_s:g}; give the collector more CPU time, or "
            "raise every_s"
        )


def _clocks(source: SourceStatus, now: datetime) -> Iterator[str]:
    ahead = source.ahead_s(now)
    if ahead:
        yield (
            f"{source.name}: was read up to {text(ahead, 's')} ahead of this host's clock; "
            "fix the clock that is wrong, then ingest that time once more"
        )
    skewed = source.skewed()
    if skewed:
        hosts: list[str] = []
        for host, skew in list(skewed.items())[:_NAMED]:
            direction = "ahead" if skew > 0 else "behind"
            hosts.append(f"{host} {abs(skew):.1f} s {direction}")
        named = ", ".join(hosts)
        more = f" and {len(skewed) - _NAMED} more" if len(skewed) > _NAMED else ""
        yield f"{source.name}: clock differs from this host by more than 1 s: {named}{more}"


def _took(seconds: float | None) -> str:
    return f"took {text(seconds, 's')}"


def _time(moment: datetime | None, zone: str) -> str | None:
    return None if moment is None else local_time(moment, zone)
