"""What is reported of profiled kernels: facts, verdicts, and the report object that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum

from tachograph.catalog.units import text
from tachograph.sharing import kernel_metrics, mixes, nsight_scores
from tachograph.sharing.demand import PIPES, Calibration, Demand, Estimate, GpuCapacity, Matrix, Sharing
from tachograph.sharing.kernel_metrics import PIPE_NAMES, MetricValue
from tachograph.sharing.kernels import Kernel
from tachograph.sharing.roofline import KernelLimits, KernelWork, Limit, RooflinePlacement, limits, placement, work_of
from tachograph.sharing.utilization import (
    LaunchPlacement,
    Pitfall,
    Sensitivity,
    SmDistribution,
    pitfalls,
    sensitivities,
    utilisation,
)

NAMES: Mapping[str, str] = {
    "issue": "issue", "dram": "DRAM", "l2": "L2", "l1": "L1", "blocks": "block slots", "sms": "SMs", **PIPE_NAMES,
}  # fmt: skip


_WARPS = 64  # of an SM where nobody tells: most chips have so many, some 48 or 32
_LIMITS = "launch__occupancy_limit_*"
_POSSIBLE, _WAVES = "sm__maximum_warps_per_active_cycle_pct", "launch__waves_per_multiprocessor"


@dataclass(frozen=True, slots=True)
class KernelFact:
    """One number of a kernel. value None: not collected; `metric`: what it was, or would be, read from.

    unit: as units.text has it. share: fraction 0..1 of all there is, None where the number is no share of anything.
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
    """Return {name: score 0..100, 0 best} of a kernel; value None: the note tells what it needs."""
    threads, metrics = kernel.gpu.threads_per_sm, kernel.metrics
    warps = threads // 32 if threads else _WARPS
    assumed = "" if threads else f"taken as of {_WARPS} warps in an SM, which nobody tells"
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
    """A score; `note`: what to know of it where it has a value."""
    if score.value is None:
        note = f"needs {', '.join(score.needs)}" if score.needs else ""
    return KernelFact(name, label, score.value, "score", "", None if score.value is None else score.value / 100, note)


def _share(name: str, label: str, value: float | None, metric: str, note: str = "") -> KernelFact:
    return KernelFact(name, label, value, "fraction", metric, value, note)


def _from(reading: MetricValue | None, otherwise: str) -> str:
    """What a number was read from, or would be."""
    return otherwise if reading is None else reading.metric


def _launched(launch: LaunchPlacement, kernel: Kernel, of_sms: str) -> list[KernelFact]:
    """How its blocks lie on the SMs."""
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
    """How much less the mean and the least busy SM had to do than the busiest."""
    metric = f"{kernel_metrics.SM_ACTIVE.removesuffix('.avg')}.avg,.min,.max"
    least = None if found is None or found.low is None or found.high <= 0 else found.low / found.high
    idle = None if found is None else found.idle
    return [
        _share("sm_idle", "idle SMs", idle, metric, "mean SM against the busiest"),
        _share("sm_least", "least busy SM", least, metric, "of the busiest"),
    ]


def said(fact: KernelFact) -> str:
    """Return the value of a number as it is shown, the same in every format.

    >>> said(KernelFact("ipc", "IPC", 3.45, "of 4", "")), said(KernelFact("score", "", 61.78, "score", ""))
    ('3.45 of 4', '62')
    """
    if fact.unit == "score":
        return text(fact.value, "count")
    if fact.unit.startswith("of "):
        return f"{text(fact.value, 'ratio')} {fact.unit}" if fact.value is not None else text(None)
    return text(fact.value, fact.unit)


def launches_words(count: int) -> str:
    """Return a number of launches.

    >>> launches_words(1), launches_words(1200)
    ('1 launch', '1,200 launches')
    """
    return f"{count:,} launch{'' if count == 1 else 'es'}"


def took(seconds: float | None) -> str:
    """Return a time from nanoseconds to days.

    >>> took(0.012), took(9.2e-05), took(2.5), took(None)
    ('12 ms', '92 µs', '2.5 s', 'time not told')
    """
    if seconds is None:
        return "time not told"
    if seconds >= 1 or seconds == 0:
        return text(seconds, "s")
    return text(seconds * 1e3, "ms") if seconds >= 1e-3 else text(seconds * 1e6, "µs")


