"""What an answer depends on: version, viewer, address; and what becomes of requests that are
wrong.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
from starlette.testclient import TestClient

from served_entries import ApiClient
from tachograph.annexes.serve.endpoints import API
from tachograph.annexes.serve.registry import ENDPOINTS
from tachograph.annexes.serve.snapshot import ServedLake
from tachograph.api.viewer import Role
from tachograph.catalog.version import __version__
from tachograph.lake.query import lake_now


def test_nothing_new_is_304(admin: TestClient, as_viewer: ApiClient) -> None:
    url = "/api/v1/jobs?limit=1"
    tag = admin.get(url).headers["etag"]
    again = admin.get(url, headers={"If-None-Match": f'"other", {tag}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert admin.get("/api/v1/jobs?limit=2", headers={"If-None-Match": tag}).status_code == 200
    assert admin.get(url, headers={"If-None-Match": tag, "Accept": "text/csv"}).status_code == 200
    assert as_viewer("user000").get(url, headers={"If-None-Match": tag}).status_code == 200
    assert (
        as_viewer("helper", "support").get(url, headers={"If-None-Match": tag}).status_code == 200
    )


def test_a_tag_is_of_one_viewer_also_where_two_see_all(as_viewer: ApiClient) -> None:
    tags = {
        as_viewer(name, "support").get("/api/v1/me/jobs").headers["etag"]
        for name in ("user000", "user001")
    }
    assert len(tags) == 2


@pytest.mark.parametrize("ended", [False, True])
def test_times_that_pass_change_the_tag(
    ended: bool, admin: TestClient, served: ServedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the data have ended: then times count from their end."""
    minutes = count()

    def clock() -> datetime:
        end = lake_now(served.lake, datetime(2100, 1, 1, tzinfo=UTC))
        return end + timedelta(days=9 if ended else 0, minutes=next(minutes))

    monkeypatch.setattr(served, "_clock", clock)
    user = admin.get("/api/v1/jobs?limit=1").json()[0]["user"]
    for path in ("jobs", "waste", f"users/{user}"):
        relative = [admin.get(f"/api/v1/{path}?since=9000d").headers["etag"] for _ in range(2)]
        absolute = [admin.get(f"/api/v1/{path}?since=2025-03-03").headers["etag"] for _ in range(2)]
        assert (relative[0] == relative[1]) is ended, path
        assert absolute[0] == absolute[1], path


def test_health_names_state_and_version_alone(as_viewer: ApiClient, served: ServedLake) -> None:
    client = as_viewer()
    served.refresh()
    answer = client.get("/api/v1/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok", "version": __version__})


def test_me(as_viewer: ApiClient) -> None:
    mine = as_viewer("user000").get("/api/v1/me").json()
    jobs = as_viewer("user000").get("/api/v1/jobs?limit=10000").json()
    assert mine == {
        "name": "user000",
        "role": "user",
        "accounts": [],
        "via": "test",
        "jobs": len(jobs),
    }
    assert {row["user"] for row in jobs} == {"user000"}


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /jobs?nosuch=1", 400),
        ("GET /jobs?limit=0", 400),
        ("GET /jobs?limit=1&limit=2", 400),
        ("GET /jobs?where=1", 400),
        ("GET /jobs?" + "&".join(["where=name~a"] * 21), 400),
        ("GET /jobs?where=nosuch>1", 400),
        ("GET /jobs?finding=nosuch", 400),
        ("GET /jobs?state=NOSUCH", 400),
        ("GET /jobs?since=nosuch", 400),
        ("GET /waste?by=nosuch", 400),
        ("GET /study?pipe=nosuch", 400),
        ("GET /jobs/nosuch", 404),
        ("GET /nosuch", 404),
        ("GET /nosuch?limit=0", 404),
        ("GET /jobs/nosuch?run=1", 404),
        ("POST /jobs", 405),
    ],
)
def test_wrong_requests_are_problems(admin: TestClient, request_line: str, status: int) -> None:
    method, _, path = request_line.partition(" ")
    answer = admin.request(method, f"/api/v1{path}")
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert set(problem) == {"type", "title", "status", "detail", "do"}
    assert problem["status"] == status
    assert problem["type"].startswith("/docs/api.md#")
    if status == 405:
        assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD"}


@pytest.mark.parametrize("role", Role)
def test_each_endpoint_answers_those_whose_role_suffices(as_viewer: ApiClient, role: Role) -> None:
    client = as_viewer("" if role is Role.ANONYMOUS else "user000", role.label)
    for entry in ENDPOINTS:
        if "{" in entry.path or entry.name == "study":  # each study takes seconds
            continue
        sent: dict[str, Any] = {"json": {}} if entry.method == "POST" else {}
        answer = client.request(entry.method, f"{API}{entry.path}", **sent)
        # `serve.anonymous` is off.
        if role is Role.ANONYMOUS and (entry.of_lake or entry.least > role):
            assert answer.status_code == 401, entry.name
        elif role < entry.least:
            assert answer.status_code == 403, entry.name
        else:
            assert answer.status_code == (400 if entry.name == "label_add" else 200), entry.name
