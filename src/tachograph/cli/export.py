"""`tachograph export TARGET`: jobs and findings to databases, files, Prometheus, ClusterCockpit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tachograph.catalog.doors import find_entry
from tachograph.catalog.errors import UsageError
from tachograph.catalog.suggestions import did_you_mean
from tachograph.cli import output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import (
    Arguments,
    Parser,
    add_filters,
    add_json,
    add_parts,
    job_filter,
    options_of_part,
)
from tachograph.export.registry import TARGETS, ExportTarget, load_target

if TYPE_CHECKING:
    from tachograph.export.content import ExportResult


def add_arguments(parser: Parser) -> None:
    """Declare the targets."""
    add_parts(parser, "target", TARGETS)


def run(arguments: Arguments) -> int:
    """Read the chosen jobs, export them, print what was written."""
    target = _find(arguments.target)
    options = options_of_part("export", target, partial(_declare, target), arguments.rest)
    if options is None:
        return 0
    done = _export(target, options)
    if options.json:
        output.print_json({"target": target.name, "written": done})
    else:
        output.print_text("".join(f"{line}\n" for line in _lines(done)))
    return 0


def _find(name: str) -> ExportTarget:
    target = find_entry("exports", ExportTarget, name, TARGETS)
    if target is not None:
        return target
    names = [target.name for target in TARGETS]
    raise UsageError(
        f"unknown target '{name}'",
        do=did_you_mean(name, names, otherwise=f"use one of: {', '.join(names)}"),
    )


def parts() -> Sequence[tuple[str, str, Callable[[Parser], None]]]:
    """Return name, line of help and declaration of the options of each target."""
    return [(target.name, target.sentence, partial(_declare, target)) for target in TARGETS]


def _declare(target: ExportTarget, parser: Parser) -> None:
    load_target(target).add_options(parser)
    names = parser.add_argument_group("pseudonyms, for studies")
    names.add_argument(
        "--pseudonyms",
        metavar="KEY",
        help="replace user names by pseudonyms made with the key in this file",
    )
    names.add_argument(
        "--pseudonyms-of",
        default="user",
        metavar="KINDS",
        help="also replace names of: account, job, node (comma-separated)",
    )
    add_filters(parser)
    add_json(parser)


def _export(target: ExportTarget, options: Arguments) -> list[ExportResult]:
    from tachograph.api.capacity import require_capacity
    from tachograph.cli.options import open_lake
    from tachograph.export.content import read_content

    opened = open_lake(options)
    which = job_filter(options, opened)
    content = replace(
        read_content(opened.lake, which, now=opened.clock),
        read_capacity=partial(require_capacity, opened.lake, opened.configuration, which),
    )
    if options.pseudonyms:
        from tachograph.catalog.pseudonyms import PseudonymKey
        from tachograph.export.pseudonyms import parse_kinds, with_pseudonyms

        content = with_pseudonyms(
            content, PseudonymKey.read(options.pseudonyms), parse_kinds(options.pseudonyms_of)
        )
    elif options.pseudonyms_of != "user":
        raise UsageError("--pseudonyms-of: by which key?", do="give --pseudonyms KEY")
    with Narrator.of(options).steps() as progress:
        return list(load_target(target).export(content, options, progress))


def _lines(done: Iterable[ExportResult]) -> Iterable[str]:
    for part in done:
        removed = f", {part.removed:,} removed" if part.removed else ""
        unchanged = f", {part.unchanged:,} unchanged" if part.unchanged else ""
        left_out = f", {part.left_out:,} left out" if part.left_out else ""
        yield f"{part.where}: {part.written:,} {part.what} written{removed}{unchanged}{left_out}"
