"""Stored reports that are damaged, cut off or none, and a library that fails."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from made_report import Instanced, MadeLaunch, compressed, report, write
from tachograph.annexes.share.nsight.ncu_rep import DAMAGED, NOT_A_KERNEL
from tachograph.annexes.share.nsight.reports import read_report
from tachograph.catalog.chunks import Reject
from tachograph.catalog.errors import InputError

MADE = [
    MadeLaunch(
        f"kernel_{at}(int)",
        metrics={
            "gpu__time_duration.sum": 1000.0 + at,
            "launch__grid_size": at,
            "per SM": Instanced([1.0, 2.0], 3.0),
        },
        ranges=("outer", "inner"),
    )
    for at in range(8)
]
WHOLE = report(MADE, per_block=3)
# The last stands at the end of each.
_ALONE = [report(MADE[: at + 1], per_block=3) for at in range(len(MADE))]
ENDS = [
    WHOLE.index(name) + len(alone) - alone.index(name)
    for at, alone in enumerate(_ALONE)
    for name in [f"kernel_{at}(".encode()]
]
DIED = re.compile(
    r"the library that reads it died \([A-Z][a-z ]+\): the file is damaged, or memory is short"
)


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_report(path)
    return str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_of_others(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ncu-rep", MADE)
    path.chmod(0)
    assert refusal(path) == f"{path}: Permission denied; name a readable file"


@pytest.mark.parametrize("length", [300, 1100, len(WHOLE) // 2, len(WHOLE) - 1])
def test_a_cut_file_gives_whole_launches_and_reports_the_rest(tmp_path: Path, length: int) -> None:
    path = tmp_path / "a.ncu-rep"
    path.write_bytes(WHOLE[:length])
    report = read_report(path)
    whole = sum(end <= length for end in ENDS)
    assert len(report.launches) <= whole
    assert [launch.metrics["gpu__time_duration.sum"] for launch in report.launches] == [
        1000.0 + at for at in range(len(report.launches))
    ]
    assert report.problems or report.rejects


def stretched(launch: int) -> bytes:
    """The file with 16 bytes too many in one launch: from there on no length stands where it
    should.
    """
    at = WHOLE.index(b"outer", ENDS[launch - 1])
    return WHOLE[:at] + b"x" * 16 + WHOLE[at:]


def test_a_file_that_kills_the_library(tmp_path: Path) -> None:
    """The same in a compressed report; with the library in this process, the tests would end
    here.
    """
    path = tmp_path / "a.ncu-repz"
    path.write_bytes(compressed(stretched(1)))
    found = read_report(path)
    (problem,) = found.problems
    assert DIED.fullmatch(problem), problem


def test_a_launch_that_is_damaged_inside(tmp_path: Path) -> None:
    """The library logs it, and of its whole block hands out launches without metrics."""
    # The field's number becomes one that is not known: its name is missing.
    at = WHOLE.index(b"kernel_4(") - 2
    path = tmp_path / "a.ncu-rep"
    path.write_bytes(WHOLE[:at] + b"\xfa" + WHOLE[at + 1 :])
    found = read_report(path)
    assert [launch.number for launch in found.launches] == [0, 1, 2, 6, 7]
    assert found.rejects == (Reject(DAMAGED, None, 3, ""),)
    (problem,) = found.problems
    assert problem.startswith(
        "parts of it are damaged, their metrics are missing: Can't parse message"
    )


FAKE = """
import os, signal, sys
class IMetric:
    ValueKind_FLOAT, ValueKind_DOUBLE, ValueKind_UINT32, ValueKind_UINT64 = 3, 4, 5, 6
    def as_double(self): return 1.5
    def has_value(self): return True
    def kind(self): return 4
class Action:
    NameBase_FUNCTION, NameBase_DEMANGLED, NameBase_MANGLED, WorkloadType_KERNEL = 0, 1, 2, 0
    def __init__(self, workload): self.workload = workload
    def name(self, base): return f"work {self.workload}"
    def workload_type(self): return self.workload
    def metric_names(self): return ("time", "name that is \\udcff no text")
    def metric_by_name(self, name): return IMetric()
    def nvtx_state(self): return None
def load_report(path):
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of a library that the child finds before the real one."""
    (tmp_path / "fake").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))
    return tmp_path / "fake" / "ncu_report.py"


def made(folder: Path, count: int) -> Path:
    return write(folder / "a.ncu-rep", MADE[:count])


def test_what_is_no_kernel_is_counted(tmp_path: Path, library: Path) -> None:
    library.write_text(
        FAKE + "    return [[Action(0), Action(1)], [Action(3), Action(2), Action(0)]]\n"
    )
    found = read_report(made(tmp_path, 5))
    assert [(launch.kernel, launch.number, dict(launch.metrics)) for launch in found.launches] == [
        ("work 0", 0, {"time": 1.5}),
        ("work 0", 4, {"time": 1.5}),
    ]
    assert found.rejects == (Reject(NOT_A_KERNEL, None, 3, "work 1"),)
    assert found.problems == ()


def test_a_library_that_dies_on_the_way(tmp_path: Path, library: Path) -> None:
    library.write_text(FAKE + "    yield [Action(0)]\n    os.kill(os.getpid(), signal.SIGSEGV)\n")
    assert read_report(made(tmp_path, 5)).problems == (
        (
            "the library that reads it died (Segmentation fault): the file is damaged, or memory "
            "is short"
        ),
    )


def test_a_library_that_takes_all_memory(tmp_path: Path, library: Path) -> None:
    library.write_text(FAKE + "    return [bytearray(64 << 30)]\n")
    assert read_report(made(tmp_path, 5)).problems == (
        "the library that reads it failed: MemoryError",
    )


def test_a_library_that_does_not_load(tmp_path: Path, library: Path) -> None:
    library.write_text("raise ImportError('GLIBC_2.34 not found')\n")
    assert refusal(made(tmp_path, 1)) == (
        f"{tmp_path}/a.ncu-rep: the library of Nsight Compute does not load: GLIBC_2.34 not found; "
        "pip install 'tachograph[share]', or export it: ncu -i a.ncu-rep --page raw --csv > a.csv"
    )
