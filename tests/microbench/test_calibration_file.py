"""The file of a calibration: what is written is read again, what is broken is said with its
place.
"""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from microbench.bench_file import (
    BenchFile,
    BenchRow,
    LaunchTimes,
    PairTimes,
    PlanRecord,
    read_bench_file,
    write_bench_file,
)
from tachograph.annexes.share.calibration import (
    CALIBRATION_LIMITS,
    CalibrationValue,
    calibration_of,
    read_calibration,
    shipped_calibrations,
)
from tachograph.annexes.share.demand import Calibration
from tachograph.catalog import config
from tachograph.catalog.errors import ConfigError, InputError

SOME = BenchFile(
    gpu='NVIDIA "H200"\n',
    driver="CUDA 12.9",
    date="2026-01-02T03:04:05Z",
    calibration={
        "dram_curvature": CalibrationValue(0.43, "measured", "bandwidth", 0.01),
        "l1_miss_cost": CalibrationValue(4.0, "published"),
        "l2_bytes_per_s": CalibrationValue(None, "published", note="not measured"),
    },
    arch="sm_90",
    sms=132,
    versions={"python": "3.11", "cuda.core": "1"},
    plan=PlanRecord(10, 7, 50.0, ["fp64-3", "l2-16"], mps=True),
    knees={"l2_array_bytes_alone": 24e6},
    experiments=[
        BenchRow("fp64-3", "streams", "gain", 1.37, None, 1.356, 1.3, 1.4, 1.356),
        BenchRow("l2-16", "mps", "both", problem="no room"),
        BenchRow(
            "fp64-3",
            "mps",
            "gain",
            1.5,
            launches=[LaunchTimes("dmul", 0, 7, 9, 0.5, [0.5, 0.25])] * 2,
            times=PairTimes([0.5], [0.5], [0.75], [1.0]),
        ),
        BenchRow("issue-all", "streams", "gain", launches=[LaunchTimes("fmul", 0, 7, 9, 0.5)]),
    ],
)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    write_bench_file(tmp_path / "c.toml", SOME)
    assert read_bench_file(tmp_path / "c.toml") == SOME
    assert [one.name for one in tmp_path.iterdir()] == ["c.toml"]


def test_the_estimator_gets_what_was_measured_and_else_what_is_published(tmp_path: Path) -> None:
    write_bench_file(tmp_path / "c.toml", SOME)
    found = read_calibration(tmp_path / "c.toml")
    assert (found.dram_curvature, found.issue_capacity) == (0.43, 1.0)
    assert (found.measured_on, found.source) == (SOME.gpu, "measured: dram_curvature")
    cost = CalibrationValue(Calibration().l1_miss_cost, "published")
    bare = BenchFile(gpu="x", driver="", date="", calibration={"l1_miss_cost": cost}).values
    assert bare == Calibration()


def test_the_configuration_names_it(tmp_path: Path) -> None:
    write_bench_file(tmp_path / "c.toml", SOME)
    plain = config.Configuration()
    assert calibration_of(plain) == Calibration()
    named = config.Configuration(
        interference=config.InterferenceOptions(calibration=str(tmp_path / "c.toml"))
    )
    assert calibration_of(named).dram_curvature == 0.43
    gone = config.Configuration(
        interference=config.InterferenceOptions(calibration=str(tmp_path / "gone.toml"))
    )
    with pytest.raises(ConfigError, match=r"interference\.calibration.*no file"):
        calibration_of(gone)
    folder = config.Configuration(
        interference=config.InterferenceOptions(calibration=str(tmp_path))
    )
    with pytest.raises(ConfigError, match="is a folder"):
        calibration_of(folder)


