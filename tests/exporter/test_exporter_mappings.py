"""Exporters beside DCGM's are read by their mappings: from pages, polled, and from saved answers
of Prometheus.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from in_process import run_here
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
from tachograph.sources.series import SeriesMemory, SeriesVocabulary
from tachograph.sources.series_rows import SeriesRows

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


class Page:
    """The rows of one page, and what was removed from it."""

    def __init__(self, text: str, *, metrics: SiteMetrics = NO_SITE_METRICS) -> None:
        rows = SeriesRows(SeriesMemory(SeriesVocabulary(metrics=metrics)))
        rows.add_page(text.encode(), t=NOON, node="n1")
        parts = rows.parts()
        self.rows = {part.table: part.frame.to_dicts() for part in parts}
        self.removed: Counter[str] = Counter()
        for reject in (reject for part in parts for reject in part.rejects):
            self.removed[reject.reason] += reject.count
        self.examples = {
            reject.reason: reject.example or "" for part in parts for reject in part.rejects
        }

    def samples(self, column: str) -> Mapping[int, object]:
        return {row["gpu"]: row[column] for row in self.rows["gpu_samples"]}


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


@pytest.mark.parametrize(
    "indices", [INFO, f'nvidia_smi_index{{uuid="{ONE}"}} 1\nnvidia_smi_index{{uuid="{TWO}"}} 0\n']
)
@pytest.mark.parametrize("first", [True, False])
def test_nvidia_gpu_exporter_has_the_index_of_its_info_series(indices: str, first: bool) -> None:
    page = Page(indices + NVIDIA_SMI if first else NVIDIA_SMI + indices)
    assert page.samples("gpu_util") == {0: 0.97, 1: 0.42}
    # The average where there is nothing better.
    assert page.samples("power_w") == {0: 90.0, 1: 128.07}
    assert {(row["gpu"], row["uuid"]) for row in page.rows["devices"]} == {
        (1, f"GPU-{ONE}"),
        (0, f"GPU-{TWO}"),
    }
    assert page.removed == {}


def test_nvidia_gpu_exporter_without_an_index_is_counted() -> None:
    page = Page(NVIDIA_SMI)
    assert "gpu_samples" not in page.rows or not page.rows["gpu_samples"]
    assert page.removed["no_gpu"] == 8


def test_slurm_job_exporter_names_the_holders_of_gpus() -> None:
    page = Page(slurm_page(0, 1))
    assert page.samples("gpu_util") == {0: 77, 1: 5}
    assert page.samples("pcie_tx_bytes_per_s") == {0: 1000, 1: None}
    assert page.samples("pcie_rx_bytes_per_s") == {0: 2000, 1: None}
    held = {(row["job_id"], row["gpu"], row["provenance"]) for row in page.rows["allocations"]}
    assert held == {("700", 0, "explicit"), ("701", 1, "explicit")}
    assert {row["model"] for row in page.rows["devices"]} == {"NVIDIA A100-SXM4-40GB"}


def test_an_index_within_the_job_is_ambiguous() -> None:
    page = Page(slurm_page(0, 0))
    assert not page.rows.get("gpu_samples")
    held = {(row["job_id"], row["gpu"], row["provenance"]) for row in page.rows["allocations"]}
    assert held == {("700", None, "node_list"), ("701", None, "node_list")}
    assert page.removed["ambiguous_gpu"] == 7


def test_omnistat_reports_dies_memory_by_capacity_and_the_job_of_the_node() -> None:
    page = Page(OMNISTAT)
    assert page.samples("gpu_util") == {0: 80.0, 1: 81.0}
    assert page.samples("hbm_used_mib") == {0: 32760.0, 1: None}
    assert page.removed["no_capacity"] == 1
    assert page.samples("mem_temp_c") == {0: 49.0, 1: None}
    assert page.samples("dram_active") == {0: 22.0, 1: None}
    assert [(row["job_id"], row["gpu"]) for row in page.rows["allocations"]] == [("605717", None)]
    assert page.rows["node_samples"][0]["memory_total_mib"] == 540000000000


def test_amd_metrics_that_measure_something_else_are_counted_and_named() -> None:
    page = Page(DEVICE_METRICS)
    (row,) = page.rows["gpu_samples"]
    found = {
        name: row[name]
        for name in ("gpu_util", "power_w", "energy_j", "tensor_active", "sm_clock_mhz")
    }
    assert found == {
        "gpu_util": 37,
        "power_w": 130,
        "energy_j": 5e6,
        "tensor_active": 30,
        "sm_clock_mhz": 2100,
    }
    assert "sm_active" not in row
    assert page.removed == {"other_quantity": 1}
    assert page.examples["other_quantity"].startswith("gpu_prof_sm_active: ")
    assert page.rows["devices"][0]["model"] == "AMD Instinct MI300X OAM"


def test_a_site_maps_directions_and_adds_up_links() -> None:
    own = {
        'nvlink_bytes{direction="tx"}': ("nvlink_tx_bytes_per_s", "B/s", "sum link"),
        'nvlink_bytes{direction="rx"}': ("nvlink_rx_bytes_per_s", "B/s", "sum link"),
    }
    page = Page(
        "".join(
            f'nvlink_bytes{{gpu="0",link="{link}",direction="{way}",pod="{pod}"}} {value}\n'
            for pod in "ab"  # each series once for every pod of the GPU
            for link, way, value in ((0, "tx", 10), (1, "tx", 5), (0, "RX", 3), (1, "RX", 4))
        ),
        metrics=own,
    )
    assert page.samples("nvlink_tx_bytes_per_s") == {0: 15}
    assert page.samples("nvlink_rx_bytes_per_s") == {0: 7}
    assert page.removed == {}


@pytest.mark.parametrize(
    ("own", "problem"),
    [
        ({"m{direction=tx}": ("power_w", "W")}, "no label"),
        ({"m": ("power_w",)}, "the unit is missing"),
        ({"m": ("power_w", "W", "add link")}, "none of `sum LABEL`"),
        ({"m": ("fan", "percent")}, "unknown counter 'fan'"),
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


@pytest.mark.parametrize("page", [INFO + NVIDIA_SMI, slurm_page(0, 1), OMNISTAT, DEVICE_METRICS])
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
            done = run_here(["ingest", *words, "--lake", lake], tmp_path, {"HOME": str(tmp_path)})
            assert done.returncode == 0, done.stderr
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
    done = run_here(
        ["ingest", "prometheus", "answer.json", "--lake", "lake"], tmp_path, {"HOME": str(tmp_path)}
    )
    assert done.returncode == 0, done.stderr
    assert rows_of(tmp_path / "lake", GPU_SAMPLES).select("node", "gpu", "gpu_util").rows() == [
        ("n1", 3, 0.5)
    ]
    assert rows_of(tmp_path / "lake", ALLOCATIONS).get_column("job_id").to_list() == ["77"]


def test_devices_are_counted_as_devices_not_as_rows(tmp_path: Path) -> None:
    for number, model in enumerate(("NVIDIA H100", "NVIDIA H100 80GB HBM3")):
        text = f'DCGM_FI_DEV_GPU_UTIL{{gpu="0",Hostname="n1",modelName="{model}"}} {number}\n'
        (tmp_path / f"{number}.prom").write_text(text, encoding="utf-8")
    environment = {"HOME": str(tmp_path)}
    done = run_here(
        ["ingest", "dcgm-exporter", "0.prom", "1.prom", "--lake", "lake"], tmp_path, environment
    )
    assert "2 gpu_samples, 1 device committed" in done.stdout
    tables = run_here(["lake", "--json", "--lake", "lake"], tmp_path, environment)
    (devices,) = [
        table for table in json.loads(tables.stdout)["tables"] if table["table"] == "devices"
    ]
    assert devices["rows"] == 1
