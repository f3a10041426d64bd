"""The ledger of many jobs: groupings add up, prices, what is recoverable, what is left out; all
formats agree.
"""

from __future__ import annotations

import csv
import io
import re
from datetime import timedelta
from typing import Any

import polars as pl
import pytest
from waste_cases import INTERVALS, columns

from jobframes import START, summary
from svg_reader import read_plot
from tachograph.catalog.config import WasteOptions
from tachograph.catalog.errors import UsageError
from tachograph.catalog.tables import WASTE
from tachograph.judge.ledger import WASTE_BUCKETS, WASTE_LABELS, WasteReport, build_waste_report
from tachograph.report.lines import to_text
from tachograph.report.waste import money, waste_csv, waste_headline, waste_json, waste_lines
from tachograph.report.waste_page import NAMED_USERS, waste_html, waste_plots

SPENT = {"never_used": 2.0, "hung": 3.0, "cold_start": 1.0, "idle": 4.0, "imbalance": 0.5}


def spent(number: int = 1, **given: Any) -> dict[str, Any]:
    """A judged job of 16 GPU-hours: 4 GPUs for 4 hours."""
    hours = {f"gpu_hours_{cause}": SPENT[cause] for cause in WASTE}
    energies = {f"energy_j_{cause}": 3.6e6 * SPENT[cause] / 10 for cause in WASTE[:-1]}
    known = {
        "samples": 100,
        "gpu_util_mean": 0.3,
        "user": "ada",
        "account": "p1",
        "partition": "gpu",
    }
    known |= {
        "gpu_hours_in_use": 3.0,
        "gpu_hours_in_use_unknown": 1.0,
        "gpu_hours_unmeasured": 1.5,
        "gpu_hours_idle_long": 2.5,
        "gpu_model": "L40S",
        "elapsed_s": 4 * 3600.0,
        "nodes": 1,
    }
    row = hours | energies | known | given
    return dict(summary(job_key=f"c:{number}:1", job_id=str(number), **row))


def report(*jobs: dict[str, Any], **how: Any) -> WasteReport:
    how.setdefault("settings", WasteOptions())
    how.setdefault("freed", {job["job_key"]: 1.0 for job in jobs})
    return build_waste_report(
        columns(jobs), pl.DataFrame(schema=INTERVALS), how.pop("settings"), **how
    )


def of(found: WasteReport, name: str) -> dict[str, Any]:
    return dict(zip(found.causes["cause"], found.causes[name], strict=True))


def test_the_heading_has_the_four_classes_of_hours() -> None:
    assert waste_headline(report(spent())) == (
        "2026-04-23 to 2026-04-23: 1 job held 16.0 GPU-hours: 3.0 h in use, 1.0 h in use but work "
        "not known, 10.5 h (66 %) without work, 1.5 h not measured. 4.8 h are recoverable."
    )
    priced = waste_headline(report(spent(), settings=WasteOptions(prices={"*": 2.0})))
    assert "10.5 h (66 %, 21.00 EUR) without work" in priced
    assert priced.endswith(" 4.8 h (9.50 EUR) are recoverable.")


def test_without_prices_no_money_is_shown() -> None:
    some = report(spent(1), spent(2, gpu_model="H100"), settings=WasteOptions(prices={"H100": 3.0}))
    assert "No price for 1 job" in to_text(waste_lines(some))
    none = report(spent())
    assert waste_json(none)["currency"] is None
    assert (none.total("money"), none.total("gpu_hours")) == (None, 16.0)
    for shown in (to_text(waste_lines(none)), waste_html(none)):
        assert "GPU-hours" in shown
        assert "EUR" not in shown
        assert "of energy" not in shown


