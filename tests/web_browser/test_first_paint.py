"""How soon a page is seen on a slow line without compression, and what is sent again: nothing that a browser has."""

from __future__ import annotations

import pytest
from browser_window import window
from playwright.sync_api import Browser, Page

from servers.web import WebServer

pytestmark = pytest.mark.slow
# slow 4G as Lighthouse has it: 1.6 and 0.75 Mbit/s, 150 ms
SLOW_4G = {"offline": False, "latency": 150, "downloadThroughput": 1.6e6 / 8, "uploadThroughput": 0.75e6 / 8}
_MOST_MS = 6000  # about 1000 on two idle cores
_MOST_BYTES = 150_000


def sent(page: Page) -> int:
    """Return how many bytes of the page and of what it names came over the line."""
    entries = "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]"
    return int(page.evaluate(f"{entries}.reduce((sum, one) => sum + one.transferSize, 0)"))


@pytest.mark.parametrize("path", ["/", "/jobs", "/job/1000316"])
def test_a_page_is_seen_soon_on_a_slow_line(browser: Browser, server: WebServer, path: str) -> None:
    with window(browser, server) as opened:
        page = opened.page
        line = page.context.new_cdp_session(page)
        line.send("Network.enable")
        line.send("Network.clearBrowserCache")
        line.send("Network.emulateNetworkConditions", SLOW_4G)
        assert opened.open(path) == 200
        page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 300)))")
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
        assert paint is not None
        assert paint < _MOST_MS
        first = sent(page)
        assert first < _MOST_BYTES
        opened.open(path)
        assert sent(page) < first  # style sheets are kept
        assert opened.problems == []


def test_the_page_of_the_fleet_comes_again_without_scripts_alone(browser: Browser, server: WebServer) -> None:
    with window(browser, server) as scripted, window(browser, server, scripts=False) as plain:
        for opened in (scripted, plain):
            opened.open("/now")
        assert scripted.page.locator("meta[http-equiv=refresh]").count() == 0
        assert plain.page.locator("meta[http-equiv=refresh]").get_attribute("content") == "30"
        assert "loads again every 30 s" in plain.page.locator("main").inner_text()
