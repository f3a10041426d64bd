"""Floating-point operations and bytes of a kernel per second, and the peaks that the report tells of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tachograph.interference.profile import readings
from tachograph.interference.profile.kernels import Kernel

# operations of one instruction of a thread. Instructions on halves always work on two at once (HADD2, HFMA2), those on
# pairs of fp32 (FADD2, FFMA2, on Blackwell alone) too
_OPERATIONS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "fp64": {"dadd": 1.0, "dmul": 1.0, "dfma": 2.0},
        "fp32": {"fadd": 1.0, "fmul": 1.0, "ffma": 2.0},
        "fp16": {"hadd": 2.0, "hmul": 2.0, "hfma": 4.0},
    }
)
_PAIRS: Mapping[str, float] = MappingProxyType({"fadd2": 2.0, "fmul2": 2.0, "ffma2": 4.0})
# by what sections of rooflines multiply instructions. Older ones take one of halves for two operations, not for four:
# what they tell is divided by their own factor
_FACTORS = (4.0, 2.0)
# kind of numbers -> pipeline that works on them
PIPE_OF: Mapping[str, str] = MappingProxyType({"fp64": "fp64", "fp32": "fma", "fp16": "fp16", "tensor": "tensor"})
_IDLE = 0.005  # a pipeline with less than this to do did nothing that counts
_CLOCKS = tuple(f"{unit}__cycles_elapsed.avg.per_second" for unit in ("smsp", "sm", "gpc"))
_TENSOR = re.compile(
    r"sm__ops_path_tensor_(src_(?!u?int)[a-z0-9]+)(?:_(dst_[a-z0-9]+))?(?:_(sparsity_on|sparsity_off))?\.sum"
)


@dataclass(frozen=True, slots=True)
class Work:
    """What a kernel computes and moves per second, alone.

    flop_per_s: {fp64, fp32, fp16, tensor: of those that were counted}. bytes_per_s: with DRAM, None: not told.
    uncounted: kinds whose pipeline was busy while nobody counted operations; the intensity is then unknown.
    unsure: kinds of which neither operations nor the load of the pipeline is told; the intensity is then at least this.
    """

    flop_per_s: Mapping[str, float]
    bytes_per_s: float | None
    uncounted: tuple[str, ...]
    unsure: tuple[str, ...]

    @property
    def intensity(self) -> float | None:
        """FLOP per byte of DRAM traffic; None: not known, or no traffic."""
        if not self.flop_per_s or self.uncounted or not self.bytes_per_s:
            return None
        return sum(self.flop_per_s.values()) / self.bytes_per_s


def work_of(kernel: Kernel) -> Work:
    """Return what a kernel computes and moves per second, of whichever form of the counts was collected."""
    counted = {kind: rate for kind in _OPERATIONS if (rate := _rate_of_kind(kernel, kind)) is not None}
    tensor = _tensor(kernel)
    if tensor is not None:
        counted["tensor"] = tensor
    load = readings.pipes(kernel.metrics, kernel.coverage)
    untold = [kind for kind in PIPE_OF if kind not in counted]
    return Work(
        flop_per_s=MappingProxyType(counted),
        bytes_per_s=_traffic(kernel),
        uncounted=tuple(kind for kind in untold if PIPE_OF[kind] in load and load[PIPE_OF[kind]].value >= _IDLE),
        unsure=tuple(kind for kind in untold if PIPE_OF[kind] not in load),
    )


def reported_peak(kernel: Kernel, kind: str) -> float | None:
    """Return the peak of fp64, fp32, fp16 or tensor in FLOP/s as the report tells it: per cycle, times the clock."""
    per_cycle = _tensor_peak(kernel) if kind == "tensor" else _vector_peak(kernel, kind)
    peak = (per_cycle or 0.0) * (_clock(kernel) or 0.0)
    return peak if peak > 0 else None


def _vector_peak(kernel: Kernel, kind: str) -> float | None:
    """Operations per cycle on fp64, fp32 or fp16."""
    letter, times = {"fp64": ("d", 2.0), "fp32": ("f", 2.0), "fp16": ("h", 4.0)}[kind]
    stem = f"__sass_thread_inst_executed_op_{letter}fma_pred_on"
    scales = {f"sm{stem}.sum.peak_sustained": times}
    scales |= {f"derived__sm{stem}_x{factor:.0f}": times / factor for factor in _FACTORS}
    peak = readings.first(kernel.metrics, scales)
    return None if peak is None else peak.value


def _clock(kernel: Kernel) -> float | None:
    """Cycles per second; None: not told, as where it is 0, at which nothing runs."""
    told = (kernel.metrics.get(name, 0.0) for name in _CLOCKS)
    return next((clock for clock in told if clock > 0), None)


def _rate_of_kind(kernel: Kernel, kind: str) -> float | None:
    """FLOP/s; None unless additions, multiplications and both at once were all counted."""
    counted = {operation: _instructions(kernel, operation) for operation in _OPERATIONS[kind]}
    if kind == "fp32":
        pairs = {operation: _instructions(kernel, operation) for operation in _PAIRS}
        counted |= {operation: rate for operation, rate in pairs.items() if rate is not None}
    times = {**_OPERATIONS[kind], **_PAIRS}
    rates = [None if rate is None else rate * times[operation] for operation, rate in counted.items()]
    known = [rate for rate in rates if rate is not None]
    return sum(known) if len(known) == len(rates) else None


def _instructions(kernel: Kernel, operation: str) -> float | None:
    """Instructions of threads per second, of whichever form they were collected in."""
    stem = f"sass_thread_inst_executed_op_{operation}_pred_on"
    rates = (_rate(kernel, f"{unit}__{stem}.sum") for unit in ("smsp", "sm"))
    rate = next((rate for rate in rates if rate is not None), None)
    return _derived(kernel, stem) if rate is None else rate


def _derived(kernel: Kernel, stem: str) -> float | None:
    """Instructions per second from operations per cycle, which is how sections of rooflines tell them."""
    scales = {f"derived__smsp__{stem}_x{factor:.0f}": 1 / factor for factor in _FACTORS}
    per_cycle, clock = readings.first(kernel.metrics, scales), _clock(kernel)
    return None if per_cycle is None or clock is None else per_cycle.value * clock


def _rate(kernel: Kernel, count: str) -> float | None:
    """A count per second: told so, or per cycle, or in all."""
    if (told := kernel.metrics.get(f"{count}.per_second")) is not None:
        return told
    per_cycle = kernel.metrics.get(f"{count}.per_cycle_elapsed")
    clock = _clock(kernel)
    if per_cycle is not None and clock is not None:
        return per_cycle * clock
    return kernel.per_second(count)


def _tensor(kernel: Kernel) -> float | None:
    """Operations of the tensor cores on floating-point numbers, per second, over all types that were counted."""
    counts = {parts: rate for parts in _tensor_parts(kernel)
              if (rate := _rate(kernel, _tensor_count(parts))) is not None}  # fmt: skip
    # a count without a destination, or without sparsity, has in it those that name one
    whole = [rate for parts, rate in counts.items() if not any(parts[:cut] in counts for cut in range(1, len(parts)))]
    return sum(whole) if whole else None


def _tensor_peak(kernel: Kernel) -> float | None:
    """Per cycle, of the type of numbers with most operations."""
    told = [(rate, peak) for parts in _tensor_parts(kernel)
            if (rate := _rate(kernel, _tensor_count(parts)))
            and (peak := kernel.metrics.get(f"{_tensor_count(parts)}.peak_sustained"))]  # fmt: skip
    return max(told)[1] if told else None


def _tensor_parts(kernel: Kernel) -> set[tuple[str, ...]]:
    """What the counts of tensor operations in a report tell apart: source, then destination, then sparsity."""
    found = (_TENSOR.match(name) for name in kernel.metrics if name.startswith("sm__ops_path_tensor"))
    return {tuple(part for part in match.groups() if part) for match in found if match}


def _tensor_count(parts: tuple[str, ...]) -> str:
    return f"sm__ops_path_tensor_{'_'.join(parts)}.sum"


def _traffic(kernel: Kernel) -> float | None:
    whole = _rate(kernel, "dram__bytes.sum")
    if whole is not None:
        return whole
    read, written = (_rate(kernel, f"dram__bytes_{way}.sum") for way in ("read", "write"))
    if read is not None and written is not None:
        return read + written
    told = readings.traffic(kernel.metrics, kernel.coverage)
    return None if told is None else told.value
