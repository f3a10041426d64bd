"""Formats of answers: every one holds the same rows, and headers choose it."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from tachograph.annexes.serve.answers import FORMATS, choose_format, public_rows
from tachograph.catalog.spreadsheets import harmless_cells
from tachograph.catalog.units import printable
from tachograph.lake.query import read_summaries
from tachograph.report.json_values import json_rows

TABLES = [
    "/jobs",
    "/findings",
    "/jobs/{key}/minutes",
    "/jobs/{key}/node_minutes",
    "/jobs/{key}/findings",
]


@pytest.fixture(scope="module")
def key(admin: TestClient) -> str:
    """The job with most GPUs."""
    rows = admin.get(
        "/api/v1/jobs", params={"sort": "-gpus", "limit": 1, "where": "samples>0"}
    ).json()
    return str(rows[0]["job_key"])


def read_rows(content: bytes, form: str) -> list[dict[str, Any]]:
    """Rows of an answer, as objects."""
    match form:
        case "json":
            rows: list[dict[str, Any]] = json.loads(content)
            return rows
        case "parquet":
            return json_rows(pl.read_parquet(io.BytesIO(content)))
    raise AssertionError(form)


@pytest.mark.parametrize("path", TABLES)
def test_every_format_holds_the_same_rows(admin: TestClient, key: str, path: str) -> None:
    url = "/api/v1" + path.format(key=key)
    expected = admin.get(url, params={"limit": 20}).json()
    for form in FORMATS:
        answers = [
            admin.get(url, params={"limit": 20, "format": form.name}),
            admin.get(url, params={"limit": 20}, headers={"Accept": form.media_type}),
        ]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert {answer.headers["content-type"].partition(";")[0] for answer in answers} == {
            form.media_type
        }
        assert answers[0].content == answers[1].content
        if form.name == "csv":
            cells = list(csv.DictReader(io.StringIO(answers[0].text)))
            assert [list(row) for row in cells] == [list(row) for row in expected]
            continue
        rows = read_rows(answers[0].content, form.name)
        for row in rows:
            for name in ("evidence", "checks"):
                if isinstance(row.get(name), str):
                    row[name] = json.loads(row[name])
        assert rows == expected


def test_json_is_what_the_command_prints(admin: TestClient, served: Any) -> None:
    summaries = read_summaries(served.lake)
    rows = admin.get("/api/v1/jobs", params={"limit": 10_000}).json()
    printed = {row["job_key"]: row for row in json_rows(summaries)}
    assert len(rows) == len(printed)
    assert all(
        printed[row["job_key"]] == {name: row[name] for name in printed[row["job_key"]]}
        for row in rows
    )


@given(
    st.lists(st.floats(width=32), min_size=1, max_size=5),
    st.integers(0, 4_000_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
)
def test_numbers_and_times_of_json_are_those_of_reports(
    values: list[float], moment: datetime
) -> None:
    frame = pl.DataFrame({"x": pl.Series(values, dtype=pl.Float32), "t": [moment] * len(values)})
    assert json.loads(FORMATS[0].encode(public_rows(frame))) == json_rows(frame)


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", "json"),
        ("*/*", "json"),
        ("text/html,application/xhtml+xml,*/*;q=0.8", "json"),
        ("text/*", "csv"),
        ("application/vnd.apache.parquet, application/json;q=0.9", "parquet"),
        ("application/json;q=0.1, text/csv;q=0.2", "csv"),
        ("application/json;q=0, */*", "csv"),
        ("TEXT/CSV ; q=1", "csv"),
        ("application/json;q=nonsense, text/csv", "csv"),
        ("*/*;q=0", None),
        ("image/png", None),
        ("garbage", None),
    ],
)
def test_accept(accept: str, form: str | None) -> None:
    found = choose_format(accept, FORMATS)
    assert (found and found.name) == form


def test_what_is_not_offered_is_406(admin: TestClient) -> None:
    answer = admin.get("/api/v1/jobs", headers={"Accept": "image/png"})
    assert answer.status_code == 406
    assert answer.headers["content-type"] == "application/problem+json"
    assert "text/csv" in answer.json()["do"]
    assert admin.get("/api/v1/study", headers={"Accept": "text/csv"}).status_code == 406
    assert (
        admin.get(
            "/api/v1/jobs", headers={"Accept": "image/png"}, params={"format": "csv"}
        ).status_code
        == 200
    )


@given(st.text(max_size=8))
@example("＝1+1")
@example("＠x")
def test_no_cell_begins_a_formula(text: str) -> None:
    (cell,) = harmless_cells(pl.DataFrame({"name": [text]})).row(0)
    number = re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text, re.ASCII | re.IGNORECASE)
    assert (
        number
        or cell[:1] not in ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
        or not cell
    )
    assert cell in (printable(text), f"'{printable(text)}")


def test_chosen_fields_alone_come_back(admin: TestClient) -> None:
    rows = admin.get("/api/v1/jobs", params={"fields": "user, job_key,user", "limit": 2}).json()
    assert [list(row) for row in rows] == [["user", "job_key"]] * 2
    assert list(admin.get("/api/v1/waste", params={"fields": "lost"}).json()) == ["lost"]
    wrong = admin.get("/api/v1/jobs", params={"fields": "usr"})
    assert wrong.status_code == 400
    assert "user" in wrong.json()["do"]
    assert admin.get("/api/v1/jobs", params={"fields": "seq"}).status_code == 400


def test_a_browser_keeps_a_table_as_a_file(admin: TestClient) -> None:
    answer = admin.get("/api/v1/jobs", params={"format": "parquet"})
    assert answer.headers["content-disposition"] == 'attachment; filename="jobs.parquet"'
