"""Every page of the catalogue in a browser: wide and narrow, light and dark, with keyboard and without scripts."""

from __future__ import annotations

import re

import pytest
from browser_window import NARROW, WIDE, window
from page_examples import EXAMPLES
from playwright.sync_api import Browser

from servers.web import WebServer
from tachograph.web.registry import PAGES

pytestmark = pytest.mark.slow
VIEWS = [path for entry in PAGES for path in EXAMPLES.get(entry.name, (entry.path,))]
_MOST_LINKS = 40  # of one page that are followed


def test_every_page_with_a_name_in_its_path_has_an_example() -> None:
    named = {entry.name for entry in PAGES if "{" in entry.path}
    assert named <= set(EXAMPLES) <= {entry.name for entry in PAGES}


# each page in one of them: styles are shared
_SHOWN = [(path, *((NARROW, "dark"), (WIDE, "light"))[number % 2]) for number, path in enumerate(VIEWS)]


@pytest.mark.parametrize(("path", "width", "scheme"), _SHOWN)
def test_it_is_shown_without_a_fault(browser: Browser, server: WebServer, path: str, width: int, scheme: str) -> None:
    with window(browser, server, width=width, scheme=scheme) as opened:
        assert opened.open(path) == 200
        opened.page.wait_for_load_state("load")
        assert opened.problems == []
        assert opened.overflow <= 0
        assert opened.violations() == []


@pytest.mark.parametrize("path", VIEWS)
def test_it_says_the_same_without_scripts(browser: Browser, server: WebServer, path: str) -> None:
    with window(browser, server) as scripted, window(browser, server, scripts=False) as plain:
        scripted.open(path)
        plain.open(path)
        headings = [one.page.locator("h1, h2").all_inner_texts() for one in (scripted, plain)]
        assert headings[0] == headings[1]
        assert plain.page.locator("h1").count() == 1


def test_links_lead_somewhere(browser: Browser, server: WebServer) -> None:
    followed: set[str] = set()
    with window(browser, server) as opened:
        for path in VIEWS:
            opened.open(path)
            for link in opened.links()[:_MOST_LINKS]:
                if link not in followed and "/logout" not in link:
                    followed.add(link)
                    assert opened.page.request.get(link).status < 400, f"{path} links to {link}"
    assert followed


def test_a_job_is_opened_with_the_keyboard_and_back_returns_to_the_same_list(
    browser: Browser, server: WebServer
) -> None:
    with window(browser, server) as opened:
        opened.open("/jobs?user=user000&sort=-gpu_hours_lost")
        before = opened.page.locator("tbody a").all_inner_texts()
        for _ in range(60):
            opened.page.keyboard.press("Tab")
            focused = str(opened.page.evaluate("document.activeElement.getAttribute('href') || ''"))
            if re.search(r"/job/[^/]+$", focused):
                break
        opened.page.keyboard.press("Enter")
        opened.page.wait_for_url("**/job/**")
        opened.page.go_back()
        assert opened.page.url.endswith("/jobs?user=user000&sort=-gpu_hours_lost")
        assert opened.page.locator("tbody a").all_inner_texts() == before
