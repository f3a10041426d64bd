"""Holes that another service of job data has closed, and their kin: none is here.

The list is that of ClusterCockpit 1.5.4: a JWT signed with an empty key, paths out of a folder,
CORS with credentials, forms of other sites, no content security policy, pages in frames of other
sites. Of names that act, scripts that are stored in names of jobs, and formulas tests/foreign_text
is the proof.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import OctKey
from marked_lake import ANN, ANNS_JOB, BOB, connect, service_of
from starlette.testclient import TestClient

from tachograph.annexes.serve.application import create_application
from tachograph.annexes.serve.endpoints import API
from tachograph.annexes.serve.guard import log_line, without_secrets
from tachograph.annexes.serve.identity.identities import NO_LINK, Identities
from tachograph.annexes.serve.identity.slurm_tokens import SlurmTokens
from tachograph.annexes.serve.lanes import Lanes
from tachograph.annexes.serve.registry import ENDPOINTS, PAGES
from tachograph.catalog.config import ServeOptions
from tachograph.catalog.errors import ConfigError
from tachograph.lake.delta import Lake

ME = f"{API}/me"
SECRET = bytes(range(32))
EVIL = "https://evil.example"
PAGE = {"accept": "text/html"}


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """The key of a cluster."""
    file = tmp_path / "jwt_hs256.key"
    file.write_bytes(SECRET)
    file.chmod(0o600)
    return file


@pytest.fixture
def ann(marked: Lake) -> TestClient:
    """Ann, who has a session as admin."""
    client = connect(marked, link="secret")
    client.get("/login?token=secret")
    return client


def token(secret: bytes = SECRET, *, alg: str = "HS256", **claims: Any) -> str:
    now = int(time.time())
    given = {"iat": now, "exp": now + 60, "sun": ANN} | claims
    claims = {name: value for name, value in given.items() if value is not None}
    return jwt.encode(
        {"alg": alg, "typ": "JWT"}, claims, OctKey.import_key(secret), algorithms=[alg]
    )


@pytest.mark.filterwarnings("ignore:Key size")
def test_empty_key_jwt(key: Path, marked: Lake) -> None:
    client = connect(marked, slurm_jwt_key=str(key))

    def asked(sent: str) -> int:
        statuses = {
            client.get(ME, headers={"x-slurm-user-token": sent}).status_code,
            client.get(ME, headers={"authorization": f"Bearer {sent}"}).status_code,
        }
        assert len(statuses) == 1
        return statuses.pop()

    assert asked(token()) == 200
    unsigned = "eyJhbGciOiJub25lIn0." + token().split(".")[1] + "."
    wrong = [
        token(b"\x00" * 32), token(b"wrong" * 8), unsigned, unsigned.replace("Jub25lIn0", "JOT05FIn0"),
        token(alg="HS512", secret=SECRET * 2), token(exp=int(time.time()) - 1), token(exp=None), token(exp="later"),
        token(nbf=int(time.time()) + 3600), token(sun=None), token(sun=""), token(sun=[ANN]), token(sun="a\nb"),
        "", ".", "..", "x", token()[:-4], token() + "x" * 9000,
    ]  # fmt: skip
    assert [asked(one) for one in wrong] == [401] * len(wrong)
    named = {"x-slurm-user-token": token(), "x-slurm-user-name": BOB}
    assert client.get(ME, headers=named).status_code == 401


@pytest.mark.parametrize("secret", [b"", b"\n", b"short", b"\x00" * 64, b"a" * 31])
def test_a_key_that_can_be_guessed_is_refused(key: Path, secret: bytes) -> None:
    key.write_bytes(secret)
    with pytest.raises(ConfigError):
        SlurmTokens.with_key(str(key))


def test_a_secret_that_everyone_can_read_is_refused(key: Path) -> None:
    key.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        Identities.of(ServeOptions(slurm_jwt_key=str(key)))


@pytest.mark.parametrize(
    "path",
    ["/static/../application.py", "/static/%2e%2e/application.py", "/static/..%2fapplication.py", "/static//etc/passwd",
     "/job/../../etc/passwd", "/job/..%2f..%2fetc%2fpasswd", "/static/%00", "/job/%00", "/static/vendor"],
)  # fmt: skip
def test_traversal(ann: TestClient, path: str) -> None:
    answer = ann.get(path)
    assert answer.status_code in (400, 404)
    assert "root:" not in answer.text
    assert "def create_application" not in answer.text


@pytest.mark.parametrize(
    "key", ["", " ", "a/b", "../..", "\u2003", "a\r\nset-cookie: b=c", "//evil.example", "\x00"]
)
def test_a_search_leads_to_a_page_of_this_service_or_nowhere(ann: TestClient, key: str) -> None:
    answer = ann.get("/search", params={"q": key})
    assert answer.status_code in (200, 303)
    assert "set-cookie" not in answer.headers
    assert answer.headers.get("location", "jobs") == "jobs"
    named = ann.get("/search", params={"q": f" {ANNS_JOB} "})
    assert (named.status_code, named.headers["location"]) == (303, f"job/{ANNS_JOB}")


def test_an_address_is_quoted_in_headers(ann: TestClient) -> None:
    answer = ann.get(f"{API}/jobs/%E2%80%83{ANNS_JOB}%0A/minutes?limit=1")
    assert answer.headers["link"].startswith(
        f"<{API}/jobs/%E2%80%83{ANNS_JOB}%0A/minutes?limit=1&after="
    )


def test_cors_with_credentials(ann: TestClient) -> None:
    for method in ("GET", "OPTIONS", "POST"):
        answer = ann.request(
            method, ME, headers={"origin": EVIL, "access-control-request-method": "POST"}
        )
        assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_csrf(ann: TestClient) -> None:
    """What changes something is refused unless the browser names a page of this service as its
    origin.
    """
    posts = [API + entry.path for entry in ENDPOINTS if entry.method != "GET"] + ["/logout"]
    foreign = [{}, {"origin": EVIL}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}]
    foreign += [
        {"origin": "http://testserver", "sec-fetch-site": site} for site in ("same-site", "", "x")
    ]
    for path in posts:
        for headers in foreign:
            answer = ann.post(re.sub(r"{\w+}", ANNS_JOB, path), headers=headers, json={})
            assert answer.status_code == 403, path
    for path in [entry.path for entry in PAGES]:
        assert ann.post(re.sub(r"{\w+}", ANNS_JOB, path)).status_code in (403, 405), path
    assert ann.get(ME).status_code == 200, "the session is as it was"


def test_content_security_policy_and_frames(ann: TestClient, marked: Lake) -> None:
    paths = [
        "/jobs",
        "/login",
        "/nothing",
        ME,
        f"{API}/jobs/none",
        "/static/web.css",
        "/static/none",
    ]
    for path in paths:
        headers = ann.get(path, headers=PAGE).headers
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == "'self'"
        assert policy["frame-ancestors"] == "'none'"
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
    framed = (
        connect(marked, frame_ancestors=("https://ondemand.example.org",)).get("/login").headers
    )
    assert "frame-ancestors https://ondemand.example.org" in framed["content-security-policy"]
    assert "x-frame-options" not in framed
    with pytest.raises(ConfigError):
        connect(marked, frame_ancestors=("x; script-src *",))


def test_pages_have_no_inline_scripts(ann: TestClient) -> None:
    for entry in PAGES:
        text = ann.get(re.sub(r"{\w+}", ANNS_JOB, entry.path), headers=PAGE).text
        for attributes in re.findall(r"<script\b([^>]*)>", text):
            assert "src=" in attributes or "application/json" in attributes, entry.path
        assert not re.search(r"<[^>]+\son\w+=", text), entry.path
        assert "javascript:" not in text


def test_an_answer_is_kept_by_no_shared_cache(ann: TestClient) -> None:
    for path in ("/jobs", ME, "/login", f"{API}/jobs"):
        headers = ann.get(path, headers=PAGE).headers
        assert "private" in headers["cache-control"]
        assert "cookie" in headers["vary"].lower()


def test_a_body_that_is_too_large_is_refused(marked: Lake) -> None:
    client = connect(marked, body_bytes=1000)
    form = {"accept": "application/json", "content-type": "application/x-www-form-urlencoded"}
    # Announced, or in parts.
    for body in (b"token=" + b"x" * 2000, iter([b"token=", *[b"x" * 600] * 2])):
        refused = client.post("/login", content=body, headers=form)
        assert (refused.status_code, refused.headers["content-type"]) == (
            413,
            "application/problem+json",
        )
        assert "1,000 bytes" in refused.json()["detail"]
    assert client.request("GET", "/login", content=b"x" * 2000).status_code == 200  # is not read


def test_one_identity_cannot_keep_the_service_busy(marked: Lake) -> None:
    client = connect(marked, requests_per_s=0.1)  # one, and another one ten seconds later
    answers = [client.get(ME) for _ in range(3)]
    assert [one.status_code for one in answers] == [401, 429, 429]
    assert int(answers[-1].headers["retry-after"]) >= 1


@pytest.mark.anyio
async def test_work_that_takes_too_long_is_answered_and_counts_until_it_ends() -> None:
    import threading

    from starlette.exceptions import HTTPException

    lanes, go = Lanes(0, 1, 0.2), threading.Event()
    for _ in range(2):
        with pytest.raises(HTTPException) as late:
            await lanes.run("ann", lambda: go.wait(30))
        assert late.value.status_code == 503
    assert await lanes.run("bob", lambda: "own lane") == "own lane"
    go.set()


@pytest.fixture
def anyio_backend() -> str:
    """Of asynchronous tests here."""
    return "asyncio"


def test_the_log_has_no_secrets_and_one_line_per_request(tmp_path: Path, marked: Lake) -> None:
    log = tmp_path / "access.log"
    client = connect(marked, link="secret-of-the-link", access_log=str(log))
    client.get("/login?token=secret-of-the-link&next=/jobs")
    client.get(
        "/jobs?user=ann&token=abc123&columns=name%0aforged%1b[31m",
        headers={"authorization": "Bearer abc123"},
    )
    client.get("/login/oidc/callback?code=abc123&state=abc123")
    text = log.read_text()
    assert "secret-of-the-link" not in text
    assert "abc123" not in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["path"] for line in lines] == ["/login", "/jobs", "/login/oidc/callback"]
    assert text.isascii()
    assert "\x1b" not in text
    assert (
        without_secrets("/jobs", b"a=1&api_key=2&X-Auth=3&password=4")
        == "a=1&api_key=…&X-Auth=…&password=…"
    )
    assert log_line({"state": {}, "method": "GET", "path": "/"}, 200, 0.1, "")["user"] == ""


def test_the_log_has_the_address_that_a_proxy_names(tmp_path: Path, marked: Lake) -> None:
    log, sent = tmp_path / "access.log", {"x-forwarded-for": "1.2.3.4, 10.9.8.7"}
    service = service_of(marked, NO_LINK, proxies=("10.0.0.5",), access_log=str(log))
    for client in ("10.0.0.5", "10.0.0.6"):
        TestClient(create_application(service), client=(client, 1)).get(
            f"{API}/health", headers=sent
        )
    assert [json.loads(line)["from"] for line in log.read_text().splitlines()] == [
        "10.9.8.7",
        "10.0.0.6",
    ]
