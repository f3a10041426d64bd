"""Twelve jobs through the command line, every number of interest by plain arithmetic."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from twelve_jobs import write_all

from in_process import run_here
from tachograph.catalog.counters import COUNTER_NAMES
from tachograph.catalog.tables import JOB_SUMMARIES, PIPES, RATE_VOLUMES
from tachograph.cli import main
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries

AS_OF = "2025-04-23T11:08"  # job 113 began at 11:00
CONTRACT = {
    *(
        "job_id",
        "user",
        "account",
        "partition",
        "state",
        "start",
        "end",
        "elapsed_s",
        "nodes",
        "gpus",
        "gpu_hours",
    ),
    *(
        "attribution",
        "coverage",
        "spatial_imbalance",
        "temporal_imbalance",
        "bound",
        "compute_fraction",
    ),
    *(
        "memory_fraction",
        "idle_fraction",
        "pipes",
        "hbm_peak_fraction",
        "energy_j",
        "energy_j_estimated",
        "power_w_mean",
    ),
    *("gpus_never_used", "zero_util_fraction"),
    *(f"{name}_{statistic}" for name in COUNTER_NAMES for statistic in ("mean", "max")),
}

Run = Callable[..., str]


def runner(folder: Path) -> Run:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("TACHOGRAPH")
    }

    def tachograph(*arguments: str) -> str:
        done = run_here(arguments, folder, environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return tachograph


def ingest_and_analyze(tachograph: Run, folder: Path) -> Run:
    write_all(folder)
    tachograph("ingest", "ldms", "telemetry")
    tachograph("ingest", "sacct", "sacct.txt", "--trusted")
    tachograph("ingest", "allocation-map", "map.csv")
    tachograph("analyze", "--as-of", AS_OF)
    return tachograph


@pytest.fixture(scope="module")
def tachograph(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("twelve")
    return ingest_and_analyze(runner(folder), folder)


@pytest.fixture(scope="module")
def rows(tachograph: Run) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(tachograph("jobs", "--json", "--sort", "start"))
    return found


@pytest.fixture(scope="module")
def jobs(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of the requeued job the last run."""
    return {row["job_id"]: row for row in rows}


def near(value: float) -> Any:
    """Samples are single precision."""
    return pytest.approx(value, rel=1e-6, abs=1e-9)


def check(row: dict[str, Any], **expected: Any) -> None:
    wrong = {
        name: (row[name], value)
        for name, value in expected.items()
        if row[name] != (near(value) if isinstance(value, float) else value)
    }
    assert wrong == {}


def test_every_run_is_there_once(rows: list[dict[str, Any]]) -> None:
    assert sorted(row["job_id"] for row in rows) == sorted([*map(str, range(101, 114)), "112"])


# Columns of `jobs` that summaries do not have.
OF_THE_TABLE = {"findings", "worst_severity", "gpu_hours_lost"}


