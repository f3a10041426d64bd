"""Verdicts on recorded jobs of a real system: every verdict here was read beside the recording
by a person.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from statistics import mean
from typing import Any

import polars as pl
import pytest

from tachograph.catalog.config import RuleOptions
from tachograph.catalog.devices import match_device
from tachograph.cli import main
from tachograph.judge.health import HealthReading, health_of, limits_of
from tachograph.judge.job_classes import CLASS_CODES
from tachograph.judge.rules.ruleset import read_rules
from tachograph.judge.workload.rules import GpuReading, classify
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_findings, read_gpus, read_summaries, read_verdicts

pytestmark = pytest.mark.recorded

LATE = "46599456"
# jobs that had whole nodes to themselves: seconds, GPUs, what is worth knowing of them
WHOLE = {
    "51566986": (15.0, 16, {"low_utilisation"}),  # one sample of two
    "51569946": (14.0, 16, {"idle_job"}),
    "51570026": (18.0, 8, {"idle_job"}),
    "51613962": (13.0, 8, {"idle_job"}),
    "51911473": (138.0, 8, {"idle_job"}),
}
# jobs on a part of a node, of which all GPUs were exported
PART = ("51567294", "51569945", "51906088")
RULES = [entry.code for entry in read_rules(RuleOptions()).entries]
SITE = """
lake = "{lake}"
[site]
time_zone = "America/Los_Angeles"
[slurm]
exclusive = ["gpu_regular*", "regular*", "debug*", "gpu*"]
shared = {shared}
"""


def judged(folder: Path, recorded: Path, *, shared: str) -> Lake:
    """The lake of the recorded jobs, as commands make it."""
    nersc = recorded / "nersc_perlmutter"
    settings = folder / "site.toml"
    settings.write_text(SITE.format(lake=folder / "lake", shared=shared), encoding="utf-8")
    means = [str(nersc / "metrics-data.json"), "--job-start", f"{LATE}=2025-12-16T17:30"]
    for arguments in (
        ["ingest", "ldms", *map(str, sorted(nersc.glob("job_5*.json")))],
        ["ingest", "ldms", *means],
        ["ingest", "sacct", str(nersc / "user-jobs.json")],
        ["ingest", "sacct", str(nersc / "job-data-iris-export.json")],
        ["analyze", "--as-of", "2026-11-01T00:00:00Z"],
    ):
        assert main([*arguments, "--config", str(settings), "--quiet"]) == 0
    return Lake.open(str(folder / "lake"))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, recorded: Path) -> Lake:
    """The site as it is: QOS gpu_shared gives a part of a node."""
    return judged(tmp_path_factory.mktemp("nersc"), recorded, shared='["*shared*"]')


@pytest.fixture(scope="module")
def jobs(lake: Lake) -> dict[str, dict[str, Any]]:
    return {row["job_id"]: row for row in read_summaries(lake).iter_rows(named=True)}


@pytest.fixture(scope="module")
def found(lake: Lake) -> dict[str, dict[str, dict[str, Any]]]:
    """{job: {code: finding}}."""
    findings: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in read_verdicts(lake, read_summaries(lake)).iter_rows(named=True):
        findings[row["job_id"]][row["code"]] = row
    return findings


def verdicts(findings: dict[str, dict[str, Any]], codes: Collection[str]) -> dict[str, str]:
    return {code: row["verdict"] for code, row in findings.items() if code in codes}


def worth_knowing(lake: Lake, job_id: str) -> set[str]:
    rows = read_findings(lake, read_summaries(lake))
    return set(rows.filter(pl.col("job_id") == job_id).get_column("code"))


def test_the_jobs_with_samples_are_judged(jobs: dict[str, dict[str, Any]]) -> None:
    """The accounting holds more jobs of that user, of which no samples were exported, some of
    them without nodes.
    """
    sampled = {LATE, *WHOLE, *PART}
    assert sampled < set(jobs)
    assert {jobs[job]["attribution"] for job in set(jobs) - sampled} == {"ambiguous"}
    assert {jobs[job]["samples"] for job in set(jobs) - sampled} == {None}


@pytest.fixture(scope="module")
def utilisation(recorded: Path) -> dict[int, float]:
    """{second: utilisation} of the job that began late, as recorded."""
    rows = json.loads((recorded / "nersc_perlmutter" / "metrics-data.json").read_text())[LATE]
    return {
        row["Floored Relative Time"]: row["nersc_ldms_dcgm_gpu_utilization"] / 100 for row in rows
    }


def test_a_job_that_began_late(
    found: dict[str, dict[str, dict[str, Any]]], utilisation: dict[int, float]
) -> None:
    """Nothing at all for 870 s; then it starts up under 1 %, and from 960 s on it works at about
    20 %.
    """
    assert min(second for second, value in utilisation.items() if value > 0) == 870
    per_minute: dict[int, list[float]] = defaultdict(list)
    for second, value in utilisation.items():
        per_minute[second // 60].append(value)
    first = min(minute for minute, values in per_minute.items() if mean(values) >= 0.01)
    late = found[LATE]["cold_start"]
    assert (late["verdict"], late["confidence"]) == ("yes", "low")  # less than the published hour
    assert late["sentence"] == (
        f"No GPU worked in the first {first} min, 64 % of the run. 0.3 GPU-h passed without work."
    )
    assert json.loads(late["evidence"])["gpu_hours_idle"] == pytest.approx(16 / 60)
    assert json.loads(late["evidence"])["interval_s"] == first * 60 == 960


def test_what_is_said_of_the_job_that_began_late(
    lake: Lake, found: dict[str, dict[str, dict[str, Any]]]
) -> None:
    findings = found[LATE]
    assert worth_knowing(lake, LATE) == {"cold_start"}
    classes = dict.fromkeys(("job_hang", "stall", "stable"), "no")
    assert verdicts(findings, CLASS_CODES) == classes | {"cold_start": "yes"}
    assert verdicts(findings, ("score_gpu", "score_gpumem")) == {
        "score_gpu": "yes",
        "score_gpumem": "no",
    }
    assert findings["workload"]["verdict"] == findings["health"]["verdict"] == "unknown"
    # "no I/O" is part of idle.
    assert findings["workload"]["needs"] == ["pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"]
    assert findings["low_utilisation"]["covered_by"] == "cold_start"


def test_scores_are_of_the_means_of_the_samples(
    jobs: dict[str, dict[str, Any]], recorded: Path
) -> None:
    rows = json.loads((recorded / "nersc_perlmutter" / "metrics-data.json").read_text())[LATE]
    occupancy, sm, dram = (
        mean(row[f"nersc_ldms_dcgm_{name}"] for row in rows)
        for name in ("sm_occupancy", "sm_active", "dram_active")
    )
    assert jobs[LATE]["score_gpu"] == pytest.approx(100 * (1 - occupancy), abs=1e-4)
    assert jobs[LATE]["score_gpumem"] == pytest.approx(100 * dram / (dram + sm), rel=1e-4)


@pytest.mark.parametrize("job_id", WHOLE)
def test_jobs_that_left_their_gpus_unused(
    job_id: str,
    lake: Lake,
    jobs: dict[str, dict[str, Any]],
    found: dict[str, dict[str, dict[str, Any]]],
) -> None:
    seconds, gpus, known = WHOLE[job_id]
    assert (jobs[job_id]["elapsed_s"], jobs[job_id]["gpus"]) == (seconds, gpus)
    assert worth_knowing(lake, job_id) == known
    findings = verdicts(found[job_id], (*CLASS_CODES, "load_imbalance_waste"))
    # They ran for seconds.
    assert {findings.pop(code) for code in ("job_hang", "cold_start", "stall")} == {"no"}
    # DRAM and PCIe alone.
    assert findings == dict.fromkeys(("idle_nodes", "load_imbalance_waste", "stable"), "unknown")
    for code in ("score_gpu", "score_gpumem", "workload", "health"):
        assert found[job_id][code]["verdict"] == "unknown"
        assert found[job_id][code]["needs"]
    imbalance = {
        code for code, row in found[job_id].items() if row["verdict"] == "yes" and code in RULES
    }
    assert not imbalance - {"load_imbalance_spread", "load_imbalance_two_sided"}
    # A more specific one is reported.
    assert all(found[job_id][code]["covered_by"] for code in imbalance)


@pytest.mark.parametrize("job_id", PART)
def test_of_jobs_on_a_part_of_a_node_nothing_is_said_of_gpus(
    job_id: str, lake: Lake, found: dict[str, dict[str, dict[str, Any]]]
) -> None:
    assert worth_knowing(lake, job_id) == {"ambiguous_attribution"}
    findings = dict.fromkeys(("job_hang", "cold_start", "stall", "stable"), "unknown")
    assert verdicts(found[job_id], CLASS_CODES) == findings
    for code in (
        "score_gpu",
        "score_gpumem",
        "workload",
        "health",
        "one_gpu_of_many",
        "gpus_never_used",
    ):
        assert found[job_id][code]["verdict"] == "unknown"


@pytest.mark.slow
def test_taken_for_whole_nodes_they_used_one_gpu_or_some(tmp_path: Path, recorded: Path) -> None:
    """What a site gets that calls a shared QOS exclusive: GPUs of others are taken for unused
    ones.
    """
    lake = judged(tmp_path, recorded, shared="[]")
    reported = {job_id: worth_knowing(lake, job_id) for job_id in PART}
    assert reported == {
        "51567294": {"gpus_never_used"},
        "51569945": {"idle_job"},
        # samples of one more are missing: it may have worked, too
        "51906088": {"gpus_never_used"},
    }
    rules = read_verdicts(lake, read_summaries(lake), pl.col("code").is_in(RULES))
    rules = rules.filter(verdict="yes", job_id="51906088")
    assert "load_imbalance_waste" in set(rules.get_column("code"))
    assert rules.get_column("covered_by").unique().to_list() == ["gpus_never_used"]


def test_the_ledger_takes_each_gpu_hour_once(lake: Lake, jobs: dict[str, dict[str, Any]]) -> None:
    """The late job: 16 minutes without work; the others: GPUs that stayed under 1 % in every
    sample.
    """
    late = jobs[LATE]
    assert late["gpu_hours_idle"] == pytest.approx(16 / 60)
    assert [
        late[f"gpu_hours_{cause}"] for cause in ("never_used", "hung", "cold_start", "imbalance")
    ] == [0, 0, 0, 0]
    gpus = read_gpus(lake, read_summaries(lake))
    for job_id in WHOLE:
        row = jobs[job_id]
        mine = gpus.filter(job_id=job_id).get_column("gr_engine_active_max")
        never = mine.filter(mine < 0.01).len()
        unused = never * row["elapsed_s"] / 3600
        assert row["gpu_hours_never_used"] + row["gpu_hours_unmeasured"] >= unused - 1e-9
        assert 0 < row["gpu_hours_never_used"] <= unused + 1e-9
        lost = sum(
            row[f"gpu_hours_{cause}"]
            for cause in ("never_used", "hung", "cold_start", "idle", "imbalance")
        )
        assert lost + row["gpu_hours_unmeasured"] <= row["gpu_hours"] + 1e-9
        assert row["energy_j_never_used"] is None


def test_one_moment_of_sixteen_gpus_tells_no_class_and_no_health(recorded: Path) -> None:
    """One of them holds 74,166 MiB at 113.6 W and 0 %: that is not idle; its class is
    undetermined.
    """
    folder = recorded / "prometheus_h100"
    gpus: dict[str, dict[str, float]] = defaultdict(dict)
    for name in ("GPU_UTIL", "POWER_USAGE", "FB_USED", "GPU_TEMP"):
        answer = json.loads((folder / f"query_DCGM_FI_DEV_{name}.json").read_text())
        for result in answer["data"]["result"]:
            assert match_device(result["metric"]["modelName"])
            gpus[result["metric"]["UUID"]][name] = float(result["value"][1])
    assert len(gpus) == 16
    limits = limits_of("NVIDIA H100 80GB HBM3")
    for values in gpus.values():
        label = classify(GpuReading(gpu_util=values["GPU_UTIL"] / 100))
        assert (label.name, label.real_utilisation) == ("unknown", None)
        assert {"sm_active", "dram_active", "pcie_tx_bytes_per_s"} <= set(label.needs)
        health = health_of(HealthReading(gpu_temp_c=values["GPU_TEMP"]), limits)
        assert health.state == "unknown"
        assert "gpu_temp_c" not in health.needs
        assert {"row_remap_failure", "pcie_replays"} <= set(health.needs)
