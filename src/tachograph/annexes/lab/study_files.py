"""The study as files: figures, numbers, and the page.

Each file appears whole, or nothing does.
"""

from __future__ import annotations

import json
import re
import shutil
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from markupsafe import Markup

from tachograph.annexes.lab.figures import style
from tachograph.annexes.lab.figures.registry import FORMATS, QUESTIONS
from tachograph.annexes.lab.figures.study import MadeFigure, Progress, StudyReport
from tachograph.annexes.lab.figures.themed_svg import themed
from tachograph.annexes.lab.study import (
    NOT_ANSWERED,
    caption,
    choice_sentence,
    data_rows,
    figure_json,
    first_sentences,
    json_text,
    methods,
    study_json,
    tiles,
)
from tachograph.catalog.columns import local_time
from tachograph.catalog.errors import ExportError, UsageError, cure_unwritable
from tachograph.catalog.spreadsheets import table_csv
from tachograph.catalog.version import __version__
from tachograph.report.pages import environment

_WIDTH = re.compile(rb'<svg [^>]*?width="([\d.]+)pt"')
_PNG = b"\x89PNG"  # how a file in this format begins


def study_html(report: StudyReport, pictures: Mapping[str, bytes]) -> str:
    """Return the page. `pictures`: the drawn figures as SVG or PNG."""

    def picture(figure: MadeFigure) -> Markup:
        content = pictures.get(figure.entry.name)
        return Markup("") if content is None else _picture(figure, content)

    values = study_values(report, picture)
    return environment(__package__).get_template("study.html.j2").render(values)


def study_values(report: StudyReport, picture: Callable[[MadeFigure], Markup]) -> dict[str, Any]:
    """Return the values of `study_body.html.j2`, in whichever page includes it.

    `picture` returns the element that shows a figure, nothing for one that is not drawn.
    """
    sections = [("", "Overview", report.of_question(None))]
    sections += [(name, question, report.of_question(name)) for name, question in QUESTIONS.items()]
    return {
        "report": report,
        "tiles": tiles(report),
        "data_rows": data_rows(report),
        "selection": choice_sentence(report),
        "sections": [section for section in sections if section[2]],
        "picture": picture,
        "caption": caption,
        "first_sentences": first_sentences,
        "consequences": report.consequences(),
        "not_answered": NOT_ANSWERED,
        "methods": methods(report.settings),
        "version": __version__,
        "made": local_time(report.now, report.zone_name),
    }


def draw_study(report: StudyReport, progress: Progress | None = None) -> dict[str, bytes]:
    """Return the drawn figures of a study as SVG."""
    figures = [figure for figure in report.figures if figure.drawn]
    pictures = {}
    for number, figure in enumerate(figures):
        if progress:
            progress(f"draw {figure.entry.name}", number, len(figures))
        pictures[figure.entry.name] = style.render(figure.draw(), ["svg"])["svg"]
    return pictures


def _picture(figure: MadeFigure, content: bytes) -> Markup:
    """A figure as a page element at its usual width; the page needs no other file."""
    is_png = content.startswith(_PNG)
    drawing = b64encode(content if is_png else themed(content.decode()).encode()).decode()
    width = picture_width(content)
    return Markup(
        '<div class="picture" style="width: {}%; --share: {}">'
        '<img src="data:image/{};base64,{}" alt="{}"></div>'
    ).format(width, width / 100, "png" if is_png else "svg+xml", drawing, figure.entry.title)


def picture_width(content: bytes) -> int:
    """Return the width of an SVG or PNG in percent of the page; 100 for two columns of a paper."""
    if content.startswith(_PNG):
        width_in = int.from_bytes(content[16:20]) / style.DPI
    else:
        match = _WIDTH.search(content[:2000])
        width_in = float(match[1]) / 72 if match else style.PAGE_IN
    return round(100 * min(1.0, width_in / style.PAGE_IN))


PAGES = ("study.html", "study.json")
_OF_A_FIGURE = re.compile(r"\d\d_\w+(\.\w+)?\.(pdf|svg|png|json|csv)")


