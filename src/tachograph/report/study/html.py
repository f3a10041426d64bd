"""The study as one self-contained HTML page: no script, no reference to anything outside, light, made to be printed."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from functools import cache

from jinja2 import Environment

from tachograph import __version__
from tachograph.figures.registry import QUESTIONS
from tachograph.figures.style import PAGE_IN
from tachograph.report.columns import local_time
from tachograph.report.pages import environment
from tachograph.report.study.report import StudyReport
from tachograph.report.study.words import NOT_ANSWERED, caption, choice_sentence, data_rows, methods, tiles

_WIDTH = re.compile(rb'<svg [^>]*?width="([\d.]+)pt"')


def study_html(report: StudyReport, pictures: Mapping[str, tuple[str, bytes]]) -> str:
    """Return the page. `pictures`: {figure: (svg or png, its bytes)} of the figures that are drawn."""
    sections = [("", "Overview", report.of_question(None))]
    sections += [(name, question, report.of_question(name)) for name, question in QUESTIONS.items()]
    return (
        _environment()
        .get_template("study.html.j2")
        .render(
            report=report,
            tiles=tiles(report),
            data_rows=data_rows(report),
            choice=choice_sentence(report),
            sections=[section for section in sections if section[2]],
            pictures={name: (_source(*picture), _width(*picture)) for name, picture in pictures.items()},
            not_answered=NOT_ANSWERED,
            methods=methods(report.settings),
            version=__version__,
            made=local_time(report.now, report.zone_name),
        )
    )


def _source(suffix: str, content: bytes) -> str:
    kind = {"svg": "image/svg+xml", "png": "image/png"}[suffix]
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _width(suffix: str, content: bytes) -> str:
    """How wide a picture is on the page: all of it for one made for two columns of a paper, others in proportion."""
    found = _WIDTH.search(content[:2000]) if suffix == "svg" else None
    share = float(found[1]) / (72 * PAGE_IN) if found else 1.0
    return f"{100 * min(1.0, share):.0f}%"


@cache
def _environment() -> Environment:
    made = environment()
    made.globals.update(caption=caption)
    return made