def test_jobs_of_all_causes_have_their_main_cause() -> None:
    lagging = {f"gpu_hours_{cause}": 0.0 for cause in WASTE} | {"gpu_hours_imbalance": 6.0}
    jobs = [spent(1), spent(2, **lagging, gpu_hours_idle_long=0.0), spent(3, gpu_hours_idle=1.0)]
    top = report(*jobs, jobs_of="all", top=2)
    text, page = to_text(waste_lines(top)), waste_html(top)
    assert re.search(
        r"lost +recoverable +main cause\n1 .*10.5 h +4.8 h +held, idle\n3 .*held, idle\n2 of 3",
        text,
    )
    assert page.count("<th>main cause</th>") == 1
    assert page.split("<th>main cause</th>")[1].count("<td>held, idle</td>") == 2
    assert "<th>main cause</th>" not in waste_html(report(*jobs, jobs_of="idle"))
    rows = csv.DictReader(io.StringIO(waste_csv(report(*jobs, jobs_of="all"))))
    assert [row["cause"] for row in rows] == ["idle", "idle", "imbalance"]
    large = [
        spent(1234567 + n, user=f"user{n:03}", account="proj000", gpu_hours=2345.6)
        for n in range(30)
    ]
    narrow = to_text(waste_lines(report(*large, jobs_of="all"), width=80)).splitlines()
    assert max(map(len, narrow)) <= 80
    assert any(line.endswith("hidden columns: elapsed") for line in narrow)


def test_what_is_left_out_is_counted() -> None:
    nothing = {f"gpu_hours_{bucket}": None for bucket in WASTE_BUCKETS}
    jobs = [
        spent(1),
        spent(2, state="RUNNING", end=None),
        spent(3, attribution="ambiguous", samples=None, **nothing),
        spent(4, samples=0, gpu_util_mean=None, **nothing),
        spent(5, gpu_util_mean=None, **nothing),
        spent(6, **nothing),
        spent(7, shards=4, gpu_hours=None, **nothing),
    ]
    found = report(*jobs)
    text = to_text(waste_lines(found, width=1000))
    assert "1 job (16.0 h): still running; 1 job (16.0 h): not known which GPUs" in text
    assert "1 job (–): had shares of GPUs" in text


def test_the_heading_names_the_time_that_was_asked_for() -> None:
    since, until = START + timedelta(days=2), START + timedelta(days=9)
    of_all, asked = report(spent()), report(spent(), since=since, until=until)
    assert to_text(waste_lines(of_all)).startswith("2026-04-23 to 2026-04-2")
    assert to_text(waste_lines(asked)).startswith("2026-04-25 to 2026-05-02: 1 job")
    assert waste_json(asked) == waste_json(of_all)


def test_without_jobs() -> None:
    for jobs in ([], [spent(2, state="RUNNING", end=None)]):
        found = report(*jobs, by="user", jobs_of="hung")
        assert to_text(waste_lines(found)).startswith("No job in the ledger.")
        assert waste_json(found)["gpu_hours"] == 0
        assert "<svg" not in waste_html(found)
        assert set(waste_json(found)["causes"][0]) >= {"cause", "gpu_hours"}


def test_all_formats_show_the_same() -> None:
    jobs = [spent(1, user="<b>ada"), spent(2, user="bob", gpu_hours_idle=0.0), spent(3, user=None)]
    found = report(*jobs, by="user", jobs_of="never_used", settings=WasteOptions(prices={"*": 1.5}))
    text, page, data = to_text(waste_lines(found)), waste_html(found), waste_json(found)
    of_causes = to_text(waste_lines(report(*jobs, settings=WasteOptions(prices={"*": 1.5}))))
    assert "9.00 EUR" in of_causes
    for shown in ("6.0 h", "27.5 h", "not known", "9.00 EUR", "never used"):
        assert shown in text + of_causes, shown
        assert shown in page or shown == "27.5 h", shown
    assert "31.5 h" not in text
    assert "<b>ada" not in page
    assert "&lt;b&gt;ada" in page
    assert page.count('class="plot"') == 2
    assert data["causes"][0]["gpu_hours"] == 6.0
    assert [(row["user"], row["lost"]) for row in data["groups"]][-1] == ("bob", 6.5)
    assert [row["cause"] for row in data["causes"]] == list(WASTE_BUCKETS)
    of_csv = list(csv.DictReader(io.StringIO(waste_csv(found))))
    assert [float(row["gpu_hours_never_used"]) for row in of_csv] == [2.0, 2.0, 2.0]


