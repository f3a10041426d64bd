"""How a server is asked over HTTP: who asks, how long it waits, how often it tries again, what went wrong in one line.

    AskError              what a server did or did not answer: `where` is the address without secrets
      status              its HTTP status, None where it gave none
      refused             it will say the same again: not asked twice

Asking changes nothing on these servers, so every request may be repeated: after connections that fail or break off,
silence, and 408, 425, 429, 500, 502, 503, 504, waiting longer each time, and as long as `Retry-After` says (up to
`LONGEST_WAIT_S`). Redirects are not followed: a token is for the server it was made for.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Final, TypeVar

import httpx2
import msgspec

from tachograph import __version__
from tachograph.errors import ConfigError
from tachograph.sources.feeds import FeedSettings
from tachograph.sources.http_credentials import Authorize, Credentials, bearer, certificates
from tachograph.sources.http_problems import TRANSPORT_PROBLEMS, AskError, from_status, from_transport, sizes

LONGEST_WAIT_S: Final = 60.0
_FIRST_WAIT_S = 0.5
_LARGEST_ANSWER = 1 << 30  # bytes; a server that never ends must not fill the memory
LEAST_ACCESS: Final[Mapping[str, float]] = MappingProxyType({"attempts": 1, "timeout_s": 0.001})
_SLOWEST = 20  # times `timeout_s`: the longest a whole answer may take, however steadily it drips
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})

T = TypeVar("T")
_Read = Callable[[Iterator[bytes], httpx2.Response, str], T]
Query = Mapping[str, str | list[str]]  # a list: the name is given several times


class Access(FeedSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `[[sources]]` says of a server that is asked over HTTP. Secrets are in files, read anew when changed."""

    url: str = ""  # with the path under which the server lies; unix:///run/x.sock for a socket
    token_file: str = ""  # bearer token
    user: str = ""  # with password_file: basic authentication
    password_file: str = ""
    ca_file: str = ""  # certificates to trust in place of the system's
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    timeout_s: float = 30.0  # of silence
    attempts: int = 5


@dataclass(frozen=True, slots=True)
class Pace:
    """Clocks, sleep and chance, passed in so that tests need not wait."""

    now: Callable[[], float] = time.time  # seconds since 1970
    steady: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered. `at`: its clock when it did; None where it does not tell."""

    content: bytes
    where: str
    kind: str = ""  # content type
    at: datetime | None = None


@dataclass(slots=True)
class _Clock:
    """How far the server's clock is ahead of ours, by its `Date` in the middle of the shortest asking so far."""

    skew_s: float | None = None
    _took_s: float = float("inf")

    def note(self, date: float | None, asked: float, answered: float) -> None:
        """Take one answer into account; `Date` has whole seconds, so half a second is added to it."""
        took = answered - asked
        if date is not None and 0 <= took <= max(1.0, self._took_s):
            self.skew_s, self._took_s = date + 0.5 - (asked + answered) / 2, took


@dataclass(frozen=True, slots=True)
class _Question:
    """One request, to be sent as often as it takes."""

    method: str
    path: str
    params: Query | None = None
    form: Query | None = None


