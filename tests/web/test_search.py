"""The search box: what it leads to, what it offers, and that it finds nothing which a viewer may
not see.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import datetime
from html import escape, unescape
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tachograph.annexes.serve.pages.jobs import SHOWN_COLUMNS
from tachograph.catalog.columns import LOST_COLUMN, column_text, local_time
from tachograph.catalog.tables import JOB_GPUS
from tachograph.judge.checks import CHECKS
from tachograph.lake.delta import Lake

ApiClient = Callable[..., TestClient]
JOB = "1000316"


@pytest.fixture(scope="module")
def nodes(demo: Path) -> Mapping[str, set[str]]:
    """{job_key: nodes on which it held a GPU}."""
    held: dict[str, set[str]] = defaultdict(set)
    rows = Lake.open(str(demo / "lake")).latest(JOB_GPUS, ("job_key", "node"))
    for job_key, node in rows.iter_rows():
        held[job_key].add(node)
    return held


def jobs_of(client: TestClient) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = client.get("/api/v1/jobs?limit=10000").json()
    return rows


def names_of(client: TestClient, kind: str, text: str) -> set[str]:
    query = {"q": text, "kind": kind, "limit": "10000"}
    return {row["name"] for row in client.get("/api/v1/search", params=query).json()}


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ("", "jobs"),
        (f"  {JOB} ", f"job/{JOB}"),
        (f"{JOB}.0", f"job/{JOB}.0"),  # a step
        ("1000247", "jobs?where=array_job_id%3D1000247"),
        ("1000247_1", "job/1000247_1"),
        ("user036", "user/user036"),
        ("proj00", "account/proj00"),
        ("nid000025", "node/nid000025"),
    ],
)
def test_what_is_named_whole_is_shown_at_once(admin: TestClient, written: str, place: str) -> None:
    answer = admin.get("/search", params={"q": written}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, place)
    assert admin.get("/search", params={"q": written}).status_code == 200


@pytest.mark.parametrize("name", ["user000", ""])
def test_every_name_of_a_visible_job_is_found_and_no_other(
    as_viewer: ApiClient, admin: TestClient, nodes: Mapping[str, set[str]], name: str
) -> None:
    client = as_viewer(name) if name else admin
    jobs = jobs_of(client)
    assert len(jobs) > 20
    columns = {"job": "display_id", "user": "user", "account": "account", "name": "name"}
    for kind, column in columns.items():
        for text in ("0", "A", "user001", "nid"):
            wanted = {
                str(job[column]) for job in jobs if text.lower() in str(job[column] or "").lower()
            }
            assert names_of(client, kind, text) == wanted, (kind, text)
    held = {node for job in jobs for node in nodes[str(job["job_key"])]}
    assert names_of(client, "node", "nid") == held


def test_what_begins_so_comes_before_what_contains_it(admin: TestClient) -> None:
    rows = admin.get("/api/v1/search?q=user00&limit=5").json()
    assert [row["name"] for row in rows] == [f"user00{number}" for number in range(5)]
    assert {row["page"] for row in rows} == {f"user/user00{number}" for number in range(5)}


def test_several_are_listed_and_nothing_is_no_error(admin: TestClient) -> None:
    several = admin.get("/search?q=user03")
    assert several.url.path == "/search"
    assert '<a href="/user/user036">user036</a>' in several.text
    assert "user001" not in several.text
    nothing = admin.get("/search", params={"q": "<b>absent"})
    assert nothing.status_code == 200
    assert "&lt;b&gt;absent" in nothing.text
    assert "Nothing that you may see" in nothing.text


@pytest.mark.parametrize(
    ("query", "holds"),
    [
        ({"name": "FINE"}, lambda job: "fine" in (job["name"] or "")),
        ({"gpu_model": "a100"}, lambda job: "a100" in (job["gpu_model"] or "").lower()),
        ({"gpus": "8"}, lambda job: job["gpus"] == 8),
        ({"exit_code": "1"}, lambda job: job["exit_code"] == 1),
        ({"gpus": "4", "exit_code": "0"}, lambda job: (job["gpus"], job["exit_code"]) == (4, 0)),
        ({"where": "gpu_hours_lost>2"}, lambda job: (job["gpu_hours_lost"] or 0) > 2),
        (
            {"where": "gpu_hours_lost<=0.5"},
            lambda job: job["gpu_hours_lost"] is not None and job["gpu_hours_lost"] <= 0.5,
        ),
    ],
)
def test_fields_of_the_list_choose_jobs_by_what_they_are(
    admin: TestClient, query: dict[str, str], holds: Callable[[dict[str, object]], bool]
) -> None:
    jobs = jobs_of(admin)
    wanted = {job["job_key"] for job in jobs if holds(job)}
    assert 0 < len(wanted) < len(jobs)
    found = admin.get("/api/v1/jobs", params={**query, "limit": "10000"}).json()
    assert {job["job_key"] for job in found} == wanted
    page = admin.get("/jobs", params=query).text
    assert f"{len(wanted)} jobs" in page


def test_a_node_chooses_the_jobs_that_held_a_gpu_of_it(
    admin: TestClient, as_viewer: ApiClient, nodes: Mapping[str, set[str]]
) -> None:
    for client in (admin, as_viewer("user000")):
        keys = {str(job["job_key"]) for job in jobs_of(client)}
        wanted = {key for key in keys if "nid000025" in nodes[key]}
        assert wanted
        found = client.get("/api/v1/jobs?node=nid000025&limit=10000").json()
        assert {job["job_key"] for job in found} == wanted
    assert admin.get("/api/v1/jobs?node=absent").json() == []


def test_what_was_wrong_can_be_corrected_where_the_error_is_shown(admin: TestClient) -> None:
    hostile = 'gpu_util_mean<10"><script>'
    asked = {"where": hostile, "user": "user001"}
    answer = admin.get("/jobs", params=asked, headers={"Accept": "text/html"})
    assert answer.status_code == 400
    assert f'name="where" value="{escape(hostile).replace("&quot;", "&#34;")}"' in answer.text
    assert 'name="user" value="user001"' in answer.text
    assert "<script>" not in answer.text


@pytest.mark.parametrize(
    ("query", "near"),
    [
        ({"where": "lost GPU-h>2"}, "gpu_hours_lost"),
        ({"where": "gpu_utl_mean<10%"}, "gpu_util_mean"),
        ({"sort": "-gpu_hours_los"}, "gpu_hours_lost"),
        ({"columns": "energy"}, "energy_j"),
        ({"finding": "stal"}, "stall"),
    ],
)
def test_an_unknown_name_keeps_the_form_and_offers_near_ones(
    admin: TestClient, query: dict[str, str], near: str
) -> None:
    asked = {**query, "user": "user001"}
    answer = admin.get("/jobs", params=asked, headers={"Accept": "text/html"})
    assert answer.status_code == 400
    assert re.search(rf"did you mean {near}\b", answer.text)
    for name, value in asked.items():
        assert f'name="{name}" value="{escape(value)}"' in answer.text


@pytest.mark.parametrize("column", [*SHOWN_COLUMNS])
def test_each_visible_column_sorts_the_list(admin: TestClient, column: str) -> None:
    page = admin.get(f"/jobs?sort=-{column}&limit=5", headers={"Accept": "text/html"})
    assert page.status_code == 200
    assert 'aria-sort="descending"' in page.text


def test_findings_are_chosen_by_title(admin: TestClient) -> None:
    page = unescape(admin.get("/jobs?finding=stall&finding=hot_gpu").text)
    options = dict(re.findall(r'<option value="(\w+)"[^>]*>([^<]+)</option>', page))
    assert options["stall"] == "Work stood still for a long time"
    assert len(options) == len({*options.values()}) > 30
    assert '<option value="stall" selected>' in page


def test_jobs_that_are_found_are_shown_as_in_the_list(admin: TestClient) -> None:
    page = unescape(admin.get("/search?q=10003").text)
    jobs = {str(job["display_id"]): job for job in jobs_of(admin)}
    rows = re.findall(r"<tr><td><a .*?</tr>", page, flags=re.DOTALL)
    assert len(rows) == 20
    for row in rows:
        job = jobs[re.findall(r">(\w+)</a></td>", row)[0]]
        for column in ("user", "name", "state"):
            assert f">{job[column]}<" in row
        assert re.findall(r'class="found[^>]* title="(\w+)">', row) == job["findings"]
        end = datetime.fromisoformat(str(job["end"])) if job["end"] else None
        assert f">{local_time(end, 'Europe/Berlin')[:16] if end else '–'}<" in row


def test_bars_findings_and_lost_hours_of_the_list_are_those_of_the_api(admin: TestClient) -> None:
    page = admin.get("/jobs?sort=-gpu_hours_lost&limit=100").text
    jobs = admin.get("/api/v1/jobs?sort=-gpu_hours_lost&limit=100").json()
    rows = re.findall(r"<tr><td><input.*?</tr>", page, flags=re.DOTALL)
    assert len(rows) == len(jobs) == 100
    titles = {check.code: check.title for check in CHECKS}
    for row, job in zip(rows, jobs, strict=True):
        bars = [float(width) for width in re.findall(r'<rect width="([\d.]+)"', row)]
        use = job["gpu_util_mean"]
        assert bars == ([] if use is None else [pytest.approx(100 * use, abs=0.051)])
        shown = re.findall(r'class="found (\w+)"[^>]* title="(\w+)">([^<]+)<', row)
        assert [code for _, code, _ in shown] == job["findings"]
        assert [unescape(title) for *_, title in shown] == [
            titles[code] for code in job["findings"]
        ]
        assert not shown or shown[0][0] == job["worst_severity"]
        assert f'<td class="n">{column_text(LOST_COLUMN, job[LOST_COLUMN])}</td>' in row
    assert jobs[0][LOST_COLUMN] > 0
