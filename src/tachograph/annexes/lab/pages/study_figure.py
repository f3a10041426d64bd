"""A figure of the study as an image of its own address."""

from __future__ import annotations

from tachograph.annexes.lab.figures.themed_svg import themed
from tachograph.annexes.lab.pages.study import drawn_study
from tachograph.api.pages import Document, PageView, Pending
from tachograph.api.parameters import StudyChoiceParameters, Word
from tachograph.catalog.errors import LakeError, NotFoundError

_KEPT = {"cache-control": "private, max-age=86400"}  # its address names the version of the lake


class StudyFigureParameters(StudyChoiceParameters, frozen=True, kw_only=True):
    """The figure, its format, and the settings of its study; `version`: of the lake, for caches."""

    figure: Word
    suffix: Word
    version: Word = ""


PARAMETERS = StudyFigureParameters


def content(view: PageView, parameters: StudyFigureParameters) -> Document:
    """Return the picture. Errors: NotFoundError without one; LakeError while it is drawn."""
    settings = {name: getattr(parameters, name) for name in StudyChoiceParameters.__struct_fields__}
    study = drawn_study(view, StudyChoiceParameters(**settings))
    if isinstance(study, Pending):
        raise LakeError("the study is being drawn", do="try again in a few seconds")
    picture = study.pictures.get(parameters.figure)
    if picture is None or parameters.suffix != "svg":
        raise NotFoundError(
            f"no picture {parameters.figure}.{parameters.suffix}", do="see the page of the study"
        )
    caching = _KEPT if parameters.version == str(view.version) else {}
    return Document(themed(picture.decode()).encode(), "image/svg+xml", caching)
