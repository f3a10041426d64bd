"""No byte of a job that a viewer may not see, in any answer of any page or endpoint.

A page or endpoint of the catalogue is walked as soon as it is listed there, with every parameter that it declares.
"""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any
from urllib.parse import unquote_plus

import httpx2
import msgspec
import polars as pl
import pytest
from marked_lake import ANN, ANNS_JOB, BOB, BOBS_JOB, MARKS, connect
from starlette.testclient import TestClient

from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries
from tachograph.web.answers import FormatChoice
from tachograph.web.identity.tokens import create_token
from tachograph.web.paging import Paging
from tachograph.web.registry import (
    API,
    DOCUMENTS,
    ENDPOINTS,
    PAGES,
    EndpointEntry,
    PageEntry,
    load_document,
    load_endpoint,
    load_page,
)  # fmt: skip
from tachograph.web.viewer import Role

Entry = PageEntry | EndpointEntry
ENTRIES: list[Entry] = [*PAGES, *DOCUMENTS, *ENDPOINTS]
ABSENT = "880088"
# what a person could write to come near Bob's jobs
PROBES = (BOB, "acctqz", BOBS_JOB, "nodeqz", "name~nameqz", f"user={BOB}", "user", "all")
SERIES = (f'{{user="{BOB}"}}', "gpu_util", "sum by (user) (gpu_util)", "2026-04-23T12:30:00Z")
PROBES_OF = {"format": ("csv", "ndjson", "parquet", "arrow"), "query": SERIES, "match[]": SERIES, "time": SERIES[-1:]}
VIEWERS = {"user": Role.USER, "manager": Role.MANAGER, "anonymous": None}


@dataclass(frozen=True)
class Walk:
    """A server of a lake in which Bob's job has a label, and its clients by role."""

    clients: Mapping[str, TestClient]
    bobs_key: str

    def places(self, name: str) -> tuple[str, ...]:
        """What may stand in the path in place of a parameter."""
        if name == "suffix":
            return ("svg", "csv")
        if name == "figure":
            return ("elapsed", "1", BOB)
        return (ANN, ANNS_JOB, BOB, BOBS_JOB, self.bobs_key, "acctqz", "annacct", "nodeqz", "annnode", "user")


@pytest.fixture(scope="module")
def walk(marked: Lake, tmp_path_factory: pytest.TempPathFactory) -> Walk:
    folder = tmp_path_factory.mktemp("walk")
    shutil.copytree(marked.location, folder / "lake")
    lake = Lake.open(str(folder / "lake"))
    (folder / "managers").write_text(f"{ANN} annacct\n")
    tokens, expires = folder / "tokens", datetime.now(UTC) + timedelta(hours=1)
    options: dict[str, Any] = {"token_file": str(tokens), "managers": str(folder / "managers"), "requests_per_s": 0.0}
    clients = {"anonymous": connect(lake, anonymous=True, **options)}
    for role in (Role.USER, Role.MANAGER, Role.ADMIN):
        token, _ = create_token(tokens, user=ANN, role=role, expires=expires)
        clients[role.label] = connect(lake, headers={"authorization": f"Bearer {token}"}, **options)
    summaries = read_summaries(lake)
    key = summaries.filter(pl.col("user") == BOB).get_column("job_key").item()
    label = {"job_key": key, "finding": "idle_job", "label": "confirmed", "comment": "nameqz"}
    assert clients["admin"].post(f"{API}/labels", json=label).status_code == 200
    return Walk(clients, key)


def struct_of(entry: Entry) -> type[msgspec.Struct]:
    if isinstance(entry, EndpointEntry):
        return load_endpoint(entry).PARAMETERS
    return (load_document if entry in DOCUMENTS else load_page)(entry).PARAMETERS


def parameters(entry: Entry) -> list[str]:
    declared = [field.encode_name for field in msgspec.structs.fields(struct_of(entry))]
    if isinstance(entry, EndpointEntry):
        declared += [field.name for kind in (FormatChoice, Paging) for field in msgspec.structs.fields(kind)]
    return [name for name in declared if f"{{{name}}}" not in entry.path]


def requests(entry: Entry, walk: Walk) -> Iterator[tuple[str, dict[str, str]]]:
    """Addresses with one parameter each, and with none."""
    names = re.findall(r"{(\w+)}", entry.path)
    path = (API if isinstance(entry, EndpointEntry) else "") + entry.path
    for places in product(*(walk.places(name) for name in names)):
        filled = path
        for name, place in zip(names, places, strict=True):
            filled = filled.replace(f"{{{name}}}", place)
        yield filled, {}
        if places == tuple(walk.places(name)[0] for name in names) or not names:
            for name in parameters(entry):
                yield from ((filled, {name: probe}) for probe in PROBES_OF.get(name, PROBES))


