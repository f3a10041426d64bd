"""Report of profiled kernels: facts, verdicts, and the object that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, fsum

from tachograph.annexes.share import kernel_metrics, nsight_scores
from tachograph.annexes.share.demand import (
    PIPES,
    Calibration,
    Estimate,
    GpuCapacity,
    Matrix,
    Sharing,
    unless_nan,
)
from tachograph.annexes.share.kernel_limits import KernelLimits
from tachograph.annexes.share.kernel_metrics import PIPE_NAMES, MetricValue
from tachograph.annexes.share.kernel_names import NumberedKernel
from tachograph.annexes.share.kernels import Kernel
from tachograph.annexes.share.utilization import (
    Pitfall,
    Sensitivity,
    SmDistribution,
    distribution,
    launched,
)

_WARPS = 64  # of an SM where unknown: most chips have 64, some 48 or 32
_LIMITS = "launch__occupancy_limit_*"
_WAVES = "launch__waves_per_multiprocessor"


@dataclass(frozen=True, slots=True)
class KernelFact:
    """One number of a kernel. value None: not collected; `metric`: its metric.

    unit: as units.text has it. share: fraction 0..1 of the capacity, None where the number is no
    fraction of one.
    """

    name: str
    label: str
    value: float | None
    unit: str
    metric: str
    share: float | None = None
    note: str = ""


def facts_of(kernel: Kernel) -> dict[str, KernelFact]:
    """Return {name: number} of a kernel's resource use, in reading order."""
    metrics, readings = kernel.metrics, kernel.readings
    issued, traffic = readings.get("issue"), readings.get("dram_bytes_per_s")
    possible = kernel_metrics.POSSIBLE if kernel_metrics.POSSIBLE in metrics else _LIMITS
    threads = kernel_metrics.first(metrics, {kernel_metrics.THREADS: 1 / kernel_metrics.WARP})
    found = [
        _share("gpu_util", "nvidia-smi", 1.0, "", "while it runs, whatever it does"),
        *_launched(kernel),
        _read("sm_share", "SMs busy", readings.get("sm_share"),
              f"{kernel_metrics.SM_ACTIVE} / {kernel_metrics.ELAPSED[0]}", "mean over SMs and time"),
        *_distributed(distribution(kernel)),
        _read("occupancy", "occupancy", readings.get("occupancy"), kernel_metrics.OCCUPANCY),
        _share("occupancy_possible", "occupancy possible", _possible_occupancy(kernel), possible,
               "with blocks like these"),
        KernelFact(
            "ipc", "IPC", _ipc(kernel), f"of {kernel.gpu.schedulers}",
            kernel_metrics.ISSUED if issued is None else issued.metric, None if issued is None else issued.value,
        ),
        *(_read(f"pipe_{pipe}", f"pipe {PIPE_NAMES[pipe]}", readings.get(pipe), kernel_metrics.pipe_metric(pipe))
          for pipe in PIPES),
        _read("threads", "threads per warp", threads, kernel_metrics.THREADS, "of 32"),
        _read("dram", "DRAM", readings.get("dram"), kernel_metrics.DRAM, "of the peak"),
        KernelFact("dram_bytes_per_s", "DRAM traffic", None if traffic is None else traffic.value, "B/s",
                   kernel_metrics.DRAM_BYTES if traffic is None else traffic.metric),
        _read("l2_hit", "L2 hits", kernel_metrics.share(metrics, kernel_metrics.L2_HIT), kernel_metrics.L2_HIT),
        _read("l2_reuse", "L2 reuse", readings.get("l2_hit"), kernel_metrics.L2_READ_HIT, "at most"),
        _read("l1_hit", "L1 hits", readings.get("l1_hit"), kernel_metrics.L1_HIT),
    ]  # fmt: skip
    return {fact.name: fact for fact in found}


