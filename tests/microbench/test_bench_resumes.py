"""A bench within a time, killed and continued: what is in the file, what is measured again, what is refused."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from fake_gpu import FakeGpu

from tachograph.catalog.errors import InputError
from tachograph.cli import interference
from tachograph.cli.options import Arguments, Parser, add_common, add_json
from tachograph.sharing.calibration import BenchRow, CalibrationFile, read_calibration_file, write_calibration
from tachograph.sharing.demand import H100_NVL
from tachograph.sharing.microbench.calibrate import Bench
from tachograph.sharing.microbench.conditions import Conditions
from tachograph.sharing.microbench.experiments import experiments
from tachograph.sharing.microbench.run import FEWEST_RUNS, TIME_UP, BenchPlan

PROCESS = Path(__file__).with_name("bench_process.py")
ONLY = ("--only", "fp64", "--only", "blocks", "--runs", "3")
PATIENCE_S = 60.0


def started(folder: Path, told: str, pause_s: float) -> subprocess.Popen[str]:
    words = [sys.executable, str(PROCESS), str(folder / "c.toml"), str(folder / told), str(pause_s), *ONLY]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def rows(folder: Path) -> list[BenchRow]:
    return read_calibration_file(folder / "c.toml").experiments if (folder / "c.toml").exists() else []


def until(folder: Path, process: subprocess.Popen[str], launches: int, pairs: int) -> None:
    """Wait until so many experiments are in the file."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = rows(folder)
        if (
            sum(bool(row.launches) for row in found) >= launches
            and sum(row.times is not None for row in found) >= pairs
        ):
            return
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.01)
    raise AssertionError("the bench did not get so far")


def launched(folder: Path, told: str) -> Counter[str]:
    return Counter((folder / told).read_text().splitlines())


@pytest.mark.parametrize(("launches", "pairs"), [(3, 0), (7, 2)])
def test_a_killed_bench_goes_on_with_what_is_missing(tmp_path: Path, launches: int, pairs: int) -> None:
    first = started(tmp_path, "first", 0.01)
    until(tmp_path, first, launches, pairs)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    before = rows(tmp_path)
    second = started(tmp_path, "second", 0.0)
    printed, said = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 0, said
    after = {row.name: row for row in rows(tmp_path)}
    assert len(after) == 7
    assert all(row.measured is not None and row.problem is None for row in after.values())
    for row in before:  # what was measured is kept as it was, and was predicted before
        if row.launches:
            assert after[row.name].launches == row.launches
        if row.times is not None:
            assert after[row.name] == row
    done = [row.name for row in before if row.times is not None]
    assert len(done) >= pairs
    again = launched(tmp_path, "second")
    chains = {f"fp64-{count}": f"dmul_{count} 132 1" for count in range(1, 5)}
    for name, launch in chains.items():  # in the second stream only pairs run
        assert (again[launch] > 0) == (name not in done), name
    assert all(name in printed for name in after)
    third = started(tmp_path, "third", 0.0)
    third.communicate(timeout=PATIENCE_S)
    assert third.returncode == 0
    assert not (tmp_path / "third").exists(), "a bench that is complete launches nothing"
    assert {row.name: row for row in rows(tmp_path)} == after


def parsed(*words: str) -> Arguments:
    parser = Parser("tachograph interference bench", "x")
    interference.add_bench_arguments(parser)
    add_json(parser)
    add_common(parser)
    found: Arguments = parser.parse_args([*words], Arguments())
    return found


def measure(device: FakeGpu, folder: Path, *words: str) -> int:
    arguments = parsed("-o", str(folder / "c.toml"), *words)
    return interference.measure_bench(arguments, device, None, Conditions, lambda: device.now)


def test_the_file_describes_itself(tmp_path: Path) -> None:
    assert measure(FakeGpu(), tmp_path, *ONLY) == 0
    found = read_calibration_file(tmp_path / "c.toml")
    assert (found.format, found.gpu, found.arch, found.sms) == (2, "NVIDIA H100 NVL", "sm_90", 132)
    assert found.driver == "a simulation"
    assert found.date.startswith("20")
    assert {"python", "tachograph"} <= set(found.versions)
    assert found.plan is not None
    assert (found.plan.runs_asked, found.plan.runs, found.plan.duration_ms) == (3, 3, 50.0)
    row = next(row for row in found.experiments if row.name == "fp64-3")
    assert row.published == 1.356
    assert row.predicted is not None
    assert [len(one.each_s) for one in row.launches] == [3, 3]
    times = row.times
    assert times is not None
    single = (times.first_alone_s, times.second_alone_s, times.in_turn_s, times.first_together_s)
    assert [len(one) for one in single] == [3] * 4
    middle = [sorted(one)[1] for one in (times.in_turn_s, times.first_together_s, times.second_together_s)]
    assert row.measured == middle[0] / max(middle[1:])


