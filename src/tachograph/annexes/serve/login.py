"""Requests that need no session: logging in and out, opting out of digests by a signed link.

The page of logging in has the ways that are configured.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio.to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from tachograph.annexes.serve import templates
from tachograph.annexes.serve.forms import check_same_site, read_form
from tachograph.annexes.serve.identity.identities import Identities
from tachograph.annexes.serve.identity.proof import NotIdentifiedError, Proven
from tachograph.annexes.serve.lanes import Lanes, sender_of
from tachograph.annexes.serve.snapshot import ServedLake
from tachograph.api.viewer import NOBODY
from tachograph.catalog.doors import annex_function
from tachograph.collect.status import state_folder

if TYPE_CHECKING:
    from tachograph.annexes.serve.identity.oidc import OidcProvider

_LOGIN_S = 600
Handler = Callable[[Request], Awaitable[Response]]


def login_routes(identities: Identities, lanes: Lanes) -> list[Route]:
    """Return the routes of logging in and out."""
    return [
        Route("/login", _log_in(identities, lanes), methods=["GET", "POST"], name="login"),
        Route("/login/oidc", _log_in_elsewhere(identities, lanes)),
        Route("/login/oidc/callback", _come_back(identities, lanes), name="oidc_callback"),
        Route("/logout", _log_out(identities), methods=["POST"], name="logout"),
    ]


def local_path(written: str, root: str) -> str:
    """Return the target after login: a local path, or the start page.

    >>> local_path("/jobs?user=ann", ""), local_path("//other.example", ""), local_path("https://other.example", "")
    ('/jobs?user=ann', '/', '/')
    """
    home = f"{root}/"
    plain = written.isprintable() and not set(written) & set('\\ "<>')
    if not plain or not written.startswith(home) or written.startswith("//"):
        return home
    try:
        parts = urlsplit(written)
    except ValueError:
        return home
    aside = parts.path.removeprefix(root).startswith(("/login", "/logout", "/static/"))
    return home if parts.scheme or parts.netloc or aside else written


def begin_session(
    identities: Identities, request: Request, proven: Proven, target: str
) -> Response:
    """Return the answer that begins a session and leads on to a path of this server."""
    response = RedirectResponse(
        local_path(target, request.scope.get("root_path", "")), status_code=303
    )
    identities.sessions.begin(proven, request, response, secure=is_secure(identities, request))
    return response


def is_secure(identities: Identities, request: Request) -> bool:
    """Whether browsers use TLS; cookies are then marked Secure."""
    return identities.options.url.startswith("https:") or request.url.scheme == "https"


def _log_in(identities: Identities, lanes: Lanes) -> Handler:
    async def handle(request: Request) -> Response:
        lanes.count(sender_of(request, NOBODY, identities.proxies))
        by_form = request.method == "POST"
        if by_form:
            check_same_site(request)
        fields = dict(await read_form(request) if by_form else request.query_params)
        target = fields.get("next", "")
        if not fields.get("token"):
            return _page(identities, request, target, "", 200)
        try:
            proven = await anyio.to_thread.run_sync(
                partial(identities.log_in, fields["token"], by_form=by_form)
            )
        except NotIdentifiedError as wrong:
            return _page(identities, request, target, wrong.what, 401)
        return begin_session(identities, request, proven, target)

    return handle


def _provider(identities: Identities, lanes: Lanes, request: Request) -> OidcProvider:
    """Return the provider that logs people in, once the request is counted; 404 without one."""
    if identities.oidc is None:
        raise HTTPException(404)
    lanes.count(sender_of(request, NOBODY, identities.proxies))
    return identities.oidc


def _log_in_elsewhere(identities: Identities, lanes: Lanes) -> Handler:
    async def handle(request: Request) -> Response:
        provider = _provider(identities, lanes, request)
        back = request.url_for("oidc_callback")
        if identities.options.url.startswith("http"):
            site = urlsplit(identities.options.url)
            back = back.replace(scheme=site.scheme, netloc=site.netloc)
        target = local_path(
            request.query_params.get("next", ""), request.scope.get("root_path", "")
        )
        started = await anyio.to_thread.run_sync(provider.begin, str(back), target)
        response = RedirectResponse(started.address, status_code=303)
        response.set_cookie(
            f"{identities.sessions.cookie}_login",
            started.cookie,
            max_age=_LOGIN_S,
            httponly=True,
            samesite="lax",
            secure=is_secure(identities, request),
            path=back.path,
        )
        return response

    return handle


def _come_back(identities: Identities, lanes: Lanes) -> Handler:
    async def handle(request: Request) -> Response:
        provider = _provider(identities, lanes, request)
        cookie = f"{identities.sessions.cookie}_login"
        fields = dict(request.query_params)
        try:
            proven, target = await anyio.to_thread.run_sync(
                provider.finish, fields, request.cookies.get(cookie, "")
            )
        except NotIdentifiedError as wrong:
            return _page(identities, request, "", wrong.what, 401)
        response = begin_session(identities, request, proven, target)
        response.delete_cookie(cookie, path=request.url.path)
        return response

    return handle


def _page(
    identities: Identities, request: Request, target: str, wrong: str, status: int
) -> Response:
    options = identities.options
    values = {
        "next": local_path(target, request.scope.get("root_path", "")),
        "wrong": wrong,
        "by_token": bool(identities.tokens or identities.link.token),
        "by_oidc": identities.oidc is not None,
        "by_proxy": bool(options.proxies),
    }
    page = templates.render("login", request, NOBODY, "Log in", values)
    return Response(page, status, media_type="text/html")


def _log_out(identities: Identities) -> Handler:
    async def handle(request: Request) -> Response:
        session = identities.sessions.session(request)
        if session is None:
            raise HTTPException(401, "there is no session to end")
        check_same_site(request, ambient=True)
        response = RedirectResponse(request.url_for("login").path, status_code=303)
        identities.sessions.end(request, response)
        return response

    return handle


def unsubscribe_routes(served: ServedLake, identities: Identities, lanes: Lanes) -> list[Route]:
    """Return the route of opting out, which changes nothing before a POST; empty without a key.

    Errors: ConfigError for an unusable key.
    """
    configuration = served.configuration
    folder = state_folder(served.lake.location, configuration.collect.state)
    links = annex_function("opt_out")(configuration, folder)
    if links is None:
        return []

    async def handle(request: Request) -> Response:
        lanes.count(sender_of(request, NOBODY, identities.proxies))
        by_form = request.method == "POST"
        # a mail program posts to the link itself (RFC 8058); the form of the page has the token in
        # its body
        form = dict(await read_form(request)) if by_form else {}
        token = request.query_params.get("token", "") or form.get("token", "")
        user = links.user(token)
        if user is None:
            raise HTTPException(404)
        if by_form:
            await anyio.to_thread.run_sync(links.opt_out, user)
        values = {"token": token, "done": by_form}
        page = templates.render("unsubscribe", request, NOBODY, "Weekly digests", values)
        return Response(
            page,
            media_type="text/html",
            headers={"Cache-Control": "no-store", "X-Robots-Tag": "noindex"},
        )

    return [Route(links.path, handle, methods=["GET", "POST"], name="unsubscribe")]
