"""Studies side by side: the same numbers of several lakes, or of several months, and their distributions overlaid.

A row per number, a column per study. A distribution is compared by one line in CURVES.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tachograph.catalog.units import text
from tachograph.figures import style
from tachograph.figures.names import drawn_name
from tachograph.figures.numbers import Fact
from tachograph.figures.study import MadeFigure, StudyReport

WHOLE = ""  # group of a curve that has none
MOST_STUDIES = 6  # lines that can be distinguished
_LINES = (("#0072b2", "-"), ("#d55e00", "--"), ("#009e73", "-."), ("#e69f00", ":"), ("#cc79a7", "-"), ("#767676", "--"))
# figure: its part of (group, value, share), what the value is, what it is called where its groups are drawn
CURVES: Mapping[str, tuple[str, str]] = {
    "spatial_imbalance": ("cumulative", "spatial imbalance"),
    "temporal_imbalance": ("cumulative", "temporal imbalance"),
    "hbm_peak": ("cumulative", "peak use of GPU memory (1: all)"),
}
GROUPS: Mapping[str, str] = {
    WHOLE: "large-memory GPUs",
    "low": "utilisation under 30 %",
    "mid": "utilisation 30 to 70 %",
    "high": "utilisation over 70 %",
}
# (figure, fact, what it is, unit): the numbers that are printed; all others stand in the files
NUMBERS: Sequence[tuple[str, str, str, str]] = (
    ("job_overview", "duration_median", "median run time", "h"),
    ("job_overview", "utilisation_median", "median utilisation", "fraction"),
    ("pipe_combinations", "fp64_share", "jobs that use FP64", "fraction"),
    ("pipe_combinations", "fp32_share", "jobs that use FP32", "fraction"),
    ("pipe_combinations", "fp16_share", "jobs that use FP16", "fraction"),
    ("pipe_combinations", "tensor_share", "jobs that use tensor", "fraction"),
    ("hbm_peak", "jobs", "large-memory jobs", "count"),
    ("hbm_peak", "under_50_share", "of them, peak under 50 %", "fraction"),
    ("hbm_peak", "at_least_90_share", "of them, peak from 90 % on", "fraction"),
    ("bounds", "bound_memory_share", "memory-bound, as published", "fraction"),
    ("bounds", "limiter_memory_share", "limiter memory", "fraction"),
    ("bounds", "limiter_compute_share", "limiter compute", "fraction"),
    ("bounds", "limiter_neither_share", "limiter neither", "fraction"),
    ("energy", "typed_energy_kwh", "energy, jobs of known type", "kWh"),
    ("spatial_imbalance", "median", "median spatial imbalance", "ratio"),
    ("spatial_imbalance", "uneven_share", "spatial imbalance over 0.70", "fraction"),
    ("spatial_imbalance", "one_gpu_share", "used one GPU of several", "fraction"),
    ("temporal_imbalance", "median", "median temporal imbalance", "ratio"),
    ("temporal_imbalance", "uneven_share", "temporal imbalance over 0.70", "fraction"),
    ("correlation", "rho_sm_active", "rho of utilisation, SM activity", "ratio"),
    ("correlation", "rho_power_w", "rho of utilisation, power", "ratio"),
)


@dataclass(frozen=True, slots=True)
class StudyComparison:
    """Studies of the same figures and settings, each with the label of its lake or month."""

    labels: tuple[str, ...]
    reports: tuple[StudyReport, ...]

    def figures(self, name: str) -> list[MadeFigure | None]:
        """Return the figure of that name of each study; None where it was not chosen."""
        return [next((one for one in report.figures if one.entry.name == name), None) for report in self.reports]

    def numbers(self) -> list[tuple[str, list[str]]]:
        """Return (what, as text of each study) of the numbers that are printed; without those that no study has."""
        datasets = [report.dataset for report in self.reports]
        rows = [
            ("jobs studied", [text(one.jobs, "count") for one in datasets]),
            ("GPUs", [text(one.gpus, "count") for one in datasets]),
            ("GPU-hours", [text(one.gpu_hours, "count") for one in datasets]),
            ("energy", [text(one.energy_j, "J") for one in datasets]),
            ("coverage, median", [text(one.coverage_median, "fraction") for one in datasets]),
        ]
        for figure, fact, what, unit in NUMBERS:
            values = [None if one is None else one.numbers.number(fact) for one in self.figures(figure)]
            if any(value is not None for value in values):
                rows.append((what, [text(value, unit) for value in values]))
        return rows

    def facts(self) -> pl.DataFrame:
        """Return every single number: (figure, fact, a column per study), as text; null where a study lacks it."""
        found: dict[tuple[str, str], list[Fact]] = {}
        for place, report in enumerate(self.reports):
            for name, facts in report.facts().items():
                for fact, value in facts.items():
                    found.setdefault((name, fact), [None] * len(self.reports))[place] = value
        columns: dict[str, list[str | None]] = {
            "figure": [name for name, _ in found],
            "fact": [fact for _, fact in found],
        }
        for place, label in enumerate(self.labels):
            columns[label] = [None if values[place] is None else str(values[place]) for values in found.values()]
        return pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String()))

    def curves(self) -> pl.DataFrame:
        """Return (figure, group, study, value, share) of the distributions that several studies have."""
        empty = {"figure": pl.String, "group": pl.String, "study": pl.String, "value": pl.Float64, "share": pl.Float64}
        parts = [pl.DataFrame(schema=empty)]
        for name, (part, _) in CURVES.items():
            for label, made in zip(self.labels, self.figures(name), strict=True):
                if made is not None and part in made.numbers:
                    parts.append(_curve(made.numbers.tables[part], name, label).cast(parts[0].schema))
        return pl.concat(parts)


def _curve(table: pl.DataFrame, figure: str, label: str) -> pl.DataFrame:
    group = pl.col("band").cast(pl.String) if "band" in table.columns else pl.lit(WHOLE)
    return table.select(
        pl.lit(figure).alias("figure"), group.alias("group"), pl.lit(label).alias("study"), "value", "share"
    )


def draw_overlays(comparison: StudyComparison) -> Figure:
    """Return the cumulative distributions of the studies over each other: a panel per figure and group."""
    curves = comparison.curves()
    panels = curves.select("figure", "group").unique(maintain_order=True).rows()
    columns = min(3, max(1, len(panels)))
    rows = max(1, -(-len(panels) // columns))
    with style.style():
        figure, axes = style.new_figure(
            style.PAGE_IN, 2.1 * rows + 0.2 * (1 + len(comparison.labels) // 2), rows, columns
        )
        for unused in axes[len(panels) :]:
            unused.set_axis_off()
        for place, (axis, (name, group)) in enumerate(zip(axes, panels, strict=False)):
            mine = curves.filter((pl.col("figure") == name) & (pl.col("group") == group))
            looks = {
                label: (f"n = {jobs:,}", *_LINES[line % MOST_STUDIES])
                for line, (label, jobs) in enumerate(_jobs(comparison, name, group))
            }
            top = max(1.0, float(mine.get_column("value").to_numpy().max()))
            style.draw_ecdf(axis, mine.rename({"group": "of", "study": "group"}), looks, top=top)
            axis.set_title(GROUPS.get(group, group))
            axis.set_xlabel(CURVES[name][1])
            axis.set_ylabel("cumulative share" if place % columns == 0 else "")
        handles = []
        for label, (colour, dashes) in zip(comparison.labels, _LINES, strict=False):
            look: dict[str, Any] = {"color": colour, "linestyle": dashes}
            handles.append(Line2D([], [], label=drawn_name(label), **look))
        figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def _jobs(comparison: StudyComparison, figure: str, group: str) -> Iterator[tuple[str, int]]:
    """The jobs of each study in a panel."""
    for label, made in zip(comparison.labels, comparison.figures(figure), strict=True):
        number = made.numbers.number(f"{group}_jobs" if group else "jobs") if made is not None else None
        yield label, int(number or 0)