GOOD = (
    'format = 1\ngpu = "x"\ndriver = ""\ndate = ""\n'
    '[calibration.l2_miss_cost]\nvalue = 3.0\nprovenance = "measured"\n'
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "gpu"),
        ("gpu = ", "invalid TOML"),
        (
            GOOD.replace("= 3.0", '= "3"'),
            r"Expected 'float \| null', got 'str' - at 'calibration\.l2_miss_cost\.value'",
        ),
        (
            GOOD.replace("= 3.0", "= -3.0"),
            r"calibration\.l2_miss_cost\.value is -3: it must lie between 1 and 1000",
        ),
        (GOOD.replace("= 3.0", "= nan"), r"calibration\.l2_miss_cost\.value"),
        (GOOD.replace("= 3.0", "= 0.5"), "between 1 and 1000"),
        (
            GOOD.replace("measured", "guessed"),
            r"'guessed' - at 'calibration\.l2_miss_cost\.provenance'",
        ),
        (GOOD + "[calibration]\nx = 1\n", r"Expected 'object', got 'int' - at 'calibration\.x'"),
        ("calibration = 3\n" + GOOD.partition("[")[0], "calibration"),
        (f"gpu = {'9' * 5000}", "invalid TOML"),
        ("gpu = " + "[" * 30_000, "nested too deeply"),
        (GOOD.replace("l2_miss_cost", "l3_miss_cost"), r"calibration\.l3_miss_cost"),
        (GOOD.replace("format = 1", "format = 9"), "format 9"),
        (GOOD + "surplus = 1\n", "surplus"),
        (
            GOOD.replace("value = 3.0\n", ""),
            r"calibration\.l2_miss_cost is marked as measured but has no value",
        ),
    ],
)
def test_a_broken_file_is_named_with_its_key(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "c.toml").write_text(content)
    with pytest.raises(InputError, match=message) as found:
        read_calibration(tmp_path / "c.toml")
    assert "c.toml" in str(found.value)


def test_files_of_the_format_before_are_read(tmp_path: Path) -> None:
    rows = (
        '[[experiments]]\nname = "fp64-3"\nmode = "streams"\ncompared = "gain"\nmeasured = 1.36\n'
    )
    (tmp_path / "c.toml").write_text(GOOD + "[knees]\nl2_array_bytes_alone = 2.4e7\n" + rows)
    found = read_bench_file(tmp_path / "c.toml")
    assert found.values.l2_miss_cost == 3.0
    assert (found.plan, found.experiments[0].measured, found.experiments[0].launches) == (
        None,
        1.36,
        [],
    )
    assert found.values.l2_knee == Calibration().l2_knee


def test_every_value_of_a_calibration_has_limits_that_the_published_ones_keep() -> None:
    values = {one.name for one in fields(Calibration)} - {"measured_on", "source"}
    assert set(CALIBRATION_LIMITS) == values
    for name, (least, most) in CALIBRATION_LIMITS.items():
        value = getattr(Calibration(), name)
        assert value is None or least <= value <= most


@pytest.mark.parametrize(("name", "file"), shipped_calibrations().items())
def test_shipped_calibrations_are_named_by_the_configuration(name: str, file: Path) -> None:
    named = config.Configuration(interference=config.InterferenceOptions(calibration=name))
    found = calibration_of(named)
    assert found == read_calibration(file)
    assert found.measured_on is not None
    raw = tomllib.loads(file.read_text())
    assert {entry["provenance"] for entry in raw["calibration"].values()} == {"measured"}
    assert set(raw["calibration"]) == set(CALIBRATION_LIMITS)
    assert raw["driver"]
    assert raw["date"]


@pytest.mark.recorded
def test_the_shipped_calibration_of_the_h100_is_that_of_its_recorded_bench(recorded: Path) -> None:
    bench = recorded / "h100_day" / "calibration.toml"
    assert read_calibration(shipped_calibrations()["h100-sxm-80gb"]) == read_calibration(bench)
    rows = read_bench_file(bench).experiments
    assert len(rows) == 79
    assert sum(row.measured is not None for row in rows) == 64
