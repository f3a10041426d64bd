"""Devices of the configuration: matched, named and computed with as those of the catalogue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from tachograph.catalog import config, devices
from tachograph.catalog.devices import DEVICE_CATALOGUE, DEVICES_BY_NAME, match_device, ridge
from tachograph.catalog.errors import ConfigError
from tachograph.cli import main
from tachograph.judge.limiter import of_model

NEEDED = """
[[device]]
name = "X900"
hbm_bytes_per_s = 2e12
hbm_mib = 65536
sms = 100
max_warps_per_sm = 64
"""
CARD = (
    NEEDED
    + 'model = "ACME X900*"\nvendor = "ACME"\ntensor_flop_per_s = 3e15\nboard_power_w = 450\n'
)


@pytest.fixture(autouse=True)
def _without_site_devices() -> Iterator[None]:
    yield
    devices.set_site_devices(())


def load(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "tachograph.toml"
    file.write_text(text, encoding="utf-8")
    config.load(str(file), {})
    return file


def test_a_device_of_the_site_is_found_by_its_driver_name(tmp_path: Path) -> None:
    assert match_device("acme x900-OAM") is None
    load(tmp_path, CARD)
    device = match_device("acme x900-OAM")
    assert device is DEVICES_BY_NAME["X900"]
    assert match_device("ACME X900", 65536 * 0.92) is device  # as drivers report less
    assert match_device("ACME X900", 32768) is None
    assert match_device("X900") is None  # its model is what drivers report
    assert ridge(device, "tensor") == 1500
    assert ridge(device, "fp64") is None
    for name in devices.value_fields():
        known = getattr(device, name) is not None
        assert device.source(name) == ("[[device]] of the configuration" if known else None)
    power = pl.DataFrame({"gpu_model": ["X900", "T4", "Y"]}).select(of_model("board_power_w"))
    assert power.to_series().to_list() == [450, 70, None]
    assert [match_device(device.name, device.hbm_mib) for device in DEVICE_CATALOGUE[:9]] == list(
        DEVICE_CATALOGUE[:9]
    )
    load(tmp_path, "")  # another configuration has no such device
    assert match_device("acme x900-OAM") is None
    assert list(DEVICES_BY_NAME) == [device.name for device in DEVICE_CATALOGUE]


def test_a_pattern_decides_before_the_catalogue_where_its_memory_fits(tmp_path: Path) -> None:
    custom = 'name = "A100 SXM 64GB"\nmodel = "NVIDIA A100-SXM-64GB"'
    assert match_device("NVIDIA A100-SXM-64GB", 65536 * 0.99) is None
    load(tmp_path, NEEDED.replace('name = "X900"', custom))
    assert match_device("NVIDIA A100-SXM-64GB", 65536 * 0.99) is DEVICES_BY_NAME["A100 SXM 64GB"]
    load(tmp_path, NEEDED.replace('name = "X900"', 'name = "Z"\nmodel = "NVIDIA A100*"'))
    assert match_device("NVIDIA A100-SXM4-40GB", 40960) is DEVICES_BY_NAME["A100 SXM 40GB"]


def test_the_command_lists_it_after_the_catalogue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = load(tmp_path, CARD)
    assert main(["lake", "devices", "--config", str(file), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in listed] == [*(row.name for row in DEVICE_CATALOGUE), "X900"]
    assert listed[-1]["tensor_flop_per_s"] == 3e15
    assert listed[-1]["fp32_flop_per_s"] is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (NEEDED.replace("sms = 100\n", ""), "device[0] needs 'sms'"),
        (
            NEEDED.replace("= 2e12", "= 0"),
            "device[0].hbm_bytes_per_s must be a number of more than 0.0",
        ),
        (
            NEEDED.replace("100", "100.5"),
            "device[0].sms must be a whole number, not a decimal number",
        ),
        (NEEDED + "hbm_gb = 80", "unknown field 'hbm_gb'"),
        (NEEDED.replace("65536", "1e19"), "device[0].hbm_mib is 1e+19"),
        (NEEDED + NEEDED, "there is a device 'X900'"),
        (NEEDED.replace("X900", "H20"), "there is a device 'H20'; give it another name"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, text)
    assert problem.replace("`", "'") in str(refused.value)
    assert str(tmp_path / "tachograph.toml") in str(refused.value)
