"""The page of the fleet on a real server: it is read again and again, and shows new values."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from servers.web import WebServer, serving

pytestmark = pytest.mark.slow
_GPUS = 64
_SOON_S = 60.0


@pytest.fixture(scope="module")
def server(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    folder = tmp_path_factory.mktemp("now") / "demo"
    shutil.copytree(demo, folder)
    with serving(folder, "--simulate", str(_GPUS)) as running:
        yield running


def test_a_page_that_is_read_again_has_new_values_of_the_same_gpus(server: WebServer) -> None:
    until = time.monotonic() + _SOON_S
    with server.client() as client:
        while (first := client.get("/now")).text.count('class="gpu"') != _GPUS:  # before the first poll
            assert time.monotonic() < until
            time.sleep(0.1)
        while (again := client.get("/now")).headers["etag"] == first.headers["etag"]:
            assert time.monotonic() < until
            time.sleep(0.1)
        assert again.text.count('class="gpu"') == _GPUS


@pytest.mark.parametrize("query", ["by=colour", "filter=x%3C2", "since=-1", "last=1"])
def test_a_choice_that_is_none_is_refused(server: WebServer, query: str) -> None:
    with server.client() as client:
        answer = client.get(f"/now?{query}")
        assert answer.status_code == 400
        assert "Traceback" not in answer.text


def test_who_is_not_logged_in_gets_no_gpus(server: WebServer) -> None:
    with httpx2.Client(base_url=server.address) as client:
        assert client.get("/now").status_code == 401
