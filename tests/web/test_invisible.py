"""No byte of a job that a viewer may not see, in any answer of any page or endpoint.

A page or endpoint of the catalogue is walked as soon as it is listed there, with every parameter
that it declares.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import httpx2
import msgspec
import polars as pl
import pytest
from marked_lake import ANN, ANNS_JOB, BOB, BOBS_JOB, MARKS, connect
from starlette.testclient import TestClient

import tachograph
from served_entries import ENTRIES, Entry, addresses, made, parts_of, struct_of
from tachograph.annexes.serve.endpoints import API
from tachograph.annexes.serve.identity.tokens import create_token
from tachograph.annexes.serve.registry import ENDPOINTS
from tachograph.api.answers import FormatChoice, Paging
from tachograph.api.endpoints import Endpoint
from tachograph.api.viewer import Role
from tachograph.collect.status import (
    CollectStatus,
    SourceStatus,
    StepStatus,
    state_folder,
    write_status,
)
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries

ABSENT = "880088"
LIBRARIES = (
    "polars",
    "deltalake",
    "starlette",
    "uvicorn",
    "matplotlib",
    "msgspec",
    "jinja2",
    "h11",
    "numpy",
)
HOST = "collectorqz.example.org"
# what a person could write to come near Bob's jobs
PROBES = (BOB, BOBS_JOB)
PROBES_OF = {
    "jobs": ("all",),
    "of": ("all",),
    "format": ("csv", "parquet"),
    "where": ("name~nameqz", f"user={BOB}"),
    "by": ("user", "account", "partition"),
    "no_filter": ("idle",),
}
# {role: what it may not see}, of those who do not see everything
HIDDEN: dict[str, tuple[str, ...]] = {
    "user": MARKS,
    "manager": MARKS,
    "support": (),
    "anonymous": (*MARKS, ANN, ANNS_JOB, "annnode"),
}


@dataclass(frozen=True)
class Walk:
    """A server of a lake in which Bob's job has a label, and its clients by role."""

    clients: Mapping[str, TestClient]
    bobs_key: str
    # Files and hosts of the service, versions of what it is made of.
    places_of_server: tuple[str, ...]

    def places(self, name: str) -> tuple[str, ...]:
        """What may stand in the path in place of a parameter."""
        match name:
            case "suffix":
                return ("svg", "csv")
            case "figure":
                return ("elapsed", "1", BOB)
            case "page":
                return ("jobs.md", BOB)
            case "key" | "job":
                return (ANNS_JOB, BOBS_JOB, self.bobs_key, BOB)
        return (ANN, BOB, BOBS_JOB, "acctqz", "annacct", "nodeqz", "annnode")


@pytest.fixture(scope="module")
def walk(marked: Lake, tmp_path_factory: pytest.TempPathFactory) -> Walk:
    folder = tmp_path_factory.mktemp("walk")
    shutil.copytree(marked.location, folder / "lake")
    lake = Lake.open(str(folder / "lake"))
    (folder / "managers").write_text(f"{ANN} annacct\n")
    tokens, expires = folder / "tokens", datetime.now(UTC) + timedelta(hours=1)
    options: dict[str, Any] = {
        "token_file": str(tokens),
        "managers": str(folder / "managers"),
        "requests_per_s": 0.0,
    }
    clients = {"anonymous": connect(lake, anonymous=True, **options)}
    for role in (Role.USER, Role.MANAGER, Role.SUPPORT, Role.ADMIN):
        token, _ = create_token(tokens, user=ANN, role=role, expires=expires)
        clients[role.label] = connect(lake, headers={"authorization": f"Bearer {token}"}, **options)
    for client in clients.values():
        assert client.get(f"{API}/waste").status_code == 200  # until a lake is read it only starts
    summaries = read_summaries(lake)
    key = summaries.filter(pl.col("user") == BOB).get_column("job_key").item()
    label = {"job_key": key, "finding": "idle_job", "label": "confirmed", "comment": "nameqz"}
    assert clients["admin"].post(f"{API}/labels", json=label).status_code == 200
    libraries = [
        f"{name}{mark}{version(name)}" for name in LIBRARIES for mark in (" ", "/", " v", "-", "==")
    ]
    places = (str(folder), folder.name, sys.prefix, str(Path(tachograph.__file__).parent), HOST)
    collecting = CollectStatus("1", str(folder / "lake"), HOST, os.getpid(), expires, expires)
    collecting.sources["prometheus:main"] = SourceStatus(
        "prometheus:main",
        60.0,
        failures=1,
        last_error=f"{folder}/token: not readable",
        unreachable={f"http://{HOST}:1": "no"},
    )
    collecting.steps["analyze"] = StepStatus(
        failures=1, last_error=f"{folder}/lake: no space", last_error_at=expires
    )
    state = state_folder(lake.location)
    state.mkdir(exist_ok=True)
    write_status(state, collecting)
    return Walk(clients, key, (*places, *libraries, *(one.capitalize() for one in libraries)))


