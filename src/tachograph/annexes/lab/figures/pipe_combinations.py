"""Figure 2: which arithmetic pipes jobs use together, and how well those jobs use their GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tachograph.annexes.lab.figures import style
from tachograph.annexes.lab.figures.arithmetic_intensity import PIPE_NAMES
from tachograph.annexes.lab.figures.numbers import (
    Fact,
    FigureNumbers,
    Study,
    count_jobs,
    counted,
    not_recorded,
    percent,
)
from tachograph.catalog.tables import PIPES
from tachograph.catalog.units import plural, text

DRAWN = 12  # combinations; the others are in the table only
NAMED = 3  # combinations in the sentences
NONE = "none"
_PARTS = ("combinations", "pipes", "utilisation")


def compute(study: Study) -> FigureNumbers:
    """Return the jobs of every combination of pipes in use, and of every pipe.

    combinations: one row per combination, commonest first: a column per pipe (in use or not), jobs,
    share of all that are in one, util_mean (mean of gpu_util_mean over util_jobs), drawn. pipes:
    (pipe, jobs, share). A pipe is included where some job measured it; a job that lacks one of
    these is in no combination: it may have used it.
    """
    pipes = [pipe for pipe, counter in PIPES.items() if study.measured([f"{counter}_mean"])]
    if not study.jobs.height or not pipes or not study.measured(["pipes"]):
        why = not_recorded(["pipes"]) if study.jobs.height else "no jobs"
        return study.nothing(_PARTS, why)
    some = study.jobs.filter(pl.col("pipes").is_not_null())
    jobs = some.filter(pl.col(f"{PIPES[pipe]}_mean").is_not_null() for pipe in pipes).select(
        "gpu_util_mean", *(pl.col("pipes").list.contains(pipe).alias(pipe) for pipe in pipes)
    )
    facts: dict[str, Fact] = {
        "jobs": jobs.height,
        "jobs_without_pipes": study.jobs.height - some.height,
        "jobs_with_some_pipes": some.height - jobs.height,
        "measured_pipes": ", ".join(PIPE_NAMES[pipe] for pipe in pipes),
    }
    if not jobs.height:
        return study.nothing(_PARTS, "no job measured all of the pipes", facts)
    tables = {"combinations": _combinations(jobs, pipes), "pipes": _pipes(jobs, pipes)}
    facts |= _counted(jobs, pipes, tables["combinations"])
    missing = {}
    if not jobs.get_column("gpu_util_mean").count():
        missing["utilisation"] = not_recorded(["gpu_util_mean"])
    return FigureNumbers(tables, facts, study.jobs.height, missing)


def draw(numbers: FigureNumbers) -> Figure:
    """Return bars of jobs and utilisation per combination above the matrix of pipes.

    Beside the matrix: bars of jobs per pipe.
    """
    table = numbers.tables["combinations"].filter("drawn")
    pipes = numbers.tables["pipes"].get_column("pipe").to_list()
    with style.style():
        figure, axes = style.new_figure(
            style.PAGE_IN,
            2.6 + 0.2 * len(pipes),
            3,
            2,
            width_ratios=(1, 4.4),
            height_ratios=(1.35, 0.75, 0.12 + 0.2 * len(pipes)),
        )
        corner, jobs, below, utilisation, totals, matrix = axes
        corner.set_axis_off()
        below.set_axis_off()
        _bars(
            jobs,
            table.get_column("jobs").to_list(),
            [f"{number:,}" for number in table["jobs"]],
            style.ACCENT,
        )
        style.count_axis(jobs, 4)
        jobs.set_ylabel("jobs")
        style.set_title(jobs, _title(numbers))
        if "utilisation" in numbers.missing:
            style.not_drawn(utilisation, numbers.missing["utilisation"])
        else:
            means = table.get_column("util_mean").to_list()
            _bars(
                utilisation,
                [mean or 0 for mean in means],
                [text(mean, "fraction") for mean in means],
                style.SECOND,
            )
            style.percent_axis(utilisation, limits=False)
            utilisation.set_ylim(0, 1.2)
            utilisation.set_yticks([0, 0.5, 1])
            utilisation.set_ylabel("mean\nutilisation")
        _matrix(matrix, table, pipes)
        _totals(totals, numbers.tables["pipes"])
        for part in (jobs, utilisation, matrix):
            part.set_xlim(-0.6, max(table.height, 5) - 0.4)
        figure.align_ylabels([jobs, utilisation])
    return figure


def sentences(numbers: FigureNumbers) -> tuple[str, ...]:
    """Return the most common combinations, the users of each pipe, and excluded jobs."""
    facts = numbers.facts
    if not facts.get("jobs"):
        return ()
    common = [
        _commonest(numbers, rank)
        for rank in range(1, NAMED + 1)
        if facts.get(f"combination_{rank}")
    ]
    in_use = [
        f"{name} by {percent(facts[f'{pipe}_share'])}"
        for pipe, name in PIPE_NAMES.items()
        if f"{pipe}_share" in facts
    ]
    number = plural(numbers.number("combinations") or 0, "combination")
    several, none = percent(facts["several_share"]), percent(facts["none_share"])
    phrases = [
        (
            f"Pipes in use make {number} among {count_jobs(facts['jobs'])}; commonest: "
            f"{', '.join(common)}."
        ),
        (
            f"Of these jobs, {several} use more than one pipe and {none} none. In use: "
            f"{', '.join(in_use)}."
        ),
    ]
    left_out = [
        f"{count_jobs(facts[fact])} {why}"
        for fact, why in (
            ("jobs_without_pipes", "without any of these counters"),
            ("jobs_with_some_pipes", f"without all of {facts['measured_pipes']}"),
        )
        if facts[fact]
    ]
    if left_out:
        phrases.append(f"Not counted: {', '.join(left_out)}.")
    return tuple(phrases)


def _combinations(jobs: pl.DataFrame, pipes: Sequence[str]) -> pl.DataFrame:
    """Rows of the part of that name; combinations of as many jobs are ordered by their pipes."""
    named = [pl.when(pl.col(pipe)).then(pl.lit(PIPE_NAMES[pipe])) for pipe in pipes]
    combination = pl.concat_str(named, separator=" + ", ignore_nulls=True)
    groups = jobs.group_by(pipes).agg(
        jobs=pl.len().cast(pl.Int64),
        util_mean=pl.col("gpu_util_mean").mean(),
        util_jobs=pl.col("gpu_util_mean").count().cast(pl.Int64),
    )
    return (
        groups.sort("jobs", *pipes, descending=True)
        .with_row_index("rank", 1)
        .select(
            combination.replace("", NONE).alias("combination"),
            *pipes,
            "jobs",
            share=pl.col("jobs") / jobs.height,
            util_mean="util_mean",
            util_jobs="util_jobs",
            drawn=pl.col("rank") <= DRAWN,
        )
    )


def _pipes(jobs: pl.DataFrame, pipes: Sequence[str]) -> pl.DataFrame:
    jobs_using = pl.Series([int(jobs.get_column(pipe).sum()) for pipe in pipes])
    return pl.DataFrame({"pipe": pipes, "jobs": jobs_using, "share": jobs_using / jobs.height})


def _counted(
    jobs: pl.DataFrame, pipes: Sequence[str], combinations: pl.DataFrame
) -> dict[str, Fact]:
    in_use = jobs.select(
        pl.sum_horizontal(pl.col(pipe).cast(pl.Int64) for pipe in pipes)
    ).to_series()
    several, none = int((in_use > 1).sum()), int((in_use == 0).sum())
    not_drawn = combinations.filter(~pl.col("drawn"))
    facts: dict[str, Fact] = {
        **counted("several", several, jobs.height),
        **counted("none", none, jobs.height),
        "combinations": combinations.height,
        "combinations_not_drawn": not_drawn.height,
        "jobs_not_drawn": int(not_drawn.get_column("jobs").sum()),
    }
    for pipe in pipes:
        facts |= counted(pipe, int(jobs.get_column(pipe).sum()), jobs.height)
    for rank, row in enumerate(combinations.head(NAMED).iter_rows(named=True), 1):
        facts[f"combination_{rank}"] = row["combination"]
        facts |= {
            f"combination_{rank}_{name}": row[name] for name in ("jobs", "share", "util_mean")
        }
    return facts


def _commonest(numbers: FigureNumbers, rank: int) -> str:
    name, mean = f"combination_{rank}", numbers.number(f"combination_{rank}_util_mean")
    use = "" if mean is None else f", mean utilisation {text(mean, 'fraction')}"
    return f"{numbers.facts[name]} ({percent(numbers.facts[f'{name}_share'])}{use})"


def _title(numbers: FigureNumbers) -> str:
    jobs = f"n = {count_jobs(numbers.facts['jobs'])}"
    if not numbers.facts["combinations_not_drawn"]:
        return jobs
    rarer = plural(numbers.number("combinations_not_drawn") or 0, "rarer combination")
    return f"{jobs}; {rarer} ({count_jobs(numbers.facts['jobs_not_drawn'])}) not drawn"


def _bars(axes: Axes, heights: Sequence[float], labels: Sequence[str], colour: str) -> None:
    bars = axes.bar(range(len(heights)), heights, 0.62, color=colour)
    axes.bar_label(bars, labels, padding=1.5, fontsize=6.5)
    axes.set_ylim(0, max(heights) * 1.15)
    axes.set_xticks([])
    axes.grid(axis="y")


def _matrix(axes: Axes, table: pl.DataFrame, pipes: Sequence[str]) -> None:
    """One column of dots per combination: dark for used pipes, joined by a line."""
    for row in range(0, len(pipes), 2):
        axes.axhspan(row - 0.5, row + 0.5, color=style.STRIPE, linewidth=0)
    for column, combination in enumerate(table.iter_rows(named=True)):
        in_use = [row for row, pipe in enumerate(pipes) if combination[pipe]]
        free = [row for row in range(len(pipes)) if row not in in_use]
        if not in_use:
            axes.annotate(
                NONE,
                (column, (len(pipes) - 1) / 2),
                rotation=90,
                ha="center",
                va="center",
                fontsize=6.5,
            )
            continue
        axes.plot([column] * len(free), free, "o", color=style.GRID, markersize=5)
        axes.plot(
            [column] * len(in_use), in_use, "o-", color=style.INK, markersize=5.5, linewidth=1.4
        )
    axes.set_ylim(len(pipes) - 0.5, -0.5)
    axes.set_yticks(range(len(pipes)), [PIPE_NAMES[pipe] for pipe in pipes])
    axes.set_xticks([])
    axes.tick_params(left=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel("pipes in use (joined dots)")


def _totals(axes: Axes, table: pl.DataFrame) -> None:
    """Draw bars to the left: jobs that use each pipe."""
    jobs = table.get_column("jobs").to_list()
    bars = axes.barh(range(len(jobs)), jobs, 0.6, color=style.FAINT)
    axes.set_xlim(max(1, *jobs) * 1.5, 0)  # first: labels go where the axis points to
    axes.bar_label(bars, [f"{number:,}" for number in jobs], padding=2, fontsize=6.5)
    axes.set_ylim(len(jobs) - 0.5, -0.5)
    axes.set_yticks([])
    axes.set_xticks([])
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel("jobs using the pipe")
