"""`make calibrate`: what it prints and writes, on a simulated GPU and without any."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import calibrate
from microbench.bench_file import read_bench_file
from microbench.conditions import Conditions, conditions
from microbench.experiments import experiments, gpu_called, half_of_an_sm
from microbench.simulated_device import SimulatedGpu
from tachograph.annexes.share.calibration import read_calibration
from tachograph.annexes.share.demand import H100_NVL
from tachograph.catalog.devices import DEVICE_CATALOGUE
from tachograph.catalog.errors import NotFoundError, UsageError


def measure(device: SimulatedGpu, *words: str) -> int:
    return calibrate.measure(
        calibrate.options().parse_args(["--runs", "2", *words]), device, None, Conditions
    )


def test_a_rehearsal_writes_the_file_that_advice_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--rehearse",
        "--runs",
        "2",
        "--only",
        "bandwidth",
        "--only",
        "pitfalls",
        "-o",
        str(tmp_path / "c.toml"),
    ]
    assert calibrate.main(words) == 0
    found = read_calibration(tmp_path / "c.toml")
    assert found.measured_on == "NVIDIA H100 NVL"
    assert found.source == "measured: achievable_share, dram_curvature"
    rows = {row.name: row for row in read_bench_file(tmp_path / "c.toml").experiments}
    # Both pitfalls of the published set.
    assert {"pitfall-roofline", "pitfall-occupancy"} <= set(rows)
    assert "interference.calibration" in capsys.readouterr().err


def test_failures_are_reported_and_the_rest_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device = SimulatedGpu(fails=frozenset({"dmul_2"}))
    assert measure(device, "--only", "fp64", "-o", str(tmp_path / "c.toml")) == 0
    assert "fp64-2: dmul_2: CUDA_ERROR_INVALID_VALUE" in capsys.readouterr().err
    assert len(read_bench_file(tmp_path / "c.toml").experiments) == 5
    assert measure(device, "--only", "fp64-2") == 1


def test_the_list_needs_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate.main(["--list"]) == 0
    printed = capsys.readouterr().out
    assert all(one.name in printed for one in experiments(H100_NVL))
    assert calibrate.main(["--list", "--only", "l3"]) == UsageError.exit_code
    assert "groups are" in capsys.readouterr().err


def test_without_a_driver_it_shows_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a GPU")
    pytest.importorskip("cuda.core")
    assert calibrate.main([]) == NotFoundError.exit_code
    assert "no GPU 0 can be used here" in capsys.readouterr().err
    assert calibrate.main(["-o", str(tmp_path / "gone" / "c.toml")]) == UsageError.exit_code
    assert "folder does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    [
        device.name
        for device in DEVICE_CATALOGUE
        if device.vendor == "NVIDIA" and device.architecture != "Pascal"  # no longer in CUDA
    ],
)
def test_every_gpu_of_the_catalogue_has_a_plan(name: str) -> None:
    gpu = gpu_called(name)
    every = experiments(gpu)
    assert len({one.name for one in every}) == len(every)
    assert {one.group for one in every} >= {
        "blocks",
        "bandwidth",
        "l1",
        "issue",
        "fp64",
        "matmul",
        "pitfalls",
    }
    threads = gpu.threads_per_sm or 0
    for one in every:
        assert one.bytes_needed <= (gpu.hbm_bytes or 0)
        for workload in one.workloads:
            assert workload.threads % 32 == 0
            assert workload.threads <= 1024
    assert 2 * half_of_an_sm(gpu) <= threads
    sms = gpu.sms or 0
    for one in every:
        if one.name.endswith("-full") and one.first.kind == "chains":
            assert one.first.blocks + one.first.blocks <= max(2, sms)  # an SM has one of the two
            assert one.shares == (0.5, 0.5)
        if one.name.startswith("small-"):
            assert one.first.blocks <= max(1, sms / 8)


class _Nvml:
    """pynvml, as far as it is asked."""

    NVML_CLOCK_SM = 1

    class NVMLError(Exception):
        pass

    def __init__(
        self, *, fails: str = "", processes: tuple[int, ...] = (1, 99), **answers: object
    ) -> None:
        self.fails, self.processes, self.answers = fails, processes, answers

    def __getattr__(self, name: str) -> object:
        if name == self.fails:
            raise self.NVMLError(name)
        answers = {
            "nvmlDeviceGetComputeRunningProcesses": [
                SimpleNamespace(pid=number) for number in self.processes
            ],
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


def test_a_kernel_that_does_not_end_ends_the_program_after_all_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []

    class Device(SimulatedGpu):
        pci_bus_id = "0000:01:00.0"

        def leave(self, code: int, flush: object) -> None:
            left.append(code)

    device = Device(endless=frozenset({"dmul_4"}))
    monkeypatch.setattr(calibrate, "CudaDevice", lambda number: device)
    target = tmp_path / "c.toml"
    calibrate.main(["--only", "fp64", "--runs", "1", "-o", str(target)])
    assert left == [1]
    assert all(row.problem is not None for row in read_bench_file(target).experiments)
    device = Device()
    assert calibrate.main(["--only", "fp64", "--runs", "1"]) == 0
    assert left == [1]
