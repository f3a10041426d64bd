"""The advice in a form of Open OnDemand, in a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2
import pytest

from servers.web import WebServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).resolve().parents[2] / "contrib" / "ondemand" / "forms" / "form.js"
SITE = "https://ondemand.example.org"
FORM = SITE + "/pun/sys/dashboard/batch_connect/sys/jupyter/session_contexts/new"
PAGE = """<!doctype html><title>Jupyter</title>
<form id="new_batch_connect_session_context" action="/pun/sys/dashboard/batch_connect/sys/jupyter/session_contexts">
<select id="batch_connect_session_context_bc_queue"><option>gpu</option><option>shared</option></select>
<input id="batch_connect_session_context_num_gpus" type="number" value="4">
<button type="submit">Launch</button></form><script>{script}</script>"""


@pytest.fixture
def form(browser: Browser) -> Iterator[tuple[Page, list[dict[str, Any]], dict[str, Any]]]:
    """A page with the form; what it requested; what it is answered."""
    page = browser.new_page()
    requested: list[dict[str, Any]] = []
    answer: dict[str, Any] = {"status": 200, "body": "{}"}

    def respond(route: Route) -> None:
        address = urlsplit(route.request.url)
        if address.path == "/tachograph/api/v1/advice":
            assert route.request.method == "POST"
            requested.append(dict(route.request.post_data_json or {}))
            route.fulfill(content_type="application/json", **answer)
        else:
            script = SCRIPT.read_text(encoding="utf-8")
            route.fulfill(content_type="text/html", body=PAGE.replace("{script}", script))

    page.route("**/*", respond)
    yield page, requested, answer
    page.close()


def test_the_form_shows_what_the_service_advises(browser: Browser, server: WebServer) -> None:
    """The portal's proxy in front of `tachograph serve`: it names who is logged in, and takes
    its prefix away.
    """
    page = browser.new_page()
    answers: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def proxy(route: Route) -> None:
        address = urlsplit(route.request.url)
        if not address.path.startswith("/tachograph/"):
            script = SCRIPT.read_text(encoding="utf-8")
            route.fulfill(content_type="text/html", body=PAGE.replace("{script}", script))
            return
        passed = {
            name: value
            for name, value in route.request.headers.items()
            if name in ("accept", "content-type")
        }
        answer = httpx2.request(
            route.request.method,
            server.address + address.path.removeprefix("/tachograph"),
            content=route.request.post_data or "",
            headers={**passed, "Authorization": f"Bearer {server.tokens['user000']}"},
            timeout=60,
        )
        if answer.status_code == 200:
            answers.append((dict(route.request.post_data_json or {}), answer.json()))
        route.fulfill(
            status=answer.status_code,
            content_type=answer.headers["content-type"],
            body=answer.content,
        )

    page.route("**/*", proxy)
    page.goto(FORM)
    note = page.locator("#tachograph-advice")
    note.wait_for(state="visible", timeout=120_000)
    requested, advice = answers[-1]
    assert requested == {
        "name": "ondemand/sys/dashboard/sys/jupyter",
        "partition": "gpu",
        "gpus": 4,
    }
    assert advice["request"]["user"] == "user000"
    shown = [
        line
        for line in advice["lines"]
        if line["followed"] or (line["topic"] == "problems" and line["value"])
    ]
    assert shown
    assert note.inner_text().splitlines() == [
        " ".join(line["sentence"].split()) for line in shown[:3]
    ]
    page.close()


def line(sentence: str, **given: Any) -> dict[str, Any]:
    return {"topic": "gpus", "value": 1.0, "followed": True, "sentence": sentence, **given}


def test_the_form_shows_advice_for_what_is_chosen(
    form: tuple[Page, list[dict[str, Any]], dict[str, Any]],
) -> None:
    page, requested, answer = form
    lines = [
        line("1 of 4: <b>no run</b> used more than 1."),
        line("No advice.", followed=False, value=None),
        line("Hung in 3 of 10.", topic="problems", followed=False, value=3.0),
    ]
    answer["body"] = json.dumps({"lines": lines})
    page.goto(FORM)
    note = page.locator("#tachograph-advice")
    note.wait_for(state="visible", timeout=120_000)
    assert note.inner_text().splitlines() == [
        "1 of 4: <b>no run</b> used more than 1.",
        "Hung in 3 of 10.",
    ]
    assert requested == [
        {"name": "ondemand/sys/dashboard/sys/jupyter", "partition": "gpu", "gpus": 4}
    ]
    answer["body"] = json.dumps({"lines": []})
    page.select_option("#batch_connect_session_context_bc_queue", "shared")
    # A moment after the last change.
    with page.expect_request(lambda request: '"gpus":1' in (request.post_data or "")):
        page.fill("#batch_connect_session_context_num_gpus", "1")
    note.wait_for(state="hidden")
    assert requested[-1]["partition"] == "shared"
    assert page.input_value("#batch_connect_session_context_num_gpus") == "1"


@pytest.mark.parametrize(("status", "body"), [(401, "{}"), (200, "no JSON"), (200, "null")])
def test_without_an_answer_the_form_is_as_before(
    form: tuple[Page, list[dict[str, Any]], dict[str, Any]], status: int, body: str
) -> None:
    page, requested, answer = form
    answer.update(status=status, body=body)
    problems: list[str] = []
    page.on("pageerror", lambda problem: problems.append(str(problem)))
    with page.expect_response("**/api/v1/advice"):
        page.goto(FORM)
    page.wait_for_timeout(200)
    assert requested
    assert page.locator("#tachograph-advice").is_hidden()
    assert problems == []
