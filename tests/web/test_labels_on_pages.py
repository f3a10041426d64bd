"""Findings are confirmed and rejected on a page, stored in the lake, and read by `tune`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from starlette.testclient import TestClient

from served_entries import ApiClient
from tachograph.annexes.lab.tune.labels import labels_of_lake
from tachograph.annexes.serve.application import WebService, create_application
from tachograph.annexes.serve.identity.identities import StartLink
from tachograph.annexes.serve.snapshot import ServedLake
from tachograph.catalog import config
from tachograph.lake.delta import Lake
from tachograph.lake.labels import read_labels, write_label
from tachograph.lake.query import read_summaries

AT = datetime(2025, 3, 6, tzinfo=UTC)


@pytest.fixture(scope="module")
def lake(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A copy of the demo's lake."""
    folder = tmp_path_factory.mktemp("labels") / "lake"
    shutil.copytree(demo / "lake", folder)
    return Lake.open(str(folder))


@pytest.fixture(scope="module")
def served(lake: Lake, demo: Path) -> ServedLake:
    return ServedLake(lake, config.load(str(demo / "tachograph.toml")))


@pytest.fixture
def client(served: ServedLake) -> Iterator[TestClient]:
    """An admin's session."""
    service = WebService.of(served, link=StartLink("link", "eve"))
    with TestClient(create_application(service), base_url="http://127.0.0.1:8265") as session:
        session.get("/login?token=link")
        yield session


def labels(lake: Lake, code: str) -> list[tuple[bool, str, str | None]]:
    """Return the labels of one check; other tests of this lake write those of others."""
    return list(read_labels(lake).filter(code=code).select("holds", "by", "comment").iter_rows())


def test_each_check_of_the_page_is_explained(client: TestClient) -> None:
    page = client.get("/findings").text
    rows = re.findall(
        r"<code>(\w+)</code></a></td><td class=\"why\">(.*?)</td><td>(\w+|–)</td>", page
    )
    assert {"score_gpu", "workload", "health", "low_occupancy", "job_hang"} <= {
        row[0] for row in rows
    }
    assert ("load_imbalance_waste", "The GPUs did unequal work", "hint") in rows
    assert [code for code, title, severity in rows if not title or severity == "–"] == []


def test_an_admin_labels_by_a_form_of_this_service(client: TestClient, lake: Lake) -> None:
    page = client.get("/findings?finding=job_hang").text
    keys = re.findall(r'name="job_key" value="([^"]+)"', page)
    sent = {"job_key": keys[0], "finding": "job_hang", "comment": "<b>MPI_Wait</b>"}
    client.headers["sec-fetch-site"] = "same-origin"
    after = client.post("/findings", data={**sent, "label": "rejected"})
    assert "rejected by eve" in after.text
    assert "&lt;b&gt;MPI_Wait&lt;/b&gt;" in after.text
    assert labels(lake, "job_hang") == [(False, "eve", "<b>MPI_Wait</b>")]
    client.post("/findings", data={**sent, "label": "confirmed", "comment": ""})
    assert labels(lake, "job_hang") == [(True, "eve", None)]
    assert client.post("/findings", data={**sent, "label": "withdrawn"}).status_code == 200
    assert labels(lake, "job_hang") == []


def test_others_see_no_form_and_may_send_none(as_viewer: ApiClient, lake: Lake) -> None:
    support = as_viewer("eve", "support")
    assert 'name="label"' not in support.get("/findings?finding=job_hang").text
    form = {"job_key": "1000316", "finding": "one_gpu_of_many", "label": "confirmed"}
    assert support.post("/findings", data=form).status_code == 403
    assert labels(lake, "one_gpu_of_many") == []


def test_labels_of_one_moment_all_stay(lake: Lake) -> None:
    keys = read_summaries(lake)["job_key"].head(5)
    for key in keys:
        write_label(lake, key, "1", "stall", holds=True, by="eve", at=AT)
        write_label(lake, key, "1", "stall", holds=False, by="bob", at=AT)
    stored = read_labels(lake).filter(code="stall")
    assert sorted(stored["job_key"]) == sorted(keys)
    assert not stored["holds"].any()


def test_tune_takes_labels_of_job_classes_of_jobs_that_are_there(lake: Lake) -> None:
    rows = pl.DataFrame(
        [
            ("a", "no_tensor_use", True),
            ("a", "job_hang", True),
            ("gone", "job_hang", True),
            ("b", "stall", False),
        ],
        schema=["job_key", "code", "holds"],
        orient="row",
    )
    taken = labels_of_lake(rows, ["job_hang", "stall"], pl.DataFrame({"job_key": ["a", "b"]}))
    assert taken.rows.rows() == [("a", "job_hang", True), ("b", "stall", False)]
    assert [(one.line, one.reason, one.what) for one in taken.refused] == [
        (3, "a job that is not in the lake", "gone")
    ]