def _possible_occupancy(kernel: Kernel) -> float | None:
    """Occupancy that the resources of a block allow: as reported, else from the blocks that fit."""
    reported = kernel_metrics.first(kernel.metrics, {kernel_metrics.POSSIBLE: 0.01})
    if reported is not None:
        return min(1.0, reported.value)
    footprint, most = kernel.demand.footprint, kernel.gpu.threads_per_sm
    if footprint is None or footprint.blocks_per_sm is None or most is None:
        return None
    return min(
        1.0,
        ceil(footprint.threads / kernel_metrics.WARP)
        * footprint.blocks_per_sm
        * kernel_metrics.WARP
        / most,
    )


def _ipc(kernel: Kernel) -> float | None:
    """Warp instructions issued per cycle and SM."""
    reported = kernel.metrics.get(kernel_metrics.ISSUED)
    if reported is not None:
        return reported
    issued = kernel.demand.cycles.get("issue")
    return None if issued is None else issued * kernel.gpu.schedulers


def busiest_pipe(kernel: Kernel) -> tuple[str, float] | None:
    """Return the busiest pipeline and its use; None if none was measured."""
    pipes = {pipe: kernel.readings[pipe].value for pipe in PIPES if pipe in kernel.readings}
    if not pipes:
        return None
    name = max(pipes, key=lambda pipe: pipes[pipe])
    return name, pipes[name]


def scores_of(kernel: Kernel) -> dict[str, KernelFact]:
    """Return {name: score 0..100, 0 best}; value None: the note names missing metrics."""
    threads, metrics = kernel.gpu.threads_per_sm, kernel.metrics
    warps = threads // 32 if threads else _WARPS
    assumed = "" if threads else f"assumed: {_WARPS} warps per SM; not in the report"
    return {
        name: _score(name, label, score, note)
        for name, label, score, note in (
            (
                "score_gpu_practice",
                "GPU, practice",
                nsight_scores.practice_gpu(metrics, max_warps=warps),
                assumed,
            ),
            (
                "score_gpumem_practice",
                "GPU memory, practice",
                nsight_scores.practice_gpumem(metrics),
                "",
            ),
            (
                "score_gpumem_normalized",
                "GPU memory, shares",
                nsight_scores.practice_gpumem_normalized(metrics),
                "",
            ),
            ("score_gpu_theory", "GPU, theory", nsight_scores.theory_gpu(metrics), ""),
            ("score_gpumem_theory", "GPU memory, theory", nsight_scores.theory_gpumem(metrics), ""),
        )
    }


def _score(name: str, label: str, score: nsight_scores.CycleScore, note: str) -> KernelFact:
    """A score; `note`: remark, if it has a value."""
    if score.value is None:
        note = f"needs {', '.join(score.needs)}" if score.needs else ""
    return KernelFact(
        name,
        label,
        score.value,
        "score",
        "",
        None if score.value is None else score.value / 100,
        note,
    )


def _share(name: str, label: str, value: float | None, metric: str, note: str = "") -> KernelFact:
    return KernelFact(name, label, value, "fraction", metric, value, note)


def _read(
    name: str, label: str, reading: MetricValue | None, metric: str, note: str = ""
) -> KernelFact:
    """A share, with the metric that it was read from; `metric`: would be."""
    if reading is None:
        return _share(name, label, None, metric, note)
    return _share(name, label, reading.value, reading.metric, note)


def _launched(kernel: Kernel) -> list[KernelFact]:
    """Distribution of its blocks over the SMs."""
    sms, launch = (
        kernel.gpu.sms,
        launched(kernel.demand.footprint, kernel.gpu, waves=kernel.metrics.get(_WAVES)),
    )
    share = launch.needed / sms if launch.needed is not None and sms else None
    grid = "launch__grid_size"
    waves = _WAVES if _WAVES in kernel.metrics else f"{grid}, {_LIMITS}"
    of_sms = "" if sms is None else f"of {sms}"
    return [
        KernelFact(
            "sms_needed", "SMs needed", launch.needed, "count", f"{grid}, {_LIMITS}", share, of_sms
        ),
        _share(
            "slots_taken",
            "block slots taken",
            launch.slots_taken,
            f"{grid}, {_LIMITS}",
            "for blocks like its own",
        ),
        KernelFact("waves", "waves", launch.waves, "ratio", waves),
        _share(
            "tail", "places left empty", launch.tail, waves, "over all waves; the last is not full"
        ),
    ]


