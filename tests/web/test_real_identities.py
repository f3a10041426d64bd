"""Identities of real parts: sockets, nginx in front."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from marked_lake import ANN, BOB

from servers.nginx import nginx
from servers.process import program
from servers.web import WebServer, serving
from tachograph.lake.delta import Lake

pytestmark = pytest.mark.slow
ME = "/api/v1/me"


def configured(folder: Path, lake: Lake, **options: Any) -> Path:
    """A folder with a configuration that names the lake and these options."""
    folder.mkdir(exist_ok=True)
    lines = [
        f"lake = {json.dumps(lake.location)}",
        "[serve]",
        *(f"{k} = {json.dumps(v)}" for k, v in options.items()),
    ]
    (folder / "tachograph.toml").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def own() -> str:
    """The user that runs this."""
    return getpass.getuser()


@pytest.fixture(scope="module")
def by_socket(marked: Lake, own: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A server on a Unix socket, to which nginx is no proxy."""
    folder = configured(
        tmp_path_factory.mktemp("socket") / "site", marked, admins=["daemon"], start_link=False
    )
    with serving(folder, command=("serve", "--socket", str(folder / "s"))):
        yield folder / "s"


def test_the_system_names_who_connects_by_the_socket(by_socket: Path, own: str) -> None:
    with httpx2.Client(
        transport=httpx2.HTTPTransport(uds=str(by_socket)), base_url="http://x"
    ) as client:
        me = client.get(ME).json()
        assert (me["name"], me["role"], me["via"]) == (own, "user", "socket")
        named = client.get(ME, headers={"x-remote-user": BOB, "x-forwarded-user": BOB}).json()
        assert named["name"] == own, "a header names no one here"
        assert client.get(ME, headers={"authorization": "Bearer x"}).status_code == 401


def as_daemon(*words: str) -> dict[str, Any]:
    """What another user of this machine is answered."""
    curl = program("curl", package="curl")
    done = subprocess.run(
        [curl, "-sS", *words],
        user="daemon",
        group="daemon",
        extra_groups=[],
        cwd="/",
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_of_the_machine_has_another_role(by_socket: Path) -> None:
    for part in [by_socket.parent, *by_socket.parents][:-1]:
        part.chmod(part.stat().st_mode | 0o011)
    me = as_daemon("--unix-socket", str(by_socket), f"http://x{ME}")
    assert (me["name"], me["role"]) == ("daemon", "admin")


def test_nginx_names_users_that_it_knows_and_compresses(
    marked: Lake, own: str, tmp_path: Path
) -> None:
    passwords = {ANN: "a", BOB: "b"}
    folder = configured(
        tmp_path / "site", marked, proxies=[f"{own}@unix"], url="/gpus", start_link=False
    )
    with (
        serving(folder, command=("serve", "--socket", str(folder / "s"))),
        nginx(tmp_path / "nginx", f"http://unix:{folder / 's'}:", passwords, path="/gpus/") as site,
    ):
        page = httpx2.get(f"{site}/gpus/jobs", auth=(ANN, "a"), headers={"accept": "text/html"})
        assert page.status_code == 200
        assert page.headers["content-encoding"] == "gzip"
        assert 'href="/gpus/jobs"' in page.text
        jobs = httpx2.get(f"{site}/gpus/api/v1/jobs", auth=(ANN, "a"))
        assert (jobs.headers["content-encoding"], len(jobs.json())) == ("gzip", 2)
        known = {"if-none-match": jobs.headers["etag"]}
        assert (
            httpx2.get(f"{site}/gpus/api/v1/jobs", auth=(ANN, "a"), headers=known).status_code
            == 304
        )
        assert BOB not in page.text
        me = httpx2.get(f"{site}/gpus{ME}", auth=(ANN, "a"), headers={"x-remote-user": BOB}).json()
        assert (me["name"], me["via"], me["jobs"]) == (ANN, "proxy", 2)
        assert httpx2.get(f"{site}/gpus{ME}", auth=(ANN, "wrong")).status_code == 401


def test_slow_clients_are_cut(server: WebServer) -> None:
    host, port = server.address.removeprefix("http://").split(":")
    form = b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    starts = {
        "nothing": b"",
        "half a header": b"GET /api/v1/health HTTP/1.1\r\nHost: x\r\nX-",
        "half a body": form + b"Content-Length: 100\r\n\r\nab",
        "an endless chunk": form + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabc",
    }
    slow = {how: socket.create_connection((host, int(port)), timeout=120) for how in starts}
    for how, connection in slow.items():
        connection.sendall(starts[how])
    for how, connection in slow.items():
        with connection, contextlib.suppress(ConnectionResetError):
            assert connection.recv(100) == b"", how
    with socket.create_connection((host, int(port)), timeout=30) as large:
        large.sendall(form + b"Content-Length: 2000000\r\n\r\n")
        assert large.recv(100).startswith(b"HTTP/1.1 413")
    with server.client() as client:
        assert client.get(ME).status_code == 200