class Server:
    """One server that is asked again and again; may be used by several threads.

    `access.url` is where it lies, or `url` where settings name several. `authorize` turns the token into headers.
    `own_words` finds what the server says about an error in the body of its answer ("" for nothing).
    Errors: ConfigError naming the key, for settings that do not fit.
    """

    def __init__(
        self,
        access: Access,
        *,
        url: str | None = None,
        pace: Pace | None = None,
        authorize: Authorize = bearer,
        own_words: Callable[[bytes], str] = lambda body: "",
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self.address, socket = _address(access.url if url is None else url)
        self.where = f"unix://{socket}" if socket else self.address
        self._attempts = max(1, access.attempts)
        self._limit_s = access.timeout_s * _SLOWEST
        self._pace = pace or Pace()
        self._clock = _Clock()
        self._own_words = own_words
        self._credentials = Credentials.of(
            token_file=access.token_file,
            user=access.user,
            password_file=access.password_file,
            authorize=authorize,
        )
        self._client = httpx2.Client(
            transport=transport or (httpx2.HTTPTransport(uds=socket) if socket else None),
            verify=certificates(access.ca_file) if self.address.startswith("https:") else False,
            timeout=httpx2.Timeout(access.timeout_s, pool=None),
            headers={**_headers(), **_checked_headers(access.headers)},
        )

    @property
    def skew_s(self) -> float | None:
        """How far the server's clock is ahead of ours, to about a second; None while nothing was asked."""
        return self._clock.skew_s

    def get(self, path: str, params: Query | None = None) -> Answer:
        """Return the answer to GET.

        Errors: AskError when there is none, or one of an error, after all attempts.
        """
        return self._ask(_Question("GET", path, params=params), _whole)

    def post(self, path: str, form: Query) -> Answer:
        """Return the answer to POST of a form. Errors: as `get`."""
        return self._ask(_Question("POST", path, form=form), _whole)

    def post_read(self, path: str, form: Query, read: Callable[[Answer], T]) -> T:
        """Return what `read` makes of the answer to POST; where it raises AskError that may pass, it is asked again."""
        return self._ask(
            _Question("POST", path, form=form), lambda chunks, response, where: read(_whole(chunks, response, where))
        )

    def post_lines(self, path: str, form: Query, read: Callable[[Iterator[bytes]], T]) -> T:
        """Return what `read` makes of the lines of an answer while they come; it starts anew with each attempt."""
        return self._ask(_Question("POST", path, form=form), lambda chunks, response, where: read(_lines(chunks)))

    def close(self) -> None:
        """Let go of connections."""
        self._client.close()

    def _ask(self, question: _Question, read: _Read[T]) -> T:
        attempt = 1
        while True:
            try:
                return self._once(question, read)
            except AskError as problem:
                if problem.refused:
                    raise
                if attempt >= self._attempts:
                    raise problem.after(attempt) from None
                self._pace.sleep(self._wait_s(attempt, problem.retry_after_s))
            attempt += 1

    def _once(self, question: _Question, read: _Read[T]) -> T:
        """One attempt, with the secrets as they are now."""
        where = self.where + question.path
        sent = self._client.build_request(
            question.method,
            self.address + question.path,
            params=question.params,
            data=question.form,
            headers=self._credentials.headers(),
        )
        began, asked = self._pace.steady(), self._pace.now()
        try:
            response = self._client.send(sent, stream=True)
            try:
                self._clock.note(_date(response), asked, self._pace.now())
                chunks = self._bounded(response, began, where)
                if response.is_success:
                    return read(chunks, response, where)
                body = b"".join(chunks)
            finally:
                response.close()
        except TRANSPORT_PROBLEMS as problem:
            raise from_transport(problem, where=where, timeout_s=self._client.timeout.read) from None
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
        for chunk in response.iter_bytes():
            size += len(chunk)
            if size > _LARGEST_ANSWER:
                what = f"answers more than {sizes(_LARGEST_ANSWER)}"
                raise AskError(what, where=where, do="ask for less at a time", status=413)
            if self._pace.steady() - began > self._limit_s:
                what = f"was still answering after {self._limit_s:.0f} s"
                raise AskError(what, where=where, do="ask for less at a time, or raise timeout_s", refused=False)
            yield chunk

    def _wait_s(self, attempt: int, told: float | None) -> float:
        """Seconds to wait: what the server said, else doubled each time; a part by chance, so that many spread out."""
        if told is not None:
            return min(told, LONGEST_WAIT_S) + self._pace.chance()
        return float(min(_FIRST_WAIT_S * 2.0 ** (attempt - 1), LONGEST_WAIT_S) * (0.5 + self._pace.chance() / 2))


def read_json(answer: Answer, kind: type[T], *, expected: str) -> T:
    """Return an answer decoded as `kind`; `expected` says in words what it should be.

    Errors: AskError telling how the answer begins, where it is anything else.
    """
    try:
        return msgspec.json.decode(answer.content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        shape = isinstance(problem, msgspec.ValidationError)
        begins = answer.content[:60].decode("utf-8", "replace").strip()
        said = str(problem).replace("`", "'") if shape else f"is no JSON but {answer.kind or 'unknown'}: {begins!r}"
        what = f"the answer {'has another shape: ' if shape else ''}{said}"
        raise AskError(what, where=answer.where, do=f"is this {expected}?") from None


def _whole(chunks: Iterator[bytes], response: httpx2.Response, where: str) -> Answer:
    content = b"".join(chunks)
    date = _date(response)
    at = None if date is None else datetime.fromtimestamp(date, UTC)
    return Answer(content, where, response.headers.get("content-type", "").partition(";")[0], at)


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Lines without their ends; what follows the last end is a line, too."""
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
        raise ConfigError(f"url is no address: {problem}", do="write it as https://host:port") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        what = "url is no address of a server" if url else "url is missing"
        raise ConfigError(what, do="write it as https://host:port")
    if parsed.userinfo:
        raise ConfigError("url holds a user or a password", where=parsed.host, do="use user and password_file")
    return str(parsed.copy_with(query=None, fragment=None)).rstrip("/"), None


def _headers() -> Mapping[str, str]:
    """What is sent where the settings say nothing else. Packing costs servers several times what it saves nearby."""
    return {"User-Agent": f"tachograph/{__version__}", "Accept-Encoding": "identity"}


def _checked_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in headers.items():
        if not (name and f"{name}{value}".isascii() and f"{name}{value}".isprintable()):
            raise ConfigError(f"header {name!r} is not printable ASCII", do="mend headers")
    return headers


def _date(response: httpx2.Response) -> float | None:
    """Seconds since 1970 by the server's clock; None where it does not tell, or a cache answered."""
    return None if "age" in response.headers else _seconds(response.headers.get("date", ""))


def _seconds(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def _retry_after_s(response: httpx2.Response, now: float) -> float | None:
    """Seconds that the server wants to be left alone; a date is taken by its own clock where it tells it."""
    told = response.headers.get("retry-after", "").strip()
    if told.isascii() and told.isdigit():
        return float(told[:9])
    until = _seconds(told)
    if until is None:
        return None
    clock = _date(response)
    return max(0.0, until - (now if clock is None else clock))
