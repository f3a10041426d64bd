"""The only interface to CUPTI (`pm_sampling`, `profiler_host`) and CUDA's GPUs.

Package `cupti-python`, from 13.3 on, which has these modules. Signatures as in 13.4.
Nothing here creates a CUDA context: the GPUs hold no memory for it.
"""

from __future__ import annotations

import os
import re
import socket
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any, Protocol

from tachograph.annexes.watch.pm_sampling.faults import PmSamplingError, driver_fault
from tachograph.annexes.watch.shared_libraries import load_of_package
from tachograph.sources.metrics import short_node

PACKAGE = "cupti-python"
LEAST_VERSION = (13, 3)  # the first with PM sampling
INSTALL = "pip install 'tachograph[pm-sampling]'"


class PmSample(Protocol):
    """One sampling interval: times of the GPU in ns, one value per metric."""

    @property
    def start_timestamp(self) -> int: ...  # noqa: D102
    @property
    def end_timestamp(self) -> int: ...  # noqa: D102
    @property
    def metric_values(self) -> list[float]: ...  # noqa: D102


class PmCollector(Protocol):
    """`cupti.pm_sampling.Collector`: the session of one GPU."""

    def enable(self) -> None: ...  # noqa: D102
    def configure(  # noqa: D102
        self,
        *,
        metrics: list[str],
        hardware_buffer_size: int = ...,
        sampling_interval: int = ...,
        trigger_mode: Any = ...,
    ) -> None: ...
    def start(self) -> None: ...  # noqa: D102
    def stop(self) -> None: ...  # noqa: D102
    def decode(self, max_samples: int = ...) -> Collection[PmSample]: ...  # noqa: D102
    def disable(self) -> None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class PmLibrary:
    """The modules that are used. bindings: `cupti.cupti`; driver: `cuda.bindings.driver`."""

    pm_sampling: Any
    profiler_host: Any
    bindings: Any
    driver: Any
    version: str

    def chip(self, device: int) -> str:
        """Return a GPU's chip name, such as GH100, after enabling its collector.

        Errors: cuptiError.
        """
        request = self.bindings.DeviceGetChipNameParams()
        request.struct_size = self.bindings.DEVICE_GET_CHIP_NAME_PARAMS_STRUCT_SIZE
        request.device_index = device
        self.bindings.device_get_chip_name(request.ptr)
        return str(request.p_chip_name)


def load_library() -> PmLibrary:
    """Return the library. Errors: PmSamplingError if absent, too old, or without driver."""
    try:
        version = metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        raise PmSamplingError("library", f"{PACKAGE} is not installed", INSTALL) from None
    if release(version) < LEAST_VERSION:
        least = ".".join(map(str, LEAST_VERSION))
        raise PmSamplingError(
            "library_old",
            f"{PACKAGE} {version} has no PM sampling, which came with {least}",
            INSTALL,
        )
    load_of_package("nvidia-cuda-cupti", "libnvperf_host.so", "libnvperf_target.so", "libcupti.so")
    try:
        return PmLibrary(
            import_module("cupti.pm_sampling"),
            import_module("cupti.profiler_host"),
            import_module("cupti.cupti"),
            import_module("cuda.bindings.driver"),
            version,
        )
    except (ImportError, OSError, RuntimeError) as problem:
        raise PmSamplingError(
            "library", f"{PACKAGE} {version} does not load: {problem}", INSTALL
        ) from None


def this_host() -> str:
    """Return the name of this node: in Slurm its own, else the host name without its domain."""
    return os.environ.get("SLURMD_NODENAME") or short_node(socket.gethostname())


def release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version.

    >>> release("13.4.0") >= LEAST_VERSION, release("13.0.1") >= LEAST_VERSION, release("14rc1")
    (True, False, (14,))
    """
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in numbers[0].split(".")) if numbers else ()


@dataclass(frozen=True, slots=True)
class CudaGpu:
    """A GPU as CUDA lists it. device: its CUDA index, which differs from NVML's."""

    device: int
    uuid: str
    pci: str
    model: str


def list_gpus(library: PmLibrary) -> list[CudaGpu]:
    """Return the GPUs of CUDA. Errors: PmSamplingError without driver or GPU."""
    driver = library.driver
    try:
        _answer(driver.cuInit(0))
        gpus = [_gpu(driver, device) for device in range(_answer(driver.cuDeviceGetCount()))]
    except RuntimeError as problem:  # also where the library of the driver is absent
        raise driver_fault(problem) from None
    if not gpus:
        raise PmSamplingError(
            "no_gpu", "CUDA lists no GPU", "run it where GPUs are; is CUDA_VISIBLE_DEVICES empty?"
        )
    return gpus


def _gpu(driver: Any, device: int) -> CudaGpu:
    handle = _answer(driver.cuDeviceGet(device))
    identity = uuid.UUID(bytes=bytes(_answer(driver.cuDeviceGetUuid(handle)).bytes))
    pci = _text(_answer(driver.cuDeviceGetPCIBusId(32, handle)))
    return CudaGpu(
        device, f"GPU-{identity}", pci, _text(_answer(driver.cuDeviceGetName(128, handle)))
    )


def _answer(returned: tuple[Any, ...]) -> Any:
    """Return the values after the status of a driver call.

    Errors: RuntimeError naming the status.
    """
    status, *values = returned
    if int(status):
        raise RuntimeError(getattr(status, "name", str(status)))
    return values[0] if values else None


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")
