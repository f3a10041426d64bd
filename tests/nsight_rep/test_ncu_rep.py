"""Stored reports, written by tests/made_report.py and read by the library of Nsight Compute
itself.
"""

from __future__ import annotations

import math
import os
import random
from pathlib import Path

import pytest

from made_report import Instanced, MadeLaunch, Single, Value, compressed, report, write
from tachograph.annexes.share.nsight.launches import Chip, Launch, NcuReport
from tachograph.annexes.share.nsight.reports import read_report

H200: dict[str, Value] = {
    "device__attribute_display_name": "NVIDIA H200",
    "device__attribute_compute_capability_major": 9,
    "device__attribute_compute_capability_minor": 0,
    "device__attribute_multiprocessor_count": 132,
    "device__attribute_clock_rate": 1_980_000,
    "device__attribute_total_memory": 150_754_820_096,
}
CHIP = Chip(
    "NVIDIA H200",
    "9.0",
    {
        "compute_capability_major": 9.0,
        "compute_capability_minor": 0.0,
        "multiprocessor_count": 132.0,
        "clock_rate": 1_980_000.0,
        "total_memory": 150_754_820_096.0,
    },
)


def read(folder: Path, *launches: MadeLaunch) -> NcuReport:
    return read_report(write(folder / "made.ncu-rep", launches))


def test_a_launch_with_all_that_belongs_to_it(tmp_path: Path) -> None:
    grid: dict[str, Value] = {
        f"launch__grid_dim_{axis}": size for axis, size in zip("xyz", (264, 2, 1), strict=True)
    }
    block: dict[str, Value] = {
        f"launch__block_dim_{axis}": size for axis, size in zip("xyz", (32, 8, 1), strict=True)
    }
    made = MadeLaunch(
        "void axpy<float>(int, float, float const*, float*)",
        "axpy",
        metrics={**H200, **grid, **block, "gpu__time_duration.sum": 12_345.0},
        ranges=("epoch 3", "backward"),
    )
    found = read(tmp_path, made)
    assert (found.rejects, found.problems) == ((), ())
    assert found.file == str(tmp_path / "made.ncu-rep")
    assert found.launches == (
        Launch(
            kernel="void axpy<float>(int, float, float const*, float*)",
            metrics={
                **{
                    f"launch__grid_dim_{axis}": size
                    for axis, size in zip("xyz", (264.0, 2.0, 1.0), strict=True)
                },
                **{
                    f"launch__block_dim_{axis}": size
                    for axis, size in zip("xyz", (32.0, 8.0, 1.0), strict=True)
                },
                "gpu__time_duration.sum": 12_345.0,
            },
            chip=CHIP,
            report=str(tmp_path / "made.ncu-rep"),
            number=0,
            grid=(264, 2, 1),
            block=(32, 8, 1),
            ranges=("epoch 3", "backward"),
        ),
    )


def test_every_kind_of_value_exactly(tmp_path: Path) -> None:
    stored: dict[str, Value] = {
        "double": 0.1,
        "tiny": 5e-324,
        "huge": 1.7976931348623157e308,
        "zero": 0.0,
        "uint64": 2**53 - 1,
        "uint64 zero": 0,
        "float32": Single(0.5),
        "float32 zero": Single(0.0),
        "uint32": Single(4_294_967_295),
        "uint32 zero": Single(0),
        "one per SM": Instanced([3.0, 5.0], 8.0),
        "one per SM, in sum 0": Instanced([0, 0], 0),
        "one per SM alone": Instanced([3.0, 5.0]),
        "text": "a100",
        "text that looks like a number": "7",
        "nothing": None,
        "NaN": math.nan,
        "infinite": math.inf,
    }
    (launch,) = read(tmp_path, MadeLaunch(metrics=stored)).launches
    assert dict(launch.metrics) == {
        "double": 0.1,
        "tiny": 5e-324,
        "huge": 1.7976931348623157e308,
        "zero": 0.0,
        "uint64": float(2**53 - 1),
        "uint64 zero": 0.0,
        "float32": 0.5,
        "float32 zero": 0.0,
        "uint32": 4_294_967_295.0,
        "uint32 zero": 0.0,
        "one per SM": 8.0,
        "one per SM, in sum 0": 0.0,
    }


@pytest.mark.parametrize("seed", range(3))
def test_what_is_written_is_read(tmp_path: Path, seed: int) -> None:
    """Kernels with different metrics in turn, in blocks of different length."""
    draw = random.Random(seed)
    made = [
        MadeLaunch(
            f"kernel_{number % 7}(int)",
            metrics={
                f"metric_{at}": draw.choice((draw.random() * 1e12, draw.randrange(1 << 50)))
                for at in at_hand
            },
            ranges=tuple(f"range {at}" for at in range(number % 3)),
            stream=number % 4,
        )
        for number in range(150)
        for at_hand in [draw.sample(range(60), draw.randrange(1, 40))]
    ]
    found = read_report(write(tmp_path / "made.ncu-rep", made, per_block=draw.randrange(1, 60)))
    assert [each.number for each in found.launches] == list(range(150))
    assert [(each.kernel, dict(each.metrics), each.ranges) for each in found.launches] == [
        (each.name, each.metrics, each.ranges) for each in made
    ]


def test_a_compressed_report_under_any_name(tmp_path: Path) -> None:
    content = compressed(report([MadeLaunch(metrics={"x": float(at)}) for at in range(900)]))
    for name in ("made.ncu-repz", "made.ncu-rep"):
        (tmp_path / name).write_bytes(content)
        found = read_report(tmp_path / name)
        assert found.problems == ()
        assert [launch.metrics["x"] for launch in found.launches] == [
            float(at) for at in range(900)
        ]


def test_a_name_that_is_no_utf_8(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9 'x'.ncu-rep")
    assert len(read_report(write(path, [MadeLaunch(metrics={"x": 1.0})])).launches) == 1


def test_launches_without_any_metric_are_counted(tmp_path: Path) -> None:
    found = read(
        tmp_path, MadeLaunch(metrics={"x": 1.0}), MadeLaunch("bare()"), MadeLaunch("bare()")
    )
    assert [launch.number for launch in found.launches] == [0]
    ((reason, column, count, example),) = [
        (r.reason, r.column, r.count, r.example) for r in found.rejects
    ]
    assert (reason, column, count, example) == ("no metrics", None, 2, "bare()")


def test_a_report_of_nothing(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert found.launches == ()
    (problem,) = found.problems
    assert problem == (
        "it contains no results; if it should: export it with the Nsight Compute that "
        "wrote it: "
        "ncu -i made.ncu-rep --page raw --csv > made.csv"
    )
