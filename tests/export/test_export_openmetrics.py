"""Gauges for Prometheus: sums that a plain loop finds too, few series, text that parsers and a
real gateway take.
"""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections import defaultdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import polars as pl
import pytest
from exported_lake import START, UGLY, content_of, export, one_line, run
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus_text

from madelake import NOW
from servers.process import free_port, program
from servers.prometheus import prometheus
from servers.pushgateway import pushgateway
from servers.victoria import victoria
from tachograph.catalog.tables import JOB_SUMMARIES, WASTE
from tachograph.export.content import ExportContent
from tachograph.export.openmetrics import OF_JOBS, all_metrics, exposition
from tachograph.lake.delta import Lake

BY = ("user", "account", "partition")


Values = dict[str, dict[tuple[tuple[str, str], ...], float]]


def values(page: str, parser: Any = openmetrics) -> Values:
    """{metric: {labels: value}} as a parser reads the page."""
    found: Values = {}
    for family in parser(page):
        assert family.type == "gauge"
        assert family.documentation
        for sample in family.samples:
            assert sample.timestamp is None
            series = found.setdefault(sample.name, {})
            key = tuple(sorted((name, text) for name, text in sample.labels.items() if text))
            assert key not in series
            series[key] = sample.value
    return found


def page_of(content: ExportContent, *, by: tuple[str, ...] = BY, jobs: int = 0) -> str:
    return exposition(all_metrics(content, by=by, jobs=jobs)).decode()


def test_sums_are_those_of_a_plain_loop(exported: Lake) -> None:
    content = content_of(exported)
    expected: Values = defaultdict(lambda: defaultdict(float))
    for row in content.summaries.iter_rows(named=True):
        key = tuple(sorted((name, row[name]) for name in BY if row[name]))
        expected["tachograph_jobs"][key] += 1
        expected["tachograph_jobs_running"][key] += row["end"] is None
        expected["tachograph_gpu_seconds"][key] += row["gpu_hours"] * 3600
        if row["gpu_hours_idle"] is not None:
            lost = sum(row[f"gpu_hours_{cause}"] for cause in WASTE)
            if row["end"] is not None or lost > 0:  # else it is not known yet
                expected["tachograph_gpu_wasted_seconds"][key] += 3600 * lost
        if row["energy_j"] is not None:
            expected["tachograph_energy_joules"][key] += row["energy_j"]
            expected["tachograph_energy_estimated_joules"][key] += row["energy_j_estimated"]
    labels = ("code", "kind", "severity", "verdict")
    for row in content.findings().iter_rows(named=True):
        expected["tachograph_findings"][tuple((name, row[name]) for name in labels)] += 1
    read = values(page_of(content))
    assert read.pop("tachograph_export_time_seconds") == {(): NOW.timestamp()}
    hours = read.pop("tachograph_finding_gpu_seconds")
    assert hours.keys() == read["tachograph_findings"].keys()
    assert read.keys() == expected.keys()
    for name, series in expected.items():
        assert read[name] == pytest.approx(dict(series))


def test_half_of_two_gpus_of_a_job_of_half_an_hour_is_wasted(exported: Lake) -> None:
    read = values(page_of(content_of(exported), by=("user",)))
    ada = (("user", "ada"),)
    assert read["tachograph_gpu_seconds"][ada] == 3 * 1800
    # one of the two GPUs was at 0 % in every sample; what the others left is no waste
    assert read["tachograph_gpu_wasted_seconds"][ada] == pytest.approx(1800)
    assert (("user", "eve"),) not in read["tachograph_gpu_wasted_seconds"]  # not measured


def test_single_jobs_are_running_ones_first_and_never_more_than_asked(exported: Lake) -> None:
    content = content_of(exported)
    assert not set(OF_JOBS) & set(values(page_of(content)))
    one = values(page_of(content, jobs=1))
    assert one["tachograph_job_running"] == {
        (("cluster", "c"), ("job_id", "2"), ("partition", "gpu"), ("user", UGLY)): 1.0
    }
    every = values(page_of(content, jobs=99))
    assert {dict(labels)["job_id"] for labels in every["tachograph_job_gpus"]} == {
        "1",
        "2",
        "2_1",
        "4",
    }
    assert len(every["tachograph_job_gpu_utilization_ratio"]) == 3


def synthetic_content(rows: list[dict[str, Any]]) -> ExportContent:
    """Content of rows that say little."""
    given = [{name: row.get(name) for name in JOB_SUMMARIES.schema} for row in rows]
    return ExportContent(Lake("nowhere"), NOW, pl.DataFrame(given, schema=JOB_SUMMARIES.schema))


def test_of_a_requeued_job_the_last_run_is_told() -> None:
    runs = [
        {
            "job_key": f"c:1:{place}",
            "job_id": "1",
            "start": START + timedelta(hours=place),
            "gpus": place,
        }
        for place in (3, 1, 2)
    ]
    read = values(page_of(synthetic_content(runs), jobs=9))
    assert read["tachograph_job_gpus"] == {(("job_id", "1"),): 3.0}
    assert read["tachograph_jobs"] == {(): 3.0}


