"""Every page of the catalogue as each role, in a browser: opened or refused, whole, and with links that lead on."""

from __future__ import annotations

import pytest
from browser_window import window
from page_examples import EXAMPLES
from playwright.sync_api import Browser

from servers.web import WebServer
from tachograph.web.registry import PAGES
from tachograph.web.viewer import Role

pytestmark = pytest.mark.slow
# as tests/conftest.py configures the server
PEOPLE = {"user000": Role.USER, "mia": Role.MANAGER, "sue": Role.SUPPORT}
_MOST_LINKS = 6  # of one page that are followed


@pytest.mark.parametrize("name", PEOPLE)
def test_pages_are_opened_by_those_who_may(browser: Browser, server: WebServer, name: str) -> None:
    role, followed = PEOPLE[name], set[str]()
    with window(browser, server, user=name) as opened:
        for entry in PAGES:
            path = EXAMPLES[entry.name][-1]
            status = opened.open(path)
            if role < entry.least:
                assert status == 403, path
            else:
                assert status == 200 or (not role >= Role.SUPPORT and status == 404), path
            if status != 200:
                opened.problems.clear()  # the browser reports the status
                continue
            assert opened.page.locator("h1").count() == 1, path
            assert opened.problems == [], path
            assert opened.overflow <= 0, path
            for link in [one for one in opened.links() if one not in followed][:_MOST_LINKS]:
                followed.add(link)
                assert opened.page.request.get(link).status < 400, f"{name}: {path} links to {link}"


def test_a_user_sees_no_job_of_others(browser: Browser, server: WebServer) -> None:
    with window(browser, server, user="user000") as opened:
        opened.open("/jobs?limit=1000")
        assert set(opened.page.locator("tbody td a[href*='/user/']").all_inner_texts()) == {"user000"}
        assert opened.open("/job/1000316") == 404  # of user036
        assert opened.open("/user/user036") == 404
        assert opened.open("/compare?job=1000316") == 404
        assert opened.open("/findings") == 200
        assert opened.page.locator("form[method=post][action$='/findings']").count() == 0


def test_without_a_proof_the_page_leads_to_the_log_in(browser: Browser, server: WebServer) -> None:
    with window(browser, server, user=None) as opened:
        opened.open("/jobs?user=user000")
        assert opened.page.url.endswith("/login?next=%2Fjobs%3Fuser%3Duser000")
        assert opened.page.locator("h1").count() == 1
