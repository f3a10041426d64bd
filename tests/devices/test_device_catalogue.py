"""The catalogue of devices: values with their sources, and names as drivers and sites write
them.
"""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.catalog import devices
from tachograph.catalog.devices import DEVICE_CATALOGUE, DEVICES_BY_NAME, match_device, ridge


def test_doctests() -> None:
    assert doctest.testmod(devices).failed == 0


def test_names_are_unique_and_every_name_list_points_into_the_catalogue() -> None:
    assert len(DEVICES_BY_NAME) == len(DEVICE_CATALOGUE)
    pointed = {name for names in devices._NAMES.values() for name in names}
    assert pointed == set(DEVICES_BY_NAME)


@pytest.mark.parametrize("device", DEVICE_CATALOGUE, ids=lambda device: device.name)
def test_every_value_has_a_source_and_a_credible_size(device: devices.Device) -> None:
    for name in devices.value_fields():
        value = getattr(device, name)
        assert (device.source(name) is None) == (value is None)
        assert value is None or value > 0
    assert 1e11 < device.hbm_bytes_per_s < 1e13
    assert 11 * 1024 <= device.hbm_mib <= 288 * 1024
    assert device.max_warps_per_sm in {32, 40, 48, 64}
    others = {"MI": "AMD", "Ma": "Intel"}
    assert device.vendor == others.get(device.name[:2], "NVIDIA")
    peaks = [device.peak_flop_per_s(pipe) for pipe in ("fp64", "fp32", "tensor")]
    order = [peak for peak in peaks if peak is not None]
    assert order == sorted(order)


def test_a_virtual_gpu_has_the_peaks_of_its_board_and_its_own_memory() -> None:
    virtual, board = match_device("GRID A100X-10C"), DEVICES_BY_NAME["A100 SXM 40GB"]
    assert virtual is not None
    assert (virtual.tensor_flop_per_s, virtual.hbm_mib) == (board.tensor_flop_per_s, 10 * 1024)
    assert virtual.source("hbm_mib") == "profile of the virtual GPU"


def test_a100_peaks_and_ridges_are_those_of_the_paper() -> None:
    forty, eighty = DEVICES_BY_NAME["A100 SXM 40GB"], DEVICES_BY_NAME["A100 SXM 80GB"]
    assert [forty.peak_flop_per_s(pipe) for pipe in devices.DEVICE_PIPES] == [
        9.7e12,
        19.5e12,
        78e12,
        312e12,
        19.5e12,
    ]
    assert (forty.hbm_bytes_per_s, eighty.hbm_bytes_per_s) == (1.555e12, 2.039e12)
    assert ridge(forty, "fp64") == pytest.approx(6.238, abs=5e-4)
    assert ridge(forty, "fp32") == pytest.approx(12.54, abs=5e-3)
    assert ridge(eighty, "fp64") == pytest.approx(4.757, abs=5e-4)
    assert ridge(eighty, "fp32") == pytest.approx(9.56, abs=5e-3)


def test_ridge_of_an_unpublished_peak_is_unknown_and_an_unknown_pipe_an_error() -> None:
    assert ridge(DEVICES_BY_NAME["MI300X"], "fp16") is None
    with pytest.raises(ValueError, match="no pipe 'int8'"):
        ridge(DEVICES_BY_NAME["L4"], "int8")


def test_blackwell_is_dense_and_per_gpu_as_the_sheets_of_its_boards() -> None:
    """The sheets give sparse tensor peaks, and of the rack and the board also sums over their
    GPUs.
    """
    board, rack = DEVICES_BY_NAME["B200"], DEVICES_BY_NAME["GB200"]
    assert (2 * (board.tensor_flop_per_s or 0), 2 * (rack.tensor_flop_per_s or 0)) == (4.5e15, 5e15)
    assert 8 * board.hbm_bytes_per_s == pytest.approx(62e12, rel=0.01)
    assert 72 * rack.hbm_bytes_per_s == 576e12
    assert (board.l2_bytes, rack.l2_bytes) == (132_644_864, None)


