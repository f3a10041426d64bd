"""Opting out of digests by the signed link of a mail: no login, nothing changes before a POST."""

from __future__ import annotations

import anyio.to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tachograph.annexes.serve import templates
from tachograph.annexes.serve.forms import read_form
from tachograph.annexes.serve.identity.identities import Identities
from tachograph.annexes.serve.lanes import Lanes, sender_of
from tachograph.annexes.serve.snapshot import ServedLake
from tachograph.api.viewer import NOBODY
from tachograph.catalog.doors import annex_function
from tachograph.collect.status import state_folder


def unsubscribe_routes(served: ServedLake, identities: Identities, lanes: Lanes) -> list[Route]:
    """Return the route; empty without a key. Errors: ConfigError for an unusable key."""
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
