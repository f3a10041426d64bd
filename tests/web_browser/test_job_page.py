"""The page of a job in a browser: each point of its recorder, zoom, keyboard, address, print, a
file, a job that finishes while its page is open.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import recorder_numbers as numbers
from browser_window import NARROW, WIDE, window
from playwright.sync_api import Browser, Page, expect

from in_process import run_here
from madelake import held, job, make_lake, summarized, utc
from served_entries import until
from servers.web import WebServer, serving
from tachograph.catalog.tables import JOB_GPUS, JOB_MINUTES, JOB_SUMMARIES
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries, scan_rows

pytestmark = pytest.mark.slow
WASTED, HANGS, ONE_GPU, UNMEASURED = "1000316", "1000360", "1000284", "1000347"
READ_AGAIN_MS = 60_000
MANY = 64


def assert_is_of_minutes(state: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Compare each point that is drawn with the minutes of the API."""
    recording = state["recording"]
    bin_s, length_s = recording["bin_s"], recording["length_s"]
    checked = set()
    for plot in state["plots"]:
        times, *lines = plot["data"]
        assert times == [min(length_s, (place + 0.5) * bin_s) for place in range(len(times))]
        assert all(len(values) == len(times) for values in lines)
        for counter, values in zip(plot["counters"], lines, strict=False):
            if counter is None:
                continue
            gpus = numbers.by_gpu(rows, counter, bin_s) if counter != "hbm_used_mib" else {}
            expected = numbers.over_gpus(gpus) if gpus else numbers.largest(rows, counter, bin_s)
            numbers.assert_close(values, expected, numbers.ROUNDED[plot["unit"]])
            checked.add(counter)
            if counter == "power_w" and len(gpus) > 1:
                for edge, statistic in zip(lines[1:], (max, min), strict=True):
                    numbers.assert_close(edge, numbers.over_gpus(gpus, statistic), 0.0501)
    assert {"gpu_util", "sm_active", "dram_active", "power_w", "hbm_used_mib"} <= checked


@pytest.mark.parametrize("job_id", [WASTED, HANGS, ONE_GPU])
def test_each_point_is_that_of_the_minutes(
    browser: Browser, server: WebServer, job_id: str
) -> None:
    with window(browser, server) as opened, server.client() as client:
        opened.open(f"/job/{job_id}")
        state, rows = numbers.drawn(opened.page), numbers.minutes(client, job_id)
        assert_is_of_minutes(state, rows)
        recording = state["recording"]
        levels = numbers.by_gpu(rows, recording["strips"]["counter"], recording["bin_s"])
        strips = recording["strips"]["rows"]
        assert len(strips) == len(levels)
        for values, expected in zip(strips, levels.values(), strict=True):
            numbers.assert_close(values, expected, numbers.STRIP_ROUNDED)
        edges = {mark[end] for mark in recording["marks"] for end in ("begin_s", "end_s")}
        colours = numbers.pixels(opened.page)
        for values, row in zip(strips, colours, strict=True):
            for place, (value, colour) in enumerate(zip(values, row, strict=True)):
                middle = (place + 0.5) * recording["bin_s"]
                near = any(abs(edge - middle) < recording["bin_s"] for edge in edges)
                if value is None or near or middle > recording["length_s"]:
                    continue
                expected_colour = numbers.viridis(value)
                assert all(
                    abs(part - other) <= 2
                    for part, other in zip(colour, expected_colour, strict=True)
                ), (place, value)
        assert opened.problems == []


