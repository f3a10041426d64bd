"""Metrics find their counter and their unit, whoever wrote them."""

from __future__ import annotations

import pytest

from tachograph.catalog.counters import HOST_COUNTERS
from tachograph.sources.metrics import MetricTarget, metric_names, metric_target


@pytest.mark.parametrize(
    "written",
    [
        "DCGM_FI_DEV_GPU_UTIL gpu_util percent",
        "DCGM_FI_GPU_UTIL_RATIO gpu_util percent",  # in DCGM 4.6 still 0..100
        "DCGM_FI_PROF_SM_ACTIVE sm_active fraction",
        "DCGM_FI_SM_UTIL_RATIO sm_active fraction",
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION energy_j mJ",
        "nersc_ldms_dcgm_fb_used hbm_used_mib MiB",
        "nvidia_gpu_duty_cycle gpu_util percent",
        "nvidia_gpu_sm_util_percent sm_active fraction",  # called percent, carries 0..1
        "nvidia_gpu_power_usage_milliwatts power_w mW",
        "nvidia_gpu_clock{type=sm} sm_clock_mhz MHz",
        "nvidia_gpu_clock{type=mem} mem_clock_mhz MHz",
    ],
)
def test_a_gpu_metric_is_known(written: str) -> None:
    metric, column, unit = written.split()
    name, _, kind = metric.strip("}").partition("{type=")
    labels = {"type": kind} if kind else {}
    assert metric_target(name, labels) == MetricTarget("gpu_samples", column, unit)


def test_every_node_exporter_series_of_the_catalogue_is_known() -> None:
    for counter in HOST_COUNTERS:
        for metric, labels in counter.node_exporter:
            found = metric_target(metric, {**labels, "cpu": "7", "device": "eth0"})
            assert found is not None
            assert (found.table, found.column) == ("node_samples", counter.name)
            assert found.unit == counter.node_exporter_unit


def test_the_loopback_interface_is_left_out() -> None:
    assert metric_target("node_network_receive_bytes_total", {"device": "lo"}) is None
    assert metric_target("node_network_receive_bytes_total", {"device": "hsn0"}) is not None


@pytest.mark.parametrize(
    ("metric", "labels"),
    [
        ("node_cpu_seconds_total", {"mode": "steal"}),
        ("nvidia_gpu_clock", {"type": "video"}),
        ("gpu_util", {}),  # our own name: what somebody else means by it is not known
        ("up", {}),
    ],
)
def test_what_is_no_counter_has_no_target(metric: str, labels: dict[str, str]) -> None:
    assert metric_target(metric, labels) is None


def test_names_of_a_site_come_first() -> None:
    own = {"DCGM_FI_DEV_GPU_UTIL": ("gpu_util", "fraction"), "rack_power": ("node_power_w", "kW")}
    assert metric_target("DCGM_FI_DEV_GPU_UTIL", {}, own=own) == MetricTarget(
        "gpu_samples", "gpu_util", "fraction"
    )
    assert metric_target("rack_power", {}, own=own) == MetricTarget(
        "node_samples", "node_power_w", "kW"
    )
    assert "rack_power" in metric_names(own=own)
    assert "rack_power" not in metric_names()
