"""Every page of the catalogue in a browser: wide and narrow, light and dark, with keyboard and
without scripts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import pytest
from browser_window import NARROW, WIDE, Window, window
from page_examples import EXAMPLES
from playwright.sync_api import Browser

from servers.web import WebServer
from tachograph.annexes.serve.registry import PAGES

pytestmark = pytest.mark.slow
VIEWS = [path for entry in PAGES for path in EXAMPLES.get(entry.name, (entry.path,))]
LOOKS = ((NARROW, "dark"), (WIDE, "light"))  # each page in one of them: styles are shared
# of the page as it is shown, and as a browser without scripts gets it
_HEADINGS = """async () => {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    const plain = new DOMParser().parseFromString(await answer.text(), "text/html");
    return [document, plain].map(
        page => [...page.querySelectorAll("h1, h2")].map(heading => heading.localName + heading.textContent.trim())
    );
}"""


# axe looks at every element: the first rows of a table or nodes of a map are as all
_FEW_OF_EACH = """for (const alike of ["tbody > tr", ".node"])
    for (const first of document.querySelectorAll(`${alike}:first-child`))
        [...first.parentElement.querySelectorAll(`:scope > ${alike.split(" ").at(-1)}`)]
            .slice(8).forEach(one => one.remove());"""


@pytest.fixture(scope="module")
def windows(browser: Browser, server: WebServer) -> Iterator[Mapping[tuple[int, str], Window]]:
    with ExitStack() as opened:
        yield {
            (width, scheme): opened.enter_context(
                window(browser, server, width=width, scheme=scheme)
            )
            for width, scheme in LOOKS
        }


@pytest.mark.parametrize(
    ("path", "look"), [(path, LOOKS[number % 2]) for number, path in enumerate(VIEWS)]
)
def test_it_is_shown_without_a_fault(
    windows: Mapping[tuple[int, str], Window], path: str, look: tuple[int, str]
) -> None:
    opened = windows[look]
    assert opened.open(path) == 200
    opened.page.wait_for_load_state("load")
    shown, plain = opened.page.evaluate(_HEADINGS)
    assert shown == plain
    assert [heading[:2] for heading in shown].count("h1") == 1
    assert opened.problems == []
    assert opened.overflow <= 0
    opened.page.evaluate(_FEW_OF_EACH)
    if path == "/api/docs":  # two of the endpoints are as all
        opened.page.evaluate(
            "[...document.querySelectorAll('section')].slice(2).forEach(part => part.remove())"
        )
    assert opened.violations() == []


def test_a_job_is_opened_with_the_keyboard_and_back_returns_to_the_same_list(
    windows: Mapping[tuple[int, str], Window],
) -> None:
    opened, path = windows[WIDE, "light"], "/jobs?user=user000&sort=-gpu_hours_lost"
    opened.open(path)
    before = opened.page.locator("tbody a").all_inner_texts()
    for _ in range(60):
        opened.page.keyboard.press("Tab")
        focused = str(opened.page.evaluate("document.activeElement.getAttribute('href') || ''"))
        if re.search(r"/job/[^/]+$", focused):
            break
    opened.page.keyboard.press("Enter")
    opened.page.wait_for_url("**/job/**")
    opened.page.go_back()
    assert opened.page.url.endswith(path)
    assert opened.page.locator("tbody a").all_inner_texts() == before


def test_the_page_of_the_fleet_comes_again_without_scripts_alone(
    browser: Browser, server: WebServer
) -> None:
    with window(browser, server) as scripted, window(browser, server, scripts=False) as plain:
        for opened in (scripted, plain):
            opened.open("/now")
        assert scripted.page.locator("meta[http-equiv=refresh]").count() == 0
        assert plain.page.locator("meta[http-equiv=refresh]").get_attribute("content") == "30"
        assert "loads again every 30 s" in plain.page.locator("main").inner_text()
