"""The ledger of many jobs: groupings add up, prices, what is recoverable, what is left out; all
formats agree.
"""

from __future__ import annotations

import csv
import io
import math
import re
from datetime import timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from waste_cases import columns

from jobframes import START, summary
from svg_reader import read_plot
from tachograph.catalog.config import SlurmOptions, WasteOptions
from tachograph.catalog.errors import UsageError
from tachograph.catalog.tables import WASTE
from tachograph.judge.ledger import WASTE_BUCKETS, WASTE_GROUPINGS, WasteReport, build_waste_report
from tachograph.judge.partitions import SitePartitions
from tachograph.report.lines import to_text
from tachograph.report.waste import money, waste_csv, waste_headline, waste_json, waste_lines
from tachograph.report.waste_page import NAMED_USERS, waste_html, waste_plots

HOURS = st.floats(0, 4)
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
    return summary(job_key=f"c:{number}:1", job_id=str(number), **hours | energies | known | given)


def intervals(*rows: tuple[int, str, float]) -> pl.DataFrame:
    """Findings with an interval: (job, code, minutes)."""
    texts = ("job_key", "code", "verdict", "confidence", "covered_by")
    schema: dict[str, Any] = dict.fromkeys(texts, pl.String)
    schema |= dict.fromkeys(("begin", "end"), pl.Datetime("us", "UTC"))
    made = [
        (f"c:{n}:1", code, "yes", "high", None, START, START + timedelta(minutes=minutes))
        for n, code, minutes in rows
    ]
    return pl.DataFrame(made, schema=schema, orient="row")


def report(*jobs: dict[str, Any], found: pl.DataFrame | None = None, **how: Any) -> WasteReport:
    how.setdefault("settings", WasteOptions())
    how.setdefault("site", SitePartitions(SlurmOptions(shared=("*",))))
    return build_waste_report(
        columns(jobs), intervals() if found is None else found, how.pop("settings"), **how
    )


def of(found: WasteReport, name: str) -> dict[str, Any]:
    return dict(zip(found.causes["cause"], found.causes[name], strict=True))


def test_one_job_is_its_columns() -> None:
    found = report(spent())
    assert of(found, "gpu_hours") == SPENT | {
        "in_use": 3.0,
        "in_use_unknown": 1.0,
        "unmeasured": 1.5,
    }
    assert of(found, "share")["idle"] == 0.25
    assert of(found, "energy_j")["never_used"] == pytest.approx(7.2e5)
    assert (found.jobs, found.gpu_hours, found.lost) == (1, 16.0, 10.5)
    assert of(found, "energy_j")["imbalance"] is None


def test_the_heading_has_the_four_classes_of_hours() -> None:
    assert waste_headline(report(spent())) == (
        "2026-04-23 to 2026-04-23: 1 job held 16.0 GPU-hours: 3.0 h in use, 1.0 h in use but work "
        "not known, 10.5 h (66 %) without work, 1.5 h not measured. 4.8 h are recoverable."
    )
    priced = waste_headline(report(spent(), settings=WasteOptions(price_per_gpu_hour=2.0)))
    assert "10.5 h (66 %, 21.00 EUR) without work" in priced
    assert priced.endswith(" 4.8 h (9.50 EUR) are recoverable.")


def test_what_is_recoverable() -> None:
    found = report(spent(), found=intervals((1, "job_hang", 180), (1, "cold_start", 40)))
    assert of(found, "recoverable") == {
        "never_used": 2.0,
        "hung": pytest.approx(2.0),  # 120 of 180 minutes
        "cold_start": pytest.approx(0.75),  # 30 of 40
        "idle": 2.5,
        "imbalance": 0.25,
        "in_use": 0.0,
        "in_use_unknown": 0.0,
        "unmeasured": 0.0,
    }
    changed = WasteOptions(
        never_used_share=0.5, watchdog_minutes=90, start_minutes=60, imbalance_share=0.0
    )
    found = report(
        spent(), found=intervals((1, "job_hang", 180), (1, "cold_start", 40)), settings=changed
    )
    assert [of(found, "recoverable")[cause] for cause in WASTE] == pytest.approx(
        [1.0, 1.5, 0.0, 2.5, 0.0]
    )
    assert {said.source for said in found.assumptions} == {"configured", "our assumption"}
    assert [said.value for said in found.assumptions] == [0.5, 90, 60, 30, 0.0]


