"""The documentation as Markdown: the list of its pages for programs, llms.txt, and each page."""

from __future__ import annotations

from importlib.resources import files

from tachograph.annexes.serve.snapshot import View
from tachograph.api.pages import Document
from tachograph.api.parameters import Parameters, Word
from tachograph.catalog.errors import NotFoundError


class DocumentationParameters(Parameters, frozen=True, kw_only=True):
    """Which page: the name of a file such as jobs.md; default: their list."""

    page: Word = "llms.txt"


PARAMETERS = DocumentationParameters


def content(view: View, parameters: DocumentationParameters) -> Document:
    """Return a page of the installed version. Errors: NotFoundError for one that there is not."""
    pages = files("tachograph.annexes.serve") / "documentation"
    known = {page.name: page for page in pages.iterdir()}  # no path is made of a parameter
    if parameters.page not in known:
        raise NotFoundError("no such page of the documentation", do="see llms.txt")
    return Document(known[parameters.page].read_bytes(), "text/markdown")
