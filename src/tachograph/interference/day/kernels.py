"""The kernels of a simulated day, as the hardware meets them: how warps issue, wait, and what their blocks occupy.

No field here is a metric: what a profiler would measure comes out of `day.world`, as would a measurement.
The shapes follow published kernels: copies of 33 to 264 blocks, `__fmul_rn` and `__dmul_rn` with 1 to 4 independent
operations, a GEMM with IPC 3 and 60 % of the FMA pipe, sleeping kernels of 132 and 264 blocks. Source of these:
Elvinger et al. (2025), tables 2 to 4. Tensor GEMMs, attention, normalisation, small inference are made up after them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tachograph.interference.demand import H100_NVL, Footprint

SMS, SCHEDULERS, WARP = 132, 4, 32
# cycles for which a warp instruction keeps a pipeline of one scheduler; 16 lanes: 2, 32 lanes: 1
INTERVALS: Mapping[str, int] = {"alu": 2, "fma": 1, "fp64": 2, "lsu": 4, "tensor": 16, "uniform": 1, "xu": 8}
Class = Literal["compute", "memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroKernel:
    """A kernel. `mix`: {pipeline: share of its instructions}, the rest goes to alu and uniform, half each.

    burst: instructions a warp issues before it waits for their results; latency: cycles from the first of them on.
    request: requests to memory per instruction; request_bytes: of a warp; ahead: cycles it asks before it needs them.
    l2_hit: fraction of requests found in L2 when alone; l2_bytes: what it comes back to. bound: as a roofline places
    it. launch_s: how long a launch takes.
    """

    name: str
    blocks: int
    threads: int
    registers: int = 32
    shared_bytes: float = 1024.0
    mix: Mapping[str, float] = field(default_factory=dict)
    burst: int = 1
    latency: float = 4.0
    request: float = 0.0
    request_bytes: float = 256.0
    ahead: float = 0.0
    l2_hit: float = 0.0
    l2_bytes: float = 0.0
    bound: Class = "compute"
    launch_s: float = 1e-3

    @property
    def fitting(self) -> int:
        """Blocks that fit into an empty SM."""
        return most_blocks(self, 1.0, 1.0, 1.0, 1.0)

    @property
    def resident(self) -> int:
        """Blocks on an SM that has some, while it runs alone."""
        return min(self.fitting, -(-self.blocks // SMS))

    @property
    def sm_share(self) -> float:
        """Share of the SMs that get a block."""
        return min(1.0, self.blocks / SMS)

    @property
    def footprint(self) -> Footprint:
        """What its blocks occupy."""
        return Footprint(self.blocks, self.threads, self.registers, self.shared_bytes, self.fitting)

    def warps_of(self, blocks: int) -> int:
        """Warps on a scheduler while so many of its blocks are on the SM."""
        return -(-blocks * self.threads // (WARP * SCHEDULERS))


def most_blocks(kernel: MicroKernel, threads: float, slots: float, registers: float, shared: float) -> int:
    """Return how many blocks fit where these shares of an SM's resources are free.

    >>> most_blocks(MicroKernel(name="sleep", blocks=264, threads=1024), 1.0, 1.0, 1.0, 1.0)
    2
    """
    chip = H100_NVL
    return int(
        min(
            threads * (chip.threads_per_sm or 0) / kernel.threads + 1e-9,
            slots * (chip.blocks_per_sm or 0) + 1e-9,
            registers * (chip.registers_per_sm or 0) / (kernel.registers * kernel.threads) + 1e-9,
            shared * (chip.shared_bytes_per_sm or 0) / kernel.shared_bytes + 1e-9,
        )
    )


def room_left(kernels: Sequence[MicroKernel], blocks: Sequence[int]) -> tuple[float, float, float, float]:
    """Return shares of an SM's threads, block slots, registers and shared memory that so many blocks of each leave.

    >>> room_left([MicroKernel(name="sleep", blocks=132, threads=1024)], [1])[:2]
    (0.5, 0.96875)
    """
    chip = H100_NVL
    threads, slots, registers, shared = 1.0, 1.0, 1.0, 1.0
    for kernel, number in zip(kernels, blocks, strict=True):
        threads -= number * kernel.threads / (chip.threads_per_sm or 1)
        slots -= number / (chip.blocks_per_sm or 1)
        registers -= number * kernel.threads * kernel.registers / (chip.registers_per_sm or 1)
        shared -= number * kernel.shared_bytes / (chip.shared_bytes_per_sm or 1)
    return threads, slots, registers, shared


def _fmul(independent: int, threads: int) -> MicroKernel:
    latency = {1: 3.70, 2: 3.88, 3: 4.14, 4: 4.64}[independent]
    return MicroKernel(
        name=f"fmul-ilp{independent}-{threads}", blocks=132, threads=threads, mix={"fma": 1.0}, burst=independent,
        latency=latency,
    )  # fmt: skip


def _dmul(independent: int) -> MicroKernel:
    return MicroKernel(
        name=f"dmul-ilp{independent}", blocks=132, threads=128, mix={"fp64": 1.0}, burst=independent,
        latency={1: 8.01, 2: 8.11, 3: 8.22, 4: 8.28}[independent],
    )  # fmt: skip


def _copy(blocks: int) -> MicroKernel:
    return MicroKernel(
        name=f"copy-{blocks}x1024", blocks=blocks, threads=1024, mix={"lsu": 0.1}, burst=3, latency=12.0,
        request=0.07, request_bytes=256.0, bound="memory",
    )  # fmt: skip


def _streams() -> tuple[MicroKernel, ...]:
    copy = _copy(132)
    return (
        *(_copy(blocks) for blocks in (33, 66, 132)),
        replace(copy, name="copy-full", blocks=264),
        replace(copy, name="stencil", threads=256, request=0.03, l2_hit=0.5, l2_bytes=20e6),
        replace(copy, name="decode", threads=512, request=0.06, l2_hit=0.1, l2_bytes=4e6),
        replace(
            copy, name="gather", blocks=66, threads=256, request=0.15, request_bytes=128.0, l2_hit=0.4, l2_bytes=35e6
        ),
    )


def _gemms() -> tuple[MicroKernel, ...]:
    fp32 = MicroKernel(
        name="gemm-fp32", blocks=128, threads=128, registers=128, shared_bytes=48e3, mix={"fma": 0.80, "lsu": 0.06},
        burst=8, latency=10.7, request=0.002, ahead=400.0, l2_hit=0.8, l2_bytes=12e6,
    )  # fmt: skip
    tensor = replace(
        fp32, name="gemm-tensor", mix={"tensor": 0.05, "lsu": 0.06}, latency=12.0, registers=160, shared_bytes=100e3
    )
    return (
        fp32,
        replace(fp32, name="gemm-fp32-small", blocks=64, l2_bytes=4e6),
        tensor,
        replace(
            tensor, name="gemm-tensor-small", blocks=48, mix={"tensor": 0.03, "lsu": 0.06}, latency=14.0, registers=128,
            shared_bytes=60e3, l2_bytes=6e6,
        ),
        replace(
            tensor, name="attention", blocks=264, mix={"tensor": 0.035, "lsu": 0.06}, latency=14.0, registers=200,
            shared_bytes=80e3, request=0.004,
        ),
    )  # fmt: skip


def _small() -> tuple[MicroKernel, ...]:
    inference = MicroKernel(
        name="inference-24", blocks=24, threads=256, registers=64, shared_bytes=16e3, mix={"fma": 0.4, "lsu": 0.1},
        burst=4, latency=14.0, request=0.02, l2_hit=0.6, l2_bytes=8e6, bound="memory", launch_s=1e-4,
    )  # fmt: skip
    norm = MicroKernel(
        name="layer-norm", blocks=1056, threads=256, registers=40, mix={"fma": 0.3, "xu": 0.03, "lsu": 0.1}, burst=3,
        latency=14.0, request=0.05, l2_hit=0.3, l2_bytes=30e6, bound="memory", launch_s=2e-4,
    )  # fmt: skip
    return (
        inference,
        replace(inference, name="inference-48", blocks=48),
        replace(inference, name="inference-96", blocks=96, bound="compute", request=0.01),
        norm,
        replace(norm, name="softmax", blocks=396, mix={"fma": 0.3, "xu": 0.10, "lsu": 0.1}, l2_bytes=10e6),
    )


def _catalogue() -> tuple[MicroKernel, ...]:
    return (
        *(_fmul(independent, 128) for independent in (1, 2, 3, 4)),
        _fmul(4, 256),
        _fmul(4, 1024),
        *(_dmul(independent) for independent in (1, 2, 3, 4)),
        *_streams(),
        *_gemms(),
        *_small(),
        MicroKernel(name="sleep-132", blocks=132, threads=1024, burst=2, latency=900.0),
        MicroKernel(name="sleep-264", blocks=264, threads=1024, burst=2, latency=900.0),
    )


def _of_recorded() -> tuple[MicroKernel, ...]:
    """Kernels that made-up days do without: corners of what DCGM tells of recorded jobs. Made up, too."""
    dense = MicroKernel(
        name="gemm-tensor-large", blocks=132, threads=256, registers=200, shared_bytes=150e3,
        mix={"tensor": 0.10, "lsu": 0.06}, burst=8, latency=10.7, request=0.002, ahead=400.0, l2_hit=0.8, l2_bytes=20e6,
    )  # fmt: skip
    wide = replace(dense, threads=512, registers=64, shared_bytes=50e3, blocks=264)
    return (
        dense,
        replace(wide, name="gemm-tensor-wide"),
        replace(wide, name="gemm-fp64", mix={"fp64": 0.45, "lsu": 0.06}),
        replace(wide, name="gemm-fp64-tensor", mix={"fp64": 0.35, "tensor": 0.02, "lsu": 0.06}),
        replace(wide, name="gemm-fp32-wide", mix={"fma": 0.7, "lsu": 0.06}),
        replace(dense, name="dmul-33", blocks=33, mix={"fp64": 0.45}),
        replace(dense, name="fmul-33", blocks=33, mix={"fma": 0.9}),
        replace(dense, name="gemm-tensor-33", blocks=33),
        replace(wide, name="solver-fp64", mix={"fp64": 0.3, "lsu": 0.1}, request=0.03, l2_hit=0.2, bound="memory"),
        replace(dense, name="stream-narrow", mix={"lsu": 0.1}, request=0.12, l2_hit=0.0, bound="memory"),
        replace(wide, name="stream-half", blocks=66, mix={"lsu": 0.1}, request=0.12, l2_hit=0.0, bound="memory"),
        replace(
            wide, name="solver-half", blocks=80, mix={"fp64": 0.4, "lsu": 0.1}, request=0.05, l2_hit=0.0, bound="memory"
        ),
        replace(dense, name="tiny", blocks=4, threads=128, mix={"fma": 0.3, "lsu": 0.1}, launch_s=2e-5),
    )


MADE_UP = len(_catalogue())  # kernels of made-up days, the first of KERNELS
KERNELS: Mapping[str, MicroKernel] = {kernel.name: kernel for kernel in (*_catalogue(), *_of_recorded())}
