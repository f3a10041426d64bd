"""The web application: routes, authentication, visibility, errors as pages or problems."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby
from typing import Any, Self
from urllib.parse import urlencode

import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from tachograph.annexes.serve import templates
from tachograph.annexes.serve.answers import is_named, problem
from tachograph.annexes.serve.endpoints import API, NotAcceptableError, answer_request
from tachograph.annexes.serve.forms import check_same_site, read_form
from tachograph.annexes.serve.guard import VIEWER, Guard, Log, open_log
from tachograph.annexes.serve.identity.identities import NO_LINK, Identities, StartLink
from tachograph.annexes.serve.identity.proof import NotIdentifiedError
from tachograph.annexes.serve.identity.sessions import COOKIE
from tachograph.annexes.serve.lanes import Lanes, address_of, sender_of
from tachograph.annexes.serve.login import login_routes, unsubscribe_routes
from tachograph.annexes.serve.registry import (
    DOCUMENTS,
    ENDPOINTS,
    all_pages,
    load_page,
)
from tachograph.annexes.serve.snapshot import RETRY_S, NotReadyError, ServedLake
from tachograph.annexes.serve.sums import PARAMETERS as SUMS_PARAMETERS
from tachograph.annexes.serve.tools import ToolReply, answer_tool, find_tool
from tachograph.annexes.serve.workers import Ending, silent, until_gone
from tachograph.api.endpoints import Endpoint
from tachograph.api.pages import Document, PageEntry
from tachograph.api.parameters import read_parameters
from tachograph.api.viewer import NOBODY, Role, Viewer
from tachograph.catalog.config import ServeOptions
from tachograph.catalog.errors import (
    LakeError,
    NotAnalyzedError,
    NotFoundError,
    SeveralJobsError,
    TachographError,
    UsageError,
)
from tachograph.catalog.units import printable
from tachograph.report.pages import STATIC

Handler = Callable[[Request], Awaitable[Response]]
_AGAIN_FAILED_S = 20  # so is one of a failure
# {error: status of its answer}, the most specific first
STATUS: Mapping[type[TachographError], int] = {
    NotIdentifiedError: 401,
    NotFoundError: 404,
    NotAcceptableError: 406,
    UsageError: 400,
    LakeError: 503,
}


@dataclass(frozen=True, slots=True)
class WebService:
    """State shared by all handlers. `alive`: called every `poll_s` s. held_s: before 429."""

    served: ServedLake
    identities: Identities
    lanes: Lanes
    log: Log | None = None
    poll_s: float = 5.0
    alive: Callable[[], None] = lambda: None
    held_s: float = 0.0

    @classmethod
    def of(cls, served: ServedLake, *, link: StartLink = NO_LINK, cookie: str = COOKIE) -> Self:
        """Return the configured service. Errors: ConfigError for an invalid or unsafe key."""
        options = served.configuration.serve
        lanes = Lanes(
            options.requests_per_s,
            options.concurrent,
            options.request_s,
            answer_bytes=options.answer_mib << 20,
            most_asked=options.connections,
        )
        return cls(
            served,
            Identities.of(options, link=link, cookie=cookie),
            lanes,
            open_log(options.access_log),
        )

    @property
    def options(self) -> ServeOptions:
        """Options of the service."""
        return self.identities.options

    def sender(self, request: Request, viewer: Viewer) -> str:
        """Return the identity whose limits a request counts against."""
        return sender_of(request, viewer, self.identities.proxies)

    def identify(self, request: Request) -> Viewer:
        """Return whom a request is from. Errors: NotIdentifiedError for a proof that is wrong."""
        return self.identities.viewer(request)


async def _admit(service: WebService, entry: PageEntry | Endpoint, request: Request) -> Viewer:
    """Return the viewer of a request, if the viewer may open the URL.

    Errors: HTTPException 401, 403, 429; NotIdentifiedError; those of reading groups.
    """
    identities, state = service.identities, request.scope["state"]
    try:
        if identities.is_bare(request):  # then nothing is read, and no thread is awaited
            viewer = service.identify(request)
        else:
            viewer = await anyio.to_thread.run_sync(service.identify, request)
    except NotIdentifiedError:
        service.lanes.count(service.sender(request, NOBODY))
        raise
    service.lanes.count(service.sender(request, viewer))
    state[VIEWER] = viewer
    of_lake = not isinstance(entry, Endpoint) or entry.of_lake
    if not viewer.name and not (
        entry.least == Role.ANONYMOUS and (service.options.anonymous or not of_lake)
    ):
        raise HTTPException(401, "log in to see this")
    if viewer.role < entry.least:
        raise HTTPException(
            403, f"this needs the role {entry.least.label}; yours is {viewer.role.label}"
        )
    parameters = {name for name, value in request.query_params.multi_items() if value}
    if viewer.sums_only and of_lake and parameters - SUMS_PARAMETERS:
        raise HTTPException(
            403 if viewer.name else 401,
            "log in to choose jobs: without login only sums over all jobs are shown",
        )
    if request.method not in ("GET", "HEAD"):
        check_same_site(request, ambient=viewer.ambient)
    state[templates.SESSION] = viewer.ambient and viewer.via not in ("proxy", "socket")
    return viewer


def create_application(service: WebService) -> ASGIApp:
    """Return the application."""
    application = Starlette(
        routes=[
            *login_routes(service.identities, service.lanes),
            *unsubscribe_routes(service.served, service.identities, service.lanes),
            *_endpoints(service),
            *(
                Route(entry.path, _page(service, entry), methods=entry.methods, name=entry.name)
                for entry in (*all_pages(), *DOCUMENTS)
            ),
            Route(ASSISTANTS.path, AssistantEndpoint(service), methods=["POST"], name="mcp"),
            Mount(
                "/static",
                StaticFiles(packages=[("tachograph.annexes.serve", "static"), STATIC]),
                name="static",
            ),
        ],
        exception_handlers={
            HTTPException: _http_problem,
            TachographError: _problem,
            Exception: _defect,
        },
        lifespan=_lifespan(service),
    )
    # It would lead to whatever the header Host names, without TLS.
    application.router.redirect_slashes = False
    proxies = service.identities.proxies
    return Guard(
        application,
        service.options,
        service.log,
        address_of=lambda scope: address_of(Request(scope), proxies),
        held_s=service.held_s,
    )


def _lifespan(
    service: WebService,
) -> Callable[[Starlette], contextlib.AbstractAsyncContextManager[None]]:
    async def poll() -> None:
        while True:
            # The version before stays, and requests report the error.
            with contextlib.suppress(TachographError):
                await anyio.to_thread.run_sync(service.served.refresh)
            service.alive()
            await asyncio.sleep(service.poll_s)

    @contextlib.asynccontextmanager
    async def run(_: Starlette) -> AsyncIterator[None]:
        polling = asyncio.create_task(poll())
        yield
        polling.cancel()
        service.served.close()

    return run


def _page(service: WebService, entry: PageEntry) -> Handler:
    async def handle(request: Request) -> Response:
        viewer = await _admit(service, entry, request)
        module = load_page(entry)
        parameters = read_parameters(
            module.PARAMETERS, request.path_params, request.query_params.multi_items()
        )

        sender = service.sender(request, viewer)
        may_write = entry.writes is not None and viewer.role >= entry.writes
        if request.method == "POST":
            return await _submit(service, entry, viewer, request, may_write=may_write)

        def make() -> Response:
            view = service.served.view(viewer)
            about = {
                "may_write": may_write,
                "newest": view.jobs.newest,
                "zone_name": view.zone_name,
            }
            content = module.content(view, parameters)
            if isinstance(content, Document) and content.status != HTTPStatus.OK:
                return Response(status_code=content.status, headers=content.headers)
            if isinstance(content, Document):
                return _tagged(request, content.content, content.media_type, content.headers)
            values = {**about, **content}
            page = templates.render(entry.name, request, viewer, entry.title, values)
            return _tagged(request, page.encode(), "text/html")

        return await service.lanes.run(sender, make)

    return handle


async def _submit(
    service: WebService, entry: PageEntry, viewer: Viewer, request: Request, *, may_write: bool
) -> Response:
    """Execute a page's form, then redirect to the page."""
    if not may_write:
        raise HTTPException(403, "your role may not send this form")
    module = load_page(entry)
    form = read_parameters(module.FORM, {}, await read_form(request))

    def submit() -> str:
        return module.submit(service.served.view(viewer), form)

    query = await service.lanes.run(service.sender(request, viewer), submit)
    return RedirectResponse(f"{request.url.path}{query}", status_code=303)


