"""Every page of the catalogue answers; the endpoints are walked in tests/web_api/test_api_schema.py."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from tachograph.annexes.serve.registry import PAGES
from tachograph.api.pages import PageEntry

# The study takes seconds: test_site_pages.py makes it.
PLAIN = [entry for entry in PAGES if "{" not in entry.path and entry.name != "study"]


@pytest.mark.parametrize("entry", PLAIN, ids=lambda entry: entry.name)
def test_it_answers_and_a_page_has_one_heading(admin: TestClient, entry: PageEntry) -> None:
    answer = admin.get(entry.path, headers={"accept": "text/html"})
    assert answer.status_code == 200, answer.text
    assert answer.text.count("<h1") == 1