def test_a_die_is_half_of_its_module() -> None:
    whole, die = DEVICES_BY_NAME["MI250X"], DEVICES_BY_NAME["MI250X GCD"]
    for pipe in ("fp64", "fp32", "tensor", "fp64_tensor"):
        assert die.peak_flop_per_s(pipe) == pytest.approx((whole.peak_flop_per_s(pipe) or 0) / 2)
    assert die.hbm_mib * 2 == whole.hbm_mib
    assert die.sms * 2 == whole.sms


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100 SXM 40GB"),
        ("A100-SXM4-80GB", "A100 SXM 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("a100_80g", "A100 SXM 80GB"),
        ("gpu:a100-40", "A100 SXM 40GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM 80GB"),
        ("NVIDIA H100 PCIe", "H100 PCIe 80GB"),
        ("NVIDIA H100 NVL", "H100 NVL 94GB"),
        ("NVIDIA H200", "H200 SXM 141GB"),
        ("h200", "H200 SXM 141GB"),
        ("NVIDIA H200 NVL", "H200 NVL 141GB"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("NVIDIA GH200 144G HBM3e", "GH200 144GB"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("rtx_a6000", "RTX A6000"),
        ("a6000", "RTX A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("rtx6000ada", "RTX 6000 Ada"),
        ("Quadro RTX 6000", "Quadro RTX 6000"),
        ("Tesla V100-SXM2-32GB", "V100 SXM2 32GB"),
        ("Tesla V100-PCIE-16GB", "V100 PCIe 16GB"),
        ("NVIDIA A30", "A30"),
        ("NVIDIA A40", "A40"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA L20", "L20"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA H800", "H800 SXM 80GB"),
        ("NVIDIA A800 80GB PCIe", "A800 PCIe 80GB"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GB300", "GB300"),
        ("NVIDIA GB10", "GB10"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Server"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000 Max-Q"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("rtx_2080_ti", "RTX 2080 Ti"),
        ("NVIDIA RTX A4000", "RTX A4000"),
        ("Tesla P100-SXM2-16GB", "P100 SXM2 16GB"),
        ("Intel(R) Data Center GPU Max 1550", "Max 1550"),
        ("AMD Instinct MI355X OAM", "MI355X"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI300X OAM", "MI300X"),
    ],
)
def test_names_that_say_enough(written: str, name: str) -> None:
    found = match_device(written)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "written",
    [
        None,
        "",
        "a100",
        "v100",
        "h100",
        "GH200",
        "AMD Instinct MI250X",
        "rtx_6000",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA RTX PRO 6000 Blackwell",
        "NVIDIA H20-3e",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA A10G",
        "Tesla P100",
        "Tesla V100S-PCIE-32GB",
        "A1000",
        "x" * 100_000,
    ],
)
def test_names_that_do_not_say_enough(written: str | None) -> None:
    assert match_device(written) is None


# capacities as drivers report them (total, or used + free)
@pytest.mark.parametrize(
    ("written", "hbm_mib", "name"),
    [
        ("a100", 40441, "A100 SXM 40GB"),
        ("a100", 40960, "A100 SXM 40GB"),
        ("a100", 81920, "A100 SXM 80GB"),
        ("a100", 80994, "A100 SXM 80GB"),
        ("h100", 81559, "H100 SXM 80GB"),
        ("h100", 95830, "H100 NVL 94GB"),
        ("v100", 16160, "V100 SXM2 16GB"),
        ("gh200", 97871, "GH200 96GB"),
        ("gh200", 143771, "GH200 144GB"),
        ("h200", 143771, "H200 SXM 141GB"),
        ("rtx_6000", 49140, "RTX 6000 Ada"),
        ("rtx6000", 22698, "Quadro RTX 6000"),
        ("mi250x", 65520, "MI250X GCD"),
        ("NVIDIA L4", 23034, "L4"),
        ("NVIDIA A40", 46068, "A40"),
        ("T4", 15360, "T4"),
        ("T4", 24576, None),
        ("a100", 9728, None),
        ("a100", 60000, None),
        ("NVIDIA A100-SXM4-40GB", 81920, None),
        ("Tesla T4", 15109, "T4"),
        ("NVIDIA A2", 15356, "A2"),
        ("NVIDIA L40", 46068, "L40"),
        ("NVIDIA GeForce RTX 5090", 32607, "RTX 5090"),
        ("NVIDIA GB200", 189471, "GB200"),
        ("AMD Instinct MI210", 65520, "MI210"),
        ("AMD Instinct MI250X / MI250", 65520, "MI250X GCD"),
        ("AMD Instinct MI300A", 131072, "MI300A"),
        ("AMD Instinct MI325X OAM", 262128, "MI325X"),
        ("GRID A100-10C", 9416, "A100-10C"),  # memory that the host reserves is missing
        ("GRID A100-10C", 10240, "A100-10C"),
        ("NVIDIA L40S-48Q", 45056, "L40S-48Q"),
        ("GRID A100D-80C", None, "A100D-80C"),
        ("GRID A100-10C", 40960, None),  # the whole board
        ("GRID A100-10C", 8000, None),
        ("GRID A100-3-20C", None, None),  # a slice
        ("GRID T4-32C", None, None),  # more than the board has
        (None, 40441, None),
        ("", 40441, None),
    ],
)
def test_measured_capacity_decides_or_contradicts_but_never_names(
    written: str | None, hbm_mib: float, name: str | None
) -> None:
    found = match_device(written, hbm_mib)
    assert (found.name if found else None) == name


@given(st.text(max_size=40), st.none() | st.floats(allow_nan=True))
def test_any_text_is_answered(written: str, hbm_mib: float | None) -> None:
    found = match_device(written, hbm_mib)
    assert found is None or found in DEVICE_CATALOGUE


@given(st.sampled_from(DEVICE_CATALOGUE), st.floats(0.965, 1.0))
def test_full_driver_name_and_a_reported_capacity_agree(
    device: devices.Device, share: float
) -> None:
    form = {"sxm": "SXM", "pcie": "PCIe", "nvl": "NVL"}.get(device.form, "")
    chip = next(chip for chip, names in devices._NAMES.items() if device.name in names)
    assert match_device(f"{chip} {form}", device.hbm_mib * share) == device
