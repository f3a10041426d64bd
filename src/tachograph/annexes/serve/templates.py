"""Templates of pages: those of reports, and local ones that extend `base.html.j2`."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

from jinja2 import BaseLoader, ChoiceLoader, Environment, PackageLoader
from starlette.requests import Request

from tachograph.api.pages import PageEntry
from tachograph.api.viewer import Viewer
from tachograph.catalog.columns import column_heading, column_text
from tachograph.catalog.units import plural
from tachograph.catalog.version import __version__
from tachograph.judge.checks import CHECKS
from tachograph.report.pages import STATIC, environment

SESSION = "session"  # key in the state of a request: whether the browser can end it
_FOLDERS = (files("tachograph.annexes.serve") / "static", files(STATIC[0]) / STATIC[1])


def render(
    name: str, request: Request, viewer: Viewer, title: str, values: Mapping[str, Any]
) -> str:
    """Return a page: the template called `name` with `values`."""
    page = _environment().get_template(f"{name}.html.j2")
    state = request.scope.get("state", {})
    return page.render(
        {
            "request": request,
            "viewer": viewer,
            "title": title,
            "root": request.scope.get("root_path", ""),
            "session": state.get(SESSION, False),
            "newest": None,
            **values,
        }
    )


def query_with(request: Request, **changes: object) -> str:
    """Return `?` and the query with some values changed; None removes one."""
    unchanged = [
        (name, value)
        for name, value in request.query_params.multi_items()
        if value and name not in changes
    ]
    return "?" + urlencode(
        [*unchanged, *((name, str(value)) for name, value in changes.items() if value is not None)]
    )


@cache
def asset(name: str) -> str:
    """Return a static file's path with a digest of its content, so browsers can cache it.

    >>> asset("web.css").partition("?v=")[0]
    'web.css'
    """
    file = next(folder / name for folder in _FOLDERS if (folder / name).is_file())
    return f"{name}?v={hashlib.sha256(file.read_bytes()).hexdigest()[:12]}"


@cache
def _environment() -> Environment:
    from tachograph.annexes.serve.pages.help import COLUMNS, SUMS
    from tachograph.annexes.serve.registry import all_pages

    jinja = environment()
    pages = all_pages()
    jinja.loader = ChoiceLoader(list(_loaders(pages)))
    jinja.globals.update(
        menu=[entry for entry in pages if entry.menu],
        heading=column_heading,
        column_text=column_text,
        plural=plural,
        served=frozenset(entry.name for entry in pages),
        explains=frozenset((*COLUMNS, *SUMS)),
        query_with=query_with,
        asset=asset,
        checks_by_code={check.code: check for check in CHECKS},
        version=__version__,
    )
    return jinja


def _loaders(pages: Iterable[PageEntry]) -> Iterator[BaseLoader]:
    """Templates of the server, page packages, shared frames, and reports."""
    folders = [entry.module.rpartition(".")[0] for entry in pages if entry.module]
    packages = [
        "tachograph.annexes.serve",
        *folders,
        *(name.rpartition(".")[0] for name in folders),
    ]
    for package in dict.fromkeys((*packages, "tachograph.report")):
        with contextlib.suppress(ValueError):  # it has no templates
            yield PackageLoader(package)
