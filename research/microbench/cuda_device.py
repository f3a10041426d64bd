"""A GPU through CUDA: kernels compiled by NVRTC, launched, timed."""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NoReturn

from microbench.device import HangingError, Lanes, LaunchError, Mark, MemoryFullError
from tachograph.annexes.share.capacity import gpu_of
from tachograph.annexes.share.demand import GpuCapacity
from tachograph.annexes.share.nsight.launches import Chip
from tachograph.annexes.watch.shared_libraries import load_of_package
from tachograph.catalog.errors import NotFoundError, TachographError, UsageError

INSTALL = (
    "`make calibrate` installs it; without make: pip install cuda-core cuda-bindings "
    "nvidia-cuda-nvrtc-cu12"
)
_OLDEST = 70  # Volta: its threads can sleep
_STANDARD = "--std=c++17"


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """All kernels for one architecture: a cubin is machine code, PTX is compiled by the driver."""

    arch: str  # such as sm_90 or compute_90
    kind: Literal["cubin", "ptx"]
    image: bytes


def source() -> str:
    """Return the CUDA C++ of all kernels."""
    return Path(__file__).with_name("kernels.cu").read_text(encoding="utf-8")


def cubin_name(arch: str) -> str:
    """Return the name of the file of kernels that were compiled before."""
    return f"kernels-{arch}.cubin"


def compile_kernels(arch: str) -> CompiledProgram:
    """Return the kernels as machine code of `sm_NN`, or as PTX of `compute_NN`.

    A chip unknown to the compiler gets PTX of the newest architecture before it, which its driver
    compiles. What was packed with the sources is not compiled again. Errors: UsageError where NVRTC
    is not installed, and for an invalid architecture.
    """
    packed = Path(__file__).with_name(cubin_name(arch))
    if packed.exists():
        return CompiledProgram(arch, "cubin", packed.read_bytes())
    nvrtc = _nvrtc()
    if not re.fullmatch(r"(sm|compute)_\d{2,3}[af]?", arch):
        raise UsageError(f"no architecture {arch!r}", do="write it like sm_90 or compute_90")
    known = _call(nvrtc, nvrtc.nvrtcGetSupportedArchs())
    number = int(re.sub(r"\D", "", arch))
    oldest = max(_OLDEST, min(known))
    if number < oldest:
        raise UsageError(
            f"no chip as old as {arch} runs these kernels", do=f"the oldest is sm_{oldest}"
        )
    if number not in known:
        arch = f"compute_{max(one for one in known if one <= number)}"
    kind: Literal["cubin", "ptx"] = "ptx" if arch.startswith("compute") else "cubin"
    return CompiledProgram(arch, kind, _compiled(nvrtc, arch))


def _compiled(nvrtc: Any, arch: str) -> bytes:
    program = _call(nvrtc, nvrtc.nvrtcCreateProgram(source().encode(), b"kernels.cu", 0, [], []))
    options = [f"--gpu-architecture={arch}".encode(), _STANDARD.encode()]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * _call(nvrtc, nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise TachographError(
            f"NVRTC refuses the kernels: {log.decode(errors='replace')}", where=arch
        )
    if arch.startswith("compute"):
        image = b" " * _call(nvrtc, nvrtc.nvrtcGetPTXSize(program))
        nvrtc.nvrtcGetPTX(program, image)
    else:
        image = b" " * _call(nvrtc, nvrtc.nvrtcGetCUBINSize(program))
        nvrtc.nvrtcGetCUBIN(program, image)
    nvrtc.nvrtcDestroyProgram(program)
    return bytes(image)


def _nvrtc() -> Any:
    load_of_package("nvidia-cuda-nvrtc-cu12", "libnvrtc.so")
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, OSError, RuntimeError) as problem:
        text = str(problem).strip().splitlines()
        what = f"NVRTC, the CUDA compiler, is not installed ({text[0] if text else problem!r})"
        raise UsageError(what, do=INSTALL) from None
    return nvrtc