def _endpoints(service: WebService) -> Iterator[Route]:
    """Return one route per URL for all methods, so that 405 responses list them."""
    for path, entries in groupby(
        sorted(ENDPOINTS, key=lambda entry: entry.path), key=lambda entry: entry.path
    ):
        handlers: dict[str, Handler] = {
            entry.method: _endpoint(service, entry) for entry in entries
        }
        yield Route(API + path, partial(_by_method, handlers), methods=list(handlers))


# Admitted like a page; what is visible is decided by the view of each answer.
ASSISTANTS = PageEntry("/mcp", "mcp", "Assistants", Role.USER)


@dataclass(slots=True)
class AssistantEndpoint:
    """Answers assistants by the Model Context Protocol, each request for its own viewer."""

    service: WebService
    _starting: asyncio.Task[Any] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Errors: those of admitting it; NotFoundError without the extra."""
        await _admit(self.service, ASSISTANTS, Request(scope))
        if find_spec("mcp") is None:
            what = f"{ASSISTANTS.path} needs a package that is not installed"
            raise NotFoundError(what, do="pip install 'tachograph[mcp]'")
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        handle, _ = await asyncio.shield(self._starting)
        await handle(scope, receive, send)

    async def _start(self) -> Any:
        name = "tachograph.annexes.serve.assistants"
        module = await anyio.to_thread.run_sync(import_module, name)  # takes a second
        return await module.start_http(self._answer)

    async def _answer(self, request: Request, name: str, arguments: Mapping[str, Any]) -> ToolReply:
        service, viewer = self.service, _viewer(request)
        run = partial(service.lanes.run, service.sender(request, viewer))
        task = (viewer, name, arguments)
        try:
            if find_tool(name).light:
                return await run(partial(answer_tool, service.served, silent, *task))
            ending = Ending()
            written = partial(service.served.written, answer_tool, *task, silent, ending=ending)
            reply: ToolReply = pickle.loads(await until_gone(request, ending, run(written)))
        except TachographError as error:
            shown = _shown_problem(error, viewer)
            raise TachographError(shown.what, do=shown.do) from error
        return reply


async def _by_method(handlers: Mapping[str, Handler], request: Request) -> Response:
    return await handlers["GET" if request.method == "HEAD" else request.method](request)


def _endpoint(service: WebService, entry: Endpoint) -> Handler:
    async def handle(request: Request) -> Response:
        viewer = await _admit(service, entry, request)
        sender = service.sender(request, viewer)
        return await answer_request(
            entry, service.served, viewer, request, partial(service.lanes.run, sender)
        )

    return handle


def _tagged(
    request: Request, content: bytes, media_type: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an answer with the ETag of its content; 304 if the browser has it."""
    tag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'
    described = {**(headers or {}), "ETag": tag}
    if is_named(tag, request.headers.get("if-none-match", "")):
        return Response(status_code=304, headers=described)
    return Response(content, headers=described, media_type=media_type)


