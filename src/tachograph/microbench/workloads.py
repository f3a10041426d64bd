"""Launches of the kernels: what each allocates, is called with, and does per round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from tachograph.interference.demand import Gpu

WARP = 32  # threads
FLOAT = 4  # bytes
MATRIX = 1024  # rows of the matrices that are multiplied
_TILE, _DEPTH, MATRIX_THREADS = 64, 16, 256  # as in kernels.cu
_MULTIPLICATIONS = 64  # of a chain in a round, as in kernels.cu
_CHAINS = 4  # factors in memory, of which a kernel takes as many as it has chains

Kind = Literal["sleep", "copy", "copy_own", "fmul", "dmul", "matmul"]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of kernels.cu.

    `instructions`: that a warp issues for one unit of work: an element of 32 threads copied, a round of
    multiplications, a tile of a matrix; as NVRTC 12.9 compiles it for sm_90. `of_pipe`: how many of these go to `pipe`.
    """

    kind: Kind
    instructions: float
    pipe: str | None = None
    of_pipe: int = 0


def _chained(kind: Literal["fmul", "dmul"], pipe: str) -> dict[str, Kernel]:
    """Six instructions are those of the loop."""
    sizes = {chains: _MULTIPLICATIONS * chains for chains in range(1, 5)}
    return {f"{kind}_{chains}": Kernel(kind, size + 6.0, pipe, size) for chains, size in sizes.items()}


KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        "sleep": Kernel("sleep", 21 / 16),
        "copy": Kernel("copy", 11.5),
        "copy_own": Kernel("copy_own", 11.0),
        **_chained("fmul", "fma"),
        **_chained("dmul", "fp64"),
        "matmul": Kernel("matmul", 328.0, "fma", 256),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A kernel with its launch configuration. `floats`: copied, of the whole array (copy) or of a block (copy_own).

    `stride`: floats from one block's array to the next one's.
    """

    kernel: str
    blocks: int
    threads: int
    floats: int = 0
    stride: int = 0

    @property
    def kind(self) -> Kind:
        """What kind of work it is."""
        return KERNELS[self.kernel].kind

    @property
    def words(self) -> str:
        """The launch in words for people.

        >>> Workload(kernel="copy", blocks=66, threads=1024, floats=2_000_000).words
        'copy 66x1024, 8 MB'
        """
        size = self.floats * FLOAT
        whole = f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"
        shown = whole if self.kind == "copy" else f"{size / 1024:.0f} KiB a block"
        return f"{self.kernel} {self.blocks}x{self.threads}" + (f", {shown}" if size else "")

    @property
    def array_bytes(self) -> tuple[tuple[int, bool], ...]:
        """(bytes, whether they are doubles) of each array, in the order of the kernel's parameters."""
        if self.kind == "sleep":
            return ()
        if self.kind == "copy":
            return ((self.floats * FLOAT, False), (self.floats * FLOAT, False))
        if self.kind == "copy_own":
            size = self.blocks * self.stride * FLOAT
            return ((size, False), (size, False))
        if self.kind == "matmul":
            return ((MATRIX * MATRIX * FLOAT, False),) * 3
        width = 8 if self.kind == "dmul" else FLOAT
        double = self.kind == "dmul"
        return ((_CHAINS * width, double), (self.blocks * self.threads * width, double))

    @property
    def bytes_needed(self) -> int:
        """Memory of the GPU that it takes."""
        return sum(size for size, _ in self.array_bytes)

    def numbers(self, rounds: int) -> tuple[int, ...]:
        """What the kernel is called with after its arrays."""
        if self.kind == "copy":
            return (self.floats, rounds)
        if self.kind == "copy_own":
            return (self.floats, self.stride, rounds)
        return (MATRIX, rounds) if self.kind == "matmul" else (rounds,)

    def units(self, rounds: int) -> float:
        """Units of work of all warps, see Kernel.instructions.

        >>> Workload(kernel="fmul_4", blocks=132, threads=128).units(10)
        5280.0
        """
        warps = self.blocks * self.threads / WARP
        if self.kind == "copy":
            return self.floats / WARP * rounds
        if self.kind == "copy_own":
            return self.floats / WARP * self.blocks * rounds
        return warps * rounds * (MATRIX // _DEPTH if self.kind == "matmul" else 1)

    def copied_bytes(self, rounds: int) -> float | None:
        """Bytes read and written; None where it copies nothing."""
        if self.kind == "copy":
            return 2.0 * self.floats * FLOAT * rounds
        return 2.0 * self.floats * FLOAT * self.blocks * rounds if self.kind == "copy_own" else None

    @property
    def footprint_bytes(self) -> float | None:
        """What a copy comes back to: of the GPU (copy), of a block (copy_own)."""
        return 2.0 * self.floats * FLOAT if self.floats else None


def matmul() -> Workload:
    """Return the multiplication of two matrices."""
    return Workload(kernel="matmul", blocks=(MATRIX // _TILE) ** 2, threads=MATRIX_THREADS)


def copy_of(gpu_bytes: float, blocks: int, threads: int = 1024) -> Workload:
    """Return a copy of an array of about so many bytes.

    >>> copy_of(8e6, 66).floats
    1999872
    """
    return Workload(kernel="copy", blocks=blocks, threads=threads, floats=int(gpu_bytes / FLOAT) // 1024 * 1024)


def resident_blocks(workload: Workload, gpu: Gpu) -> int:
    """Return how many blocks an SM has at once, by threads and blocks alone.

    >>> from tachograph.interference.demand import H100_NVL
    >>> resident_blocks(Workload(kernel="sleep", blocks=264, threads=1024), H100_NVL)
    2
    """
    sms = gpu.sms or 1
    room = (gpu.threads_per_sm or 2048) // workload.threads
    return max(1, min(-(-workload.blocks // sms), room, gpu.blocks_per_sm or room))