@dataclass(frozen=True, slots=True)
class WrittenStudy:
    """Names of the files written into `folder`, and of removed files of an earlier study."""

    folder: Path
    files: tuple[str, ...]
    removed: tuple[str, ...] = ()


def write_study(
    report: StudyReport,
    folder: Path,
    *,
    formats: Sequence[str] = FORMATS,
    progress: Progress | None = None,
) -> WrittenStudy:
    """Write the study into a folder, created if missing; return the file names.

    Writes study.html, study.json, and for each figure its numbers (.json, a .csv per
    part) and, if drawn, the drawing in each format. All files are written elsewhere and then
    renamed, so a failure leaves the folder unchanged. Files of an earlier study that this one does
    not write are removed, all others stay. Errors: UsageError for a file as folder, or an unknown
    format; ExportError if writing fails.
    """
    formats = check_formats(formats)
    pictures = {}
    with writable(folder) as aside:
        for number, figure in enumerate(report.figures):
            if progress:
                progress(f"draw {figure.entry.name}", number, len(report.figures))
            _write_numbers(figure, aside)
            if figure.drawn:
                pictures[figure.entry.name] = _draw_files(figure, aside, formats)
        (aside / "study.html").write_text(study_html(report, pictures), encoding="utf-8")
        files = sorted({*(file.name for file in aside.iterdir()), *PAGES})
        (aside / "study.json").write_text(json_text(study_json(report, files)), encoding="utf-8")
        removed = sorted(_of_before(folder) - set(files))
        move(aside, folder, files)
        for name in removed:
            (folder / name).unlink(missing_ok=True)
    return WrittenStudy(folder, tuple(files), tuple(removed))


def check_formats(formats: Sequence[str]) -> tuple[str, ...]:
    """Return the formats, each once.

    Errors: UsageError for an unknown format.
    """
    for name in formats:
        if name not in FORMATS:
            raise UsageError(f"no format {name!r}", do=f"use {', '.join(FORMATS)}")
    return tuple(dict.fromkeys(formats))


def check_folder(folder: Path) -> None:
    """Check that the folder exists or can be made.

    Errors: UsageError if it is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(
            "is a file, not a folder", where=str(folder), do="name another folder with -o"
        )


@contextmanager
def writable(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder inside `folder`; both are removed if nothing was written.

    Errors: UsageError if `folder` is no folder; ExportError for errors of the operating system.
    """
    check_folder(folder)
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        aside = Path(mkdtemp(prefix=".study-", dir=folder))
        try:
            yield aside
        finally:
            shutil.rmtree(aside, ignore_errors=True)
            if is_new and not any(folder.iterdir()):
                folder.rmdir()
    except OSError as problem:
        raise ExportError(
            f"cannot be written: {problem.strerror or problem}",
            where=str(folder),
            do=cure_unwritable(problem, "name another folder with -o"),
        ) from problem


def move(aside: Path, folder: Path, names: Iterable[str]) -> None:
    """Move complete files from a folder of `writable` to their destination."""
    for name in names:
        (aside / name).replace(folder / name)


def _write_numbers(figure: MadeFigure, folder: Path) -> None:
    stem = figure.entry.stem
    (folder / f"{stem}.json").write_text(json_text(figure_json(figure)), encoding="utf-8")
    for part, table in figure.numbers.tables.items():
        (folder / f"{stem}.{part}.csv").write_text(table_csv(table), encoding="utf-8")


def _draw_files(figure: MadeFigure, folder: Path, formats: Sequence[str]) -> bytes:
    """Write the drawing in each format; return it for the page: as SVG, else PNG, if written."""
    on_page = "png" if "png" in formats and "svg" not in formats else "svg"
    drawings = style.render(figure.draw(), sorted({*formats, on_page}))
    for suffix in formats:
        (folder / f"{figure.entry.stem}.{suffix}").write_bytes(drawings[suffix])
    return drawings[on_page]


def _of_before(folder: Path) -> set[str]:
    """Files of figures that the study which is there names as its own."""
    try:
        before: Any = json.loads((folder / "study.json").read_text(encoding="utf-8"))
        named = before["files"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return set()
    return {name for name in named if isinstance(name, str) and _OF_A_FIGURE.fullmatch(name)}
