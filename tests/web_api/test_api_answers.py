"""Answers that are not lists of jobs: labels, own jobs, users, nodes, the collector."""

from __future__ import annotations

import json

import msgspec
import pytest
from starlette.testclient import TestClient

from served_entries import ApiClient
from tachograph.annexes.serve.snapshot import ServedLake
from tachograph.annexes.watch.live.render import json_rows
from tachograph.annexes.watch.served_fleet import fleet_of
from tachograph.api.viewer import Role, Viewer

LABELS = "/api/v1/labels"


@pytest.fixture
def finding(admin: TestClient) -> dict[str, str]:
    """A finding of a job of user000."""
    (row,) = admin.get("/api/v1/findings", params={"user": "user000", "limit": 1}).json()
    return {"job_key": row["job_key"], "finding": row["code"]}


def test_a_label_is_written_replaced_and_withdrawn(
    admin: TestClient, as_viewer: ApiClient, finding: dict[str, str]
) -> None:
    before = admin.get(LABELS).json()
    written = admin.post(LABELS, json=finding | {"label": "confirmed", "comment": "=seen"})
    assert (written.status_code, written.json()) == (
        200,
        finding | {"label": "confirmed", "comment": "=seen", "by": "root"},
    )
    (row,) = as_viewer("user000").get(LABELS).json()
    assert (row["job_key"], row["code"], row["holds"], row["by"]) == (
        *finding.values(),
        True,
        "root",
    )
    assert "'=seen" in admin.get(LABELS, params={"format": "csv"}).text
    assert as_viewer("user001").get(LABELS).json() == []
    admin.post(LABELS, json=finding | {"label": "rejected"})
    assert [row["holds"] for row in as_viewer("user000").get(LABELS).json()] == [False]
    admin.post(LABELS, json=finding | {"label": "withdrawn"})
    assert admin.get(LABELS).json() == before


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"job_key": "absent", "finding": "idle", "label": "confirmed"}, 404),
        ({"finding": "absent", "label": "confirmed"}, 404),
        ({"label": "perhaps"}, 400),
        ({"label": "confirmed", "more": 1}, 400),
        ({"job_key": 7, "label": "confirmed"}, 400),
        ({"label": "confirmed", "comment": "x" * 501}, 400),
    ],
)
def test_wrong_labels_are_refused(
    admin: TestClient, finding: dict[str, str], body: dict[str, object], status: int
) -> None:
    answer = admin.post(LABELS, json=finding | body)
    assert answer.status_code == status, answer.text
    assert admin.post(LABELS, content=b"{").status_code == 415
    assert (
        admin.post(LABELS, content=b"{", headers={"Content-Type": "application/json"}).status_code
        == 400
    )


def test_my_jobs_are_mine(as_viewer: ApiClient, admin: TestClient) -> None:
    mine = as_viewer("user000").get("/api/v1/me/jobs", params={"limit": 1000}).json()
    assert {row["job_key"] for row in mine} == {
        row["job_key"]
        for row in admin.get("/api/v1/jobs", params={"user": "user000", "limit": 1000}).json()
    }
    assert as_viewer("user000").get("/" + mine[0]["page"]).status_code == 200
    ended = as_viewer("user000").get("/api/v1/me/jobs", params={"state": "COMPLETED"}).json()
    assert {row["state"] for row in ended} == {"COMPLETED"}
    assert as_viewer("helper", "support").get("/api/v1/me/jobs").json() == []


def test_usage_is_that_of_the_page(as_viewer: ApiClient, admin: TestClient) -> None:
    usage = as_viewer("user003").get("/api/v1/users/user003").json()
    assert usage == admin.get("/api/v1/users/user003").json()
    assert (
        usage["waste"]["lost"]
        == admin.get("/api/v1/waste", params={"user": "user003"}).json()["lost"]
    )
    assert usage["jobs"] == len(
        admin.get("/api/v1/jobs", params={"user": "user003", "limit": 1000}).json()
    )
    account = usage["running"][0]["account"] if usage["running"] else usage["worst"][0]["account"]
    assert as_viewer("user003").get(f"/api/v1/accounts/{account}").json()["jobs"] <= usage["jobs"]


def test_a_node_is_that_of_the_page_and_names_own_jobs_alone(
    as_viewer: ApiClient, admin: TestClient
) -> None:
    key = admin.get(
        "/api/v1/jobs", params={"user": "user003", "where": "samples>0", "limit": 1}
    ).json()[0]["job_key"]
    node = admin.get(f"/api/v1/jobs/{key}/minutes", params={"limit": 1}).json()[0]["node"]
    report = admin.get(f"/api/v1/nodes/{node}").json()
    assert report["node"] == node
    assert report["headline"] in admin.get(f"/node/{node}").text
    mine = as_viewer("user003").get(f"/api/v1/nodes/{node}").json()
    assert (
        {row["user"] for row in mine["jobs"]}
        == {"user003"}
        < {row["user"] for row in report["jobs"]}
    )
    assert admin.get("/api/v1/nodes/absent").status_code == 404
    assert (
        admin.get(f"/api/v1/nodes/{node}", params={"format": "csv"}).text.count("\n")
        == len(report["gpus"]) + 1
    )


def test_the_fleet_now_is_of_visible_jobs(
    as_viewer: ApiClient, admin: TestClient, served: ServedLake
) -> None:
    state = fleet_of(served.view(Viewer("", Role.ADMIN))).state(wait_s=120.0)
    assert state.view is not None  # before it there are no rows
    rows = admin.get("/api/v1/now", params={"limit": 10_000}).json()
    printed = json.loads(msgspec.json.encode(json_rows(state.view)))
    key = ("node", "gpu", "mig")
    assert {tuple(row[name] for name in key): row["gpu_util"] for row in rows} == {
        tuple(row[name] for name in key): row["gpu_util"] for row in printed
    }
    assert set(rows[0]) == set(printed[0])
    user = next(row["user"] for row in rows if row["user"])
    mine = as_viewer(user).get("/api/v1/now", params={"limit": 10_000}).json()
    assert {row["user"] for row in mine} == {user}
    assert len(mine) < len(rows)
    assert as_viewer("absent").get("/api/v1/now").json() == []
