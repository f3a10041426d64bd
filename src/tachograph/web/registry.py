"""The catalogue of what is served.

A page is a module of `web.pages` with PARAMETERS (a struct) and `content(view, parameters)`, which
returns what the template of the same name shows; it is added by one file and one line here. Modules
of `web.rest` list endpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Protocol, cast

from tachograph.web.answers import ObjectAnswer
from tachograph.web.endpoints import Endpoint
from tachograph.web.guard import root_path
from tachograph.web.openapi import DOCUMENT, openapi_document
from tachograph.web.parameters import Parameters
from tachograph.web.rest import jobs, service, usage
from tachograph.web.shapes import ObjectShape
from tachograph.web.snapshot import ServedLake, View
from tachograph.web.viewer import Role


@dataclass(frozen=True, slots=True)
class PageEntry:
    """A page: its path, the name of its module in `web.pages`, its title, the least role that opens
    it.

    menu: heading in the menu; "" for a page that is reached by links. writes: the least role that
    may send its form; None for a page without. Its module has FORM (a struct) and `submit(view,
    form)` in addition.
    """

    path: str
    name: str
    title: str
    least: Role
    menu: str = ""
    writes: Role | None = None

    @property
    def methods(self) -> list[str]:
        """What it is requested with."""
        return ["GET"] if self.writes is None else ["GET", "POST"]


PAGES: tuple[PageEntry, ...] = (
    PageEntry("/", "home", "Start", Role.USER, "Start"),
    PageEntry("/jobs", "jobs", "Jobs", Role.USER, "Jobs"),
    PageEntry("/job/{key}", "job", "Job", Role.USER),
    PageEntry("/job/{key}/kernels", "job_kernels", "Kernels of a job", Role.USER),
    PageEntry("/job/{key}/scores", "job_scores", "GPU scores of a job", Role.USER),
    PageEntry("/compare", "compare", "Compare jobs", Role.USER),
    PageEntry("/findings", "findings", "Findings", Role.USER, "Findings", writes=Role.ADMIN),
    PageEntry("/user/{name}", "user", "User", Role.USER),
    PageEntry("/account/{name}", "account", "Account", Role.USER),
    PageEntry("/now", "now", "Now", Role.USER, "Now"),
    PageEntry("/waste", "waste", "Waste", Role.ANONYMOUS, "Waste"),
    PageEntry("/study", "study", "Study", Role.USER, "Study"),
    PageEntry("/sharing", "sharing", "Sharing", Role.USER, "Sharing"),
    PageEntry("/rules", "rules", "Rules", Role.USER, "Rules"),
    PageEntry("/status", "status", "Status", Role.SUPPORT, "Status"),
    PageEntry("/node/{name}", "node", "Node", Role.USER),
    PageEntry("/api/docs", "api_docs", "REST API", Role.USER, "API"),
)
# pages that are files, such as pictures: what their modules return is a Document
DOCUMENTS: tuple[PageEntry, ...] = (
    PageEntry("/study/{figure}.{suffix}", "study_figure", "Figure of the study", Role.USER),
)


def _openapi(served: ServedLake, parameters: Parameters) -> ObjectAnswer:
    """Return the document of all endpoints, this one included."""
    return ObjectAnswer(openapi_document(ENDPOINTS, root_path(served.configuration.serve)))


ENDPOINTS: tuple[Endpoint, ...] = (
    *jobs.ENDPOINTS,
    *usage.ENDPOINTS,
    *service.ENDPOINTS,
    Endpoint(
        "/openapi.json",
        "openapi",
        "This document, as OpenAPI 3.1.",
        _openapi,
        ObjectShape(lambda: DOCUMENT),
        least=Role.ANONYMOUS,
        of_lake=False,
        light=True,
    ),
)


class PageModule(Protocol):
    """Interface of a page's module; FORM and `submit` only of pages that write."""

    PARAMETERS: type[Parameters]
    FORM: type[Parameters]

    def content(self, view: View, parameters: Any) -> Mapping[str, Any] | Document:
        """Return what the template shows, or a file. Errors: TachographError, shown as a page
        with its status.
        """
        ...

    def submit(self, view: View, form: Any) -> str:
        """Do what the form requests; return the query of the page that is shown then. Errors:
        TachographError.
        """
        ...


@dataclass(frozen=True, slots=True)
class Document:
    """A file that is served: its bytes, their type, headers such as for caches."""

    content: bytes
    media_type: str
    headers: Mapping[str, str] = field(default_factory=dict)


@cache
def load_page(entry: PageEntry) -> PageModule:
    """Return the module of a page, imported now."""
    return cast("PageModule", import_module(f"tachograph.web.pages.{entry.name}"))