def test_each_hang_and_stall_has_its_watchdog() -> None:
    found = report(
        spent(), found=intervals((1, "job_hang", 180), (1, "stall", 90), (1, "stall_host", 500))
    )
    assert of(found, "recoverable")["hung"] == pytest.approx(3.0 * (120 + 30) / 270)
    assert of(report(spent(), found=intervals((1, "stall", 90))), "recoverable")[
        "hung"
    ] == pytest.approx(1.0)


def test_busy_waiting_has_a_watchdog_of_its_own_unless_it_is_a_part_of_a_hang() -> None:
    alone = report(spent(), found=intervals((1, "busy_waiting", 90)))
    assert of(alone, "recoverable")["hung"] == pytest.approx(3.0 * 30 / 90)
    part = pl.col("code") == "busy_waiting"
    both = intervals((1, "job_hang", 180), (1, "busy_waiting", 90)).with_columns(
        covered_by=pl.when(part).then(pl.lit("job_hang"))
    )
    assert of(report(spent(), found=both), "recoverable")["hung"] == pytest.approx(3.0 * 120 / 180)


def test_recoverable_is_never_more_than_lost() -> None:
    found = report(
        spent(), found=intervals((1, "job_hang", 1e6)), settings=WasteOptions(watchdog_minutes=0)
    )
    assert all(of(found, "recoverable")[cause] <= SPENT[cause] for cause in WASTE)
    unsure = intervals((1, "job_hang", 180)).with_columns(confidence=pl.lit("low"))
    # For how long it surely hung is not known.
    for found in (report(spent()), report(spent(), found=unsure)):
        assert of(found, "recoverable")["hung"] == 0.0


def test_prices() -> None:
    jobs = [
        spent(1),
        spent(2, partition="debug"),
        spent(3, gpu_model="H100", partition="other"),
        spent(4, partition="free"),
    ]
    prices = WasteOptions(
        price_per_gpu_hour=1.0, prices={"H100": 3.0, "debug": 0.5, "free": 0.0}, price_per_kwh=0.25
    )
    found = report(*jobs, settings=prices)
    assert of(found, "money")["never_used"] == pytest.approx(2 * (1 + 0.5 + 3 + 0))
    assert of(found, "energy_money")["never_used"] == pytest.approx(4 * 0.2 * 0.25)
    assert of(found, "recoverable_money")["never_used"] == pytest.approx(9)
    assert found.unpriced_jobs == 0
    some = report(*jobs, settings=WasteOptions(prices={"H100": 3.0}))
    assert (of(some, "money")["never_used"], some.unpriced_jobs) == (6.0, 3)
    assert "No price for 3 jobs" in to_text(waste_lines(some))
    none = report(*jobs)
    assert (none.priced, set(none.causes["money"]), waste_json(none)["currency"]) == (
        False,
        {None},
        None,
    )
    assert "EUR" not in to_text(waste_lines(none))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ada", "bob", None]),
            st.sampled_from(["p1", None]),
            st.floats(0, 4),
            st.floats(0, 4),
        ),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from([name for name in WASTE_GROUPINGS if name != "cause"]),
    st.sampled_from([None, 1, 2]),
)
def test_groups_add_up_to_the_total(
    rows: list[tuple[str | None, str | None, float, float]], by: str, top: Any
) -> None:
    jobs = [
        spent(
            n,
            user=user,
            account=account,
            gpu_hours_idle=idle,
            gpu_hours_imbalance=lag,
            gpu_model=user,
        )
        for n, (user, account, idle, lag) in enumerate(rows)
    ]
    found = report(*jobs, by=by, top=top, settings=WasteOptions(price_per_gpu_hour=2.0))
    groups = found.groups
    assert groups is not None
    same = {"partition": "gpu", "cluster": "c"}
    names = {(same | {"account": account}).get(by, user) for user, account, _, _ in rows}
    cut = 0 if top is None else max(0, len(names) - top)
    assert groups.height == (len(names) - cut + 1 if cut else len(names))
    assert groups["others"].to_list() == [0] * (len(names) - cut) + [cut] * bool(cut)
    shown = groups.head(len(names) - cut)
    assert shown["lost"].to_list() == sorted(shown["lost"], reverse=True)
    for bucket, hours in of(found, "gpu_hours").items():
        assert math.isclose(groups[bucket].sum(), hours, rel_tol=1e-9, abs_tol=1e-9)
    assert groups["jobs"].sum() == found.jobs == len(rows)
    for column, total in (
        ("gpu_hours", found.gpu_hours),
        ("lost", found.lost),
        ("recoverable", found.recoverable),
        ("lost_money", 2 * found.lost),
    ):
        assert math.isclose(groups[column].sum(), total, rel_tol=1e-9, abs_tol=1e-9), column
    for row in groups.iter_rows(named=True):
        assert math.isclose(row["lost_share"], row["lost"] / row["gpu_hours"], rel_tol=1e-9)


