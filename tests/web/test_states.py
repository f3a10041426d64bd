"""Pages of rare states: no jobs, a job that is huge, ambiguous, of two clusters, not analyzed
yet, a broken lake.
"""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from stated_lake import (
    AMBIGUOUS,
    ANN,
    BOB,
    DAN,
    EVA,
    HUGE,
    NEW,
    NEWEST,
    TWICE,
    UNKNOWN,
    stated_lake,
)

from madelake import fill, job, summarized, utc
from tachograph.annexes.serve.application import WebService, create_application
from tachograph.annexes.serve.identity.identities import StartLink
from tachograph.annexes.serve.identity.tokens import create_token
from tachograph.annexes.serve.registry import PAGES
from tachograph.annexes.serve.snapshot import ServedLake, View
from tachograph.api.pages import PageEntry, Pending
from tachograph.api.viewer import Role
from tachograph.catalog.config import Configuration, ServeOptions
from tachograph.lake.delta import Lake

PAGE = {"Accept": "text/html"}


def client_of(served: ServedLake) -> TestClient:
    """Return a session of an admin called Ann."""
    service = WebService.of(served, link=StartLink("link", ANN))
    session = TestClient(
        create_application(service), base_url="http://127.0.0.1:8265", headers=PAGE
    )
    session.get("/login?token=link")
    return session


