"""Pages become rows: one per GPU and time, whatever is repeated, renamed or missing in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime

import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from series_as_pages import page_lines
from syrupy.assertion import SnapshotAssertion

from tachograph.sources.series import SeriesMemory
from tachograph.sources.series_rows import SeriesRows

OF_H100 = 'gpu="0",UUID="GPU-a",pci_bus_id="00000000:53:00.0",modelName="NVIDIA H100 80GB HBM3"'
OF_A100 = 'minor_number="1",uuid="GPU-a",name="NVIDIA A100-SXM4-80GB"'
T = datetime(2026, 3, 1, 12, tzinfo=UTC)
UTIL = "DCGM_FI_DEV_GPU_UTIL"
POWER = "DCGM_FI_DEV_POWER_USAGE"


# {what: (page, node)}
PAGES: Mapping[str, tuple[str, str | None]] = {
    "labels that name the step": (
        f'{UTIL}{{gpu="0",slurm_job="7",slurm_step="0"}} 50\n{UTIL}{{gpu="1",jobid="9_4"}} 9\n', "n1"
    ),
    "a series that differs between jobs": (
        f'{UTIL}{{gpu="0",pod="a"}} 50\n{UTIL}{{gpu="0",pod="b"}} 70\n', "n1"
    ),
    "labels and facts of a device": (
        f"{UTIL}{{{OF_H100}}} 5\nDCGM_FI_DEV_FB_TOTAL{{{OF_H100}}} 81559\n", "n1"
    ),
    "jobstats": (
        (f"nvidia_gpu_duty_cycle{{{OF_A100}}} 40\nnvidia_gpu_sm_util_percent{{{OF_A100}}} 0.3\n"
        f"nvidia_gpu_memory_used_bytes{{{OF_A100}}} 1.073741824e+09\n"
        f"nvidia_gpu_memory_total_bytes{{{OF_A100}}} 8.589934592e+10\n"
        f"nvidia_gpu_power_usage_milliwatts{{{OF_A100}}} 250500\n"
        f"nvidia_gpu_jobId{{{OF_A100}}} 4.5916256e+07\n"
        'nvidia_gpu_jobId{minor_number="0"} 0\n'), "n1"
    ),
    "host counters": (
        ('node_uname_info{nodename="n7.example.org",release="6.1"} 1\n'
        'node_cpu_seconds_total{cpu="0",mode="user"} 10.5\nnode_cpu_seconds_total{cpu="1",mode="user"} 20\n'
        'node_cpu_seconds_total{cpu="0",mode="steal"} 99\nnode_cpu_seconds_total{cpu="0",mode="idle"} 5\n'
        'node_network_receive_bytes_total{device="lo"} 1000\nnode_network_receive_bytes_total{device="eth0"} 5\n'
        'node_network_receive_bytes_total{device="eth1"} 7\nnode_memory_MemTotal_bytes 1.048576e+06\nnode_load1 0.5\n'),
        "10.0.0.1",
    ),
    "times behind values": (
        f'{UTIL}{{gpu="0"}} 5 1772366400500\n{UTIL}{{gpu="1"}} 6\n{UTIL}{{gpu="2"}} 6 99999999999999999\n',
        "n1",
    ),
    "what names no GPU and no node": (
        f'{UTIL}{{Hostname="n1"}} 5\n{UTIL}{{gpu="all"}} 5\n{UTIL}{{gpu="0",nvlink="1"}} 5\n{UTIL}{{gpu="0"}} 5\n',
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", PAGES)
def test_pages_become_rows(what: str, snapshot: SnapshotAssertion) -> None:
    page, node = PAGES[what]
    assert page_lines(page, node=node) == snapshot


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
