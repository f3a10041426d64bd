"""What a user sees is the same whether or not others have jobs: so nothing of these can be
inferred from it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

import httpx2
import pytest
from marked_lake import ANN, ANNS_JOB, BOB, BOBS_JOB, marked_lake
from starlette.testclient import TestClient

from served_entries import NamedService, parts_of, proof
from tachograph.annexes.serve.application import create_application
from tachograph.annexes.serve.endpoints import API
from tachograph.annexes.serve.registry import ENDPOINTS, PAGES
from tachograph.annexes.serve.snapshot import ServedLake
from tachograph.api.endpoints import Endpoint
from tachograph.api.pages import PageEntry
from tachograph.catalog.config import Configuration, ServeOptions
from tachograph.lake.delta import Lake

NOW = datetime(2026, 6, 1, tzinfo=UTC)
# {part of the path: what stands in it}
PLACES = {"key": (ANNS_JOB, BOBS_JOB, "job")}
NAMES = (ANN, "annacct", "annnode", BOB, "acctqz", "nodeqz", BOBS_JOB)
QUERIES = ("", "limit=1", "sort=-gpu_hours", "where=gpu_hours>0&finding=idle_job", "by=user")
ENTRIES = [
    *(entry for entry in PAGES if entry.name != "study"),
    *(entry for entry in ENDPOINTS if entry.method == "GET" and entry.name != "study"),
]  # the study is made in the background: each takes seconds


@pytest.fixture(scope="module")
def clients(marked: Lake, tmp_path_factory: pytest.TempPathFactory) -> Sequence[TestClient]:
    """Ann's, of a lake with the jobs of others, and of one without."""
    lakes = (marked, marked_lake(tmp_path_factory.mktemp("alone"), whose=ANN))
    options = Configuration(serve=ServeOptions(requests_per_s=0.0))
    served = [ServedLake(lake, options, clock=lambda: NOW) for lake in lakes]
    headers = proof(ANN, "user")
    return [
        TestClient(
            create_application(NamedService.of(one)), headers=headers, follow_redirects=False
        )
        for one in served
    ]


def seen(answer: httpx2.Response) -> tuple[int, dict[str, str], str]:
    """Status, headers, text; without version of the lake and number of the poll, which say that
    anything changed.
    """
    headers = {
        name: value
        for name, value in answer.headers.items()
        if name not in ("etag", "content-length")
    }
    return answer.status_code, headers, re.sub(r'data-since="\d+"', "", answer.text)


@pytest.mark.slow
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.path)
def test_jobs_of_others_change_nothing(
    entry: PageEntry | Endpoint, clients: Sequence[TestClient]
) -> None:
    path = (API if isinstance(entry, Endpoint) else "") + entry.path
    parts = parts_of(entry)
    places = PLACES.get(parts[0], NAMES) if parts else ("",)
    paths = [re.sub(r"{\w+}", place, path) for place in places]
    accept = {"accept": "application/json" if isinstance(entry, Endpoint) else "text/html"}
    for address in [f"{one}?{query}" for one in paths for query in QUERIES[: 1 if parts else None]]:
        with_others, alone = (seen(client.get(address, headers=accept)) for client in clients)
        assert with_others == alone, address
