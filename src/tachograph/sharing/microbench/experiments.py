"""Workloads of the micro-benchmarks, the experiments made of them, and the GPUs they are planned for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from tachograph.catalog import devices
from tachograph.catalog.errors import UsageError
from tachograph.sharing.calibration import Compared
from tachograph.sharing.capacity import device_called, gpu_of_device
from tachograph.sharing.demand import H100_NVL, GpuCapacity

WARP = 32  # threads
FLOAT = 4  # bytes
MATRIX = 1024  # rows of the matrices that are multiplied
_TILE, _DEPTH, MATRIX_THREADS = 64, 16, 256  # as in kernels.cu
_MULTIPLICATIONS = 64  # of a chain in a round, as in kernels.cu
_CHAINS = 4  # factors in memory, of which a kernel takes as many as it has chains

WorkloadKind = Literal["sleep", "copy", "copy_own", "fmul", "dmul", "matmul"]


@dataclass(frozen=True, slots=True)
class BenchKernel:
    """One kernel of kernels.cu.

    `instructions`: that a warp issues for one unit of work: an element of 32 threads copied, a round of
    multiplications, a tile of a matrix; as NVRTC 12.9 compiles it for sm_90. `of_pipe`: how many of these go to `pipe`.
    """

    kind: WorkloadKind
    instructions: float
    pipe: str | None = None
    of_pipe: int = 0


def _chained(kind: Literal["fmul", "dmul"], pipe: str) -> dict[str, BenchKernel]:
    """Six instructions are those of the loop."""
    sizes = {chains: _MULTIPLICATIONS * chains for chains in range(1, 5)}
    return {f"{kind}_{chains}": BenchKernel(kind, size + 6.0, pipe, size) for chains, size in sizes.items()}


KERNELS: Mapping[str, BenchKernel] = MappingProxyType(
    {
        "sleep": BenchKernel("sleep", 21 / 16),
        "copy": BenchKernel("copy", 11.5),
        "copy_own": BenchKernel("copy_own", 11.0),
        **_chained("fmul", "fma"),
        **_chained("dmul", "fp64"),
        "matmul": BenchKernel("matmul", 328.0, "fma", 256),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchWorkload:
    """A kernel with its launch configuration. `floats`: copied, of the whole array (copy) or of a block (copy_own).

    `stride`: floats from one block's array to the next one's.
    """

    kernel: str
    blocks: int
    threads: int
    floats: int = 0
    stride: int = 0

    @property
    def kind(self) -> WorkloadKind:
        """Kind of the workload."""
        return KERNELS[self.kernel].kind

    @property
    def words(self) -> str:
        """The launch in words for people.

        >>> BenchWorkload(kernel="copy", blocks=66, threads=1024, floats=2_000_000).words
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
        """Arguments of the kernel after its arrays."""
        if self.kind == "copy":
            return (self.floats, rounds)
        if self.kind == "copy_own":
            return (self.floats, self.stride, rounds)
        return (MATRIX, rounds) if self.kind == "matmul" else (rounds,)

    def units(self, rounds: int) -> float:
        """Units of work of all warps, see Kernel.instructions.

        >>> BenchWorkload(kernel="fmul_4", blocks=132, threads=128).units(10)
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
        """Bytes that a copy reuses: of the GPU (copy), of a block (copy_own)."""
        return 2.0 * self.floats * FLOAT if self.floats else None


def matmul() -> BenchWorkload:
    """Return the multiplication of two matrices."""
    return BenchWorkload(kernel="matmul", blocks=(MATRIX // _TILE) ** 2, threads=MATRIX_THREADS)


def copy_of(gpu_bytes: float, blocks: int, threads: int = 1024) -> BenchWorkload:
    """Return a copy of an array of about so many bytes.

    >>> copy_of(8e6, 66).floats
    1999872
    """
    return BenchWorkload(kernel="copy", blocks=blocks, threads=threads, floats=int(gpu_bytes / FLOAT) // 1024 * 1024)


def resident_blocks(workload: BenchWorkload, gpu: GpuCapacity) -> int:
    """Return how many blocks an SM has at once, by threads and blocks alone.

    >>> from tachograph.sharing.demand import H100_NVL
    >>> resident_blocks(BenchWorkload(kernel="sleep", blocks=264, threads=1024), H100_NVL)
    2
    """
    sms = gpu.sms or 1
    room = (gpu.threads_per_sm or 2048) // workload.threads
    return max(1, min(-(-workload.blocks // sms), room, gpu.blocks_per_sm or room))


_LARGE = 4 << 30  # bytes of the array that is copied to measure bandwidth
_LEAST = 64 << 20  # smaller ones would measure L2
_RESERVE = 0.8  # of the memory that is free: what is allocated at most
_L2_SHARES = (0.16, 0.32, 0.45, 0.48, 0.64, 0.8)  # array over L2: 8 to 40 MB of the H100's 50, and 22.5
_L1_STEPS = range(4, 17)  # array of a block in 32nds of L1: 32 to 128 KiB of the H100's 256, by 8
_L2_PUBLISHED = {0.45: 1.79}
_BANDWIDTH = ((1, 1.06), (2, 1.14), (3, 1.23), (4, 1.36))  # quarters of the SMs
_ISSUE = (1.915, 1.896, 1.893, 1.65)
_FP64 = (1.988, 1.977, 1.356, 1.018)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Two launches that share the GPU, or one that runs alone only, where `second` is None.

    `shares`: fraction of the SMs of each, under MPS; None: only streams. `published`: what was measured on the H100
    NVL, `published_shares` under MPS with `shares`. `alone_free`: under MPS, compare with the whole GPU.
    """

    name: str
    group: str
    question: str
    first: BenchWorkload
    second: BenchWorkload | None
    compared: Compared = "gain"
    published: float | None = None
    shares: tuple[float, float] | None = None
    published_shares: float | None = None
    alone_free: bool = False

    @property
    def workloads(self) -> tuple[BenchWorkload, ...]:
        """The launches."""
        return (self.first,) if self.second is None else (self.first, self.second)

    @property
    def bytes_needed(self) -> int:
        """Memory of the GPU that all of it takes."""
        return sum(workload.bytes_needed for workload in self.workloads)


