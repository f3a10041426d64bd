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
from playwright.sync_api import Browser, FloatRect, Locator, expect

from servers.web import WebServer
from tachograph.annexes.serve.registry import PAGES

pytestmark = pytest.mark.slow
VIEWS = [path for entry in PAGES for path in EXAMPLES.get(entry.name, (entry.path,))]
PHONE = 420
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
    assert opened.violations() == []


def test_a_job_is_opened_with_the_keyboard_and_back_returns_to_the_same_list(
    windows: Mapping[tuple[int, str], Window],
) -> None:
    opened, path = windows[WIDE, "light"], "/jobs?user=user000&sort=-gpu_hours_lost"
    opened.open(path)
    before = opened.page.locator("tbody a").all_inner_texts()
    for _ in range(10):
        opened.page.keyboard.press("Tab")
        focused = str(opened.page.evaluate("document.activeElement.getAttribute('href') || ''"))
        if focused == "#first":
            opened.page.keyboard.press("Enter")
        if re.search(r"/job/[^/]+$", focused):
            break
    opened.page.keyboard.press("Enter")
    opened.page.wait_for_url("**/job/**")
    opened.page.go_back()
    assert opened.page.url.split("#")[0].endswith(path)
    assert opened.page.locator("tbody a").all_inner_texts() == before


def test_a_page_in_progress_is_completed_and_keeps_what_was_typed(
    windows: Mapping[tuple[int, str], Window],
) -> None:
    page = windows[WIDE, "light"].page
    first = page.goto(f"{windows[WIDE, 'light'].address}/study?pipe=fp32")
    assert first is not None
    assert 'id="pending"' in first.text()
    assert "<img" not in first.text()
    field = page.get_by_label("Until")
    field.fill("2025-03-05")
    expect(page.locator("#pending")).to_have_count(0)
    expect(page.locator("main img").first).to_be_attached()
    expect(field).to_have_value("2025-03-05")
    expect(field).to_be_focused()


def test_the_page_of_the_fleet_comes_again_without_scripts_alone(
    browser: Browser, server: WebServer
) -> None:
    with window(browser, server) as scripted, window(browser, server, scripts=False) as plain:
        for opened in (scripted, plain):
            opened.open("/now")
        assert scripted.page.locator("meta[http-equiv=refresh]").count() == 0
        assert plain.page.locator("meta[http-equiv=refresh]").get_attribute("content") == "30"
        assert "loads again every 30 s" in plain.page.locator("main").inner_text()


def test_names_are_offered_while_one_types_and_the_key_leads_to_the_search_box(
    windows: Mapping[tuple[int, str], Window],
) -> None:
    opened = windows[WIDE, "light"]
    opened.open("/jobs")
    page = opened.page
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.type("user03")
    offers = page.locator("#found option")
    expect(offers).to_have_count(8)
    assert offers.first.get_attribute("value") == "user030"
    field = page.locator("#filters input[name=account]")
    field.fill("/")  # typed, it is a character
    expect(field).to_be_focused()
    field.fill("")
    field.press_sequentially("00")
    expect(page.locator("#names-account option")).to_have_count(1)
    page.locator("#search").fill("user036")
    page.keyboard.press("Enter")
    page.wait_for_url("**/user/user036")


# by how much the document, the header and each chart are wider than they may be
_OVERFLOWS = """() => [
    document.documentElement.scrollWidth - innerWidth,
    ...[...document.querySelectorAll("header.site, figure")].map(part => part.scrollWidth - part.clientWidth)
]"""


@pytest.fixture(scope="module")
def phone(browser: Browser, server: WebServer) -> Iterator[Window]:
    with window(browser, server, width=PHONE) as opened:
        yield opened


@pytest.mark.parametrize("path", VIEWS)
def test_header_and_charts_fit_a_phone(phone: Window, path: str) -> None:
    assert phone.open(path) == 200
    phone.page.wait_for_load_state("load")
    assert max(phone.page.evaluate(_OVERFLOWS)) <= 0
    parts = phone.page.locator("header.site > *:visible")
    tops = {round(box["y"] + box["height"] / 2) for box in map(_box, parts.all())}
    assert max(tops) - min(tops) <= 2


def test_the_pages_are_behind_a_button_on_a_phone(phone: Window) -> None:
    phone.open("/jobs?user=absent")
    links = phone.page.get_by_role("navigation", name="Pages").get_by_role("link")
    expect(links.first).to_be_hidden()
    phone.page.get_by_role("button", name="Menu").click()
    expect(links.first).to_be_visible()
    assert phone.violations() == []
    phone.page.keyboard.press("Escape")
    expect(links.first).to_be_hidden()
    phone.page.get_by_role("button", name="Menu").click()
    links.filter(has_text="Waste").click()
    phone.page.wait_for_url("**/waste")


def _box(part: Locator) -> FloatRect:
    box = part.bounding_box()
    assert box is not None
    return box


# per link: how far the underline is below what of an underscore is below the line
_BELOW_UNDERSCORES = """() => {
    const canvas = document.createElement("canvas").getContext("2d");
    return [...document.querySelectorAll("main a")].map(link => {
        const style = getComputedStyle(link);
        canvas.font = style.font;
        const below = canvas.measureText("_").actualBoundingBoxDescent;
        return parseFloat(style.textUnderlineOffset) - below;
    });
}"""
_SIZES_OF_CHARTS = """() => [...document.querySelectorAll("figure svg.plot")].filter(
    chart => chart.checkVisibility()
).map(
    chart => chart.getBoundingClientRect().width / chart.viewBox.baseVal.width
)"""


def test_letters_of_charts_keep_their_size_and_underlines_are_below_underscores(
    windows: Mapping[tuple[int, str], Window],
) -> None:
    opened = windows[NARROW, "dark"]
    opened.open("/waste")
    sizes = opened.page.evaluate(_SIZES_OF_CHARTS)
    assert sizes
    assert min(sizes) >= 1
    opened.open("/jobs")
    distances = opened.page.evaluate(_BELOW_UNDERSCORES)
    assert distances
    assert min(distances) > 0
