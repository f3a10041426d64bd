"""all-smi, CEEMS and Intel's XPU Manager: their labels name GPUs, slices, tiles and jobs."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from in_process import run_here
from tachograph.catalog.devices import match_device
from tachograph.catalog.tables import ALLOCATIONS
from tachograph.lake.delta import Lake
from tachograph.sources.series import SeriesMemory, SeriesVocabulary
from tachograph.sources.series_rows import SeriesRows

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
H200 = 'gpu="NVIDIA H200 141GB HBM3", instance="node-0058"'
FIRST = f'{H200}, gpu_uuid="GPU-1", gpu_index="0"'
SLICE = 'mig_instance="0",mig_uuid="MIG-1",mig_profile="1g.18gb",gpu_instance_id="7",compute_instance_id="0"'
ALL_SMI = f"""\
# HELP all_smi_gpu_utilization GPU utilization percentage
# TYPE all_smi_gpu_utilization gauge
all_smi_gpu_utilization{{{FIRST}}} 25.5
all_smi_gpu_utilization{{{H200}, uuid="GPU-2", index="1"}} 30
all_smi_gpu_memory_used_bytes{{{FIRST}}} 1073741824
all_smi_gpu_memory_total_bytes{{{FIRST}}} 150754820096
all_smi_gpu_power_consumption_watts{{{FIRST}}} 321.5
all_smi_gpu_temperature_celsius{{{FIRST}}} 41
all_smi_gpu_frequency_mhz{{{FIRST}}} 1980
all_smi_gpu_sm_occupancy{{{FIRST}}} 0.25
all_smi_mig_instance_utilization_gpu{{gpu_index="1",gpu_uuid="GPU-2",{H200},{SLICE}}} 60
all_smi_energy_consumed_joules_total{{host="node-0058",scope="gpu",gpu_index="0",gpu_uuid="GPU-1"}} 8.43e6
"""
FLAG = 'ceems_compute_unit_gpu_index_flag{cgrouphostname="",hostname=""'
CEEMS = f"""\
{FLAG},gpuiid="",gpuuuid="GPU-f124",hindex="/gpu-0",index="0",manager="slurm",uuid="1009249"}} 1
{FLAG},gpuiid="1",gpuuuid="GPU-9563",hindex="/gpu-2",index="2",manager="slurm",uuid="1009248"}} 1
{FLAG},gpuiid="",gpuuuid="GPU-61a6",hindex="/gpu-3",index="3",manager="libvirt",uuid="57f2d45e-8ddf"}} 1
ceems_cpu_seconds_total{{hostname="",mode="iowait"}} 35.52
ceems_cpu_seconds_total{{hostname="",mode="user"}} 3018.54
ceems_meminfo_MemTotal_bytes{{hostname=""}} 1.6042172416e+10
ceems_netdev_receive_bytes_total{{device="eth0",hostname=""}} 8.74354587e+08
ceems_netdev_receive_bytes_total{{device="lo",hostname=""}} 5
ceems_rdma_port_data_received_bytes_total{{device="mlx5_0",hostname="",manager="slurm",port="1"}} 7.25e+10
ceems_ipmi_dcmi_current_watts{{hostname=""}} 49
ceems_cray_pm_counters_power_watts{{domain="node",hostname=""}} 873
ceems_cray_pm_counters_power_watts{{domain="accel0",hostname=""}} 99
"""
OF_INTEL = (
    'dev_file="card1",dev_name="Intel(R) Data Center GPU Max 1550",node="n1",pci_bdf="0000:29:00.0",'
    'pci_dev="0xbd5",uuid="01000000-0000-0000-0000-000000290000",vendor="Intel(R) Corporation"'
)
XPUM = f"""\
xpum_engine_ratio{{{OF_INTEL},src="avg"}} 0.5
xpum_engine_ratio{{{OF_INTEL},src="direct",sub_dev="0"}} 0.75
xpum_engine_ratio{{{OF_INTEL},src="direct",sub_dev="1"}} 0.25
xpum_power_watts{{{OF_INTEL},src="direct"}} 301.5
xpum_power_watts{{card="2147483649",src="sum"}} 603.0
xpum_energy_joules_total{{{OF_INTEL},src="direct"}} 123456.5
xpum_memory_used_bytes{{{OF_INTEL},src="direct",sub_dev="0"}} 1073741824
xpum_memory_used_bytes{{{OF_INTEL},src="direct",sub_dev="1"}} 2147483648
xpum_memory_bandwidth_ratio{{{OF_INTEL},src="avg"}} 0.125
xpum_temperature_celsius{{{OF_INTEL},location="gpu",src="direct",sub_dev="0"}} 51
xpum_temperature_celsius{{{OF_INTEL},location="gpu",src="direct",sub_dev="1"}} 53
xpum_temperature_celsius{{{OF_INTEL},location="mem",src="direct",sub_dev="1"}} 44
xpum_frequency_mhz{{{OF_INTEL},location="gpu",src="direct",sub_dev="0",type="actual"}} 1600
xpum_frequency_mhz{{{OF_INTEL},location="gpu",src="direct",sub_dev="0",type="request"}} 1700
xpum_eu_active_ratio{{{OF_INTEL},src="direct",sub_dev="0"}} 0.4
"""


def page(text: str) -> tuple[dict[str, list[dict[str, object]]], Counter[str]]:
    """Rows by table without nulls, and how much was removed for which reason."""
    rows = SeriesRows(SeriesMemory(SeriesVocabulary()))
    rows.add_page(text.encode(), t=NOON, node="n1")
    parts = rows.parts()
    removed: Counter[str] = Counter()
    for reject in (reject for part in parts for reject in part.rejects):
        removed[reject.reason] += reject.count
    tables = {
        part.table: [
            {name: value for name, value in row.items() if value is not None and name != "t"}
            for row in part.frame.iter_rows(named=True)
        ]
        for part in parts
        if part.frame.height
    }
    return tables, removed


def test_all_smi() -> None:
    tables, removed = page(ALL_SMI)
    assert removed == {"other_quantity": 1}
    gpu, second, piece = sorted(
        tables["gpu_samples"], key=lambda row: (row["gpu"], row.get("mig", -1))
    )
    assert gpu == {
        "node": "node-0058", "gpu": 0, "gpu_util": 25.5, "hbm_used_mib": 1073741824,
        "power_w": 321.5, "gpu_temp_c": 41, "sm_clock_mhz": 1980, "sm_occupancy": 0.25,
    }  # fmt: skip
    assert (second["gpu"], second["gpu_util"]) == (1, 30)
    assert (piece["gpu"], piece["mig"], piece["gpu_util"]) == (1, 7, 60)
    devices = {row["uuid"]: row for row in tables["devices"] if "mig" not in row}
    assert devices["GPU-1"]["hbm_mib"] == 150754820096 / 2**20
    assert devices["GPU-2"]["model"] == "NVIDIA H200 141GB HBM3"


def test_ceems(tmp_path: Path) -> None:
    tables, _ = page(CEEMS)
    assert "gpu_samples" not in tables
    (host,) = tables["node_samples"]
    assert host == {
        "node": "n1", "cpu_iowait_s": 35.52, "cpu_user_s": 3018.54,
        "memory_total_mib": 1.6042172416e10, "network_rx_bytes": 8.74354587e8 + 7.25e10,
        "node_power_w": 873,
    }  # fmt: skip
    (tmp_path / "page.prom").write_text(CEEMS)
    words = ["ingest", "dcgm-exporter", "page.prom", "--node", "n1", "--lake", "lake"]
    done = run_here(words, tmp_path, {"HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    held = Lake.open(str(tmp_path / "lake")).latest(ALLOCATIONS)
    assert sorted(held.select("job_id", "gpu", "mig", "provenance").rows()) == [
        ("1009248", 2, 1, "explicit"),
        ("1009249", 0, None, "explicit"),
    ]


def test_intel_xpu_manager() -> None:
    tables, removed = page(XPUM)
    (gpu,) = tables["gpu_samples"]
    assert gpu == {
        "node": "n1", "gpu": 1, "gpu_util": 0.5, "power_w": 301.5, "energy_j": 123456.5,
        "hbm_used_mib": 3 * 2**30, "dram_active": 0.125, "gpu_temp_c": 53, "mem_temp_c": 44,
        "sm_clock_mhz": 1600,
    }  # fmt: skip
    assert removed == {"other_quantity": 1}
    (device,) = tables["devices"]
    assert device["uuid"] == "01000000-0000-0000-0000-000000290000"
    found = match_device(str(device["model"]))
    assert found is None or found.name == "Max 1550"


@pytest.mark.parametrize("text", [ALL_SMI, CEEMS, XPUM], ids=["all-smi", "CEEMS", "XPUM"])
def test_the_order_of_lines_is_irrelevant(text: str) -> None:
    lines = text.splitlines()
    backwards, _ = page("\n".join(reversed(lines)) + "\n")
    assert {table: len(rows) for table, rows in backwards.items()} == {
        table: len(rows) for table, rows in page(text)[0].items()
    }
