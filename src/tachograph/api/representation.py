"""Results in notebooks: pages in a frame, preformatted text, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_FRAME = (
    '<iframe srcdoc="{page}" title="{title}" sandbox="allow-scripts" loading="lazy" '
    'style="width: 100%; height: 640px; border: 1px solid #8886; border-radius: 4px"></iframe>'
)


def framed(page: str, title: str) -> str:
    """Return a page as an iframe, so that its style and the notebook's do not interfere.

    >>> framed('<p class="a">1</p>', "Job 7")[:74]
    '<iframe srcdoc="&lt;p class=&quot;a&quot;&gt;1&lt;/p&gt;" title="Job 7" sa'
    """
    return _FRAME.format(page=escape(page), title=escape(title))


def preformatted(text: str) -> str:
    """Return text as an element, with its lines and columns.

    >>> preformatted("a < b")
    '<pre style="line-height: 1.3; white-space: pre">a &lt; b</pre>'
    """
    return f'<pre style="line-height: 1.3; white-space: pre">{escape(text)}</pre>'


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as an element: the first column left-aligned, the others right-aligned.

    >>> table(("table", "rows"), [("jobs", "7")]).count("<td"), "<td" in table(("table",), [])
    (2, False)
    """

    def line(cells: Sequence[str], tag: str) -> str:
        html = ""
        side = "left"
        for cell in cells:
            html += f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>'
            side = "right"
        return html

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{line(headings, 'th')}</tr></thead><tbody>{body}</tbody></table>"
