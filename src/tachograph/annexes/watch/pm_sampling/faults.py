"""Why a GPU cannot be sampled, and the fix, for every CUPTI PM sampling error.

Sources: CUptiResult of CUPTI's documentation; the exceptions of `cupti.pm_sampling`; DCGM's `dcgmi
profile`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tachograph.catalog.errors import InputError

TAKE_DCGM = "use the DCGM form of the score (docs/scores.md)"
_PERMIT = (
    "run it as root or with CAP_SYS_ADMIN, or let the administrator set "
    "`options nvidia NVreg_RestrictProfilingToAdminUsers=0` in /etc/modprobe.d and reload the "
    "driver"
)
# Who else uses counters, by the name of the process (15 characters).
HOLDERS: Mapping[str, tuple[str, ...]] = {
    "dcgm": ("nv-hostengine", "dcgm-exporter"),
    "mps": ("nvidia-cuda-mps", "nvidia-cuda-mp"),
}
RETRIED = frozenset({"dcgm", "session", "lost", "overflow", "unknown"})  # what may pass by itself

# {code: (what, what to do)}
FAULTS: Mapping[str, tuple[str, str]] = {
    "dcgm": (
        "DCGM holds the profiling counters",
        f"pause with `dcgmi profile --pause`, or {TAKE_DCGM}",
    ),
    "session": (
        "another process holds the profiling counters of this GPU",
        "end it (Nsight, another PM sampling): a GPU has one session; retried",
    ),
    "privileges": ("no permission to read the counters of this GPU", _PERMIT),
    "mig": (
        "the GPU is divided by MIG, and PM sampling counts whole GPUs",
        f"{TAKE_DCGM}, which has each slice",
    ),
    "mps": ("PM sampling is refused while MPS is in use", f"sample outside of MPS, or {TAKE_DCGM}"),
    "vgpu": ("the virtual GPU (vGPU) has no counters", f"sample on the host, or {TAKE_DCGM}"),
    "vgpu_privileges": (
        "profiling is disabled for this virtual GPU (vGPU)",
        "let the administrator of the host set the vGPU plugin parameter enable_profiling=1",
    ),
    "confidential": ("confidential computing is on, which hides the counters", TAKE_DCGM),
    "wsl": ("PM sampling is not available under WSL", "run it on Linux"),
    "chip": ("this chip has no PM sampling", f"it needs Turing or newer; else {TAKE_DCGM}"),
    "passes": ("no score can be counted in one pass on this chip", TAKE_DCGM),
    "interval": (
        "the sampling interval is refused by this GPU",
        "give a longer interval_s, or interval_cycles",
    ),
    "nvperf": (
        "CUPTI does not find libnvperf_host.so and libnvperf_target.so",
        "keep them beside libcupti.so, or add their folder to LD_LIBRARY_PATH",
    ),
    "driver_old": (
        "the driver is older than CUPTI's library, which needs one for CUDA 13.0",
        f"update the driver to 580 or newer, or {TAKE_DCGM}",
    ),
    "lost": ("the GPU does not respond", "check nvidia-smi and the kernel log; retried"),
    "overflow": (
        "samples were lost: the buffer was full",
        "give a longer interval_s or a larger buffer_mib",
    ),
}
_BY_RESULT: Mapping[str, str] = {
    "ERROR_INSUFFICIENT_PRIVILEGES": "privileges",
    "ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES": "vgpu_privileges",
    "ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED": "vgpu",
    "ERROR_MIG_DEVICE_NOT_SUPPORTED": "mig",
    "ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED": "confidential",
    "ERROR_WSL_DEVICE_NOT_SUPPORTED": "wsl",
    "ERROR_UM_PROFILING_NOT_SUPPORTED_WITH_MPS": "mps",
    "ERROR_CMP_DEVICE_NOT_SUPPORTED": "chip",
    "ERROR_LEGACY_PROFILER_NOT_SUPPORTED": "chip",
    "ERROR_INVALID_CHIP_NAME": "chip",
    "ERROR_NOT_COMPATIBLE": "chip",
    "ERROR_INVALID_DEVICE": "lost",
    "ERROR_HARDWARE": "lost",
}
_BUSY = frozenset(
    {"ERROR_HARDWARE_BUSY", "ERROR_INVALID_OPERATION", "ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"}
)
_UNSUPPORTED = "ERROR_NOT_SUPPORTED"


class PmSamplingError(InputError):
    """A GPU, or all of them, cannot be sampled. code: a key of FAULTS, or free text."""

    def __init__(self, code: str, what: str = "", do: str = "") -> None:
        usual = FAULTS.get(code, ("", ""))
        self.code = code
        super().__init__(what or usual[0], do=do or usual[1])

    @property
    def is_retried(self) -> bool:
        """Whether it may pass by itself."""
        return self.code in RETRIED


Running = Callable[[str], bool]  # whether a process of HOLDERS runs


def is_running(kind: str, proc: Path = Path("/proc")) -> bool:
    """Return whether a process of `HOLDERS[kind]` runs on this node, as far as /proc shows it."""
    for comm in proc.glob("[0-9]*/comm"):
        try:
            if comm.read_text(encoding="utf-8", errors="replace").strip() in HOLDERS[kind]:
                return True
        except OSError:  # it has ended
            continue
    return False


def fault_of(problem: Exception, *, running: Running = is_running) -> PmSamplingError:
    """Return an exception of the library as a fault. Anything unknown keeps its text.

    Counters that are in use are those of DCGM where its engine runs, else of another process; the
    library does not report whose they are.

    >>> fault_of(PermissionError("Insufficient privileges")).code
    'privileges'
    """
    match problem:
        case PmSamplingError():
            return problem
        case PermissionError():
            return PmSamplingError("privileges")
        case MemoryError():
            return PmSamplingError("overflow")
        case RuntimeError() if "or later driver is supported" in str(problem):
            return PmSamplingError("driver_old")
        case RuntimeError() if "nvperf" in str(problem):
            return PmSamplingError("nvperf")
        case RuntimeError() if "already" in str(problem):
            return _busy(running)
        case ValueError() if "device_index" in str(problem):
            return PmSamplingError("lost")
        case ValueError() if "chip_name" in str(problem):
            return PmSamplingError("chip")
        case ValueError() if "not supported" in str(problem):
            return PmSamplingError("interval")
    return _of_result(_result_name(problem), problem, running)


def _of_result(result: str, problem: Exception, running: Running) -> PmSamplingError:
    if result in _BUSY:
        return _busy(running)
    if result == _UNSUPPORTED:
        return PmSamplingError("mps" if running("mps") else "chip")
    if result in _BY_RESULT:
        return PmSamplingError(_BY_RESULT[result])
    return PmSamplingError("unknown", f"CUPTI: {problem or type(problem).__name__}", "retried")


def _busy(running: Running) -> PmSamplingError:
    return PmSamplingError("dcgm" if running("dcgm") else "session")


def _result_name(problem: Exception) -> str:
    """Name of a CUptiResult at the beginning of a cuptiError."""
    status: Any = getattr(problem, "status", None)
    return "" if status is None else str(problem).partition(" ")[0]


def driver_fault(problem: Exception) -> PmSamplingError:
    """Return why CUDA does not start."""
    text = str(problem)
    if "NO_DEVICE" in text:
        return PmSamplingError(
            "no_gpu", "CUDA lists no GPU", "run it where GPUs are; is CUDA_VISIBLE_DEVICES empty?"
        )
    if "MPS" in text:
        return PmSamplingError("mps", f"CUDA does not start under MPS ({text})")
    return PmSamplingError(
        "driver",
        f"CUDA does not start: {text.rstrip('.')}",
        "install or load the NVIDIA driver; nvidia-smi shows it",
    )
