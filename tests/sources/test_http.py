"""How servers are asked: what is tried again, how long is waited, which words an error has, no
secret among them.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

import msgspec
import pytest
import trustme

from servers.faulty import (
    CutOff,
    Fault,
    Faulty,
    Garbage,
    HangUp,
    Reply,
    SeenRequest,
    Silence,
    Status,
    faulty,
)
from servers.process import free_port
from tachograph.catalog.errors import ConfigError
from tachograph.sources.http import HttpServer, RequestError, RequestPace, ServerAccess, read_json


@dataclass
class Waits:
    """A clock that stands still and a sleep that only notes how long."""

    waited: list[float] = field(default_factory=list)
    at: float = 1_800_000_000.0

    @property
    def pace(self) -> RequestPace:
        return RequestPace(
            now=lambda: self.at, steady=lambda: 0.0, sleep=self.waited.append, chance=lambda: 0.5
        )


def well(request: SeenRequest) -> Reply:
    return Reply(b'{"hello": "world"}')


@pytest.fixture
def server() -> Iterator[Faulty]:
    with faulty(well) as running:
        yield running


def settings(url: str, **more: object) -> ServerAccess:
    return given({"url": url, **more})


def given(raw: dict[str, object]) -> ServerAccess:
    return msgspec.convert({"source": "x", "attempts": 3, "timeout_s": 5.0, **raw}, ServerAccess)


def asked(url: str, **more: object) -> str:
    """The error line of request once, without waiting."""
    server = HttpServer(settings(url, **more), pace=Waits().pace)
    try:
        with pytest.raises(RequestError) as caught:
            server.get("/api", {"query": "secret-query"})
    finally:
        server.close()
    return str(caught.value)


@pytest.mark.parametrize(
    "fault",
    [
        Status(429),
        Status(500),
        Status(502),
        Status(503),
        Status(504),
        CutOff(),
        CutOff(chunked=True),
        HangUp(),
    ],
    ids=str,
)
def test_what_may_pass_is_tried_again(server: Faulty, fault: Fault) -> None:
    server.faults += [fault, fault]
    waits = Waits()
    one = HttpServer(settings(server.url), pace=waits.pace)
    assert one.post("/api", {"a": "b"}).content == b'{"hello": "world"}'
    assert [(request.method, request.body) for request in server.requests] == [("POST", b"a=b")] * 3
    assert waits.waited == [0.5 * 0.75, 1.0 * 0.75]
    one.close()


@pytest.mark.parametrize("status", [301, 302, 400, 401, 403, 404, 405, 422])
def test_what_will_not_change_is_asked_once(server: Faulty, status: int) -> None:
    server.faults.append(Status(status))
    assert asked(server.url).startswith(f"{server.url}/api: answered {status} ")
    assert len(server.requests) == 1


def test_a_server_is_left_alone_as_long_as_it_says(server: Faulty) -> None:
    date = datetime(2027, 1, 1, tzinfo=UTC)
    later = {
        "Date": format_datetime(date, usegmt=True),
        "Retry-After": format_datetime(date.replace(second=20), usegmt=True),
    }
    server.faults += [
        Status(503, {"Retry-After": "7"}),
        Status(429, later),
        Status(503, {"Retry-After": "86400"}),
    ]
    waits = Waits()
    one = HttpServer(settings(server.url, attempts=4), pace=waits.pace)
    one.get("/api")
    assert waits.waited == [7.5, 20.5, 60.5]
    one.close()


def test_the_line_says_what_where_and_what_to_do(server: Faulty) -> None:
    port = free_port()
    assert asked(f"http://127.0.0.1:{port}") == (
        f"http://127.0.0.1:{port}/api: cannot connect: connection refused (3 attempts); "
        "is it running, and is the port right?"
    )
    assert asked("http://no-such-host.invalid:9090/x/") == (
        "http://no-such-host.invalid:9090/x/api: no host has this name; check the host in the url"
    )
    server.faults += [Silence(2)] * 3
    assert asked(server.url, timeout_s=0.1) == (
        f"{server.url}/api: no answer within 0.1 s (3 attempts); is it overloaded? raise timeout_s"
    )
    server.faults += [CutOff()] * 3
    assert (
        asked(server.url)
        == f"{server.url}/api: the answer was cut off (3 attempts); check the server's log"
    )
    server.faults += [Garbage(b"SSH-2.0-OpenSSH_9.2\r\n\r\n", http=False)] * 3
    assert "the answer is not HTTP" in asked(server.url)
    server.faults.append(
        Status(302, {"Location": "https://user:secret-word@sso.example.org/login?secret-query=1"})
    )
    assert asked(server.url) == (
        f"{server.url}/api: answered 302 Found: moved to https://sso.example.org/login; "
        "give the address that needs no login page"
    )
    server.faults.append(Garbage(b"\x00\x01 not gzip", kind="application/json"))
    answer = HttpServer(settings(server.url), pace=Waits().pace).get("/api")
    with pytest.raises(
        RequestError,
        match=r"/api: the answer is not JSON but application/json: .*; is this a Prometheus\?",
    ):
        read_json(answer, dict[str, int], expected="a Prometheus")


def test_secrets_are_sent_read_anew_and_never_told(server: Faulty, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret-word-1\n")
    one = HttpServer(settings(server.url, token_file=str(token), headers={"X-Scope-OrgID": "team"}))
    one.get("/api")
    token.write_text("secret-word-two\n")
    one.get("/api")
    assert [request.headers["authorization"] for request in server.requests] == [
        "Bearer secret-word-1",
        "Bearer secret-word-two",
    ]
    assert server.requests[0].headers["x-scope-orgid"] == "team"
    server.faults.append(Status(401))
    with pytest.raises(RequestError) as caught:
        one.get("/api", {"token": "secret-word-three"})
    assert "secret-word" not in str(caught.value)
    token.write_text("secret-word\nanother line")
    with pytest.raises(
        RequestError,
        match=r"token_file holds more than one line of ASCII; write only the secret into the file",
    ) as caught:
        one.get("/api")
    assert "secret-word" not in str(caught.value)
    token.unlink()
    with pytest.raises(
        RequestError, match="token: token_file cannot be read: No such file or directory"
    ):
        one.get("/api")
    one.close()


def test_certificates(tmp_path: Path) -> None:
    authority = trustme.CA()
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    with faulty(well, tls=tls) as server:
        one = HttpServer(settings(server.url, ca_file=str(ca_file)))
        assert one.get("/api").content == b'{"hello": "world"}'
        one.close()
        assert asked(server.url) == (
            f"{server.url}/api: its certificate is not trusted: unable to get local issuer "
            "certificate; "
            "name the certificates to trust with ca_file, or fix the server's"
        )
        local = server.url.replace("127.0.0.1", "localhost")
        assert "not trusted: Hostname mismatch, certificate is not valid for 'localhost'" in asked(
            local, ca_file=str(ca_file)
        )
    with faulty(well) as server:
        told = asked(server.url.replace("http", "https"))
        assert "/api: no TLS connection: " in told
        assert told.endswith("; is it http:// in place of https://?")


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({"url": ""}, "url is missing"),
        ({"url": "ftp://user:secret@host"}, "invalid url"),
        ({"url": "http://user:secret@host"}, "host: url holds a user or a password"),
        ({"url": "http://host:port"}, "invalid url: Invalid port"),
        *(
            ({"url": f"http://host:{port}"}, f"invalid url: no port {port}")
            for port in (0, 65536, 74936)
        ),
        ({"token_file": "/nowhere/token"}, "/nowhere/token: token_file is not a file"),
        ({"password_file": os.devnull}, "password_file is given without user"),
        ({"user": "a", "password_file": "/nowhere"}, "/nowhere: password_file is not a file"),
        ({"token_file": "a", "password_file": "b"}, "token_file and password_file are both given"),
        (
            {"url": "https://host", "ca_file": os.devnull},
            f"{os.devnull}: ca_file cannot be read: no certificates in it",
        ),
        ({"headers": {"X": "a\nb"}}, "header 'X' is not printable ASCII"),
    ],
)
def test_settings_that_do_not_fit(raw: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        HttpServer(given({"url": "http://host", **raw}))
    assert str(caught.value).startswith(told)
    assert "secret" not in str(caught.value)


def test_how_far_its_clock_is_ahead() -> None:
    waits = Waits()

    def behind(request: SeenRequest) -> Reply:
        waits.at += 0.25  # the way there and back take half a second together
        date = format_datetime(datetime.fromtimestamp(1_800_000_000 - 90, UTC), usegmt=True)
        return Reply(b"{}", headers={"Date": date})

    with faulty(behind) as server:
        one = HttpServer(settings(server.url), pace=waits.pace)
        assert one.skew_s is None
        assert one.get("/api").at == datetime.fromtimestamp(1_800_000_000 - 90, UTC)
        assert one.skew_s == pytest.approx(-90 + 0.5 - 0.125)
        one.close()


def test_lines_begin_anew_with_each_attempt(server: Faulty) -> None:
    body = b"one\ntwo\n\nthree"
    with faulty(lambda request: Reply(body)) as server:
        server.faults.append(CutOff())
        one = HttpServer(settings(server.url), pace=Waits().pace)
        seen: list[bytes] = []

        def read(lines: Iterator[bytes]) -> list[bytes]:
            kept = []
            for line in lines:
                seen.append(line)
                kept.append(line)
            return kept

        assert one.post_lines("/export", {}, read) == [b"one", b"two", b"", b"three"]
        assert seen == [b"one", b"one", b"two", b"", b"three"]
        one.close()


def test_an_answer_that_drips_for_ever_is_given_up(server: Faulty) -> None:
    ticks = iter(range(0, 100_000, 1000))
    one = HttpServer(
        settings(server.url, attempts=1),
        pace=RequestPace(steady=lambda: float(next(ticks)), sleep=lambda s: None),
    )
    with pytest.raises(
        RequestError,
        match="was still answering after 100 s; request less at a time, or raise timeout_s",
    ):
        one.get("/api")
    one.close()


def test_a_socket_of_the_same_machine(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(Reply(b"{}").raw())

        answering = threading.Thread(target=answer)
        answering.start()
        one = HttpServer(settings(f"unix://{path}"))
        assert one.get("/api").where == f"unix://{path}/api"
        one.close()
        answering.join()
