"""HTTP requests: credentials, timeouts, retries, one-line errors without bodies and secrets."""

from __future__ import annotations

import base64
import random
import re
import socket
import ssl
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

import httpx2
import msgspec

from tachograph.catalog.errors import ConfigError, InputError
from tachograph.catalog.secrets import redacted, remember_secrets
from tachograph.catalog.version import __version__
from tachograph.sources.answer_limits import ANSWERS, unpacked
from tachograph.sources.registry import FeedSettings

TRANSPORT_PROBLEMS: Final = (httpx2.TransportError, httpx2.DecodingError)


class RequestError(InputError):
    """A server did not answer, or with an error. `refused`: a second request would fail alike."""

    def __init__(
        self,
        what: str,
        *,
        where: str | Path = "",
        do: str = "",
        status: int | None = None,
        refused: bool = True,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(what, where=where, do=do)
        self.status = status
        self.refused = refused
        self.retry_after_s = retry_after_s

    def after(self, attempts: int) -> RequestError:
        """The same, reported after several attempts."""
        what = self.what if attempts == 1 else f"{self.what} ({attempts} attempts)"
        return RequestError(what, where=self.where, do=self.do, status=self.status, refused=False)


_BROKE_OFF = ("complete message body", "incomplete chunked read", "without sending a response")
_FIX_BY_STATUS = {
    301: "give the address it moved to",
    302: "give the address that needs no login page",
    400: "fix the query",
    401: "give token_file, or user and password_file",
    403: "request the right to read",
    404: "check the path of the url",
    405: "check the path of the url",
    407: "check the proxy",
    413: "request less at a time",
    422: "request less at a time",
    429: "poll less often",
}


def from_status(
    response: httpx2.Response,
    own_words: str,
    *,
    where: str,
    again: bool,
    retry_after_s: float | None,
) -> RequestError:
    """Return the error of an answer that is one."""
    status = response.status_code
    try:
        name = HTTPStatus(status).phrase
    except ValueError:
        name = "an unknown status"
    detail = f": {' '.join(redacted(own_words).split())[:300]}" if own_words else ""
    if response.has_redirect_location:
        detail = f": moved to {_bare(response.headers['location'])}"
    do = _FIX_BY_STATUS.get(status, "check the server's log" if status >= 500 else "check the url")
    return RequestError(
        f"answered {status} {name}{detail}",
        where=where,
        do=do,
        status=status,
        refused=not again,
        retry_after_s=retry_after_s,
    )


def from_transport(problem: Exception, *, where: str, timeout_s: float | None) -> RequestError:
    """Return the error of a request that got no whole answer."""
    for cause in _causes(problem):
        if isinstance(cause, ssl.SSLCertVerificationError):
            do = "name the certificates to trust with ca_file, or fix the server's"
            return RequestError(
                f"its certificate is not trusted: {cause.verify_message}", where=where, do=do
            )
        if isinstance(cause, socket.gaierror):
            again = cause.errno == socket.EAI_AGAIN
            what = "the name service does not answer" if again else "no host has this name"
            return RequestError(
                what, where=where, do="check the host in the url", refused=not again
            )
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
            reason = (cause.reason or "unknown reason").replace("_", " ").lower()
            return RequestError(
                f"no TLS connection: {reason}",
                where=where,
                do="is it http:// in place of https://?",
            )
    what, do = _plain(problem, timeout_s)
    return RequestError(what, where=where, do=do, refused=False)


def _plain(problem: Exception, timeout_s: float | None) -> tuple[str, str]:
    if isinstance(problem, httpx2.TimeoutException):
        return f"no answer within {timeout_s or 0:g} s", "is it overloaded? raise timeout_s"
    if isinstance(problem, httpx2.ProxyError):
        return f"the proxy failed: {problem}", "check the proxy, or set NO_PROXY"
    if isinstance(problem, httpx2.ConnectError):
        reason = next(
            (c.strerror for c in _causes(problem) if isinstance(c, OSError) and c.strerror),
            str(problem),
        )
        return f"cannot connect: {reason.lower()}", "is it running, and is the port right?"
    if isinstance(problem, httpx2.DecodingError):
        return "the answer is damaged: it does not unpack", "check the proxy in between"
    if isinstance(problem, httpx2.RemoteProtocolError) and not any(
        words in str(problem) for words in _BROKE_OFF
    ):
        return f"the answer is not HTTP: {str(problem)[:100]}", "is the port right?"
    return "the answer was cut off", "check the server's log"


def _causes(problem: BaseException | None) -> list[BaseException]:
    causes: list[BaseException] = []
    while problem is not None and problem not in causes:
        causes.append(problem)
        problem = problem.__cause__ or problem.__context__
    return causes


def _bare(location: str) -> str:
    """A location without possible secrets."""
    try:
        return str(httpx2.URL(location).copy_with(query=None, fragment=None, userinfo=b""))
    except httpx2.InvalidURL:
        return "an invalid address"


def sizes(count: int) -> str:
    """Return a number of bytes as text.

    >>> sizes(1 << 30)
    '1 GiB'
    """
    return f"{count / (1 << 30):g} GiB" if count >= 1 << 30 else f"{count / (1 << 20):g} MiB"


Authorize = Callable[[str], Mapping[str, str]]  # a token -> the headers that show it


def bearer(token: str) -> Mapping[str, str]:
    """Return the header of a bearer token.

    >>> bearer("abc")
    {'Authorization': 'Bearer abc'}
    """
    return {"Authorization": f"Bearer {token}"}


@dataclass(slots=True)
class Secret:
    """A file with a one-line secret, re-read when it changes, as tokens may be short-lived."""

    file: Path
    key: str
    _seen: tuple[int, int, int] | None = None
    _text: str = ""

    def text(self) -> str:
        """The current secret. Errors: RequestError naming key and file, not the content."""
        try:
            state = self.file.stat()
            stamp = (state.st_mtime_ns, state.st_size, state.st_ino)
            if stamp != self._seen:
                self._text, self._seen = self.file.read_text(encoding="utf-8").strip(), stamp
        except (OSError, UnicodeDecodeError) as problem:
            reason = problem.strerror if isinstance(problem, OSError) else "no text"
            raise RequestError(
                f"{self.key} cannot be read: {reason}", where=self.file, do="fix the file"
            ) from None
        if not self._text or not (self._text.isascii() and self._text.isprintable()):
            message = "is empty" if not self._text else "holds more than one line of ASCII"
            raise RequestError(
                f"{self.key} {message}",
                where=self.file,
                do="write only the secret into the file",
            )
        remember_secrets(self._text, self._text.partition("=")[2])  # slurmrestd's is SLURM_JWT=...
        return self._text


@dataclass(frozen=True, slots=True)
class Credentials:
    """A token, or a user and a password, or none."""

    token: Secret | None
    user: str
    password: Secret | None
    authorize: Authorize

    @classmethod
    def of(cls, access: ServerAccess, authorize: Authorize) -> Credentials:
        """Return the configured credentials. Errors: ConfigError naming the key."""
        if access.token_file and access.password_file:
            raise ConfigError("token_file and password_file are both given", do="give one of them")
        if access.password_file and not access.user:
            raise ConfigError("password_file is given without user", do="add user")
        token = _secret(access.token_file, "token_file")
        password = _secret(access.password_file, "password_file")
        return cls(token, access.user, password, authorize)

    def headers(self) -> Mapping[str, str]:
        """Return the headers with current secrets. Errors: RequestError naming the key."""
        if self.token is not None:
            return self.authorize(self.token.text())
        if self.password is not None:
            both = f"{self.user}:{self.password.text()}"
            encoded = base64.b64encode(both.encode()).decode()
            remember_secrets(encoded)
            return {"Authorization": f"Basic {encoded}"}
        return {}


def _secret(file: str, key: str) -> Secret | None:
    if not file:
        return None
    if not Path(file).is_file():
        raise ConfigError(
            f"{key} is not a file", where=file, do="name a file that holds nothing else"
        )
    return Secret(Path(file), key)


LONGEST_WAIT_S: Final = 60.0
_FIRST_WAIT_S = 0.5
LEAST_ACCESS: Final[Mapping[str, float]] = MappingProxyType(
    {"attempts": 1, "timeout_s": 0.001, "answer_mib": 0.001}
)
_WORDS = 1 << 20  # bytes of an error's answer that are read
# Times `timeout_s`: the longest a whole answer may take, however steadily bytes arrive.
_SLOWEST = 20
# Compression would cost nearby servers more than it saves.
_DEFAULT_HEADERS = {"User-Agent": f"tachograph/{__version__}", "Accept-Encoding": "identity"}
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})

