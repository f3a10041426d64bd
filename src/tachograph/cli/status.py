"""`tachograph status`: state of the collector; exit code 1: a source is late or failing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tachograph.catalog.units import printable
from tachograph.cli import output
from tachograph.cli.options import Arguments, Parser, add_json, configuration_of

if TYPE_CHECKING:
    from tachograph.catalog.config import Configuration
    from tachograph.collect.status import CollectOverview

UNHEALTHY = 1


def add_arguments(parser: Parser) -> None:
    """Declare `--json`."""
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Print sources, their errors, the last analysis and compaction."""
    from tachograph.catalog import config
    from tachograph.collect.status import configured_overview, utc_now

    configuration = configuration_of(arguments)
    location = config.lake_location(arguments.lake, configuration)
    where = arguments.config or config.FILE_NAME
    overview = configured_overview(location, configuration, now=utc_now(), where=where)
    if arguments.json:
        output.print_json(overview.as_json())
    else:
        _print(overview, configuration, arguments)
    return 0 if overview.is_healthy else UNHEALTHY


def _print(overview: CollectOverview, configuration: Configuration, arguments: Arguments) -> None:
    from tachograph.collect.status_text import (
        SOURCE_HEADINGS,
        source_row,
        status_headline,
        status_remarks,
    )

    zone = configuration.site.time_zone
    output.print_text(f"{status_headline(overview, zone)}\n\n")
    if not overview.sources:
        output.print_text("No sources configured: add [[sources]] to the configuration.\n")
        return
    rows = [source_row(source, overview.now, zone) for source in overview.sources]
    output.print_table(
        SOURCE_HEADINGS, rows, title=f"Sources (times: {zone})", no_color=arguments.no_color
    )
    remarks = list(status_remarks(overview, zone))
    if remarks:
        output.print_text("\n" + "".join(f"{printable(remark)}\n" for remark in remarks))
