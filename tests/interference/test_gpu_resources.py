"""Capacities of a report's GPU, and what a report lacks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from published_launches import H100, MM

from tachograph.annexes.share.capacity import device_of, gpu_of
from tachograph.annexes.share.kernels import kernels_of
from tachograph.annexes.share.nsight.launches import Chip
from tachograph.catalog.devices import DEVICES_BY_NAME

HIT = "lts__t_sector_hit_rate.pct"


def test_the_report_counts_before_what_is_published() -> None:
    gpu = gpu_of(H100)
    found = (
        gpu.sms,
        gpu.blocks_per_sm,
        gpu.registers_per_sm,
        gpu.shared_bytes_per_sm,
        gpu.l2_bytes,
    )
    assert found == (132, 32, 65536, 233472.0, 52428800.0)
    assert gpu.l1_bytes == 256 * 1024.0


def test_the_catalogue_fills_what_the_report_does_not_report() -> None:
    gpu = gpu_of(Chip("NVIDIA A100-SXM4-40GB", "8.0"))
    row = DEVICES_BY_NAME["A100 SXM 40GB"]
    assert (gpu.sms, gpu.dram_bytes_per_s, gpu.l2_bytes) == (
        row.sms,
        row.hbm_bytes_per_s,
        row.l2_bytes,
    )
    assert (gpu.threads_per_sm, gpu.l1_bytes) == (2048, 192 * 1024.0)


def test_a_slice_of_a_gpu_is_not_taken_for_the_whole() -> None:
    mig = Chip("NVIDIA H100 NVL", "9.0", {"multiprocessor_count": 16.0})
    gpu = gpu_of(mig)
    assert device_of(mig) is None
    assert (gpu.sms, gpu.dram_bytes_per_s, gpu.hbm_bytes) == (16, None, None)


def test_bandwidth_is_that_of_clock_and_bus_then_of_the_catalogue() -> None:
    by_clock = gpu_of(H100).dram_bytes_per_s
    assert by_clock == pytest.approx(2 * 2619e6 * 6016 / 8)
    assert by_clock == pytest.approx(DEVICES_BY_NAME["H100 NVL 94GB"].hbm_bytes_per_s, rel=0.02)
    bare = replace(H100, attributes={"multiprocessor_count": 132.0})
    assert gpu_of(bare).dram_bytes_per_s == DEVICES_BY_NAME["H100 NVL 94GB"].hbm_bytes_per_s


def test_the_details_page_shows_sms_without_attributes() -> None:
    found = {"launch__sm_count": 82.0}
    gpu = gpu_of(Chip(), found)
    assert (gpu.sms, gpu.threads_per_sm) == (82, None)
    assert gpu_of(Chip(), {**found, "launch__uses_green_context": 1.0}).sms is None
    assert gpu_of(H100, found).sms == 132


def test_what_was_collected_is_not_missing() -> None:
    (kernel,) = kernels_of([MM])
    lacks = {lack.metric for lack in kernel.missing}
    assert not lacks & set(kernel.metrics)
    assert HIT in lacks