@pytest.mark.parametrize("counter", ["power_w", "sm_active"])
def test_a_counter_is_drawn_by_minute_for_each_gpu(
    browser: Browser, server: WebServer, counter: str
) -> None:
    with window(browser, server) as opened, server.client() as client:
        opened.open(f"/job/{WASTED}")
        opened.page.get_by_label("Add").select_option(counter)
        expect(opened.page.locator(".legend", has_text="by minute")).to_be_visible()
        plot, rows = numbers.drawn(opened.page)["plots"][0], numbers.minutes(client, WASTED)
        times, *lines = plot["data"]
        last = max(row["minute"] for row in rows)
        length_s = opened.page.evaluate("recorder.length")
        assert times == [min(length_s, 60 * minute + 30) for minute in range(last + 1)]
        by_minute = numbers.by_gpu(rows, counter, 60.0)
        assert plot["lines"] == list(by_minute)
        assert lines == list(by_minute.values())
        wait_for_hash(opened.page, f"c={counter}")
        assert opened.problems == []


@pytest.fixture(scope="module")
def many_gpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with a job of 64 GPUs, one of which was not measured in its third minute."""
    start = utc(20, 8)
    end = start + timedelta(minutes=10)
    samples = [
        {
            "t": start + timedelta(minutes=minute, seconds=30),
            "node": f"gpu{gpu // 8}",
            "gpu": gpu % 8,
            "gpu_util": gpu / MANY,
            "power_w": 100.0 + gpu + minute,
        }
        for gpu in range(MANY)
        for minute in range(10)
        if (gpu, minute) != (5, 2)
    ]
    folder = tmp_path_factory.mktemp("many")
    lake = make_lake(
        folder / "lake",
        gpu_samples=samples,
        devices=[
            {"node": f"gpu{gpu // 8}", "gpu": gpu % 8, "model": "NVIDIA A100-SXM4-40GB"}
            for gpu in range(MANY)
        ],
        jobs=[job("7", start, end, gpus=MANY, nodes=8, node_list="gpu[0-7]")],
        allocations=[
            row for node in range(8) for row in held("7", f"gpu{node}", range(8), start, end)
        ],
    )
    summarized(lake)
    (folder / "tachograph.toml").write_text('lake = "lake"\n', encoding="utf-8")
    return folder


def test_many_gpus_have_strips_and_their_mean_and_extremes(
    browser: Browser, many_gpus: Path
) -> None:
    with serving(many_gpus) as server, window(browser, server) as opened:
        opened.open("/job/7#c=power_w")
        expect(opened.page.locator(".legend", has_text="by minute")).to_be_visible()
        state = numbers.drawn(opened.page)
        strips = state["recording"]["strips"]["rows"]
        expected: list[numbers.Values] = [[round(gpu / MANY, 3)] * 10 for gpu in range(MANY)]
        expected[5][2] = None
        assert strips == expected
        _, mean, high, low = state["plots"][0]["data"]
        powers = [
            [100.0 + gpu + minute for gpu in range(MANY) if (gpu, minute) != (5, 2)]
            for minute in range(10)
        ]
        numbers.assert_close(mean, [sum(values) / len(values) for values in powers], 1e-3)
        assert (high, low) == (
            [max(values) for values in powers],
            [min(values) for values in powers],
        )
        names = opened.page.evaluate("rowNames(recorder.recording.gpus).map(([name]) => name)")
        assert names == [f"gpu{node}" for node in range(8)]
        unmeasured = numbers.pixels(opened.page)[5][2]
        line = opened.page.evaluate("colour('line')")
        assert "#{:02x}{:02x}{:02x}".format(*unmeasured) == line
        assert opened.problems == []


def wait_for_hash(page: Page, part: str) -> str:
    """Return the address once its fragment has a part."""
    page.wait_for_url(re.compile(rf"#(.*&)?{part}"))
    return page.url


def test_what_is_shown_is_in_the_address_and_comes_back(
    browser: Browser, server: WebServer
) -> None:
    with window(browser, server) as opened:
        page = opened.page
        opened.open(f"/job/{WASTED}")
        stage = page.locator(".strips")
        box = stage.bounding_box()
        assert box is not None
        begin, end = page.evaluate("[0.25, 0.75].map(share => share * recorder.length)")
        left, right = page.evaluate("times => times.map(at => recorder.position(at))", [begin, end])
        page.mouse.move(box["x"] + left, box["y"] + 30)
        page.mouse.down()
        page.mouse.move(box["x"] + right, box["y"] + 60, steps=4)
        page.mouse.up()
        view = numbers.drawn(page)["view"]
        pixel_s = (end - begin) / (right - left)
        assert view == pytest.approx([begin, end], abs=2 * pixel_s)
        scales = page.evaluate(
            "recorder.plots.map(({ plot }) => [plot.scales.x.min, plot.scales.x.max])"
        )
        assert all(scale == view for scale in scales)
        page.locator(".stage").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("PageDown")
        page.get_by_label("Add").select_option("power_w")
        expect(page.locator(".legend", has_text="by minute")).to_be_visible()
        address = wait_for_hash(page, "c=power_w")
        before = numbers.drawn(page)
    with window(browser, server) as opened:
        opened.page.goto(address)
        expect(opened.page.locator(".legend", has_text="by minute")).to_be_visible()
        after = numbers.drawn(opened.page)
        assert after["view"] == pytest.approx(before["view"], abs=1)
        assert after["cursor"] == pytest.approx(before["cursor"], abs=1)
        assert after["counter"] == "power_w"
        assert after["plots"] == before["plots"]


def test_the_keyboard_moves_and_enlarges_and_values_are_read_out(
    browser: Browser, server: WebServer
) -> None:
    with window(browser, server) as opened:
        page = opened.page
        opened.open(f"/job/{HANGS}")
        state = numbers.drawn(page)
        bin_s, length_s = state["recording"]["bin_s"], state["recording"]["length_s"]
        page.locator(".stage").focus()
        cursors = []
        for key in ("Home", "ArrowRight", "PageDown", "ArrowLeft", "PageUp", "End"):
            page.keyboard.press(key)
            cursors.append(page.evaluate("recorder.cursor"))
        last = min(length_s, (len(state["plots"][0]["data"][0]) - 0.5) * bin_s)
        assert cursors == [bin_s * place for place in (0.5, 1.5, 11.5, 10.5, 0.5)] + [last]
        page.keyboard.press("ArrowDown")
        spoken = page.locator("#recorder output").inner_text()
        strips = state["recording"]["strips"]
        level = next(value for value in reversed(strips["rows"][0]) if value is not None)
        assert f"{state['recording']['gpus'][0]}: {strips['label']} {100 * level:.0f} %" in spoken
        assert "Work stopped and did not resume" in spoken
        activity = state["plots"][0]
        for label, values in zip(activity["lines"], activity["data"][1:], strict=True):
            percent = 100 * values[-1]
            digits = f"{percent:.2g}" if percent < 1 else f"{percent:.0f}"
            assert f"{label} {digits} %" in spoken
        page.keyboard.press("+")
        enlarged = numbers.drawn(page)["view"]
        assert enlarged[1] - enlarged[0] == pytest.approx(length_s / 2)
        page.keyboard.press("Escape")
        assert numbers.drawn(page)["view"] == [0, length_s]
        page.get_by_role("button", name="Work stopped and did not resume").click()
        mark = state["recording"]["marks"][0]
        begin, end = numbers.drawn(page)["view"]
        assert begin < mark["begin_s"] < end
        assert (mark["begin_s"] - begin) < 0.1 * length_s
        assert opened.problems == []


TEXTS = {
    "duration(59)": "59 s",
    "duration(3661)": "1 h 01 min 1 s",
    "duration(216000)": "2 d 12 h",
    "quantity(0.0042, 'fraction')": "0.42 %",
    "quantity(0.42, 'fraction')": "42 %",
    "quantity(52000, 'B/s')": "52 kB/s",
    "quantity(0.4, 'W')": "0.4 W",
    "quantity(300, 'MiB')": "300 MiB",
    "rowNames(Array(17).fill('GPU 0/7'))[0][0]": "17 GPUs",
    "rowNames(Array(17).fill('n1 GPU 0'))[0][0]": "n1",
}


def test_a_part_of_the_time_keeps_its_view_and_says_small_amounts(
    browser: Browser, server: WebServer
) -> None:
    with window(browser, server) as opened:
        page = opened.page
        opened.open(f"/job/{HANGS}")
        bin_s = numbers.drawn(page)["recording"]["bin_s"]
        assert {code: page.evaluate(code) for code in TEXTS} == TEXTS
        view = [10.7 * bin_s, 30.2 * bin_s]
        page.evaluate("view => recorder.zoom(...view)", view)
        page.locator(".stage").focus()
        for key, middle in (("Home", 11.5), ("End", 29.5)):
            page.keyboard.press(key)
            assert page.evaluate("recorder.cursor") == middle * bin_s
            assert page.evaluate("recorder.view") == pytest.approx(view)
        wait_for_hash(page, "x=")
        page.evaluate("location.hash = 'findings'")
        page.wait_for_url(re.compile("#findings$"))
        assert page.evaluate("recorder.view") == pytest.approx(view)
        for fragment in ("x=abc", "t=1-"):
            page.evaluate("fragment => { location.hash = fragment }", fragment)
            page.wait_for_function("recorder.kept === null")
            assert page.evaluate("recorder.view[0] === 0 && recorder.view[1] === recorder.length")
        steps = [
            {"kind": "step", "label": f"step {step}", "begin_s": step, "end_s": step + 0.9}
            for step in range(40)
        ]
        boxes, lanes = page.evaluate("steps => markBoxes(steps, at => 10 * at, [0, 400])", steps)
        assert lanes == 4
        named = [box for box in boxes if box["isNamed"]]
        for lane in range(lanes):
            ends = [
                (box["left"], box["left"] + box["width"]) for box in named if box["lane"] == lane
            ]
            assert all(end <= begin for (_, end), (begin, _) in pairwise(ends))
        assert opened.problems == []


def test_colours_follow_the_theme_and_the_width_the_window(
    browser: Browser, server: WebServer
) -> None:
    canvases = "[...document.querySelectorAll('.stage canvas')].map(canvas => canvas.toDataURL())"
    with window(browser, server) as opened:
        page = opened.page
        opened.open(f"/job/{WASTED}")
        numbers.drawn(page)
        light = page.evaluate(canvases)
        page.emulate_media(color_scheme="dark")
        until(
            lambda: all(
                url != before for url, before in zip(page.evaluate(canvases), light, strict=True)
            )
        )
        for width in (1024, NARROW):
            page.set_viewport_size({"width": width, "height": 900})
            until(
                lambda: page.evaluate(
                    "recorder.plots.every(({ plot }) => plot.width === recorder.stage.clientWidth)"
                )
            )
            assert opened.overflow <= 0
            assert page.evaluate("recorder.stage.scrollWidth <= recorder.stage.clientWidth")
        assert opened.problems == []


def test_the_first_picture_is_high_on_the_page(browser: Browser, server: WebServer) -> None:
    with window(browser, server) as opened:
        opened.page.set_viewport_size({"width": 1440, "height": 900})
        for job_id in (WASTED, HANGS, ONE_GPU):
            opened.open(f"/job/{job_id}")
            numbers.drawn(opened.page)
            box = opened.page.locator(".stage").bounding_box()
            assert box is not None
            assert box["y"] < 400, job_id


@pytest.mark.parametrize(("tab", "most"), [("all", 5), ("summary", 3)])
def test_print_has_the_drawing_and_is_short(
    browser: Browser, server: WebServer, tab: str, most: int
) -> None:
    with window(browser, server, width=WIDE) as opened:
        page = opened.page
        opened.open(f"/job/{WASTED}?tab={tab}")
        numbers.drawn(page)
        expect(page.locator("#recorder figure")).to_be_hidden()
        page.emulate_media(media="print")
        expect(page.locator("#recorder figure")).to_be_visible()
        expect(page.locator(".stage")).to_be_hidden()
        pages = re.findall(rb"/Type\s*/Page\b(?!s)", page.pdf(format="A4"))
        assert 1 <= len(pages) <= most


def test_without_scripts_there_is_the_drawing(browser: Browser, server: WebServer) -> None:
    with window(browser, server, scripts=False) as opened:
        opened.open(f"/job/{WASTED}")
        expect(opened.page.locator("#recorder figure svg.plot:visible")).to_be_visible()
        expect(opened.page.locator(".stage")).to_be_hidden()
        expect(opened.page.get_by_label("Add")).to_be_hidden()


def test_a_job_without_minutes_has_no_recorder(browser: Browser, server: WebServer) -> None:
    with window(browser, server) as opened:
        opened.open(f"/job/{UNMEASURED}")
        expect(opened.page.locator("#recorder .empty")).to_contain_text("Nothing over time")
        expect(opened.page.locator(".stage")).to_have_count(0)
        assert opened.problems == []


def test_a_page_in_a_file_draws_the_same_and_loads_nothing(
    browser: Browser, server: WebServer, demo: Path, tmp_path: Path
) -> None:
    file = tmp_path / "job.html"
    assert run_here(["job", HANGS, "--html", str(file)], demo, {}).returncode == 0
    context = browser.new_context()
    page = context.new_page()
    requested: list[str] = []
    problems: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.on("pageerror", lambda error: problems.append(str(error)))
    try:
        page.goto(file.as_uri())
        state = numbers.drawn(page)
        with server.client() as client:
            assert_is_of_minutes(state, numbers.minutes(client, HANGS))
        page.get_by_label("Add").select_option("sm_active")
        expect(page.locator(".legend", has_text="SMs active")).to_be_visible()
        added = numbers.drawn(page)["plots"][0]["data"]
        activity = state["plots"][0]
        place = activity["counters"].index("sm_active")
        assert added == [activity["data"][0], activity["data"][1 + place]]
        assert requested == [file.as_uri()]
        assert problems == []
    finally:
        context.close()


@pytest.fixture
def running(demo: Path, tmp_path: Path) -> Iterator[tuple[WebServer, Lake, pl.DataFrame]]:
    """A server of a copy of the demo, its lake, and one of its running jobs."""
    folder = tmp_path / "demo"
    shutil.copytree(demo, folder)
    lake = Lake.open(str(folder / "lake"))
    with serving(folder) as server:
        yield server, lake, read_summaries(lake).filter(pl.col("state") == "RUNNING").head(1)


def test_a_job_that_finishes_while_its_page_is_open(
    browser: Browser, running: tuple[WebServer, Lake, pl.DataFrame]
) -> None:
    server, lake, row = running
    with window(browser, server) as opened:
        opened.open(f"/job/{row['job_key'].item()}")
        page = opened.page
        expect(page.locator(".state.live")).to_have_text("RUNNING")
        numbers.drawn(page)
        page.evaluate("window.stays = recorder")
        page.locator(".stage").focus()
        page.keyboard.press("ArrowRight")
        cursor = page.evaluate("recorder.cursor")
        wait_for_hash(page, "x=")
        seq = row["seq"].item() + 1
        for table in (JOB_MINUTES, JOB_GPUS):
            rows = scan_rows(lake, table, row).collect().drop("seq")
            lake.append(table, rows, app_id=f"finished {table.name}", seq=seq)
        ended = row.with_columns(state=pl.lit("COMPLETED"), end=pl.col("as_of")).drop("seq")
        lake.append(JOB_SUMMARIES, ended, app_id="finished", seq=seq)
        expect(page.locator(".state.good")).to_have_text("COMPLETED", timeout=READ_AGAIN_MS)
        assert page.evaluate("window.stays !== recorder")  # of the new data, in the same page
        assert page.evaluate("document.querySelectorAll('.stage .uplot').length > 0")
        assert page.evaluate("recorder.cursor") == pytest.approx(cursor, abs=1)
        expect(page.locator(".stage")).to_be_focused()
        expect(page.locator("[data-refresh]")).to_have_count(0)
        assert opened.problems == []