def test_a_file_of_another_gpu_or_plan_is_refused(tmp_path: Path) -> None:
    measure(FakeGpu(), tmp_path, *ONLY)
    content = (tmp_path / "c.toml").read_bytes()
    device = FakeGpu(gpu=replace(H100_NVL, name="NVIDIA H200"))
    with pytest.raises(InputError, match=r"c\.toml: it is of another GPU: NVIDIA H100 NVL, not NVIDIA H200; name"):
        measure(device, tmp_path, *ONLY)
    with pytest.raises(InputError, match="another number of SMs: 132, not 114"):
        measure(FakeGpu(gpu=replace(H100_NVL, sms=114)), tmp_path, *ONLY)
    with pytest.raises(InputError, match="another driver: a simulation, not CUDA 13"):
        measure(FakeGpu(driver="CUDA 13"), tmp_path, *ONLY)
    for other in (["--only", "fp64"], [*ONLY, "--runs", "4"], [*ONLY, "--duration", "20"]):
        with pytest.raises(InputError, match="another plan of experiments; give the same options"):
            measure(FakeGpu(), tmp_path, *other)
    assert (tmp_path / "c.toml").read_bytes() == content
    write_calibration(tmp_path / "c.toml", replace_plan(tmp_path))
    with pytest.raises(InputError, match="another plan"):
        measure(FakeGpu(), tmp_path, *ONLY)


def replace_plan(folder: Path) -> CalibrationFile:
    """The file without its plan, as files of the format before."""
    import msgspec

    return msgspec.structs.replace(read_calibration_file(folder / "c.toml"), plan=None)


def test_what_time_does_not_allow_is_done_next_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--only", "issue", "--only", "fp64", "--minutes", "0.5")
    device, asked = FakeGpu(), 0
    while asked < 10:
        asked += 1
        begun = device.now
        measure(device, tmp_path, *words)
        assert device.now - begun <= 30
        found = rows(tmp_path)
        late = [row for row in found if row.problem is not None]
        if not late:
            break
        assert {row.problem for row in late} == {TIME_UP}
        assert f"{len(late)} experiments not run: the time was up" in capsys.readouterr().err
        if any(row.times is not None for row in found):
            assert all(row.predicted is not None for row in found if len(row.launches) == 2)
    assert 1 <= asked < 10
    assert all(row.measured is not None for row in found if len(row.launches) == 2)


def test_nothing_runs_together_while_launches_alone_are_missing(tmp_path: Path) -> None:
    device = FakeGpu()
    arguments = parsed("-o", str(tmp_path / "c.toml"), "--minutes", "0.5", "--runs", "3")
    interference.measure_bench(arguments, device, None, Conditions, lambda: device.now)
    found = rows(tmp_path)
    assert any(not row.launches for row in found)
    assert not any(launch.endswith("1") for launch in device.told)
    assert all(row.predicted is None for row in found)


def test_all_experiments_fit_into_eight_minutes_with_ten_runs() -> None:
    every = experiments(H100_NVL)
    plan = BenchPlan().within(8 * 60, every)
    assert plan.runs == 10
    assert plan.seconds(every) < 8 * 60
    assert BenchPlan().within(4 * 60, every).runs < 10
    assert BenchPlan().within(1, every).runs == FEWEST_RUNS
    assert BenchPlan(runs=2).within(1, every).runs == 2


def test_the_plan_is_not_far_from_what_launches_take() -> None:
    """On the simulated GPU: estimated are launches and setup, and setup takes no time there."""
    from test_microbench_run import predict

    from tachograph.sharing.microbench.run import bench

    device = FakeGpu()
    every, plan = experiments(device.gpu), BenchPlan(runs=3, target_s=0.05)
    found = bench(device, every, plan=plan, predictor=predict)
    problems = [(one.experiment.name, one.problem) for one in found.results if one.problem]
    assert not problems
    assert device.now <= plan.seconds(every)


def test_all_that_was_measured_is_saved_after_each_experiment() -> None:
    from test_microbench_run import predict

    from tachograph.sharing.microbench.run import bench

    saved: list[Bench] = []
    every = [one for one in experiments(H100_NVL) if one.group == "fp64"]
    bench(FakeGpu(), every, plan=BenchPlan(3, 0.02), predictor=predict, save=saved.append)
    alone = [sum(bool(one.alone) for one in found.results) for found in saved]
    pairs = [sum(bool(one.runs) for one in found.results) for found in saved]
    assert alone == [1, 2, 3, 4, 5, *[5] * 6]
    assert pairs == [*[0] * 6, 1, 2, 3, 4, 5]
    assert all(one.expected is not None for one in saved[5].results)
