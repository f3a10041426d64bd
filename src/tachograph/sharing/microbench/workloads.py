"""Kernels of kernels.cu, and launches of them: arrays, arguments, and the work that they do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from tachograph.sharing.demand import GpuCapacity

WARP = 32  # threads
FLOAT = 4  # bytes
LINE = 128  # bytes that L1 or shared memory delivers in a cycle, on all chips since Volta
MATRIX = 1024  # rows of the matrices that are multiplied
TILE, DEPTH, MATRIX_THREADS = 64, 16, 256  # as in kernels.cu
_FACTORS = 4  # in memory, of which a kernel takes as many as it needs
_SHARED_LOADS = 16  # of a thread in a round, as in kernels.cu
_VECTOR = 4  # floats of 16 bytes

# copy: array to array. sweep, read: an array again and again, by all blocks together, or by each block (sweep_l1).
# chains: nothing but registers and shared memory
WorkloadKind = Literal["sleep", "copy", "sweep", "sweep_l1", "read", "chains", "matmul"]
Waiting = Literal["arithmetic", "memory", "barriers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchKernel:
    """One kernel of kernels.cu.

    operation: machine instruction that does its work, see machine_code. per_unit: how many of them are a unit of work;
    None: an iteration of the loop is one. width: floats of a thread's access. wavefronts: of a unit in L1 or shared
    memory, 128 bytes each. waits: what its warps wait for. words: of the resource that it loads.
    """

    kind: WorkloadKind
    operation: str
    words: str
    per_unit: int | None = None
    width: int = 1
    wavefronts: float = 0.0
    waits: Waiting = "arithmetic"
    doubles: bool = False


def _chained(name: str, operation: str, words: str, chains: tuple[int, ...]) -> dict[str, BenchKernel]:
    return {
        f"{name}_{count}": BenchKernel(kind="chains", operation=operation, words=words, doubles=name == "dmul")
        for count in chains
    }


def _memory(
    kind: WorkloadKind, words: str, *, width: int = 1, arrays: int = 1, waits: Waiting = "memory"
) -> BenchKernel:
    """A unit is a load of a warp, with the store of a copy."""
    return BenchKernel(
        kind=kind, operation="LDG", words=words, per_unit=1, width=width, waits=waits,
        wavefronts=arrays * width * FLOAT * WARP / LINE,
    )  # fmt: skip


def _shared(ways: int) -> BenchKernel:
    return BenchKernel(
        kind="chains", operation="LDS", words="bandwidth of shared memory" + (f", {ways} conflicts" * (ways > 1)),
        wavefronts=float(_SHARED_LOADS * _VECTOR * ways), waits="memory",
    )  # fmt: skip


KERNELS: Mapping[str, BenchKernel] = MappingProxyType(
    {
        "sleep": BenchKernel(kind="sleep", operation="NANOSLEEP", words="block slots", per_unit=1),
        "copy_1": _memory("copy", "latency of DRAM", arrays=2),
        "copy_4": _memory("copy", "bandwidth of DRAM", arrays=2, width=_VECTOR),
        "sweep_l2": _memory("sweep", "what stays in L2"),
        "sweep_l1": _memory("sweep_l1", "what stays in L1"),
        "read_l2": _memory("read", "bandwidth of L2", width=_VECTOR),
        "shared_1": _shared(1),
        "shared_8": _shared(8),
        **_chained("fmul", "FMUL", "FP32 pipeline", (1, 2, 3, 4)),
        **_chained("dmul", "DMUL", "FP64 pipeline", (1, 2, 3, 4)),
        **_chained("alu", "LOP3", "ALU pipeline", (1, 4)),
        **_chained("xu", "MUFU", "XU pipeline", (1, 4)),
        **_chained("tensor", "HMMA", "tensor cores", (1, 4)),
        "matmul": BenchKernel(kind="matmul", operation="FFMA", words="FP32 pipeline, as in real work", waits="barriers",
                              wavefronts=8 * 1 + 8 * 1 + 16 * (4 / 4 + 8 / 4)),
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchWorkload:
    """A kernel with its launch configuration. `floats`: of the array that is copied or read; 0: none is."""

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
        """(bytes, whether they are doubles) of each array, in the order of the kernel's parameters."""
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
        """Units of work of all warps, see BenchKernel.per_unit.

        >>> BenchWorkload(kernel="fmul_4", blocks=132, threads=128).units(10)
        5280.0
        """
        if self.floats:
            return self.loaded_bytes(rounds) / (self.about.width * FLOAT * WARP)
        return self.blocks * self.threads / WARP * rounds * (MATRIX // DEPTH if self.kind == "matmul" else 1)

    def loaded_bytes(self, rounds: int) -> float:
        """Bytes of the array that all blocks load."""
        return float(self.floats * FLOAT * rounds * (self.blocks if self.kind == "sweep_l1" else 1))

    def moved_bytes(self, rounds: int) -> float | None:
        """Bytes read and written; None where it neither copies nor reads an array."""
        return self.loaded_bytes(rounds) * (2.0 if self.kind == "copy" else 1.0) if self.floats else None

    @property
    def footprint_bytes(self) -> float | None:
        """Bytes that come back again and again: through L2, or through the L1 of an SM (sweep_l1)."""
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

    >>> from tachograph.sharing.demand import H100_NVL
    >>> resident_blocks(BenchWorkload(kernel="sleep", blocks=264, threads=1024), H100_NVL)
    2
    """
    sms = gpu.sms or 1
    room = (gpu.threads_per_sm or 2048) // workload.threads
    return max(1, min(-(-workload.blocks // sms), room, gpu.blocks_per_sm or room))
