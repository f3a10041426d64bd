"""Requests that change something: their form, and the token without which one that a browser sends is refused."""

from __future__ import annotations

import hmac
from urllib.parse import parse_qsl, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request

from tachograph.web.compression import unmasked
from tachograph.web.identity.identities import Identities
from tachograph.web.viewer import Viewer

FIELD = "form_token"
HEADER = "X-CSRF-Token"
_FORM = "application/x-www-form-urlencoded"
_MOST_FIELDS = 1000


async def read_form(request: Request) -> list[tuple[str, str]]:
    """Return the fields of a form in the body, without the form token; none where the body is something else.

    Errors: HTTPException 400 where it is no form.
    """
    return [(name, value) for name, value in await _fields(request) if name != FIELD]


async def _fields(request: Request) -> list[tuple[str, str]]:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        return []
    try:
        text = (await request.body()).decode("ascii")
        return parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict")
    except ValueError:
        raise HTTPException(400, "the form cannot be read") from None


def check_same_site(request: Request) -> None:
    """Check that no other site sent a request, as far as the browser tells. Errors: HTTPException 403."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is not None:
        foreign = site not in ("same-origin", "none")
    else:
        foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("host")
    if foreign:
        raise HTTPException(403, "the request was started by another site")


async def check_form(request: Request, identities: Identities, viewer: Viewer) -> None:
    """Check a request that changes something: a browser's must carry the form token of its session.

    A token in a header is sent on purpose, so it is enough; so is a name that a proxy or socket gives to a program.
    Errors: HTTPException 403.
    """
    check_same_site(request)
    if not viewer.ambient:
        return
    given = request.headers.get(HEADER) or next((value for name, value in await _fields(request) if name == FIELD), "")
    if not given and viewer.via in ("proxy", "socket") and not _is_browser(request):
        return
    wanted = identities.form_token(request, viewer)
    if not hmac.compare_digest(unmasked(given).encode("utf-8", "surrogatepass"), wanted.encode()):
        raise HTTPException(403, "the form is not of this session: open the page again, then send it")


def _is_browser(request: Request) -> bool:
    """Whether a request can be a browser's: on what changes something, each sends where it comes from."""
    return any(name in request.headers for name in ("origin", "referer", "cookie", "sec-fetch-site", "sec-fetch-mode"))
