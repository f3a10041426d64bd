"""A real server: where it listens, how it begins and ends."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from pathlib import Path

import httpx2
import pytest

from in_process import run_here
from servers.web import WebServer, serving
from tachograph.annexes.serve.server import Listening

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the demo, whose configuration names its lake."""
    copy = tmp_path_factory.mktemp("serve") / "demo"
    shutil.copytree(demo, copy)
    return copy


def test_it_listens_on_a_socket_that_only_one_has_and_removes_what_a_killed_one_left(
    folder: Path,
) -> None:
    path = str(folder / "serve.sock")
    command = ("serve", "--socket", path)
    with serving(folder, command=command) as server:
        with httpx2.Client(transport=httpx2.HTTPTransport(uds=path)) as client:
            assert client.get(
                "http://tachograph/jobs", headers={"accept": "text/html"}
            ).status_code in (200, 303, 401)
        second = run_here(command, folder, os.environ.copy())
        assert second.returncode == 3
        assert "another process listens there" in second.stderr
        server.process.kill()
        server.process.wait()
    assert Path(path).is_socket()
    with serving(folder, command=command):
        pass
    assert not Path(path).exists()


def test_small_answers_are_sent_at_once() -> None:
    """asyncio turns the delay of small packets off for sockets of TCP alone, which cost 40 ms of
    each answer.
    """
    with Listening.at("127.0.0.1:0").bound() as bound:
        assert bound.proto == socket.IPPROTO_TCP


def test_a_port_that_is_taken_is_one_line(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = run_here(["serve", "--listen", f"127.0.0.1:{port}"], folder, os.environ.copy())
    assert run.returncode == 3
    assert run.stderr.count("\n") == 1
    assert run.stderr.endswith("choose another with --port, --listen or --socket\n")


def test_a_demo_whose_port_is_taken_names_its_own_options(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = ("demo", "--folder", str(folder), "--serve", address)
        run = run_here(command, folder, os.environ.copy())
    assert run.returncode == 3
    assert run.stderr == (
        f"tachograph: {address}: cannot listen: Address already in use; choose another: `tachograph "
        "demo --serve HOST:PORT`, with make `make serve-demo ADDRESS=HOST:PORT`\n"
    )


def ends_without_an_error(server: WebServer, number: signal.Signals) -> None:
    server.process.send_signal(number)
    assert server.process.wait(20) == 0
    assert server.log.read_text(encoding="utf-8").rstrip().endswith("stopped")


def test_the_service_manager_is_notified_until_a_signal_ends_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(folder / "notify.sock"))
        manager.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "notify.sock"))
        with serving(folder) as server:
            heard = {manager.recv(100), manager.recv(100)}
            assert heard == {b"READY=1", b"WATCHDOG=1"}
            ends_without_an_error(server, signal.SIGTERM)
            rest = [manager.recv(100)]
            while rest[-1] != b"STOPPING=1":
                rest.append(manager.recv(100))


def test_a_demo_that_is_there_is_served_as_it_is_until_it_is_interrupted(folder: Path) -> None:
    mark = (folder / ".tachograph-demo").stat().st_mtime_ns
    command = ("demo", "--folder", str(folder), "--serve", "127.0.0.1:0")
    with serving(folder.parent, command=command) as server:
        with server.client() as client:
            assert "1000316" in client.get("/jobs?limit=1000").text
        ends_without_an_error(server, signal.SIGINT)
    assert (folder / ".tachograph-demo").stat().st_mtime_ns == mark
