"""cc-metric-collector, RAPL, file systems and Redfish: rows by hand, units converted, no sums of
what is measured twice.

Written as the sources of the programs write them; no site's recording.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from in_process import run_here
from tachograph.catalog.tables import DEVICES, GPU_SAMPLES, NODE_SAMPLES, LakeTable
from tachograph.lake.delta import Lake
from tachograph.sources.line_protocol import collector_page, read_point
from tachograph.sources.metrics import why_unread
from tachograph.sources.recognition import source_of
from tachograph.sources.series import SeriesMemory, SeriesVocabulary
from tachograph.sources.series_rows import SeriesRows

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NS = int(NOON.timestamp()) * 10**9
NODE = "cluster=fritz,hostname=g1.example.org"
GPU = f"{NODE},type=accelerator"
COLLECTOR = f"""\
load_one,{NODE},type=node value=3.5 {NS}
mem_total,{NODE},type=node,unit=kB value=527951888i {NS}
mem_available,{NODE},type=node value=1024 {NS}
mem_available,{NODE},type=memoryDomain,type-id=0 value=7 {NS}
mem_used,{NODE},type=node value=5 {NS}
cpu_user,{NODE},type=node,unit=Percent value=97.5 {NS}
net_bytes_in,{NODE},stype=network,stype-id=eno1,type=node value=1000i {NS}
net_bytes_in,{NODE},stype=network,stype-id=lo,type=node value=77i {NS}
ib_recv,device=mlx5_0,{NODE},lid=0x5,port=1,type=node value=4000i {NS}
ib_recv,device=mlx5_1,{NODE},lid=0x6,port=1,type=node value=500i {NS}
lustre_read_bytes,device=scratch-ff01,{NODE},type=node,unit=bytes value=10i {NS}
lustre_read_bytes,device=home-ff02,{NODE},type=node,unit=bytes value=20i {NS}
lustre_read_requests,device=home-ff02,{NODE},type=node,unit=requests value=3i {NS}
gpfs_bytes_written,{NODE},filesystem=work,type=node value=9i {NS}
rapl_average_power,{NODE},id=0,zone_name=package-0 value=101.5 {NS}
rapl_average_power,{NODE},id=1,zone_name=package-1 value=98.5 {NS + 2_000_000}
rapl_average_power,{NODE},id=2,zone_name=psys value=333 {NS}
rapl_average_power,{NODE},id=0:0,sub_zone_name=core,zone_name=package-0 value=60 {NS}
rapl_average_power,{NODE},id=0:1,sub_zone_name=dram,zone_name=package-0 value=11 {NS}
rapl_average_power,{NODE},id=1:0,sub_zone_name=dram,zone_name=package-1 value=9 {NS}
nv_util,{GPU},type-id=0,pci_identifier=00000000:1A:00.0,unit=% value=42 {NS}
nv_fb_mem_used,{GPU},type-id=0,pci_identifier=00000000:1A:00.0,unit=MByte value=512.5 {NS}
nv_fb_mem_total,{GPU},type-id=0,pci_identifier=00000000:1A:00.0,unit=MByte value=81920 {NS}
nv_power_usage,{GPU},type-id=0,pci_identifier=00000000:1A:00.0,unit=watts value=250.5 {NS}
nv_energy_abs,{GPU},type-id=0,pci_identifier=00000000:1A:00.0,unit=Joules value=5000u {NS}
nv_util,{GPU},stype=mig,stype-id=0,type-id=0,pci_identifier=00000000:1A:00.0 value=99 {NS}
nv_ecc_mode,{GPU},type-id=0 value="ON" {NS}
nv_util,{GPU},type-id=0000:3B:00.0 value=17 {NS}
acc_mem_used,{GPU},type-id=1,unit=GB value=3 {NS}
job_mem_used,{NODE},type=hwthread,type-id=3 value=4096 {NS}
start_job,{NODE},type=node event="{{\\"job\\": 1}}" {NS}
half a line
"""
RAPL = """\
node_rapl_package_joules_total{index="0",path="/sys/class/powercap/intel-rapl:0"} 1000.5
node_rapl_package_joules_total{index="1",path="/sys/class/powercap/intel-rapl:1"} 2000.25
node_rapl_core_joules_total{index="0",path="/sys/class/powercap/intel-rapl:0:0"} 700
node_rapl_dram_joules_total{index="0",path="/sys/class/powercap/intel-rapl:0:1"} 300
node_rapl_psys_joules_total{index="0",path="/sys/class/powercap/intel-rapl:2"} 9999
gpfs_perf_read_bytes_total{fs="work"} 5
gpfs_perf_read_bytes_total{fs="home"} 6
gpfs_perf_operations_total{fs="work",operation="reads"} 7
gpfs_perf_operations_total{fs="work",operation="opens"} 8
node_infiniband_port_data_received_bytes_total{device="mlx5_0",port="1"} 40
node_network_receive_bytes_total{device="eth0"} 2
node_network_receive_bytes_total{device="lo"} 1
"""
IDRAC = """\
idrac_power_control_consumed_watts{id="0",name="System Power Control"} 612
idrac_power_control_consumed_watts{id="1",name="CPU Sub-system Power"} 200
idrac_power_supply_input_watts{id="0"} 310
redfish_chassis_power_average_consumed_watts{resource="power_wattage",chassis_id="Enclosure"} 4800
"""
MEASURED_TWICE = (
    IDRAC
    + """\
