"""The documentation as Markdown: the list of its pages for programs, llms.txt, and each page."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Container
from importlib.resources import files

from tachograph.annexes.serve.snapshot import View
from tachograph.api.pages import Document
from tachograph.api.parameters import Parameters, Word
from tachograph.catalog.errors import NotFoundError

_LIST = "llms.txt"
# of a picture or not, its words, the file; no addresses and no places of the same page
_FILE_LINK = re.compile(r"(!?)\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(?:#[^)\s]*)?\)")


class DocumentationParameters(Parameters, frozen=True, kw_only=True):
    """Which page: the name of a file such as jobs.md; default: their list."""

    page: Word = _LIST


PARAMETERS = DocumentationParameters


def content(view: View, parameters: DocumentationParameters) -> Document:
    """Return a page of the installed version. Errors: NotFoundError for one that there is not."""
    pages = files("tachograph.annexes.serve") / "documentation"
    by_name = {page.name: page for page in pages.iterdir()}  # no path is made of a parameter
    if parameters.page not in by_name:
        raise NotFoundError("no such page of the documentation", do="see llms.txt")
    text = by_name[parameters.page].read_text(encoding="utf-8")
    if parameters.page != _LIST:
        text = name_other_files(text, by_name)
    return Document(text.encode(), "text/markdown")


def name_other_files(text: str, pages: Container[str]) -> str:
    """Return a page in which links to files that are not installed are names of these files.

    >>> name_other_files("[jobs](jobs.md#find) [how](../README.md#install) ![GPUs](images/a.png)", ["jobs.md"])
    '[jobs](jobs.md#find) how (`README.md` of the sources) *Picture: GPUs*'
    """

    def named(link: re.Match[str]) -> str:
        is_picture, words, target = link.groups()
        if target in pages:
            return link[0]
        if is_picture:
            return f"*Picture: {words}*"
        path = posixpath.normpath(f"docs/{target}")
        return words if path in words else f"{words} (`{path}` of the sources)"

    return _FILE_LINK.sub(named, text)
