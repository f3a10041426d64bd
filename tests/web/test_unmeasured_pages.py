"""Pages of jobs of which nothing was measured: no sentence claims more, nothing missing is 0."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

import pytest
from marked_lake import connect
from starlette.testclient import TestClient

from madelake import held, job, make_lake, summarized, utc

_START = utc(23, 12)
_END = _START + timedelta(minutes=30)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """An admin's session; of the lake's two jobs, two GPUs of one node, not even the GPUs are known."""
    times = [_START + timedelta(seconds=30 * place) for place in range(60)]
    lake = make_lake(
        tmp_path_factory.mktemp("unmeasured"),
        gpu_samples=[{"t": t, "node": "other", "gpu": 0, "gpu_util": 0.5} for t in times],
        jobs=[job(id_, _START, _END, user="ann", account="chem", name="x", gpus=1) for id_ in ("7", "8")],
        allocations=[*held("7", "n1", [0], _START, _END), *held("8", "n1", [0], _START, _END)],
    )
    summarized(lake)
    with connect(lake, link="link") as session:
        session.get("/login?token=link")
        yield session


def words(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page[page.index("<main") :]).split())


@pytest.mark.parametrize("path", ["/?of=all", "/user/ann", "/account/chem"])
def test_hours_that_are_not_known_to_be_lost_are_not_none(client: TestClient, path: str) -> None:
    page = words(client.get(path).text)
    assert "– GPU-hours lost – GPU-hours recoverable" in page
    assert " 0 GPU-hours" not in page
    assert client.get("/api/v1/users/ann").json()["findings"][0]["gpu_hours_lost"] is None


def test_jobs_that_are_not_in_the_ledger_are_left_out_not_absent(client: TestClient) -> None:
    page = words(client.get("/waste").text)
    assert "No job in the ledger." in page
    assert "None of those that match is in the ledger" in page
    assert "Left out: 2 jobs" in page
    assert "None of the visible jobs matches" in words(client.get("/waste?user=absent").text)


def test_a_sentence_stands_once(client: TestClient) -> None:
    short = words(client.get("/job/7").text).partition("In short ")[2]
    assert short.count("Not known") == 1


def test_a_study_of_no_jobs_is_a_sentence(client: TestClient) -> None:
    assert "No study. No job is left to study: " in words(client.get("/study").text)
