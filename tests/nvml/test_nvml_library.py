"""The source `nvml` through the real pynvml and a library that says what it is told: a process
of its own each time.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fake_nvml_library import GPM_IDS, MIB, FakeNode, Reader, build, gpm, plain, reading

from tachograph.catalog.counters import COUNTERS

pytestmark = pytest.mark.slow  # the library is compiled

# counter -> (key of the fake, factor); written down here, not taken from the catalogue
PLAIN = {
    "gpu_util": ("util", 0.01),
    "mem_copy_util": ("memutil", 0.01),
    "hbm_used_mib": ("used", 1 / 1048576),
    "hbm_free_mib": ("free", 1 / 1048576),
    "power_w": ("power", 0.001),
    "energy_j": ("energy", 0.001),
    "gpu_temp_c": ("temp", 1),
    "mem_temp_c": ("memtemp", 1),
    "sm_clock_mhz": ("smclk", 1),
    "mem_clock_mhz": ("memclk", 1),
    "throttle_reasons": ("reasons", 1),
    "pcie_replays": ("replays", 1),
    "remapped_rows_correctable": ("remapped.cor", 1),
    "remapped_rows_uncorrectable": ("remapped.unc", 1),
    "row_remap_failure": ("remapped.fail", 1),
    "ecc_sbe": ("ecc.sbe", 1),
    "ecc_dbe": ("ecc.dbe", 1),
}
GPM = {
    "gr_engine_active": (1, 0.01),
    "sm_active": (2, 0.01),
    "sm_occupancy": (3, 0.01),
    "tensor_active": (5, 0.01),
    "tensor_dfma_active": (6, 0.01),
    "tensor_hmma_active": (7, 0.01),
    "tensor_imma_active": (9, 0.01),
    "dram_active": (10, 0.01),
    "fp64_active": (11, 0.01),
    "fp32_active": (12, 0.01),
    "fp16_active": (13, 0.01),
    "pcie_tx_bytes_per_s": (20, 1048576),
    "pcie_rx_bytes_per_s": (21, 1048576),
    "nvlink_rx_bytes_per_s": (60, 1048576),
    "nvlink_tx_bytes_per_s": (61, 1048576),
}


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="module")
def looking(
    library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[FakeNode, Reader]]:
    """A node and who looks at it, one for all tests: starting Python takes longest."""
    made = FakeNode(tmp_path_factory.mktemp("node"), library)
    made.write()
    with reading(made) as one:
        yield made, one


@pytest.fixture
def node(looking: tuple[FakeNode, Reader]) -> FakeNode:
    """Two GPUs that tell everything."""
    made, one = looking
    one.ask("fresh")
    made.reset({"gpus": "2", "driver": "1"} | plain(0) | plain(1) | gpm(0) | gpm(1))
    return made


@pytest.fixture
def reader(looking: tuple[FakeNode, Reader], node: FakeNode) -> Reader:
    return looking[1]


def expected(state: Mapping[str, str], gpu: int) -> dict[str, float]:
    reported = {
        counter: float(state[f"{gpu}.{key}"]) * factor for counter, (key, factor) in PLAIN.items()
    }
    reported |= {
        counter: float(state[f"{gpu}.gpm.{metric}"]) * factor
        for counter, (metric, factor) in GPM.items()
    }
    return reported | {"xid": 0.0}


def column(answer: Any, place: int) -> dict[str, float | None]:
    return {counter: values[place] for counter, values in answer["values"].items()}


def assert_tells(answer: Any, node: FakeNode, place: int) -> None:
    assert column(answer, place) == pytest.approx(expected(node.state, place), rel=1e-12)


def test_every_counter_comes_out_as_it_was_told(node: FakeNode, reader: Reader) -> None:
    assert set(PLAIN) | set(GPM) | {"xid"} == {counter.name for counter in COUNTERS if counter.nvml}
    answer = reader.start()
    about = reader.ask("about")
    assert answer["gpus"] == [["gpunode", 0, None], ["gpunode", 1, None]]
    assert answer["problems"] == []
    assert_tells(answer, node, 0)
    assert_tells(answer, node, 1)
    assert answer["devices"][1] == {
        "model": "NVIDIA H200",
        "uuid": node.state["1.uuid"],
        "pci": "00000000:11:00.0",
        "hbm_mib": 144000.0,
        "slowdown_c": 90.0,
        "minor_number": 0,
    }
    assert about["name"] == "nvml"
    assert about["unsupported"] == {}
    assert about["sentence"] == "NVML with GPM, 2 GPUs of this node, driver 570.86.15"


def test_metrics_that_fail_alone_are_missing_alone(node: FakeNode, reader: Reader) -> None:
    node.write(
        {
            "0.gpm.2": "nan",
            "0.gpm.5": "!3",
            "0.gpm.20": "!999",
            "0.gpm.10": "inf",
            "1.gpm.5": "!3",
            "0.memtemp": "0",
        }
    )
    answer = reader.start()
    about = reader.ask("about")
    first = column(answer, 0)
    missing = {"sm_active", "pcie_tx_bytes_per_s", "dram_active", "mem_temp_c"}
    assert {name for name, value in first.items() if value is None} == missing
    assert "tensor_active" not in answer["values"]  # neither GPU has it
    assert about["unsupported"] == {"tensor_active": ""}
    assert column(answer, 1)["sm_active"] == pytest.approx(float(node.state["1.gpm.2"]) / 100)


def test_an_older_gpu_tells_what_it_can_and_how_to_see_more(node: FakeNode, reader: Reader) -> None:
    node.write({"0.gpm": "!3", "1.gpm": None})
    answer = reader.start()
    about = reader.ask("about")
    assert set(answer["values"]) == set(PLAIN) | {"xid"}
    assert about["sentence"].startswith("NVML without GPM")
    assert set(about["unsupported"]) == set(GPM)
    assert "Hopper" in about["unsupported"]["sm_active"]
    assert "DCGM" in about["unsupported"]["sm_active"]


def test_a_support_that_is_a_lie_is_found_out(node: FakeNode, reader: Reader) -> None:
    node.write({f"{gpu}.gpm.{metric}": "!3" for gpu in (0, 1) for metric in GPM_IDS})
    reader.start()
    about = reader.ask("about")
    assert about["sentence"].startswith("NVML without GPM")
    assert "Hopper" in about["unsupported"]["dram_active"]


def test_refused_permission_says_whom_to_ask(node: FakeNode, reader: Reader) -> None:
    node.write({f"{gpu}.{what}": "!4" for gpu in (0, 1) for what in ("gpm", "power", "events")})
    answer = reader.start()
    unsupported = reader.ask("about")["unsupported"]
    # Somebody permitted it.
    node.write({f"{gpu}.{what}": "1" for gpu in (0, 1) for what in ("gpm", "power")})
    reader.later(61)
    later = reader.later()
    blind_later = reader.ask("about")["unsupported"]
    assert set(answer["values"]) == set(PLAIN) - {"power_w"}
    assert "NVreg_RestrictProfilingToAdminUsers=0" in unsupported["sm_active"]
    assert "administrator" in unsupported["power_w"]
    assert "not permitted" in unsupported["xid"]
    assert answer["problems"] == []
    assert later["values"]["power_w"] == [0.001, 0.001]
    assert set(blind_later) == {"xid"}


def test_a_lost_gpu_says_so_and_comes_back(node: FakeNode, reader: Reader) -> None:
    reader.start()
    node.write({"1.lost": "!15"})
    lost = reader.later()
    again = reader.later()
    node.write({"1.lost": None})
    reader.later(10)
    back = reader.later()
    for answer in (lost, again):
        assert answer["gpus"] == back["gpus"]
        assert set(column(answer, 1).values()) == {None}
        assert answer["measured"][1] is None
        assert "gpunode:1: the GPU does not respond (NVML: GPU is lost)" in answer["problems"][0]
        assert_tells(answer, node, 0)
        assert answer["devices"][1]["uuid"] == back["devices"][1]["uuid"]
    assert back["problems"] == []
    assert_tells(back, node, 1)
    reader.close()
    assert node.log[-1].endswith("samples=0 sets=0")


def test_a_gpu_that_stays_lost_is_looked_for_by_starting_anew(
    node: FakeNode, reader: Reader
) -> None:
    reader.start()
    node.write({"1.lost": "!15"})
    for _ in range(4):
        answer = reader.later(10)
    starts = sum(line.startswith("init") for line in node.log)
    for _ in range(3):  # not again and again
        reader.later(5)
    assert sum(line.startswith("init") for line in node.log) == starts
    assert starts == 2
    assert "does not respond" in answer["problems"][0]
    assert answer["devices"][1]["uuid"] == node.state["1.uuid"]


def test_a_reloaded_driver_is_found_again(node: FakeNode, reader: Reader) -> None:
    reader.start()
    node.write({"driver": "!9"})
    down = reader.later()
    still = reader.read()
    node.write({"driver": "2", "0.util": "63"})
    waiting = reader.read()  # it is not asked in every round
    reader.later(2)
    up = reader.later()
    message = "gpunode: the driver does not respond (NVML: Driver Not Loaded); retried"
    for answer in (down, still, waiting):
        assert answer["gpus"] == up["gpus"]
        assert set(answer["measured"]) == {None}
        assert {value for values in answer["values"].values() for value in values} == {None}
        assert answer["problems"] == [message]
        assert answer["processes"] == {}
    assert up["problems"] == []
    assert_tells(up, node, 0)
    reader.close()
    assert node.log[-1] == "shutdown starts=0 samples=0 sets=0"


def test_another_driver_needs_a_new_start(node: FakeNode, reader: Reader) -> None:
    """NVML answers `uninitialized` until it is started again; an update leaves the loaded
    library behind.
    """
    reader.start()
    node.write({"driver": "2"})
    first = reader.later()
    node.write({"driver": "!18"})
    updated = reader.later(2)
    node.write({"driver": "3"})
    back = reader.later(10)
    assert "Uninitialized" in first["problems"][0]
    assert "restart this command" in updated["problems"][0]
    assert back["problems"] == []
    assert back["values"]["power_w"] == pytest.approx([321.5, 321.501])


def test_xid_errors_stay_until_the_next(node: FakeNode, reader: Reader) -> None:
    node.write({"0.xid": "7063"})  # before anybody looked
    seen = []
    reader.start()
    for change in ({}, {"1.xid": 1031}, {}, {"1.xid": 2079}, {"driver": 2}, {}):
        node.write(change)
        reader.later(5)
        seen.append(reader.read()["values"]["xid"])
    assert seen[:4] == [[0.0, 0.0], [0.0, 31.0], [0.0, 31.0], [0.0, 79.0]]
    assert seen[5] == [0.0, 79.0]  # known still, after a reload


def test_a_gpu_that_fell_off_tells_its_last_xid(node: FakeNode, reader: Reader) -> None:
    reader.start()
    node.write({"1.xid": 1079, "1.lost": "!15"})
    answer = reader.later()
    assert "last XID 79" in answer["problems"][0]


def test_slices_are_rows_of_their_own(node: FakeNode, reader: Reader) -> None:
    slices = {
        "1.mig": 1,
        "1.util": "!3",
        "1.memutil": "!3",
        "1.slice0.gi": 7,
        "1.slice0.uuid": "MIG-aaaa",
        "1.slice0.total": 10_000 * MIB,
        "1.slice0.used": 4_000 * MIB,
        "1.slice0.free": 6_000 * MIB,
        "1.slice0.processes": f"{os.getpid()}:{300 * MIB}",
        "1.slice3.gi": 9,
        "1.slice3.uuid": "MIG-bbbb",
        "1.slice3.total": 20_000 * MIB,
        "1.slice3.used": 5_000 * MIB,
        "1.slice3.free": 15_000 * MIB,
    }
    of_slices = {f"1.gi7.gpm.{metric}": f"{metric}.5" for metric in (1, 2, 5)}
    of_slices |= {"1.gi9.gpm.2": "31", "1.gi9.gpm.20": "!3"}
    node.write(slices | of_slices)
    answer = reader.start()
    node.write({"1.slice3.gi": None})  # somebody takes a slice away
    reader.later(31)
    reader.later()
    fewer = reader.read()
    assert answer["gpus"] == [["gpunode", 0, None], ["gpunode", 1, 7], ["gpunode", 1, 9]]
    values = answer["values"]
    assert values["sm_active"] == pytest.approx([0.0225, 0.025, 0.31])
    assert values["tensor_active"] == [pytest.approx(0.0525), pytest.approx(0.055), None]
    assert values["hbm_used_mib"] == [10_000, 4_000, 5_000]
    assert values["gpu_util"] == [0.4, None, None]
    assert values["power_w"] == pytest.approx([321.5, 321.501, 321.501])  # of the whole GPU
    assert values["pcie_tx_bytes_per_s"][1:] == [None, None]
    assert [device["uuid"] for device in answer["devices"][1:]] == ["MIG-aaaa", "MIG-bbbb"]
    assert [device["hbm_mib"] for device in answer["devices"][1:]] == [10_000, 20_000]
    assert list(answer["processes"]) == ["gpunode:1.7"]
    assert fewer["gpus"] == [["gpunode", 0, None], ["gpunode", 1, 7]]


def test_gpus_of_others_are_not_shown(node: FakeNode, reader: Reader) -> None:
    node.write({"0.handle": "!4"})
    answer = reader.start()
    about = reader.ask("about")
    assert answer["gpus"] == [["gpunode", 1, None]]
    assert answer["values"]["power_w"] == pytest.approx([321.501])
    assert "1 GPU hidden here" in about["sentence"]


def test_a_gpu_the_driver_no_longer_lists_is_told(node: FakeNode, reader: Reader) -> None:
    """The GPU with number 0 is gone after a reload: the other one has its number now."""
    reader.start()
    moved = {f"0.{name}": node.state[f"1.{name}"] for name in ("uuid", "pci", "power")}
    node.write({"gpus": "1", "driver": "2", **moved})
    reader.later()
    answer = reader.later(5)
    assert answer["gpus"] == [["gpunode", 0, None]]
    assert answer["devices"][0]["uuid"].startswith("GPU-00000001")
    assert "no longer lists GPU-00000000" in answer["problems"][0]


def test_processes_have_memory_user_and_command(node: FakeNode, reader: Reader) -> None:
    absent = 4_194_000  # above what Linux gives by default
    node.write(
        {
            "0.processes": f"{os.getpid()}:{5 * MIB} {absent}:na",
            "0.mps": f"{os.getpid()}:{5 * MIB} {absent + 1}:{MIB}",
        }
    )
    answer = reader.start()
    assert list(answer["processes"]) == ["gpunode:0"]
    mine, gone, client = sorted(answer["processes"]["gpunode:0"], key=lambda one: one["pid"])
    assert (mine["pid"], mine["hbm_used_mib"]) == (os.getpid(), 5.0)
    if str(Path("/proc/self/ns/pid").readlink()) == "pid:[4026531836]":
        assert mine["user"] == pwd.getpwuid(os.getuid()).pw_name
        assert "pytest" in mine["command"] or "python" in mine["command"]
    else:  # in a container a process that holds no GPU may be another one of the same number
        assert (mine["user"], mine["command"]) == (None, None)
    assert gone == {"pid": absent, "user": None, "command": None, "hbm_used_mib": None}
    assert client == {"pid": absent + 1, "user": None, "command": None, "hbm_used_mib": 1.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"driver": "!9"}, "no NVIDIA driver is loaded; run it on a node with GPUs"),
        ({"driver": "!18"}, "of different versions; reload the driver"),
        ({"driver": "!4"}, "no permission"),
        ({"driver": "!999"}, "NVML does not start: Unknown Error; run nvidia-smi"),
        ({"gpus": "0"}, "NVML lists no GPU"),
        ({"*.handle": "!4"}, "NVML lists no GPU"),
    ],
)
def test_what_prevents_a_start_is_told(
    node: FakeNode, reader: Reader, changes: dict[str, object], message: str
) -> None:
    node.write(changes)
    assert message in reader.ask("connect-as-users")["error"]
    assert not node.log or node.log[-1].startswith("shutdown starts=0")


def test_without_the_library_it_is_told_what_to_install(tmp_path: Path) -> None:
    if Path("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").exists():
        pytest.skip("this machine has the real library")
    with reading(FakeNode(tmp_path, tmp_path)) as alone:
        error = alone.ask("connect-as-users")["error"]
    assert "libnvidia-ml.so.1 was not found" in error
    assert "install the NVIDIA driver" in error
