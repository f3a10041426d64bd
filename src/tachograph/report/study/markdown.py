"""The study as Markdown: study.md, with the figures that lie beside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from tachograph import __version__
from tachograph.figures.registry import QUESTIONS
from tachograph.report.columns import local_time
from tachograph.report.study.report import MadeFigure, StudyReport
from tachograph.report.study.words import NOT_ANSWERED, caption, choice_sentence, data_rows, methods

_SHOWN = ("png", "svg")  # formats that readers of Markdown show
_STEERING = re.compile(r"([\\`*_\[\]<>|#])")


def study_markdown(report: StudyReport, formats: Sequence[str]) -> str:
    """Return the page; figures are shown as PNG or SVG where one was written, else linked."""
    return "\n".join(_lines(report, formats)).rstrip() + "\n"


def _lines(report: StudyReport, formats: Sequence[str]) -> Iterator[str]:
    yield from (f"# {escaped(report.title)}", "", f"Jobs that ran {report.span}.", "")
    yield from ("## The data", "", *_table(("", ""), data_rows(report)), "", escaped(choice_sentence(report)), "")
    yield from _removals(report)
    yield from _section("Overview", report.of_question(None), formats)
    for name, question in QUESTIONS.items():
        yield from _section(f"{name}: {question}", report.of_question(name), formats)
    yield from ("## How it was computed", "")
    yield from (f"- **{escaped(term)}**: {escaped(said)}." for term, said in methods(report.settings))
    yield from ("", f"Tachograph {__version__}, {local_time(report.now, report.zone_name)}.")


def _removals(report: StudyReport) -> Iterator[str]:
    rows = [
        (
            f"`{removal.reason}`: {removal.sentence}" + (" (switched off)" if removal.ignored else ""),
            f"{removal.jobs:,}",
            f"{removal.removed:,}",
            f"{removal.left:,}",
        )
        for removal in report.dataset.removals
    ]
    yield from _table(("filter: jobs that are left out", "jobs", "removed", "left"), rows, code=True)
    yield from ("", "`jobs` meet the filter; `removed` are those of them that no filter above it removed.", "")


def _section(title: str, figures: Sequence[MadeFigure], formats: Sequence[str]) -> Iterator[str]:
    if not figures:
        return
    yield from (f"## {title}", "")
    if not any(figure.sentences for figure in figures):
        yield from (NOT_ANSWERED, "")
    for figure in figures:
        yield from (f"- {escaped(sentence)}" for sentence in figure.sentences)
        yield from ([""] if figure.sentences else [])
        if figure.drawn:
            yield from (_image(figure, formats), "")
        yield from (f"*{escaped(caption(figure))}*", "")


def _image(figure: MadeFigure, formats: Sequence[str]) -> str:
    for suffix in _SHOWN:
        if suffix in formats:
            return f"![{escaped(figure.entry.title)}]({figure.entry.stem}.{suffix})"
    return f"[{escaped(figure.entry.title)}]({figure.entry.stem}.{formats[0]})"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, code: bool = False) -> Iterator[str]:
    made: Callable[[str], str] = _escaped_but_code if code else escaped
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join(['---'] + ['---' if len(head) == 2 else '---:'] * (len(head) - 1))} |"
    yield from (f"| {' | '.join(made(cell) for cell in row)} |" for row in rows)


def _escaped_but_code(words: str) -> str:
    return "`".join(part if place % 2 else escaped(part) for place, part in enumerate(words.split("`")))


def escaped(words: str) -> str:
    r"""Return words whose characters mean nothing to Markdown: names are what users write.

    >>> escaped("a_b | <script>") == r"a\_b \| \<script\>"
    True
    """
    return _STEERING.sub(r"\\\1", " ".join(words.split()))