def test_the_page_has_the_last_row_of_the_text() -> None:
    jobs = [spent(1), spent(2), spent(3, gpu_model="A40")]
    prices = WasteOptions(prices={"L40S": 1.5}, price_per_kwh=0.25)
    found = report(*jobs, jobs_of="idle", top=1, settings=prices)
    page = waste_html(found).replace("\xa0", " ")
    of_causes = report(*jobs, settings=prices)
    text = to_text(waste_lines(of_causes, width=200)) + to_text(waste_lines(found, width=200))
    row = re.search(r'<tr class="total">(.*?)</tr>', page, re.DOTALL)
    assert row
    cells = re.findall("<td>(.*?)</td>", row[1])
    last = next(line for line in text.splitlines() if line.startswith("total"))
    assert [cell for cell in cells if cell] == re.split(r"  +", last)
    assert cells[:4] == ["total", "48.0 h", "100 %", "3"]
    assert cells[6] == money(2 * 1.5 * sum(of(report(jobs[0]), "gpu_hours").values()), "EUR")
    assert cells[8] == money(3 * 0.25 * sum(SPENT[cause] / 10 for cause in WASTE[:-1]), "EUR")
    for told in ("No price for 1 job: not part", "1 of 3 jobs"):
        assert told in text, told
        assert told in page, told


@pytest.mark.parametrize("width", [80, 200])
def test_no_two_columns_have_one_title(width: int) -> None:
    priced = WasteOptions(prices={"*": 1.5}, price_per_kwh=0.25, emissions_g_per_kwh=350.0)
    by_user = report(spent(1), spent(2, user="bob"), by="user", jobs_of="all", settings=priced)
    of_causes = report(spent(), settings=priced)
    lines = [*waste_lines(of_causes, width=width), *waste_lines(by_user, width=width)]
    rows = [re.split("  +", line.strip()) for line in to_text(lines).splitlines()]
    heads = [row for row in rows if row[0] in ("GPU-hours", "user", "job")]
    assert len(heads) == 3
    for titles in heads:
        assert len(set(titles)) == len(titles), titles
    for head in re.findall("<thead>(.*?)</thead>", waste_html(by_user), re.DOTALL):
        titles = [re.sub("<.*?>", "", cell) for cell in re.findall("<th.*?>(.*?)</th>", head)]
        assert len(set(titles)) == len(titles), titles


def test_what_was_requested_comes_first_and_the_causes_are_left_out() -> None:
    jobs = [spent(1), spent(2, user="bob")]
    by_user, of_idle = report(*jobs, by="user"), report(*jobs, jobs_of="idle")
    for found, first in (
        (by_user, "user"),
        (of_idle, "Jobs: held, idle"),
        (report(*jobs, by="user", jobs_of="idle"), "Jobs: held, idle"),
    ):
        text = to_text(waste_lines(found))
        assert text.startswith(first)
        assert waste_headline(found).split(":")[0] in text
        assert "Recoverable, if" not in text
        assert "\ntotal " not in text
        assert "Recoverable, if" in waste_html(found)
    assert to_text(waste_lines(report(*jobs))).startswith("2026-04-23 to")


def test_a_cause_without_jobs_names_those_that_have_some() -> None:
    nothing = {f"gpu_hours_{cause}": 0.0 for cause in WASTE}
    none_hung = report(spent(1, gpu_hours_hung=0.0), jobs_of="hung")
    expected = (
        "Jobs: hung\n"
        "No job has GPU-hours of this cause; `--jobs` finds jobs of: never_used, cold_start, idle,\n"
        "imbalance, unmeasured.\n"
    )
    assert to_text(waste_lines(none_hung, width=90)).startswith(expected)
    nothing_lost = report(spent(1, **nothing, gpu_hours_unmeasured=0.0), jobs_of="all")
    assert "No job lost GPU-hours." in to_text(waste_lines(nothing_lost))


