"""Kernels as one self-contained HTML page: no script, no reference to anything outside."""

from __future__ import annotations

from markupsafe import Markup

from tachograph.annexes.share import kernels_text
from tachograph.annexes.share.kernel_facts import KernelsReport
from tachograph.catalog.units import printable
from tachograph.catalog.version import __version__
from tachograph.report.pages import environment

SHOWN_IN_FULL = 40  # kernels that have a paragraph of their own
LISTED = 50  # files, problems; all are in JSON


def kernels_html(report: KernelsReport) -> str:
    """Return the page."""
    return _rendered("kernels.html.j2", report)


def kernels_body(report: KernelsReport) -> Markup:
    """Return the sections of the page; their style is `kernels.css`."""
    return Markup(_rendered("kernels_body.html.j2", report))


def _rendered(template: str, report: KernelsReport) -> str:
    jinja = environment(__package__)
    jinja.filters["printable"] = printable
    return jinja.get_template(template).render(
        report=report,
        sections=kernels_text,
        full=SHOWN_IN_FULL,
        listed=LISTED,
        version=__version__,
    )