T = TypeVar("T")
_OF_SECRETS = re.compile("auth|token|key|secret|cookie", re.IGNORECASE)  # names of headers
_Read = Callable[[Iterator[bytes], httpx2.Response, str], T]
UrlQuery = Mapping[str, str | list[str]]  # a list: the name is given several times


class ServerAccess(FeedSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A server in `[[sources]]`. Secrets are in files, re-read when they change."""

    url: str = ""  # with the base path of the server; unix:///run/x.sock for a socket
    token_file: str = ""  # bearer token
    user: str = ""  # with password_file: basic authentication
    password_file: str = ""
    ca_file: str = ""  # certificates to trust in place of the system's
    # Our certificate, for servers that ask for one, and those that vouch for it.
    cert_file: str = ""
    key_file: str = ""  # its key, without a passphrase; empty: in cert_file
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    timeout_s: float = 30.0  # longest wait for the next bytes
    # A larger answer, unpacked, is cut off: an endless one must not fill the memory.
    answer_mib: float = 1024.0
    attempts: int = 5


@dataclass(frozen=True, slots=True)
class RequestPace:
    """Clocks, sleep and chance, passed in so that tests need not wait."""

    now: Callable[[], float] = time.time  # seconds since 1970
    steady: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class HttpAnswer:
    """A response. `at`: server clock, None if not reported.

    Its bytes count as held until it is deleted: keep it as long as `content`.
    """

    content: bytes
    where: str
    kind: str = ""  # content type
    at: datetime | None = None


@dataclass(slots=True)
class _RequestClock:
    """The server's clock ahead of ours, from its `Date` in the shortest request so far."""

    skew_s: float | None = None
    _took_s: float = float("inf")

    def note(self, date: float | None, sent: float, answered: float) -> None:
        """Record the `Date` of a response, plus half a second for its rounding."""
        took = answered - sent
        if date is not None and 0 <= took <= max(1.0, self._took_s):
            self.skew_s, self._took_s = date + 0.5 - (sent + answered) / 2, took


class HttpServer:
    """A polled server; thread-safe.

    `access.url` is its address, or `url` where settings name several. `authorize` turns the token
    into headers. `own_words` returns the server's error message from the body of its answer ("":
    none). `longest_s`: a whole answer may take so long, however steadily bytes arrive; default: 20
    times `timeout_s`. Errors: ConfigError naming the key, for settings that do not fit.
    """

    def __init__(
        self,
        access: ServerAccess,
        *,
        url: str | None = None,
        pace: RequestPace | None = None,
        authorize: Authorize = bearer,
        own_words: Callable[[bytes], str] = lambda body: "",
        longest_s: float | None = None,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self.address, path = _address(access.url if url is None else url)
        self.where = f"unix://{path}" if path else self.address
        self._attempts = max(1, access.attempts)
        self._limit_s = access.timeout_s * _SLOWEST if longest_s is None else longest_s
        self._largest = round(access.answer_mib * (1 << 20))
        self._pace = pace or RequestPace()
        self._clock = _RequestClock()
        self._stream: Any = None  # of the newest connection
        self._own_words = own_words
        self._credentials = Credentials.of(access, authorize)
        self._client = httpx2.Client(
            transport=transport or (httpx2.HTTPTransport(uds=path) if path else None),
            verify=certificates(access.ca_file, access.cert_file, access.key_file)
            if self.address.startswith("https:")
            else False,
            timeout=httpx2.Timeout(access.timeout_s, pool=None),
            headers={**_DEFAULT_HEADERS, **_checked_headers(access.headers)},
        )

    @property
    def skew_s(self) -> float | None:
        """Return the server's clock minus ours, to about a second; None before any request."""
        return self._clock.skew_s

    def get(self, path: str, params: UrlQuery | None = None) -> HttpAnswer:
        """Return the answer to GET.

        Errors: RequestError without a response, or for an error, after all attempts.
        """
        return self._send("GET", path, _whole, params=params)

    def post(self, path: str, form: UrlQuery) -> HttpAnswer:
        """Return the answer to POST of a form. Errors: as `get`."""
        return self._send("POST", path, _whole, data=form)

    def post_read(self, path: str, form: UrlQuery, read: Callable[[HttpAnswer], T]) -> T:
        """Return `read(answer)` of a POST; temporary RequestErrors are retried."""
        return self._send("POST", path, lambda *answer: read(_whole(*answer)), data=form)

    def post_lines(self, path: str, form: UrlQuery, read: Callable[[Iterator[bytes]], T]) -> T:
        """Return `read` of an answer's lines as they arrive; each attempt starts anew."""
        return self._send("POST", path, lambda chunks, *_: read(_lines(chunks)), data=form)

    def get_lines(self, path: str, params: UrlQuery, read: Callable[[Iterator[bytes]], T]) -> T:
        """Return `read` of the lines of an answer to GET as they arrive."""
        return self._send("GET", path, lambda chunks, *_: read(_lines(chunks)), params=params)

    def close(self) -> None:
        """Close connections."""
        self._client.close()

    def abort(self) -> None:
        """Abort an answer that another thread waits for, even if its headers trickle in."""
        stream = self._stream
        open_one = None if stream is None else stream.get_extra_info("socket")
        if open_one is not None:
            with suppress(OSError):
                open_one.shutdown(socket.SHUT_RDWR)

    def _trace(self, event: str, about: Mapping[str, Any]) -> None:
        """Track the connection: HTTP clients do not limit the time for all headers."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._stream = about["return_value"]

    def _send(self, method: str, path: str, read: _Read[T], **query: UrlQuery | None) -> T:
        """Result of `read` on the response, with retries.

        query: `params` of the URL, or `data` of a form.
        """
        attempt = 1
        while True:
            try:
                return self._once(method, path, read, query)
            except RequestError as problem:
                if problem.refused:
                    raise
                if attempt >= self._attempts:
                    raise problem.after(attempt) from None
                self._pace.sleep(self._wait_s(attempt, problem.retry_after_s))
            attempt += 1

    def _once(
        self, method: str, path: str, read: _Read[T], query: Mapping[str, UrlQuery | None]
    ) -> T:
        """One attempt with the current secrets."""
        where = self.where + path
        sent = self._client.build_request(
            method,
            self.address + path,
            params=query.get("params"),
            data=query.get("data"),
            headers=self._credentials.headers(),
            extensions={"trace": self._trace},
        )
        began, requested = self._pace.steady(), self._pace.now()
        try:
            response = self._client.send(sent, stream=True)
            try:
                self._clock.note(_date(response), requested, self._pace.now())
                chunks = self._bounded(response, began, where)
                if response.is_success:
                    return read(chunks, response, where)
                body = _first_bytes(chunks, _WORDS)
            finally:
                response.close()
        except TRANSPORT_PROBLEMS as problem:
            raise from_transport(
                problem, where=where, timeout_s=self._client.timeout.read
            ) from None
        raise from_status(
            response,
            self._own_words(body),
            where=where,
            again=response.status_code in _AGAIN,
            retry_after_s=_retry_after_s(response, self._pace.now()),
        )

    def _bounded(self, response: httpx2.Response, began: float, where: str) -> Iterator[bytes]:
        """The body in pieces, neither endless nor endlessly slow."""
        size = 0
        for chunk in unpacked(response):
            size += len(chunk)
            if size > self._largest:
                what = f"answers more than {sizes(self._largest)}"
                raise RequestError(
                    what, where=where, do="request less at a time, or raise answer_mib", status=413
                )
            if self._pace.steady() - began > self._limit_s:
                what = f"was still answering after {self._limit_s:.0f} s"
                raise RequestError(
                    what,
                    where=where,
                    do="request less at a time, or raise timeout_s",
                    refused=False,
                )
            yield chunk

    def _wait_s(self, attempt: int, retry_after_s: float | None) -> float:
        """Return the wait: as the server asks, else doubled each time with random jitter."""
        if retry_after_s is not None:
            return min(retry_after_s, LONGEST_WAIT_S) + self._pace.chance()
        return float(
            min(_FIRST_WAIT_S * 2.0 ** (attempt - 1), LONGEST_WAIT_S)
            * (0.5 + self._pace.chance() / 2)
        )


def read_json(answer: HttpAnswer, kind: type[T], *, expected: str) -> T:
    """Return an answer decoded as `kind`; `expected` describes the format that it should have.

    Errors: RequestError quoting the beginning of any other response.
    """
    try:
        return msgspec.json.decode(answer.content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        shape = isinstance(problem, msgspec.ValidationError)
        begins = redacted(answer.content[:2000].decode("utf-8", "replace"))[:60].strip()
        text = (
            str(problem).replace("`", "'")
            if shape
            else f"is not JSON but {answer.kind or 'unknown'}: {begins!r}"
        )
        what = f"the answer {'has an unexpected form: ' if shape else ''}{text}"
        raise RequestError(what, where=answer.where, do=f"is this {expected}?") from None


def _whole(chunks: Iterator[bytes], response: httpx2.Response, where: str) -> HttpAnswer:
    pieces: list[bytes] = []
    with ExitStack() as undo:
        for piece in chunks:
            if not ANSWERS.take(len(piece)):
                what = f"answers of all sources together hold more than {sizes(ANSWERS.limit)}"
                raise RequestError(
                    what, where=where, do="lower answer_mib or parallel", refused=False
                )
            undo.callback(ANSWERS.give, len(piece))
            pieces.append(piece)
        kind = response.headers.get("content-type", "").partition(";")[0]
        answer = HttpAnswer(b"".join(pieces), where, kind, _clock_of(response))
        weakref.finalize(answer, ANSWERS.give, len(answer.content)).atexit = False
        undo.pop_all()
    return answer


def _clock_of(response: httpx2.Response) -> datetime | None:
    date = _date(response)
    try:
        return None if date is None else datetime.fromtimestamp(date, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _first_bytes(chunks: Iterator[bytes], limit: int) -> bytes:
    """The beginning of an answer; the rest is not read."""
    content = b""
    for piece in chunks:
        content += piece
        if len(content) >= limit:
            break
    return content


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Lines without line ends, the last fragment included."""
    begun: list[bytes] = []
    for chunk in chunks:
        *ends, last = chunk.split(b"\n")
        for end in ends:
            yield b"".join((*begun, end))
            begun.clear()
        if last:
            begun.append(last)
    if begun:
        yield b"".join(begun)


def _address(url: str) -> tuple[str, str | None]:
    """(address without a slash at its end, path of the socket). Errors: ConfigError."""
    if url.startswith("unix://"):
        return "http://localhost", url.removeprefix("unix://")
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL as problem:
        raise ConfigError(f"invalid url: {problem}", do="write it as https://host:port") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        what = "invalid url" if url else "url is missing"
        raise ConfigError(what, do="write it as https://host:port")
    if parsed.port is not None and not 0 < parsed.port < 1 << 16:
        raise ConfigError(f"invalid url: no port {parsed.port}", do="write it as https://host:port")
    if parsed.userinfo:
        raise ConfigError(
            "url holds a user or a password", where=parsed.host, do="use user and password_file"
        )
    return str(parsed.copy_with(query=None, fragment=None)).rstrip("/"), None


def _checked_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in headers.items():
        if _OF_SECRETS.search(name):
            remember_secrets(value, value.partition(" ")[2])
        if not (name and f"{name}{value}".isascii() and f"{name}{value}".isprintable()):
            raise ConfigError(f"header {name!r} is not printable ASCII", do="fix headers")
    return headers


def _date(response: httpx2.Response) -> float | None:
    """Server time, s since 1970; None if missing, or if a cache answered."""
    return None if "age" in response.headers else _seconds(response.headers.get("date", ""))


def _seconds(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def _retry_after_s(response: httpx2.Response, now: float) -> float | None:
    """Return the seconds the server asks to wait; dates are compared with its own clock."""
    retry_after = response.headers.get("retry-after", "").strip()
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after[:9])
    until = _seconds(retry_after)
    if until is None:
        return None
    clock = _date(response)
    return max(0.0, until - (now if clock is None else clock))


@cache  # each takes 50 ms and 1 MB, and a cluster has a thousand servers
def certificates(ca_file: str, cert_file: str = "", key_file: str = "") -> ssl.SSLContext:
    """Return the TLS context with `ca_file` (empty: system authorities) and our certificate.

    The files are read once. Errors: ConfigError naming the key.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except OSError as problem:  # ssl.SSLError is one
        reason = "no certificates in it" if isinstance(problem, ssl.SSLError) else problem.strerror
        what = f"ca_file cannot be read: {reason}"
        raise ConfigError(what, where=ca_file, do="name a PEM file of certificates") from None
    if key_file and not cert_file:
        raise ConfigError("key_file is given without cert_file", do="add cert_file")
    if cert_file:
        try:
            context.load_cert_chain(cert_file, key_file or None, password=_no_passphrase)
        except (OSError, ValueError) as problem:
            what = f"cert_file and key_file cannot be used: {_tls_problem(problem)}"
            raise ConfigError(
                what,
                where=key_file or cert_file,
                do="name PEM files of one pair, the key without a passphrase",
            ) from None
    return context


def _no_passphrase() -> bytes:
    """OpenSSL would ask the terminal."""
    raise ValueError("the key has a passphrase")


def _tls_problem(problem: Exception) -> str:
    if isinstance(problem, ssl.SSLError):
        return (problem.reason or "they do not match").replace("_", " ").lower()
    return problem.strerror or str(problem) if isinstance(problem, OSError) else str(problem)
