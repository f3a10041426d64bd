"""Every page and every endpoint of the catalogue answers, to those whose role suffices."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from tachograph.catalog import config
from tachograph.lake.delta import Lake
from tachograph.web.application import WebService, create_application
from tachograph.web.endpoints import API, Endpoint
from tachograph.web.registry import ENDPOINTS, PAGES, PageEntry
from tachograph.web.snapshot import ServedLake
from tachograph.web.viewer import Role, Viewer

PLAIN_PAGES = [entry for entry in PAGES if "{" not in entry.path]
PLAIN_ENDPOINTS = [entry for entry in ENDPOINTS if "{" not in entry.path and entry.method == "GET"]


class AdminService(WebService):
    """A service for which every request is from an admin."""

    def identify(self, request: Request) -> Viewer:
        return Viewer("eve", Role.ADMIN, via="test")


@pytest.fixture(scope="module")
def served(demo: Path) -> ServedLake:
    return ServedLake(Lake.open(str(demo / "lake")), config.load(str(demo / "tachograph.toml")))


@pytest.fixture(scope="module")
def admin(served: ServedLake) -> TestClient:
    return TestClient(create_application(AdminService.of(served)))


@pytest.fixture(scope="module")
def stranger(served: ServedLake) -> TestClient:
    return TestClient(create_application(WebService.of(served)), follow_redirects=False)


@pytest.mark.parametrize("entry", PLAIN_PAGES, ids=lambda entry: entry.name)
def test_a_page_has_one_heading_of_its_own(admin: TestClient, entry: PageEntry) -> None:
    answer = admin.get(entry.path, headers={"accept": "text/html"})
    assert answer.status_code == 200
    assert answer.text.count("<h1") == 1


@pytest.mark.parametrize("entry", PLAIN_ENDPOINTS, ids=lambda entry: entry.name)
def test_an_endpoint_answers(admin: TestClient, entry: Endpoint) -> None:
    answer = admin.get(API + entry.path)
    assert answer.status_code < 400 or entry.path.startswith("/prometheus")


@pytest.mark.parametrize("entry", PLAIN_PAGES, ids=lambda entry: entry.name)
def test_a_page_leads_strangers_to_the_login(stranger: TestClient, entry: PageEntry) -> None:
    answer = stranger.get(entry.path, headers={"accept": "text/html"})
    assert (answer.status_code, answer.headers["location"].partition("?")[0]) == (303, "/login")