def test_the_jobs_behind_a_figure() -> None:
    jobs = [
        spent(1),
        spent(2, gpu_hours_idle=8.0),
        spent(3, gpu_hours_idle=0.0),
        spent(4, gpu_hours_idle=1.0),
    ]
    found = report(*jobs, jobs_of="idle", top=2)
    assert found.concerned is not None
    assert (found.concerned["job_id"].to_list(), found.concerned_jobs) == (["2", "1"], 3)
    assert of(found, "jobs")["idle"] == 3
    everything = report(*jobs, jobs_of="idle")
    assert everything.concerned is not None
    assert everything.concerned["gpu_hours_idle"].sum() == of(found, "gpu_hours")["idle"]


def test_jobs_by_what_is_recoverable_of_all_causes() -> None:
    none = {f"gpu_hours_{cause}": 0.0 for cause in WASTE}
    most_idle = none | {"gpu_hours_idle": 9.0, "gpu_hours_idle_long": 1.0}
    jobs = [
        # 2 never used, 2.5 of 4 idle, 0.25 of the imbalance; how long it hung is not told.
        spent(1),
        spent(2, **most_idle),
        spent(3, **none, gpu_hours_idle_long=0.0),
        spent(4, **none | {"gpu_hours_imbalance": 6.0}, gpu_hours_idle_long=0.0),
        spent(5, **none | {"gpu_hours_hung": 2.0}, gpu_hours_idle_long=0.0),
    ]
    found = report(*jobs, jobs_of="all", settings=WasteOptions(price_per_gpu_hour=2.0))
    assert found.concerned is not None
    shown = found.concerned.select(
        "job_id", "recoverable", "gpu_hours_lost", "money", "cause"
    ).rows()
    assert shown == [
        ("1", 4.75, 10.5, 21.0, "idle"),
        ("4", 3.0, 6.0, 12.0, "imbalance"),
        ("2", 1.0, 9.0, 18.0, "idle"),
        ("5", 0.0, 2.0, 4.0, "hung"),
    ]
    assert found.concerned["recoverable"].sum() == pytest.approx(found.recoverable)
    assert found.concerned["gpu_hours_lost"].sum() == pytest.approx(found.lost)
    top = report(*jobs, jobs_of="all", top=2)
    text, page = to_text(waste_lines(top)), waste_html(top)
    assert re.search(
        r"lost +recoverable +main cause\n1 .*10.5 h +4.8 h +held, idle\n4 .*imbalance\n2 of 4", text
    )
    assert page.count("<th>main cause</th>") == 1
    assert page.split("<th>main cause</th>")[1].count("<td>held, idle</td>") == 1
    assert "<th>main cause</th>" not in waste_html(report(*jobs, jobs_of="idle"))
    assert [row["cause"] for row in waste_json(top)["concerned"]] == ["idle", "imbalance"]
    assert [row["cause"] for row in csv.DictReader(io.StringIO(waste_csv(top)))] == [
        "idle",
        "imbalance",
    ]
    large = [
        spent(1234567 + n, user=f"user{n:03}", account="proj000", gpu_hours=2345.6)
        for n in range(30)
    ]
    narrow = to_text(waste_lines(report(*large, jobs_of="all"), width=80)).splitlines()
    assert max(map(len, narrow)) <= 80
    assert narrow[-1].endswith("hidden columns: elapsed")


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
    told = {
        row["reason"]: (row["jobs"], row["gpu_hours"])
        for row in found.left_out.iter_rows(named=True)
    }
    reasons = ("running", "ambiguous", "no_samples", "not_judged", "no_activity")
    assert told == dict.fromkeys(reasons, (1, 16.0)) | {"shares": (1, None)}
    assert found.jobs == 1
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
    found = report(
        *jobs, by="user", jobs_of="never_used", settings=WasteOptions(price_per_gpu_hour=1.5)
    )
    text, page, data = to_text(waste_lines(found)), waste_html(found), waste_json(found)
    for shown in ("6.0 h", "27.5 h", "not known", "9.00 EUR", "never used"):
        assert shown in text, shown
        assert shown in page or shown == "27.5 h", shown
    assert "31.5 h" not in text
    assert "<b>ada" not in page
    assert "&lt;b&gt;ada" in page
    assert page.count("<svg") == 2
    assert data["causes"][0]["gpu_hours"] == 6.0
    assert [(row["user"], row["lost"]) for row in data["groups"]][-1] == ("bob", 6.5)
    assert [row["cause"] for row in data["causes"]] == list(WASTE_BUCKETS)
    of_csv = list(csv.DictReader(io.StringIO(waste_csv(found))))
    assert [float(row["gpu_hours_never_used"]) for row in of_csv] == [2.0, 2.0, 2.0]