KIND_NAMES = {"fp64": "FP64", "fp32": "FP32", "fp16": "FP16", "tensor": "tensor cores"}
_NUMBERS = {"ipc": "IPC", "ipc_left": "IPC left", "ipc_of_copy": "IPC of a copy", "nvidia_smi": "nvidia-smi"}
_SIDES = {"compute": "on the side of compute", "memory": "on the side of memory"}


@dataclass(frozen=True, slots=True)
class JudgedKernel:
    """Its work, its limits, what it has to fear, what misleads, and its place under the roofline."""

    work: KernelWork
    limits: KernelLimits
    fears: tuple[Sensitivity, ...]
    pitfalls: tuple[Pitfall, ...]
    placement: RooflinePlacement

    @property
    def limited_by(self) -> str | None:
        """The resource that is nearly full, or `latency`; None: cannot be said."""
        limiting = self.limits.limiting
        return self.limits.bound if limiting is None else limiting.resource


def judge_kernel(kernel: Kernel, *, calibration: Calibration) -> JudgedKernel:
    """Return what is concluded of a kernel."""
    work, found = work_of(kernel), limits(kernel, calibration=calibration)
    placed = placement(kernel, work=work, found=found)
    fears = sensitivities(kernel, calibration=calibration)
    return JudgedKernel(work, found, fears, pitfalls(kernel, placed=placed), placed)


def resource_name(resource: str) -> str:
    """Return what people call a resource.

    >>> resource_name("fma"), resource_name("blocks")
    ('FMA', 'block slots')
    """
    return NAMES.get(resource, resource)


def limited_words(found: KernelLimits) -> str:
    """Return what limits a kernel, in a sentence."""
    fullest = found.resources[0] if found.resources else None
    most = "" if fullest is None else f" (most: {resource_name(fullest.resource)} {text(fullest.demand, 'fraction')})"
    stall = found.stall
    waits = "" if stall is None else f", most of all for {stall.reason} ({text(stall.share, 'fraction')})"
    if found.limiting is not None:
        name, used = resource_name(found.limiting.resource), text(found.limiting.demand, "fraction")
        measured = {limit.resource for limit in found.resources}
        untold = [resource_name(resource) for resource in ("issue", "dram") if resource not in measured]
        lacks = f" Not measured, and perhaps fuller: {', '.join(untold)}." if untold else ""
        left = text(found.limiting.head_room, "fraction")
        return f"{name}: {used} of {all_words(found.limiting)} is used, {left} is left to others.{lacks}"
    if found.bound == "latency":
        return f"Latency: nothing is near its limit{most}; its warps wait{waits}."
    return f"Cannot be said: issue slots or DRAM were not measured{most}."


def all_words(limit: Limit) -> str:
    """Return what a load is a share of.

    >>> all_words(Limit("dram", 0.69, 0.31, "", "NVIDIA H100 NVL")), all_words(Limit("issue", 0.5, 0.5, ""))
    ('what can be achieved (as measured on NVIDIA H100 NVL)', 'it')
    """
    if limit.measured_on is not None:
        return f"what can be achieved (as measured on {limit.measured_on})"
    return "its peak" if limit.resource == "dram" else "it"


def roofline_words(place: RooflinePlacement) -> str:
    """Return where a kernel stands under the roofline, in sentences."""
    said = []
    if place.intensity is not None:
        least = "at least " if place.at_least else ""
        ridge = "" if place.ridge is None else f", the ridge is at {text(place.ridge)}"
        said.append(f"It does {least}{text(place.intensity)} FLOP per byte of DRAM{ridge}.")
    if place.side is not None:
        how = "" if place.by == "intensity" else ", by the load of pipelines and DRAM: FLOP were not counted"
        said.append(f"That is {_SIDES[place.side]}{how}.")
    else:
        said.append("It has no place: FLOP, traffic, or a peak is not told.")
    for kind, rate in place.achieved.items():
        roof = place.roof(kind)
        if rate > 0 and roof is not None:
            share = text(rate / roof.peak, "fraction")
            said.append(f"{KIND_NAMES[kind]}: {flops(rate)}, {share} of {flops(roof.peak)} ({roof.told_by}).")
    dram = place.roof("dram")
    if place.bytes_per_s is not None and dram is not None:
        share = text(place.bytes_per_s / dram.peak, "fraction")
        said.append(f"DRAM: {text(place.bytes_per_s, 'B/s')}, {share} of {text(dram.peak, 'B/s')} ({dram.told_by}).")
    if place.bound == "latency":
        said.append("It is far below both roofs: latency.")
    return " ".join(said)


