"""cc-metric-collector, RAPL, file systems and Redfish: rows by hand, units converted, no sums of
what is measured twice.

Written as the sources of the programs write them; no site's recording.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from series_as_pages import page_lines
from syrupy.assertion import SnapshotAssertion

from tachograph.sources.line_protocol import collector_page, read_point
from tachograph.sources.metrics import why_unread
from tachograph.sources.recognition import source_of

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


PAGES: Mapping[str, str | bytes] = {
    # cpu_user and job_mem_used are other quantities; a GPU has its address alone; half a line
    "cc-metric-collector": collector_page(COLLECTOR),
    "cc-metric-collector, cut off": collector_page(f"{COLLECTOR}load_one,{NODE},type=node value=4"),
    # the CPUs and memory, not their parts, nor the machine
    "RAPL": RAPL,
    # the machine, neither its parts nor the chassis
    "Redfish": IDRAC,
    # of IPMI; others only where it has none: of two that differ the second is counted
    "what is measured twice": MEASURED_TWICE,
    "what is measured twice, backwards": "".join(
        reversed(MEASURED_TWICE.splitlines(keepends=True))
    ),
}


@pytest.mark.parametrize("name", PAGES)
def test_pages_become_rows_in_our_units(name: str, snapshot: SnapshotAssertion) -> None:
    assert page_lines(PAGES[name]) == snapshot


def test_points_of_a_collector_are_recognised(tmp_path: Path) -> None:
    file = tmp_path / "collector.log"
    file.write_text(COLLECTOR)
    assert source_of(file) == "dcgm-exporter"
    assert "no tag names the job" in str(why_unread("cc:job_mem_used"))
    chassis = why_unread("redfish_chassis_power_average_consumed_watts")
    assert "may hold several nodes" in str(chassis)


@pytest.mark.parametrize("digits", [10, 13, 16, 19])
def test_times_have_the_precision_of_the_sink(digits: int) -> None:
    stamp = str(NS + 250_000_000)[:digits]
    read = page_lines(collector_page(f"load_one,hostname=n7,type=node value=1 {stamp}\n"))
    assert f"t=2026-03-01T12:00:00{'.250000' if digits > 10 else ''}+00:00 " in read


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
    assert page_lines(collector_page(tagged)) == page_lines(collector_page(COLLECTOR))


def test_text_between_points_cannot_imitate_a_metric() -> None:
    forged = 'DCGM_FI_DEV_GPU_UTIL{gpu="0",Hostname="victim"} 1\n'
    quoted = f'x,hostname=n1,type=node,a="}}\\ 1 {NS} value=1 {NS}\n'
    read = page_lines(collector_page(COLLECTOR + forged + quoted))
    assert "victim" not in read
    assert "unreadable_line None 2" in read