def send(client: TestClient, entry: Entry, path: str, query: dict[str, str]) -> httpx2.Response:
    accept = {"accept": "*/*" if isinstance(entry, EndpointEntry) else "text/html"}
    if isinstance(entry, EndpointEntry) and entry.method == "POST":
        return client.post(path, json=query, headers=accept) if entry.body == "json" else client.post(path, data=query)
    return client.get(path, params=query, headers=accept)


def text_of(answer: httpx2.Response) -> str:
    """All that an answer says, also what is packed in it."""
    kind = answer.headers.get("content-type", "")
    table = ""
    if "parquet" in kind:
        table = str(pl.read_parquet(io.BytesIO(answer.content)).write_json())
    elif "arrow" in kind:
        table = str(pl.read_ipc_stream(io.BytesIO(answer.content)).write_json())
    return f"{answer.text} {dict(answer.headers)} {table}"


@pytest.mark.slow
@pytest.mark.parametrize("role", VIEWERS)
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{getattr(entry, 'method', 'GET')} {entry.path}")
def test_no_byte_of_what_is_not_visible_comes_back(entry: Entry, role: str, walk: Walk) -> None:
    client = walk.clients[role]
    for path, query in requests(entry, walk):
        if query and role == "manager":
            continue
        answer = send(client, entry, path, query)
        assert answer.status_code < 500, (path, query, answer.text[:500])
        sent = unquote_plus(f"{path} {json.dumps(query)}")
        found = text_of(answer)
        others = (*MARKS, ANN, ANNS_JOB, "annnode") if role == "anonymous" else MARKS
        leaked = [mark for mark in others if mark in found and mark not in sent]
        assert not leaked, (path, query, leaked, found[max(0, found.find(leaked[0]) - 200) :][:400])


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{getattr(entry, 'method', 'GET')} {entry.path}")
def test_what_is_not_visible_is_answered_as_what_is_not_there(entry: Entry, walk: Walk) -> None:
    if entry.module == "node":
        return  # nodes and their GPUs are the cluster's, of whoever's jobs
    for name in re.findall(r"{(key|name|job)}", entry.path):
        for there, absent in ((BOBS_JOB, ABSENT), (walk.bobs_key, walk.bobs_key.replace(BOBS_JOB, ABSENT)),
                              (BOB, "nosuchqz"), ("acctqz", "nosuch"), ("nodeqz", "nosuch")):  # fmt: skip
            answers = []
            for value in (there, absent):
                path = (API if isinstance(entry, EndpointEntry) else "") + re.sub(r"{\w+}", value, entry.path)
                answer = send(walk.clients["user"], entry, path, {})
                text = re.sub(r'value="[^"]*"', "", answer.text)
                answers.append((answer.status_code, text.replace(value, "VALUE")))
            assert answers[0] == answers[1], (entry.path, name, there)


def test_the_marks_are_there_for_those_who_may_see_them(walk: Walk) -> None:
    seen = set()
    for entry in ENTRIES:
        if isinstance(entry, EndpointEntry) and entry.method != "GET":
            continue
        for place in (BOBS_JOB, BOB, "acctqz"):
            path = (API if isinstance(entry, EndpointEntry) else "") + re.sub(r"{\w+}", place, entry.path)
            found = text_of(send(walk.clients["admin"], entry, path, {}))
            seen |= {mark for mark in MARKS if mark in found}
    assert seen >= {BOB, "acctqz", "nameqz", "partqz", BOBS_JOB}


def test_groups_of_few_users_are_one_for_those_who_see_sums_only(walk: Walk) -> None:
    def groups(by: str, role: str) -> set[str]:
        return {str(row[by]) for row in walk.clients[role].get(f"{API}/waste", params={"by": by}).json()["groups"]}

    assert groups("partition", "anonymous") == {"others"}, "without it, the three others would be a group of two users"
    assert groups("user", "anonymous") == groups("account", "anonymous") == {"others"}
    assert groups("partition", "admin") == {"annpart", "partqz", "common"}
    assert groups("user", "user") == {ANN}
    sums = [walk.clients[role].get(f"{API}/waste").json() for role in ("anonymous", "admin")]
    assert sums[0]["gpu_hours"] == sums[1]["gpu_hours"] > 0
    assert sums[0]["causes"] == sums[1]["causes"]


def test_jobs_cannot_be_chosen_by_those_who_see_sums_only(walk: Walk) -> None:
    for query in (
        {"user": BOB},
        {"where": "gpu_hours>0"},
        {"since": "2026-04-23"},
        {"jobs": "all"},
        {"partition": "partqz"},
    ):
        assert walk.clients["anonymous"].get(f"{API}/waste", params=query).status_code == 401


def test_no_sums_of_few_users(marked: Lake) -> None:
    client = connect(marked, anonymous=True, smallest_group=50)
    assert client.get(f"{API}/waste").json()["jobs"] == 0


def test_anonymous_is_off_by_default(marked: Lake) -> None:
    for entry in ENDPOINTS:
        if entry.of_lake and entry.method == "GET":
            assert connect(marked).get(API + entry.path).status_code == 401, entry.path
