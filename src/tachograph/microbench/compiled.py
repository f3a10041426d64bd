"""The kernels, compiled by NVRTC: needs neither a GPU nor a driver."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal

from tachograph.errors import TachographError, UsageError
from tachograph.microbench.cubin import Code, codes

INSTALL = "pip install 'tachograph[cuda]'"
_OLDEST = 70  # Volta: its threads can sleep
_STANDARD = "--std=c++17"


@dataclass(frozen=True, slots=True)
class Program:
    """All kernels for one architecture. A cubin is machine code (`codes` says what each kernel takes), ptx is not."""

    arch: str  # such as sm_90 or compute_90
    kind: Literal["cubin", "ptx"]
    image: bytes
    codes: Mapping[str, Code]


def source() -> str:
    """Return the CUDA C++ of all kernels."""
    return files("tachograph.microbench").joinpath("kernels.cu").read_text(encoding="utf-8")


def compile_kernels(arch: str) -> Program:
    """Return the kernels as machine code of `sm_NN`, or as PTX of `compute_NN`.

    A chip that the compiler does not know gets PTX of the newest architecture before it: its driver goes on.
    Errors: UsageError where NVRTC is not installed, and for what is no architecture.
    """
    nvrtc = _nvrtc()
    if not re.fullmatch(r"(sm|compute)_\d{2,3}[af]?", arch):
        raise UsageError(f"no architecture {arch!r}", do="write it like sm_90 or compute_90")
    known = _call(nvrtc, nvrtc.nvrtcGetSupportedArchs())
    number = int(re.sub(r"\D", "", arch))
    oldest = max(_OLDEST, min(known))
    if number < oldest:
        raise UsageError(f"no chip as old as {arch} runs these kernels", do=f"the oldest is sm_{oldest}")
    if number not in known:
        arch = f"compute_{max(one for one in known if one <= number)}"
    image = _compiled(nvrtc, arch)
    if arch.startswith("compute"):
        return Program(arch, "ptx", image, MappingProxyType({}))
    return Program(arch, "cubin", image, codes(image))


def _compiled(nvrtc: Any, arch: str) -> bytes:
    program = _call(nvrtc, nvrtc.nvrtcCreateProgram(source().encode(), b"kernels.cu", 0, [], []))
    options = [f"--gpu-architecture={arch}".encode(), _STANDARD.encode()]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * _call(nvrtc, nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise TachographError(f"NVRTC refuses the kernels: {log.decode(errors='replace')}", where=arch)
    if arch.startswith("compute"):
        image = b" " * _call(nvrtc, nvrtc.nvrtcGetPTXSize(program))
        nvrtc.nvrtcGetPTX(program, image)
    else:
        image = b" " * _call(nvrtc, nvrtc.nvrtcGetCUBINSize(program))
        nvrtc.nvrtcGetCUBIN(program, image)
    nvrtc.nvrtcDestroyProgram(program)
    return bytes(image)


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, OSError, RuntimeError) as problem:
        said = str(problem).strip().splitlines()
        what = f"NVRTC, the CUDA compiler, is not installed ({said[0] if said else problem!r})"
        raise UsageError(what, do=INSTALL) from None
    return nvrtc


def _call(nvrtc: Any, answer: tuple[Any, ...]) -> Any:
    """What a function of NVRTC returned.

    Errors: TachographError with the compiler's word for what failed.
    """
    status, *values = answer
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise TachographError(f"NVRTC says {status.name}", do="see `pip list` for nvidia-cuda-nvrtc-cu12")
    return values[0]
