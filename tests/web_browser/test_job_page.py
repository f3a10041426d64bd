"""The page of a job in a browser: plots over time, print, a job that finishes while its page is
open.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import polars as pl
import pytest
from browser_window import WIDE, window
from playwright.sync_api import Browser, Page, expect

from servers.web import WebServer, serving
from tachograph.catalog.tables import JOB_SUMMARIES
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries

pytestmark = pytest.mark.slow
TIMELINE = "/job/1000316?tab=timeline"
READ_AGAIN_MS = 60_000


def after_start(page: Page, share: float) -> str:
    """Return the time that the plot shows under the pointer, at a share of its width."""
    box = page.locator(".u-over").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + share * box["width"], box["y"] + 50)
    return page.locator(".u-legend .u-value").first.inner_text()


def test_plots_are_enlarged_and_show_values(browser: Browser, server: WebServer) -> None:
    with window(browser, server) as opened:
        opened.open(TIMELINE)
        page = opened.page
        expect(page.locator(".uplot").first).to_be_visible()
        assert page.locator("figure[data-hover]").is_hidden()
        assert "min" in after_start(page, 0.02)
        assert "h" not in after_start(page, 0.02)
        box = page.locator(".u-over").first.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 60, steps=5)
        page.mouse.up()
        assert after_start(page, 0.02).startswith(("5 h", "6 h"))
        page.get_by_role("button", name="Whole job").click()
        assert "h" not in after_start(page, 0.02)
        assert opened.problems == []


def test_a_counter_is_read_by_minute(browser: Browser, server: WebServer) -> None:
    with window(browser, server) as opened:
        opened.open(TIMELINE)
        page = opened.page
        page.get_by_label("Shown").select_option("power_w")
        expect(page.locator("#plots h3")).to_have_text("power_w of each GPU")
        # The time, and eight GPUs.
        expect(page.locator("#plots .u-legend .u-series")).to_have_count(9)
        page.locator("#plots").focus()
        page.keyboard.press("PageDown")
        expect(page.locator(".u-legend .u-value").nth(7)).to_contain_text("W")
        assert opened.problems == []


@pytest.mark.parametrize(("tab", "most"), [("all", 5), ("summary", 2)])
def test_it_is_short_when_printed(browser: Browser, server: WebServer, tab: str, most: int) -> None:
    with window(browser, server, width=WIDE) as opened:
        opened.open(f"/job/1000316?tab={tab}")
        pages = re.findall(rb"/Type\s*/Page\b(?!s)", opened.page.pdf(format="A4"))
        assert 1 <= len(pages) <= most


def test_a_job_that_finishes_while_its_page_is_open(
    browser: Browser, demo: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "demo"
    shutil.copytree(demo, folder)
    lake = Lake.open(str(folder / "lake"))
    running = read_summaries(lake).filter(pl.col("state") == "RUNNING").head(1)
    with serving(folder) as server, window(browser, server) as opened:
        opened.open(f"/job/{running['job_key'].item()}")
        page = opened.page
        expect(page.locator(".state.live")).to_have_text("RUNNING")
        page.evaluate("window.stays = true")
        ended = running.with_columns(state=pl.lit("COMPLETED"), end=pl.col("as_of")).drop("seq")
        lake.append(JOB_SUMMARIES, ended, app_id="finished", seq=running["seq"].item() + 1)
        expect(page.locator(".state.good")).to_have_text("COMPLETED", timeout=READ_AGAIN_MS)
        assert page.evaluate("window.stays")  # the page was not loaded anew
        expect(page.locator("[data-refresh]")).to_have_count(0)
        assert opened.problems == []
