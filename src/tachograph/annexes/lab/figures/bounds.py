"""Figure 12: job limits by the roofline of one pipe, as published, and by the limiter.

The published type compares one pipe with memory and always names one of the two. The limiter is
that of the pipe that worked most, of memory and of the links, and none of them where nothing came
near its practical peak.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tachograph.annexes.lab.figures import style
from tachograph.annexes.lab.figures.arithmetic_intensity import PIPE_NAMES
from tachograph.annexes.lab.figures.numbers import (
    Fact,
    FigureNumbers,
    Study,
    count_jobs,
    counted,
    percent,
)
from tachograph.judge.limiter import LINKS, NEITHER

LIMITERS: Mapping[str, str] = {"compute": "compute", "memory": "memory", **LINKS, NEITHER: NEITHER}
_LOOKS: Mapping[str, tuple[str, str]] = {
    "compute": (style.COMPUTE, ""),
    "memory": (style.MEMORY, "////"),
    "nvlink": ("#009e73", "...."),
    "pcie": ("#cc79a7", "xxxx"),
    NEITHER: (style.NEITHER, ""),
}
_WEIGHTS: Mapping[str, str] = {"jobs": "jobs", "gpu_hours": "GPU-hours"}
_RULES = ("bound", "limiter")
_PARTS = ("both", "shares")


def compute(study: Study) -> FigureNumbers:
    """Return jobs and GPU-hours by published type and by limiter, of jobs that have both.

    both: one row per (bound, limiter) that has jobs: jobs, gpu_hours. shares: one row per (rule,
    kind): the same, and their shares (`jobs_share`, `gpu_hours_share`) of all; rule: bound,
    limiter.
    """
    if why := study.why_not([study.bound, "limiter"]):
        return study.nothing(_PARTS, why)
    jobs = study.jobs.select("gpu_hours", "limiter", bound=study.bound).drop_nulls(
        ["bound", "limiter"]
    )
    if not jobs.height:
        return study.nothing(_PARTS, "no job has both a type and a limiter")
    sums = {"jobs": pl.len().cast(pl.Int64), "gpu_hours": pl.col("gpu_hours").sum()}
    both = jobs.group_by("bound", "limiter").agg(**sums).sort("bound", "limiter")
    hours = float(jobs.get_column("gpu_hours").sum())
    shares = pl.concat(
        jobs.group_by(kind=rule)
        .agg(**sums)
        .sort("kind")
        .select(
            pl.lit(rule).alias("rule"),
            pl.all(),
            jobs_share=pl.col("jobs") / jobs.height,
            gpu_hours_share=pl.col("gpu_hours") / (hours or None),
        )
        for rule in _RULES
    )
    facts: dict[str, Fact] = {"pipe": study.options.pipe, "jobs": jobs.height, "gpu_hours": hours}
    for rule, kinds in (("bound", ("compute", "memory")), ("limiter", tuple(LIMITERS))):
        for kind in kinds:
            number = int((jobs.get_column(rule) == kind).sum())
            facts |= counted(f"{rule}_{kind}", number, jobs.height)
    memory = jobs.filter(pl.col("bound") == "memory")
    other = memory.filter(pl.col("limiter") != "memory").height
    facts |= counted("memory_bound_not_limited", other, memory.height)
    return FigureNumbers({"both": both, "shares": shares}, facts, study.jobs.height)


def draw(numbers: FigureNumbers) -> Figure:
    """Return bars of jobs and GPU-hours by published type, above bars by limiter."""
    shares = numbers.tables["shares"]
    weights = [
        name for name in _WEIGHTS if shares.get_column(f"{name}_share").null_count() < shares.height
    ]
    with style.style():
        figure, (axes,) = style.new_figure(style.PAGE_IN, 0.9 + 0.62 * len(weights) + 0.5)
        labels_at = []
        for number, name in enumerate(weights):
            for line, rule in enumerate(_RULES):
                at = number * 2.5 + line
                labels_at.append((at, f"{_WEIGHTS[name]}: {_rule(numbers, rule)}"))
                _draw_bar(axes, at, shares.filter(pl.col("rule") == rule), f"{name}_share")
        axes.set_yticks([at for at, _ in labels_at], [label for _, label in labels_at])
        axes.invert_yaxis()
        style.percent_axis(axes, "x")
        axes.set_xlabel("share")
        style.set_title(axes, f"n = {count_jobs(numbers.facts['jobs'])}")
        kinds = set(shares.get_column("kind"))
        handles = [
            Patch(
                facecolor=colour, hatch=hatch, alpha=0.75, edgecolor=style.INK, label=LIMITERS[kind]
            )
            for kind, (colour, hatch) in _LOOKS.items()
            if kind in kinds
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def sentences(numbers: FigureNumbers) -> tuple[str, ...]:
    """Return the shares by both rules, and how many memory-bound jobs memory does not limit."""
    facts = numbers.facts
    if not facts.get("jobs"):
        return ()
    limited = []
    for kind, named in LIMITERS.items():
        if facts[f"limiter_{kind}_jobs"]:
            name = "none of them" if kind == NEITHER else named
            limited.append(f"{name} in {percent(facts[f'limiter_{kind}_share'])}")
    published = (
        f"{percent(facts['bound_memory_share'])} are memory-bound by the "
        f"{_rule(numbers, 'bound')} as published"
    )
    phrases = [
        (
            f"Of {count_jobs(facts['jobs'])}, {published}. The limiter, of the busiest pipe, "
            "memory and links, is "
            f"{', '.join(limited)}."
        )
    ]
    if facts["memory_bound_not_limited_jobs"]:
        phrases.append(
            f"In {percent(facts['memory_bound_not_limited_share'])} of the memory-bound jobs "
            "memory is not the limiter."
        )
    return tuple(phrases)


def _rule(numbers: FigureNumbers, rule: str) -> str:
    return "limiter" if rule == "limiter" else f"{PIPE_NAMES[str(numbers.facts['pipe'])]} roofline"


def _draw_bar(axes: Axes, line: float, rows: pl.DataFrame, column: str) -> None:
    start = 0.0
    parts = dict(rows.select("kind", column).iter_rows())
    for kind, (colour, hatch) in _LOOKS.items():
        part = float(parts.get(kind) or 0.0)
        if part:
            style.draw_share(axes, line, start, part, colour=colour, hatch=hatch, height=0.8)
        if part > 0.06:
            style.write_share(axes, line, start + part / 2, percent(part))
        start += part
