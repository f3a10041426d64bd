"""Exporters beside DCGM's are read by their mappings: from pages, polled, and from saved answers
of Prometheus.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from series_as_pages import page_lines
from syrupy.assertion import SnapshotAssertion

from in_process import run_well
from servers.faulty import Reply, faulty
from tachograph.catalog.counters import COUNTERS_BY_NAME, HOST_UNITS, JOB_UNITS
from tachograph.catalog.errors import ConfigError
from tachograph.catalog.tables import ALLOCATIONS, GPU_SAMPLES, LakeTable
from tachograph.lake.delta import Lake
from tachograph.sources.exporter_mapping import MAPPED_FACTS, MetricKey
from tachograph.sources.exporters import exporter_mappings
from tachograph.sources.exposition import labels_of, parse_page
from tachograph.sources.metrics import (
    NO_SITE_METRICS,
    SiteMetrics,
    metric_target,
    refuse_unknown_metrics,
    why_unread,
)
from tachograph.sources.series import SeriesVocabulary

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ONE, TWO = "df6e7a7c-7314-46f8-abc4-b88b36dcf3aa", "aa6e7a7c-7314-46f8-abc4-b88b36dcf3aa"
NVIDIA_SMI = f"""\
nvidia_smi_utilization_gpu_ratio{{uuid="{ONE}"}} 0.42
nvidia_smi_utilization_gpu_ratio{{uuid="{TWO}"}} 0.97
nvidia_smi_memory_used_bytes{{uuid="{ONE}"}} 706740224
nvidia_smi_memory_total_bytes{{uuid="{ONE}"}} 85520809984
nvidia_smi_power_draw_watts{{uuid="{ONE}"}} 128.07
nvidia_smi_power_draw_average_watts{{uuid="{ONE}"}} 120
nvidia_smi_power_draw_average_watts{{uuid="{TWO}"}} 90
nvidia_smi_clocks_current_sm_clock_hz{{uuid="{ONE}"}} 1.98e+09
"""
INFO = f"""\
nvidia_smi_gpu_info{{uuid="{ONE}",name="NVIDIA H100 80GB HBM3",pci_bus_id="00000000:18:00.0",index="1"}} 1
nvidia_smi_gpu_info{{uuid="{TWO}",name="NVIDIA H100 80GB HBM3",pci_bus_id="00000000:3A:00.0",index="0"}} 1
"""
OF_JOB = 'user="u",account="a",slurmjobid="{job}",gpu="{gpu}",gpu_type="NVIDIA A100-SXM4-40GB"'
OMNISTAT = """\
rocm_version_info{card="0",driver_ver="6.8",vbios="1",type="AMD Instinct MI250X",serial="s"} 1
rocm_utilization_percentage{card="0"} 80.0
rocm_utilization_percentage{card="1"} 81.0
rocm_vram_used_percentage{card="0"} 50.0
rocm_vram_used_percentage{card="1"} 25.0
rocm_vram_total_bytes{card="0"} 68702699520
rocm_vram_busy_percentage{card="0"} 22.0
rocm_average_socket_power_watts{card="0",source="average_socket_power"} 450.0
rocm_average_socket_power_watts{card="1",source="average_socket_power"} 0.0
rocm_temperature_memory_celsius{card="0",location="hbm_0"} 46.0
rocm_temperature_memory_celsius{card="0",location="hbm_1"} 49.0
rmsjob_info{jobid="605717",user="u",partition="batch",nodes="1",batchflag="1",jobstep="0",type="slurm"} 1
omnistat_mem_total_bytes 540000000000
"""
AMD = 'gpu_id="2",hostname="tw038",job_id="900",card_model="102-G30211",card_series="AMD Instinct MI300X OAM"'
DEVICE_METRICS = f"""\
gpu_gfx_activity{{{AMD}}} 37
gpu_umc_activity{{{AMD}}} 11
gpu_used_vram{{{AMD}}} 283
gpu_total_vram{{{AMD}}} 196592
gpu_average_package_power{{{AMD}}} 131
gpu_package_power{{{AMD}}} 130
gpu_energy_consumed{{{AMD}}} 5000000
gpu_prof_sm_active{{{AMD}}} 50
gpu_prof_tensor_active_percent{{{AMD}}} 30
gpu_clock{{clock_index="0",clock_type="GPU_CLOCK_TYPE_SYSTEM",{AMD}}} 132
gpu_clock{{clock_index="1",clock_type="GPU_CLOCK_TYPE_SYSTEM",{AMD}}} 2100
GPU_JUNCTION_TEMPERATURE{{{AMD}}} 44
"""


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


def slurm_page(first: int, second: int) -> str:
    """Two jobs with one GPU each, by these indices."""
    one, two = OF_JOB.format(job=700, gpu=first), OF_JOB.format(job=701, gpu=second)
    return (
        f"slurm_job_utilization_gpu{{{one}}} 77\nslurm_job_utilization_gpu{{{two}}} 5\n"
        f"slurm_job_power_gpu{{{one}}} 250000\nslurm_job_fp64_gpu{{{one}}} 12.5\n"
        f'slurm_job_pcie_gpu{{{one},direction="TX"}} 1000\nslurm_job_pcie_gpu{{{one},direction="RX"}} 2000\n'
    )


def test_every_mapping_names_columns_and_units_that_exist() -> None:
    for exporter_mapping in exporter_mappings():
        refuse_unknown_metrics(exporter_mapping.metrics, where=exporter_mapping.name)
        for written, (column, *_) in exporter_mapping.metrics.items():
            key = MetricKey.parse(written)
            assert metric_target(key.metric, key.labels) is not None
            assert column in {*COUNTERS_BY_NAME, *HOST_UNITS, *JOB_UNITS, *MAPPED_FACTS}
        assert all(why_unread(metric) for metric in exporter_mapping.unread)


LINKS = "".join(
    f'nvlink_bytes{{gpu="0",link="{link}",direction="{way}",pod="{pod}"}} {value}\n'
    for pod in "ab"  # each series once for every pod of the GPU
    for link, way, value in ((0, "tx", 10), (1, "tx", 5), (0, "RX", 3), (1, "RX", 4))
)
OF_LINKS: SiteMetrics = {
    f'nvlink_bytes{{direction="{way}"}}': (f"nvlink_{way}_bytes_per_s", "B/s", "sum link")
    for way in ("tx", "rx")
}
INDEX = f'nvidia_smi_index{{uuid="{ONE}"}} 1\nnvidia_smi_index{{uuid="{TWO}"}} 0\n'
PAGES: Mapping[str, str] = {
    "nvidia_gpu_exporter": INFO + NVIDIA_SMI,
    "nvidia_gpu_exporter with its index as a value": INDEX + NVIDIA_SMI,
    "nvidia_gpu_exporter without an index": NVIDIA_SMI,
    "slurm-job-exporter": slurm_page(0, 1),
    "slurm-job-exporter with indices within jobs": slurm_page(0, 0),
    "Omnistat": OMNISTAT,
    "Device Metrics Exporter": DEVICE_METRICS,
    "all-smi": ALL_SMI,
    "CEEMS": CEEMS,
    "XPU Manager": XPUM,
    "a site's links": LINKS,
}


@pytest.mark.parametrize("name", PAGES)
def test_pages_of_exporters_become_rows(name: str, snapshot: SnapshotAssertion) -> None:
    vocabulary = SeriesVocabulary(metrics=OF_LINKS if PAGES[name] == LINKS else NO_SITE_METRICS)
    read = page_lines(PAGES[name], vocabulary=vocabulary)
    assert read == snapshot
    backwards = "".join(reversed(PAGES[name].splitlines(keepends=True)))
    again = page_lines(backwards, vocabulary=vocabulary)
    assert again.count("\n") == read.count("\n")
    if name.startswith("nvidia_gpu"):
        assert set(again.splitlines()) == set(read.splitlines())


@pytest.mark.parametrize(
    ("own", "problem"),
    [
        ({"m{direction=tx}": ("power_w", "W")}, "no label"),
        ({"m": ("power_w",)}, "the unit is missing"),
        ({"m": ("power_w", "W", "add link")}, "none of `sum LABEL`"),
        ({"m": ("fan", "percent")}, "unknown counter 'fan'"),
        ({"m": ("node", "")}, "unknown counter 'node'"),
        ({"m": ("model", "")}, "unknown counter 'model'"),
    ],
)
def test_a_mapping_that_says_nothing_is_refused(own: SiteMetrics, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        refuse_unknown_metrics(own, where="tachograph.toml")


def answer(page: str) -> str:
    """The page as an answer of Prometheus to an instant query."""
    samples = parse_page(page.encode())
    series = []
    for name, block, value, _ in samples:
        labels = {"__name__": name, "instance": "n1:9100"} | dict(labels_of(block))
        series.append({"metric": labels, "value": [1773114089.4, str(value)]})
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": series}})


@pytest.mark.parametrize(
    "page", [INFO + NVIDIA_SMI, slurm_page(0, 1), OMNISTAT, DEVICE_METRICS, ALL_SMI]
)
def test_a_page_a_poll_and_a_saved_answer_are_the_same_rows(page: str, tmp_path: Path) -> None:
    (tmp_path / "page.prom").write_text(page, encoding="utf-8")
    (tmp_path / "answer.json").write_text(answer(page), encoding="utf-8")
    with faulty(
        lambda request: Reply(page.encode(), headers={"Content-Type": "text/plain"})
    ) as server:
        ways = {
            "page": ["dcgm-exporter", "page.prom", "--node", "n1"],
            "poll": ["dcgm-exporter", "--url", server.url],
            "answer": ["prometheus", "answer.json"],
        }
        for lake, words in ways.items():
            run_well(tmp_path, "ingest", *words, "--lake", lake)
    tables = [samples(tmp_path / lake) for lake in ways]
    assert tables[0].height
    assert tables[0].drop("node").equals(tables[1].drop("node"))
    assert tables[0].equals(tables[2])


def samples(lake: Path) -> pl.DataFrame:
    return rows_of(lake, GPU_SAMPLES).sort("node", "gpu").drop("t", "seq", strict=False)


def rows_of(lake: Path, table: LakeTable) -> pl.DataFrame:
    return Lake.open(str(lake)).latest(table)


def test_a_saved_answer_has_the_names_of_the_only_entry(tmp_path: Path) -> None:
    (tmp_path / "tachograph.toml").write_text(
        '[[sources]]\nsource = "prometheus"\nurl = "http://nowhere.invalid"\n'
        'metrics = { card_busy = ["gpu_util", "percent"] }\nlabels = { gpu = ["slot"], job = ["batch"] }\n',
        encoding="utf-8",
    )
    (tmp_path / "answer.json").write_text(
        answer('card_busy{slot="3",batch="77"} 50\n'), encoding="utf-8"
    )
    run_well(tmp_path, "ingest prometheus answer.json")
    assert rows_of(tmp_path / "lake", GPU_SAMPLES).select("node", "gpu", "gpu_util").rows() == [
        ("n1", 3, 0.5)
    ]
    assert rows_of(tmp_path / "lake", ALLOCATIONS).get_column("job_id").to_list() == ["77"]


def test_devices_are_counted_as_devices_not_as_rows(tmp_path: Path) -> None:
    for number, model in enumerate(("NVIDIA H100", "NVIDIA H100 80GB HBM3")):
        text = f'DCGM_FI_DEV_GPU_UTIL{{gpu="0",Hostname="n1",modelName="{model}"}} {number}\n'
        (tmp_path / f"{number}.prom").write_text(text, encoding="utf-8")
    done = run_well(tmp_path, "ingest dcgm-exporter 0.prom 1.prom")
    assert "2 gpu_samples, 1 device committed" in done.stdout
    tables = json.loads(run_well(tmp_path, "lake --json").stdout)["tables"]
    assert [table["rows"] for table in tables if table["table"] == "devices"] == [1]
