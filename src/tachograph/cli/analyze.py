"""`tachograph analyze`: summarize every job that new data touch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tachograph.cli import output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, add_as_of, add_json
from tachograph.units import plural

if TYPE_CHECKING:
    from tachograph.analyze import AnalysisReport


def add_arguments(parser: Parser) -> None:
    """Declare `--full`, `--threads`, `--as-of`, `--json`."""
    parser.add_argument("--full", action="store_true", help="all jobs, not only those that new data touch")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 2, help="partitions reduced at a time")
    add_as_of(parser)
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Analyze; print how many jobs and samples it was."""
    from tachograph.analyze import analyze
    from tachograph.cli.open import open_lake

    opened = open_lake(arguments)
    narrator = Narrator.of(arguments)
    with narrator.steps() as tell:
        report = analyze(
            opened.lake,
            opened.configuration,
            now=opened.now,
            threads=max(1, arguments.threads),
            full=arguments.full,
            progress=tell,
        )
    if arguments.json:
        output.print_json(report)
    else:
        output.print_text(f"{sentence(report)}\n")
    return 0


def sentence(report: AnalysisReport) -> str:
    """Return what the analysis did, as people read it."""
    if not report.jobs and not report.samples:
        return "nothing new: all jobs are as they were"
    if not report.jobs:
        return f"{plural(report.samples, 'sample')} read, of no job that is known: ingest the accounting of that time"
    share = report.attributed / report.samples if report.samples else 0.0
    read = f"{report.samples:,} samples"
    of_no_job = f"{share:.0%} of {read} belong to them" if report.full else f"{read} read"
    unclear = f", {report.ambiguous:,} of them ambiguous" if report.ambiguous else ""
    return f"{report.jobs:,} jobs summarized{unclear}; {of_no_job}; {report.findings:,} findings"
