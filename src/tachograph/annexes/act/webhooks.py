"""Receivers of alerts over HTTP: no redirects, limits of time and size, no secrets in errors."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from threading import Thread
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2
import msgspec

from tachograph.annexes.act.alert_conditions import ALERT_KINDS
from tachograph.annexes.act.alert_message import (
    AlertMessage,
    Incident,
    alert_json,
    alert_manager,
    alert_matrix,
    alert_slack,
)
from tachograph.annexes.act.mail import read_secret_text
from tachograph.catalog.config import WebhookOptions
from tachograph.catalog.errors import ConfigError, ExportError, UnreachableError
from tachograph.catalog.secrets import redacted, remember_secrets
from tachograph.catalog.units import printable
from tachograph.catalog.version import __version__

MOST_BYTES = 1 << 20  # of a request
MOST_ANSWER = 1 << 16  # bytes of an answer that are read
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})  # the same request may be taken later
_LEAST_KEY, _DIGIT = 16, re.compile("[0-9]")  # of a part of an address that is a key
_SHOWN = 200  # characters of an answer in a message


@dataclass(frozen=True, slots=True)
class Webhook:
    """A configured receiver. url: without the parts of a message."""

    options: WebhookOptions
    url: str = field(repr=False)
    token: str = field(default="", repr=False)

    @classmethod
    def of(cls, options: WebhookOptions) -> Webhook:
        """Return the receiver; sends nothing. Errors: ConfigError with the key, not the secret."""
        key = f"webhook {options.name!r}"
        if not options.name or not options.name.isprintable():
            raise ConfigError("webhook: a receiver has no name", do='write name = "operators"')
        if bool(options.url) == bool(options.url_file):
            raise ConfigError(f"{key}: not one of url and url_file", do="write one of them")
        url = options.url
        if options.url_file:
            url = read_secret_text(options.url_file, f"{key}: url_file")
        _remember_address(url)
        _check_url(url, key)
        if options.format == "matrix" and not (options.room.startswith("!") and options.token_file):
            raise ConfigError(
                f"{key}: room or token_file is missing",
                do='write room = "!id:server" and token_file',
            )
        unknown = sorted(set(options.alerts) - set(ALERT_KINDS))
        if unknown:
            raise ConfigError(
                f"{key}: unknown alert {unknown[0]!r}", do=f"use one of: {', '.join(ALERT_KINDS)}"
            )
        if not 0 < options.timeout_s <= 300:
            raise ConfigError(
                f"{key}: timeout_s is not between 0 and 300", do="leave it out to use 10 s"
            )
        token = ""
        if options.token_file:
            token = read_secret_text(options.token_file, f"{key}: token_file")
            if not token.isascii() or not token.isprintable():
                raise ConfigError(
                    f"{key}: token_file has no token",
                    where=options.token_file,
                    do="write it on one line",
                )
        return cls(
            options, url.rstrip("/") if options.format in ("matrix", "alertmanager") else url, token
        )

    @property
    def is_idempotent(self) -> bool:
        """Whether receivers recognize repeated messages by id, which Slack does not."""
        return self.options.format != "slack"

    def takes(self, code: str) -> bool:
        """Whether it gets alerts of this code."""
        return not self.options.alerts or code in self.options.alerts

    def send(self, message: AlertMessage, *, until: datetime, page: str = "") -> str:
        """Send a message; return the result.

        until: when open alerts end in Alertmanager. page: URL of the served pages. Errors:
        UnreachableError if a retry may succeed, ExportError for a refusal.
        """
        match self.options.format:
            case "matrix":
                room, number = quote(self.options.room, safe=""), quote(message.id, safe="")
                path = f"/_matrix/client/v3/rooms/{room}/send/m.room.message/{number}"
                answer = self._request("PUT", self.url + path, alert_matrix(message, page))
                return f"event {_event_id(answer)}"
            case "alertmanager":
                self.post_open(message.incidents, until=until, page=page)
            case "slack":
                self._request("POST", self.url, alert_slack(message, page))
            case "json":
                headers = {"Idempotency-Key": message.id}
                self._request("POST", self.url, alert_json(message, page), headers)
        return "accepted"

    def post_open(
        self, incidents: tuple[Incident, ...], *, until: datetime, page: str = ""
    ) -> None:
        """Post alerts to Alertmanager, which drops those not repeated. Errors: as `send`."""
        self._request(
            "POST", f"{self.url}/api/v2/alerts", alert_manager(incidents, until=until, url=page)
        )

    def _request(
        self, method: str, url: str, content: Any, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Send JSON; return the begin of the answer. Errors: as `send`."""
        body, options = msgspec.json.encode(content), self.options
        where = f"webhook {options.name}"
        if len(body) > MOST_BYTES:
            raise ExportError(f"a message of {len(body):,} bytes is too long", where=where)
        headers_sent = {
            "Content-Type": "application/json",
            "User-Agent": f"tachograph/{__version__}",
            **(headers or {}),
        }
        if self.token:
            headers_sent["Authorization"] = f"Bearer {self.token}"
        trusted, outcome = self._trusted(), Future[tuple[int, bytes]]()

        def exchange() -> None:
            try:
                outcome.set_result(
                    _exchange(method, url, body, headers_sent, trusted, options.timeout_s)
                )
            except (httpx2.TransportError, httpx2.InvalidURL, OSError) as problem:
                outcome.set_exception(problem)

        # in a thread: a receiver that sends its answer byte by byte keeps every single limit of a
        # socket
        Thread(target=exchange, daemon=True).start()
        try:
            status, answer = outcome.result(options.timeout_s + 1)
        except (httpx2.TransportError, httpx2.InvalidURL, OSError) as problem:
            raise UnreachableError(
                f"no answer: {_reason(problem, options.timeout_s)}", where=where
            ) from None
        if 200 <= status < 300:
            return answer
        shown = " ".join(printable(redacted(answer.decode("utf-8", "replace"))).split())[:_SHOWN]
        what = f"answered {status}{f': {shown}' if shown else ''}"
        if status in _LATER:
            raise UnreachableError(what, where=where)
        if 300 <= status < 400:
            raise ExportError(
                f"answered {status}: redirects are not followed",
                where=where,
                do="write the new address",
            )
        raise ExportError(what, where=where, do="check its address, token and room")

    def _trusted(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self.options.ca_file or None)
        except (OSError, ValueError):
            where = f"webhook {self.options.name}"
            raise ConfigError(
                "ca_file cannot be read", where=where, do="name a file of certificates in PEM"
            ) from None


