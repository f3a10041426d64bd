"""`tachograph interference bench`: what it prints and writes, with a simulated GPU and without any."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_gpu import FakeGpu

from tachograph.catalog.devices import DEVICE_CATALOGUE
from tachograph.catalog.errors import NotFoundError, UsageError
from tachograph.cli import interference
from tachograph.cli.options import Arguments, Parser, add_common, add_json
from tachograph.sharing.calibration import read_calibration_file
from tachograph.sharing.demand import H100_NVL
from tachograph.sharing.microbench.conditions import Conditions, conditions
from tachograph.sharing.microbench.cuda_device import CudaDevice
from tachograph.sharing.microbench.experiments import every_experiment, experiments, gpu_called, half_of_an_sm


def parsed(*words: str) -> Arguments:
    parser = Parser("tachograph interference bench", "x")
    interference.add_bench_arguments(parser)
    add_json(parser)
    add_common(parser)
    found: Arguments = parser.parse_args([*words], Arguments())
    return found


def measure(device: FakeGpu, *words: str) -> int:
    return interference.measure_bench(parsed("--runs", "2", *words), device, None, Conditions)


def test_the_table_shows_what_the_json_and_the_file_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--only", "fp64-3", "--only", "bandwidth", "-o", str(tmp_path / "c.toml")]
    assert measure(FakeGpu(beside={("dmul_3", "dmul_3"): 0.7}), *words) == 0
    message = capsys.readouterr()
    line = next(line for line in message.out.splitlines() if line.startswith("fp64-3")).split()
    assert "2 of 10 values measured" in message.err
    content = read_calibration_file(tmp_path / "c.toml")
    row = next(row for row in content.experiments if row.name == "fp64-3")
    assert row.predicted is not None
    assert row.measured is not None
    assert line[3:6] == [f"{row.predicted:.3f}", f"{row.calibrated:.3f}", f"{row.measured:.3f}"]
    assert line[-2:] == [f"{row.predicted / row.measured - 1:+.1%}", "1.356"]
    assert measure(FakeGpu(beside={("dmul_3", "dmul_3"): 0.7}), "--json", *words[:-2]) == 0
    result = json.loads(capsys.readouterr().out)
    rows = {one["name"]: one for one in result["calibration"]["experiments"]}
    assert rows["fp64-3"]["measured"] == row.measured
    assert len(result["results"][-1]["runs"]) == 2


def test_failures_are_reported_and_the_rest_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device = FakeGpu(fails=frozenset({"dmul_2"}))
    assert measure(device, "--only", "fp64", "-o", str(tmp_path / "c.toml")) == 0
    assert "fp64-2: dmul_2: CUDA_ERROR_INVALID_VALUE" in capsys.readouterr().err
    assert len(read_calibration_file(tmp_path / "c.toml").experiments) == 5
    assert measure(device, "--only", "fp64-2") == 1


def test_what_disturbs_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    disturbed = Conditions(others=(99,), held_back=("power cap",))
    interference.measure_bench(parsed("--runs", "1", "--only", "fp64-1"), FakeGpu(), None, lambda: disturbed)
    message = capsys.readouterr().err
    assert message.count("warning: other processes are on this GPU (99)") == 1
    assert "held back: power cap" in message


def test_plans_need_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--list", "--dry-run"):
        assert interference.run_bench(parsed(option)) == 0
        message = capsys.readouterr().out
        assert all(one.name in message for one in experiments(H100_NVL))
        assert interference.run_bench(parsed(option, "--json", "--as", "A40")) == 0
        assert json.loads(capsys.readouterr().out)["gpu"]["sms"] == 84
    with pytest.raises(UsageError, match="groups are"):
        interference.run_bench(parsed("--list", "--only", "l3"))
    with pytest.raises(NotFoundError, match="MI300X"):
        interference.run_bench(parsed("--list", "--as", "MI300X"))


def test_without_a_driver_it_shows_so(tmp_path: Path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a GPU")
    pytest.importorskip("cuda.core")
    with pytest.raises(NotFoundError, match="no GPU 0 can be used here"):
        interference.run_bench(parsed())
    with pytest.raises(UsageError, match="folder does not exist"):
        interference.run_bench(parsed("-o", str(tmp_path / "gone" / "c.toml")))


def test_without_the_extra_it_shows_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cuda", "cuda.core", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, None)
    for wanted in (lambda: CudaDevice(0), lambda: interference.run_bench(parsed("--compile"))):
        with pytest.raises(UsageError, match=r"pip install 'tachograph\[cuda\]'"):
            wanted()


@pytest.mark.parametrize("mode", [[], ["--compile"], ["--list"]])
def test_names_are_checked_before_a_gpu_is_looked_for(monkeypatch: pytest.MonkeyPatch, mode: list[str]) -> None:
    for name in ("cuda", "cuda.core", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match="no experiment 'nonsense'"):
        interference.run_bench(parsed(*mode, "--only", "fp64", "--only", "nonsense"))
    with pytest.raises(NotFoundError, match="'nonsense'"):
        interference.run_bench(parsed(*mode, "--as", "nonsense"))


def test_a_name_that_only_some_gpus_have_is_known() -> None:
    """The H100 has no l1-24; the A100, which may be the GPU at hand, has."""
    names = {one.name for one in every_experiment()}
    assert {"l1-24", "l1-128", "fp64-1"} <= names
    assert "l1-24" not in {one.name for one in experiments(H100_NVL)}


def test_the_list_explains_what_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    interference.run_bench(parsed("--list"))
    below = capsys.readouterr().out.partition("\ncompared:\n")[2].splitlines()
    assert [line.split(":")[0].strip() for line in below] == ["gain", "first", "second", "both", "–"]
    interference.run_bench(parsed("--list", "--only", "blocks"))
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()[-2:]] == ["compared", "  gain"]


@pytest.mark.parametrize("words", [["--runs", "0"], ["--runs", "x"], ["--duration", "nan"], ["--duration", "0"]])
def test_senseless_options_are_refused(words: list[str]) -> None:
    with pytest.raises(UsageError):
        parsed(*words)


@pytest.mark.parametrize("name", [device.name for device in DEVICE_CATALOGUE if device.vendor == "NVIDIA"])
def test_every_gpu_of_the_catalogue_has_a_plan(name: str) -> None:
    gpu = gpu_called(name)
    every = experiments(gpu)
    assert len({one.name for one in every}) == len(every)
    assert {one.group for one in every} >= {"blocks", "bandwidth", "l1", "issue", "fp64", "matmul", "pitfalls"}
    threads = gpu.threads_per_sm or 0
    for one in every:
        assert one.bytes_needed <= (gpu.hbm_bytes or 0)
        for workload in one.workloads:
            assert workload.threads % 32 == 0
            assert workload.threads <= 1024
    assert 2 * half_of_an_sm(gpu) <= threads


class _Nvml:
    """pynvml, as far as it is asked."""

    NVML_CLOCK_SM = 1

    class NVMLError(Exception):
        pass

    def __init__(self, *, fails: str = "", processes: tuple[int, ...] = (1, 99), **answers: object) -> None:
        self.fails, self.processes, self.answers = fails, processes, answers

    def __getattr__(self, name: str) -> object:
        if name == self.fails:
            raise self.NVMLError(name)
        answers = {
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=number) for number in self.processes],
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x4 | 0x1,
            "nvmlDeviceGetClockInfo": 1700,
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlSystemGetDriverVersion": "570.1",
            "nvmlSystemGetProcessName": "python",
            "nvmlDeviceGetMigMode": [0, 0],
            **self.answers,
        }
        return lambda *words: answers.get(name)


def test_clocks_and_other_processes_come_from_nvml() -> None:
    found = conditions("0000:01:00.0", _Nvml())
    assert found == Conditions(1700, 1980, (1, 99), ("power cap",), "570.1")
    assert len(found.warnings()) == 2
    for fails in ("nvmlInit", "nvmlDeviceGetHandleByPciBusId"):
        assert conditions("0000:01:00.0", _Nvml(fails=fails)) == Conditions()


def test_what_nvml_does_not_report_keeps_nothing_else_back() -> None:
    for fails, gone in (
        ("nvmlDeviceGetClockInfo", "sm_clock_mhz"),
        ("nvmlDeviceGetComputeRunningProcesses", "others"),
        ("nvmlDeviceGetCurrentClocksThrottleReasons", "held_back"),
        ("nvmlDeviceGetMigMode", "mig"),
    ):
        found, all_of_it = conditions("x", _Nvml(fails=fails)), conditions("x", _Nvml())
        assert replace(all_of_it, **{gone: getattr(Conditions(), gone)}) == found


def test_neither_this_process_nor_the_server_of_mps_disturbs() -> None:
    assert conditions("x", _Nvml(processes=(os.getpid(), 1))).others == (1,)
    assert conditions("x", _Nvml(nvmlSystemGetProcessName="/usr/bin/nvidia-cuda-mps-server")).others == ()
    # a number of the host, seen within a container
    assert conditions("x", _Nvml(processes=(1 << 30,))).others == ()
    assert conditions("x", _Nvml(processes=(1 << 30, 2 << 30))).others == (1 << 30, 2 << 30)


def test_an_instance_of_mig_is_reported() -> None:
    (message,) = conditions(
        "x", _Nvml(nvmlDeviceGetMigMode=[1, 1], processes=(), nvmlDeviceGetCurrentClocksThrottleReasons=0)
    ).warnings()
    assert message.startswith("MIG divides this GPU")


def test_a_kernel_that_does_not_end_ends_the_program_after_all_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left: list[tuple[int, int]] = []

    class Device(FakeGpu):
        pci_bus_id = "0000:01:00.0"

        def leave(self, code: int, flush: object) -> None:
            left.append((code, len(capsys.readouterr().out)))

    device = Device(endless=frozenset({"dmul_4"}))
    monkeypatch.setattr("tachograph.sharing.microbench.cuda_device.CudaDevice", lambda number: device)
    target = tmp_path / "c.toml"
    interference.run_bench(parsed("--only", "fp64", "--runs", "1", "-o", str(target)))
    assert [code for code, _ in left] == [1]
    assert left[0][1] > 0
    assert all(row.problem is not None for row in read_calibration_file(target).experiments)
    device = Device()
    assert interference.run_bench(parsed("--only", "fp64", "--runs", "1", "--quiet")) == 0
    assert len(left) == 1
