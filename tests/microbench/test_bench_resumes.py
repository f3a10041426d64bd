"""A bench within a time, ended and continued: what is in the file, what is measured again, what
is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import calibrate
from microbench.bench_file import BenchRow, read_bench_file, write_bench_file
from microbench.conditions import Conditions
from microbench.run import TIME_UP
from microbench.simulated_device import SimulatedGpu, SimulatedMark
from tachograph.annexes.share.demand import H100_NVL
from tachograph.catalog.errors import InputError

ONLY = ("--only", "fp64", "--only", "blocks", "--runs", "3")


class EndingGpu(SimulatedGpu):
    """The process ends at a wait for the GPU, as by a signal: nothing is written after it."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self.left = waits

    def wait(self, marks: Sequence[SimulatedMark], limit_s: float) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        super().wait(marks, limit_s)


def rows(folder: Path) -> list[BenchRow]:
    return read_bench_file(folder / "c.toml").experiments if (folder / "c.toml").exists() else []


def measure(device: SimulatedGpu, folder: Path, *words: str) -> int:
    arguments = calibrate.options().parse_args(["-o", str(folder / "c.toml"), *words])
    return calibrate.measure(arguments, device, None, Conditions, lambda: device.now)


@pytest.mark.parametrize(("waits", "launches", "pairs"), [(60, 3, 0), (115, 6, 0), (145, 7, 2)])
def test_a_bench_that_was_ended_goes_on_with_what_is_missing(
    tmp_path: Path, waits: int, launches: int, pairs: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        measure(EndingGpu(waits), tmp_path, *ONLY)
    before = rows(tmp_path)
    assert sum(bool(row.launches) for row in before) >= launches
    done = [row.name for row in before if row.times is not None]
    assert pairs <= len(done) < 7
    second = SimulatedGpu()
    assert measure(second, tmp_path, *ONLY) == 0
    after = {row.name: row for row in rows(tmp_path)}
    assert len(after) == 7
    assert all(row.measured is not None and row.problem is None for row in after.values())
    for row in before:  # what was measured is kept as it was, and was predicted before
        if row.launches:
            assert after[row.name].launches == row.launches
        if row.times is not None:
            assert after[row.name] == row
    again = Counter(second.launched)
    for chains in (1, 2, 3):  # in the second stream only pairs run
        assert (again[f"dmul_{chains} 1"] > 0) == (f"fp64-{chains}" not in done)
    third = SimulatedGpu()
    assert measure(third, tmp_path, *ONLY) == 0
    assert third.launched == [], "a bench that is complete launches nothing"
    assert {row.name: row for row in rows(tmp_path)} == after


def test_a_file_of_another_gpu_or_plan_is_refused(tmp_path: Path) -> None:
    measure(SimulatedGpu(), tmp_path, *ONLY)
    content = (tmp_path / "c.toml").read_bytes()
    device = SimulatedGpu(gpu=replace(H100_NVL, name="NVIDIA H200"))
    with pytest.raises(
        InputError, match=r"c\.toml: it is of another GPU: NVIDIA H100 NVL, not NVIDIA H200; name"
    ):
        measure(device, tmp_path, *ONLY)
    with pytest.raises(InputError, match="another number of SMs: 132, not 114"):
        measure(SimulatedGpu(gpu=replace(H100_NVL, sms=114)), tmp_path, *ONLY)
    with pytest.raises(InputError, match="another driver: a simulation, not CUDA 13"):
        measure(SimulatedGpu(driver="CUDA 13"), tmp_path, *ONLY)
    for other in (["--only", "fp64"], [*ONLY, "--runs", "4"], [*ONLY, "--duration", "20"]):
        with pytest.raises(InputError, match="another plan of experiments; give the same options"):
            measure(SimulatedGpu(), tmp_path, *other)
    assert (tmp_path / "c.toml").read_bytes() == content
    before = read_bench_file(tmp_path / "c.toml")
    write_bench_file(tmp_path / "c.toml", msgspec.structs.replace(before, plan=None))
    with pytest.raises(InputError, match="another plan"):
        measure(SimulatedGpu(), tmp_path, *ONLY)


def test_what_time_does_not_allow_is_done_next_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--only", "issue", "--only", "fp64", "--minutes", "0.5")
    device, calls = SimulatedGpu(), 0
    while calls < 10:
        calls += 1
        begun = device.now
        measure(device, tmp_path, *words)
        assert device.now - begun <= 30
        measured = rows(tmp_path)
        late = [row for row in measured if row.problem is not None]
        if not late:
            break
        assert {row.problem for row in late} == {TIME_UP}
        assert f"{len(late)} experiments not run: the time was up" in capsys.readouterr().err
        if any(row.times is not None for row in measured):
            assert all(row.predicted is not None for row in measured if len(row.launches) == 2)
    assert 1 <= calls < 10
    assert all(row.measured is not None for row in measured if len(row.launches) == 2)