def _exchange(
    method: str,
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    trusted: ssl.SSLContext,
    timeout_s: float,
) -> tuple[int, bytes]:
    """Status and beginning of the response. Errors: those of httpx2."""
    until = time.monotonic() + timeout_s
    answer = b""
    with (
        httpx2.Client(timeout=timeout_s, follow_redirects=False, verify=trusted) as client,
        client.stream(method, url, content=body, headers=headers) as response,
    ):
        for part in response.iter_raw(4096):
            answer = (answer + part)[:MOST_ANSWER]
            if len(answer) >= MOST_ANSWER or time.monotonic() > until:
                break
        return response.status_code, answer


def _remember_address(url: str) -> None:
    """Redact the parts of a webhook address that look like keys."""
    remember_secrets(
        *(
            part
            for part in re.split("[/?&=#]+", url)
            if len(part) >= _LEAST_KEY and _DIGIT.search(part)
        )
    )


def _check_url(url: str, key: str) -> None:
    """Raise ConfigError for an invalid HTTP URL; never show it, as it may be a secret."""
    try:
        parts = urlsplit(url)
        whole = (
            parts.scheme in ("http", "https")
            and parts.hostname
            and parts.port != 0
            and url.isprintable()
        )
    except ValueError:
        whole, parts = False, urlsplit("")
    if not whole or " " in url:
        raise ConfigError(f"{key}: no address of HTTP", do="write https://host/path")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(f"{key}: a password in the address", do="use token_file or url_file")


def _event_id(answer: bytes) -> str:
    try:
        event = msgspec.json.decode(answer, type=dict[str, str]).get("event_id", "")
    except msgspec.DecodeError:
        event = ""
    return printable(redacted(event))[:_SHOWN] or "unknown"


def _reason(problem: Exception, timeout_s: float) -> str:
    if isinstance(problem, (httpx2.TimeoutException, TimeoutError)):
        return f"not within {timeout_s:g} s"
    cause: BaseException | None = problem
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {cause.verify_message}"
        if isinstance(cause, OSError) and cause.strerror:
            return printable(cause.strerror).lower()
        cause = cause.__cause__ or cause.__context__
    return "the connection was lost"
