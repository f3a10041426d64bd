"""A browser's window on a served page, and what went wrong in it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Error, Page, Response, expect

from servers.web import WebServer

WIDE, NARROW = 1280, 390  # a laptop, a phone
_LONGEST_S = 120.0
_ATTEMPTS = 3
expect.set_options(timeout=1000 * _LONGEST_S)  # a busy machine is no fault of a page
_AXE = {
    "runOnly": {
        "type": "tag",
        "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    }
}


@dataclass
class Window:
    """A page that is logged in; `problems`: what the console and the network reported."""

    page: Page
    address: str
    problems: list[str] = field(default_factory=list)

    def open(self, path: str) -> int:
        """Go to a path of the server; return the status. What is made in the background is
        waited for.
        """
        answer = self._go_to(path)
        until = time.monotonic() + _LONGEST_S
        while self.page.locator(".pending").count() and time.monotonic() < until:
            self.page.wait_for_timeout(500)
            answer = self._go_to(path)
        return answer.status

    def _go_to(self, path: str) -> Response:
        """The answer; a page that loads itself again just now may get in between, then there is
        none.
        """
        for _ in range(_ATTEMPTS):
            try:
                answer = self.page.goto(self.address + path)
            except Error as problem:
                if "ERR_ABORTED" not in str(problem):
                    raise
            else:
                if answer is not None:
                    return answer
        raise AssertionError(f"{path}: no answer in {_ATTEMPTS} attempts")

    @property
    def overflow(self) -> int:
        """By how many pixels the page is wider than the window: then it scrolls sideways as a
        whole.
        """
        return int(
            self.page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
        )

    def violations(self) -> list[str]:
        """Return what axe finds: rule and the first elements."""
        found = Axe().run(self.page, options=_AXE).response["violations"]
        return [f"{one['id']}: {[node['target'] for node in one['nodes'][:3]]}" for one in found]

    def links(self) -> list[str]:
        """Return the addresses on this server that the page links to, without fragments."""
        hrefs = self.page.eval_on_selector_all("a[href]", "links => links.map(link => link.href)")
        return sorted(
            {str(href).partition("#")[0] for href in hrefs if str(href).startswith(self.address)}
        )


@contextmanager
def window(
    browser: Browser,
    server: WebServer,
    *,
    width: int = WIDE,
    scheme: str = "light",
    scripts: bool = True,
    user: str | None = "",
) -> Iterator[Window]:
    """Yield a window of a fresh profile. user: whose token is sent; "": logged in by the link,
    None: nobody.
    """
    dark = scheme == "dark"
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if dark else "light",
        java_script_enabled=scripts,
        reduced_motion="reduce",
        extra_http_headers={"Authorization": f"Bearer {server.tokens[user]}"} if user else {},
    )
    context.set_default_timeout(1000 * _LONGEST_S)
    page = context.new_page()
    opened = Window(page, server.address)
    page.on(
        "console",
        lambda message: opened.problems.append(message.text) if message.type == "error" else None,
    )
    page.on("pageerror", lambda error: opened.problems.append(str(error)))
    page.on(
        "requestfailed",
        lambda request: (
            opened.problems.append(f"{request.url}: {request.failure}")
            if request.failure != "net::ERR_ABORTED"
            else None
        ),
    )  # by going elsewhere
    page.on(
        "response",
        lambda got: (
            opened.problems.append(f"{got.url}: {got.status}") if got.status >= 400 else None
        ),
    )
    try:
        if user == "":
            page.goto(server.link)
        opened.problems.clear()
        yield opened
    finally:
        context.close()