def parameters(entry: Entry) -> list[str]:
    declared = [field.encode_name for field in msgspec.structs.fields(struct_of(entry))]
    if isinstance(entry, Endpoint):
        declared += [
            field.name for kind in (FormatChoice, Paging) for field in msgspec.structs.fields(kind)
        ]
    return [name for name in declared if f"{{{name}}}" not in entry.path]


def requests(entry: Entry, walk: Walk) -> Iterator[tuple[str, dict[str, str]]]:
    """Addresses with one parameter each, and with none."""
    first = tuple(walk.places(name)[0] for name in parts_of(entry))
    for places, filled in addresses(entry, walk.places):
        yield filled, {}
        if places == first:
            for name in parameters(entry):
                probes = PROBES_OF.get(name, PROBES)
                yield from ((filled, {name: probe}) for probe in probes)


def send(client: TestClient, entry: Entry, path: str, query: dict[str, str]) -> httpx2.Response:
    """The answer; of a report that is being made the one that it becomes."""
    return made(lambda: send_once(client, entry, path, query))


def send_once(
    client: TestClient, entry: Entry, path: str, query: dict[str, str]
) -> httpx2.Response:
    accept = {"accept": "*/*" if isinstance(entry, Endpoint) else "text/html"}
    if isinstance(entry, Endpoint) and entry.method == "POST":
        return client.post(path, json=query, headers=accept)
    return client.get(path, params=query, headers=accept)


def text_of(answer: httpx2.Response) -> str:
    """All that an answer says, also what is packed in it."""
    kind = answer.headers.get("content-type", "")
    table = (
        str(pl.read_parquet(io.BytesIO(answer.content)).write_json()) if "parquet" in kind else ""
    )
    return f"{answer.text} {dict(answer.headers)} {table}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "entry", ENTRIES, ids=lambda entry: f"{getattr(entry, 'method', 'GET')} {entry.path}"
)
def test_no_byte_of_what_is_not_visible_comes_back(entry: Entry, walk: Walk) -> None:
    for path, query in requests(entry, walk):
        sent = unquote_plus(f"{path} {json.dumps(query)}")
        for role, hidden in HIDDEN.items():
            # Choices are tried by those who see little; all roles read what is not chosen.
            if query and (role == "manager" or (role == "support" and "format" not in query)):
                continue
            answer = send(walk.clients[role], entry, path, query)
            assert answer.status_code < 500, (role, path, query, answer.text[:500])
            found = text_of(answer)
            others = (*hidden, *walk.places_of_server)
            leaked = [mark for mark in others if mark in found and mark not in sent]
            around = [found[max(0, found.find(mark) - 200) :][:400] for mark in leaked]
            assert not leaked, (role, path, query, leaked, around)