def fear_words(fear: Sensitivity) -> str:
    """Return what a kernel has to fear on a resource, with the number, and what would tell it."""
    number = "" if fear.value is None else f"{text(fear.value, 'fraction')}: "
    lacks = f" (collect it with ncu {fear.missing})" if fear.missing else ""
    return f"{number}{fear.why}{lacks}"


def pitfall_words(pitfall: Pitfall) -> str:
    """Return a conclusion that would be wrong, with its numbers."""
    return f"{pitfall.why} ({pitfall_numbers(pitfall)})"


def pitfall_numbers(pitfall: Pitfall) -> str:
    """Return the numbers behind a conclusion that would be wrong; of two of a kind only what they ask together."""
    of_two = {
        name.removesuffix("_of_two"): value for name, value in pitfall.numbers.items() if name.endswith("_of_two")
    }
    told = of_two or dict(list(pitfall.numbers.items())[:2])
    said = (
        f"{_NUMBERS.get(name, NAMES.get(name, name.replace('_', ' ')))} {_number(name, value)}"
        for name, value in told.items()
    )
    return f"{'two: ' if of_two else ''}{', '.join(said)}"


def flops(rate: float) -> str:
    """Return a rate of floating-point operations.

    >>> flops(2.5e13)
    '25.00 TFLOP/s'
    """
    return f"{text(rate, 'B').removesuffix('B')}FLOP/s"


def _number(name: str, value: float) -> str:
    return text(value, "ratio" if name.startswith("ipc") else "fraction")


@dataclass(frozen=True, slots=True)
class KernelsRequest:
    """What is asked of the reports. together, explain: kernels by number, name, pattern. shares: of SMs, under MPS."""

    kernels: tuple[str, ...] = ()
    device: str | None = None
    top: int | None = None
    explain: str | None = None
    together: tuple[str, ...] = ()
    matrix: bool = False
    shares: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class NumberedKernel:
    """One kernel. share: fraction 0..1 of the time of all kernels on its GPU, None where times are not told."""

    number: int
    label: str
    kernel: Kernel
    share: float | None

    @property
    def demand(self) -> Demand:
        """What it asks, under the name that tells it apart."""
        return self.kernel.demand.named(self.label)


@dataclass(frozen=True, slots=True)
class KernelView(NumberedKernel):
    """One kernel that is shown, with all that is told of it."""

    facts: Mapping[str, KernelFact]
    scores: Mapping[str, KernelFact]
    judged: JudgedKernel


@dataclass(frozen=True, slots=True)
class MissingMetric:
    """What was not collected. `of`: numbers of the kernels that lack it."""

    metric: str
    tells: str
    of: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SetEstimate:
    """What happens when `members` (numbers) run at the same time."""

    members: tuple[NumberedKernel, ...]
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class DisturbingKernel:
    """A kernel beside which others of the table take longer.

    slowdown: of `victim` (a number), the one that it hits most. binding: what holds that up, as in Outcome.
    """

    number: int
    label: str
    slowdown: float
    victim: int
    binding: str | None = None


@dataclass(frozen=True, slots=True)
class GpuPart:
    """The kernels of one GPU. pairs: rows are the kernels, columns `columns`; None where it was not asked for.

    disturbers: the kernels that disturb others most, the worst first; None where there are too many pairs to say.
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
    """Everything that is told. problems: lines for people, of files and of kernels."""

    files: tuple[ReportFileRead, ...]
    parts: tuple[GpuPart, ...]
    sharing: Sharing
    together: SetEstimate | None
    explained: KernelView | None
    beside: tuple[str, ...]  # files whose kernels are the columns of pairs
    problems: tuple[str, ...]


def total_s(part: GpuPart) -> float | None:
    """Return the time of the kernels that are shown, None where none is told."""
    told = [view.kernel.seconds for view in part.kernels if view.kernel.seconds is not None]
    return fsum(told) if told else None
