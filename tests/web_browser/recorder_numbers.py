"""What the recorder of a job should draw, by plain arithmetic over the minutes that the API has,
and what it draws, read back from the browser.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import httpx2
from playwright.sync_api import Page

Values = list[float | None]
# {unit: half of the last digit in the page}
ROUNDED = {"fraction": 0.0000501, "W": 0.0501, "MiB": 0.501}
STRIP_ROUNDED = 0.000501
VIRIDIS = (
    (68, 1, 84),
    (65, 68, 135),
    (42, 120, 142),
    (34, 168, 132),
    (122, 209, 81),
    (253, 231, 37),
)
_READ = """() => ({
    recording: recorder.recording,
    view: recorder.view,
    cursor: recorder.cursor,
    counter: recorder.select.value,
    plots: recorder.plots.map(({ panel, plot }) => ({
        title: panel.title, unit: panel.unit, lines: panel.lines.map((line) => line.label),
        counters: panel.lines.map((line) => line.counter), data: plot.data.map((values) => [...values]),
    })),
})"""
# The colour of the middle of each cell of the strips, null where nothing is drawn but the ground.
_PIXELS = """() => {
    const { heat, recording, rowHeight } = recorder;
    const ratio = window.devicePixelRatio;
    const context = heat.getContext("2d");
    return recording.strips.rows.map((values, row) => values.map((_, bin) => {
        const x = recorder.position((bin + 0.5) * recording.bin_s);
        const y = (row + 0.25) * rowHeight;
        return [...context.getImageData(Math.floor(x * ratio), Math.floor(y * ratio), 1, 1).data].slice(0, 3);
    }));
}"""


def drawn(page: Page) -> dict[str, Any]:
    """Return what the recorder draws: its view, and the data of each of its plots."""
    page.locator("#recorder.live .stage > *").first.wait_for(state="attached")
    state: dict[str, Any] = page.evaluate(_READ)
    return state


def pixels(page: Page) -> list[list[list[int]]]:
    """Return the colour of each cell of the strips."""
    colours: list[list[list[int]]] = page.evaluate(_PIXELS)
    return colours


def minutes(client: httpx2.Client, job: str) -> list[dict[str, Any]]:
    """Return all rows of job_minutes of a job."""
    answer = client.get(f"/api/v1/jobs/{job}/minutes?limit=10000")
    rows: list[dict[str, Any]] = answer.raise_for_status().json()
    assert 0 < len(rows) < 10_000
    return rows


def by_gpu(rows: Iterable[Mapping[str, Any]], counter: str, bin_s: float) -> dict[str, Values]:
    """Return the mean of each bin of each GPU, labelled by node and index."""
    known: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    bins = 1 + int(max(row["minute"] for row in rows) * 60 // bin_s)
    for row in rows:
        gpu = known[f"{row['node']} GPU {row['gpu']}"]
        if row[counter] is not None:
            gpu[int(row["minute"] * 60 // bin_s)].append(row[counter])
    return {
        label: [fmean(gpu[place]) if place in gpu else None for place in range(bins)]
        for label, gpu in sorted(known.items())
    }


def over_gpus(series: Mapping[str, Values], statistic: Any = fmean) -> Values:
    """Return a statistic over the GPUs of each bin."""
    bins = zip(*series.values(), strict=True)
    known = [[value for value in values if value is not None] for values in bins]
    return [statistic(values) if values else None for values in known]


def largest(rows: Sequence[Mapping[str, Any]], counter: str, bin_s: float) -> Values:
    """Return the largest value of each bin."""
    values: dict[int, float] = {}
    for row in rows:
        if row[counter] is not None:
            place = int(row["minute"] * 60 // bin_s)
            values[place] = max(values.get(place, row[counter]), row[counter])
    return [values.get(place) for place in range(1 + max(values))]


def assert_close(actual: Values, expected: Values, within: float) -> None:
    """Compare value by value; bins after the last minute are not measured."""
    assert actual[len(expected) :] == [None] * (len(actual) - len(expected))
    for place, (one, other) in enumerate(zip(actual, expected, strict=False)):
        if one is None or other is None:
            assert one is other, place
        else:
            assert abs(one - other) <= within, (place, one, other)


def viridis(value: float) -> list[float]:
    """Return the colour of a share of 1."""
    place = min(1.0, max(0.0, value)) * (len(VIRIDIS) - 1)
    lower = min(len(VIRIDIS) - 2, int(place))
    pairs = zip(VIRIDIS[lower], VIRIDIS[lower + 1], strict=True)
    return [low + (place - lower) * (high - low) for low, high in pairs]
