"""Imbalance by pipe and by job type; shared by two figures.

Source: IPDPS 2026, figures 8 and 9: by exclusive group of pipes (every job is in the group of the
set it uses) and by job type (compute-bound or memory-bound by the roofline of one pipe). Strips and
cumulative distributions replace its violins, which collapse to a line where most jobs are alike.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
from matplotlib.figure import Figure

from tachograph.annexes.lab.figures import style
from tachograph.annexes.lab.figures.energy import TYPES
from tachograph.annexes.lab.figures.imbalance_bands import (
    EVEN,
    STRIP_CAPTION,
    UNEVEN,
    axis_top,
    imbalanced,
    why_none,
)
from tachograph.annexes.lab.figures.numbers import Fact, FigureNumbers, Study, count_jobs
from tachograph.annexes.lab.figures.statistics import boxes, cumulative
from tachograph.catalog.units import plural, text

PIPE_LETTERS: Mapping[str, str] = {"fp64": "FP64", "fp32": "FP32", "fp16": "FP16", "tensor": "T"}
NO_PIPE = "none"
MOST_GROUPS = 8  # that are drawn
ENOUGH = 10  # jobs of a group whose median is quoted
WHY_NO_PIPES = "the activity of no pipe was measured"
WHY_NO_TYPE = "no job is known to be compute-bound or memory-bound"
_PARTS = ("pipes", "types")


def compute_by_type(study: Study, column: str) -> FigureNumbers:
    """Return the distribution of one imbalance per group of pipes and per job type.

    pipes (those with most jobs first), types: one row per group: statistics of `boxes`, and whether
    it is `drawn`. <part>_cumulative: (group, value, share) of the drawn ones.
    """
    if why := why_none(study, column):
        return study.nothing(_PARTS, why)
    jobs = imbalanced(study, column)
    named = jobs.select(column, pipes=_set_of_pipes(), types=study.bound)
    groups = {
        part: (named.select(column, group=part).drop_nulls(), why_not)
        for part, why_not in (("pipes", WHY_NO_PIPES), ("types", WHY_NO_TYPE))
    }
    facts: dict[str, Fact] = {"jobs": jobs.height, "pipe": study.options.pipe}
    tables: dict[str, pl.DataFrame] = {}
    missing: dict[str, str] = {}
    shown = pl.lit(value=False)
    for part, (members, why_not) in groups.items():
        facts[f"{part}_jobs"] = members.height
        if members.height:
            tables |= _shapes(part, members, column)
            facts |= _medians(part, tables[part])
            shown |= pl.col(part).is_in(tables[part].filter("drawn")["group"].to_list())
        else:
            missing[part] = why_not
    facts["shown_jobs"] = named.filter(shown).height
    return FigureNumbers(tables, facts, study.jobs.height, missing)


def _set_of_pipes() -> pl.Expr:
    """FP64+T, ..., in a fixed order; null if no pipe was measured."""
    names = [
        pl.when(pl.col("pipes").list.contains(pipe)).then(pl.lit(name))
        for pipe, name in PIPE_LETTERS.items()
    ]
    named = pl.concat_str(names, separator="+", ignore_nulls=True)
    return pl.when(pl.col("pipes").is_not_null()).then(
        pl.when(named == "").then(pl.lit(NO_PIPE)).otherwise(named)
    )


def _shapes(part: str, members: pl.DataFrame, column: str) -> dict[str, pl.DataFrame]:
    rows = boxes(members, "group", column)
    if part == "pipes":
        rows = rows.sort("jobs", "group", descending=[True, False])
    rows = rows.with_columns(drawn=pl.int_range(pl.len()) < MOST_GROUPS)
    of_drawn_groups = members.join(rows.filter("drawn"), on="group", how="semi")
    return {
        part: rows,
        f"{part}_cumulative": cumulative(of_drawn_groups.sort("group"), "group", column),
    }


def _medians(part: str, rows: pl.DataFrame) -> dict[str, Fact]:
    """Jobs and median per group; highest and lowest median of groups with ENOUGH jobs."""
    rest = rows.filter(~pl.col("drawn"))
    facts: dict[str, Fact] = {
        f"{part}_groups": rows.height,
        f"{part}_groups_not_drawn": rest.height,
        f"{part}_jobs_not_drawn": int(rest.get_column("jobs").sum()),
    }
    for row in rows.iter_rows(named=True):
        facts[f"{part}_{row['group']}_jobs"] = row["jobs"]
        facts[f"{part}_{row['group']}_median"] = row["median"]
    enough = rows.filter(pl.col("jobs") >= ENOUGH).sort("median", maintain_order=True)
    facts[f"{part}_groups_of_{ENOUGH}"] = enough.height
    facts[f"{part}_most"] = enough.item(-1, "group") if enough.height > 1 else None
    facts[f"{part}_least"] = enough.item(0, "group") if enough.height > 1 else None
    return facts


def draw_by_type(numbers: FigureNumbers, label: str) -> Figure:
    """Return strips of jobs per group of pipes, and cumulative distributions per job type."""
    with style.style():
        figure, (strips, curves_axes) = style.new_figure(
            style.PAGE_IN, 3.1, 1, 2, width_ratios=(1.35, 1)
        )
        values = [
            numbers.tables[f"{part}_cumulative"].get_column("value")
            for part in _PARTS
            if part in numbers
        ]
        top = axis_top(pl.concat(values))
        if "pipes" in numbers:
            rows = numbers.tables["pipes"].filter("drawn")
            style.draw_strips(strips, numbers.tables["pipes_cumulative"], rows)
            names = [f"{row['group']}\nn = {row['jobs']:,}" for row in rows.iter_rows(named=True)]
            strips.set_yticks(range(rows.height), names, fontsize=6.5)
            strips.set_ylabel(_pipes_title(numbers))
        if "types" in numbers:
            curves = numbers.tables["types_cumulative"]
            looks = {
                kind: (
                    f"{named} (n = {numbers.facts[f'types_{kind}_jobs']:,})",
                    style.BOUND_COLOURS[kind],
                    dashes,
                )
                for (kind, named), dashes in zip(TYPES.items(), ("-", "--"), strict=True)
                if numbers.facts.get(f"types_{kind}_jobs")
            }
            style.draw_ecdf(curves_axes, curves, looks, top=top)
            curves_axes.set_ylabel("cumulative share of the type's jobs")
        for axes, part in ((strips, "pipes"), (curves_axes, "types")):
            if part not in numbers:
                style.not_drawn(axes, numbers.missing[part])
                continue
            axes.set_xlim(-0.02 * top if axes is strips else 0, top)
            style.mark_limits(axes, (EVEN, UNEVEN))
            axes.set_xlabel(label)
        figure.supxlabel(STRIP_CAPTION, fontsize=6, color=style.FAINT)
    return figure


def _pipes_title(numbers: FigureNumbers) -> str:
    groups, jobs = (numbers.facts.get(f"pipes_{what}_not_drawn") for what in ("groups", "jobs"))
    rest = f"\n(not drawn: {count_jobs(jobs)} of other groups)" if groups else ""
    return f"pipes in use (T: tensor){rest}"


def sentences_by_type(numbers: FigureNumbers, imbalance: str) -> tuple[str, ...]:
    """Return the groups of pipes with extreme medians, and the medians of job types."""
    return (*_of_pipes(numbers, imbalance), *_of_types(numbers, imbalance))


def _of_pipes(numbers: FigureNumbers, imbalance: str) -> tuple[str, ...]:
    facts = numbers.facts
    if not facts.get("pipes_jobs"):
        return ()
    of = f"{count_jobs(facts['pipes_jobs'])} with a {imbalance} and measured pipes"
    if facts["pipes_most"] is None:
        return (
            f"Of {of}, too few use different pipes to compare them (at least {ENOUGH} jobs each).",
        )
    (highest_jobs, high), (lowest_jobs, low) = (
        _group(numbers, f"pipes_{facts[which]}") for which in ("pipes_most", "pipes_least")
    )
    if high == low:
        alike = f"the median {imbalance} is the same ({high})"
        return (
            f"Of {of}, {alike} whatever pipes they use, of groups with at least {ENOUGH} jobs.",
        )
    highest = (
        f"the {highest_jobs} that use {_in_words(facts['pipes_most'])} have the highest median "
        f"{imbalance} ({high})"
    )
    lowest = f"the {lowest_jobs} that use {_in_words(facts['pipes_least'])} the lowest ({low})"
    return (f"Of {of}, {highest}, {lowest}, of groups with at least {ENOUGH} jobs.",)


def _of_types(numbers: FigureNumbers, imbalance: str) -> tuple[str, ...]:
    facts = numbers.facts
    medians = []
    for bound in TYPES:
        if jobs := numbers.number(f"types_{bound}_jobs"):
            _, median = _group(numbers, f"types_{bound}")
            medians.append(f"{median} for {plural(jobs, f'{bound}-bound job')}")
    if not medians:
        return ()
    roofline = f"{str(facts['pipe']).upper().replace('TENSOR', 'tensor')} roofline"
    return (f"The median {imbalance} is {' and '.join(medians)} ({roofline}).",)


def _group(numbers: FigureNumbers, group: str) -> tuple[str, str]:
    """Number of jobs of a group and their median, as text."""
    return count_jobs(numbers.facts[f"{group}_jobs"]), text(
        numbers.number(f"{group}_median"), "ratio"
    )


def _in_words(group: Fact) -> str:
    """A group of pipes in a sentence.

    >>> _in_words("FP64"), _in_words("FP64+FP32+T"), _in_words("none")
    ('FP64 alone', 'FP64, FP32 and tensor', 'no pipe')
    """
    *others, last = str(group).replace("T", "tensor").split("+")
    if last == NO_PIPE:
        return "no pipe"
    return f"{', '.join(others)} and {last}" if others else f"{last} alone"
