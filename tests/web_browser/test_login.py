"""Logging in and out with a real browser, and what its policy lets a page do."""

from __future__ import annotations

import pytest
from browser_window import NARROW, Window
from playwright.sync_api import Browser

from servers.web import WebServer

pytestmark = pytest.mark.slow


def test_a_person_logs_in_with_a_token_and_out_again(browser: Browser, server: WebServer) -> None:
    context = browser.new_context(
        viewport={"width": NARROW, "height": 900}, reduced_motion="reduce"
    )
    page = context.new_page()
    opened = Window(page, server.address)
    try:
        assert opened.open("/jobs?limit=5") == 200
        assert page.url.startswith(f"{server.address}/login?next=")
        assert opened.violations() == []
        assert opened.overflow <= 0
        page.get_by_label("Token").fill("wrong")
        page.keyboard.press("Enter")
        assert "the token is not known" in page.get_by_role("alert").inner_text()
        page.get_by_label("Token").fill(server.link.partition("token=")[2])
        page.keyboard.press("Enter")
        page.wait_for_url(f"{server.address}/jobs?limit=5")
        cookie = next(
            one for one in context.cookies() if one["name"].startswith("tachograph_session")
        )
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Lax")
        assert page.evaluate("document.cookie") == ""
        page.get_by_role("button", name="Menu").click()
        page.get_by_role("button", name="Log out").click()
        page.wait_for_url(f"{server.address}/login")
        opened.open("/jobs")
        assert "/login" in page.url
    finally:
        context.close()


def test_the_browser_runs_no_script_that_a_page_was_given(
    browser: Browser, server: WebServer
) -> None:
    context = browser.new_context()
    page = context.new_page()
    blocked: list[str] = []
    page.on(
        "console", lambda message: blocked.append(message.text) if message.type == "error" else None
    )
    try:
        page.goto(server.link)
        page.evaluate(
            """() => {
                const script = document.createElement("script");
                script.textContent = "window.stolen = 1";
                document.body.append(script);
                document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.stolen = 2'>");
                const other = document.createElement("script");
                other.src = "https://evil.example/x.js";
                document.body.append(other);
            }"""
        )
        page.wait_for_timeout(300)
        assert page.evaluate("window.stolen") is None
        assert len([line for line in blocked if "Content Security Policy" in line]) >= 2
    finally:
        context.close()