def test_contract_names(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert set(row) >= CONTRACT
        assert set(row) == set(JOB_SUMMARIES.schema) - {"seq"} | OF_THE_TABLE


G = range(4)
# what each GPU g of job 101 shows throughout
BALANCED: dict[str, list[float]] = {
    "gpu_util": [80 / 100] * 4,
    "sm_active": [0.5 + 0.05 * g for g in G],
    "sm_occupancy": [0.3 + 0.05 * g for g in G],
    "gr_engine_active": [0.9 - 0.1 * g for g in G],
    "fp16_active": [0.01 * g for g in G],
    "fp32_active": [0.02 * (g + 1) for g in G],
    "fp64_active": [0.1 + 0.1 * g for g in G],
    "tensor_active": [0.05 * g for g in G],
    "tensor_hmma_active": [0.04 * g for g in G],
    "tensor_imma_active": [0.01] * 4,
    "tensor_dfma_active": [0.02] * 4,
    "dram_active": [0.2 + 0.1 * g for g in G],
    "mem_copy_util": [(30 + g) / 100 for g in G],
    "hbm_used_mib": [10_000.0 + 1000 * g for g in G],
    "hbm_free_mib": [30_000.0 - 1000 * g for g in G],
    "pcie_tx_bytes_per_s": [1e9 * (g + 1) for g in G],
    "pcie_rx_bytes_per_s": [2e9] * 4,
    "nvlink_tx_bytes_per_s": [3e9 * g for g in G],
    "nvlink_rx_bytes_per_s": [4e9] * 4,
    "power_w": [200.0 + 50 * g for g in G],
    "gpu_temp_c": [60.0 + g for g in G],
    "mem_temp_c": [70.0 + g for g in G],
    "sm_clock_mhz": [1410.0 - 10 * g for g in G],
    "mem_clock_mhz": [1215.0] * 4,
    # cumulative: what each GPU's counter has grown by between its first and its last sample, 590 s
    # apart
    "energy_j": [(200.0 + 50 * g) * 590 for g in G],
    "pcie_replays": [9.0 * g for g in G],
    "remapped_rows_uncorrectable": [0.0] * 4,
    "remapped_rows_correctable": [0.0] * 4,
    "row_remap_failure": [0.0] * 4,
}


def test_balanced_every_counter(jobs: dict[str, dict[str, Any]]) -> None:
    """Job 101: mean over GPUs of means over time, maximum of all samples, for every counter
    there is.
    """
    row = jobs["101"]
    expected: dict[str, float | None] = {}
    for name, of_gpu in BALANCED.items():
        expected[f"{name}_mean"], expected[f"{name}_max"] = mean(of_gpu), max(of_gpu)
    # GPU 3 was held by its power cap (bit 4) for 15 of its 60 samples
    expected |= {"throttle_reasons_mean": 15 / 60 / 4, "throttle_reasons_max": 4.0}
    # GPU 1 met XID 79 after half its time
    expected |= {"xid_mean": None, "xid_max": 79.0}
    unmeasured = {
        f"{name}_{statistic}" for name in COUNTER_NAMES for statistic in ("mean", "max")
    } - set(expected)
    assert {row[name] for name in unmeasured} <= {None}
    check(row, **expected, power_w_sampled_mean=mean(BALANCED["power_w"]), xid_events=1)


def test_balanced_the_rest(jobs: dict[str, dict[str, Any]]) -> None:
    watts = [200 + 50 * g for g in G]
    check(
        jobs["101"],
        job_id="101", display_id="101", cluster="alps", user="anna", account="m1", partition="regular", qos="normal",
        state="COMPLETED", submit="2025-04-23T16:55:00+00:00", start="2025-04-23T17:00:00+00:00",
        end="2025-04-23T17:10:00+00:00", elapsed_s=600.0, nodes=1, gpus=4, gpus_seen=4, gpu_hours=4 * 600 / 3600,
        attribution="whole_node", coverage=1.0, samples=4 * 60, interval_s=10.0, as_of="2025-04-23T17:10:00+00:00",
        gpu_model="A100 SXM 40GB", hbm_mib=40 * 1024.0, excluded=None, time_precision_s=0.0,
        spatial_imbalance=0.0, spatial_windows=10, spatial_zero_fraction=0.0, temporal_imbalance=0.0,
        spatial_imbalance_gr_engine_active=1 - (0.9 + 0.8 + 0.7 + 0.6) / (4 * 0.9),
        temporal_imbalance_gr_engine_active=0.0,
        # FP64 at 0.1 + 0.1 g beside memory at 0.2 + 0.1 g; the other pipes are lower still
        bound="memory", compute_fraction=0.0, memory_fraction=1.0, idle_fraction=0.0,
        bound_fp32="memory", compute_fraction_fp32=0.0, memory_fraction_fp32=1.0, idle_fraction_fp32=0.0,
        bound_fp16="memory", compute_fraction_fp16=0.0, memory_fraction_fp16=1.0, idle_fraction_fp16=0.0,
        bound_tensor="memory", compute_fraction_tensor=0.0, memory_fraction_tensor=1.0, idle_fraction_tensor=0.0,
        pipes=list(PIPES), hbm_peak_fraction=13_000 / 40_960,
        energy_j=float(sum(watts) * 590), energy_j_estimated=float(sum(watts) * 600),
        energy_source="counter", energy_gpus=4, power_w_mean=float(mean(watts)),
        gpus_never_used=0, zero_util_fraction=0.0,
        # between 60 samples lie 590 s
        pcie_tx_bytes=1e9 * (1 + 2 + 3 + 4) * 590, pcie_rx_bytes=2e9 * 4 * 590,
        nvlink_tx_bytes=3e9 * (0 + 1 + 2 + 3) * 590, nvlink_rx_bytes=4e9 * 4 * 590,
    )  # fmt: skip
    assert len(RATE_VOLUMES) == 4


def test_balanced_arithmetic_intensities(jobs: dict[str, dict[str, Any]]) -> None:
    """FP64 over memory is 1/2, 2/3, 3/4, 4/5 on the four GPUs, times the ridge of 9.7 TFLOP/s
    over 1.555 TB/s.
    """
    histogram = jobs["101"]["intensity_histogram"]
    assert len(histogram) == 4 * 32
    edges = [10 ** (-3 + 0.2 * k) for k in range(31)]
    wanted = [0] * 32
    for ratio in (0.1 / 0.2, 0.2 / 0.3, 0.3 / 0.4, 0.4 / 0.5):
        wanted[sum(ratio * 9.7 / 1.555 >= edge for edge in edges)] += 60
    assert histogram[:32] == wanted
    assert sum(histogram[64:96]) == 3 * 60  # GPU 0 does no FP16


def test_one_of_four(jobs: dict[str, dict[str, Any]]) -> None:
    check(
        jobs["102"], gpu_util_mean=0.5 / 4, gpu_util_max=0.5, spatial_imbalance=1 - 1 / 4, temporal_imbalance=0.0,
        gpus_never_used=3, zero_util_fraction=3 / 4, energy_j=(300 + 3 * 60) * 590.0, power_w_mean=(300 + 3 * 60) / 4,
    )  # fmt: skip


def test_imbalanced_on_and_off(jobs: dict[str, dict[str, Any]]) -> None:
    """Five windows with 1, 1, .4, .4 and five with 0, 0, .4, .4; GPU 0 is on for half its time."""
    first, second = 1 - (1 + 1 + 0.4 + 0.4) / (4 * 1), 1 - (0.4 + 0.4) / (4 * 0.4)
    check(
        jobs["103"], gpu_util_mean=(0.5 + 0.5 + 0.4 + 0.4) / 4, spatial_imbalance=(5 * first + 5 * second) / 10,
        temporal_imbalance=1 - 0.5, gpus_never_used=0, zero_util_fraction=(30 + 30) / 240,
    )  # fmt: skip


def test_idle(jobs: dict[str, dict[str, Any]]) -> None:
    check(
        jobs["104"], gpu_util_mean=0.0, gpu_util_max=0.0, spatial_imbalance=None, temporal_imbalance=None,
        spatial_zero_fraction=1.0, gpus_never_used=4, zero_util_fraction=1.0, excluded="idle", bound=None,
        compute_fraction=None, memory_fraction=None, idle_fraction=1.0, pipes=[], hbm_used_mib_max=1694.0,
        hbm_peak_fraction=1694 / 40_960, energy_j=4 * 60 * 590.0, coverage=1.0,
    )  # fmt: skip


def test_cold_start(jobs: dict[str, dict[str, Any]]) -> None:
    """Windows at zero are left out of spatial imbalance, and counted beside it."""
    check(
        jobs["105"], gpu_util_mean=0.2 / 2, spatial_imbalance=0.0, spatial_zero_fraction=5 / 10,
        temporal_imbalance=1 - 30 / 60, zero_util_fraction=1 / 2, gpus_never_used=0,
    )  # fmt: skip


def test_memory_bound(jobs: dict[str, dict[str, Any]]) -> None:
    check(
        jobs["106"], bound="memory", compute_fraction=20 / 60, memory_fraction=40 / 60, idle_fraction=0.0,
        fp64_active_mean=(20 * 0.7 + 40 * 0.1) / 60, fp64_active_max=0.7, dram_active_mean=0.6, pipes=["fp64"],
    )  # fmt: skip


def test_compute_bound_with_half_its_samples(jobs: dict[str, dict[str, Any]]) -> None:
    """The counter spans 290 s of 600: that is measured, and scaled to the run an estimate."""
    check(
        jobs["107"], bound="compute", compute_fraction=1.0, memory_fraction=0.0, pipes=["fp64"], coverage=30 / 60,
        samples=4 * 30, energy_j_mean=60 * 290.0, energy_j=4 * 60 * 290.0,
        energy_j_estimated=4 * 60 * 600.0,
    )  # fmt: skip


def test_tensor(jobs: dict[str, dict[str, Any]]) -> None:
    """For the FP64 pipe the samples are memory-bound: it rests while memory and another pipe
    work.
    """
    check(
        jobs["108"], bound_tensor="compute", compute_fraction_tensor=1.0, bound="memory", memory_fraction=1.0,
        pipes=["tensor"], tensor_hmma_active_mean=0.5, tensor_dfma_active_mean=0.0, idle_fraction_tensor=0.0,
    )  # fmt: skip


def test_shared_node_with_and_without_a_map(jobs: dict[str, dict[str, Any]]) -> None:
    check(
        jobs["109"], attribution="explicit", gpus=1, gpus_seen=1, samples=60, gpu_util_mean=0.7, coverage=1.0,
        spatial_imbalance=None, temporal_imbalance=0.0,
    )  # fmt: skip
    check(
        jobs["110"],
        attribution="ambiguous",
        gpus=1,
        gpu_hours=600 / 3600,
        excluded="ambiguous_attribution",
    )
    row = jobs["110"]
    measured = {
        name
        for name in row
        if name.endswith(("_mean", "_max", "_bytes", "imbalance")) or "fraction" in name
    }
    assert len(measured) > 80
    assert {name: row[name] for name in measured if row[name] is not None} == {}
    assert [
        row[name] for name in ("samples", "coverage", "energy_j", "pipes", "gpus_never_used")
    ] == [None] * 5


def test_two_nodes_over_midnight(jobs: dict[str, dict[str, Any]]) -> None:
    """120 samples, 119 steps. Two counters start again, one of them at midnight, and lose a step
    of 10 s.
    """
    whole, lost = 100 * 10 * 119, 100 * 10 * 118
    check(
        jobs["111"], nodes=2, gpus=8, gpus_seen=8, samples=8 * 120, gpu_util_mean=(0.6 + 0.3) / 2,
        spatial_imbalance=1 - (4 * 0.6 + 4 * 0.3) / (8 * 0.6), spatial_windows=20, coverage=1.0,
        gpu_hours=8 * 1200 / 3600, energy_j_mean=(4 * 300 * 10 * 119 + 2 * whole + 2 * lost) / 8,
        energy_j_max=300.0 * 10 * 119, energy_j=4 * 300 * 10 * 119 + 2 * whole + 2 * lost,
        energy_j_estimated=(4 * 300 * 10 * 119 + 2 * whole + 2 * lost) * 1200 / 1190,
        end="2025-04-24T00:10:00+00:00", attribution="whole_node",
    )  # fmt: skip


def test_requeued(tachograph: Run, rows: list[dict[str, Any]]) -> None:
    runs = [row for row in rows if row["job_id"] == "112"]
    check(
        runs[0], state="NODE_FAIL", elapsed_s=300.0, gpu_util_mean=0.9, samples=4 * 30, coverage=1.0
    )
    check(
        runs[1], state="COMPLETED", elapsed_s=600.0, gpu_util_mean=0.1, samples=4 * 60, coverage=1.0
    )
    last, first = (
        json.loads(tachograph("job", "112", "--json", *more)) for more in ((), ("--run", "1"))
    )
    assert last["gpu_util_mean"] == near(0.1)
    assert first["gpu_util_mean"] == near(0.9)
    assert last["other_runs"] == [first["job_key"]]


def test_running_job_as_of(jobs: dict[str, dict[str, Any]]) -> None:
    """Looked at after eight minutes; its telemetry goes on, and does not count yet."""
    check(
        jobs["113"], state="RUNNING", end=None, as_of="2025-04-23T18:08:00+00:00", elapsed_s=480.0, samples=4 * 48,
        gpu_hours=4 * 480 / 3600, coverage=1.0, gpu_util_mean=0.55, excluded="still_running",
    )  # fmt: skip


def test_page_of_a_job_has_the_numbers_of_the_table(
    tachograph: Run, rows: list[dict[str, Any]]
) -> None:
    for row in (rows[0], rows[-1]):
        page = json.loads(tachograph("job", row["display_id"], "--json"))
        codes = row["findings"]
        assert {name: page[name] for name in row.keys() - OF_THE_TABLE} == {
            name: value for name, value in row.items() if name not in OF_THE_TABLE
        }
        severities = [finding["severity"] for finding in page["findings"]]
        assert row["worst_severity"] == (severities[0] if severities else None)
        assert [finding["code"] for finding in page["findings"]] == codes
        assert sorted(page["evidence"]) == sorted(codes)
        assert sum(gpu["samples"] for gpu in page["per_gpu"]) == row["samples"]


def test_findings(tachograph: Run) -> None:
    page = json.loads(tachograph("job", "102", "--json"))
    assert "one_gpu_of_many" in page["evidence"]
    page = json.loads(tachograph("job", "110", "--json"))
    assert list(page["evidence"]) == ["ambiguous_attribution"]


def sequence(folder: Path) -> dict[str, int]:
    """{job_key: number of the analysis its summary is of}"""
    return dict(
        read_summaries(Lake.open(str(folder / "tachograph-lake")))
        .select("job_key", "seq")
        .iter_rows()
    )


def changed(before: dict[str, int], after: dict[str, int]) -> set[str]:
    """Ids of the jobs whose summary is new."""
    return {key.split(":")[1] for key in after if before.get(key) != after[key]}


@pytest.mark.slow
def test_only_touched_jobs_are_summarized_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing new: nothing; late samples of one job: that one; a map for one of two on a node:
    at most both.
    """
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TACHOGRAPH")]:
        monkeypatch.delenv(name)

    def tachograph(*arguments: str) -> str:
        assert main(list(arguments)) == 0
        return capsys.readouterr().out

    ingest_and_analyze(tachograph, tmp_path)
    first = sequence(tmp_path)
    table = tachograph("jobs", "--json")
    assert len(first) == 14
    tachograph("analyze", "--as-of", AS_OF)
    tachograph("ingest", "ldms", "telemetry")
    tachograph("ingest", "sacct", "sacct.txt", "--trusted")
    assert "nothing new" in tachograph("analyze", "--as-of", AS_OF)
    assert sequence(tmp_path) == first
    assert tachograph("jobs", "--json") == table
    tachograph("ingest", "ldms", "late.csv")
    tachograph("analyze", "--as-of", AS_OF)
    second = sequence(tmp_path)
    assert changed(first, second) == {"107"}
    row = json.loads(tachograph("job", "107", "--json"))
    check(row, coverage=1.0, samples=4 * 60, energy_j_mean=60 * 590.0, compute_fraction=1.0)
    (tmp_path / "second.csv").write_text("job_id,node,gpu\n110,n04,3\n")
    tachograph("ingest", "allocation-map", "second.csv")
    tachograph("analyze", "--as-of", AS_OF)
    third = sequence(tmp_path)
    assert "110" in changed(second, third) <= {"109", "110"}
    check(
        json.loads(tachograph("job", "110", "--json")),
        attribution="explicit",
        gpu_util_mean=0.3,
        samples=60,
    )
    tachograph("analyze", "--full", "--as-of", AS_OF)
    assert changed(third, sequence(tmp_path)) == {key.split(":")[1] for key in first}
    left, right = (
        {row["job_key"]: row for row in json.loads(text)}
        for text in (table, tachograph("jobs", "--json"))
    )
    assert {key for key in left if left[key] != right[key]} == {
        key for key in left if key.split(":")[1] in ("107", "110")
    }
