"""The catalogue of what is served: a page or an endpoint is added by one file and one line here.

A page is a module of `web.pages` with PARAMETERS (a struct) and `content(view, parameters)`, which returns what the
template of the same name shows. An endpoint is a module of `web.rest` with PARAMETERS and `answer(view, parameters)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Protocol, cast

from tachograph.web.answers import Answer
from tachograph.web.parameters import Parameters
from tachograph.web.snapshot import View
from tachograph.web.viewer import Role

API = "/api/v1"


@dataclass(frozen=True, slots=True)
class PageEntry:
    """A page: its path, its module in `web.pages`, its title, the least role that opens it, its place in the menu.

    menu: heading in the menu; "" for a page that is reached by links.
    """

    path: str
    module: str
    title: str
    least: Role
    menu: str = ""


@dataclass(frozen=True, slots=True)
class EndpointEntry:
    """An endpoint of the REST API: its path below `/api/v1`, its module in `web.rest`, a sentence, the least role."""

    path: str
    module: str
    sentence: str
    least: Role
    method: str = "GET"


PAGES: tuple[PageEntry, ...] = (
    PageEntry("/jobs", "jobs", "Jobs", Role.USER, "Jobs"),
    PageEntry("/job/{key}", "job", "Job", Role.USER),
)
ENDPOINTS: tuple[EndpointEntry, ...] = (
    EndpointEntry("/jobs", "jobs", "Jobs, filtered and sorted.", Role.USER),
    EndpointEntry("/jobs/{key}", "job", "The report of one job.", Role.USER),
)


class PageModule(Protocol):
    """Interface of a page's module."""

    PARAMETERS: type[Parameters]

    def content(self, view: View, parameters: Any) -> Mapping[str, Any]:
        """Return what the template shows. Errors: TachographError, shown as a page with its status."""
        ...


class EndpointModule(Protocol):
    """Interface of an endpoint's module."""

    PARAMETERS: type[Parameters]

    def answer(self, view: View, parameters: Any) -> Answer:
        """Return the answer, in no format yet. Errors: TachographError, answered as a problem with its status."""
        ...


@cache
def load_page(entry: PageEntry) -> PageModule:
    """Return the module of a page, imported now."""
    return cast("PageModule", import_module(f"tachograph.web.pages.{entry.module}"))


@cache
def load_endpoint(entry: EndpointEntry) -> EndpointModule:
    """Return the module of an endpoint, imported now."""
    return cast("EndpointModule", import_module(f"tachograph.web.rest.{entry.module}"))
