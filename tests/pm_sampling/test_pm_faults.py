"""Every reason why a GPU is not sampled: one line with what to do, told apart from the others."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from pm_node import PmNode, gpu

from tachograph.annexes.watch.pm_sampling.faults import FAULTS, RETRIED, PmSamplingError, is_running
from tachograph.annexes.watch.pm_sampling.library import list_gpus, load_library
from tachograph.annexes.watch.pm_sampling.sampler import DeviceSampler, PmInterval

CASES = [
    ("enable", "PermissionError:Insufficient privileges", (), "privileges"),
    ("enable", "ERROR_HARDWARE_BUSY", ("dcgm",), "dcgm"),
    ("enable", "ERROR_HARDWARE_BUSY", (), "session"),
    ("enable", "RuntimeError:PM sampling is already enabled on this device.", ("dcgm",), "dcgm"),
    ("enable", "RuntimeError:PM sampling is already enabled on this device.", (), "session"),
    ("start", "ERROR_HARDWARE_BUSY", ("dcgm",), "dcgm"),
    ("start", "ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED", (), "session"),
    ("configure", "ERROR_INSUFFICIENT_PRIVILEGES", (), "privileges"),
    ("enable", "ERROR_MIG_DEVICE_NOT_SUPPORTED", (), "mig"),
    ("enable", "ERROR_NOT_SUPPORTED", ("mps",), "mps"),
    ("enable", "ERROR_UM_PROFILING_NOT_SUPPORTED_WITH_MPS", (), "mps"),
    ("enable", "ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED", (), "vgpu"),
    ("enable", "ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES", (), "vgpu_privileges"),
    ("enable", "ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED", (), "confidential"),
    ("enable", "ERROR_WSL_DEVICE_NOT_SUPPORTED", (), "wsl"),
    ("enable", "ERROR_NOT_SUPPORTED", (), "chip"),
    ("enable", "ERROR_CMP_DEVICE_NOT_SUPPORTED", (), "chip"),
    ("configure", "ValueError:Invalid chip_name 'GV100'", (), "chip"),
    (
        "configure",
        "ValueError:Requested PM sampling configuration is not supported. ",
        (),
        "interval",
    ),
    ("enable", "RuntimeError:CUPTI could not load the nvperf* libraries required", (), "nvperf"),
    ("enable", "RuntimeError:only CUDA 13.0 or later driver is supported", (), "driver_old"),
    ("enable", "ValueError:Invalid device_index: 0", (), "lost"),
    ("enable", "ERROR_HARDWARE", (), "lost"),
    ("enable", "ERROR_UNKNOWN", (), "unknown"),
]


@pytest.mark.parametrize(("step", "raised", "running", "code"), CASES)
def test_a_refusal_has_its_own_line(
    tmp_path: Path, step: str, raised: str, running: tuple[str, ...], code: str
) -> None:
    node = PmNode(tmp_path, [gpu(faults={step: raised})])
    with node.library() as library:
        sampler = DeviceSampler(
            library, node.listed(library), PmInterval(), running=lambda kind: kind in running
        )
        with pytest.raises(PmSamplingError) as caught:
            sampler.open()
    fault = caught.value
    assert fault.code == code
    assert fault.is_retried == (code in RETRIED)
    assert "\n" not in str(fault)
    own_text = ("CUPTI: ERROR_UNKNOWN (999)", "retried")
    assert (fault.what, fault.do) == FAULTS.get(code, own_text)


def test_every_fault_of_a_gpu_is_tested_and_says_what_to_do() -> None:
    elsewhere = {"passes", "overflow"}  # test_pm_metrics, test_pm_sampler
    assert set(FAULTS) == {code for *_, code in CASES} - {"unknown"} | elsewhere
    assert all(do for _, do in FAULTS.values())


@pytest.mark.parametrize(
    ("node_of", "code"),
    [
        ({"init": "CUDA_ERROR_NO_DEVICE"}, "no_gpu"),
        ({"init": "CUDA_ERROR_MPS_CONNECTION_FAILED"}, "mps"),
        ({"gpus": []}, "no_gpu"),
    ],
)
def test_cuda_that_does_not_start_or_lists_no_gpu(
    tmp_path: Path, node_of: dict[str, Any], code: str
) -> None:
    node = PmNode(tmp_path, **node_of)
    with node.library() as library, pytest.raises(PmSamplingError) as caught:
        list_gpus(library)
    assert caught.value.code == code
    assert caught.value.do


def _version(installed: str) -> Callable[[str], str]:
    def version(name: str) -> str:
        if not installed:
            raise metadata.PackageNotFoundError(name)
        return installed

    return version


@pytest.mark.parametrize(
    ("installed", "message"),
    [
        ("", r"not installed; pip install 'tachograph\[pm-sampling\]'"),
        ("13.0.1", r"13\.0\.1 has no PM sampling, which came with 13\.3; pip install"),
    ],
)
def test_the_library_is_absent_or_too_old(
    monkeypatch: pytest.MonkeyPatch, installed: str, message: str
) -> None:
    monkeypatch.setattr(metadata, "version", _version(installed))
    with pytest.raises(PmSamplingError, match=message):
        load_library()


def test_processes_that_hold_counters_are_found_by_their_name(tmp_path: Path) -> None:
    for pid, name in (("12", "bash"), ("13", "nv-hostengine")):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "comm").write_text(f"{name}\n", encoding="utf-8")
    (tmp_path / "14").mkdir()  # it has ended meanwhile
    assert is_running("dcgm", tmp_path)
    assert not is_running("mps", tmp_path)
