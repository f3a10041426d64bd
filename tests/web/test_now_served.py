"""The page of the fleet on a real server: events, a new connection that goes on, an end while pages are open."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from servers.web import WebServer, serving

pytestmark = pytest.mark.slow
_GPUS = 64


@pytest.fixture(scope="module")
def server(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    folder = tmp_path_factory.mktemp("now") / "demo"
    shutil.copytree(demo, folder)
    with serving(folder, "--simulate", str(_GPUS)) as running:
        yield running


def _events(client: httpx2.Client, path: str, count: int, **headers: str) -> list[tuple[int, dict[str, Any]]]:
    """The first events of a stream: number and content."""
    found: list[tuple[int, dict[str, Any]]] = []
    number = 0
    with client.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("id:"):
                number = int(line[3:])
            if line.startswith("data:"):
                found.append((number, json.loads(line[5:])))
                if len(found) == count:
                    break
    return found


def test_a_page_continues_where_it_is_and_a_new_connection_where_that_was(server: WebServer) -> None:
    with server.client() as client:
        page = client.get("/now").text
        since = re.search(r'data-since="(\d+)"', page)
        assert since is not None
        assert page.count('class="gpu"') == _GPUS
        first, second = _events(client, f"/now/events?since={since[1]}", 2)
        assert int(since[1]) < first[0] < second[0]
        assert "heat" not in first[1]["sections"]  # its GPUs are the same
        assert first[1]["cells"]["age"] != second[1]["cells"]["age"]
        ((third, again),) = _events(client, f"/now/events?since={since[1]}", 1, **{"Last-Event-ID": str(second[0])})
        assert third > second[0]
        assert "heat" not in again["sections"]
        ((_, everything),) = _events(client, "/now/events", 1)
        assert {"state", "held", "sick", "groups", "gpus", "heat", "notes"} == set(everything["sections"])
        assert len(re.findall(r'id="heat-\d+"', everything["sections"]["heat"])) == _GPUS


@pytest.mark.parametrize("query", ["by=colour", "filter=x%3C2", "since=-1", "last=1"])
def test_a_choice_that_is_none_is_refused(server: WebServer, query: str) -> None:
    with server.client() as client:
        for path in ("/now", "/now/events"):
            answer = client.get(f"{path}?{query}")
            assert answer.status_code == 400
            assert "Traceback" not in answer.text


def test_who_is_not_logged_in_gets_no_events(server: WebServer) -> None:
    with httpx2.Client(base_url=server.address) as client:
        assert client.get("/now/events", headers={"accept": "text/event-stream"}).status_code in (303, 401)


def test_it_ends_at_once_while_a_page_is_open(server: WebServer) -> None:
    with server.client() as client, client.stream("GET", "/now/events") as answer:
        next(answer.iter_lines())
        begun = time.monotonic()
        server.process.terminate()
        assert server.process.wait(30) == 0
        assert time.monotonic() - begun < 9
    assert "Traceback" not in server.log.read_text(encoding="utf-8")
