"""Every address of `tachograph serve`, in every format, over a lake and a fleet where every text of
others is hostile.

Addresses, formats and parameters are those of the registry: a new page or endpoint is walked as
soon as it is there. A part of an address that is new needs an entry in PARTS, a new media type one
in CHECKS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree as ET

import httpx2
import msgspec
import polars as pl
import pytest
from hostile_fleet import HostileSource
from hostile_lake import PAYLOADS, STRONG, STRONG_JOBS, node_of
from starlette.testclient import TestClient
from written import assert_json, assert_page, assert_plain, assert_table

from served_entries import ENTRIES, Entry, made, parts_of, struct_of
from tachograph.annexes.lab.figures.registry import FIGURES
from tachograph.annexes.serve.application import WebService, create_application
from tachograph.annexes.serve.endpoints import API, formats_of
from tachograph.annexes.serve.identity.proof import is_user_name
from tachograph.annexes.serve.identity.tokens import create_token
from tachograph.annexes.serve.snapshot import ServedLake
from tachograph.annexes.watch.live.selection import SelectedSource
from tachograph.annexes.watch.served_fleet import FleetWatch
from tachograph.api.endpoints import Endpoint
from tachograph.api.viewer import Role
from tachograph.catalog.config import Configuration, ServeOptions
from tachograph.lake.delta import Lake

READ = [one for one in ENTRIES if not isinstance(one, Endpoint) or one.method == "GET"]
NAMES = [name for name in PAYLOADS.values() if len(name) < 500]  # a longer one is no address
USER = next(name for name in NAMES if is_user_name(name))
# {part of an address: what it is replaced with}
PARTS: Mapping[str, tuple[str, ...]] = {
    "key": tuple(STRONG_JOBS),
    "name": tuple(
        dict.fromkeys(name for kind in STRONG for name in (PAYLOADS[kind], node_of(PAYLOADS[kind])))
    ),
    "figure": tuple(entry.name for entry in FIGURES),
    "suffix": ("svg", "png"),
    "page": ("jobs.md", PAYLOADS["html"]),
}
# {name of a module: what it must be asked with to answer}
WITH: Mapping[str, Mapping[str, str]] = {
    "study": {"no_filter": "idle"},
    "study_figure": {"no_filter": "idle"},
    "search": {"q": "<"},
}
# A name that cannot be asked for, what is not for this viewer, no such figure.
REFUSED = (400, 401, 403, 404, 409)


def check_page(content: bytes, where: str) -> None:
    assert_page(content.decode("utf-8"), where)


def check_json(content: bytes, where: str) -> None:
    assert_json(content.decode("utf-8"), where)


def check_table(content: bytes, where: str) -> None:
    assert_table(content.decode("utf-8"), where)


def check_picture(content: bytes, where: str) -> None:
    names = {element.tag.rpartition("}")[2] for element in ET.fromstring(content).iter()}
    assert not names & {"script", "image", "foreignObject", "a"}, where


def check_bytes(content: bytes, where: str) -> None:
    assert content, where


def check_rows(rows: pl.DataFrame, where: str) -> None:
    assert rows.columns, where


CHECKS: Mapping[str, Callable[[bytes, str], None]] = {
    "text/html": check_page,
    "application/json": check_json,
    "application/problem+json": check_json,
    "text/csv": check_table,
    "text/markdown": check_bytes,
    "image/svg+xml": check_picture,
    "image/png": check_bytes,
    "application/vnd.apache.parquet": lambda content, where: check_rows(
        pl.read_parquet(content), where
    ),
}


@pytest.fixture(scope="module")
def clients(
    hostile: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, TestClient]]:
    """An admin, a user whose name is hostile, and somebody who sees sums."""
    tokens, expires = (
        tmp_path_factory.mktemp("tokens") / "tokens",
        datetime.now(UTC) + timedelta(hours=1),
    )
    options = ServeOptions(requests_per_s=0.0, token_file=str(tokens), anonymous=True)
    served = ServedLake(Lake.open(str(hostile / "lake")), Configuration(serve=options))
    seconds = iter(range(1_000_000_000)).__next__
    watch = FleetWatch(
        served.configuration,
        served.lake.location,
        opener=lambda request: SelectedSource(
            HostileSource(lambda: 1_795_255_200.0 + seconds()), None
        ),
    )
    served.shared_objects.get("fleet", lambda: watch)
    application = create_application(WebService.of(served))
    found = {"anonymous": TestClient(application, follow_redirects=False)}
    for name, role in (("ann", Role.ADMIN), (USER, Role.USER)):
        token, _ = create_token(tokens, user=name, role=role, expires=expires)
        headers = {"authorization": f"Bearer {token}"}
        found[role.label] = TestClient(application, headers=headers, follow_redirects=False)
    yield found
    watch.close()


def addresses_of(entry: Entry) -> Iterator[str]:
    """Addresses in which each value of each part occurs."""
    names = parts_of(entry)
    for index in range(max((len(PARTS[name]) for name in names), default=1)):
        path = (API if isinstance(entry, Endpoint) else "") + entry.path
        for name in names:
            path = path.replace(
                f"{{{name}}}", quote(PARTS[name][index % len(PARTS[name])], safe="")
            )
        yield path


def requests(entry: Entry) -> list[tuple[str, str]]:
    """Each address and each media type at least once: each answer holds rows with every hostile
    text.
    """
    known, accepted = list(addresses_of(entry)), media_types(entry)
    return [
        (known[index % len(known)], accepted[index % len(accepted)])
        for index in range(max(len(known), len(accepted)))
    ]


def media_types(entry: Entry) -> list[str]:
    """What may be asked for."""
    if isinstance(entry, Endpoint):
        return [form.media_type for form in formats_of(entry)]
    return ["text/html"]


def words_of(entry: Entry) -> list[str]:
    """Names of the parameters that are text, but those of the address."""
    fields = msgspec.structs.fields(struct_of(entry))
    return [
        one.encode_name
        for one in fields
        if "str" in str(one.type) and f"{{{one.name}}}" not in entry.path
    ]


def ask(client: TestClient, address: str, accept: str, **query: str) -> httpx2.Response:
    """Return what is answered, checked by its media type; of a report that is being made the one
    that it becomes.
    """
    answer = made(lambda: client.get(address, headers={"accept": accept}, params=query or None))
    where = f"{address} {accept} {query}"[:300]
    assert answer.status_code in (200, 303, *REFUSED), (where, answer.text[:500])
    for name, value in answer.headers.items():
        assert_plain(f"{name}: {value}", where)
    if answer.status_code != 303:
        kind = answer.headers["content-type"].partition(";")[0]
        CHECKS[kind](answer.content, f"{where} {kind}")
    return answer


def test_the_site_has_what_is_asked_for(clients: dict[str, TestClient]) -> None:
    listed = ask(clients["admin"], f"{API}/jobs", "application/json").json()
    assert {job["user"] for job in listed} == set(PAYLOADS.values())


@pytest.mark.parametrize("entry", READ, ids=lambda entry: entry.path)
def test_answers_show_text_alone(entry: Entry, clients: dict[str, TestClient]) -> None:
    query = WITH.get(entry.name, {})
    codes = {
        ask(clients["admin"], address, accept, **query).status_code
        for address, accept in requests(entry)
    }
    assert 200 in codes
    address, accept = next(iter(requests(entry)))
    for viewer in ("user", "anonymous"):
        ask(clients[viewer], address, accept, **query)


@pytest.mark.slow
@pytest.mark.parametrize("entry", READ, ids=lambda entry: entry.path)
def test_what_is_asked_for_is_shown_as_text(entry: Entry, clients: dict[str, TestClient]) -> None:
    address, accept = next(addresses_of(entry)), media_types(entry)[0]
    words = words_of(entry)
    first = READ.index(entry)  # other texts than in the entry before
    # Each word, and each way to act.
    for index in range(max(len(STRONG), len(words)) if words else 0):
        text = (
            NAMES[(first + index) % len(NAMES)] if index < len(words) else PAYLOADS[STRONG[index]]
        )
        asked = {words[index % len(words)]: text}
        ask(clients["admin"], address, accept, **{**WITH.get(entry.name, {}), **asked})
