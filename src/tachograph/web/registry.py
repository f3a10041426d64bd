"""The catalogue of what is served: a page or an endpoint is added by one file and one line here.

A page is a module of `web.pages` with PARAMETERS (a struct) and `content(view, parameters)`, which returns what the
template of the same name shows. An endpoint is a module of `web.rest` with PARAMETERS and `answer(view, parameters)`,
or `answer(view, parameters, paging)` where it RETURNS a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Literal, Protocol, cast

from tachograph.web.answers import Answer
from tachograph.web.parameters import Parameters
from tachograph.web.shapes import Shape
from tachograph.web.snapshot import View
from tachograph.web.viewer import Role

API = "/api/v1"


@dataclass(frozen=True, slots=True)
class PageEntry:
    """A page: its path, its module in `web.pages`, its title, the least role that opens it, its place in the menu.

    menu: heading in the menu; "" for a page that is reached by links. writes: the least role that may send its form;
    None for a page without. Its module has FORM (a struct) and `submit(view, form)` in addition.
    """

    path: str
    module: str
    title: str
    least: Role
    menu: str = ""
    writes: Role | None = None

    @property
    def methods(self) -> list[str]:
        """What it is requested with."""
        return ["GET"] if self.writes is None else ["GET", "POST"]


@dataclass(frozen=True, slots=True)
class EndpointEntry:
    """An endpoint of the REST API: its path below `/api/v1`, its module in `web.rest`, a sentence, the least role.

    versioned: it is the same as long as version and parameters are. of_lake: False where it is of the service alone,
    and is answered also while the lake cannot be read. light: the server makes a part of few rows itself, as it takes
    next to no time and memory; all other answers are made by a worker.
    """

    path: str
    module: str
    sentence: str
    least: Role
    method: str = "GET"
    body: Literal["", "json"] = ""
    versioned: bool = True
    of_lake: bool = True
    light: bool = False


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
# pages that are files, such as pictures: their modules have `document(view, parameters)`
DOCUMENTS: tuple[PageEntry, ...] = (
    PageEntry("/study/{figure}.{suffix}", "study_figure", "Figure of the study", Role.USER),
)
ENDPOINTS: tuple[EndpointEntry, ...] = (
    EndpointEntry("/jobs", "jobs", "Jobs, filtered and sorted.", Role.USER, light=True),
    EndpointEntry("/jobs/{key}", "job", "The report of one job.", Role.USER, light=True),
    EndpointEntry("/jobs/{key}/minutes", "job_minutes", "Counters of the GPUs of a job by minute.", Role.USER),
    EndpointEntry("/jobs/{key}/node_minutes", "job_node_minutes", "Counters of its nodes by minute.", Role.USER),
    EndpointEntry("/jobs/{key}/findings", "job_findings", "What was checked in a job, and the results.", Role.USER),
    EndpointEntry("/jobs/{key}/steps", "job_steps", "The steps of a job, and what they did with its GPUs.", Role.USER),
    EndpointEntry("/jobs/{key}/kernels", "job_kernels", "Kernels of the reports attached to a job.", Role.USER),
    EndpointEntry("/jobs/{key}/scores", "job_scores", "Its GPU scores, each way they were measured.", Role.USER),
    EndpointEntry("/users/{name}", "user", "What a user used: by week, lost and recovered.", Role.USER),
    EndpointEntry("/accounts/{name}", "account", "What an account used: by week, lost and recovered.", Role.USER),
    EndpointEntry("/now", "now", "Every visible GPU as it is now.", Role.USER, versioned=False, light=True),
    EndpointEntry("/nodes/{name}", "node", "Jobs of a node, use and health of its GPUs.", Role.USER),
    EndpointEntry("/status", "status", "The collector and its sources.", Role.SUPPORT, versioned=False, light=True),
    EndpointEntry("/findings", "findings", "Findings of jobs, filtered.", Role.USER),
    EndpointEntry("/waste", "waste", "The ledger of GPU time that did no work.", Role.ANONYMOUS),
    EndpointEntry("/study", "study", "The study of the system: figures and answers to its questions.", Role.USER),
    EndpointEntry("/labels", "labels", "Findings that a person confirmed or rejected.", Role.USER, versioned=False),
    EndpointEntry(
        *("/labels", "label_add", "Confirm or reject a finding of a job.", Role.ADMIN, "POST"),
        body="json",
        versioned=False,
        light=True,
    ),
    EndpointEntry(
        *("/advice", "advice", "What to request for a job, from the past jobs of its user.", Role.USER, "POST"),
        body="json",
        versioned=False,
        light=True,  # a form waits for it, and it is as small as the history of one user
    ),
    EndpointEntry("/me/jobs", "my_jobs", "The jobs of who asks, in few columns.", Role.USER, light=True),
    EndpointEntry(
        "/me", "me", "Who the request is from, and what they may see.", Role.USER, versioned=False, light=True
    ),
    EndpointEntry(
        "/openapi.json", "openapi", "This document, as OpenAPI 3.1.", Role.ANONYMOUS, of_lake=False, light=True
    ),
    EndpointEntry("/health", "health", "Whether the service can answer.", Role.ANONYMOUS, of_lake=False, light=True),
)


class PageModule(Protocol):
    """Interface of a page's module; FORM and `submit` only of pages that write."""

    PARAMETERS: type[Parameters]
    FORM: type[Parameters]

    def content(self, view: View, parameters: Any) -> Mapping[str, Any]:
        """Return what the template shows. Errors: TachographError, shown as a page with its status."""
        ...

    def submit(self, view: View, form: Any) -> str:
        """Do what the form requests; return the query of the page that is shown then. Errors: TachographError."""
        ...


@dataclass(frozen=True, slots=True)
class Document:
    """A file that is served: its bytes, their type, headers such as for caches."""

    content: bytes
    media_type: str
    headers: Mapping[str, str] = field(default_factory=dict)


class DocumentModule(Protocol):
    """Interface of the module of a page that is a file."""

    PARAMETERS: type[Parameters]

    def document(self, view: View, parameters: Any) -> Document:
        """Return the file. Errors: TachographError, shown as a page with its status."""
        ...


class EndpointModule(Protocol):
    """Interface of an endpoint's module."""

    PARAMETERS: type[Parameters]
    RETURNS: Shape

    def answer(self, view: Any, parameters: Any, paging: Any = ..., /) -> Answer:
        """Return the answer, in no format yet. Errors: TachographError, answered as a problem with its status.

        view: the View, of an endpoint of the service alone the ServedLake. paging: given to those that return a table.
        """
        ...


@cache
def load_page(entry: PageEntry) -> PageModule:
    """Return the module of a page, imported now."""
    return cast("PageModule", import_module(f"tachograph.web.pages.{entry.module}"))


@cache
def load_document(entry: PageEntry) -> DocumentModule:
    """Return the module of a page that is a file, imported now."""
    return cast("DocumentModule", import_module(f"tachograph.web.pages.{entry.module}"))


@cache
def load_endpoint(entry: EndpointEntry) -> EndpointModule:
    """Return the module of an endpoint, imported now."""
    return cast("EndpointModule", import_module(f"tachograph.web.rest.{entry.module}"))