def _distributed(found: SmDistribution | None) -> list[KernelFact]:
    """Work of the mean and the least busy SM relative to the busiest."""
    metric = f"{kernel_metrics.SM_ACTIVE.removesuffix('.avg')}.avg,.min,.max"
    least = (
        None if found is None or found.low is None or found.high <= 0 else found.low / found.high
    )
    idle = None if found is None else found.idle
    return [
        _share("sm_idle", "idle SMs", idle, metric, "mean SM against the busiest"),
        _share("sm_least", "least busy SM", least, metric, "of the busiest"),
    ]


@dataclass(frozen=True, slots=True)
class KernelsRequest:
    """Request for the report. together, explain: kernels by number, name, pattern; shares: of
    SMs.
    """

    kernels: tuple[str, ...] = ()
    device: str | None = None
    top: int | None = None
    explain: str | None = None
    together: tuple[str, str] | None = None
    matrix: bool = False
    shares: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class KernelView(NumberedKernel):
    """One shown kernel, with its numbers, scores, limits, sensitivities, and misleading metrics."""

    facts: Mapping[str, KernelFact]
    scores: Mapping[str, KernelFact]
    limits: KernelLimits
    sensitivities: tuple[Sensitivity, ...]
    pitfalls: tuple[Pitfall, ...]


@dataclass(frozen=True, slots=True)
class MissingMetric:
    """A metric that was not collected. `of`: numbers of the kernels that lack it."""

    metric: str
    meaning: str
    of: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PairEstimate:
    """Estimate for two kernels that run at the same time."""

    members: tuple[NumberedKernel, ...]
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class GpuPart:
    """Kernels of one GPU. pairs: of all kernels; None: not requested."""

    gpu: GpuCapacity
    calibration: Calibration
    kernels: tuple[KernelView, ...]
    left_out: int  # kernels beyond `top`
    pairs: Matrix | None
    lacking: tuple[MissingMetric, ...]
    command: str | None  # that collects what lacks


@dataclass(frozen=True, slots=True)
class ReportFileRead:
    """One report file: its usable and rejected content."""

    file: str
    launches: int
    rejected: Mapping[str, int]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KernelsReport:
    """All results. problems: lines for people, of files and of kernels."""

    files: tuple[ReportFileRead, ...]
    parts: tuple[GpuPart, ...]
    sharing: Sharing
    together: PairEstimate | None
    explained: KernelView | None
    problems: tuple[str, ...]


def total_s(part: GpuPart) -> float | None:
    """Return the total time of the shown kernels, None if unknown."""
    seconds = [view.kernel.seconds for view in part.kernels if view.kernel.seconds is not None]
    return fsum(seconds) if seconds else None


@dataclass(frozen=True, slots=True)
class KernelPair:
    """A pair of kernels. slowdown, gain None: unknown. binding: the resource, or None."""

    row: KernelView
    column: KernelView
    slowdown: float | None
    gain: float | None
    binding: str | None
    safe: bool


def pairs_of(part: GpuPart) -> list[KernelPair]:
    """Return all pairs by row; empty if not requested."""
    pairs = part.pairs
    if pairs is None:
        return []
    kernel_pairs = []
    for i, row in enumerate(part.kernels):
        for j, column in enumerate(part.kernels):
            slowdown, gain = unless_nan(pairs.slowdown[i, j]), unless_nan(pairs.gain[i, j])
            binding, safe = pairs.bound_by(i, j), bool(pairs.safe[i, j])
            kernel_pairs.append(KernelPair(row, column, slowdown, gain, binding, safe))
    return kernel_pairs