@pytest.mark.parametrize("price", [0.0, 2.5])
def test_tables_fit_a_terminal_of_80_columns(price: float) -> None:
    jobs = [
        spent(1234567 + n, user=f"user{n:03}", gpu_hours_idle=123.4, gpu_hours=2345.6)
        for n in range(30)
    ]
    settings = WasteOptions(prices={"*": price})
    found = report(*jobs, by="user", jobs_of="idle", top=20, settings=settings)
    narrow, wide = (to_text(waste_lines(found, width=width)).splitlines() for width in (80, 140))
    assert max(map(len, narrow)) <= (100 if price else 80)
    (wide_titles,) = (line for line in wide if line.startswith("user "))
    (narrow_titles,) = (line for line in narrow if line.startswith("user "))
    assert "share" in wide_titles
    assert all(WASTE_LABELS[cause] in wide_titles for cause in WASTE)
    for cause in WASTE:  # the same words, fewer or abbreviated ones
        beginnings = tuple(title.rstrip(".") for title in narrow_titles.split())
        assert any(word.startswith(beginnings) for word in WASTE_LABELS[cause].split())
    for line in (*narrow, *wide):
        if line.startswith("user000"):
            assert "123.4" in line


def test_names_that_do_not_exist() -> None:
    with pytest.raises(UsageError, match="no grouping 'users'"):
        report(spent(), by="users")
    with pytest.raises(
        UsageError, match=r"no cause 'wasted'; one of all, never_used, .*, unmeasured"
    ):
        report(spent(), jobs_of="wasted")
    for words, cause in (("not measured", "unmeasured"), ("idle", "idle"), ("all causes", "all")):
        assert report(spent(), jobs_of=words).jobs_of == cause
    with pytest.raises(UsageError, match="--top 0"):
        report(spent(), by="user", top=0)


def test_plots_show_the_hours_of_the_ledger() -> None:
    jobs = [
        spent(place, user=f"<u{place}>", gpu_hours_idle=4.0 + place, gpu_hours_in_use=3.0)
        for place in range(1, 49)  # 50 would be a round end of the axis
    ]
    found = report(*jobs)
    plots = waste_plots(found)
    causes = read_plot(str(plots["causes"]))
    (chart,) = causes.charts
    lost = found.causes.filter(pl.col("cause").is_in(WASTE))
    for label, column in (("lost", "gpu_hours"), ("of these recoverable", "recoverable")):
        ends = [causes.x()(right) for name, _, _, right, _ in chart.boxes if name == label]
        hours = [value for value in lost.get_column(column) if value]  # nothing has no bar
        one_pixel = causes.x()(1.0) - causes.x()(0.0)  # the least that is drawn
        assert ends == pytest.approx(hours, abs=one_pixel)
    users = read_plot(str(plots["users"]))
    (chart,) = users.charts
    ordered = sorted(found.users.get_column("lost"), reverse=True)
    shares = [sum(ordered[:count]) / sum(ordered) for count in range(len(ordered) + 1)]
    ((_, (line,)),) = chart.curves
    assert [chart.y()(y) for _, y in line] == pytest.approx(shares, abs=0.001)
    assert [users.x()(x) for x, _ in line] == pytest.approx(range(49), abs=0.01)
    ((_, points, names),) = chart.dots
    assert [chart.y()(y) for _, y in points] == pytest.approx(
        shares[1 : NAMED_USERS + 1], abs=0.001
    )
    assert sorted(names) == sorted(found.users.get_column("user").head(NAMED_USERS))
    assert waste_plots(report(spent()))["users"] is None
