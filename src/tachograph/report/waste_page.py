"""The ledger as one HTML page without script or external references."""

from __future__ import annotations

from functools import cache

import polars as pl
from jinja2 import Environment
from markupsafe import Markup

from tachograph.catalog.tables import WASTE
from tachograph.catalog.units import plural, text
from tachograph.catalog.version import __version__
from tachograph.judge.ledger import WASTE_LEFT_OUT, WasteReport
from tachograph.report.drawing import waste_page
from tachograph.report.drawing.style import DRAWING
from tachograph.report.pages import environment
from tachograph.report.waste import (
    WASTE_HELD,
    WASTE_NO_PRICE,
    cause_label,
    group_name,
    money,
    unpriced,
    waste_headline,
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
        "held": WASTE_HELD,
        "no_price": WASTE_NO_PRICE,
    }


def waste_plots(report: WasteReport) -> dict[str, Markup | None]:
    """Return the SVG plots {causes, users}; None without data."""
    lost = report.causes.filter(pl.col("cause").is_in(WASTE))
    hours, back = (lost.get_column(name).to_numpy() for name in ("gpu_hours", "recoverable"))
    users = [name or "not known" for name in report.users.get_column("user")]
    with DRAWING:
        svgs = {
            "causes": waste_page.by_cause(
                [cause_label(cause) for cause in lost.get_column("cause")], hours, back
            ),
            "users": waste_page.by_user(users, report.users.get_column("lost").to_numpy()),
        }
    return {name: None if svg is None else Markup(svg) for name, svg in svgs.items()}


@cache
def _environment() -> Environment:
    made = environment()
    made.filters["quantity"] = text
    return made
