"""What hostile text must not do in any output: judged by kind of output, with the parsers that
readers have.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from hostile_lake import steering
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tachograph.catalog.units import harmless_cell

# In what a browser would run, load or follow.
_PLANTED = re.compile(r"javascript:|alert\(1\)|evil\.example")
_LINKS = frozenset({"href", "src", "action", "formaction"})
_RUNS = _LINKS | {"style", "srcdoc", "data"}
_SITE = "https://own.example/"
# Begins of planted lines.
NEXT_LINE = re.compile(r"^(next: line|over|back|# head|evil\{)", re.MULTILINE)


def assert_plain(text: str, where: object) -> None:
    """Text for people: no character steers, and no line begins where a name wants it to."""
    assert steering(text) == [], (where, _around(text))
    planted = NEXT_LINE.search(text)
    assert planted is None, (where, text[max(0, planted.start() - 200) : planted.end() + 50])


def _around(text: str) -> str:
    place = next(place for place, letter in enumerate(text) if steering(letter))
    return repr(text[max(0, place - 80) : place + 40])


def _acts(name: str, value: str) -> bool:
    """Whether an attribute runs or styles what a name holds, or leads out of the site to where
    it says.
    """
    if name in _LINKS:
        target = urlsplit(urljoin(_SITE, value.strip()))
        return (
            f"{target.scheme}://{target.netloc}/" != _SITE
            and _PLANTED.search(unquote(value)) is not None
        )
    return _PLANTED.search(value) is not None


class _Page(HTMLParser):
    """Collects what a page would run."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.planted: list[object] = []
        self.texts: list[str] = []
        self._in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_script = tag == "script"
        for name, value in attrs:
            if name.startswith("on") or (name in _RUNS and _acts(name, value or "")):
                self.planted.append((tag, name, value))
            self.texts.append(value or "")
        if tag == "img" and ("src", "x") in attrs:
            self.planted.append((tag, attrs))

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self._in_script and "alert(1)" in data:
            self.planted.append(("script", data[:200]))


def assert_page(page: str, where: object) -> None:
    """HTML: no element, attribute or script of a name; nothing that steers once the references
    are resolved.
    """
    found = _Page()
    found.feed(page)
    found.close()
    assert found.planted == [], (where, found.planted[:3])
    assert [text for text in found.texts if steering(text)] == [], where
    assert steering(page) == [], (where, _around(page))


def assert_table(document: str, where: object, *, raw: bool = False) -> list[list[str]]:
    """CSV: rows of one length, and unless raw no cell that is a formula or steers; return the
    rows.
    """
    # A cell may hold several long names; the limit is that of the process.
    limit = csv.field_size_limit(10_000_000)
    try:
        rows = list(csv.reader(io.StringIO(document, newline="")))
    finally:
        csv.field_size_limit(limit)
    assert len({len(row) for row in rows}) <= 1, where
    if not raw:
        for cell in (cell for row in rows for cell in row):
            assert steering(cell) == [], (where, cell[:200])
            assert "\n" not in cell, (where, cell[:200])
            assert (
                cell == harmless_cell(cell) or harmless_cell(cell) == f"'{cell}" != cell[:1] == "'"
            ), (where, cell)
    return rows


def assert_json(document: str, where: object) -> Any:
    """JSON: it parses, and can be shown; return the value."""
    assert steering(document) == [], (where, _around(document))
    return json.loads(document)


def assert_metrics(document: str, where: object) -> list[str]:
    """OpenMetrics: the parser of Prometheus takes it, and has no family or label of a name;
    return values of labels.
    """
    families = list(text_string_to_metric_families(document))  # type: ignore[no-untyped-call]
    assert families, where
    assert not [one.name for one in families if "evil" in one.name], where
    return [
        value
        for family in families
        for sample in family.samples
        for value in sample.labels.values()
    ]


def texts_of(value: Any) -> Iterable[str]:
    """All texts of a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from texts_of(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts_of(each)
