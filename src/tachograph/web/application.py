"""The web application: routes of the catalogue, who asks, what they see, errors as pages or problems."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qsl

import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from tachograph.catalog.errors import LakeError, NotFoundError, TachographError, UsageError
from tachograph.report.pages import style_sheet
from tachograph.web import templates
from tachograph.web.answers import problem
from tachograph.web.endpoints import NotAcceptableError, answer_request
from tachograph.web.identity.sessions import Sessions
from tachograph.web.parameters import JobParameters, read_parameters
from tachograph.web.registry import API, ENDPOINTS, PAGES, EndpointEntry, PageEntry, load_page
from tachograph.web.snapshot import ServedLake
from tachograph.web.viewer import NOBODY, Viewer

FORM_TOKEN = "form_token"  # field of every form that writes
_MOST_FIELDS = 50
Handler = Callable[[Request], Awaitable[Response]]
# {error: status of its answer}, the most specific first
STATUS: Mapping[type[TachographError], int] = {
    NotFoundError: 404,
    NotAcceptableError: 406,
    UsageError: 400,
    LakeError: 503,
}


@dataclass(frozen=True, slots=True)
class WebService:
    """All that handlers share.

    link_token: what the link that is printed at the start proves, "" for none; whoever has it is `link_viewer`.
    alive: called every `poll_s` seconds, for a watchdog.
    """

    served: ServedLake
    sessions: Sessions = field(default_factory=Sessions)
    link_token: str = ""
    link_viewer: Viewer = NOBODY
    poll_s: float = 5.0
    alive: Callable[[], None] = lambda: None

    def identify(self, request: Request) -> Viewer:
        """Return whom a request is from."""
        session = self.sessions.of(request)
        return NOBODY if session is None else session.viewer


def create_application(service: WebService) -> Starlette:
    """Return the application."""
    return Starlette(
        routes=[
            Route("/login", _login(service)),
            *(Route(API + entry.path, _endpoint(service, entry), methods=[entry.method]) for entry in ENDPOINTS),
            *(Route(entry.path, _page(service, entry), methods=entry.methods, name=entry.module) for entry in PAGES),
            Route("/", lambda request: RedirectResponse(request.url_for("jobs").path, status_code=303)),
            Route("/job", _job_by_id),
            Route("/static/page.css", _page_style),
            Mount("/static", StaticFiles(packages=[("tachograph.web", "static")]), name="static"),
        ],
        exception_handlers={HTTPException: _http_problem, TachographError: _problem},
        lifespan=_lifespan(service),
    )


def _lifespan(service: WebService) -> Callable[[Starlette], contextlib.AbstractAsyncContextManager[None]]:
    async def poll() -> None:
        while True:
            with contextlib.suppress(TachographError):  # the version before stays, and requests report the error
                await anyio.to_thread.run_sync(service.served.refresh)
            service.alive()
            await asyncio.sleep(service.poll_s)

    @contextlib.asynccontextmanager
    async def run(_: Starlette) -> AsyncIterator[None]:
        polling = asyncio.create_task(poll())
        yield
        polling.cancel()

    return run


def _page(service: WebService, entry: PageEntry) -> Handler:
    async def handle(request: Request) -> Response:
        viewer = service.identify(request)
        if viewer.role < entry.least:
            raise HTTPException(401 if viewer.role == 0 else 403)
        module = load_page(entry)
        parameters = read_parameters(module.PARAMETERS, request.path_params, request.query_params.multi_items())

        def make() -> str:
            view = service.served.view(viewer)
            values = {"form_token": form_token, "may_write": may_write, **module.content(view, parameters)}
            return templates.render(entry.module, request, viewer, entry.title, values)

        session = service.sessions.of(request)
        form_token = session.form_token if session is not None else ""
        may_write = entry.writes is not None and viewer.role >= entry.writes
        if request.method == "POST":
            return await _submit(service, entry, viewer, request, form_token if may_write else "")
        return _html(await anyio.to_thread.run_sync(make))

    return handle


async def _submit(service: WebService, entry: PageEntry, viewer: Viewer, request: Request, form_token: str) -> Response:
    """Do what a form of a page requests, then lead back to a page; only forms of this session are accepted."""
    module = load_page(entry)
    fields = parse_qsl((await request.body()).decode("utf-8", "replace"), max_num_fields=_MOST_FIELDS)
    given = [value for name, value in fields if name == FORM_TOKEN]
    if not (form_token and len(given) == 1 and _same(given[0], form_token)):
        raise HTTPException(403, "the form is not of this session, or your role may not send it")
    form = read_parameters(module.FORM, {}, [(name, value) for name, value in fields if name != FORM_TOKEN])

    def submit() -> str:
        return module.submit(service.served.view(viewer), form)

    query = await anyio.to_thread.run_sync(submit)
    return RedirectResponse(f"{request.url.path}{query}", status_code=303)


def _endpoint(service: WebService, entry: EndpointEntry) -> Handler:
    async def handle(request: Request) -> Response:
        viewer = service.identify(request)
        if viewer.role < entry.least:
            raise HTTPException(401 if viewer.role == 0 else 403)
        return await answer_request(entry, service.served, viewer, request)

    return handle


async def _job_by_id(request: Request) -> Response:
    """Lead from the search field to the page of a job."""
    parameters = read_parameters(JobParameters, {}, request.query_params.multi_items())
    return RedirectResponse(request.url_for("job", key=parameters.key.strip()).path, status_code=303)


async def _page_style(request: Request) -> Response:
    """Return the style that served pages share with pages in files."""
    return FileResponse(style_sheet())


def _login(service: WebService) -> Handler:
    async def handle(request: Request) -> Response:
        given = request.query_params.get("token", "")
        if not (service.link_token and _same(given, service.link_token)):
            raise HTTPException(401)
        response = RedirectResponse(request.url_for("jobs").path, status_code=303)
        service.sessions.begin(service.link_viewer, response, secure=request.url.scheme == "https")
        return response

    return handle


def _same(given: str, token: str) -> bool:
    import hmac

    return hmac.compare_digest(given.encode(), token.encode())


def _html(page: str, status: int = 200) -> Response:
    return Response(page, status, media_type="text/html")


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, TachographError)
    status = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 500)
    return _answer_problem(request, status, error.what, error.do)


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _answer_problem(request, error.status_code, error.detail, "", error.headers)


def _answer_problem(
    request: Request, status: int, what: str, do: str, headers: Mapping[str, str] | None = None
) -> Response:
    """An error as RFC 9457 problem details for programs, as a page for people."""
    if request.url.path.startswith(f"{request.scope.get('root_path', '')}{API}"):
        return problem(status, what, do, docs=f"{request.scope.get('root_path', '')}/api/docs", headers=headers)
    title = HTTPStatus(status).phrase
    page = templates.render("problem", request, NOBODY, title, {"what": what, "do": do, "status": status})
    return Response(page, status, headers, media_type="text/html")
