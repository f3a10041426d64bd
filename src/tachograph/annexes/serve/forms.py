"""Requests that change something: forms, and the same-site check."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request

_FORM = "application/x-www-form-urlencoded"
_MOST_FIELDS = 1000


async def read_form(request: Request) -> list[tuple[str, str]]:
    """Return the fields of a form; empty if the body is no form.

    Errors: HTTPException 400 for a malformed form.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        return []
    try:
        text = (await request.body()).decode("ascii")
        return parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict")
    except ValueError:
        raise HTTPException(400, "the form cannot be read") from None


def check_same_site(request: Request, *, ambient: bool = False) -> None:
    """Check that a changing request comes from the same site. Errors: HTTPException 403.

    Every browser names where such a request comes from, in Sec-Fetch-Site or in Origin, and no page
    can change either. ambient: the browser itself sends what proves an identity. Then a cookie
    without one of these headers is refused; a program whose name a proxy or the Unix socket gives
    sends neither.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is not None:
        foreign = site not in ("same-origin", "none")
    elif origin is not None:
        foreign = urlsplit(origin).netloc != request.headers.get("host")
    else:
        foreign = ambient and any(
            name in request.headers for name in ("cookie", "referer", "sec-fetch-mode")
        )
    if foreign:
        raise HTTPException(403, "the request comes from another site, or does not name its origin")
