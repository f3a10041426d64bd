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
from tachograph.annexes.share.nsight.launches import NcuReport
from tachograph.annexes.share.nsight.reports import read_report


def read(folder: Path, *launches: MadeLaunch) -> NcuReport:
    return read_report(write(folder / "made.ncu-rep", launches))


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
