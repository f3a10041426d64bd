"""The labelled workloads: what each does, which class it must come out as, which counters must show
it, and why.

Classes are those of docs/workload.md. Where several are accepted, the reason is that counters
cannot tell more, and a check of a counter says what must be seen all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Statistic = Literal["mean", "share above"]


@dataclass(frozen=True, slots=True)
class Check:
    """A counter over the steady part of a recording. level: of `share above`, the share of
    samples above it.
    """

    counter: str
    low: float
    high: float
    statistic: Statistic = "mean"
    level: float = 0.0

    @property
    def sentence(self) -> str:
        """What must be seen.

        >>> Check("gr_engine_active", 0.2, 0.8, "share above", 0.5).sentence
        'share of samples with gr_engine_active above 0.5 in 0.2 .. 0.8'
        """
        what = f"mean of {self.counter}"
        if self.statistic == "share above":
            what = f"share of samples with {self.counter} above {self.level:g}"
        return f"{what} in {self.low:g} .. {self.high:g}"


@dataclass(frozen=True, slots=True)
class Label:
    """One workload. share: of live looks that must show one of `classes`. counts: whether it does
    countable work.

    steady: the part of its time that is judged. typical: what a rehearsal without a GPU pretends,
    fractions and B/s.
    """

    name: str
    does: str
    classes: tuple[str, ...]
    checks: tuple[Check, ...]
    typical: Mapping[str, float]
    share: float = 0.8
    counts: bool = True
    steady: tuple[float, float] = (0.0, 1.0)
    why: str = ""


_TENSOR = ("tensor-heavy compute", "tensor compute")
_STREAM = ("memory-bound", "memory-active", "compute-heavy", "compute-active")
_BUSY = {"gr_engine_active": 0.98, "sm_active": 0.92, "sm_occupancy": 0.3}

LABELS: tuple[Label, ...] = (
    Label("idle", "nothing", ("idle",), (Check("gr_engine_active", 0, 0.05), Check("sm_active", 0, 0.05)), {},
          counts=False),
    Label("fp64", "matrix products in double precision", (*_TENSOR, "FP64 / HPC compute"),
          (Check("sm_active", 0.6, 1),), _BUSY | {"tensor_active": 0.85, "tensor_dfma_active": 0.85},
          why=("on data-centre GPUs since Ampere they run on tensor pipes, which `fp64_active` "
          "does not count")),
    Label("fp64-vector", "chains of multiply-add in double precision", ("FP64 / HPC compute",),
          (Check("fp64_active", 0.2, 1), Check("tensor_active", 0, 0.1)), _BUSY | {"fp64_active": 0.8}),
    Label("fp32", "matrix products in single precision, no TF32", ("compute-heavy", "compute-active"),
          (Check("fp32_active", 0.3, 1), Check("tensor_active", 0, 0.15)), _BUSY | {"fp32_active": 0.7}),
    Label("fp16", "matrix products in half precision", _TENSOR,
          (Check("tensor_active", 0.15, 1), Check("tensor_hmma_active", 0.15, 1)),
          _BUSY | {"tensor_active": 0.8, "tensor_hmma_active": 0.8, "dram_active": 0.3}),
    Label("bf16", "matrix products in bfloat16", _TENSOR,
          (Check("tensor_active", 0.15, 1), Check("tensor_hmma_active", 0.15, 1)),
          _BUSY | {"tensor_active": 0.8, "tensor_hmma_active": 0.8, "dram_active": 0.3}),
    Label("device-copy", "copies within device memory", _STREAM,
          (Check("dram_active", 0.4, 1), Check("tensor_active", 0, 0.05)),
          {"gr_engine_active": 0.98, "sm_active": 0.3, "dram_active": 0.8},
          why=("by copy engine SMs rest, by kernel they wait for memory: what waits counts as "
          "active")),
    Label("host-copy", "copies between pinned host memory and the device", ("I/O or data-loading",),
          (Check("sm_active", 0, 0.3), Check("pcie_rx_bytes_per_s", 1e9, 1e12)),
          {"gr_engine_active": 0.9, "sm_active": 0.02, "dram_active": 0.05, "pcie_rx_bytes_per_s": 2e10,
           "pcie_tx_bytes_per_s": 2e10}),
    Label("tiny-kernels", "kernels of one element, one after the other",
          ("busy, low SM use", "low utilization", "mixed / moderate"),
          (Check("sm_active", 0, 0.25), Check("gpu_util", 0.5, 1)),
          {"gr_engine_active": 0.7, "sm_active": 0.02, "dram_active": 0.01},
          why="utilization is high all the same, which is the point"),
    Label("memory-bound", "sums of two long vectors", _STREAM,
          (Check("dram_active", 0.5, 1), Check("tensor_active", 0, 0.05), Check("fp32_active", 0, 0.2)),
          {"gr_engine_active": 0.98, "sm_active": 0.45, "dram_active": 0.9},
          why="warps that wait for memory are resident: SM activity is high where the pipes rest"),
    Label("training-stalls", "training steps in bfloat16, each behind a wait for data",
          ("mixed / moderate", "tensor compute", "compute-active", "busy, low SM use", "low utilization",
           "memory-active", "tensor-heavy compute"),
          (Check("gr_engine_active", 0.15, 0.85, "share above", 0.5), Check("sm_active", 0.05, 0.8)),
          {"gr_engine_active": 0.95, "sm_active": 0.8, "tensor_active": 0.5, "tensor_hmma_active": 0.5},
          share=0.6, why="the class of a second is that of its mean; the waits are seen at 10 Hz"),
    Label("hang", "matrix products, then a wait for ever with memory held", ("idle",),
          (Check("gr_engine_active", 0, 0.05), Check("hbm_used_mib", 500, 1 << 21)),
          _BUSY | {"tensor_active": 0.8, "tensor_hmma_active": 0.8}, counts=False, steady=(0.6, 1.0)),
)  # fmt: skip

BY_NAME: Mapping[str, Label] = {label.name: label for label in LABELS}