def test_the_page_has_the_last_row_of_the_text() -> None:
    jobs = [spent(1), spent(2), spent(3, gpu_model="A40")]
    prices = WasteOptions(prices={"L40S": 1.5}, price_per_kwh=0.25)
    found = report(*jobs, jobs_of="idle", top=1, settings=prices)
    text, page = to_text(waste_lines(found, width=200)), waste_html(found).replace("\xa0", " ")
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


def test_amounts_that_nobody_knows_have_no_total() -> None:
    found = report(spent())
    assert (found.total("money"), found.total("gpu_hours")) == (None, 16.0)
    assert "of energy" not in waste_html(found)


@pytest.mark.parametrize("price", [0.0, 2.5])
def test_tables_fit_a_terminal_of_80_columns(price: float) -> None:
    jobs = [
        spent(1234567 + n, user=f"user{n:03}", gpu_hours_idle=123.4, gpu_hours=2345.6)
        for n in range(30)
    ]
    settings = WasteOptions(price_per_gpu_hour=price)
    found = report(*jobs, by="user", jobs_of="idle", top=20, settings=settings)
    narrow, wide = (to_text(waste_lines(found, width=width)).splitlines() for width in (80, 140))
    assert max(map(len, narrow)) <= (100 if price else 80)
    assert "share" in next(line for line in wide if "unused" in line)
    assert "lost" in next(line for line in narrow if "unused" in line)
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
        spent(
            place, user=f"<u{place}>", gpu_hours_idle=4.0 + place, gpu_hours_in_use=3.0 - place / 9
        )
        for place in range(1, 9)
    ]
    found = report(*jobs, found=intervals((1, "job_hang", 180)))
    plots = waste_plots(found)
    causes = read_plot(str(plots["causes"]))
    (chart,) = causes.charts
    lost = found.causes.filter(pl.col("cause").is_in(WASTE))
    for label, column in (("lost", "gpu_hours"), ("of these recoverable", "recoverable")):
        ends = [causes.x()(right) for name, _, _, right, _ in chart.boxes if name == label]
        assert ends == pytest.approx(lost.get_column(column).to_list(), abs=0.2)
    users = read_plot(str(plots["users"]))
    (chart,) = users.charts
    ordered = sorted(found.users.get_column("lost"), reverse=True)
    shares = [sum(ordered[:count]) / sum(ordered) for count in range(len(ordered) + 1)]
    ((_, (line,)),) = chart.curves
    assert [chart.y()(y) for _, y in line] == pytest.approx(shares, abs=0.001)
    assert [users.x()(x) for x, _ in line] == pytest.approx(range(9), abs=0.01)
    ((_, points, names),) = chart.dots
    assert [chart.y()(y) for _, y in points] == pytest.approx(
        shares[1 : NAMED_USERS + 1], abs=0.001
    )
    assert sorted(names) == sorted(found.users.get_column("user").head(NAMED_USERS))
    assert waste_plots(report(spent()))["users"] is None
