"""Every page and every endpoint of the catalogue answers."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from served_entries import ENTRIES, Entry
from tachograph.web.endpoints import API, Endpoint

# The study takes seconds: test_site_pages.py makes it.
PLAIN = [
    entry
    for entry in ENTRIES
    if "{" not in entry.path and getattr(entry, "method", "GET") == "GET" and entry.name != "study"
]


@pytest.mark.parametrize("entry", PLAIN, ids=lambda entry: f"{type(entry).__name__} {entry.name}")
def test_it_answers_and_a_page_has_one_heading(admin: TestClient, entry: Entry) -> None:
    of_api = isinstance(entry, Endpoint)
    answer = admin.get(
        (API if of_api else "") + entry.path, headers={"accept": "*/*" if of_api else "text/html"}
    )
    assert answer.status_code == 200, answer.text
    assert of_api or answer.text.count("<h1") == 1
