"""The ledger as one HTML page without script or external references."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate

import polars as pl
from jinja2 import Environment
from markupsafe import Markup
from msgspec.structs import replace

from tachograph.catalog.tables import WASTE
from tachograph.catalog.units import plural, text
from tachograph.catalog.version import __version__
from tachograph.judge.ledger import WASTE_LEFT_OUT, WasteReport
from tachograph.report.capacity import capacity_values
from tachograph.report.charts import (
    Box,
    Chart,
    Curve,
    Dots,
    FilledArea,
    amount_axis,
    fraction_axis,
    rows_axis,
)
from tachograph.report.pages import environment
from tachograph.report.recording import Colour
from tachograph.report.svg import svg
from tachograph.report.waste import (
    WASTE_NO_PRICE,
    cause_label,
    group_name,
    held_note,
    money,
    unpriced,
    waste_headline,
)

NAMED_USERS = 5  # in the curve
# (column, colour, label, opacity) of the bars of a cause, the second over the first
_CAUSE_BARS: Sequence[tuple[str, Colour, str, float]] = (
    ("gpu_hours", "faint", "lost", 0.35),
    ("recoverable", "problem", "of these recoverable", 1.0),
)


def waste_html(report: WasteReport) -> str:
    """Return the page."""
    return _environment().get_template("waste.html.j2").render(waste_values(report))


def waste_values(report: WasteReport) -> dict[str, object]:
    """Return the values of `waste_body.html.j2`, in whichever page includes it."""
    return {
        "report": report,
        "headline": waste_headline(report),
        "causes": WASTE,
        "left_out": WASTE_LEFT_OUT,
        "plots": waste_plots(report),
        "version": __version__,
        "label": cause_label,
        "money": money,
        "group_name": group_name,
        "plural": plural,
        "unpriced": unpriced,
        "held": held_note(report),
        "capacity": None if report.capacity is None else capacity_values(report.capacity),
        "no_price": WASTE_NO_PRICE,
    }


def waste_plots(report: WasteReport) -> dict[str, Markup | None]:
    """Return the SVG plots {causes, users}; None without data."""
    return {
        "causes": svg(
            cause_charts(report), label="GPU-hours lost by cause, and the recoverable part of them"
        ),
        "users": svg(user_charts(report), label="Lost GPU-hours of users, added up, most first"),
    }


def cause_charts(report: WasteReport) -> list[Chart]:
    """Return GPU-hours of each cause, and which part of them is recoverable."""
    lost = report.causes.filter(pl.col("cause").is_in(WASTE))
    hours = lost.get_column("gpu_hours").to_list()
    if not any(hours):
        return []
    boxes = [
        Box((0.0, value), (place - 0.31, place + 0.31), colour, label, opacity=opacity)
        for column, colour, label, opacity in _CAUSE_BARS
        for place, value in enumerate(lost.get_column(column).to_list())
        if value
    ]
    axis = amount_axis(max(hours), "", ticks=6, title="GPU-hours")
    rows = rows_axis([cause_label(cause) for cause in lost.get_column("cause")])
    return [Chart("", 20.0 * len(hours), axis, rows, tuple(boxes))]


def user_charts(report: WasteReport) -> list[Chart]:
    """Return the cumulative share of lost GPU-hours by user, most first."""
    users = report.users.sort("lost", descending=True, maintain_order=True)
    lost = users.get_column("lost").to_list()
    total = sum(lost)
    if len(lost) < 2 or not total:
        return []
    shares = (0.0, *(min(1.0, added / total) for added in accumulate(lost)))
    xs = [float(place) for place in range(len(shares))]
    names = tuple(name or "not known" for name in users.get_column("user").head(NAMED_USERS))
    named = slice(1, len(names) + 1)
    layers = (
        FilledArea(xs, (0.0,) * len(xs), shares, "accent"),
        Curve(xs, shares, "accent"),
        Dots(xs[named], shares[named], "ink", names=names),
    )
    counts = amount_axis(len(lost), "", ticks=8, title="users, most lost first")
    whole = tuple(
        tick for tick in counts.ticks if tick.value.is_integer() and tick.value <= len(lost)
    )
    axis = replace(counts, high=float(len(lost)), ticks=whole)
    return [Chart("Share of the lost GPU-hours", 160, axis, fraction_axis(step=0.25), layers)]


@cache
def _environment() -> Environment:
    made = environment()
    made.filters["quantity"] = text
    return made