def experiments(gpu: GpuCapacity, free_bytes: float | None = None) -> tuple[Experiment, ...]:
    """Return all experiments for `gpu`, in their order; large arrays take what of `free_bytes` is there.

    Errors: UsageError for a GPU with an unknown number of SMs.
    """
    if not gpu.sms:
        raise UsageError(f"unknown number of SMs of the {gpu.name}", do="name another GPU with --as")
    wide = half_of_an_sm(gpu)
    large = copy_of(_large(gpu, free_bytes), gpu.sms, wide)
    return (
        *_blocks(gpu.sms, wide),
        *_bandwidth(gpu.sms, large),
        *_l2(gpu, wide),
        *_l1(gpu),
        *_issue(gpu.sms, large),
        *_fp64(gpu.sms),
        *_matmul(gpu.sms),
        *_pitfalls(gpu.sms, large),
    )


def half_of_an_sm(gpu: GpuCapacity) -> int:
    """Return the threads of a block of which two fill an SM, 1024 at most.

    >>> half_of_an_sm(GpuCapacity(name="NVIDIA A40", threads_per_sm=1536))
    768
    """
    return min(1024, (gpu.threads_per_sm or 2048) // 2)


def chosen(every: Sequence[Experiment], names: Sequence[str]) -> tuple[Experiment, ...]:
    """Return those of a name or of a group; all where none is named.

    Errors: UsageError for a name that is neither.
    """
    known = {name for one in every for name in (one.name, one.group)}
    for name in names:
        if name not in known:
            groups = ", ".join(dict.fromkeys(one.group for one in every))
            raise UsageError(f"no experiment {name!r}", do=f"groups are {groups}; see --list")
    return tuple(one for one in every if not names or one.name in names or one.group in names)


def smaller(experiment: Experiment) -> Experiment | None:
    """Return the same with arrays of half the size; None where they would no longer measure the same."""
    copies = [one for one in experiment.workloads if one.kind == "copy"]
    if experiment.group == "l2" or not copies or copies[0].floats * FLOAT // 2 < _LEAST:
        return None
    first, second = (
        replace(one, floats=one.floats // 2) if one is not None and one.kind == "copy" else one
        for one in (experiment.first, experiment.second)
    )
    return None if first is None else replace(experiment, first=first, second=second)


def _large(gpu: GpuCapacity, free_bytes: float | None) -> float:
    """Bytes of a large array: a pair of copies has four of them."""
    room = free_bytes if free_bytes is not None else gpu.hbm_bytes
    return _LARGE if room is None else max(_LEAST, min(_LARGE, room * _RESERVE / 4))


def _blocks(sms: int, wide: int) -> Iterator[Experiment]:
    words = ("both fit into every SM, so that they overlap", "one fills every SM, so that the other waits")
    for times, text, published in zip((1, 2), words, (2.0, 1.0), strict=True):
        sleeping = BenchWorkload(kernel="sleep", blocks=times * sms, threads=wide)
        yield Experiment(
            name=f"blocks-{times}x", group="blocks", question=f"block slots: {text}", first=sleeping, second=sleeping,
            published=published,
        )  # fmt: skip


def _bandwidth(sms: int, large: BenchWorkload) -> Iterator[Experiment]:
    for quarters, published in _BANDWIDTH:
        copying = replace(large, blocks=max(1, sms * quarters // 4))
        yield Experiment(
            name=f"bandwidth-{25 * quarters}", group="bandwidth", first=copying, second=copying, compared="both",
            question=f"bandwidth: copies of {copying.blocks} blocks each", shares=(0.5, 0.5),
            published_shares=published,
        )  # fmt: skip
    yield Experiment(
        name="bandwidth-all", group="bandwidth", first=replace(large, blocks=2 * sms), second=None,
        question="the most bandwidth that is achieved: every SM full of copying threads",
    )  # fmt: skip


def _l2(gpu: GpuCapacity, wide: int) -> Iterator[Experiment]:
    if gpu.l2_bytes is None or gpu.sms is None:
        return
    half = max(1, gpu.sms // 2)
    for share in _L2_SHARES:
        copying = copy_of(share * gpu.l2_bytes, half, wide)
        yield Experiment(
            name=f"l2-{share * 100:.0f}", group="l2", first=copying, second=copying, compared="both",
            question=f"L2: arrays of {share * 100:.0f} % of it, on different SMs", published=_L2_PUBLISHED.get(share),
            shares=(0.5, 0.5),
        )  # fmt: skip
    yield Experiment(
        name="l2-miss", group="l2", first=copy_of(4 * gpu.l2_bytes, half, wide), second=None,
        question="what a miss of L2 costs: an array of four times its size",
    )  # fmt: skip


def _l1(gpu: GpuCapacity) -> Iterator[Experiment]:
    if gpu.l1_bytes is None or gpu.sms is None:
        return
    step = int(gpu.l1_bytes) // 32
    for size in (*(step * number for number in _L1_STEPS), 2 * int(gpu.l1_bytes)):
        one = BenchWorkload(
            kernel="copy_own", blocks=gpu.sms, threads=64, floats=size // FLOAT,
            stride=max(size, int(gpu.l1_bytes)) // FLOAT,
        )  # fmt: skip
        missing = size > gpu.l1_bytes
        yield Experiment(
            name="l1-miss" if missing else f"l1-{size // 1024}", group="l1", first=one, second=None if missing else one,
            compared="both",
            question="what a miss of L1 costs: twice its size a block" if missing
            else f"L1: blocks copy {size // 1024} KiB of their own, two share an SM",
        )  # fmt: skip


def _chains(count: int) -> str:
    return "1 chain" if count == 1 else f"{count} chains"


def _issue(sms: int, large: BenchWorkload) -> Iterator[Experiment]:
    for chains, published in enumerate(_ISSUE, start=1):
        yield Experiment(
            name=f"issue-{chains}", group="issue", second=large, published=published,
            first=BenchWorkload(kernel=f"fmul_{chains}", blocks=sms, threads=128),
            question=f"issue slots: {_chains(chains)} of multiplications in each warp, beside a copy",
        )  # fmt: skip
    yield Experiment(
        name="issue-4x2", group="issue", second=large, published=1.001,
        first=BenchWorkload(kernel="fmul_4", blocks=sms, threads=256),
        question="issue slots: twice the warps, which need every slot",
    )  # fmt: skip
    yield Experiment(
        name="issue-all", group="issue", second=None,
        first=BenchWorkload(kernel="fmul_4", blocks=2 * sms, threads=large.threads),
        question="the most instructions that are issued",
    )  # fmt: skip


def _fp64(sms: int) -> Iterator[Experiment]:
    for chains, published in enumerate(_FP64, start=1):
        one = BenchWorkload(kernel=f"dmul_{chains}", blocks=sms, threads=128)
        yield Experiment(
            name=f"fp64-{chains}", group="fp64", first=one, second=one, published=published,
            question=f"FP64 pipeline: {_chains(chains)} of multiplications, with itself",
        )  # fmt: skip


def _matmul(sms: int) -> Iterator[Experiment]:
    words = "matrix multiplication (our own; torch.mm where published)"
    yield Experiment(name="matmul-matmul", group="matmul", first=matmul(), second=matmul(), compared="both",
                     question=f"{words} with itself", published=1.7)  # fmt: skip
    yield Experiment(name="matmul-fmul", group="matmul", first=matmul(), compared="first",
                     second=BenchWorkload(kernel="fmul_4", blocks=sms, threads=128),
                     question=f"{words} beside multiplications")  # fmt: skip


def _pitfalls(sms: int, large: BenchWorkload) -> Iterator[Experiment]:
    yield Experiment(
        name="pitfall-roofline",
        group="pitfalls",
        first=BenchWorkload(kernel="fmul_4", blocks=sms, threads=large.threads),
        second=large,
        compared="second",
        published=2.0,
        question="bound by compute and bound by memory, and yet in each other's way",
    )
    small = BenchWorkload(kernel="fmul_4", blocks=sms, threads=128)
    yield Experiment(
        name="pitfall-occupancy", group="pitfalls", first=small, second=small, compared="both", published=1.85,
        question="6.25 % occupancy each, and yet in each other's way", shares=(0.0625, 0.0625), published_shares=15.8,
        alone_free=True,
    )  # fmt: skip


_PUBLISHED = "H100 NVL 94GB"


def gpu_called(name: str) -> GpuCapacity:
    """Return the GPU of the catalogue that `name` means, with what its compute capability has.

    >>> gpu_called("H100 NVL").sms, gpu_called("a100 sxm 40gb").l1_bytes
    (132, 196608.0)

    Errors: NotFoundError for one that is not in it, or for several.
    """
    device = device_called(name)
    if device.name == _PUBLISHED:
        return H100_NVL
    return replace(gpu_of_device(device), name=f"NVIDIA {device.name}")


def every_experiment() -> tuple[Experiment, ...]:
    """Return the experiments of all GPUs of the catalogue: how arrays of L1 are called depends on its size."""
    names = [device.name for device in devices.DEVICE_CATALOGUE if device.vendor == "NVIDIA"]
    return tuple(one for name in names for one in experiments(gpu_called(name)))