def words(page: str) -> str:
    """Return the text of the part of a page that is its own."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page.split("<main", 1)[1])).split())


@pytest.fixture(scope="module")
def stated(tmp_path_factory: pytest.TempPathFactory) -> ServedLake:
    return ServedLake(stated_lake(tmp_path_factory.mktemp("stated")), Configuration())


@pytest.fixture(scope="module")
def client(stated: ServedLake) -> Iterator[TestClient]:
    with client_of(stated) as session:
        yield session


@pytest.fixture(scope="module")
def as_users(
    stated: ServedLake, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, TestClient]:
    """{user: a client of theirs} of one server."""
    file = tmp_path_factory.mktemp("tokens") / "tokens.toml"
    expires = datetime.now(UTC) + timedelta(days=1)
    tokens = {
        user: create_token(file, user=user, role=Role.USER, expires=expires)[0]
        for user in (ANN, BOB, DAN)
    }
    configuration = Configuration(serve=ServeOptions(token_file=str(file), requests_per_s=1000))
    application = create_application(WebService.of(ServedLake(stated.lake, configuration)))
    return {
        user: TestClient(application, headers={**PAGE, "Authorization": f"Bearer {token}"})
        for user, token in tokens.items()
    }


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    lake = Lake.create(str(tmp_path_factory.mktemp("empty")))
    summarized(lake)
    with client_of(ServedLake(lake, Configuration())) as session:
        yield session


@pytest.mark.parametrize("entry", PAGES, ids=lambda entry: entry.name)
def test_no_jobs(empty: TestClient, entry: PageEntry) -> None:
    path = re.sub(r"\{[^}]*\}", "1", entry.path)
    answer = empty.get(path)
    assert answer.status_code == (404 if "{" in entry.path else 200)
    assert answer.text.count("<h1>") == 1
    assert re.search(r"No |no |14 rules", words(answer.text))
    assert "tachograph jobs" not in answer.text


def test_nothing_was_analyzed_yet(tmp_path: Path) -> None:
    lake = Lake.create(str(tmp_path / "lake"))
    fill(lake, {"jobs": [job("1", utc(1), None, user=ANN)]})
    with client_of(ServedLake(lake, Configuration())) as session:
        answer = session.get("/jobs")
    assert answer.status_code == 503
    assert "othing was analyzed yet" in answer.text
    assert "run <code>tachograph analyze</code>" in answer.text
    assert answer.headers["refresh"] == answer.headers["retry-after"]


def test_a_job_that_is_not_analyzed_yet(client: TestClient) -> None:
    answer = client.get(f"/job/{NEW}")
    assert answer.status_code == 404
    assert f"Job {NEW} fresh RUNNING" in words(answer.text)
    assert "in the accounting but not analyzed yet" in answer.text
    assert "user ann partition gpu cluster east" in words(answer.text)
    assert (
        "not analyzed yet"
        in client.get(f"/api/v1/jobs/{NEW}", headers={"Accept": "*/*"}).json()["detail"]
    )


@pytest.mark.parametrize(
    "path", ["/jobs", "/?of=mine", "/?of=all", f"/user/{ANN}", f"/jobs?user={ANN}"]
)
def test_lists_name_jobs_that_are_not_analyzed_yet(client: TestClient, path: str) -> None:
    page = client.get(path).text
    assert f'<a href="/job/{NEW}?cluster=east">{NEW}</a>' in page
    assert (f">{NEWEST}</a>" in page) is (path in ("/jobs", "/?of=all"))
    assert client.get(f"/job/{NEW}?cluster=east").status_code == 404


def test_a_user_without_analyzed_jobs_has_a_page(client: TestClient) -> None:
    page = client.get(f"/user/{DAN}")
    assert page.status_code == 200
    assert f"1 job of the accounting not analyzed yet: {NEWEST} RUNNING" in words(page.text)
    assert client.get("/user/absent").status_code == 404


def test_a_job_that_is_not_analyzed_is_as_absent_to_others(
    as_users: Mapping[str, TestClient],
) -> None:
    def page(user: str, path: str) -> str:
        return as_users[user].get(path).text

    assert "not analyzed yet" in page(ANN, f"/job/{NEW}")
    assert words(page(BOB, f"/job/{NEW}")) == words(page(BOB, "/job/999999")).replace("999999", NEW)
    for path in ("/", "/jobs", f"/jobs?user={ANN}", f"/user/{ANN}"):
        assert NEW not in page(BOB, path)
    assert NEW in page(ANN, "/")
    assert NEWEST in page(DAN, "/")
    assert "No job is analyzed yet" in page(DAN, "/")


def test_once_it_is_analyzed_it_is_a_job_as_others(stated: ServedLake, tmp_path: Path) -> None:
    shutil.copytree(stated.lake.location, tmp_path / "lake")
    lake = Lake.open(str(tmp_path / "lake"))
    summarized(lake)
    with client_of(ServedLake(lake, Configuration())) as session:
        assert session.get(f"/job/{NEW}").status_code == 200
        assert "not analyzed yet" not in session.get("/jobs").text


@pytest.mark.parametrize("tab", ["gpus", "all"])  # the last has the parts of the others
def test_a_job_of_512_gpus(client: TestClient, tab: str) -> None:
    page = client.get(f"/job/{HUGE}?tab={tab}").text
    assert "The GPUs did unequal work" in words(page)
    assert len(page) < 250_000
    if tab == "gpus":
        assert page.count("gpu000 GPU") + page.count("gpu063 GPU") == 8
        assert client.get(f"/job/{HUGE}?tab=gpus&every=gpu").text.count("gpu031 GPU") == 8


@pytest.mark.parametrize("tab", ["summary", "checks", "all"])
def test_a_job_whose_gpus_are_not_known(client: TestClient, tab: str) -> None:
    page = words(client.get(f"/job/{AMBIGUOUS}?tab={tab}").text)
    assert "What its GPUs did is unknown" in page
    assert "No minute of this job was measured" not in page
    if tab != "checks":
        assert "Other jobs were on its nodes at the same time" in page


def test_a_job_id_of_two_clusters_leads_to_each(
    client: TestClient, as_users: Mapping[str, TestClient]
) -> None:
    answer = client.get(f"/job/{TWICE}")
    assert answer.status_code == 400
    links = re.findall(r'<li><a href="([^"]+)">on cluster (\w+)</a>', answer.text)
    assert [cluster for _, cluster in links] == ["east", "west"]
    assert [client.get(link).status_code for link, _ in links] == [200, 200]
    problem = client.get(f"/api/v1/jobs/{TWICE}", headers={"Accept": "application/json"}).json()
    assert [one["cluster"] for one in problem["candidates"]] == ["east", "west"]
    for candidate in problem["candidates"]:
        assert client.get(f"/job/{candidate['job_key']}").status_code == 200
    assert as_users[BOB].get(f"/job/{TWICE}").status_code == 200


def test_the_folder_of_the_lake_is_gone_and_back(stated: ServedLake, tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    shutil.copytree(stated.lake.location, folder)
    served = ServedLake(Lake.open(str(folder)), Configuration())
    with client_of(served) as session:
        assert session.get("/jobs").status_code == 200
        folder.rename(tmp_path / "away")
        with pytest.raises(Exception, match="lake"):
            served.refresh()
        answer = session.get("/jobs")
        assert answer.status_code == 503
        assert str(folder) in answer.text
        assert "What to do: " in answer.text
        assert "loads again by itself" in answer.text
        assert answer.headers["refresh"]
        (tmp_path / "away").rename(folder)
        served.refresh()
        assert session.get("/jobs").status_code == 200


def test_a_table_that_cannot_be_read(stated: ServedLake, tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    shutil.copytree(stated.lake.location, folder)
    with client_of(ServedLake(Lake.open(str(folder)), Configuration())) as session:
        for file in (folder / "job_minutes").rglob("*.parquet"):
            file.write_bytes(b"PAR1 damaged PAR1")
        answer = session.get(f"/job/{HUGE}?tab=all")
        assert answer.status_code == 503
        assert "job_minutes" in answer.text
        assert "What to do: " in answer.text
        assert session.get("/jobs").status_code == 200


def test_files_that_pages_name_are_kept_by_browsers(client: TestClient) -> None:
    page = client.get("/jobs").text
    for file in re.findall(r'"(/static/[^"]+)"', page):
        answer = client.get(file)
        assert (answer.status_code, "immutable" in answer.headers["cache-control"]) == (200, True)
    assert client.get("/static/web.css").headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "path", ["/?of=all", f"/user/{ANN}", "/account/acct", "/waste", "/study", "/sharing"]
)
def test_a_page_whose_numbers_are_still_made(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """As on a lake of a million jobs: each shows its frame, how far it is, and comes again."""
    for name in ("made", "summed"):
        monkeypatch.setattr(View, name, lambda *_, **__: Pending("reading", 3, 10))
    answer = client.get(path)
    assert answer.status_code == 200
    assert re.search(r'id="pending"[^>]* data-refresh="\d+"', answer.text)
    assert '<noscript><meta http-equiv="refresh" content="2"></noscript>' in answer.text
    assert "reading, 3 of 10" in words(answer.text)


@pytest.mark.parametrize("path", [f"/user/{EVA}", "/account/solo"])
def test_hours_that_are_not_known_to_be_lost_are_not_none(client: TestClient, path: str) -> None:
    page = words(client.get(path).text)
    assert "– GPU-hours lost – GPU-hours recoverable" in page
    assert " 0 GPU-hours" not in page


def test_jobs_that_are_not_in_the_ledger_are_left_out_not_absent(client: TestClient) -> None:
    page = words(client.get(f"/waste?user={EVA}").text)
    assert "No job in the ledger." in page
    assert "None of those that match is in the ledger" in page
    assert "Left out: 1 job" in page
    assert "None of the visible jobs matches" in words(client.get("/waste?user=absent").text)
    assert words(client.get(f"/job/{UNKNOWN}").text).partition("In short ")[2].count("Unknown") == 1
    assert "No study. No job is left to study: " in words(client.get(f"/study?user={EVA}").text)
