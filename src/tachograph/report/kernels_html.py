"""Kernels as one self-contained HTML page: no script, no reference to anything outside."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

from jinja2 import Environment
from markupsafe import Markup

from tachograph.catalog.units import printable, text
from tachograph.catalog.version import __version__
from tachograph.figures import kernel_page
from tachograph.report import kernels_sentences as sentences
from tachograph.report.kernels_text import LEVELS, legend, limited_by, pipe_text, sensitive_to, where_it_ran
from tachograph.report.pages import environment
from tachograph.sharing.advice import times
from tachograph.sharing.demand import PIPES
from tachograph.sharing.kernel_facts import GpuPart, KernelsReport, KernelView, pairs_of
from tachograph.sharing.kernel_names import shortened, shortened_apart
from tachograph.sharing.nsight_rules import compared_rules, rule_agreement

SHOWN_IN_FULL = 40  # kernels that have a paragraph of their own
LISTED = 50  # pairs of a table, files, problems; all are in JSON
_NAME = 44  # characters of a name; all of it stands with the kernel
_NAME_IN_TABLE = 32
_DRAWN = 0.05  # a pipe that no kernel uses more than this has no axis


def kernels_html(report: KernelsReport) -> str:
    """Return the page."""
    return _rendered("kernels.html.j2", report)


def kernels_body(report: KernelsReport) -> Markup:
    """Return the sections of the page; their style is `kernels.css`."""
    return Markup(_rendered("kernels_body.html.j2", report))


def _rendered(template: str, report: KernelsReport) -> str:
    return (
        _environment()
        .get_template(template)
        .render(
            report=report,
            parts=[(part, plots(part, place)) for place, part in enumerate(report.parts)],
            full=SHOWN_IN_FULL,
            listed=LISTED,
            version=__version__,
        )
    )


def plots(part: GpuPart, place: int = 0) -> dict[str, Markup | None]:
    """Return the plots {radar, roofline, pairs} of a GPU: SVG, or None where there is nothing to show."""
    named = [(view.number, view.label) for view in part.kernels]
    columns = [(view.number, view.label) for view in part.columns]
    svgs = {
        "radar": kernel_page.radars(named, _axes(part.kernels), name=f"radar{place}"),
        "roofline": kernel_page.roofline(
            _placed(part.kernels),
            bytes_per_s=part.gpu.dram_bytes_per_s,
            peaks=_peaks(part.kernels),
            name=f"roofline{place}",
        ),
        "pairs": None
        if part.pairs is None
        else kernel_page.pairs(named, columns, part.pairs.slowdown, name=f"pairs{place}"),
    }
    return {name: None if svg is None else Markup(svg) for name, svg in svgs.items()}


def _axes(views: Sequence[KernelView]) -> dict[str, list[float | None]]:
    """The values along each axis of the radars: pipes that some kernel uses, and what all kernels share."""
    axes = {"issue": [view.demand.cycles.get("issue") for view in views]}
    for pipe in PIPES:
        values = [view.demand.cycles.get(pipe) for view in views]
        if any(value is not None and value > _DRAWN for value in values):
            axes[sentences.RESOURCE_NAMES[pipe]] = values
    axes["DRAM"] = [view.demand.dram for view in views]
    axes["warps"] = [view.facts["occupancy"].share for view in views]
    axes["SMs"] = [view.demand.sm_share for view in views]
    return axes


def _placed(views: Sequence[KernelView]) -> list[kernel_page.Placed]:
    """Kernels whose operations and traffic are known; of several kinds of numbers all operations together."""
    return [
        kernel_page.Placed(view.number, place.intensity, sum(place.achieved.values()), view.share or 0.0)
        for view in views
        if (place := view.judged.placement).intensity is not None
    ]


def _peaks(views: Sequence[KernelView]) -> dict[str, float]:
    """{kind: highest peak} of kinds that some kernel uses: clocks differ a little from kernel to kernel."""
    used = {kind for view in views for kind, rate in view.judged.placement.achieved.items() if rate > 0}
    peaks: dict[str, float] = {}
    for view in views:
        for roof in view.judged.placement.roofs:
            if roof.name in used:
                name = sentences.PIPE_KIND_LABELS[roof.name]
                peaks[name] = max(roof.peak, peaks.get(name, 0.0))
    return peaks


def _named(views: Sequence[KernelView]) -> list[tuple[KernelView, str]]:
    """Kernels with what they are called in the table."""
    names = shortened_apart([view.label for view in views], _NAME_IN_TABLE)
    return list(zip(views, names, strict=True))


@cache
def _environment() -> Environment:
    made = environment()
    made.filters.update(
        quantity=text,
        fact=sentences.fact_text,
        times=times,
        resource=sentences.resource_name,
        printable=printable,
        short=partial(shortened, width=_NAME),
    )
    made.globals.update(
        sentences=sentences,
        limited_by=limited_by,
        sensitive_to=sensitive_to,
        busiest=pipe_text,
        where_it_ran=where_it_ran,
        levels=LEVELS,
        names=_named,
        legend=legend(short=False),
        pairs_of=pairs_of,
        compared_rules=compared_rules,
        rule_agreement=rule_agreement,
    )
    return made
