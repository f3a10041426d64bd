"""Advice over REST: of who asks alone, the same as in Python."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from served_entries import ApiClient

ADVICE = "/api/v1/advice"
SCRIPT = "#!/bin/bash\n#SBATCH -J cfd -p gpu --gpus=4 -t 8:00:00\nsrun ./cfd\n"


def test_script_is_understood(as_viewer: ApiClient) -> None:
    made = as_viewer("user000").post(ADVICE, json={"script": SCRIPT, "partition": "shared"})
    assert made.status_code == 200
    request = made.json()["request"]
    wanted = {
        "name": "cfd",
        "partition": "shared",
        "gpus": 4,
        "timelimit_s": 28800.0,
        "user": "user000",
    }
    assert {name: request[name] for name in wanted} == wanted


def test_only_ones_own_history_counts(as_viewer: ApiClient, admin: TestClient) -> None:
    body = {"script": SCRIPT, "user": "user000"}
    own = as_viewer("user000").post(ADVICE, json=body).json()
    assert admin.post(ADVICE, json=body).json() == own
    assert as_viewer("root", "support").post(ADVICE, json=body).json() == own
    for role in ("user", "manager"):
        hidden = as_viewer("user001", role).post(ADVICE, json=body).json()
        absent = as_viewer("user001", role).post(ADVICE, json=body | {"user": "absent"}).json()
        assert hidden["group"] == absent["group"]
        assert (hidden["lines"], hidden["headline"]) == (absent["lines"], absent["headline"])
    assert as_viewer().post(ADVICE, json=body).status_code == 401


@pytest.mark.parametrize(
    "body", [{"gpus": -1}, {"gpus": "4"}, {"more": 1}, {"name": "x" * 501}, {"script": 7}]
)
def test_wrong_requests_are_refused(as_viewer: ApiClient, body: dict[str, object]) -> None:
    assert as_viewer("user000").post(ADVICE, json=body).status_code == 400
