"""The study of the system, drawn in the background: answers, figures, the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from tachograph.annexes.lab.figures.statistics import WHISKERS
from tachograph.annexes.lab.figures.study import VARIANTS, MadeFigure, StudyReport
from tachograph.annexes.lab.figures.style import DRAWING
from tachograph.annexes.lab.lake_study import WINDOWS_MIN
from tachograph.annexes.lab.study_files import draw_study, picture_width, study_values
from tachograph.api.pages import PageView, Pending, Progress
from tachograph.api.parameters import StudyChoiceParameters
from tachograph.catalog.errors import NotFoundError
from tachograph.catalog.tables import PIPES

# of the settings that are chosen on the page
CHOICES = {
    "pipe": tuple(PIPES),
    "window": WINDOWS_MIN,
    "variant": tuple(VARIANTS),
    "whiskers": tuple(WHISKERS),
}


PARAMETERS = StudyChoiceParameters


@dataclass(frozen=True, slots=True)
class DrawnStudy:
    """A study with its pictures as SVG; `problem`: why it is missing."""

    report: StudyReport | None
    pictures: Mapping[str, bytes]
    problem: str = ""


def drawn_study(view: PageView, parameters: StudyChoiceParameters) -> DrawnStudy | Pending:
    """Return the study of visible jobs, computed once per version and settings.

    Errors: UsageError for an invalid setting.
    """
    if not len(view.jobs):
        return DrawnStudy(None, {}, "none of your visible jobs is analyzed yet")

    return view.made(_draw_all, parameters)


def _draw_all(view: PageView, progress: Progress, parameters: StudyChoiceParameters) -> DrawnStudy:
    try:
        study = view.opened.study(
            wanted=parameters.job_filter(now=view.now, zone_name=view.zone_name),
            **parameters.settings(),
            progress=progress,
        )
    except NotFoundError as nothing:
        return DrawnStudy(None, {}, nothing.what)
    with DRAWING:
        return DrawnStudy(study.report, draw_study(study.report, progress))


def content(view: PageView, parameters: StudyChoiceParameters) -> Mapping[str, Any]:
    """Return the study, or how far it is."""
    parameters = view.of_recent(parameters)
    drawing = drawn_study(view, parameters)
    values: dict[str, Any] = {
        "parameters": parameters,
        "choices": CHOICES,
        "pending": drawing if isinstance(drawing, Pending) else None,
        "problem": "" if isinstance(drawing, Pending) else drawing.problem,
        "study": None,
    }
    if isinstance(drawing, Pending) or drawing.report is None:
        return values

    def picture(figure: MadeFigure) -> Markup:
        entry, content = figure.entry, drawing.pictures.get(figure.entry.name)
        if content is None:
            return Markup("")
        # an address of its own per version, so that a browser may keep it
        query = parameters.as_query(version=str(view.version))
        return Markup(
            '<img src="study/{}.svg?{}" alt="{}" class="picture of{}" loading="lazy">'
        ).format(entry.name, query, entry.title, _tenth(picture_width(content)))

    shown = study_values(drawing.report, picture)
    return {**values, "study": shown, **shown}


def _tenth(percent: int) -> int:
    """Width in steps of ten percent, for a class of the style sheet."""
    return min(10, max(3, round(percent / 10)))