def test_series_grow_with_users_and_not_with_jobs() -> None:
    rows = [
        {"job_key": f"{n}", "job_id": f"{n}", "user": f"u{n % 3}", "gpu_hours": 1.0}
        for n in range(500)
    ]
    content = synthetic_content(rows)
    assert len(values(page_of(content, jobs=5))["tachograph_jobs"]) == 3
    assert values(page_of(content, by=()))["tachograph_jobs"] == {(): 500}


def test_an_empty_lake_of_jobs_is_a_page() -> None:
    assert set(values(page_of(synthetic_content([])))) == {"tachograph_export_time_seconds"}


@pytest.mark.slow
def test_promtool_finds_nothing(exported: Lake, tmp_path: Path) -> None:
    target = tmp_path / "tachograph.prom"
    [one] = export(exported, "openmetrics", "--to", target, "--jobs", "9")
    page = target.read_text()
    assert one["written"] == sum(map(len, values(page).values()))
    promtool = program("promtool", package="prometheus")
    done = subprocess.run(
        [promtool, "check", "metrics"], input=page, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [path.name for path in tmp_path.iterdir()] == ["tachograph.prom"]


@pytest.mark.slow
def test_a_real_gateway_takes_it_and_forgets_what_is_gone(exported: Lake, tmp_path: Path) -> None:
    with pushgateway(tmp_path) as address:
        for arguments, users in (((), {"ada", "eve", UGLY}), (("--user", "eve"), {"eve"})):
            [one] = export(exported, "openmetrics", "--to", address, "--by", "user", *arguments)
            assert one["where"] == address
            with urllib.request.urlopen(f"{address}/metrics", timeout=10) as answer:
                read = values_of_gateway(answer.read().decode())
            assert read == users


def values_of_gateway(page: str) -> set[str]:
    """Users of the series of tachograph_jobs, which are all of job `tachograph`."""
    samples = [
        s for family in prometheus_text(page) for s in family.samples if s.name == "tachograph_jobs"
    ]
    assert {sample.labels["job"] for sample in samples} == {"tachograph"}
    return {sample.labels["user"] for sample in samples}


@pytest.mark.slow
def test_a_gateway_that_is_down_or_refuses_is_told(exported: Lake, tmp_path: Path) -> None:
    down = f"http://user:secret@127.0.0.1:{free_port()}"
    done = run(exported, "openmetrics", "--to", down)
    one_line(done, 7, "the gateway does not respond", "--to")
    assert "secret" not in done.stderr
    with pushgateway(tmp_path) as address:
        one_line(
            run(exported, "openmetrics", "--to", f"{address}/metrics/nonsense"), 7, "rejected it: 4"
        )


def test_an_unknown_label_is_named(exported: Lake) -> None:
    one_line(
        run(exported, "openmetrics", "--to", "x.prom", "--by", "user,job_id"),
        2,
        "no label 'job_id'",
        "user, account",
    )


def queried(address: str, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """{labels: value} that a server has of a metric after the time of the export.

    VictoriaMetrics does not count a sample at the very time of a query.
    """
    parameters = {"query": name, "time": f"{NOW.timestamp() + 1}"}
    answer = httpx2.get(f"{address}/api/v1/query", params=parameters, timeout=60)
    answer.raise_for_status()
    found = {}
    for series in answer.json()["data"]["result"]:
        labels = series["metric"].items()
        key = tuple(sorted((label, text) for label, text in labels if label != "__name__"))
        found[key] = float(series["value"][1])
    return found


@pytest.mark.slow
def test_real_servers_give_back_the_numbers_that_they_were_filled_with(
    exported: Lake, tmp_path: Path
) -> None:
    """Each line with a time behind it, as the page of the target shows how."""
    page = page_of(content_of(exported), jobs=9)
    dated = re.sub(r"(?m)^(tachograph.*)$", rf"\1 {NOW.timestamp():.0f}", page)
    file = tmp_path / "dated.om"
    file.write_text(dated)
    promtool = program("promtool", package="prometheus")
    blocks = str(tmp_path / "real" / "tsdb")
    words = [promtool, "tsdb", "create-blocks-from", "openmetrics", str(file), blocks]
    subprocess.run(words, check=True, capture_output=True, timeout=300)
    expected = values(page)
    assert len(expected) > 8
    with prometheus(tmp_path / "real") as address:
        assert {name: queried(address, name) for name in expected} == expected
    with victoria(tmp_path / "victoria") as address:
        filled = re.sub(r"(?m)^(tachograph.*)$", rf"\1 {NOW.timestamp() * 1000:.0f}", page)
        place = f"{address}/api/v1/import/prometheus"
        httpx2.post(place, content=filled.encode(), timeout=60).raise_for_status()
        httpx2.get(f"{address}/internal/force_flush", timeout=60).raise_for_status()
        for name, series in expected.items():  # it keeps about 12 digits
            assert queried(address, name) == pytest.approx(series, rel=1e-9), name
