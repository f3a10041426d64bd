"""The simulated cluster: its files agree with its truth, twice the same, nothing impossible in
it.
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from ClusterShell.NodeSet import NodeSet
from polars.testing import assert_frame_equal

from tachograph.annexes.lab.simulate import accounting
from tachograph.annexes.lab.simulate.behaviours import JOB_KINDS, JobKind
from tachograph.annexes.lab.simulate.cluster import SimulatedCluster, simulate
from tachograph.annexes.lab.simulate.plan import NodeGroup, SimulationPlan
from tachograph.catalog.devices import match_device
from tachograph.catalog.errors import LakeError, UsageError
from tachograph.catalog.units import slurm_duration_s

PREFIX = "nersc_ldms_dcgm_"
KEY = ["ProducerName", "gpu_id", "ts_ns"]
SMALL = SimulationPlan(
    seed=3,
    days=2,
    groups=(
        NodeGroup(5, 4, "A100 SXM 40GB"),
        NodeGroup(3, 4, "A100 SXM 80GB", lacks=("fp64_active",)),
    ),
    interval_s=60,
    shared=0.3,
    median_hours=0.8,
)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> SimulatedCluster:
    return simulate(SimulationPlan.demo(), tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SimulatedCluster:
    return simulate(SMALL, tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> SimulatedCluster:
    return simulate(replace(SMALL, defects=False), tmp_path_factory.mktemp("clean"))


def read(cluster: SimulatedCluster) -> pl.DataFrame:
    return pl.concat([pl.read_parquet(file) for file in cluster.telemetry], how="diagonal")


def sacct(cluster: SimulatedCluster) -> list[dict[str, str]]:
    lines = cluster.accounting.read_text(encoding="utf-8").splitlines()
    names = lines[0].split(accounting.BETWEEN)
    assert names[-1] == "SubmitLine"
    return [
        dict(zip(names, line.split(accounting.BETWEEN, len(names) - 1), strict=True))
        for line in lines[1:]
    ]


def local(written: str, zone: str) -> datetime | None:
    if written in ("Unknown", "None"):
        return None
    return datetime.fromisoformat(written).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)


def test_same_plan_same_files_other_seed_other_files(
    small: SimulatedCluster, tmp_path: Path
) -> None:
    again = simulate(SMALL, tmp_path / "again")
    files = sorted(
        path.relative_to(small.folder) for path in small.folder.rglob("*") if path.is_file()
    )
    assert files == sorted(
        path.relative_to(again.folder) for path in again.folder.rglob("*") if path.is_file()
    )
    for file in files:
        assert (small.folder / file).read_bytes() == (again.folder / file).read_bytes(), file
    other = simulate(replace(SMALL, seed=4), tmp_path / "other")
    assert other.accounting.read_bytes() != small.accounting.read_bytes()
    assert not read(other).equals(read(small))


def test_how_files_are_cut_changes_nothing_in_them(small: SimulatedCluster, tmp_path: Path) -> None:
    cut = simulate(replace(SMALL, rows_per_file=6000), tmp_path / "cut")
    assert len(cut.telemetry) > len(small.telemetry)
    assert (
        max(pl.scan_parquet(file).select(pl.len()).collect().item() for file in cut.telemetry)
        < 7000
    )
    whole, parts = read(small), read(cut)
    assert (
        parts.select(whole.columns)
        .sort(KEY, maintain_order=True)
        .equals(whole.sort(KEY, maintain_order=True))
    )
    assert cut.jobs.equals(small.jobs)
    assert cut.defects.equals(small.defects)


def test_truth_of_jobs_is_that_of_their_samples(clean: SimulatedCluster) -> None:
    """The mean over the GPUs of a job of their means, recomputed from the files."""
    held = clean.gpus.select(
        "run",
        pl.col("start", "end").dt.epoch("ns"),
        ProducerName="node",
        gpu_id="gpu",
    )
    rows = (
        read(clean)
        .with_columns(pl.selectors.float().cast(pl.Float64))
        .join(held, on=["ProducerName", "gpu_id"])
    )
    rows = rows.filter(pl.col("ts_ns") >= pl.col("start"), pl.col("ts_ns") < pl.col("end"))
    means = {
        "gpu_util_mean": pl.col(f"{PREFIX}gpu_utilization") / 100,
        "sm_active_mean": pl.col(f"{PREFIX}sm_active"),
        "dram_active_mean": pl.col(f"{PREFIX}dram_active"),
        "power_w_mean": pl.col(f"{PREFIX}power_usage"),
    }
    energy = pl.col(f"{PREFIX}total_energy_consumption") / 1e3
    of_gpus = (
        rows.sort("ts_ns")
        .group_by("run", "ProducerName", "gpu_id")
        .agg(
            samples=pl.len(),
            hbm_used_mib_max=pl.col(f"{PREFIX}fb_used").max(),
            energy_counter_j=energy.last() - energy.first(),
            **{name: values.mean() for name, values in means.items()},
        )
    )
    of_jobs = of_gpus.group_by("run").agg(
        pl.col("samples", "energy_counter_j").sum(),
        pl.col("hbm_used_mib_max").max(),
        pl.col(list(means)).mean(),
        gpus=pl.len(),
    )
    truth = clean.jobs.filter(pl.col("samples") > 0).select(of_jobs.columns)
    assert truth.height > 50
    assert_frame_equal(
        of_jobs, truth, check_row_order=False, check_dtypes=False, rel_tol=1e-9, abs_tol=1e-3
    )


def test_gpus_are_conserved(demo: SimulatedCluster) -> None:
    held = demo.gpus.group_by("run").len("rows")
    ran = demo.jobs.filter(pl.col("start").is_not_null() & (pl.col("gpus") > 0)).join(
        held, on="run"
    )
    assert (ran["gpus"] == ran["rows"]).all()
    whole = ran.filter(pl.col("attribution") == "whole_node")
    assert (whole["gpus"] == whole["nodes"].list.len() * 4).all()
    parts = ran.filter(pl.col("attribution") != "whole_node")
    assert set(parts["gpus"]) == {1, 2, 3}
    assert (parts["nodes"].list.len() == 1).all()
    busy = demo.gpus.select((pl.col("end") - pl.col("start")).dt.total_seconds().sum()).item()
    assert 0.4 * demo.plan.load < busy / demo.plan.gpus / demo.plan.seconds <= demo.plan.load * 1.1
    assert demo.gpus["samples"].sum() == pytest.approx(busy / demo.plan.interval_s, rel=0.01)


def test_demo_is_small_has_every_kind_and_every_problem(demo: SimulatedCluster) -> None:
    assert 300 <= demo.jobs.height <= 500
    assert demo.rows < 1_500_000
    assert 32 <= sum(group.count for group in demo.plan.groups) <= 40
    seen = demo.jobs.filter(pl.col("start").is_not_null())
    assert set(seen["kind"]) == {kind.value for kind in JobKind}
    problems = {facts.problem for facts in JOB_KINDS.values() if facts.problem}
    visible = seen.filter(
        pl.col("attribution").is_in(["whole_node", "explicit"]), pl.col("problem").is_not_null()
    )
    assert set(visible["problem"]) == problems
    assert min(Counter(visible["problem"]).values()) >= 2
    assert {"explicit", "whole_node", "ambiguous"} <= set(seen["attribution"])
    assert {
        "RUNNING",
        "PENDING",
        "COMPLETED",
        "FAILED",
        "CANCELLED",
        "TIMEOUT",
        "NODE_FAIL",
    } <= set(demo.jobs["state"])
    assert {match_device(model) for model in seen["model"].drop_nulls()} >= {
        match_device("NVIDIA A40"),
        match_device("NVIDIA A100-SXM4-80GB"),
    }


def test_design_and_samples_agree(demo: SimulatedCluster) -> None:
    seen = demo.jobs.filter(pl.col("samples") > 200)
    assert seen.height > 200
    apart = (seen["gpu_util_mean"] - seen["expected_gpu_util"]).abs()
    assert max(apart) < 0.03


def test_counters_are_consistent_with_each_other(clean: SimulatedCluster) -> None:
    frame = read(clean).sort(KEY)
    column = {
        name: pl.col(PREFIX + name)
        for name in (n.removeprefix(PREFIX) for n in frame.columns if PREFIX in n)
    }
    tensors = (
        column["tensor_hmma_active"] + column["tensor_imma_active"] + column["tensor_dfma_active"]
    )
    ordered = [
        column["sm_active"] <= column["gr_engine_active"],
        column["sm_occupancy"] <= column["sm_active"],
        column["fp32_active"] <= column["sm_active"],
        column["tensor_active"] <= column["sm_active"],
        column["gpu_utilization"] <= 100,
        column["pcie_rx_bytes"] > 0,
        column["gpu_temp"].is_between(25, 95),
        column["memory_temp"] == column["gpu_temp"] + 4,
        (tensors - column["tensor_active"]).abs() < 1e-6,
        column["nvlink_rx_bytes"] <= column["nvlink_tx_bytes"],
    ]
    assert (
        frame.select(
            expression.all().alias(str(place)) for place, expression in enumerate(ordered)
        ).row(0)
        == (True,) * 10
    )
    first = frame.filter(pl.col("ProducerName") <= "nid000005")
    assert set(first.select(column["fb_used"] + column["fb_free"]).to_series()) == {40960 - 519}
    steps = frame.with_columns(
        since=pl.col("ts_ns").diff().over("ProducerName", "gpu_id") / 1e9,
        gained=column["total_energy_consumption"].diff().over("ProducerName", "gpu_id") / 1e3,
    ).drop_nulls("since")
    assert (
        steps.select(
            (pl.col("gained") - pl.col("since") * column["power_usage"]).abs().max()
        ).item()
        < 2e-3
    )
    assert max((steps["since"] - 60).abs()) < 1e-9
    assert (
        frame.select(
            pl.corr(column["gpu_utilization"].cast(pl.Float64), column["power_usage"])
        ).item()
        > 0.7
    )


def test_defects_are_counted_exactly(small: SimulatedCluster) -> None:
    frame = read(small).with_row_index("row")
    done = {
        str(kind): int(rows["samples"].sum()) for (kind,), rows in small.defects.group_by("kind")
    }
    assert set(done) >= {
        "gap",
        "duplicate",
        "sentinel",
        "clock_skew",
        "energy_reset",
    }
    unique = frame.unique(KEY)
    assert frame.height == small.rows
    assert frame.height - unique.height == done["duplicate"] + done["duplicate_nulls"]
    assert unique.height == small.plan.samples - done["gap"]
    util = f"{PREFIX}gpu_utilization"
    assert unique.filter(pl.col(util) == 4294967295).height == done["util_overflow"]
    assert (
        unique.filter((pl.col(f"{PREFIX}sm_active") - 1.2).abs() < 1e-6).height
        == done["sm_over_one"]
    )
    marks = 0
    for name in frame.columns:
        dtype = frame.schema[name]
        values = unique[name]
        if name.startswith(PREFIX) and dtype == pl.Float32:
            marks += int((values.is_nan() | (values == 140737488355328.0)).sum())
        elif name.startswith(PREFIX):
            marks += int(values.is_in([2147483632, 9223372036854775792]).sum())
    assert marks == done["sentinel"]
    energy = f"{PREFIX}total_energy_consumption"
    in_order = unique.filter(pl.col(energy) < 2**62).sort(KEY)
    falls = in_order.select((pl.col(energy).diff() < 0).over("ProducerName", "gpu_id").sum()).item()
    skewed = set(small.defects.filter(pl.col("kind") == "clock_skew")["node"])
    assert falls >= done["energy_reset"]
    calm = in_order.filter(~pl.col("ProducerName").is_in(skewed))
    resets = small.defects.filter(pl.col("kind") == "energy_reset", ~pl.col("node").is_in(skewed))
    assert (
        calm.select((pl.col(energy).diff() < 0).over("ProducerName", "gpu_id").sum()).item()
        == resets["samples"].sum()
    )


def test_skewed_clock_moves_times_by_its_value(small: SimulatedCluster) -> None:
    frame = read(small)
    found = 0
    for skew in small.defects.filter(pl.col("kind") == "clock_skew").iter_rows(named=True):
        others = small.defects.filter(
            pl.col("node") == skew["node"],
            pl.col("kind").is_in(["gap", "duplicate", "duplicate_nulls", "out_of_order"]),
        )
        if others.height:
            continue
        times = frame.filter(pl.col("ProducerName") == skew["node"], pl.col("gpu_id") == 0)[
            "ts_ns"
        ].to_list()
        steps = [(after - before) / 1e9 for before, after in pairwise(times)]
        odd = [(place, step - 60) for place, step in enumerate(steps) if abs(step - 60) > 1]
        assert [round(apart) for _, apart in odd] == [skew["value"], -skew["value"]]
        assert (odd[1][0] - odd[0][0]) * 4 == skew["samples"]
        found += 1
    assert found > 0


def test_accounting_agrees_with_the_truth(demo: SimulatedCluster) -> None:
    rows = sacct(demo)
    jobs = {
        (row["JobIDRaw"], row["Submit"]): row
        for row in rows
        if "." not in row["JobIDRaw"] and not row["JobID"].endswith("+0")
    }
    recorded = demo.jobs.filter(pl.col("submit") < demo.plan.end)
    assert len(jobs) == recorded.height
    zone = demo.plan.time_zone
    for job in recorded.iter_rows(named=True):
        submit = job["submit"].astimezone(ZoneInfo(zone)).strftime("%Y-%m-%dT%H:%M:%S")
        row = jobs[job["job_id"], submit]
        assert local(row["Start"], zone) == job["start"]
        assert local(row["End"], zone) == job["end"]
        assert row["State"].split()[0] == job["state"]
        assert row["JobID"] == job["display_id"]
        assert row["User"] == job["user"]
        if job["start"] is None:
            assert (row["NodeList"], row["AllocTRES"], row["Elapsed"]) == (
                "None assigned",
                "",
                "00:00:00",
            )
        elif job["gpus"]:
            assert f"gres/gpu={job['gpus']}," in row["AllocTRES"]
            assert int(row["NNodes"]) == len(job["nodes"])
            assert set(NodeSet(row["NodeList"])) == set(job["nodes"])
        if job["end"] is not None and job["start"] is not None:
            assert slurm_duration_s(row["Elapsed"]) == (job["end"] - job["start"]).total_seconds()


def test_map_of_gpus_holds_the_shared_jobs_but_not_all(demo: SimulatedCluster) -> None:
    with demo.gpu_map.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    reported = {(row["job_id"], row["node"], int(row["gpu"]), row["start"]) for row in rows}
    assert len(reported) == len(rows)
    explicit = demo.jobs.filter(pl.col("attribution") == "explicit").select("run")
    true = demo.gpus.join(explicit, on="run", how="semi")
    assert reported == {
        (row["job_id"], row["node"], row["gpu"], row["start"].strftime("%Y-%m-%dT%H:%M:%SZ"))
        for row in true.iter_rows(named=True)
    }
    assert demo.jobs.filter(pl.col("attribution") == "ambiguous").height > 0


def test_progress_is_reported_and_a_folder_in_use_is_not_changed(tmp_path: Path) -> None:
    reported: list[tuple[int, int]] = []
    plan = SimulationPlan(groups=(NodeGroup(1, 2, "A40"),), interval_s=600, days=2, load=0.2)
    simulate(plan, tmp_path / "new", progress=lambda done, total: reported.append((done, total)))
    assert reported == [(288, 576), (576, 576)]
    with pytest.raises(UsageError, match="not an empty folder"):
        simulate(plan, tmp_path / "new")
    (tmp_path / "file").write_text("x")
    with pytest.raises(LakeError, match="Not a directory; name another folder"):
        simulate(plan, tmp_path / "file" / "below")