ipmi_dcmi_power_consumption_watts 600
ceems_ipmi_dcmi_power_current_watts{hostname=""} 605
ceems_rapl_package_joules_total{hostname="",index="0",path="/sys/class/powercap/intel-rapl:0"} 1000.5
node_rapl_package_joules_total{index="0",path="/sys/class/powercap/intel-rapl:0"} 1000.5
"""
)


class PageRows:
    """Rows of a page by table without nulls, reasons of rejects, metrics that are not read."""

    def __init__(self, content: bytes) -> None:
        rows = SeriesRows(SeriesMemory(SeriesVocabulary()))
        rows.add_page(content, t=NOON, node="n1")
        self.unread = dict(rows.unread)
        self.rejects: Counter[str] = Counter()
        self.examples: list[str] = []
        self.tables: dict[str, list[dict[str, object]]] = {}
        for part in rows.parts():
            for reject in part.rejects:
                self.rejects[reject.reason] += reject.count
                self.examples.append(str(reject.example))
            for row in part.frame.iter_rows(named=True):
                values = {name: value for name, value in row.items() if value is not None}
                self.tables.setdefault(part.table, []).append(values)


def committed(folder: Path, table: LakeTable) -> list[dict[str, object]]:
    """Rows of a table of the lake without nulls and what ingest adds."""
    rows = Lake.open(str(folder / "lake")).latest(table).drop("seq").iter_rows(named=True)
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def test_points_of_the_collector_become_rows_in_our_units(tmp_path: Path) -> None:
    file = tmp_path / "collector.log"
    file.write_text(COLLECTOR)
    assert source_of(file) == "dcgm-exporter"
    done = run_here(
        ["ingest", "collector.log", "--lake", "lake"], tmp_path, {"HOME": str(tmp_path)}
    )
    assert done.returncode == 0, done.stderr
    place = {"cluster": "fritz", "node": "g1"}
    (host,) = committed(tmp_path, NODE_SAMPLES)
    assert host == {
        "t": NOON, **place, "load_average": 3.5,
        "memory_total_mib": 527951888 / 1024, "memory_available_mib": 1.0,
        "network_rx_bytes": 1000 + 4000 + 500, "fs_read_bytes": 10 + 20, "fs_read_operations": 3,
        "fs_write_bytes": 9, "cpu_power_w": 101.5 + 98.5, "memory_power_w": 11 + 9,
    }  # fmt: skip
    (gpu,) = committed(tmp_path, GPU_SAMPLES)
    assert gpu == {
        "t": NOON, **place, "gpu": 0, "gpu_util": pytest.approx(0.42), "hbm_used_mib": 512.5,
        "power_w": 250.5, "energy_j": 5000,
    }  # fmt: skip
    (device,) = committed(tmp_path, DEVICES)
    assert (device["gpu"], device["hbm_mib"], device["nvml_index"]) == (0, 81920, 0)
    assert str(device["pci"]).lower().endswith("1a:00.0")


def test_what_the_collector_measures_otherwise_is_counted_and_named() -> None:
    page = PageRows(collector_page(COLLECTOR))
    # cpu_user and job_mem_used; a GPU by its address alone; the half line
    assert page.rejects == {"other_quantity": 2, "no_gpu": 1, "unreadable_line": 1}
    assert any("not seconds of CPU time" in example for example in page.examples)
    assert "no tag names the job" in str(why_unread("cc:job_mem_used"))
    # another unit, an event, a text
    assert page.unread == {
        "cc:mem_used": 1, "cc:acc_mem_used:GB": 1, "cc:start_job": 1, "cc:nv_ecc_mode": 1,
    }  # fmt: skip


@pytest.mark.parametrize("digits", [10, 13, 16, 19])
def test_times_have_the_precision_of_the_sink(digits: int) -> None:
    stamp = str(NS + 250_000_000)[:digits]
    page = PageRows(collector_page(f"load_one,hostname=n7,type=node value=1 {stamp}\n"))
    (row,) = page.tables["node_samples"]
    assert row["t"] == NOON + timedelta(milliseconds=250 if digits > 10 else 0)


def test_a_line_that_was_cut_off_is_no_point() -> None:
    page = PageRows(collector_page(COLLECTOR + f"load_one,{NODE},type=node value=4"))
    assert page.rejects["cut_off_line"] == 1
    assert [row["load_average"] for row in page.tables["node_samples"]] == [3.5]


TAG = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\n\x1c\x1d\x1e\x85\u2028\u2029"), min_size=1
)


def escaped(text: str) -> str:
    """A tag's name or value as the line protocol writes it."""
    return "".join(f"\\{sign}" if sign in "\\, =" else sign for sign in text)


