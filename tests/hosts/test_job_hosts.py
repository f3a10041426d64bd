"""What jobs used of their nodes: cgroups on shared nodes, energy of whole nodes, emissions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from madelake import Rows, fill, held, job, make_lake, summarized, utc
from tachograph.api.job_report import read_job
from tachograph.catalog.config import Configuration, WasteOptions
from tachograph.catalog.tables import FINDINGS, JOB_NODE_SAMPLES, JOB_NODES, LakeTable
from tachograph.judge.ledger import WasteReport, build_waste_report
from tachograph.lake.delta import Lake
from tachograph.lake.places import NodePlaces
from tachograph.lake.query import read_rows, read_summaries
from tachograph.pipeline.job_hosts import node_energy
from tachograph.report.job import job_json
from tachograph.sources.exposition import labels_of, parse_page
from tachograph.sources.prometheus import read_saved
from tachograph.sources.series import SeriesMemory, SeriesVocabulary
from tachograph.sources.series_rows import SeriesRows

NOON = utc(1, 12)
# As the README and the source of treydock/cgroup_exporter, and the source of Princeton's fork,
# write them: job 12 by its cgroup, job 13 by labels, with a step and one of its tasks.
PAGE = """\
cgroup_cpu_total_seconds{cgroup="/slurm/uid_20821/job_12"} 0.007840451
cgroup_cpu_user_seconds{cgroup="/slurm/uid_20821/job_12"} 0
cgroup_cpus{cgroup="/slurm/uid_20821/job_12"} 2
cgroup_info{cgroup="/slurm/uid_20821/job_12",jobid="12",uid="20821",username="tdockendorf"} 1
cgroup_memory_rss_bytes{cgroup="/slurm/uid_20821/job_12"} 3.11296e+05
cgroup_memory_total_bytes{cgroup="/slurm/uid_20821/job_12"} 2.147483648e+09
cgroup_cpu_total_seconds{jobid="13",step="",task=""} 100.5
cgroup_cpu_total_seconds{jobid="13",step="batch",task=""} 90
cgroup_cpu_total_seconds{jobid="13",step="batch",task="0"} 80
cgroup_cpus{jobid="13",step="",task=""} 0
cgroup_cpu_total_seconds{cgroup="/user.slice/user-20821.slice"} 3.817500568
"""
ROWS = {
    ("12", None): (0.007840451, 0.296875, 2048.0, 2.0),
    ("13", None): (100.5, None, None, 0.0),
    ("13", "batch"): (90.0, None, None, None),
}
VALUES = ("job_cpu_s", "job_memory_mib", "job_memory_limit_mib", "job_cpus")
MIB = {"job_memory_mib": 2**20, "job_memory_limit_mib": 2**20}


def test_cgroups_are_read_from_pages_and_answers_of_prometheus_alike(tmp_path: Path) -> None:
    rows = SeriesRows(SeriesMemory())
    rows.add_page(PAGE.encode(), t=NOON, node="n1")
    for parts in (rows.parts(), read_saved(_answer(tmp_path), SeriesMemory()).parts):
        by_table = {part.table: part for part in parts}
        samples = by_table.pop(JOB_NODE_SAMPLES.name)
        assert all(part.frame.is_empty() for part in by_table.values())
        rejects = [(one.reason, one.count) for one in samples.rejects]
        assert rejects == [("no_job", 1)]
        assert _values(samples.frame.to_dicts()) == ROWS
        places = {(row["node"], row["t"]) for row in samples.frame.to_dicts()}
        assert places == {("n1", NOON)}


def _answer(folder: Path) -> Path:
    """The page as Prometheus keeps it, with labels of its own, saved."""
    series = []
    for name, block, value, _ in parse_page(PAGE.encode(), wanted=SeriesVocabulary().wanted):
        labels = {"__name__": name, "instance": "n1:9306", "job": "cgroup", **labels_of(block)}
        series.append({"metric": labels, "values": [[NOON.timestamp(), str(value)]]})
    answer = {"status": "success", "data": {"resultType": "matrix", "result": series}}
    file = folder / "answer.json"
    file.write_text(json.dumps(answer))
    return file


def _values(rows: Rows) -> dict[tuple[str, str | None], tuple[float | None, ...]]:
    return {
        (row["job_id"], row["step"]): tuple(
            None if row.get(name) is None else row[name] / MIB.get(name, 1) for name in VALUES
        )
        for row in rows
    }


START, END = utc(1, 10), utc(1, 12)
MINUTES = 120


def _lake(folder: Path) -> Lake:
    """Jobs 1 and 2 share node n1; job 3 has n2 to itself, 4 after it, without samples of power."""
    of_jobs: list[dict[str, Any]] = []
    of_nodes: list[dict[str, Any]] = []
    gpus: list[dict[str, Any]] = []
    for minute in range(MINUTES + 1):
        t = START + timedelta(minutes=minute)
        for name, cores, mib in (("1", 1.5, 1000.0), ("2", 6.0, 2000.0)):
            used = {"job_cpu_s": cores * 60 * minute, "job_memory_mib": mib + minute}
            of_jobs.append({"t": t, "node": "n1", "job_id": name, "job_cpus": 8.0, **used})
            of_jobs.append({"t": t, "node": "n1", "job_id": name, "step": "0", "job_cpu_s": 1.0})
        of_nodes.append({"t": t, "node": "n2", "node_power_w": 500.0 + minute})
        of_nodes.append({"t": t, "node": "n1", "node_power_w": 900.0})
        for node, gpu in (("n1", 0), ("n1", 1), ("n2", 0)):
            gpus.append({"t": t, "node": node, "gpu": gpu, "gpu_util": 0.0, "power_w": 200.0})
    shared = [job(name, START, END, gpus=1, cpus=8) for name in ("1", "2")]
    later = END + timedelta(hours=1)
    # An earlier run with the id of job 1 used no more than its own samples show.
    before = job("1", START - timedelta(hours=3), START - timedelta(hours=1), gpus=1)
    jobs = [
        *shared,
        before,
        job("3", START, END, gpus=1, cpus=4, consumed_energy_j=1.0),
        job("4", END, later, gpus=1, exclusive=True, consumed_energy_j=3.6e6),
    ]
    of_jobs.append({"t": START - timedelta(hours=2), "node": "n1", "job_id": "1", "job_cpu_s": 5.0})
    places = [*held("1", "n1", [0]), *held("2", "n1", [1]), *held("3", "n2", [0])]
    return make_lake(
        folder / "lake",
        jobs=jobs,
        allocations=[*places, *held("4", "n2", [0])],
        gpu_samples=gpus,
        node_samples=of_nodes,
        job_node_samples=of_jobs,
    )


def test_jobs_on_a_shared_node_have_cpu_and_memory_of_their_own(tmp_path: Path) -> None:
    lake = _lake(tmp_path)
    jobs = summarized(lake)[1]
    for name, cores, mib in (("1", 1.5, 1120.0), ("2", 6.0, 2120.0)):
        row = jobs[name]
        assert row["host_nodes"] == 1
        assert row["cpu_time_s_sampled"] == cores * 60 * MINUTES
        assert row["cpu_efficiency_sampled"] == pytest.approx(cores / 8)
        assert row["memory_mib_max"] == mib
        assert row["node_energy_j"] is None  # n1 was never its alone
    runs = read_summaries(lake).filter(job_id="1").sort("start")
    assert runs["cpu_time_s_sampled"].to_list() == [5.0, 10800.0]
    of_nodes = read_rows(lake, JOB_NODES, runs.tail(1)).sort("step", nulls_last=False).to_dicts()
    assert [(row["node"], row["step"], row["cpu_time_s"]) for row in of_nodes] == [
        ("n1", None, 10800.0),
        ("n1", "0", 1.0),
    ]
    report = read_job(lake, "1", now=NOON, configuration=Configuration())
    assert report.host == (
        "8 CPUs were busy 19 % of the time up to its last sample; "
        "it had at most 1.1 GiB of host memory on a node."
    )
    assert [row["cpu_time_s"] for row in job_json(report)["per_node"]] == [10800.0, 1.0]


def test_samples_of_cgroups_are_read_once_for_all_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class CountingLake(Lake):
        def scan(self, table: LakeTable, days: Iterable[date] | None = None) -> pl.LazyFrame:
            scanned.append(table.name)
            return super().scan(table, days)

    scanned: list[str] = []
    monkeypatch.setattr("tachograph.pipeline.run.JOBS_TOGETHER", 1)
    lake = CountingLake(_lake(tmp_path).location)
    assert summarized(lake)[1]["2"]["cpu_time_s_sampled"] == 6.0 * 60 * MINUTES
    assert scanned.count(JOB_NODE_SAMPLES.name) == 1


def test_two_samples_of_power_far_apart_are_no_measurement(tmp_path: Path) -> None:
    end = START + timedelta(hours=12)
    power = [(20, 300.0), (700, 3000.0)]
    of_nodes = [
        {"t": START + timedelta(minutes=minute), "node": "n2", "node_power_w": watts}
        for minute, watts in power
    ]
    gpus = [
        {"t": START + timedelta(minutes=minute), "node": "n2", "gpu": 0, "gpu_util": 0.5}
        for minute in range(721)
    ]
    lake = make_lake(
        tmp_path / "lake",
        jobs=[job("1", START, end, gpus=1, exclusive=True, consumed_energy_j=3.6e6)],
        allocations=held("1", "n2", [0]),
        gpu_samples=gpus,
        node_samples=of_nodes,
    )
    row = summarized(lake)[1]["1"]
    assert (row["node_energy_j"], row["node_energy_source"]) == (3.6e6, "accounting")


def test_power_of_many_jobs_in_a_row_is_that_of_each(tmp_path: Path) -> None:
    """A sample where one job ends and the next begins is of both."""
    lake = Lake.create(str(tmp_path / "lake"))
    of_nodes = [
        {"t": START + timedelta(minutes=minute), "node": node, "node_power_w": watts + minute}
        for minute in range(61)
        for node, watts in (("n1", 100.0), ("n2", 500.0), ("other", 9e3))
    ]
    fill(lake, {"node_samples": of_nodes}, now=NOON)
    stays = [
        (10 * number + place, node, START + timedelta(minutes=6 * number))
        for number in range(10)
        for place, node in enumerate(("n1", "n2"))
    ]
    stretches = pl.DataFrame(stays, schema=["run", "node", "start"], orient="row").with_columns(
        pl.col("run").cast(pl.Int32), end=pl.col("start") + timedelta(minutes=6)
    )
    runs = stretches.rename({"end": "until"})
    found = node_energy(lake, runs, stretches, NodePlaces(), max_gap_intervals=3.0)
    joules = dict(found.select("run", "power_j").iter_rows())
    for run, node, start in stays:
        first = (start - START) // timedelta(minutes=1)
        watts = {"n1": 100.0, "n2": 500.0}[node]
        assert joules[run] == pytest.approx(sum(60 * (watts + first + k + 0.5) for k in range(6)))
    assert set(found["power_s"]) == {360.0}


def test_the_energy_of_nodes_is_that_of_jobs_that_had_them_alone(tmp_path: Path) -> None:
    lake = _lake(tmp_path)
    jobs = summarized(lake)[1]
    # Between two samples their mean: 500.5 W in the first minute, 619.5 W in the last.
    joules = sum((500.5 + minute) * 60 for minute in range(MINUTES))
    assert jobs["3"]["node_energy_j"] == pytest.approx(joules)
    assert (jobs["3"]["node_energy_source"], jobs["3"]["node_energy_measured"]) == ("samples", 1.0)
    accounted = jobs["4"]
    assert (accounted["node_energy_j"], accounted["node_energy_source"]) == (3.6e6, "accounting")
    settings = Configuration(waste=WasteOptions(pue=1.5, emissions_g_per_kwh=400.0))
    report = read_job(lake, "4", now=NOON, configuration=settings)
    assert report.energy.endswith(
        "Its nodes, GPUs included, used 1.00 kWh (ConsumedEnergy of the accounting). "
        "Estimated with PUE 1.5 and 400 g/kWh: 1.50 kWh, 600 g CO2."
    )
    assert job_json(report)["energy_estimate"]["co2_g"] == pytest.approx(600.0)
    of_gpus = read_job(lake, "1", now=NOON, configuration=settings)
    kwh = jobs["1"]["energy_j_estimated"] / 3.6e6 * 1.5
    assert of_gpus.estimate is not None
    assert of_gpus.estimate.of == "gpus"
    assert of_gpus.estimate.co2_g == pytest.approx(kwh * 400)
    assert read_job(lake, "1", now=NOON, configuration=Configuration()).estimate is None


def test_waste_shows_emissions_only_with_a_factor(tmp_path: Path) -> None:
    lake = _lake(tmp_path)
    summarized(lake)
    jobs = read_summaries(lake)
    factor = WasteOptions(pue=1.5, emissions_g_per_kwh=400.0)
    causes = {row["cause"]: row for row in _waste(jobs, factor).causes.to_dicts()}
    known = [row for row in causes.values() if row["energy_j"] is not None]
    assert known
    for row in known:
        assert row["co2_g"] == pytest.approx(row["energy_j"] / 3.6e6 * 1.5 * 400)
    assert causes["imbalance"]["co2_g"] is None
    assert not _waste(jobs, WasteOptions(pue=1.5)).co2_known


def _waste(jobs: pl.DataFrame, settings: WasteOptions) -> WasteReport:
    return build_waste_report(jobs, FINDINGS.empty(), settings)
