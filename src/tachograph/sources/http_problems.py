"""What can go wrong with a server, in words: what happened, where, what to do. Bodies and secrets stay out."""

from __future__ import annotations

import socket
import ssl
from http import HTTPStatus
from typing import Final

import httpx2

from tachograph.errors import InputError

TRANSPORT_PROBLEMS: Final = (httpx2.TransportError, httpx2.DecodingError)


class AskError(InputError):
    """A server did not answer, or with an error. `refused`: it will say the same again, so asking twice is in vain."""

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        do: str = "",
        status: int | None = None,
        refused: bool = True,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(what, where=where, do=do)
        self.status = status
        self.refused = refused
        self.retry_after_s = retry_after_s

    def after(self, attempts: int) -> AskError:
        """The same, told after several attempts."""
        what = self.what if attempts == 1 else f"{self.what} ({attempts} attempts)"
        return AskError(what, where=self.where, do=self.do, status=self.status, refused=False)


_BROKE_OFF = ("complete message body", "incomplete chunked read", "without sending a response")
_DO_BY_STATUS = {
    301: "give the address it moved to",
    302: "give the address that needs no login page",
    400: "mend what is asked",
    401: "give token_file, or user and password_file",
    403: "ask for the right to read",
    404: "check the path of the url",
    405: "check the path of the url",
    407: "check the proxy",
    413: "ask for less at a time",
    422: "ask for less at a time",
    429: "ask less often",
}


def from_status(
    response: httpx2.Response, own_words: str, *, where: str, again: bool, retry_after_s: float | None
) -> AskError:
    """Return the error of an answer that is one."""
    status = response.status_code
    try:
        name = HTTPStatus(status).phrase
    except ValueError:
        name = "an unknown status"
    told = f": {' '.join(own_words.split())[:300]}" if own_words else ""
    if response.has_redirect_location:
        told = f": moved to {_bare(response.headers['location'])}"
    do = _DO_BY_STATUS.get(status, "look at the server's log" if status >= 500 else "check the url")
    return AskError(
        f"answered {status} {name}{told}",
        where=where,
        do=do,
        status=status,
        refused=not again,
        retry_after_s=retry_after_s,
    )


def from_transport(problem: Exception, *, where: str, timeout_s: float | None) -> AskError:
    """Return the error of an asking that got no whole answer."""
    for cause in _causes(problem):
        if isinstance(cause, ssl.SSLCertVerificationError):
            do = "name the certificates to trust with ca_file, or mend the server's"
            return AskError(f"its certificate is not trusted: {cause.verify_message}", where=where, do=do)
        if isinstance(cause, socket.gaierror):
            again = cause.errno == socket.EAI_AGAIN
            what = "the name service does not answer" if again else "no host has this name"
            return AskError(what, where=where, do="check the host in the url", refused=not again)
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
            reason = (cause.reason or "unknown reason").replace("_", " ").lower()
            return AskError(f"no TLS connection: {reason}", where=where, do="is it http:// in place of https://?")
    what, do = _plain(problem, timeout_s)
    return AskError(what, where=where, do=do, refused=False)


def _plain(problem: Exception, timeout_s: float | None) -> tuple[str, str]:
    if isinstance(problem, httpx2.TimeoutException):
        return f"no answer within {timeout_s or 0:g} s", "is it overloaded? raise timeout_s"
    if isinstance(problem, httpx2.ProxyError):
        return f"the proxy failed: {problem}", "check the proxy, or set NO_PROXY"
    if isinstance(problem, httpx2.ConnectError):
        reason = next((c.strerror for c in _causes(problem) if isinstance(c, OSError) and c.strerror), str(problem))
        return f"cannot connect: {reason.lower()}", "is it running, and is the port right?"
    if isinstance(problem, httpx2.DecodingError):
        return "the answer is damaged: it does not unpack", "look at the proxy in between"
    if isinstance(problem, httpx2.RemoteProtocolError) and not any(words in str(problem) for words in _BROKE_OFF):
        return f"the answer is not HTTP: {str(problem)[:100]}", "is the port right?"
    return "the answer broke off", "look at the server's log"


def _causes(problem: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while problem is not None and problem not in found:
        found.append(problem)
        problem = problem.__cause__ or problem.__context__
    return found


def _bare(location: str) -> str:
    """A location without what may be secret in it."""
    try:
        return str(httpx2.URL(location).copy_with(query=None, fragment=None, userinfo=b""))
    except httpx2.InvalidURL:
        return "an address that is none"


def sizes(count: int) -> str:
    """Return bytes in words.

    >>> sizes(1 << 30)
    '1 GiB'
    """
    return f"{count / (1 << 30):g} GiB" if count >= 1 << 30 else f"{count / (1 << 20):g} MiB"
