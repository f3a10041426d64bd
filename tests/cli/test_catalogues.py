"""`tachograph lake counters` and `tachograph lake devices`."""

from __future__ import annotations

import json

import pytest

from tachograph.catalog.counters import COUNTERS
from tachograph.catalog.devices import DEVICE_CATALOGUE
from tachograph.cli import main


def test_every_counter_is_listed_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lake", "counters"]) == 0
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [counter.name for counter in COUNTERS]


def test_counters_as_json_have_names_and_units_of_the_producers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["lake", "counters", "--json"]) == 0
    listed = {counter["name"]: counter for counter in json.loads(capsys.readouterr().out)}
    assert list(listed) == [counter.name for counter in COUNTERS]
    energy = listed["energy_j"]
    assert (energy["dcgm_id"], energy["dcgm_unit"], energy["unit"], energy["kind"]) == (
        156,
        "mJ",
        "J",
        "cumulative",
    )
    assert energy["high"] is None
    assert listed["gpu_util"]["ldms_name"] == "gpu_utilization"
    assert listed["xid"]["ldms_name"] is None


def test_devices_are_listed_with_units(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lake", "devices"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(DEVICE_CATALOGUE)
    (row,) = [line for line in lines if line.startswith("A100 SXM 80GB")]
    # 80 GiB, 2.039 TB/s; 9.7, 19.5, 78, 312, 19.5 TFLOP/s; 9.7 / 2.039 = 4.757 FLOP/B
    assert row.split()[5:] == [
        "80.0",
        "GiB",
        "2.04",
        "TB/s",
        "9.7",
        "19.5",
        "78",
        "312",
        "19.5",
        "4.76",
        "400",
        "W",
    ]


def test_devices_as_json_have_ridge_points_and_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lake", "devices", "--json"]) == 0
    listed = {device["name"]: device for device in json.loads(capsys.readouterr().out)}
    assert list(listed) == [device.name for device in DEVICE_CATALOGUE]
    a100 = listed["A100 SXM 40GB"]
    assert a100["ridges_flop_per_byte"]["fp64"] == pytest.approx(9.7e12 / 1.555e12)
    assert a100["sources"]["hbm_bytes_per_s"] == "NVIDIA A100 datasheet"
    assert listed["MI250X"]["fp16_flop_per_s"] is None
    assert listed["MI250X"]["ridges_flop_per_byte"]["fp16"] is None
