"""A real server that one client tries to stop, while another user asks for small things."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import pytest

from served_entries import addresses, until
from servers.web import WebServer, serving
from tachograph.annexes.serve.identity.tokens import create_token
from tachograph.annexes.serve.registry import ENDPOINTS
from tachograph.api.viewer import Role

pytestmark = pytest.mark.slow
_ATTACKERS = 200
_ATTACKER = "127.0.0.2"  # everyone else is 127.0.0.1
_JOB, _USER = "1000316", "user036"
_MOST_MIB = 1024  # of server and workers together; the unit of systemd allows 4096
_SOON_S = 60.0
_ASKED = 20


@pytest.fixture(scope="module")
def site(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    """A server with the token of a user; 200 requests at once are soon too many, on a busy
    machine, too.
    """
    folder = tmp_path_factory.mktemp("one-client") / "demo"
    shutil.copytree(demo, folder)
    with (folder / "tachograph.toml").open("a", encoding="utf-8") as configuration:
        configuration.write('\n[serve]\ntoken_file = "tokens.json"\nrequests_per_s = 20.0\n')
    expires = datetime.now(UTC) + timedelta(days=1)
    token, _ = create_token(folder / "tokens.json", user=_USER, role=Role.USER, expires=expires)
    with serving(folder) as server:
        yield replace(server, tokens={_USER: token})


def client_of(site: WebServer) -> httpx2.Client:
    """A client of the user, who connects anew for each request."""
    headers = {"Authorization": f"Bearer {site.tokens[_USER]}", "Connection": "close"}
    return httpx2.Client(base_url=site.address, headers=headers, timeout=_SOON_S)


def slowest_s(client: httpx2.Client) -> float:
    """The 95th percentile of the time of small answers."""
    times = []
    for number in range(_ASKED):
        begun = time.monotonic()
        assert client.get(f"/job/{_JOB}" if number % 2 else "/api/v1/me").status_code == 200
        times.append(time.monotonic() - begun)
    return statistics.quantiles(times, n=20)[18]


async def attack(host: str, port: int, ending: threading.Event, seen: set[bytes]) -> None:
    """Send requests without a proof by one connection after the other, as fast as they are
    answered.
    """
    while not ending.is_set():
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection(host, port, local_addr=(_ATTACKER, 0))
            try:
                while not ending.is_set():
                    writer.write(b"GET /api/v1/me HTTP/1.1\r\nHost: x\r\n\r\n")
                    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10.0)
                    length = re.search(rb"content-length: (\d+)", head)
                    assert length is not None
                    await reader.readexactly(int(length[1]))
                    seen.add(
                        head.split(b" ", 2)[1]
                        + (b" close" if b"connection: close" in head.lower() else b"")
                    )
            except TimeoutError:
                pass
            finally:
                writer.transport.abort()
        await asyncio.sleep(0)


def test_many_connections_of_one_address_keep_no_other_user_waiting(site: WebServer) -> None:
    host, _, port = site.address.removeprefix("http://").rpartition(":")
    ending, seen = threading.Event(), set[bytes]()

    async def attackers() -> None:
        await asyncio.gather(*(attack(host, int(port), ending, seen) for _ in range(_ATTACKERS)))

    with client_of(site) as client:
        before = slowest_s(client)
        attacking = threading.Thread(target=lambda: asyncio.run(attackers()))
        attacking.start()
        try:
            until(lambda: b"429 close" in seen)
            meanwhile = slowest_s(client)
        finally:
            ending.set()
            attacking.join(_SOON_S)
    assert b"429" not in seen, "429 closes"
    assert meanwhile < 10 * before + 5


def test_connections_of_one_address_are_limited(site: WebServer) -> None:
    host, _, port = site.address.removeprefix("http://").rpartition(":")
    with contextlib.ExitStack() as opened:
        idle = [
            opened.enter_context(
                socket.create_connection((host, int(port)), 20, source_address=(_ATTACKER, 0))
            )
            for _ in range(300)
        ]
        with client_of(site) as client:
            assert client.get("/api/v1/me").status_code == 200
        until(lambda: sum(map(_is_open, idle)) <= 100)


def _is_open(connection: socket.socket) -> bool:
    connection.settimeout(0.01)
    try:
        return connection.recv(1) != b""
    except TimeoutError:
        return True
    except ConnectionResetError:
        return False


def workers(site: WebServer) -> set[int]:
    """The processes that the server has started and that still run."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            text = status.read_text(encoding="utf-8")
            if f"\nPPid:\t{site.process.pid}\n" in text and "\nState:\tZ" not in text:
                found.add(int(status.parent.name))
    return found


def resident_mib(site: WebServer) -> int:
    """Resident memory of the server and its workers together."""
    total = 0
    for pid in (site.process.pid, *workers(site)):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
            total += sum(int(kib) for kib in re.findall(r"^VmRSS:\s+(\d+)", text, re.MULTILINE))
    return total // 1024


def test_the_most_expensive_answers_leave_memory_and_others_are_answered(site: WebServer) -> None:
    """Every endpoint with as many rows as it gives, four at a time."""
    parts = {"key": _JOB, "name": _USER}
    gets = [entry for entry in ENDPOINTS if entry.method == "GET"]
    paths = [path for entry in gets for _, path in addresses(entry, lambda name: [parts[name]])]
    peak, statuses = 0, []
    with site.client() as expensive, client_of(site) as client, ThreadPoolExecutor(4) as pool:

        def ask(path: str) -> int:
            answer = expensive.get(path, params={"limit": "10000"})
            return int(
                expensive.get(path).status_code if answer.status_code == 400 else answer.status_code
            )

        asked = [pool.submit(ask, path) for path in paths]
        while not all(each.done() for each in asked):
            statuses.append(client.get("/api/v1/me").status_code)
            peak = max(peak, resident_mib(site))
            time.sleep(0.1)  # half of what one address may ask, however fast the machine is
        answered = {path: each.result() for path, each in zip(paths, asked, strict=True)}
    assert {status for path, status in answered.items() if status not in (200, 404, 503)} == set()
    assert set(statuses) == {200}
    assert peak < _MOST_MIB


def test_a_worker_is_gone_soon_after_its_client(site: WebServer) -> None:
    with site.client() as client:
        assert client.get("/api/v1/waste").status_code == 200
    stopped = workers(site)
    assert stopped
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    host, _, port = site.address.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), 20) as connection:
        head = (
            "GET /api/v1/waste HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
            f"{site.tokens[_USER]}\r\n\r\n"
        )
        connection.sendall(head.encode())
        with client_of(site) as client:
            assert client.get("/api/v1/me").status_code == 200
        assert workers(site) == stopped
    until(lambda: len(workers(site)) < len(stopped))
    for pid in workers(site) & stopped:
        os.kill(pid, signal.SIGCONT)