@pytest.mark.parametrize(
    "entry", ENTRIES, ids=lambda entry: f"{getattr(entry, 'method', 'GET')} {entry.path}"
)
def test_what_is_not_visible_is_answered_as_what_is_not_there(entry: Entry, walk: Walk) -> None:
    if entry.name == "node":
        return  # nodes and their GPUs are the cluster's, of whoever's jobs
    for name in re.findall(r"{(key|name|job)}", entry.path):
        for there, absent in ((BOBS_JOB, ABSENT), (walk.bobs_key, walk.bobs_key.replace(BOBS_JOB, ABSENT)),
                              (BOB, "nosuchqz"), ("acctqz", "nosuch"), ("nodeqz", "nosuch")):  # fmt: skip
            answers = []
            for value in (there, absent):
                path = (API if isinstance(entry, Endpoint) else "") + re.sub(
                    r"{\w+}", value, entry.path
                )
                answer = send(walk.clients["user"], entry, path, {})
                text = re.sub(r'value="[^"]*"', "", answer.text)
                answers.append((answer.status_code, text.replace(value, "VALUE")))
            assert answers[0] == answers[1], (entry.path, name, there)


def test_the_marks_are_there_for_those_who_may_see_them(walk: Walk) -> None:
    seen = set()
    for entry in ENTRIES:
        if isinstance(entry, Endpoint) and entry.method != "GET":
            continue
        for place in (BOBS_JOB, BOB, "acctqz") if "{" in entry.path else ("",):
            path = (API if isinstance(entry, Endpoint) else "") + re.sub(
                r"{\w+}", place, entry.path
            )
            found = text_of(send(walk.clients["admin"], entry, path, {}))
            seen |= {mark for mark in MARKS if mark in found}
    assert seen >= {
        BOB,
        "acctqz",
        "nameqz",
        "partqz",
        BOBS_JOB,
        "reportqz",
        "kernelqz",
        "problemqz",
    }


def test_groups_of_few_users_are_one_for_those_who_see_sums_only(walk: Walk) -> None:
    def groups(by: str, role: str) -> set[str]:
        return {
            str(row[by])
            for row in walk.clients[role].get(f"{API}/waste", params={"by": by}).json()["groups"]
        }

    assert groups("partition", "anonymous") == {"others"}, (
        "without it, the three others would be a group of two users"
    )
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


def test_admins_alone_see_where_the_lake_is(walk: Walk) -> None:
    seen = {}
    for role in ("user", "support", "admin"):
        client = walk.clients[role]
        study = client.get(f"{API}/study?no_filter=idle").json()["dataset"]["lake"]
        status = client.get(f"{API}/status")
        shown = client.get("/status", headers={"accept": "text/html"})
        seen[role] = (
            study,
            status.status_code,
            status.json().get("lake"),
            walk.places_of_server[0] in shown.text,
        )
    place = f"{walk.places_of_server[0]}/lake"
    assert seen == {
        "user": (None, 403, None, False), "support": (None, 200, None, False), "admin": (place, 200, place, True)
    }  # fmt: skip


def test_a_lake_that_cannot_be_read_is_named_to_admins_alone(marked: Lake, tmp_path: Path) -> None:
    shutil.copytree(marked.location, tmp_path / "lake")
    tokens, expires = tmp_path / "tokens", datetime.now(UTC) + timedelta(hours=1)
    clients = {}
    for role in (Role.USER, Role.SUPPORT, Role.ADMIN):
        token, _ = create_token(tokens, user=ANN, role=role, expires=expires)
        clients[role] = connect(
            Lake.open(str(tmp_path / "lake")),
            headers={"authorization": f"Bearer {token}"},
            token_file=str(tokens),
        )
        assert clients[role].get(f"{API}/me").status_code == 200
    for file in (tmp_path / "lake").rglob("*.parquet"):
        file.unlink()
    for role, client in clients.items():
        for path in (
            "/jobs/410014/minutes",
            "/jobs/410014",
            "/study?no_filter=idle",
            "/waste",
            "/nodes/annnode",
        ):
            answer = client.get(API + path)
            assert answer.status_code in (200, 404, 503), answer.text
            assert role is Role.ADMIN or str(tmp_path) not in answer.text, answer.text
    assert str(tmp_path) in clients[Role.ADMIN].get(f"{API}/jobs/410014/minutes").text
