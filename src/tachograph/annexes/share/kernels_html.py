"""Kernels as one self-contained HTML page: no script, no reference to anything outside."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

from jinja2 import Environment
from markupsafe import Markup

from tachograph.annexes.share import kernels_sentences as sentences
from tachograph.annexes.share.advice import times
from tachograph.annexes.share.kernel_facts import KernelsReport, KernelView, pairs_of
from tachograph.annexes.share.kernel_names import shortened, shortened_apart
from tachograph.annexes.share.kernels_text import (
    LEVELS,
    MOST_COLUMNS,
    legend,
    limited_by,
    pipe_text,
    sensitive_to,
    where_it_ran,
)
from tachograph.catalog.units import printable, text
from tachograph.catalog.version import __version__
from tachograph.report.pages import environment

SHOWN_IN_FULL = 40  # kernels that have a paragraph of their own
LISTED = 50  # pairs of a table, files, problems; all are in JSON
_NAME = 44  # characters of a name; all of it stands with the kernel
_NAME_IN_TABLE = 32


def kernels_html(report: KernelsReport) -> str:
    """Return the page."""
    return _rendered("kernels.html.j2", report)


def kernels_body(report: KernelsReport) -> Markup:
    """Return the sections of the page; their style is `kernels.css`."""
    return Markup(_rendered("kernels_body.html.j2", report))


def _rendered(template: str, report: KernelsReport) -> str:
    page = _environment().get_template(template)
    return page.render(report=report, full=SHOWN_IN_FULL, listed=LISTED, version=__version__)


def _named(views: Sequence[KernelView]) -> list[tuple[KernelView, str]]:
    """Kernels with their names in the table."""
    names = shortened_apart([view.label for view in views], _NAME_IN_TABLE)
    return list(zip(views, names, strict=True))


@cache
def _environment() -> Environment:
    jinja = environment(__package__)
    jinja.filters.update(
        quantity=text,
        fact=sentences.fact_text,
        times=times,
        resource=sentences.resource_name,
        printable=printable,
        short=partial(shortened, width=_NAME),
    )
    jinja.globals.update(
        sentences=sentences,
        limited_by=limited_by,
        sensitive_to=sensitive_to,
        busiest=pipe_text,
        where_it_ran=where_it_ran,
        levels=LEVELS,
        names=_named,
        legend=legend(short=False),
        pairs_of=pairs_of,
        most_columns=MOST_COLUMNS,
    )
    return jinja
