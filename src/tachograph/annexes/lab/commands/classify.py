"""`tachograph lab classify`: judges job classes again from stored minutes with new settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tachograph.cli import output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, add_filters, add_json, job_filter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import polars as pl

    from tachograph.catalog.config import Configuration
    from tachograph.cli.options import OpenedLake
    from tachograph.lake.delta import Lake
    from tachograph.lake.filters import JobFilter

BATCH = 1000  # jobs whose minutes are in memory at a time


def add_arguments(parser: Parser) -> None:
    """Declare the jobs, the filters, and the format."""
    parser.add_argument(
        "job", metavar="ID", nargs="*", help="job ids (default: all that the filters choose)"
    )
    add_filters(parser)
    parser.add_argument(
        "--class",
        action="append",
        default=[],
        dest="codes",
        metavar="CODE",
        help="only this class; repeatable",
    )
    parser.add_argument(
        "--all", action="store_true", help="also list verdicts of no (default for jobs named by ID)"
    )
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Judge; print verdicts yes and unknown, then the number of jobs by class. Writes nothing."""
    import polars as pl

    from tachograph.catalog.columns import must_exist
    from tachograph.cli.options import open_lake
    from tachograph.judge.job_classes import CLASS_CODES

    must_exist(arguments.codes, CLASS_CODES, what="class")
    opened = open_lake(arguments)
    which = job_filter(arguments, opened)
    jobs = _select(arguments, opened, which)
    with Narrator.of(arguments).steps() as progress:
        verdicts = classified(opened.lake, jobs, opened.configuration, progress)
    if arguments.codes:
        verdicts = verdicts.filter(pl.col("code").is_in(arguments.codes))
    verdicts = verdicts.join(
        jobs.select("job_key", "display_id"), on="job_key", how="left", maintain_order="left"
    )
    counts = _counts(verdicts)
    if arguments.json:
        output.print_json(
            {
                "verdicts": list(map(_as_json, verdicts.iter_rows(named=True))),
                "counts": counts.to_dicts(),
            }
        )
        return 0
    if verdicts.is_empty():
        from tachograph.cli.no_match import no_match_lines

        output.print_text("".join(f"{line}\n" for line in no_match_lines(opened, which)))
        return 0
    every = arguments.all or arguments.job
    _show(
        verdicts if every else verdicts.filter(pl.col("verdict") != "no"),
        opened,
        no_color=arguments.no_color,
    )
    _show_counts(counts, no_color=arguments.no_color)
    return 0


def classified(
    lake: Lake,
    jobs: pl.DataFrame,
    configuration: Configuration,
    progress: Callable[[str, int, int], None],
) -> pl.DataFrame:
    """Return the findings of the classes of `jobs`, in order of start, from stored minutes."""
    import polars as pl

    from tachograph.judge import job_classes
    from tachograph.pipeline.minutes import read_stored

    ordered = jobs.sort("start", "job_key")
    parts: list[pl.DataFrame] = []
    for at in range(0, max(1, ordered.height), BATCH):
        some = ordered.slice(at, BATCH)
        gpus, timelines, nodes = read_stored(
            lake, some, idle_util=configuration.thresholds.idle_util
        )
        parts.append(job_classes.judge_classes(some, gpus, timelines, nodes, configuration.classes))
        progress("classify", min(at + BATCH, ordered.height), ordered.height)
    return pl.concat(parts)


def _select(arguments: Arguments, opened: OpenedLake, which: JobFilter) -> pl.DataFrame:
    import polars as pl

    from tachograph.lake.query import read_job_row, select_jobs

    selected = select_jobs(opened.lake, which)
    if not arguments.job:
        return selected.jobs
    keys = [read_job_row(opened.lake, job).row["job_key"] for job in arguments.job]
    return selected.jobs.filter(pl.col("job_key").is_in(keys))


def _counts(verdicts: pl.DataFrame) -> pl.DataFrame:
    """One row per class: number of jobs by verdict."""
    import polars as pl

    from tachograph.judge.finding import VERDICTS
    from tachograph.judge.job_classes import CLASS_CODES

    answers = [(pl.col("verdict") == answer).sum().alias(answer) for answer in VERDICTS]
    order = pl.DataFrame({"code": CLASS_CODES}, schema={"code": pl.String}).with_row_index("place")
    return verdicts.group_by("code").agg(answers).join(order, on="code").sort("place").drop("place")


def _as_json(row: dict[str, Any]) -> dict[str, Any]:
    import json

    return row | {"evidence": json.loads(row["evidence"]), "checks": json.loads(row["checks"])}


def _show(verdicts: pl.DataFrame, opened: OpenedLake, *, no_color: bool) -> None:
    """Print a row per job and class; classes of a job with the same sentence share one."""
    import polars as pl

    columns = ("job_key", "display_id", "job_id", "verdict", "begin", "end", "sentence")
    verdicts = verdicts.group_by(columns, maintain_order=True).agg(pl.col("code").str.join(", "))
    zone = opened.configuration.site.time_zone
    headings = ("job", "class", "verdict", "interval", "evidence")
    output.print_table(
        headings, [_cells(row, zone) for row in verdicts.iter_rows(named=True)], no_color=no_color
    )


def _cells(row: dict[str, Any], zone_name: str) -> Sequence[str | None]:
    from tachograph.catalog.units import zone

    interval = None
    if row["begin"] is not None and row["end"] is not None:
        begin = row["begin"].astimezone(zone(zone_name))
        end = row["end"].astimezone(zone(zone_name))
        interval = f"{begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}"
    return (
        row["display_id"] or row["job_id"],
        row["code"],
        row["verdict"],
        interval,
        row["sentence"],
    )


def _show_counts(counts: pl.DataFrame, *, no_color: bool) -> None:
    rows = [
        (row["code"], f"{row['yes']:,}", f"{row['no']:,}", f"{row['unknown']:,}")
        for row in counts.to_dicts()
    ]
    output.print_text("\n")
    output.print_table(("class", ">yes", ">no", ">unknown"), rows, no_color=no_color)
