"""The real device, with a stand-in for the driver: which calls it makes, and what it says of those that fail.

The stand-in offers only names that the installed CUDA for Python has, so that a name it lacks cannot pass.
"""

from __future__ import annotations

import os
import re
import struct
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest
from cuda.core._utils.cuda_utils import CUDAError

from microbench import cuda_device
from microbench.cuda_device import CudaDevice, compile_kernels
from microbench.device import HangingError, LaunchError, MemoryFullError
from microbench.measure import alone, loaded
from microbench.workloads import KERNELS, BenchWorkload
from tachograph.catalog.errors import NotFoundError


class Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2


class Event:
    def __init__(self, at: float, done: bool) -> None:
        self.at, self.is_done = at, done

    def __sub__(self, other: Event) -> float:
        return self.at - other.at


class StandIn:
    """cuda.core and cuda.bindings.driver at once; `launched` keeps what was launched."""

    def __init__(self) -> None:
        self.launched: list[tuple[str, int, int, tuple[int, ...]]] = []
        self.memory: dict[int, bytes] = {}
        self.endless = False
        self.refuses = ""
        self.clock = 0.0
        self.core = SimpleNamespace(
            Device=self.device, ObjectCode=SimpleNamespace(from_cubin=self.load, from_ptx=self.load),
            LaunchConfig=lambda *, grid, block: (grid, block), launch=self.launch,
            EventOptions=lambda *, timing_enabled: timing_enabled,
        )  # fmt: skip
        self.driver = SimpleNamespace(
            CUresult=Status, cuDriverGetVersion=lambda: (Status.CUDA_SUCCESS, 12090),
            cuMemGetInfo=lambda: (Status.CUDA_SUCCESS, 80 << 30, 94 << 30), cuMemAlloc=self.allocate,
            cuMemFree=self.free, cuMemsetD32=self.fill, cuMemcpyHtoD=self.copy_in, cuMemcpyDtoH=self.copy_out,
            cuCtxSynchronize=lambda: (Status.CUDA_SUCCESS,),
        )  # fmt: skip

    def device(self, number: int) -> Any:
        if number:
            raise ValueError(f"device_id must be 0, not {number}")
        properties = SimpleNamespace(
            multiprocessor_count=132, max_threads_per_multiprocessor=2048, max_blocks_per_multiprocessor=32,
            max_registers_per_multiprocessor=65536, max_shared_memory_per_multiprocessor=233472,
            l2_cache_size=60 << 20, global_memory_bus_width=6144, memory_clock_rate=3201000,
            single_to_double_precision_perf_ratio=2,
        )  # fmt: skip
        stream = SimpleNamespace(record=self.record, wait=lambda mark: None)
        return SimpleNamespace(
            set_current=lambda: None, create_stream=lambda: stream, compute_capability=(9, 0), name="NVIDIA H200",
            pci_bus_id="0000:01:00.0", properties=properties,
        )  # fmt: skip

    def load(self, image: bytes) -> Any:
        assert image.startswith(b"\x7fELF")
        return SimpleNamespace(get_kernel=lambda name: name)

    def record(self, *, options: bool) -> Event:
        assert options is True
        self.clock += 12.5
        return Event(self.clock, not self.endless)

    def launch(self, stream: Any, config: tuple[int, int], kernel: str, *arguments: int) -> None:
        if kernel == self.refuses:
            raise CUDAError("CUDA_ERROR_INVALID_VALUE: one or more\n of the parameters")
        self.launched.append((kernel, *config, arguments))
        self.memory[arguments[-1]] = struct.pack("<qq", -7, 5)

    def allocate(self, size: int) -> tuple[Any, ...]:
        if size > 80 << 30:
            return (Status.CUDA_ERROR_OUT_OF_MEMORY, 0)
        address = 0x7F0000000000 + len(self.memory)
        self.memory[address] = bytes(min(size, 64))
        return (Status.CUDA_SUCCESS, address)

    def free(self, address: int) -> tuple[Any, ...]:
        self.memory.pop(address)
        return (Status.CUDA_SUCCESS,)

    def fill(self, address: int, word: int, count: int) -> tuple[Any, ...]:
        self.memory[address] = struct.pack("<I", word) * min(count, 16)
        return (Status.CUDA_SUCCESS,)

    def copy_in(self, address: int, content: bytes, size: int) -> tuple[Any, ...]:
        self.memory[address] = content[:size]
        return (Status.CUDA_SUCCESS,)

    def copy_out(self, target: bytearray, address: int, size: int) -> tuple[Any, ...]:
        target[:size] = self.memory[address][:size]
        return (Status.CUDA_SUCCESS,)