@given(name=TAG, value=TAG)
def test_an_unknown_tag_loses_nothing_else(name: str, value: str) -> None:
    tag = f"site_{escaped(name)}={escaped(value)}"
    tagged = COLLECTOR.replace("hostname=", f"{tag},hostname=")
    assert read_point(tagged.split("\n")[0]) is not None
    plain, page = PageRows(collector_page(COLLECTOR)), PageRows(collector_page(tagged))
    assert page.tables == plain.tables
    assert page.rejects == plain.rejects


def test_text_between_points_cannot_imitate_a_metric() -> None:
    forged = 'DCGM_FI_DEV_GPU_UTIL{gpu="0",Hostname="victim"} 1\n'
    quoted = f'x,hostname=n1,type=node,a="}}\\ 1 {NS} value=1 {NS}\n'
    page = PageRows(collector_page(COLLECTOR + forged + quoted))
    assert {row["node"] for row in page.tables["gpu_samples"]} == {"g1"}
    assert page.rejects["unreadable_line"] >= 2


def test_energy_of_rapl_is_that_of_cpus_and_memory() -> None:
    page = PageRows(RAPL.encode())
    (row,) = page.tables["node_samples"]
    assert row == {
        "t": NOON, "node": "n1", "cpu_energy_j": 1000.5 + 2000.25, "memory_energy_j": 300,
        "fs_read_bytes": 5 + 6, "fs_read_operations": 7, "network_rx_bytes": 42,
    }  # fmt: skip
    assert page.rejects == {"other_quantity": 1}
    assert "that of the CPUs is counted" in page.examples[0]


def test_redfish_names_the_machine_but_neither_parts_nor_chassis() -> None:
    page = PageRows(IDRAC.encode())
    assert [row["node_power_w"] for row in page.tables["node_samples"]] == [612]
    assert page.rejects == {"other_quantity": 2}
    assert any("one power supply" in example for example in page.examples)
    chassis = why_unread("redfish_chassis_power_average_consumed_watts")
    assert "may hold several nodes" in str(chassis)


@pytest.mark.parametrize("backwards", [False, True])
def test_what_is_measured_twice_is_not_added_up(*, backwards: bool) -> None:
    lines = MEASURED_TWICE.splitlines(keepends=True)
    page = PageRows("".join(reversed(lines) if backwards else lines).encode())
    (row,) = page.tables["node_samples"]
    assert row["node_power_w"] == 600  # of IPMI; others only where it has none
    assert row["cpu_energy_j"] == 1000.5
    # two that stand in for it differ: the second is counted
    assert page.rejects["conflicting_value"] == 1
