"""What is reported of profiled kernels: facts, verdicts, and the report object that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum

from tachograph.sharing import kernel_metrics, mixes, nsight_scores
from tachograph.sharing.demand import PIPES, Calibration, Estimate, GpuCapacity, Matrix, Sharing
from tachograph.sharing.kernel_metrics import PIPE_NAMES, MetricValue
from tachograph.sharing.kernel_names import NumberedKernel
from tachograph.sharing.kernels import Kernel
from tachograph.sharing.roofline import KernelLimits, KernelWork, RooflinePlacement, limits, placement, work_of
from tachograph.sharing.utilization import (
    LaunchPlacement,
    Pitfall,
    Sensitivity,
    SmDistribution,
    pitfalls,
    sensitivities,
    utilisation,
)

_WARPS = 64  # of an SM where unknown: most chips have 64, some 48 or 32
_LIMITS = "launch__occupancy_limit_*"
_POSSIBLE, _WAVES = "sm__maximum_warps_per_active_cycle_pct", "launch__waves_per_multiprocessor"


@dataclass(frozen=True, slots=True)
class KernelFact:
    """One number of a kernel. value None: not collected; `metric`: what it was, or would be, read from.

    unit: as units.text has it. share: fraction 0..1 of the capacity, None where the number is no fraction of one.
    """

    name: str
    label: str
    value: float | None
    unit: str
    metric: str
    share: float | None = None
    note: str = ""


def facts_of(kernel: Kernel, work: KernelWork) -> dict[str, KernelFact]:
    """Return {name: number} of what a kernel uses, in the order in which they are read; `work`: what it computes."""
    used, gpu = utilisation(kernel, work=work), kernel.gpu
    measured = kernel_metrics.pipes(kernel.metrics, kernel.coverage)
    of_sms = "" if gpu.sms is None else f"of {gpu.sms}"
    active = _from(
        kernel_metrics.sm_share(kernel.metrics, kernel.coverage),
        f"{kernel_metrics.SM_ACTIVE} / {kernel_metrics.ELAPSED[0]}",
    )
    occupied = _from(kernel_metrics.occupancy(kernel.metrics, gpu), kernel_metrics.OCCUPANCY)
    issued = _from(kernel_metrics.issue(kernel.metrics, gpu), kernel_metrics.ISSUED)
    dram = _from(kernel_metrics.dram(kernel.metrics, gpu, kernel.coverage), kernel_metrics.DRAM)
    traffic = _from(kernel_metrics.traffic(kernel.metrics, kernel.coverage), kernel_metrics.DRAM_BYTES)
    possible = _POSSIBLE if _POSSIBLE in kernel.metrics else _LIMITS
    found = [
        _share("gpu_util", "nvidia-smi", used.nvidia_smi, "", "while it runs, whatever it does"),
        *_launched(used.launched, kernel, of_sms),
        _share("sm_share", "SMs busy", used.sm_share, active, "mean of SMs, of the time"),
        *_distributed(used.distribution),
        _share("occupancy", "occupancy", used.occupancy, occupied),
        _share("occupancy_possible", "occupancy possible", used.occupancy_possible, possible, "with blocks like these"),
        KernelFact("ipc", "IPC", used.ipc_issued, f"of {gpu.schedulers}", issued, used.issue),
        *(
            _share(f"pipe_{pipe}", f"pipe {PIPE_NAMES[pipe]}", used.pipes.get(pipe),
                   _from(measured.get(pipe), kernel_metrics.pipe_metric(pipe)))
            for pipe in PIPES
        ),
        _share("threads", "threads per warp", used.thread_efficiency, kernel_metrics.THREADS, "of 32"),
        _share("dram", "DRAM", used.dram, dram, "of the peak"),
        KernelFact("dram_bytes_per_s", "DRAM traffic", work.bytes_per_s, "B/s", traffic),
        _share("l2_hit", "L2 hits", used.l2_hit, kernel_metrics.L2_HIT),
        _share("l1_hit", "L1 hits", used.l1_hit, kernel_metrics.L1_HIT),
        KernelFact(
            "flop_per_byte", "intensity", used.intensity, "FLOP/B", "operations / DRAM bytes",
            note="at least" if used.intensity_at_least else "",
        ),
    ]  # fmt: skip
    return {fact.name: fact for fact in found}


def busiest_pipe(kernel: Kernel) -> tuple[str, float] | None:
    """Return the pipeline that is used most, and how much of it; None where none was measured."""
    pipes = kernel_metrics.pipes(kernel.metrics, kernel.coverage)
    if not pipes:
        return None
    name = max(pipes, key=lambda pipe: pipes[pipe].value)
    return name, pipes[name].value


def scores_of(kernel: Kernel) -> dict[str, KernelFact]:
    """Return {name: score 0..100, 0 best} of a kernel; value None: the note names the missing metrics."""
    threads, metrics = kernel.gpu.threads_per_sm, kernel.metrics
    warps = threads // 32 if threads else _WARPS
    assumed = "" if threads else f"taken as of {_WARPS} warps in an SM, not in the report"
    return {
        name: _score(name, label, score, note)
        for name, label, score, note in (
            ("score_gpu_practice", "GPU, practice", nsight_scores.practice_gpu(metrics, max_warps=warps), assumed),
            ("score_gpumem_practice", "GPU memory, practice", nsight_scores.practice_gpumem(metrics), ""),
            ("score_gpumem_normalized", "GPU memory, shares", nsight_scores.practice_gpumem_normalized(metrics), ""),
            ("score_gpu_theory", "GPU, theory", nsight_scores.theory_gpu(metrics), ""),
            ("score_gpumem_theory", "GPU memory, theory", nsight_scores.theory_gpumem(metrics), ""),
        )
    }


def _score(name: str, label: str, score: nsight_scores.NsightScore, note: str) -> KernelFact:
    """A score; `note`: remark on it where it has a value."""
    if score.value is None:
        note = f"needs {', '.join(score.needs)}" if score.needs else ""
    return KernelFact(name, label, score.value, "score", "", None if score.value is None else score.value / 100, note)


def _share(name: str, label: str, value: float | None, metric: str, note: str = "") -> KernelFact:
    return KernelFact(name, label, value, "fraction", metric, value, note)


def _from(reading: MetricValue | None, otherwise: str) -> str:
    """Metric that a number was read from, or would be."""
    return otherwise if reading is None else reading.metric


def _launched(launch: LaunchPlacement, kernel: Kernel, of_sms: str) -> list[KernelFact]:
    """How its blocks are distributed over the SMs."""
    sms, needed = kernel.gpu.sms, launch.needed
    share = needed / sms if needed is not None and sms else None
    grid = "launch__grid_size"
    waves = _WAVES if _WAVES in kernel.metrics else f"{grid}, {_LIMITS}"
    return [
        KernelFact("sms_needed", "SMs needed", needed, "count", f"{grid}, {_LIMITS}", share, of_sms),
        _share("slots_taken", "block slots taken", launch.slots_taken, f"{grid}, {_LIMITS}", "for blocks like its own"),
        KernelFact("waves", "waves", launch.waves, "ratio", waves),
        _share("tail", "places left empty", launch.tail, waves, "over all waves, the last being short"),
    ]


def _distributed(found: SmDistribution | None) -> list[KernelFact]:
    """How much less work the mean and the least busy SM had than the busiest."""
    metric = f"{kernel_metrics.SM_ACTIVE.removesuffix('.avg')}.avg,.min,.max"
    least = None if found is None or found.low is None or found.high <= 0 else found.low / found.high
    idle = None if found is None else found.idle
    return [
        _share("sm_idle", "idle SMs", idle, metric, "mean SM against the busiest"),
        _share("sm_least", "least busy SM", least, metric, "of the busiest"),
    ]


@dataclass(frozen=True, slots=True)
class JudgedKernel:
    """Its work, its limits, its sensitivities, misleading metrics, and its place under the roofline."""

    work: KernelWork
    limits: KernelLimits
    fears: tuple[Sensitivity, ...]
    pitfalls: tuple[Pitfall, ...]
    placement: RooflinePlacement

    @property
    def limited_by(self) -> str | None:
        """The resource that is nearly full, or `latency`; None: undetermined."""
        limiting = self.limits.limiting
        return self.limits.bound if limiting is None else limiting.resource


def judge_kernel(kernel: Kernel, *, calibration: Calibration) -> JudgedKernel:
    """Return the conclusions on a kernel."""
    work, found = work_of(kernel), limits(kernel, calibration=calibration)
    placed = placement(kernel, work=work, found=found)
    fears = sensitivities(kernel, calibration=calibration)
    return JudgedKernel(work, found, fears, pitfalls(kernel, placed=placed), placed)


NOTHING = 255  # in Matrix.binding


@dataclass(frozen=True, slots=True)
class KernelsRequest:
    """A request for the report. together, explain: kernels by number, name, pattern. shares: of SMs, under MPS."""

    kernels: tuple[str, ...] = ()
    device: str | None = None
    top: int | None = None
    explain: str | None = None
    together: tuple[str, ...] = ()
    matrix: bool = False
    shares: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class KernelView(NumberedKernel):
    """One shown kernel, with all its results."""

    facts: Mapping[str, KernelFact]
    scores: Mapping[str, KernelFact]
    judged: JudgedKernel


@dataclass(frozen=True, slots=True)
class MissingMetric:
    """A metric that was not collected. `of`: numbers of the kernels that lack it."""

    metric: str
    tells: str
    of: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SetEstimate:
    """Estimate for `members` (numbers) that run at the same time."""

    members: tuple[NumberedKernel, ...]
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class DisturbingKernel:
    """A kernel beside which others of the table take longer.

    slowdown: of `victim` (a number), the most affected one. binding: its binding resource, as in CorunOutcome.
    """

    number: int
    label: str
    slowdown: float
    victim: int
    binding: str | None = None


@dataclass(frozen=True, slots=True)
class GpuPart:
    """The kernels of one GPU. pairs: rows are the kernels, columns `columns`; None where not requested.

    disturbers: the kernels that slow others most, the worst first; None where there are too many pairs.
    mixed: all kernels of these reports beside all of the other's, weighted by time; None without another report.
    """

    gpu: GpuCapacity
    calibration: Calibration
    kernels: tuple[KernelView, ...]
    left_out: int  # kernels beyond `top`
    columns: tuple[NumberedKernel, ...]
    pairs: Matrix | None
    lacking: tuple[MissingMetric, ...]
    command: str | None  # that collects what lacks
    disturbers: tuple[DisturbingKernel, ...] | None = None
    mixed: mixes.MixOutcome | None = None


@dataclass(frozen=True, slots=True)
class ReportFileRead:
    """One file: what was read of it, what was left out."""

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
    together: SetEstimate | None
    explained: KernelView | None
    beside: tuple[str, ...]  # files whose kernels are the columns of pairs
    problems: tuple[str, ...]


def total_s(part: GpuPart) -> float | None:
    """Return the time of the shown kernels, None where none is known."""
    known = [view.kernel.seconds for view in part.kernels if view.kernel.seconds is not None]
    return fsum(known) if known else None


@dataclass(frozen=True, slots=True)
class KernelPair:
    """A kernel beside another. slowdown, gain None: not known. binding: the resource, None nothing."""

    row: KernelView
    column: NumberedKernel
    slowdown: float | None
    gain: float | None
    binding: str | None
    safe: bool


def pairs_of(part: GpuPart) -> list[KernelPair]:
    """Return all pairs of a part, row by row; none where not requested."""
    found = part.pairs
    if found is None:
        return []
    return [
        KernelPair(
            row,
            column,
            _known(float(found.slowdown[i, j])),
            _known(float(found.gain[i, j])),
            binding_of(found, i, j),
            bool(found.safe[i, j]),
        )
        for i, row in enumerate(part.kernels)
        for j, column in enumerate(part.columns)
    ]


def binding_of(found: Matrix, row: int, column: int) -> str | None:
    """Return the binding resource of a row beside a column; None: nothing."""
    place = int(found.binding[row, column])
    return None if place == NOTHING else found.resources[place]


def _known(value: float) -> float | None:
    return None if value != value else value