@dataclass(frozen=True, slots=True)
class ShownProblem:
    """What a viewer reads of an error; hidden: only the log of the service has the reason."""

    status: int
    what: str
    do: str
    hidden: bool = False


def _shown_problem(error: TachographError, viewer: Viewer) -> ShownProblem:
    """Return an error as the viewer may see it; the log has those that are hidden."""
    status = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 500)
    of_files = isinstance(error, LakeError) and (error.__cause__ is not None or "/" in error.what)
    of_server = of_files and not viewer.sees_server
    # Of the service itself: names of its files and hosts are for its log.
    if status == 500 or of_server:
        logging.getLogger("tachograph.annexes.serve").error("%s", printable(str(error)))
        what, do = "the service cannot answer this now", "its log has the reason"
        return ShownProblem(503, what, do, hidden=True)
    return ShownProblem(status, _located(error, viewer), error.do)


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, TachographError)
    shown = _shown_problem(error, _viewer(request))
    if shown.hidden:
        again = _again(_AGAIN_FAILED_S)
        return _answer_problem(request, shown.status, shown.what, shown.do, again)
    status = shown.status
    if status == 404 and request.query_params and not request.path_params:
        status = 400  # the address exists; what its query names does not, and can be corrected
    later = None
    if status == 503:
        later = _again(RETRY_S if isinstance(error, NotReadyError) else _AGAIN_FAILED_S)
    return _answer_problem(request, status, shown.what, shown.do, later, error)


