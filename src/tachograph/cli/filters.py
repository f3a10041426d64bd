"""The options that choose jobs, for commands that show or hand on several."""

from __future__ import annotations

import argparse
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

    from tachograph.cli.open import Opened
    from tachograph.report.filters import JobFilter


def add_filters(parser: argparse.ArgumentParser, *, study: bool = True) -> None:
    """Add the filters, as a group of their own in the help; with `study` those of the study's own filters, too."""
    group = parser.add_argument_group("which jobs (default: all)")
    for option, what in (("user", "user"), ("account", "account"), ("partition", "partition"), ("state", "state")):
        group.add_argument(
            f"--{option}", action="append", default=[], metavar="NAME", help=f"of this {what}; repeatable"
        )
    group.add_argument("--since", metavar="TIME", help="that ran after it: 2026-04-23, 2026-04-23T10:30, or 12h ago")
    group.add_argument("--until", metavar="TIME", help="that ran before it")
    group.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="CONDITION",
        help="such as 'gpu_util_mean<0.1'; repeatable: all of them",
    )
    group.add_argument(
        "--finding", action="append", default=[], metavar="CODE", help="with this finding; repeatable: any of them"
    )
    group.add_argument(
        "--verdict", default="yes", metavar="ANSWER", help="on --finding: yes (default), no, insufficient (data)"
    )
    group.add_argument("--attribution", action="append", default=[], metavar="KIND", help="explicit, whole_node, ...")
    parser.set_defaults(in_study=False, excluded=False)
    if study:
        either = group.add_mutually_exclusive_group()
        either.add_argument("--in-study", action="store_true", help="only those that no filter of the study leaves out")
        either.add_argument("--excluded", action="store_true", help="only those that one leaves out")


def none_matches(summaries: pl.DataFrame, *, zone_name: str) -> str:
    """Return what is said where filters leave no job of `summaries`: how many there are, and of which time."""
    from tachograph.units import zone

    newest = None if summaries.is_empty() else summaries["start"].max()
    if not isinstance(newest, datetime):
        return "No job matches.\n"
    began = newest.astimezone(zone(zone_name))
    return f"No job matches; the newest of {summaries.height:,} jobs began {began:%Y-%m-%d}.\n"


def wanted(arguments: argparse.Namespace, opened: Opened) -> JobFilter:
    """Return the filter that the options make.

    Errors: UsageError for a condition or a time that is none.
    """
    from tachograph.report.filters import JobFilter, parse_condition
    from tachograph.units import parse_time

    zone = opened.configuration.site.time_zone

    def instant(written: str | None) -> datetime | None:
        return None if written is None else parse_time(written, now=opened.now, zone_name=zone)

    return JobFilter(
        users=tuple(arguments.user),
        accounts=tuple(arguments.account),
        partitions=tuple(arguments.partition),
        states=tuple(arguments.state),
        attributions=tuple(arguments.attribution),
        findings=tuple(arguments.finding),
        verdict=arguments.verdict,
        since=instant(arguments.since),
        until=instant(arguments.until),
        excluded=True if arguments.excluded else False if arguments.in_study else None,
        where=tuple(map(parse_condition, arguments.where)),
    )