def _call(nvrtc: Any, answer: tuple[Any, ...]) -> Any:
    """What a function of NVRTC returned.

    Errors: TachographError with the compiler's error message.
    """
    status, *values = answer
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise TachographError(
            f"NVRTC error: {status.name}", do="see `pip list` for nvidia-cuda-nvrtc-cu12"
        )
    return values[0]


_PATTERNS = {"float": struct.pack("<f", 1.0), "double": struct.pack("<d", 1.0)}
_LOOK_S = 0.0005  # between two polls whether a mark was reached; times are taken by the GPU
# of training jobs, often: either would have two streams wait for each other. CUDA reads them when
# it starts
_SERIAL = ("CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS")
# what Nsight Compute calls an attribute is what CUDA calls it
_ATTRIBUTES = (
    "multiprocessor_count", "max_threads_per_multiprocessor", "max_blocks_per_multiprocessor",
    "max_registers_per_multiprocessor", "max_shared_memory_per_multiprocessor", "l2_cache_size",
    "global_memory_bus_width", "memory_clock_rate",
)  # fmt: skip


class CudaDevice:
    """A GPU of this machine. Opened once; a process has one."""

    def __init__(self, number: int) -> None:
        for name in _SERIAL:
            os.environ.pop(name, None)
        self._core, self._driver = _libraries()
        with _absent(number):
            self._device: Any = self._core.Device(number)
            self._device.set_current()
            self._streams = [self._device.create_stream(), self._device.create_stream()]
        major, minor = self._device.compute_capability
        self.arch = f"sm_{major}{minor}"
        self.gpu: GpuCapacity = gpu_of(self._chip(f"{major}.{minor}"))
        self.lanes = self._lanes((major, minor))
        version = self._checked(self._driver.cuDriverGetVersion())
        self.driver = f"CUDA {version // 1000}.{version % 1000 // 10}"
        self.pci_bus_id = str(self._device.pci_bus_id)
        self._program: CompiledProgram = compile_kernels(self.arch)
        with _failing("loading the kernels"):
            code = self._core.ObjectCode
            load = code.from_cubin if self._program.kind == "cubin" else code.from_ptx
            self._object = load(self._program.image)
        self._kernels: dict[str, Any] = {}
        self.stuck = False  # a kernel did not end, and what waits for it would wait for ever

    def leave(self, code: int, flush: Callable[[], None]) -> NoReturn:
        """End the process at once, with its exit code: to free anything of the GPU would wait
        for the kernel.
        """
        flush()
        os._exit(code)

    def free_bytes(self) -> int:
        """Memory that is free now."""
        return int(self._checked(self._driver.cuMemGetInfo())[0])

    def allocate(self, size: int, *, ones: str = "") -> int:
        """The address of `size` bytes: filled with ones, of float or double, else with zeros."""
        status, address = self._driver.cuMemAlloc(size)
        if status == self._driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise MemoryFullError(f"the GPU has no room for {size / 1e9:.2f} GB")
        self._checked((status, address))
        at = int(address)
        if ones == "double":
            content = _PATTERNS["double"] * (size // 8)
            self._checked(self._driver.cuMemcpyHtoD(at, content, len(content)))
        else:
            (word,) = struct.unpack("<I", _PATTERNS["float"] if ones else bytes(4))
            self._checked(self._driver.cuMemsetD32(at, word, size // 4))
        self._checked(self._driver.cuCtxSynchronize())
        return at

    def free(self, address: int) -> None:
        """Free memory."""
        self._checked(self._driver.cuMemFree(address))

    def launch(
        self, kernel: str, *, blocks: int, threads: int, arguments: Sequence[int], stream: int
    ) -> None:
        """Put a launch at the end of a stream; each argument is 8 bytes wide."""
        with _failing(kernel):
            if kernel not in self._kernels:
                self._kernels[kernel] = self._object.get_kernel(kernel)
            config = self._core.LaunchConfig(grid=blocks, block=threads)
            self._core.launch(self._streams[stream], config, self._kernels[kernel], *arguments)

    def mark(self, stream: int) -> Mark:
        """A point at the end of the stream, whose time is taken when the stream gets there."""
        with _failing("an event"):
            event: Mark = self._streams[stream].record(
                options=self._core.EventOptions(timing_enabled=True)
            )
            return event

    def follow(self, stream: int, mark: Mark) -> None:
        """Block the stream until another one has reached the mark."""
        with _failing("an event"):
            self._streams[stream].wait(mark)

    def wait(self, marks: Sequence[Any], limit_s: float) -> None:
        """Wait until all marks were reached, `limit_s` at most; then HangingError."""
        end = time.monotonic() + limit_s
        with _failing("a launch"):
            for mark in marks:
                while not mark.is_done:
                    if time.monotonic() > end:
                        self.stuck = True
                        raise HangingError(f"a kernel did not end within {limit_s:.0f} s")
                    time.sleep(_LOOK_S)

    def seconds(self, begin: Any, end: Any) -> float:
        """Time between two marks that were reached."""
        with _failing("an event"):
            return float(end - begin) / 1e3

    def numbers(self, address: int, count: int) -> tuple[int, ...]:
        """The 64-bit integers at this address."""
        content = bytearray(8 * count)
        self._checked(self._driver.cuMemcpyDtoH(content, address, len(content)))
        return struct.unpack(f"<{count}q", content)

    def _chip(self, capability: str) -> Chip:
        properties = self._device.properties
        attributes = {
            name: float(value) for name in _ATTRIBUTES if (value := getattr(properties, name, None))
        }
        attributes["total_memory"] = float(self._checked(self._driver.cuMemGetInfo())[1])
        return Chip(str(self._device.name), capability, attributes)

    def _lanes(self, capability: tuple[int, int]) -> Lanes:
        """FP32 lanes as published in the CUDA C++ Programming Guide; the driver reports the
        ratio of FP32 to FP64.
        """
        fp32 = 64 if capability[0] < 8 or capability == (8, 0) else 128
        ratio = getattr(self._device.properties, "single_to_double_precision_perf_ratio", None)
        return Lanes(fp32, max(1, fp32 // int(ratio)) if ratio else None)

    def _checked(self, answer: tuple[Any, ...]) -> Any:
        """What the driver returned: nothing, a value, or several.

        Errors: LaunchError with the driver's error message.
        """
        status, *values = answer
        if status != self._driver.CUresult.CUDA_SUCCESS:
            raise LaunchError(f"driver error: {status.name}")
        return values[0] if len(values) == 1 else tuple(values)


def _libraries() -> tuple[Any, Any]:
    try:
        import cuda.core as core
        from cuda.bindings import driver
    except ImportError as problem:
        raise UsageError(f"CUDA for Python is not installed ({problem})", do=INSTALL) from None
    return core, driver


@contextmanager
def _absent(number: int) -> Iterator[None]:
    """Turn the errors of the libraries while a GPU is opened into one: there is no GPU."""
    try:
        yield
    except _errors(
        RuntimeError, ValueError, AttributeError, OSError
    ) as problem:  # each part has its own
        text = next((line for line in str(problem).splitlines() if line.strip()), repr(problem))
        raise NotFoundError(
            f"no GPU {number} can be used here ({text})",
            do="run it where `nvidia-smi` lists one; --list, --dry-run and --compile need none",
        ) from None


@contextmanager
def _failing(what: str) -> Iterator[None]:
    """Turn the errors of CUDA for Python into LaunchError; a LaunchError is unchanged."""
    try:
        yield
    except LaunchError:
        raise
    except _errors(RuntimeError) as problem:
        text = " ".join(str(problem).split())
        kind = MemoryFullError if "OUT_OF_MEMORY" in text else LaunchError
        raise kind(f"{what}: {text}") from None


def _errors(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """The kind of error that CUDA for Python has of its own, where it names one, and `more`."""
    try:
        utilities = import_module("cuda.core._utils.cuda_utils")
    except ImportError:
        return more
    kind = getattr(utilities, "CUDAError", None)
    return (kind, *more) if isinstance(kind, type) and issubclass(kind, Exception) else more
