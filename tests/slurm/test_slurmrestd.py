"""slurmrestd: the version is found, the token is sent, errors in answers with status 200 are
errors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from feeding import Landing
from polars.testing import assert_frame_equal
from slurm_reading import MADE, VERSIONS, reading_of

from servers.faulty import Faulty, Reply, SeenRequest, faulty
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import InputError
from tachograph.catalog.tables import JOBS
from tachograph.sources import slurm_live
from tachograph.sources.registry import SourceFeed, convert_settings
from tachograph.sources.sacct import SacctSettings, connect
from tachograph.sources.slurm.exports import frame_of

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
API = {"22.05.8": "v0.0.38", "24.11.5": "v0.0.42", "26.05.5": "v0.0.45"}
Answers = Callable[[SeenRequest], Reply]


def slurmrestd(version: str, *, lists: bool = True) -> Answers:
    """Answers of a version, as recorded from its commands; `lists`: it tells under /openapi what
    it offers.
    """
    api = API[version]
    slash = "" if version == "22.05.8" else "/"
    files = {
        f"/slurmdb/{api}/jobs{slash}": "sacct.json",
        f"/slurm/{api}/jobs{slash}": "squeue.json",
    }

    def answer(request: SeenRequest) -> Reply:
        path = urlsplit(request.path).path
        if (
            request.headers.get("x-slurm-user-token") != "abc"
            or request.headers.get("x-slurm-user-name") != "watcher"
        ):
            return Reply(b"Authentication failure", 401)
        if path in files:
            return Reply((MADE / version / files[path]).read_bytes())
        if path == f"/slurm/{api}/ping{slash}":
            return Reply(b"{}")
        listed = "/openapi" if version == "22.05.8" else "/openapi/v3"
        if lists and path == listed:
            older = f"/slurm/v0.0.{int(api[-2:]) - 1}/jobs{slash}"
            return Reply(
                json.dumps({"paths": dict.fromkeys([older, *files])}).replace("/", r"\/").encode()
            )
        return Reply(b"Unable find requested URL. Please view /openapi/v3 for API reference.", 404)

    return answer


@pytest.fixture(params=VERSIONS)
def server(request: pytest.FixtureRequest) -> Iterator[Faulty]:
    with faulty(slurmrestd(request.param)) as running:
        yield running


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("SLURM_JWT=abc\n", encoding="utf-8")
    return path


def access(server: Faulty, token: Path, **more: object) -> dict[str, object]:
    rest = {"how": "rest", "url": server.url, "user": "watcher", "token_file": str(token)}
    return {**rest, **more}


def feed_of(server: Faulty, token: Path, **more: object) -> SourceFeed:
    raw = access(server, token, source="sacct", attempts=1, **more)
    settings = convert_settings(raw, SacctSettings, where="test")
    return connect(settings, configuration=Configuration())


def version_of(server: Faulty) -> str:
    paths = [request.path.split("/") for request in server.requests]
    return next(version for version, api in API.items() if any(api in parts for parts in paths))


def test_accounting_through_rest_is_that_of_the_file(server: Faulty, token: Path) -> None:
    landing = Landing()
    feed = feed_of(server, token, clusters=["demo", "other"])
    landing.poll(feed, NOW)
    version = version_of(server)
    whole = frame_of(reading_of(MADE / version / "sacct.json").jobs, JOBS)
    whole = whole.sort("job_id").drop("saved")
    assert_frame_equal(landing.jobs.sort("job_id").drop("saved"), whole)
    before = len(server.requests)
    landing.poll(feed, NOW.replace(hour=13))
    feed.close()
    assert len(server.requests) == before + 1  # the version is asked for once
    query = parse_qs(urlsplit(server.requests[-1].path).query)
    at = "uts" if version == "22.05.8" else ""
    assert query == {
        "start_time": [f"{at}{int(NOW.timestamp()) - 3600}"],
        "end_time": [f"{at}{int(NOW.timestamp()) + 3600}"],
        "cluster": ["demo,other"],
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_a_version_that_is_not_listed_is_found_by_trying(version: str, token: Path) -> None:
    with faulty(slurmrestd(version, lists=False)) as server:
        landing = Landing()
        landing.poll(feed_of(server, token), NOW)
        assert landing.jobs.height == 18
    with faulty(slurmrestd(version, lists=False)) as server:
        landing.poll(feed_of(server, token, api=API[version], name="fixed"), NOW)
        assert len(server.requests) == 1


def test_a_token_that_is_refused_says_how_to_make_one_and_a_new_one_is_taken(
    server: Faulty, token: Path
) -> None:
    token.write_text("old", encoding="utf-8")
    landing, feed = Landing(), feed_of(server, token)
    with pytest.raises(
        InputError, match=r"the token is refused.*token_file: scontrol token lifespan"
    ) as caught:
        landing.poll(feed, NOW)
    assert "old" not in str(caught.value)
    token.write_text("abc", encoding="utf-8")
    landing.poll(feed, NOW)
    assert landing.jobs.height == 18


def answering(body: bytes) -> Answers:
    return lambda request: Reply(body)


DOWN = b"""{"jobs": [], "errors": [{"description": "Failed connecting to slurmdbd", "error_number": 7000}]}"""
HALF = b"""{"jobs": [{"job_id": 1}], "errors": [{"error": "Unable to connect to database"}]}"""
EMPTY = b"""{"jobs": [], "errors": [{"description": "Nothing found", "error_number": 9003}]}"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (DOWN, "Slurm answered with an error: Failed connecting to slurmdbd; is slurmdbd running"),
        (HALF, "Slurm answered with an error: Unable to connect to database"),
        (b"<html>login</html>", "not sacct text"),
        (b'{"jobs": [', "the JSON is cut off"),
        (b"[]", "not a known answer of Slurm"),
    ],
)
def test_an_answer_that_is_none_moves_nothing(body: bytes, said: str, token: Path) -> None:
    with faulty(answering(body)) as server:
        landing = Landing()
        with pytest.raises(InputError, match=said):
            landing.poll(feed_of(server, token, api="v0.0.42"), NOW)
        assert landing.marks == {}


@pytest.mark.parametrize(("api", "path"), [("v0.0.39", "jobs?"), ("v0.0.40", "jobs/?")])
def test_nothing_found_is_an_answer(token: Path, api: str, path: str) -> None:
    with faulty(answering(EMPTY)) as server:
        landing = Landing()
        landing.poll(feed_of(server, token, api=api), NOW)
        assert landing.marks == {"sacct:sacct": NOW}
        assert server.requests[0].path.startswith(f"/slurmdb/{api}/{path}")


def test_running_jobs_through_rest(server: Faulty, token: Path) -> None:
    raw = access(server, token, source="slurm-live")
    settings = convert_settings(raw, slurm_live.SETTINGS, where="test")
    feed = slurm_live.connect(settings, configuration=Configuration())
    landing = Landing()
    landing.poll(feed, NOW)
    feed.close()
    assert landing.allocations.height == 15
    assert set(landing.jobs["state"]) == {"RUNNING"}


def test_every_version_is_tried_before_a_server_is_refused(token: Path) -> None:
    with faulty(lambda request: Reply(b"no such page", 404)) as server:
        with pytest.raises(InputError, match="not a known slurmrestd"):
            Landing().poll(feed_of(server, token), NOW)
        paths = [request.path.split("/") for request in server.requests]
    tried = [parts[2] for parts in paths if "ping" in parts]
    assert tried == [f"v0.0.{number}" for number in range(47, 36, -1)]
