"""Experiments of the micro-benchmarks, and the GPUs they are planned for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from microbench.bench_file import Compared
from microbench.workloads import FLOAT, KERNELS, BenchWorkload, matmul, over
from tachograph.annexes.share.capacity import device_called, gpu_of_device
from tachograph.annexes.share.demand import H100_NVL, GpuCapacity
from tachograph.catalog.errors import UsageError

_LARGE = 4 << 30  # bytes of the array that is copied to measure bandwidth
_LEAST = 64 << 20  # smaller ones would measure L2
_RESERVE = 0.8  # of the memory that is free: what is allocated at most
# array over L2; two of them are read together up to 1.3, where nothing of a pair stays for long
_L2_PAIRS = (0.15, 0.3, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 1.0, 1.3)
_L2_ALONE = (0.9, 1.15, 1.5, 1.8, 2.2)
_L2_PUBLISHED = 0.45, 1.79  # arrays of 22.5 MB in the H100's 50
_L1_PAIRS = (4, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40)  # array of a block in 32nds of L1
_L1_ALONE = (26, 30, 36, 48, 56, 64)
_MISSES = 4  # times the size of the cache: an array of which nothing stays
_BANDWIDTH = ((1, 1.06), (2, 1.14), (3, 1.23), (4, 1.36))  # quarters of the SMs
_ISSUE = (1.915, 1.896, 1.893, 1.65)
_FP64 = (1.988, 1.977, 1.356, 1.018)
# Threads of a block with many loads under way: their registers leave room for five of them and
# more.
WIDE = 256
_L2_READ = 0.2  # array over L2: two of them stay there


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Two launches that share the GPU, or one that runs alone only, where `second` is None.

    `shares`: fraction of the SMs of each, under MPS; None: only streams. `published`: what was
    measured on the H100 NVL, `published_shares` under MPS with `shares`. `alone_free`: under MPS,
    compare with the whole GPU.
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
    """Return all experiments for `gpu`, those first that calibrate; large arrays take what of
    `free_bytes` is there.

    Errors: UsageError for a GPU with an unknown number of SMs.
    """
    if not gpu.sms:
        raise UsageError(
            f"unknown number of SMs of the {gpu.name}", do="name another GPU with --as"
        )
    wide = half_of_an_sm(gpu)
    large = _large(gpu, free_bytes)
    copying = over("copy_1", large, gpu.sms, wide)
    full = full_loads(gpu, large)
    return (
        *_bandwidth(gpu.sms, copying, full["copy_4"]),
        *_l2(gpu, wide),
        *_l1(gpu),
        *_issue(gpu.sms, copying),
        *_fp64(gpu.sms),
        *_resources(gpu.sms, full),
        *_unseen(gpu.sms, full),
        *_blocks(gpu.sms, wide),
        *_matmul(gpu.sms),
        *_pitfalls(gpu.sms, copying),
    )


def half_of_an_sm(gpu: GpuCapacity) -> int:
    """Return the threads of a block of which two fit into an SM, or as many as a block may have.

    >>> half_of_an_sm(GpuCapacity(name="RTX 4090", threads_per_sm=1536))
    768
    """
    return min(1024, (gpu.threads_per_sm or 2048) // 2)


def full_loads(gpu: GpuCapacity, large: float | None = None) -> dict[str, BenchWorkload]:
    """Return {kernel: a launch that loads its resource in full}, each alone; `large`: bytes of the
    array of copies.

    Two of a kind find room on every SM.
    """
    sms, wide = gpu.sms or 1, half_of_an_sm(gpu)
    l2, l1 = gpu.l2_bytes or _LEAST, gpu.l1_bytes or float(1 << 17)
    arrays = {
        "copy_1": over("copy_1", _large(gpu, None) if large is None else large, sms, wide),
        "copy_4": over("copy_4", _large(gpu, None) if large is None else large, 2 * sms, WIDE),
        "read_l2": over("read_l2", _L2_READ * l2, 2 * sms, WIDE),
        "sweep_l2": over("sweep_l2", _L2_READ * l2, sms, wide),
        "sweep_l1": _in_l1(l1 / 4, sms),
        "sleep": BenchWorkload(kernel="sleep", blocks=sms, threads=wide),
        "matmul": matmul(),
    }
    chains = {
        name: BenchWorkload(kernel=name, blocks=sms, threads=512)
        for name in KERNELS
        if name not in arrays
    }
    return {name: (arrays | chains)[name] for name in KERNELS}


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
    """Return the same with arrays of half the size; None where they would no longer measure the
    same.
    """
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
    words = (
        "both fit into every SM, so that they overlap",
        "one fills every SM, so that the other waits",
    )
    for times, text, published in zip((1, 2), words, (2.0, 1.0), strict=True):
        sleeping = BenchWorkload(kernel="sleep", blocks=times * sms, threads=wide)
        yield Experiment(
            name=f"blocks-{times}x", group="blocks", question=f"block slots: {text}", first=sleeping, second=sleeping,
            published=published,
        )  # fmt: skip


def _bandwidth(sms: int, copying: BenchWorkload, full: BenchWorkload) -> Iterator[Experiment]:
    yield Experiment(
        name="bandwidth-all", group="bandwidth", first=full, second=None,
        question="the most bandwidth that is achieved: every SM copies, many loads under way",
    )  # fmt: skip
    for quarters, published in _BANDWIDTH:
        one = replace(copying, blocks=max(1, sms * quarters // 4))
        yield Experiment(
            name=f"bandwidth-{25 * quarters}", group="bandwidth", first=one, second=one, compared="both",
            question=(f"latency of DRAM: copies of {one.blocks} blocks each, a load of a thread "
            "under way"),
            shares=(0.5, 0.5), published_shares=published,
        )  # fmt: skip


def _l2(gpu: GpuCapacity, wide: int) -> Iterator[Experiment]:
    if gpu.l2_bytes is None or gpu.sms is None:
        return
    half = max(1, gpu.sms // 2)
    for share in sorted((*_L2_PAIRS, *_L2_ALONE, _MISSES)):
        one = over("sweep_l2", share * gpu.l2_bytes, half, wide)
        pair = share in _L2_PAIRS
        yield Experiment(
            name="l2-miss" if share == _MISSES else f"l2-{share * 100:.0f}", group="l2", first=one,
            second=one if pair else None, compared="both", shares=(0.5, 0.5) if pair else None,
            question=f"L2: arrays of {share * 100:.0f} % of it are read again and again"
            + (", on different SMs" if pair else ", one alone"),
        )  # fmt: skip
    share, published = _L2_PUBLISHED
    one = over("copy_1", share * gpu.l2_bytes, half, wide)
    yield Experiment(
        name="l2-copy", group="l2", first=one, second=one, compared="both", published=published, shares=(0.5, 0.5),
        question=f"L2: arrays of {share * 100:.0f} % of it are copied, on different SMs",
    )  # fmt: skip


def _l1(gpu: GpuCapacity) -> Iterator[Experiment]:
    if gpu.l1_bytes is None or gpu.sms is None:
        return
    step = gpu.l1_bytes / 32
    for number in sorted((*_L1_PAIRS, *_L1_ALONE, 32 * _MISSES)):
        one = _in_l1(number * step, gpu.sms)
        size, pair = one.floats * FLOAT, number in _L1_PAIRS
        yield Experiment(
            name="l1-miss" if number == 32 * _MISSES else f"l1-{size // 1024}", group="l1", first=one,
            second=one if pair else None, compared="both",
            question=f"L1: blocks read {size // 1024} KiB again and again, "
            + ("two share an SM" if pair else "one alone"),
        )  # fmt: skip


def _in_l1(size: float, sms: int) -> BenchWorkload:
    return over("sweep_l1", size, sms, 64)


def _chains(count: int) -> str:
    return "1 chain" if count == 1 else f"{count} chains"


def _issue(sms: int, copying: BenchWorkload) -> Iterator[Experiment]:
    yield Experiment(
        name="issue-all", group="issue", second=None,
        first=BenchWorkload(kernel="fmul_4", blocks=2 * sms, threads=copying.threads),
        question="the most instructions that are issued",
    )  # fmt: skip
    for chains, published in enumerate(_ISSUE, start=1):
        yield Experiment(
            name=f"issue-{chains}", group="issue", second=copying, published=published,
            first=BenchWorkload(kernel=f"fmul_{chains}", blocks=sms, threads=128),
            question=(f"issue slots: {_chains(chains)} of multiplications in each warp, beside a "
            "copy"),
        )  # fmt: skip
    yield Experiment(
        name="issue-4x2", group="issue", second=copying, published=1.001,
        first=BenchWorkload(kernel="fmul_4", blocks=sms, threads=256),
        question="issue slots: twice the warps, which need every slot",
    )  # fmt: skip


def _fp64(sms: int) -> Iterator[Experiment]:
    for chains, published in enumerate(_FP64, start=1):
        one = BenchWorkload(kernel=f"dmul_{chains}", blocks=sms, threads=128)
        yield Experiment(
            name=f"fp64-{chains}", group="fp64", first=one, second=one, published=published,
            question=f"FP64 pipeline: {_chains(chains)} of multiplications, with itself",
        )  # fmt: skip


def _resources(sms: int, full: dict[str, BenchWorkload]) -> Iterator[Experiment]:
    """Each resource with itself, at a part of the load and in full, and beside a kernel that
    needs another one.

    In full: of pipes and shared memory each launch fills half of the SMs. Two that each fill all of
    them hardly share: on an H100 the second waited for the first (1.5, where 2 was expected).
    """
    few = {
        "dram": replace(full["copy_4"], blocks=max(1, sms // 8)),
        "l2-read": replace(full["read_l2"], blocks=max(1, sms // 2)),
        "shared": BenchWorkload(kernel="shared_1", blocks=sms, threads=32),
        "tensor": BenchWorkload(kernel="tensor_1", blocks=sms, threads=128),
        "alu": BenchWorkload(kernel="alu_1", blocks=sms, threads=128),
        "xu": BenchWorkload(kernel="xu_1", blocks=sms, threads=128),
        "fma": BenchWorkload(kernel="fmul_2", blocks=sms, threads=128),
    }
    pairs = (
        ("dram", "copy_4", "tensor_4"), ("l2-read", "read_l2", "alu_4"), ("shared", "shared_1", "xu_4"),
        ("tensor", "tensor_4", "shared_1"), ("alu", "alu_4", "tensor_4"), ("xu", "xu_4", "fmul_4"),
        ("fma", "fmul_4", "alu_4"),
    )  # fmt: skip
    for name, kernel, beside in pairs:
        loaded, words = full[kernel], "with itself, all of the load"
        if KERNELS[kernel].kind == "chains":
            loaded = replace(loaded, blocks=max(1, sms // 2))
            words = f"{words} on half of the SMs each"
        for load, first, second, question in (
            ("part", few[name], few[name], "with itself, a part of the load"),
            ("full", loaded, loaded, words),
            ("beside", full[kernel], full[beside], f"beside {KERNELS[beside].label}"),
        ):
            yield Experiment(
                name=f"{name}-{load}",
                group=name,
                first=first,
                second=second,
                compared="both",
                question=f"{KERNELS[kernel].label}: {question}",
                shares=(0.5, 0.5) if load == "full" else None,
            )
    yield Experiment(
        name="shared-conflicts", group="shared", first=full["shared_1"], second=full["shared_8"], compared="both",
        question="bandwidth of shared memory: beside reads with eight conflicts of banks",
    )  # fmt: skip
    yield Experiment(
        name="fp64-beside", group="fp64", first=full["dmul_4"], second=full["alu_4"], compared="both",
        question="FP64 pipeline: beside ALU pipeline",
    )  # fmt: skip


def _unseen(sms: int, full: dict[str, BenchWorkload]) -> Iterator[Experiment]:
    """Pairs of kinds that no constant and no law was checked with. Unverified on a GPU."""
    small = max(1, sms // 8)
    pairs = (
        ("fp64-tensor", full["dmul_4"], full["tensor_4"], "FP64 pipeline beside tensor cores"),
        ("copy-tensor", full["copy_1"], full["tensor_4"], "a copy beside tensor cores"),
        (
            "small-tensor",
            replace(full["tensor_4"], blocks=small),
            full["copy_4"],
            f"tensor cores in {small} blocks beside a copy that fills the GPU",
        ),
        (
            "small-copy",
            replace(full["copy_4"], blocks=small),
            full["copy_4"],
            f"a copy by {small} blocks beside one that fills the GPU",
        ),
        (
            "small-fma",
            replace(full["fmul_4"], blocks=small),
            matmul(),
            f"multiplications in {small} blocks beside a matrix multiplication",
        ),
    )
    for name, first, second, question in pairs:
        yield Experiment(
            name=name,
            group="unseen",
            first=first,
            second=second,
            compared="both",
            question=question,
            shares=(0.5, 0.5),
        )


def _matmul(sms: int) -> Iterator[Experiment]:
    words = "matrix multiplication (our own; torch.mm where published)"
    yield Experiment(name="matmul-matmul", group="matmul", first=matmul(), second=matmul(), compared="both",
                     question=f"{words} with itself", published=1.7)  # fmt: skip
    yield Experiment(name="matmul-fmul", group="matmul", first=matmul(), compared="first",
                     second=BenchWorkload(kernel="fmul_4", blocks=sms, threads=128),
                     question=f"{words} beside multiplications")  # fmt: skip


def _pitfalls(sms: int, copying: BenchWorkload) -> Iterator[Experiment]:
    yield Experiment(
        name="pitfall-roofline",
        group="pitfalls",
        first=BenchWorkload(kernel="fmul_4", blocks=sms, threads=copying.threads),
        second=copying,
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