def _located(error: TachographError, viewer: Viewer) -> str:
    """The message; lake errors add the path for those who may read it."""
    placed = (
        isinstance(error, LakeError)
        and viewer.sees_server
        and error.where
        and not isinstance(error, NotReadyError)
    )
    return f"{error.where}: {error.what}" if placed else error.what


def _again(seconds: int) -> dict[str, str]:
    """Headers by which programs and browsers come again."""
    return {"Retry-After": str(seconds), "Refresh": str(seconds)}


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 401 and request.method == "GET" and _wants_page(request):
        address = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(
            f"{request.url_for('login').path}?{urlencode({'next': address})}", status_code=303
        )
    is_unknown = error.status_code == 404  # the framework's: no page has this address
    what = f"no page {request.url.path}" if is_unknown else error.detail
    return _answer_problem(request, error.status_code, what, "", error.headers)


async def _defect(request: Request, error: Exception) -> Response:
    return _answer_problem(request, 500, "a defect of the program", "its log has the traceback")


def _viewer(request: Request) -> Viewer:
    viewer = request.scope.get("state", {}).get(VIEWER, NOBODY)
    return viewer if isinstance(viewer, Viewer) else NOBODY


def _wants_page(request: Request) -> bool:
    """Return whether a person reads the answer: a browser outside the API."""
    of_api = request.url.path.startswith(f"{request.scope.get('root_path', '')}{API}")
    return not of_api and "text/html" in request.headers.get("accept", "")


def _answer_problem(
    request: Request,
    status: int,
    what: str,
    do: str,
    headers: Mapping[str, str] | None = None,
    error: TachographError | None = None,
) -> Response:
    """Errors for programs: RFC 9457 problem details, or Prometheus style; for people, a page."""
    root = request.scope.get("root_path", "")
    if status == 401:
        headers = {"WWW-Authenticate": "Bearer", **(headers or {})}
    candidates = error.candidates if isinstance(error, SeveralJobsError) else ()
    if not _wants_page(request):
        return problem(
            status, what, do, docs=f"{root}/docs/api.md", headers=headers, candidates=candidates
        )
    title = HTTPStatus(status).phrase
    values = {
        "what": what,
        # A page has links.
        "do": "" if isinstance(error, NotFoundError) and "`tachograph" in do else do,
        "status": status,
        "candidates": candidates,
        "row": error.row if isinstance(error, NotAnalyzedError) else None,
        # What was asked for, to be corrected.
        "asked": request.query_params.multi_items() if status == 400 else (),
    }
    page = templates.render("problem", request, _viewer(request), title, values)
    return Response(page, status, headers, media_type="text/html")
