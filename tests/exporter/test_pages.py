"""Pages become rows: one per GPU and time, whatever is repeated, renamed or missing in them."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import polars as pl
from hypothesis import assume, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from series_as_pages import reasons

from tachograph.catalog.chunks import ChunkPart
from tachograph.catalog.tables import TABLES
from tachograph.lake.conform import conform
from tachograph.sources.series import SeriesMemory, SeriesVocabulary
from tachograph.sources.series_rows import SeriesRows

T = datetime(2026, 3, 1, 12, tzinfo=UTC)
UTIL = "DCGM_FI_DEV_GPU_UTIL"
POWER = "DCGM_FI_DEV_POWER_USAGE"


def gather(
    page: str, *, node: str | None = "n1", vocabulary: SeriesVocabulary | None = None
) -> dict[str, ChunkPart]:
    """{table: its only part}"""
    gathering = SeriesRows(SeriesMemory(vocabulary or SeriesVocabulary()))
    gathering.add_page(page.encode(), t=T, node=node)
    parts = gathering.parts()
    assert len({part.table for part in parts}) == len(parts)
    return {part.table: part for part in parts}


def rows(part: ChunkPart) -> list[dict[str, Any]]:
    """Rows as they land, without what is null."""
    conformed = conform(part.frame, TABLES[part.table], now=T, units=part.units).frame
    return [
        {name: value for name, value in row.items() if value is not None}
        for row in conformed.to_dicts()
    ]


def test_a_label_may_name_the_step() -> None:
    page = f'{UTIL}{{gpu="0",slurm_job="7",slurm_step="0"}} 50\n{UTIL}{{gpu="1",jobid="9_4"}} 9\n'
    held = {"node": "n1", "start": T, "provenance": "explicit"}
    assert rows(gather(page)["allocations"]) == [
        {"job_id": "7", "step": "0", "gpu": 0, **held},
        {"job_id": "9_4", "gpu": 1, **held},
    ]


def test_a_series_that_differs_between_jobs_is_counted() -> None:
    page = f'{UTIL}{{gpu="0",pod="a"}} 50\n{UTIL}{{gpu="0",pod="b"}} 70\n'
    parts = gather(page)
    assert [row["gpu_util"] for row in rows(parts["gpu_samples"])] == [0.5]
    assert reasons(parts) == {("gpu_samples", "conflicting_value"): 1}


def test_what_labels_and_facts_tell_about_the_device() -> None:
    labels = 'gpu="0",UUID="GPU-a",pci_bus_id="00000000:53:00.0",modelName="NVIDIA H100 80GB HBM3"'
    parts = gather(f"{UTIL}{{{labels}}} 5\nDCGM_FI_DEV_FB_TOTAL{{{labels}}} 81559\n")
    assert rows(parts["devices"]) == [
        {
            "node": "n1", "gpu": 0, "uuid": "GPU-a", "pci": "00000000:53:00.0", "nvml_index": 0,
            "model": "NVIDIA H100 80GB HBM3", "hbm_mib": 81559.0,
        }
    ]  # fmt: skip
    assert parts["devices"].overlaps


def test_the_exporter_of_jobstats_is_read_with_its_jobs() -> None:
    labels = 'minor_number="1",uuid="GPU-a",name="NVIDIA A100-SXM4-80GB"'
    page = (
        f"nvidia_gpu_duty_cycle{{{labels}}} 40\nnvidia_gpu_sm_util_percent{{{labels}}} 0.3\n"
        f"nvidia_gpu_memory_used_bytes{{{labels}}} 1.073741824e+09\n"
        f"nvidia_gpu_memory_total_bytes{{{labels}}} 8.589934592e+10\n"
        f"nvidia_gpu_power_usage_milliwatts{{{labels}}} 250500\nnvidia_gpu_jobId{{{labels}}} "
        "4.5916256e+07\n"
        'nvidia_gpu_jobId{minor_number="0"} 0\n'
    )
    parts = gather(page)
    (row,) = rows(parts["gpu_samples"])
    assert {name: round(value, 3) for name, value in row.items() if isinstance(value, float)} == {
        "gpu_util": 0.4, "sm_active": 0.3, "hbm_used_mib": 1024.0, "power_w": 250.5,
    }  # fmt: skip
    assert [(row["job_id"], row["gpu"]) for row in rows(parts["allocations"])] == [("45916256", 1)]
    assert rows(parts["devices"])[0]["hbm_mib"] == 81920.0


def test_host_counters_are_added_up_per_node() -> None:
    page = (
        'node_uname_info{nodename="n7.example.org",release="6.1"} 1\n'
        'node_cpu_seconds_total{cpu="0",mode="user"} 10.5\nnode_cpu_seconds_total{cpu="1",mode="user"} 20\n'
        'node_cpu_seconds_total{cpu="0",mode="steal"} 99\nnode_cpu_seconds_total{cpu="0",mode="idle"} 5\n'
        'node_network_receive_bytes_total{device="lo"} 1000\nnode_network_receive_bytes_total{device="eth0"} 5\n'
        'node_network_receive_bytes_total{device="eth1"} 7\nnode_memory_MemTotal_bytes 1.048576e+06\nnode_load1 0.5\n'
    )
    parts = gather(page, node="10.0.0.1")
    assert rows(parts["node_samples"]) == [
        {
            "t": T, "node": "n7", "cpu_user_s": 30.5, "cpu_idle_s": 5.0, "network_rx_bytes": 12.0,
            "memory_total_mib": 1.0, "load_average": 0.5,
        }
    ]  # fmt: skip
    assert set(parts) == {"node_samples"}


def test_times_behind_values_come_before_the_time_of_the_scrape() -> None:
    page = f'{UTIL}{{gpu="0"}} 5 1772366400500\n{UTIL}{{gpu="1"}} 6\n{UTIL}{{gpu="2"}} 6 99999999999999999\n'
    parts = gather(page)
    assert {row["gpu"]: row["t"] for row in rows(parts["gpu_samples"])} == {
        0: T.replace(microsecond=500_000),
        1: T,
    }
    assert reasons(parts) == {("gpu_samples", "bad_timestamp"): 1}


def test_what_names_no_gpu_and_no_node_is_counted() -> None:
    page = f'{UTIL}{{Hostname="n1"}} 5\n{UTIL}{{gpu="all"}} 5\n{UTIL}{{gpu="0",nvlink="1"}} 5\n{UTIL}{{gpu="0"}} 5\n'
    parts = gather(page, node=None)
    assert reasons(parts) == {
        ("gpu_samples", "no_gpu"): 1,
        ("gpu_samples", "bad_gpu"): 1,
        ("gpu_samples", "not_a_gpu"): 1,
        ("gpu_samples", "no_node"): 1,
    }
    assert parts["gpu_samples"].frame.is_empty()


metrics = st.sampled_from(
    [UTIL, POWER, "DCGM_FI_DEV_FB_USED", "DCGM_FI_PROF_SM_ACTIVE", "node_load1", "other"]
)
series = st.tuples(
    metrics,
    st.sampled_from(["n1", "n2.example.org", ""]),
    st.sampled_from(["0", "1", "3", ""]),
    st.sampled_from(["", "1", "2"]),
    st.sampled_from(["", "0", "11", "12"]),
    st.integers(0, 100),
)


@given(st.lists(series, max_size=30))
def test_rows_are_what_a_plain_reading_finds(
    lines: list[tuple[str, str, str, str, str, int]],
) -> None:
    """Against prometheus-client and a dictionary, in whatever order the lines come.

    Left out: one index with other values for each of several jobs, which is an index within the
    job.
    """
    seen: dict[tuple[str, ...], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    held: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for metric, host, gpu, mig, job, value in lines:
        seen[host, gpu, mig][metric].add(value)
        held[host, gpu, mig].add(job)
    several = [unit for unit, jobs_of in held.items() if len(jobs_of - {"", "0"}) > 1]
    assume(all(len(values) == 1 for unit in several for values in seen[unit].values()))
    page = ""
    for metric, host, gpu, mig, job, value in lines:
        of_gpu = f'Hostname="{host}",gpu="{gpu}",GPU_I_ID="{mig}",hpc_job="{job}"'
        page += f'{metric}{{{of_gpu},modelName="a, b}} c"}} {value}\n'
    expected: dict[tuple[str, int, int | None], dict[str, float]] = defaultdict(dict)
    jobs: set[tuple[str, str, int, int | None]] = set()
    columns = {
        UTIL: "gpu_util",
        POWER: "power_w",
        "DCGM_FI_DEV_FB_USED": "hbm_used_mib",
        "DCGM_FI_PROF_SM_ACTIVE": "sm_active",
    }
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = sample.labels
            known = sample.name in columns or sample.name == "node_load1"
            if not known or not labels["gpu"]:
                continue
            node = (labels["Hostname"] or "here").partition(".")[0]
            unit = (
                node,
                int(labels["gpu"]),
                int(labels["GPU_I_ID"]) if labels["GPU_I_ID"] else None,
            )
            if labels["hpc_job"] not in ("", "0"):
                jobs.add((labels["hpc_job"], *unit))
            if sample.name in columns:
                expected[unit].setdefault(columns[sample.name], sample.value)
    gathering = SeriesRows(SeriesMemory())
    gathering.add_page(page.encode(), t=T, node="here")
    parts = {part.table: part.frame for part in gathering.parts()}
    found = {
        (row["node"], row["gpu"], row["mig"]): {
            name: value
            for name, value in row.items()
            if value is not None and name not in ("t", "node", "gpu", "mig")
        }
        for row in parts.get("gpu_samples", pl.DataFrame()).to_dicts()
    }
    assert found == dict(expected)
    told = parts.get("allocations", pl.DataFrame()).to_dicts()
    assert {(row["job_id"], row["node"], row["gpu"], row["mig"]) for row in told} == jobs
