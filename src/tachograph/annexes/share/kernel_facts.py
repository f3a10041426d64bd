"""Report of profiled kernels: facts, verdicts, and the object that holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from tachograph.annexes.share import kernel_metrics, nsight_scores
from tachograph.annexes.share.demand import Calibration, Estimate, GpuCapacity, Matrix, Sharing
from tachograph.annexes.share.kernel_limits import KernelLimits
from tachograph.annexes.share.kernel_metrics import PIPE_NAMES, PIPES, pipe_metric
from tachograph.annexes.share.kernel_names import NumberedKernel
from tachograph.annexes.share.kernels import Kernel, Missing
from tachograph.annexes.share.utilization import Pitfall, Sensitivity, idle_sms

_WARPS = 64  # of an SM where unknown: most chips have 64, some 48 or 32
_PLACES = "launch__grid_size, launch__occupancy_limit_*"
_SM_CYCLES = "sm__cycles_active.avg,.min,.max"
# name, label, unit, the metric where no other was read, note; in reading order
_FACTS: tuple[tuple[str, str, str, str, str], ...] = (
    ("gpu_util", "nvidia-smi", "fraction", "", "while it runs, whatever it does"),
    ("sms_needed", "SMs needed", "count", _PLACES, ""),
    ("slots_taken", "block slots taken", "fraction", _PLACES, "for blocks like its own"),
    ("waves", "waves", "ratio", "launch__waves_per_multiprocessor", ""),
    ("tail", "places left empty", "fraction", "", "over all waves; the last is not full"),
    ("sm_share", "SMs busy", "fraction", kernel_metrics.SM_ACTIVE, "mean over SMs and time"),
    ("sm_idle", "idle SMs", "fraction", _SM_CYCLES, "mean SM against the busiest"),
    ("sm_least", "least busy SM", "fraction", _SM_CYCLES, "of the busiest"),
    ("occupancy", "occupancy", "fraction", kernel_metrics.OCCUPANCY, ""),
    (
        "occupancy_possible",
        "occupancy possible",
        "fraction",
        kernel_metrics.POSSIBLE,
        "with blocks like these",
    ),
    ("ipc", "IPC", "ratio", kernel_metrics.ISSUED, "per SM, at most 4"),
    *(
        (f"pipe_{pipe}", f"pipe {PIPE_NAMES.get(pipe, pipe)}", "fraction", pipe_metric(pipe), "")
        for pipe in PIPES
    ),
    ("threads", "threads per warp", "fraction", kernel_metrics.THREADS, "of 32"),
    ("dram", "DRAM", "fraction", kernel_metrics.DRAM, "of the peak"),
    ("dram_bytes_per_s", "DRAM traffic", "B/s", kernel_metrics.DRAM_BYTES, ""),
    ("l2_bandwidth", "L2 bandwidth", "fraction", kernel_metrics.L2_BUSY, "of the peak"),
    ("l1_bandwidth", "L1 bandwidth", "fraction", kernel_metrics.L1_BUSY, "with shared memory"),
    ("l2_hit", "L2 hits", "fraction", kernel_metrics.L2_HIT, ""),
    ("l2_reuse", "L2 reuse", "fraction", kernel_metrics.L2_READ_HIT, "at most"),
    ("l1_hit", "L1 hits", "fraction", kernel_metrics.L1_HIT, ""),
)
_SCORES = {
    "score_gpu_practice": "GPU, practice",
    "score_gpumem_practice": "GPU memory, practice",
    "score_gpumem_normalized": "GPU memory, shares",
    "score_gpu_theory": "GPU, theory",
    "score_gpumem_theory": "GPU memory, theory",
}


@dataclass(frozen=True, slots=True)
class KernelFact:
    """One number of a kernel. value None: not collected; `metric`: its metric.

    unit: as units.text has it, or score.
    """

    name: str
    label: str
    value: float | None
    unit: str
    metric: str
    note: str = ""


def facts_of(kernel: Kernel) -> dict[str, KernelFact]:
    """Return {name: number} of a kernel's resource use, in reading order."""
    metrics = kernel.metrics
    least, busiest = (
        metrics.get(name) for name in (kernel_metrics.SM_ACTIVE_MIN, kernel_metrics.SM_ACTIVE_MAX)
    )
    issued = kernel.demand.cycles.get("issue")
    percents = {"occupancy_possible": kernel_metrics.POSSIBLE, "l2_hit": kernel_metrics.L2_HIT}
    readings = {
        **{f"pipe_{name}": reading for name, reading in kernel.readings.items()},
        **kernel.readings,
        **{name: kernel_metrics.share(metrics, metric) for name, metric in percents.items()},
        "l2_reuse": kernel.readings.get("l2_hit"),
        "threads": kernel_metrics.first(metrics, {kernel_metrics.THREADS: 1 / kernel_metrics.WARP}),
    }
    values = {
        "gpu_util": 1.0,
        **kernel.shape.placement(),
        "sm_idle": idle_sms(kernel),
        "sm_least": least / busiest if least is not None and busiest else None,
        "ipc": None if issued is None else issued * kernel.gpu.schedulers,
    }
    facts = {}
    for name, label, unit, metric, note in _FACTS:
        value, reading = values.get(name), readings.get(name)
        if reading is not None:
            value, metric = reading.value, reading.metric
        facts[name] = KernelFact(name, label, value, unit, metric, note)
    return facts


def busiest_pipe(kernel: Kernel) -> tuple[str, float] | None:
    """Return the busiest pipeline and its use; None if none was measured."""
    loads = [(reading.value, pipe) for pipe, reading in kernel.pipes.items()]
    if not loads:
        return None
    load, pipe = max(loads, key=lambda item: item[0])
    return pipe, load


def scores_of(kernel: Kernel) -> dict[str, KernelFact]:
    """Return {name: score 0..100, 0 best}; value None: the note names missing metrics."""
    threads, metrics = kernel.gpu.threads_per_sm, kernel.metrics
    warps = threads // kernel_metrics.WARP if threads else _WARPS
    scores = (
        nsight_scores.practice_gpu(metrics, max_warps=warps),
        nsight_scores.practice_gpumem(metrics),
        nsight_scores.practice_gpumem_normalized(metrics),
        nsight_scores.theory_gpu(metrics),
        nsight_scores.theory_gpumem(metrics),
    )
    facts = {}
    for (name, label), score in zip(_SCORES.items(), scores, strict=True):
        note = f"needs {', '.join(score.needs)}" if score.needs else ""
        if score.value is not None:
            assumed = name == "score_gpu_practice" and not threads
            note = f"assumed: {_WARPS} warps per SM; not in the report" if assumed else ""
        facts[name] = KernelFact(name, label, score.value, "score", "", note)
    return facts


@dataclass(frozen=True, slots=True)
class KernelsRequest:
    """Request for the report. together, explain: kernels by number, name, pattern; shares: of
    SMs.
    """

    kernels: tuple[str, ...] = ()
    top: int | None = None
    explain: str | None = None
    together: Sequence[str] | None = None
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
class PairEstimate:
    """Estimate for two kernels that run at the same time."""

    members: tuple[NumberedKernel, ...]
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class GpuPart:
    """Kernels of one GPU. pairs: each beside each; None: not requested.

    not_collected: {metric: numbers of the kernels that lack it}. collect_with: the command that
    collects what lacks.
    """

    gpu: GpuCapacity
    calibration: Calibration
    kernels: tuple[KernelView, ...]
    left_out: int  # kernels beyond `top`
    pairs: Matrix | None
    not_collected: Mapping[Missing, Sequence[int]]
    collect_with: str | None


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