def needed(name: str) -> Any:
    """A module of CUDA for Python; skipped without it, unless servers are required."""
    if os.environ.get("TACHOGRAPH_REQUIRE_SERVERS") == "1":
        __import__(name)
    return pytest.importorskip(name)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    needed("cuda.bindings.nvrtc")
    found = StandIn()
    monkeypatch.setattr(cuda_device, "_libraries", lambda: (found.core, found.driver))
    return found


def test_the_stand_in_has_no_name_that_cuda_for_python_lacks() -> None:
    core, driver, fake = needed("cuda.core"), needed("cuda.bindings.driver"), StandIn()
    assert [name for name in vars(fake.core) if not hasattr(core, name)] == []
    assert [name for name in vars(fake.driver) if not hasattr(driver, name)] == []
    assert [one.name for one in Status if getattr(driver.CUresult, one.name) != one.value] == []
    for owner, names in (
        (core.Device, ("set_current", "create_stream", "compute_capability", "name", "pci_bus_id", "properties")),
        (core.ObjectCode, ("from_cubin", "from_ptx", "get_kernel")),
        (core.Stream, ("record", "wait")),
        (core.Event, ("is_done", "__sub__")),
    ):
        assert [name for name in names if not hasattr(owner, name)] == []
    assert core.EventOptions(timing_enabled=True).timing_enabled


def test_every_kernel_is_called_with_as_many_arguments_as_it_has(stand_in: StandIn) -> None:
    ptx, device = compile_kernels("compute_90").image.decode(), CudaDevice(0)
    for name in KERNELS:
        head = ptx[ptx.index(f".entry {name}(") :]
        kinds = re.findall(r"\.param \.(\w+)", head[: head.index(")\n")])
        assert set(kinds) == {"u64"}
        floats = 64 if KERNELS[name].kind in ("copy", "read", "sweep", "sweep_l1") else 0
        with loaded(device, [BenchWorkload(kernel=name, blocks=2, threads=64, floats=floats)]) as (one,):
            assert alone(device, one, 3, limit_s=1.0).seconds == pytest.approx(0.0125)
        assert len(stand_in.launched[-1][3]) == len(kinds)
        assert stand_in.launched[-1][:3] == (name, 2, 64)
    assert stand_in.memory == {}


def test_failures_are_named(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    device = CudaDevice(0)
    with pytest.raises(MemoryFullError, match="no room for"):
        device.allocate(90 << 30)
    stand_in.refuses = "sleep"
    with pytest.raises(LaunchError, match="sleep: CUDA_ERROR_INVALID_VALUE: one or more of the parameters"):
        device.launch("sleep", blocks=1, threads=32, arguments=(1, 2), stream=0)
    monkeypatch.setattr(stand_in.driver, "cuMemFree", lambda address: (Status.CUDA_ERROR_INVALID_VALUE,))
    with pytest.raises(LaunchError, match="CUDA_ERROR_INVALID_VALUE"):
        device.free(1)
    with pytest.raises(NotFoundError, match="device_id must be 0, not 3"):
        CudaDevice(3)
    stand_in.endless = True
    with pytest.raises(HangingError, match="did not end within"):
        device.wait([device.mark(0)], 0.02)
    assert device.stuck
