"""Every page of the catalogue as each role: opened or refused, and with links that lead on."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from urllib.parse import parse_qsl, urljoin, urlsplit

import httpx2
import msgspec
import pytest
from page_examples import EXAMPLES
from starlette.testclient import TestClient

import nsight_reports
from served_entries import ApiClient, until
from tachograph.annexes.serve.registry import PAGES
from tachograph.annexes.serve.snapshot import ServedLake
from tachograph.api.viewer import Role
from tachograph.catalog import config
from tachograph.lake.delta import Lake

pytestmark = pytest.mark.slow
PEOPLE = {
    Role.ANONYMOUS: "",
    Role.USER: "user000",
    Role.MANAGER: "user000",
    Role.SUPPORT: "sue",
    Role.ADMIN: "ada",
}
PRINTED_OBJECT = re.compile(r"&lt;(?:Macro|function|bound method|[\w.]+ object at) [^&]*")


@pytest.fixture(scope="module")
def served(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> ServedLake:
    """The demo, with a report of kernels for some jobs of user000."""
    report = tmp_path_factory.mktemp("report") / "cfd.csv"
    report.write_text(nsight_reports.sample(), encoding="utf-8")
    loaded = config.load(str(demo / "tachograph.toml"), {})
    configuration = msgspec.structs.replace(
        loaded,
        interference=msgspec.structs.replace(
            loaded.interference, profiles={"user000/cfd": str(report)}
        ),
        serve=msgspec.structs.replace(loaded.serve, requests_per_s=0.0),
    )
    return ServedLake(Lake.open(str(demo / "lake")), configuration)


def client_of(as_viewer: ApiClient, role: Role) -> TestClient:
    client = as_viewer(PEOPLE[role], role.label)
    client.headers["accept"] = "text/html"
    client.follow_redirects = False
    return client


def opened(client: TestClient, path: str) -> httpx2.Response:
    """The answer, once all that it shows is made."""
    if not path.startswith("/now"):
        until(lambda: 'id="pending"' not in client.get(path).text)
    return client.get(path)


def kind_of(link: str) -> tuple[str, frozenset[str]]:
    """What a link leads to: of all links to jobs one is followed, of all lists of jobs one with
    each parameters.
    """
    parts = urlsplit(link)
    place = re.sub(r"^/(job|user|account|node|study)/[^/]+", r"/\1/*", parts.path)
    return place, frozenset(name for name, _ in parse_qsl(parts.query))


def test_pages_are_opened_by_those_who_may_and_lead_on(as_viewer: ApiClient) -> None:
    """A kind of link is followed by the least role that sees one."""
    assert {entry.name for entry in PAGES if "{" in entry.path} <= set(EXAMPLES)
    followed: set[tuple[str, frozenset[str]]] = set()
    for role in PEOPLE:
        client = client_of(as_viewer, role)
        statuses = {}
        links: dict[tuple[str, frozenset[str]], str] = {}
        for entry in PAGES:
            path = EXAMPLES.get(entry.name, (entry.path,))[0]
            answer = opened(client, path)
            statuses[entry.name] = answer.status_code
            if answer.status_code == 200:
                assert answer.text.count("<h1") == 1, path
                assert not PRINTED_OBJECT.findall(answer.text), path
                for link in re.findall(r'<a\b[^>]*\bhref="([^"#]+)', answer.text):
                    target = urljoin(path, unescape(link))
                    links.setdefault(kind_of(target), target)
        if role is Role.ANONYMOUS:  # no page without a proof, as `serve.anonymous` is off
            assert set(statuses.values()) == {303}
            continue
        expected = {entry.name: 200 if role >= entry.least else 403 for entry in PAGES}
        assert statuses == expected, role
        assert len(links) > 20, role
        for kind, target in links.items():
            if kind not in followed and target.startswith("/"):
                accept = "*/*" if target.startswith("/api/v1") else "text/html"
                status = client.get(target, headers={"accept": accept}).status_code
                assert status < 400, (role, target)
        followed.update(links)
