"""Kernels of kernels.cu, and launches of them: arrays, arguments, and the work that they do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from tachograph.annexes.share.demand import GpuCapacity

WARP = 32  # threads
FLOAT = 4  # bytes
LINE = 128  # bytes that L1 or shared memory delivers in a cycle, on all chips since Volta
MATRIX = 1024  # rows of the matrices that are multiplied
TILE, DEPTH, MATRIX_THREADS = 64, 16, 256  # as in kernels.cu
_FACTORS = 4  # in memory, of which a kernel takes as many as it needs
_SHARED_LOADS = 16  # of a thread in a round, as in kernels.cu
_VECTOR = 4  # floats of 16 bytes

# copy: array to array. sweep, read: an array again and again, by all blocks together, or by each
# block (sweep_l1). chains: nothing but registers and shared memory
WorkloadKind = Literal["sleep", "copy", "sweep", "sweep_l1", "read", "chains", "matmul"]
Waiting = Literal["arithmetic", "memory", "barriers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchKernel:
    """One kernel of kernels.cu, and what a unit of its work needs.

    A unit is an iteration of a warp's loop; of copies, sweeps and reads it is one load of a warp.
    `issued`: warp instructions, `pipes`: those of a pipeline that count, both as NVRTC 12.9
    compiles the kernel for sm_90; other chips differ by a few percent, but for FP64 where few lanes
    do it. `width`: floats of a thread's access. `wavefronts`: in L1 or shared memory, 128 bytes
    each. `registers`: of a thread, `shared_bytes`: of a block. `waits`: what its warps wait for.
    `label`: the resource that it loads.
    """

    kind: WorkloadKind
    label: str
    issued: float
    registers: int
    pipes: Mapping[str, float] = field(default_factory=dict)
    shared_bytes: int = 0
    width: int = 1
    wavefronts: float = 0.0
    waits: Waiting = "arithmetic"
    doubles: bool = False


# instructions of a round beside those of its chains: the loop itself
_LOOP = 6.0
_STEPS = 64  # of a chain in a round
_TENSOR_STEPS = 16


def _chained(
    name: str,
    pipe: str,
    label: str,
    registers: Mapping[int, int],
    *,
    steps: int = _STEPS,
    each: int = 1,
) -> dict[str, BenchKernel]:
    """Return the kernels of so many independent chains; `each`: instructions of a step."""
    kernels = {}
    for chains, taken in registers.items():
        work = float(steps * each * chains)
        kernels[f"{name}_{chains}"] = BenchKernel(
            kind="chains",
            label=label,
            issued=work + _LOOP,
            pipes=MappingProxyType({pipe: work}),
            registers=taken,
            doubles=name == "dmul",
        )
    return kernels


def _memory(
    kind: WorkloadKind,
    label: str,
    issued: float,
    registers: int,
    *,
    width: int = 1,
    arrays: int = 1,
) -> BenchKernel:
    """Return a kernel whose unit is a load of a warp, with the store of a copy."""
    return BenchKernel(
        kind=kind,
        label=label,
        issued=issued,
        pipes=MappingProxyType({"lsu": float(arrays)}),
        registers=registers,
        width=width,
        waits="memory",
        wavefronts=arrays * width * FLOAT * WARP / LINE,
    )


def _shared(ways: int) -> BenchKernel:
    conflicts = f", {ways} conflicts" if ways > 1 else ""
    return BenchKernel(
        kind="chains",
        label=f"bandwidth of shared memory{conflicts}",
        issued=54.0,
        pipes=MappingProxyType({"lsu": 16.0, "alu": 34.0}),
        registers=29,
        shared_bytes=3456 if ways == 1 else 6928,
        wavefronts=float(_SHARED_LOADS * _VECTOR * ways),
        waits="memory",
    )


KERNELS: Mapping[str, BenchKernel] = MappingProxyType(
    {
        "sleep": BenchKernel(kind="sleep", label="block slots", issued=1.3, registers=14),
        "copy_1": _memory("copy", "latency of DRAM", 11.5, 24, arrays=2),
        "copy_4": _memory("copy", "bandwidth of DRAM", 10.5, 40, arrays=2, width=_VECTOR),
        "sweep_l2": _memory("sweep", "what stays in L2", 11.0, 22),
        "sweep_l1": _memory("sweep_l1", "what stays in L1", 11.0, 20),
        "read_l2": _memory("read", "bandwidth of L2", 8.1, 48, width=_VECTOR),
        "shared_1": _shared(1),
        "shared_8": _shared(8),
        **_chained("fmul", "fma", "FP32 pipeline", {1: 18, 2: 18, 3: 18, 4: 22}),
        **_chained("dmul", "fp64", "FP64 pipeline", {1: 18, 2: 20, 3: 24, 4: 28}),
        **_chained("alu", "alu", "ALU pipeline", {1: 18, 4: 21}, each=2),
        **_chained("xu", "xu", "XU pipeline", {1: 18, 4: 24}),
        **_chained("tensor", "tensor", "tensor cores", {1: 20, 4: 32}, steps=_TENSOR_STEPS),
        "matmul": BenchKernel(
            kind="matmul",
            label="FP32 pipeline, as in real work",
            issued=335.0,
            pipes=MappingProxyType({"fma": 262.0, "lsu": 48.0, "alu": 20.0}),
            registers=63,
            shared_bytes=9472,
            waits="barriers",
            # stores of both tiles, and 16 columns that are read: four words of `left` for each, two
            # of `right`
            wavefronts=8 * 1 + 8 * 1 + 16 * (4 / 4 + 8 / 4),
        ),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchWorkload:
    """A kernel with its launch configuration. `floats`: of the array that is copied or read; 0:
    none is.
    """

    kernel: str
    blocks: int
    threads: int
    floats: int = 0

    @property
    def about(self) -> BenchKernel:
        """The kernel."""
        return KERNELS[self.kernel]

    @property
    def kind(self) -> WorkloadKind:
        """Kind of the workload."""
        return self.about.kind

    @property
    def words(self) -> str:
        """The launch in words for people.

        >>> BenchWorkload(kernel="copy_1", blocks=66, threads=1024, floats=2_000_000).words
        'copy_1 66x1024, 8 MB'
        """
        size = self.floats * FLOAT
        whole = f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"
        shown = f"{size / 1024:.0f} KiB" if self.kind == "sweep_l1" else whole
        return f"{self.kernel} {self.blocks}x{self.threads}" + (f", {shown}" if size else "")

    @property
    def array_bytes(self) -> tuple[tuple[int, bool], ...]:
        """(bytes, whether they are doubles) of each array, in the order of the kernel's
        parameters.
        """
        if self.kind == "sleep":
            return ()
        array = (self.floats * FLOAT, False)
        if self.kind == "copy":
            return (array, array)
        if self.kind == "matmul":
            return ((MATRIX * MATRIX * FLOAT, False),) * 3
        doubles = self.about.doubles
        width = 8 if doubles else FLOAT
        results = (self.blocks * self.threads * width, doubles)
        return (array if self.floats else (_FACTORS * width, doubles), results)

    @property
    def bytes_needed(self) -> int:
        """Memory of the GPU that it takes."""
        return sum(size for size, _ in self.array_bytes)

    def numbers(self, rounds: int) -> tuple[int, ...]:
        """Arguments of the kernel after its arrays."""
        if self.kind == "matmul":
            return (MATRIX, rounds)
        return (rounds,) if self.kind in ("sleep", "chains") else (self.floats, rounds)

    def units(self, rounds: int) -> float:
        """Units of work of all warps, see BenchKernel.

        >>> BenchWorkload(kernel="fmul_4", blocks=132, threads=128).units(10)
        5280.0
        """
        if self.floats:
            return self.loaded_bytes(rounds) / (self.about.width * FLOAT * WARP)
        return (
            self.blocks
            * self.threads
            / WARP
            * rounds
            * (MATRIX // DEPTH if self.kind == "matmul" else 1)
        )

    def loaded_bytes(self, rounds: int) -> float:
        """Bytes of the array that all blocks load."""
        return float(self.floats * FLOAT * rounds * (self.blocks if self.kind == "sweep_l1" else 1))

    def moved_bytes(self, rounds: int) -> float | None:
        """Bytes read and written; None where it neither copies nor reads an array."""
        return (
            self.loaded_bytes(rounds) * (2.0 if self.kind == "copy" else 1.0)
            if self.floats
            else None
        )

    @property
    def footprint_bytes(self) -> float | None:
        """Bytes that come back again and again: through L2, or through the L1 of an SM
        (sweep_l1).
        """
        return self.floats * FLOAT * (2.0 if self.kind == "copy" else 1.0) if self.floats else None


def matmul() -> BenchWorkload:
    """Return the multiplication of two matrices."""
    return BenchWorkload(kernel="matmul", blocks=(MATRIX // TILE) ** 2, threads=MATRIX_THREADS)


def over(kernel: str, array_bytes: float, blocks: int, threads: int = 1024) -> BenchWorkload:
    """Return a launch over an array of about so many bytes.

    >>> over("copy_1", 8e6, 66).floats
    1999872
    """
    floats = max(1, int(array_bytes / FLOAT) // 1024) * 1024
    return BenchWorkload(kernel=kernel, blocks=blocks, threads=threads, floats=floats)


def resident_blocks(workload: BenchWorkload, gpu: GpuCapacity) -> int:
    """Return how many blocks an SM has at once, by threads and blocks alone.

    >>> from tachograph.annexes.share.demand import H100_NVL
    >>> resident_blocks(BenchWorkload(kernel="sleep", blocks=264, threads=1024), H100_NVL)
    2
    """
    sms = gpu.sms or 1
    room = (gpu.threads_per_sm or 2048) // workload.threads
    return max(1, min(-(-workload.blocks // sms), room, gpu.blocks_per_sm or room))
