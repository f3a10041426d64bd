"""Pages of jobs: the list, one job in tabs, jobs side by side."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from starlette.testclient import TestClient

from tachograph.annexes.serve.pages.job import TABS
from tachograph.annexes.serve.snapshot import ServedLake
from tachograph.api.viewer import Role, Viewer
from tachograph.catalog import config
from tachograph.lake.delta import Lake
from tachograph.report.job_comparison import NUMBERS, compare_jobs, difference
from tachograph.report.pages import unbroken

WASTED = "1000316"  # one of its eight GPUs worked


@pytest.fixture(scope="module")
def served(demo: Path) -> ServedLake:
    now = datetime(2025, 3, 5, tzinfo=UTC)
    return ServedLake(
        Lake.open(str(demo / "lake")), config.load(str(demo / "tachograph.toml")), clock=lambda: now
    )


@pytest.fixture(scope="module")
def jobs(admin: TestClient) -> pl.DataFrame:
    return pl.DataFrame(admin.get("/api/v1/jobs?limit=1000").json(), infer_schema_length=None)


def shown(page: str) -> list[str]:
    return re.findall(r'<td><a href="/job/[^"#]+">([^<]+)</a>', page)


def test_the_list_is_filtered_sorted_and_paged_as_the_api_is(
    admin: TestClient, jobs: pl.DataFrame
) -> None:
    query = "user=user000&sort=-gpu_hours&limit=5"
    first = admin.get(f"/jobs?{query}")
    following = re.search(r'rel="next" href="([^"]+)"', first.text)
    assert following
    second = admin.get("/jobs" + following[1].replace("&amp;", "&"))
    wanted = jobs.filter(user="user000").sort(
        "gpu_hours", "job_key", descending=[True, False], nulls_last=True
    )
    assert [*shown(first.text), *shown(second.text)] == wanted["display_id"].head(10).to_list()
    assert f"{wanted.height} jobs" in first.text
    assert 'aria-sort="descending"' in first.text


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_the_list_as_a_file_has_the_jobs_of_the_filter(
    admin: TestClient, jobs: pl.DataFrame, form: str
) -> None:
    page = admin.get("/jobs?user=user000&sort=gpu_hours&limit=5&columns=display_id").text
    links = re.findall(r'href="([^"]+)" download', page)
    (link,) = [one.replace("&amp;", "&") for one in links if f"format={form}" in one]
    content = admin.get(link).content
    rows = pl.read_csv(content, infer_schema=False) if form == "csv" else pl.read_parquet(content)
    assert rows.height == jobs.filter(user="user000").height


@pytest.mark.parametrize(
    "address",
    [
        *(
            f"/jobs?{query}"
            for query in ("sort=nothing", "columns=nothing", "where=gpus", "limit=0", "colour=red")
        ),
        "/jobs?where=gpu_util_mean%3C10",
        *(f"/now?{query}" for query in ("by=colour", "filter=x%3C2", "since=-1")),
    ],
)
def test_what_cannot_be_shown_is_a_page_that_says_why(admin: TestClient, address: str) -> None:
    answer = admin.get(address, headers={"Accept": "text/html"})
    assert answer.status_code in (400, 404)
    assert "<h1>" in answer.text


@pytest.mark.parametrize("tab", TABS)
def test_each_tab_has_its_part_and_links_to_the_others(admin: TestClient, tab: str) -> None:
    page = admin.get(f"/job/{WASTED}?tab={tab}").text
    assert page.count("<h1>") == 1
    assert page.count('aria-current="page">') == 2  # of breadcrumb and tabs
    headings = {"summary": "timeline", "gpus": "balance", "steps": "steps"}
    headings |= {"checks": "checks", "all": "data"}
    assert f'<h2 id="{headings[tab]}"' in page
    assert all(f"tab={other}" in page for other in TABS)
    assert "<style" not in page


@pytest.mark.parametrize(
    ("former", "tab", "heading"),
    [
        ("timeline", "summary", "timeline"),
        ("roofline", "summary", "speed"),
        ("imbalance", "gpus", "balance"),
    ],
)
def test_addresses_of_former_tabs_lead_to_their_content(
    admin: TestClient, former: str, tab: str, heading: str
) -> None:
    page = admin.get(f"/job/{WASTED}?tab={former}").text
    assert f'<h2 id="{heading}">' in page
    assert re.search(rf'tab={tab}" aria-current="page"', page)


def test_the_verdict_comes_first_then_the_recorder_then_findings(admin: TestClient) -> None:
    page = admin.get(f"/job/{WASTED}").text
    parts = (
        "<h1>",
        'class="headline"',
        'class="next"',
        'id="recorder"',
        'id="findings"',
        'id="use"',
    )
    positions = [page.index(part) for part in parts]
    assert positions == sorted(positions)


def test_a_page_is_not_sent_again_while_nothing_changed(admin: TestClient) -> None:
    first = admin.get(f"/job/{WASTED}")
    tag = first.headers["etag"].removeprefix("W/")
    for given in (tag, f"W/{tag}"):  # the second as one that a proxy compressed
        assert admin.get(f"/job/{WASTED}", headers={"If-None-Match": given}).status_code == 304
    assert (
        admin.get(
            f"/job/{WASTED}?tab=gpus", headers={"If-None-Match": first.headers["etag"]}
        ).status_code
        == 200
    )


def test_only_the_page_of_a_running_job_is_read_again(
    admin: TestClient, jobs: pl.DataFrame
) -> None:
    running = jobs.filter(state="RUNNING")["job_key"][0]
    assert "data-refresh" in admin.get(f"/job/{running}").text
    assert "data-refresh" not in admin.get(f"/job/{WASTED}").text


def test_jobs_side_by_side(admin: TestClient, served: ServedLake) -> None:
    opened = served.view(Viewer("eve", Role.ADMIN, via="test")).opened
    reports = [opened.job(job).report for job in (WASTED, "1000177")]
    comparison = compare_jobs(reports)
    differences = [-1.0 if one.difference is None else one.difference for one in comparison.numbers]
    assert differences == sorted(differences, reverse=True)
    page = admin.get(f"/compare?job={WASTED}&job=1000177").text
    assert str(unbroken(comparison.headline)) in page
    assert 'aria-label="utilisation of each job over time' in page
    assert "Utilisation, mean over the GPUs of each job, from its start." in page
    unmeasured = compare_jobs([reports[0], opened.job("1000347").report])
    assert unmeasured.caption.endswith("Not measured: job 1000347.")
    labels = re.findall(r'<th scope="row">([^<]+)</th>', page)
    assert {one.label for one in comparison.numbers} <= set(labels)
    assert {one.label for one in comparison.numbers} <= set(NUMBERS.values())


def test_jobs_that_cannot_be_compared(admin: TestClient) -> None:
    assert admin.get("/compare?job=1000316&job=absent").status_code == 400
    assert admin.get("/compare?" + "&".join(f"job={job}" for job in range(5))).status_code == 400
    assert "alone" in admin.get(f"/compare?job={WASTED}&job={WASTED}").text
    assert difference([None, None]) is None
