"""Pictures of pages: bars and strips read back from the served SVG, compared with the API."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any
from urllib.parse import quote

import polars as pl
import pytest
from starlette.testclient import TestClient

from served_entries import ApiClient
from svg_reader import ReadPlot, read_plot
from tachograph.catalog.tables import WASTE
from tachograph.judge.ledger import WASTE_BUCKETS
from tachograph.judge.node_history import NodeReport, build_node_report
from tachograph.judge.usage import DAY_PARTS
from tachograph.report.svg import heat_colour
from tachograph.report.usage_plots import USE_LABELS, node_plot, use_by_period

Days = Sequence[Mapping[str, Any]]
_PIXEL = 0.021  # coordinates have two decimals; a bar has two ends
_OWN = "user000"


def _plot(client: TestClient, path: str) -> ReadPlot:
    page = client.get(path, headers={"accept": "text/html"}).text
    (figure,) = re.findall(r'<figure id="use" tabindex="0">(<svg.*?</svg>)<figcaption>', page)
    return read_plot(figure)


def _differences(plot: ReadPlot, days: Days) -> list[str]:
    """What the drawn bars and the numbers of days have not in common; [] if they are the same."""
    chart = plot.charts[0]
    hours_at = chart.y()
    exact = abs(hours_at(_PIXEL) - hours_at(0.0))
    places = {str(row["day"]): place for place, row in enumerate(days)}
    width = {round(right - left, 1) for bars in chart.bars.values() for left, right, *_ in bars}
    differences = [] if len(width) == 1 else [f"bars of widths {width}"]
    middles = [pixel for pixel, _ in plot.x_ticks]
    tops = [0.0] * len(days)
    for part in ("in_use", "in_use_unknown", *WASTE, "unmeasured", "left_out"):
        drawn = list(chart.bars.get(USE_LABELS[part], []))
        for row in days:
            place = places[str(row["day"])]
            if not row[part]:
                continue
            if not drawn:
                differences.append(f"{part} of {row['day']} is not drawn")
                continue
            left, right, low, high = drawn.pop(0)
            if abs((left + right) / 2 - middles[place]) > _PIXEL:
                differences.append(f"{part} of {row['day']} at {left}")
            if abs(hours_at(low) - tops[place]) > exact:
                differences.append(f"{part} of {row['day']} begins at {hours_at(low)}")
            tops[place] += row[part]
            if abs(hours_at(high) - tops[place]) > exact:
                differences.append(f"{part} of {row['day']} ends at {hours_at(high)}")
        differences += [f"{part}: {bar}" for bar in drawn]
    return differences


@pytest.mark.parametrize(
    ("name", "role", "page", "numbers"),
    [
        (_OWN, "user", "/", f"/api/v1/users/{_OWN}"),
        (_OWN, "user", f"/user/{_OWN}", f"/api/v1/users/{_OWN}"),
        (_OWN, "user", "/account/{account}", "/api/v1/accounts/{account}"),
        ("support", "support", "/account/{account}", "/api/v1/accounts/{account}"),
        ("support", "support", f"/user/{_OWN}?until=2025-03-04", f"/api/v1/users/{_OWN}?until=2025-03-04"),
    ],
)  # fmt: skip
def test_bars_are_the_days_of_the_api(
    as_viewer: ApiClient, name: str, role: str, page: str, numbers: str
) -> None:
    client = as_viewer(name, role)
    (job,) = client.get(f"/api/v1/jobs?user={_OWN}&limit=1&fields=account").json()
    account = quote(job["account"])
    plot = _plot(client, page.format(account=account))
    usage = client.get(numbers.format(account=account)).json()
    days = usage["days"]
    assert [label for _, label in plot.x_ticks] == [
        f"{day.day} {day:%b}" for day in (date.fromisoformat(row["day"]) for row in days)
    ]
    assert _differences(plot, days) == []
    drawn = {part: sum(row[part] for row in days) for part in DAY_PARTS}
    assert {part: drawn[part] for part in WASTE_BUCKETS} == pytest.approx(
        {cause["cause"]: cause["gpu_hours"] for cause in usage["waste"]["causes"]}
    )
    assert sum(drawn[cause] for cause in WASTE) == pytest.approx(usage["waste"]["lost"])

    most = max(range(len(days)), key=lambda place: days[place]["in_use"])
    for part in ("in_use", "left_out"):
        changed = [dict(row) for row in days]
        changed[most][part] += 0.01 * days[most]["in_use"]
        assert _differences(plot, changed)


def test_bars_of_all_jobs_are_the_ledger_of_all(as_viewer: ApiClient) -> None:
    client = as_viewer("support", "support")
    plot = _plot(client, "/?of=all")
    ledger = client.get("/api/v1/waste").json()
    chart = plot.charts[0]
    hours_at = chart.y()
    for cause in ledger["causes"]:
        bars = chart.bars.get(USE_LABELS[cause["cause"]], [])
        drawn = sum(hours_at(high) - hours_at(low) for _, _, low, high in bars)
        exact = (1 + len(bars)) * abs(hours_at(_PIXEL) - hours_at(0.0))
        assert drawn == pytest.approx(cause["gpu_hours"], abs=exact)


def _days(count: int, **hours: float) -> pl.DataFrame:
    first = date(2024, 1, 10)
    rows = [
        {"day": first + timedelta(days=place), **dict.fromkeys(DAY_PARTS, 0.0), **hours}
        for place in range(count)
        if place not in (3, 4)
    ]
    return pl.DataFrame([*rows, {**rows[0], "day": None}])


@pytest.mark.parametrize(
    ("count", "name", "bars", "first"),
    [
        (1, "day", 1, date(2024, 1, 10)),
        (92, "day", 92, date(2024, 1, 10)),
        (93, "week", 14, date(2024, 1, 8)),
        (644, "week", 93, date(2024, 1, 8)),
        (645, "month", 22, date(2024, 1, 1)),
    ],
)
def test_long_times_are_drawn_by_week_and_month(
    count: int, name: str, bars: int, first: date
) -> None:
    days = _days(count, in_use=2.0, idle=1.0)
    period, table = use_by_period(days)
    assert (period, table.height, table["day"][0]) == (name, bars, first)
    assert table["in_use"].sum() == 2 * table["idle"].sum() == 2.0 * (days.height - 1)
    assert (table["in_use"] == 0).sum() == (2 if count == 92 else 0)


def _node_report(
    start: datetime, *, zone_name: str = "UTC", is_sampled: bool = True, **of_gpus: object
) -> NodeReport:
    """Return a report of two GPUs: a job of 36 hours on both, and 8 days later a sick one of 6
    hours on the second; `is_sampled`: whether there are samples of that one. `of_gpus`: other
    columns of the three rows.
    """
    jobs = pl.DataFrame(
        {
            "job_key": ["a", "b"],
            "job_id": ["1", "2"],
            **dict.fromkeys(("display_id", "cluster", "name", "user", "account"), "x"),
            **dict.fromkeys(("partition", "state"), "x"),
            "start": [start, start + timedelta(days=8)],
            "as_of": [start + timedelta(hours=36), start + timedelta(days=8, hours=6)],
            "interval_s": 60.0,
        }
    )
    gpus = pl.DataFrame(
        {
            "job_key": ["a", "a", "b"],
            "node": "n1",
            "gpu": [0, 1, 1],
            "mig": pl.Series([None] * 3, dtype=pl.Int64),
            "samples": 100,
            "interval_s": None,
            "first_t": [start, start, start + timedelta(days=8) if is_sampled else None],
            "last_t": [start + timedelta(hours=36)] * 2 + [start + timedelta(days=8, hours=6)],
            "health": ["OK", "OK", "CRIT"],
            "gpu_util_mean": [0.5, None, 1.0],
            **dict.fromkeys(("throttle_reasons_mean", "gpu_temp_c_max", "pcie_replays_max"), 0.0),
            **dict.fromkeys(("ecc_dbe_max", "ecc_sbe_max", "nvlink_errors_max"), 0.0),
            "xid_events": [0.0, 0.0, 2.0],
            "xid_event_max": [None, None, 79.0],
            "remapped_rows_uncorrectable_last": 0.0,
            "row_remap_failure_max": 0.0,
            **of_gpus,
        }
    )
    devices = pl.DataFrame(
        {"node": "n1", "gpu": [0, 1], "mig": pl.Series([None] * 2, dtype=pl.Int64)}
        | {"history": pl.Series([None] * 2, dtype=pl.String)}
    ).with_columns(model=pl.lit("H100"), uuid=pl.lit("u"), pci=pl.lit("p"), hbm_mib=pl.lit(1.0))
    return build_node_report("n1", jobs, gpus, devices, zone_name=zone_name)


def test_hours_of_a_node_are_divided_where_clocks_skip_midnight() -> None:
    begin = datetime.fromisoformat("2026-04-23T10:00:00+00:00")  # a day of 23 hours follows
    days = _node_report(begin, zone_name="Africa/Cairo").days.filter(pl.col("gpu") == 0)
    assert dict(days.select("day", "hours").rows()) == pytest.approx(
        {date(2026, 4, 23): 12.0, date(2026, 4, 24): 23.0, date(2026, 4, 25): 1.0}
    )


def test_a_sick_week_without_samples_is_marked_where_it_was() -> None:
    monday = datetime.fromisoformat("2026-03-02T00:00:00+00:00")
    drawn = node_plot(_node_report(monday, is_sampled=False), most_days=120)
    assert drawn is not None
    plot = read_plot(drawn)
    assert [label for _, label in plot.x_ticks] == [f"{day} Mar" for day in range(2, 10)]
    day = plot.x_ticks[1][0] - plot.x_ticks[0][0]
    ((left, right),) = [box[2:4] for box in plot.charts[0].boxes if "week of" in box[0]]
    first = plot.x_ticks[0][0] - day / 2
    assert (round((left - first) / day, 2), round((right - first) / day, 2)) == (7.0, 8.0)


def test_strips_of_a_node_are_the_share_of_the_day_in_use() -> None:
    report = _node_report(datetime.fromisoformat("2026-03-02T00:00:00+00:00"))
    drawn = node_plot(report, most_days=120)
    assert drawn is not None
    plot = read_plot(drawn)
    (chart,) = plot.charts
    assert [label for _, label in chart.y_labels] == ["GPU 0", "GPU 1"]
    assert [label for _, label in plot.x_ticks] == ["2 Mar", "4 Mar", "6 Mar", "8 Mar", "10 Mar"]
    day = (plot.x_ticks[1][0] - plot.x_ticks[0][0]) / 2
    first = plot.x_ticks[0][0] - day / 2
    rows = [pixel for pixel, _ in chart.y_labels]
    strips = {
        (
            round((left - first) / day, 2),
            round((right - left) / day, 2),
            label.split(",")[0],
        ): colour
        for label, colour, left, right, middle in chart.boxes
        if abs(middle - rows[int(label[4])]) < 2
    }
    assert strips == {
        (0.0, 0.95, "GPU 0"): heat_colour(0.5),
        (1.0, 0.95, "GPU 0"): heat_colour(0.25),
        (8.0, 0.95, "GPU 1"): heat_colour(0.25),
    }
    marks = [box for box in chart.boxes if "week of" in box[0]]
    ((label, colour, left, right, middle),) = marks
    began = "GPU 1, jobs that began in the week of 2026-03-09"
    assert label.startswith(f"{began}: health CRIT; XID errors 2: 79")
    assert (colour, middle > rows[1]) == ("#b3261e", True)
    assert (round((left - first) / day, 2), round((right - first) / day, 2)) == (7.0, 9.0)
    later = read_plot(str(node_plot(report, most_days=1)))
    assert len(later.charts[0].boxes) == 2
