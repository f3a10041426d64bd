"""`tachograph lake counters`: the catalogue of counters; `--json` includes producers' names."""

from __future__ import annotations

import dataclasses
import math

from tachograph.catalog.counters import COUNTERS, Counter
from tachograph.cli import output
from tachograph.cli.options import Arguments, Parser, add_json

_HEADINGS = (
    "counter",
    "unit",
    "kind",
    ">DCGM id",
    "meaning",
)


def add_arguments(parser: Parser) -> None:
    """Declare `--json`."""
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Print one row per counter."""
    if arguments.json:
        output.print_json([_plain(counter) for counter in COUNTERS])
    else:
        output.print_table(_HEADINGS, map(_row, COUNTERS), no_color=arguments.no_color)
    return 0


def _plain(counter: Counter) -> dict[str, object]:
    """Every field of the catalogue; an unbounded range has `high` null."""
    fields = dataclasses.asdict(counter)
    return {name: None if value == math.inf else value for name, value in fields.items()}


def _row(counter: Counter) -> tuple[str | None, ...]:
    return (
        counter.name,
        counter.unit,
        str(counter.kind),
        None if counter.dcgm_id is None else str(counter.dcgm_id),
        counter.sentence,
    )
