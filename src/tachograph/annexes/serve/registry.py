"""The catalogue of pages and endpoints.

A page is a module with PARAMETERS (a struct) and `content(view, parameters)`, which returns what
the template of the same name shows; it is added by one file and one line here. A page of an annex
or of an installed package names its module whole. Modules of `rest` and modules `endpoints` of
annexes list endpoints.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import cast

from tachograph.annexes.serve.guard import root_path
from tachograph.annexes.serve.openapi import DOCUMENT, openapi_document
from tachograph.annexes.serve.rest import jobs, service, usage
from tachograph.annexes.serve.snapshot import ServedLake
from tachograph.api.answers import ObjectAnswer
from tachograph.api.endpoints import Endpoint, ObjectShape
from tachograph.api.pages import PageEntry, PageModule
from tachograph.api.parameters import Parameters
from tachograph.api.viewer import Role
from tachograph.catalog.doors import added_entries
from tachograph.catalog.errors import ConfigError

PAGES: tuple[PageEntry, ...] = (
    PageEntry("/", "home", "Start", Role.USER, "Start"),
    PageEntry("/jobs", "jobs", "Jobs", Role.USER, "Jobs"),
    PageEntry("/job/{key}", "job", "Job", Role.USER),
    PageEntry(
        "/job/{key}/kernels",
        "job_kernels",
        "Kernels of a job",
        Role.USER,
        module="tachograph.annexes.share.pages.job_kernels",
    ),
    PageEntry("/search", "search", "Search", Role.USER),
    PageEntry("/compare", "compare", "Compare jobs", Role.USER),
    PageEntry("/findings", "findings", "Findings", Role.USER, "Findings", writes=Role.ADMIN),
    PageEntry("/user/{name}", "user", "User", Role.USER),
    PageEntry("/account/{name}", "account", "Account", Role.USER),
    PageEntry("/now", "now", "Now", Role.USER, "Now", module="tachograph.annexes.watch.pages.now"),
    PageEntry("/waste", "waste", "Waste", Role.ANONYMOUS, "Waste"),
    PageEntry(
        "/study", "study", "Study", Role.USER, "Study", module="tachograph.annexes.lab.pages.study"
    ),
    PageEntry(
        "/sharing",
        "sharing",
        "Sharing",
        Role.USER,
        "Sharing",
        module="tachograph.annexes.share.pages.sharing",
    ),
    PageEntry("/rules", "rules", "Rules", Role.USER, "Rules"),
    PageEntry("/status", "status", "Status", Role.SUPPORT, "Status"),
    PageEntry("/node/{name}", "node", "Node", Role.USER),
    PageEntry("/help", "help", "What the columns mean", Role.ANONYMOUS),
)
# pages that are files, such as pictures: what their modules return is a Document
DOCUMENTS: tuple[PageEntry, ...] = (
    PageEntry(
        "/study/{figure}.{suffix}",
        "study_figure",
        "Figure of the study",
        Role.USER,
        module="tachograph.annexes.lab.pages.study_figure",
    ),
    PageEntry(
        "/llms.txt",
        "llms",
        "Documentation as Markdown",
        Role.ANONYMOUS,
        module="tachograph.annexes.serve.pages.documentation",
    ),
    PageEntry("/docs/{page}", "documentation", "Page of the documentation", Role.ANONYMOUS),
)


def _endpoints_of(annex: str) -> tuple[Endpoint, ...]:
    """Return the endpoints that an annex answers; no annex imports another."""
    return tuple(import_module(f"tachograph.annexes.{annex}.endpoints").ENDPOINTS)


def _openapi(served: ServedLake, parameters: Parameters) -> ObjectAnswer:
    """Return the document of all endpoints, this one included."""
    return ObjectAnswer(openapi_document(ENDPOINTS, root_path(served.configuration.serve)))


ENDPOINTS: tuple[Endpoint, ...] = (
    *jobs.ENDPOINTS,
    *_endpoints_of("share"),
    *usage.ENDPOINTS,
    *_endpoints_of("lab"),
    *_endpoints_of("watch"),
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


@cache
def all_pages() -> tuple[PageEntry, ...]:
    """Return the pages of the project, then those that installed packages add.

    Errors: ConfigError for an added page without its module: it would break every page.
    """
    added = added_entries("pages", PageEntry)
    for entry in added:
        if not _is_installed(entry.module):
            problem = f"page {entry.name}: no module {entry.module!r}"
            raise ConfigError(problem, do="repair or remove the package that adds it")
    return (*PAGES, *added)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # of its package; of an empty name
        return False


@cache
def load_page(entry: PageEntry) -> PageModule:
    """Return the module of a page, imported now."""
    return cast(
        "PageModule", import_module(entry.module or f"tachograph.annexes.serve.pages.{entry.name}")
    )
