"""What `tachograph serve` answers, as its registry lists it, and clients that name who they are."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product

import httpx2
import msgspec
from starlette.requests import Request
from starlette.testclient import TestClient

from tachograph.annexes.serve.application import WebService
from tachograph.annexes.serve.endpoints import API
from tachograph.annexes.serve.registry import (
    DOCUMENTS,
    ENDPOINTS,
    PAGES,
    load_page,
)
from tachograph.api.endpoints import Endpoint
from tachograph.api.pages import PageEntry
from tachograph.api.viewer import NOBODY, Role, Viewer

Entry = PageEntry | Endpoint
ApiClient = Callable[..., TestClient]
ENTRIES: list[Entry] = [*PAGES, *DOCUMENTS, *ENDPOINTS]
_LONGEST_S = 600.0


@dataclass(frozen=True)
class NamedService(WebService):
    """A service whose bearer tokens are a name and a role, with a dot between them."""

    def identify(self, request: Request) -> Viewer:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        name, _, role = token.partition(".")
        known = {each.label: each for each in Role}
        return (
            Viewer(name, known[role], via="test")
            if scheme == "Bearer" and role in known
            else NOBODY
        )


def proof(name: str, role: str) -> dict[str, str]:
    """Headers that prove a name and a role to it."""
    return {"Authorization": f"Bearer {name}.{role}"} if name else {}


def struct_of(entry: Entry) -> type[msgspec.Struct]:
    """Return the parameters of an entry."""
    if isinstance(entry, Endpoint):
        return entry.parameters
    return load_page(entry).PARAMETERS


def parts_of(entry: Entry) -> list[str]:
    """Return the parts of an address that stand for something, in order."""
    return re.findall(r"{(\w+)}", entry.path)


def addresses(
    entry: Entry, values_of: Callable[[str], Iterable[str]]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the address with each value of each of its parts, after these values."""
    names = parts_of(entry)
    for values in product(*(values_of(name) for name in names)):
        filled = (API if isinstance(entry, Endpoint) else "") + entry.path
        for name, value in zip(names, values, strict=True):
            filled = filled.replace(f"{{{name}}}", value)
        yield values, filled


def made(ask: Callable[[], httpx2.Response]) -> httpx2.Response:
    """Return the answer; of a report that is being made the one that it becomes."""
    until = time.monotonic() + _LONGEST_S
    while (answer := ask()).status_code == 503 and "try again" in answer.text:
        assert time.monotonic() < until, answer.text
        time.sleep(0.05)
    return answer


def until(true: Callable[[], object]) -> None:
    """Wait until something is true."""
    end = time.monotonic() + _LONGEST_S
    while not true():
        assert time.monotonic() < end, "waited for too long"
        time.sleep(0.05)
