"""The numbers that are told of one kernel, side by side: what each tool would call its utilisation, and the scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tachograph.interference.demand import PIPES
from tachograph.interference.profile import readings
from tachograph.interference.profile.kernels import Kernel
from tachograph.interference.profile.operations import Work
from tachograph.interference.profile.readings import PIPE_NAMES, Reading
from tachograph.interference.profile.utilisation import Distribution, Launched, utilisation
from tachograph.scores import nsight
from tachograph.units import text

NAMES: Mapping[str, str] = {
    "issue": "issue", "dram": "DRAM", "l2": "L2", "l1": "L1", "blocks": "block slots", "sms": "SMs", **PIPE_NAMES,
}  # fmt: skip


_WARPS = 64  # of an SM where nobody tells: most chips have so many, some 48 or 32
_LIMITS = "launch__occupancy_limit_*"
_POSSIBLE, _WAVES = "sm__maximum_warps_per_active_cycle_pct", "launch__waves_per_multiprocessor"


@dataclass(frozen=True, slots=True)
class Fact:
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


def facts_of(kernel: Kernel, work: Work) -> dict[str, Fact]:
    """Return {name: number} of what a kernel uses, in the order in which they are read; `work`: what it computes."""
    used, gpu = utilisation(kernel, work=work), kernel.gpu
    measured = readings.pipes(kernel.metrics, kernel.coverage)
    of_sms = "" if gpu.sms is None else f"of {gpu.sms}"
    active = _from(readings.sm_share(kernel.metrics, kernel.coverage), f"{readings.SM_ACTIVE} / {readings.ELAPSED[0]}")
    occupied = _from(readings.occupancy(kernel.metrics, gpu), readings.OCCUPANCY)
    issued = _from(readings.issue(kernel.metrics, gpu), readings.ISSUED)
    dram = _from(readings.dram(kernel.metrics, gpu, kernel.coverage), readings.DRAM)
    traffic = _from(readings.traffic(kernel.metrics, kernel.coverage), readings.DRAM_BYTES)
    possible = _POSSIBLE if _POSSIBLE in kernel.metrics else _LIMITS
    found = [
        _share("gpu_util", "nvidia-smi", used.nvidia_smi, "", "while it runs, whatever it does"),
        *_launched(used.launched, kernel, of_sms),
        _share("sm_share", "SMs busy", used.sm_share, active, "mean of SMs, of the time"),
        *_distributed(used.distribution),
        _share("occupancy", "occupancy", used.occupancy, occupied),
        _share("occupancy_possible", "occupancy possible", used.occupancy_possible, possible, "with blocks like these"),
        Fact("ipc", "IPC", used.ipc_issued, f"of {gpu.schedulers}", issued, used.issue),
        *(
            _share(f"pipe_{pipe}", f"pipe {PIPE_NAMES[pipe]}", used.pipes.get(pipe),
                   _from(measured.get(pipe), readings.pipe_metric(pipe)))
            for pipe in PIPES
        ),
        _share("threads", "threads per warp", used.thread_efficiency, readings.THREADS, "of 32"),
        _share("dram", "DRAM", used.dram, dram, "of the peak"),
        Fact("dram_bytes_per_s", "DRAM traffic", work.bytes_per_s, "B/s", traffic),
        _share("l2_hit", "L2 hits", used.l2_hit, readings.L2_HIT),
        _share("l1_hit", "L1 hits", used.l1_hit, readings.L1_HIT),
        Fact(
            "flop_per_byte", "intensity", used.intensity, "FLOP/B", "operations / DRAM bytes",
            note="at least" if used.intensity_at_least else "",
        ),
    ]  # fmt: skip
    return {fact.name: fact for fact in found}


def busiest_pipe(kernel: Kernel) -> tuple[str, float] | None:
    """Return the pipeline that is used most, and how much of it; None where none was measured."""
    pipes = readings.pipes(kernel.metrics, kernel.coverage)
    if not pipes:
        return None
    name = max(pipes, key=lambda pipe: pipes[pipe].value)
    return name, pipes[name].value


def scores_of(kernel: Kernel) -> dict[str, Fact]:
    """Return {name: score 0..100, 0 best} of a kernel; value None: the note tells what it needs."""
    threads, metrics = kernel.gpu.threads_per_sm, kernel.metrics
    warps = threads // 32 if threads else _WARPS
    assumed = "" if threads else f"taken as of {_WARPS} warps in an SM, which nobody tells"
    return {
        name: _score(name, label, score, note)
        for name, label, score, note in (
            ("score_gpu_practice", "GPU, practice", nsight.practice_gpu(metrics, max_warps=warps), assumed),
            ("score_gpumem_practice", "GPU memory, practice", nsight.practice_gpumem(metrics), ""),
            ("score_gpumem_normalized", "GPU memory, shares", nsight.practice_gpumem_normalized(metrics), ""),
            ("score_gpu_theory", "GPU, theory", nsight.theory_gpu(metrics), ""),
            ("score_gpumem_theory", "GPU memory, theory", nsight.theory_gpumem(metrics), ""),
        )
    }


def _score(name: str, label: str, score: nsight.Score, note: str) -> Fact:
    """A score; `note`: what to know of it where it has a value."""
    if score.value is None:
        note = f"needs {', '.join(score.needs)}" if score.needs else ""
    return Fact(name, label, score.value, "score", "", None if score.value is None else score.value / 100, note)


def _share(name: str, label: str, value: float | None, metric: str, note: str = "") -> Fact:
    return Fact(name, label, value, "fraction", metric, value, note)


def _from(reading: Reading | None, otherwise: str) -> str:
    """What a number was read from, or would be."""
    return otherwise if reading is None else reading.metric


def _launched(launch: Launched, kernel: Kernel, of_sms: str) -> list[Fact]:
    """How its blocks lie on the SMs."""
    sms, needed = kernel.gpu.sms, launch.needed
    share = needed / sms if needed is not None and sms else None
    grid = "launch__grid_size"
    waves = _WAVES if _WAVES in kernel.metrics else f"{grid}, {_LIMITS}"
    return [
        Fact("sms_needed", "SMs needed", needed, "count", f"{grid}, {_LIMITS}", share, of_sms),
        _share("slots_taken", "block slots taken", launch.slots_taken, f"{grid}, {_LIMITS}", "for blocks like its own"),
        Fact("waves", "waves", launch.waves, "ratio", waves),
        _share("tail", "places left empty", launch.tail, waves, "over all waves, the last being short"),
    ]


def _distributed(found: Distribution | None) -> list[Fact]:
    """How much less the mean and the least busy SM had to do than the busiest."""
    metric = f"{readings.SM_ACTIVE.removesuffix('.avg')}.avg,.min,.max"
    least = None if found is None or found.low is None or found.high <= 0 else found.low / found.high
    idle = None if found is None else found.idle
    return [
        _share("sm_idle", "idle SMs", idle, metric, "mean SM against the busiest"),
        _share("sm_least", "least busy SM", least, metric, "of the busiest"),
    ]


def said(fact: Fact) -> str:
    """Return the value of a number as it is shown, the same in every format.

    >>> said(Fact("ipc", "IPC", 3.45, "of 4", "")), said(Fact("score", "", 61.78, "score", ""))
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
