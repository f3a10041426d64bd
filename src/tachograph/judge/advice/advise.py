"""Advice for a request, one line per topic with evidence: pure functions of past jobs.

No line advises less than what past runs used and its margin. What was not measured is no evidence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, TypeAlias, get_args

from tachograph.catalog.config import AdviceOptions
from tachograph.catalog.mig import profiles_of
from tachograph.catalog.tables import WASTE
from tachograph.catalog.units import MI, slurm_duration
from tachograph.judge.advice.past_jobs import (
    History,
    PastJob,
    PastJobGroup,
    finished_since,
    most_common,
)
from tachograph.judge.advice.request import JobRequest
from tachograph.judge.bounds import (
    GIB,
    LEAST_S,
    MEMORY_MARGIN,
    TIME_MARGIN,
    WORTH,
    HostMemory,
    memory_bound_mib,
    peaks_of_need,
    percentile,
    time_bound_s,
    use_bound,
)
from tachograph.judge.partitions import NOT_RECORDED, Freed, JobNeeds, SitePartitions, memory_option

Confidence: TypeAlias = Literal["high", "medium", "low", "none"]
Topic: TypeAlias = Literal[
    "gpus", "gpu_memory", "sharing", "time", "host_memory", "cores", "expected", "problems"
]
TOPICS: tuple[Topic, ...] = get_args(Topic)
# What --sbatch prints, and the backtest follows.
FOLLOWED: frozenset[Confidence] = frozenset({"high", "medium"})
MANY_RUNS = 10
# a peak from here on may be a reservation: JAX takes 75 % of the memory, vLLM 90 %, TensorFlow and
# RELION all of it
RESERVED = 0.7
LARGE_MIB = 64 * GIB  # a GPU of the large memory tier
_USABLE = 0.97  # of the capacity, where samples do not show what the driver keeps
_DIFFER = 3.0  # times the largest use: a bound beyond says that the runs are not alike
_CPU_MARGIN = 1.0  # means over the run hide peaks
_GPU_MEMORY_MARGIN = 0.15
_ACTIVITY_MARGIN = 0.25
_JOBS_NAMED = 5
_OFTEN = 0.2
WORTH_NAMING = 0.02  # of the GPU-hours
HOURS_WORTH_NAMING = 1.0  # GPU-hours of a run
RECOVERABLE = "recoverable_"  # prefix of a cause in the evidence of problems


@dataclass(frozen=True, slots=True)
class SiteFacts:
    """The GPUs of a site, {capacity in MiB: MiB that programs can use}, and its partitions."""

    capacities: Mapping[float, float] = field(default_factory=dict)
    partitions: SitePartitions = NOT_RECORDED

    def smallest(self, need_mib: float, *, most: float) -> float | None:
        """Return the smallest capacity below a limit in which `need_mib` fits; None: there is
        none.
        """
        fitting = [
            size for size, usable in self.capacities.items() if usable >= need_mib and size <= most
        ]
        return min(fitting, default=None)


@dataclass(frozen=True, slots=True)
class AdviceLine:
    """One line of advice. `value` None: no advice, see `reason`; asked: the request, None: none.

    Units: gpus, cores: count; gpu_memory, host_memory: MiB; time: s; sharing: share of the SMs;
    expected: GPU-hours; problems: runs with any; its evidence has `recoverable_<cause>` as shares
    of the GPU-hours. option: for sbatch. margin: on top of the largest use. runs: past jobs that it
    rests on, of `of` in the group; jobs: ids of the latest of them. evidence: further numbers.
    """

    topic: Topic
    value: float | None = None
    asked: float | None = None
    option: str | None = None
    reason: str | None = None
    confidence: Confidence = "none"
    margin: float | None = None
    runs: int = 0
    of: int = 0
    jobs: tuple[str, ...] = ()
    evidence: Mapping[str, float | str | None] = field(default_factory=dict)

    @property
    def followed(self) -> bool:
        """It changes the request, and the evidence suffices for it."""
        return self.value is not None and self.confidence in FOLLOWED and self.topic in _REDUCING


_REDUCING = frozenset({"gpus", "gpu_memory", "time", "host_memory"})


@dataclass(frozen=True, slots=True)
class Advice:
    """What is advised for a request, and the past jobs that it rests on."""

    request: JobRequest
    group: PastJobGroup
    lines: tuple[AdviceLine, ...]

    def line(self, topic: Topic) -> AdviceLine | None:
        """Return the line of a topic; None where nothing of it is known."""
        return next((line for line in self.lines if line.topic == topic), None)

    @property
    def options(self) -> tuple[str, ...]:
        """Options for sbatch of the lines whose evidence suffices."""
        followed = [line.option for line in self.lines if line.option and line.followed]
        of_name: dict[str, str] = {}
        for word in " ".join(followed).split():
            of_name.setdefault(word.partition("=")[0], word)
        return tuple(of_name.values())


def advise(
    request: JobRequest,
    history: History,
    now: float,
    site: SiteFacts,
    options: AdviceOptions,
    *,
    brief: bool = False,
) -> Advice:
    """Return advice for a request from jobs that ended before `now`, one line per topic.

    `now`: seconds since 1970. `brief`: only the lines that change the request, and problems.
    """
    group = history.nearest(request, now)
    given = _Given(request, group, site, options)
    if group.level is None:
        hint = _problems(given)
        return Advice(request, group, (hint,) if hint.value is not None else ())
    topics: Sequence[Topic] = (
        ("gpus", "gpu_memory", "time", "host_memory", "problems") if brief else TOPICS
    )
    return Advice(request, group, tuple(_LINES[topic](given) for topic in topics))


@dataclass(frozen=True, slots=True)
class _Given:
    request: JobRequest
    group: PastJobGroup
    site: SiteFacts
    options: AdviceOptions

    def confidence(self, runs: Sequence[PastJob]) -> Confidence:
        """high: ten runs of this job; medium: three, or ten names of its pattern; low: fewer.

        Numbers in names may count runs, or distinguish jobs: runs of one further name are evidence
        of one job.
        """
        if self.group.level == "exact":
            return "high" if len(runs) >= MANY_RUNS else "medium"
        names = {job.name for job in runs}
        return "medium" if self.group.level == "pattern" and len(names) >= MANY_RUNS else "low"

    @property
    def alike(self) -> tuple[PastJob, ...]:
        """Runs with the name or its pattern; other names of the user are no evidence of need."""
        return () if self.group.level == "user" else self.group.jobs

    def freed(self, used: int, run: PastJob) -> tuple[Freed | None, str | None]:
        """Return the change that frees GPUs for others if `used` work, and its options."""
        request, (_, memory) = self.request, _host_memory_runs(self)
        nodes = self.nodes
        ended_s = [job.elapsed_s for job in self.alike if job.state in ("COMPLETED", "TIMEOUT")]
        runs_s = [elapsed_s for elapsed_s in ended_s if elapsed_s is not None]
        row = asdict(request) | {
            "cluster": self.site.partitions.cluster or run.cluster,
            "nodes": nodes,
            "gpu_model": run.gpu_model,
            "mem_requested_mib": None if request.mem_mib is None else request.mem_mib * nodes,
            "requests_exclusive": request.exclusive,
            "state": "COMPLETED" if self.memory_sufficed else run.state,
        }
        job = JobNeeds(used, runs_s, memory).beside(row)
        busy = [job for job in self.alike if job.cpus and job.cpu_efficiency is not None]
        if request.cpus is None and busy:
            busiest = max(busy, key=lambda job: (job.cpus or 0) * (job.cpu_efficiency or 0.0))
            job |= {"cpus": busiest.cpus, "cpu_efficiency": busiest.cpu_efficiency}
        change = self.site.partitions.freed(job)
        if change is None or not change.options:
            return change, None
        options = [*change.options]
        if change.time_s is not None:
            options.append(f"--time={slurm_duration(change.time_s)}")
        if change.memory_mib is not None:
            kept = nodes - change.nodes if change.nodes else 1
            memory_words = memory_option({**job, "nodes": kept}, change.memory_mib, change.gpus)
            options += [memory_words] if memory_words else []
        return change, " ".join(options)

    @property
    def nodes(self) -> int:
        """Nodes of the request, else the most that a run had."""
        return self.request.nodes or max((job.nodes or 1 for job in self.alike), default=1)

    @property
    def memory_sufficed(self) -> bool:
        """Whether a run completed with the requested host memory of a node, or less."""
        requested_mib = self.request.mem_mib or 0.0
        completed_mib = [job.mem_mib for job in self.alike if job.completed]
        return any(mib is not None and mib <= requested_mib for mib in completed_mib)

    @property
    def whole_nodes(self) -> bool | None:
        """Whether the job's nodes are its own."""
        return self.site.partitions.whole_nodes(asdict(self.request))

    @property
    def nobody_gains(self) -> str:
        """Why fewer GPUs, CPUs or less memory of a node are not advised."""
        if self.whole_nodes:
            return "nodes are given whole: a smaller request of a node frees nothing"
        if self.whole_nodes is False:
            return "the CPUs or the memory requested leave no further GPU to others"
        return (
            "whether the partition gives nodes whole is not known: name it in [slurm] shared "
            "or exclusive"
        )

    def advice(
        self,
        topic: Topic,
        value: float,
        asked: float | None,
        runs: Sequence[PastJob],
        *,
        option: str | None = None,
        confidence: Confidence | None = None,
        margin: float | None = None,
        evidence: Mapping[str, float | str | None],
    ) -> AdviceLine:
        """Return the advice that rests on some runs; `confidence` None: by their number."""
        return AdviceLine(
            topic,
            value,
            asked,
            option,
            confidence=confidence or self.confidence(runs),
            margin=margin,
            runs=len(runs),
            of=len(self.group.jobs),
            jobs=_labels(runs),
            evidence=evidence,
        )

    def no_advice(
        self, topic: Topic, reason: str, jobs: Sequence[PastJob] = (), asked: float | None = None
    ) -> AdviceLine:
        """No advice, and why."""
        return AdviceLine(
            topic,
            reason=reason,
            runs=len(jobs),
            of=len(self.group.jobs),
            jobs=_labels(jobs),
            asked=asked,
        )

    def too_few(
        self, topic: Topic, jobs: Sequence[PastJob], what: str, asked: float | None = None
    ) -> AdviceLine:
        """Return no advice, because too few runs show the need."""
        if self.group.level == "user":
            return self.no_advice(
                topic, "no past jobs of this name and number of GPUs", asked=asked
            )
        return self.no_advice(
            topic, f"{what} of {len(jobs)} of {len(self.alike)} runs", jobs, asked
        )


def _labels(jobs: Sequence[PastJob]) -> tuple[str, ...]:
    return tuple(job.label for job in jobs[:_JOBS_NAMED])


def _long_enough(job: PastJob) -> bool:
    return job.elapsed_s is not None and job.elapsed_s >= LEAST_S


# ------------------------------------------------------------------------------------------------------------- GPUs


def _gpus(given: _Given) -> AdviceLine:
    """Advise the largest number of GPUs that worked or held a loaded program in a run."""
    asked = given.request.gpus
    if not asked:
        return given.no_advice("gpus", "no GPUs are requested")
    measured = [job for job in given.alike if job.gpus_used is not None]
    shown = [job for job in measured if _long_enough(job) and job.gpus_used]
    if len(shown) < given.options.least_runs:
        if measured and not any(job.gpus_used for job in measured):
            return given.no_advice(
                "gpus",
                "no run used a GPU: request none unless the program needs one",
                measured,
                asked,
            )
        return given.too_few("gpus", shown, "GPU use is known", asked)
    used = max(max(job.gpus_used or 0, job.gpus_worked or 0) for job in given.alike)
    if 2 * len(shown) < len([job for job in given.alike if _long_enough(job)]):
        return given.too_few("gpus", shown, "GPU use is known", asked)
    if used >= asked:
        return given.no_advice("gpus", "all requested GPUs were used", shown, asked)
    change, option = given.freed(used, shown[0])
    if change is None:
        reason = given.nobody_gains
        if asked % given.nodes:
            reason = (
                f"how many of the {asked} GPUs each of the {given.nodes} nodes gives is not known"
            )
        return given.no_advice("gpus", reason, shown, asked)
    return given.advice(
        "gpus",
        float(change.gpus),
        asked,
        shown,
        option=option,
        margin=0.0,
        evidence={
            "gpus_used_max": used,
            "gpus_used_min": min(job.gpus_used or 0 for job in shown),
            "gain": change.gain,
        },
    )


def _gpu_need(given: _Given) -> tuple[float | None, list[PastJob], str]:
    """Return the memory that a GPU needs (MiB), the runs that show it, and why it is None."""
    peaked = [
        job
        for job in given.alike
        if job.hbm_peak_mib is not None
        and job.hbm_mib
        and job.gpus == given.request.gpus
        and job.gpus
    ]
    shown = [job for job in peaked if _long_enough(job) and job.completed]
    if len(shown) < given.options.least_runs:
        return None, shown, "few"
    if any((job.hbm_peak_mib or 0) >= RESERVED * (job.hbm_mib or math.inf) for job in peaked):
        return None, shown, "reserved"
    peaks = [job.hbm_peak_mib for job in peaked if job.hbm_peak_mib is not None]
    return use_bound(peaks, margin=_GPU_MEMORY_MARGIN), shown, ""


def _gpu_memory(given: _Given) -> AdviceLine:
    """Advise the smallest memory tier on which the job completed, or that its peaks fit."""
    topic: Topic = "gpu_memory"
    if not given.request.gpus:
        return given.no_advice(topic, "no GPUs are requested")
    held = [job.hbm_mib for job in given.alike if job.hbm_mib is not None]
    usual = most_common(held)
    if usual is None:
        return given.too_few(topic, (), "memory of GPUs is known")
    smaller = _ran_on_less(given, WORTH * max(held))
    need, shown, why = _gpu_need(given)
    if smaller is not None:
        size, runs = smaller
        return _tier(
            given, size, max(held), runs, {"completed_on_mib": size, "need_mib": need}, margin=None
        )
    if why == "few":
        return given.too_few(topic, shown, "peaks of GPU memory are known", usual)
    if need is None:
        reason = (
            "peaks are near capacity: frameworks reserve what is there (JAX 75 %, vLLM 90 %, "
            "TensorFlow all), and "
            "PyTorch caches what it has freed, so they do not show the need"
        )
        return given.no_advice(topic, reason, shown, usual)
    size_or_none = given.site.smallest(need, most=WORTH * max(held))
    if size_or_none is None:
        return given.no_advice(topic, "no smaller memory tier of the site suffices", shown, usual)
    peak = max(job.hbm_peak_mib or 0.0 for job in shown)
    evidence = {"hbm_peak_mib_max": peak, "need_mib": need}
    return _tier(given, size_or_none, max(held), shown, evidence, margin=_GPU_MEMORY_MARGIN)


def _tier(
    given: _Given,
    size: float,
    held: float,
    runs: Sequence[PastJob],
    evidence: Mapping[str, float | str | None],
    *,
    margin: float | None,
) -> AdviceLine:
    tier = next((one for one in given.options.memory_options if _is_tier(one, size)), None)
    asked = given.request.hbm_request
    return given.advice(
        "gpu_memory",
        size,
        held,
        runs,
        option=None if tier is None else given.options.memory_options[tier],
        margin=margin,
        evidence={**evidence, "requested": asked},
    )


def _is_tier(written: str, size_mib: float) -> bool:
    """Whether a capacity has the name of a tier: 40 GB cards report 39.4 to 40.0 GiB."""
    return written.isdigit() and abs(size_mib / GIB - int(written)) <= 0.05 * int(written)


def _ran_on_less(given: _Given, held: float) -> tuple[float, list[PastJob]] | None:
    """Return the smallest capacity up to `held` on which this job completed, and these runs.

    On as many GPUs or fewer, which then hold more each. A run that failed there with full memory
    speaks against it.
    """
    if given.group.level != "exact":  # a pattern of names may join jobs that differ
        return None
    asked = given.request.gpus or 0
    small = [
        job
        for job in given.group.named
        if job.hbm_mib is not None
        and job.hbm_mib <= held
        and job.gpus
        and job.gpus <= asked
        and _long_enough(job)
    ]
    for size in sorted({job.hbm_mib for job in small if job.hbm_mib is not None}):
        there = [job for job in small if job.hbm_mib == size]
        failed = [
            job for job in there if job.state == "FAILED" and (job.hbm_peak_mib or 0) >= 0.9 * size
        ]
        fitted = [job for job in there if job.completed]
        if len(fitted) >= given.options.least_runs and not failed:
            return size, fitted
    return None


def _sharing(given: _Given) -> AdviceLine:
    """Advise a MIG slice in which one GPU's memory and activity fit."""
    topic: Topic = "sharing"
    used = [job for job in given.alike if job.gpus == 1 or job.gpus_used == 1]
    if given.request.gpus not in (None, 1) and len(used) < len(given.alike):
        return given.no_advice(topic, "several GPUs are used")
    need, shown, why = _gpu_need(given)
    if need is None:
        reason = (
            "peaks of GPU memory are near capacity"
            if why == "reserved"
            else "too few runs with known peaks"
        )
        return given.no_advice(topic, reason, shown)
    active = [job.sm_active for job in shown if job.sm_active is not None]
    if len(active) < len(shown):
        return given.no_advice(topic, "SM activity was not measured in every run", shown)
    model, size = shown[0].gpu_model, shown[0].hbm_mib
    slices = profiles_of(model, size * MI) if model is not None and size else ()
    wanted = max(active) * (1 + _ACTIVITY_MARGIN)
    for profile in slices:
        if wanted <= float(profile.sms) and size and need <= _USABLE * float(profile.memory) * size:
            return given.advice(
                topic,
                float(profile.sms),
                1.0,
                shown,
                confidence="low",  # a mean over the run hides phases that need more
                margin=_ACTIVITY_MARGIN,
                evidence={
                    "profile": profile.name,
                    "sm_active_max": max(active),
                    "need_mib": need,
                    "model": model,
                },
            )
    return given.no_advice(
        topic, "no slice of its GPU suffices" if slices else "its GPU has no MIG slices", shown
    )


# ------------------------------------------------------------------------------------------------- time, host, cores


def _time(given: _Given) -> AdviceLine:
    """The longest run and a margin; left out are runs judged hung, and limits raised since."""
    topic: Topic = "time"
    asked = given.request.timelimit_s
    hung = [job for job in given.alike if job.hung]
    known = [job for job in given.alike if job.elapsed_s is not None and not job.hung]
    ended = [job for job in known if job.completed]
    cut = [
        job
        for job in known
        if job.state == "TIMEOUT" and not finished_since(job, ended, given.options.least_runs)
    ]
    if len(ended) < given.options.least_runs:
        return given.too_few(topic, ended, "a run time to the end is known", asked)
    if cut:
        reason = (
            f"{len(cut)} of {len(known)} runs ended at their limit: how long they need is not known"
        )
        return given.no_advice(topic, reason, cut, asked)
    longest = max(job.elapsed_s or 0.0 for job in known)
    runs_s = [job.elapsed_s or 0.0 for job in ended]
    if longest > max(runs_s):
        runs_s.append(longest)
    wanted = time_bound_s(runs_s)
    evidence: dict[str, float | str | None] = {
        "elapsed_s_max": longest,
        "elapsed_s_p95": percentile(runs_s, 0.95),
        "hung_left_out": len(hung),
    }
    if wanted > max(LEAST_S, _DIFFER * longest):
        return given.no_advice(topic, "run times differ too much", ended, asked)
    if wanted > given.site.partitions.most_time_s(asdict(given.request)):
        return given.no_advice(topic, "the partition allows no such limit", ended, asked)
    if asked is not None and wanted > WORTH * asked:
        return given.no_advice(topic, "the limit is not much longer than needed", ended, asked)
    return given.advice(
        topic,
        wanted,
        asked,
        ended,
        option=f"--time={slurm_duration(wanted)}",
        margin=wanted / longest - 1 if longest else TIME_MARGIN,
        evidence=evidence,
    )


def _host_memory(given: _Given) -> AdviceLine:
    """The largest peak on a node and a margin; of runs that were killed, more than they had."""
    topic: Topic = "host_memory"
    request, asked = given.request, given.request.mem_mib
    shown, memory = _host_memory_runs(given)
    peaks, killed = memory.peaks, memory.killed
    if len(shown) < given.options.least_runs:
        return given.too_few(topic, shown, "peaks of host memory are known", asked)
    wanted = max(memory_bound_mib(values) for values in (peaks, killed) if values)
    if given.whole_nodes is not False and not killed:
        return given.no_advice(topic, given.nobody_gains, shown, asked)
    if wanted > given.site.partitions.most_memory_mib(asdict(request)):
        return given.no_advice(topic, "no node of the partition has more", shown, asked)
    if wanted > max(GIB, _DIFFER * max([*peaks, *killed])):
        return given.no_advice(topic, "peaks of host memory differ too much", shown, asked)
    if asked is not None and wanted > WORTH * asked and not (killed and wanted > asked):
        return given.no_advice(topic, "the request is not much more than needed", shown, asked)
    return given.advice(
        topic,
        wanted,
        asked,
        shown,
        option=memory_option(asdict(request), wanted, request.gpus or 0),
        margin=MEMORY_MARGIN,
        evidence={"mem_peak_mib_max": max(peaks), "killed": len(killed)},
    )


def _host_memory_runs(given: _Given) -> tuple[list[PastJob], HostMemory]:
    """Return completed runs of which host memory is known, and what all on as many nodes had."""
    nodes = given.request.nodes
    alike = [job for job in given.alike if nodes is None or job.nodes == nodes]
    alike = [job for job in alike if job.nodes == alike[0].nodes]
    peaked = [job for job in alike if job.mem_peak_mib is not None]
    shown = [job for job in peaked if job.completed and _long_enough(job)]
    killed = [
        job.mem_mib for job in alike if job.state == "OUT_OF_MEMORY" and job.mem_mib is not None
    ]
    completed_mib = [job.mem_peak_mib or 0.0 for job in shown]
    others_mib = [job.mem_peak_mib or 0.0 for job in peaked if job not in shown]
    return shown, HostMemory(None, peaks_of_need(completed_mib, others_mib), killed)


def _cores(given: _Given) -> AdviceLine:
    """CPUs that were busy on average, doubled: a mean hides peaks, so it is a hint at most."""
    topic: Topic = "cores"
    asked = given.request.cpus
    alike = [
        job
        for job in given.alike
        if job.cpus and job.cpu_efficiency is not None and _long_enough(job)
    ]
    if len(alike) < given.options.least_runs:
        return given.too_few(topic, alike, "CPU use is known", asked)
    busy = max((job.cpu_efficiency or 0.0) * (job.cpus or 0) for job in alike)
    least = max(1, given.request.ntasks or 1, given.request.gpus or 1)
    held = asked or max(job.cpus or 0 for job in alike)
    wanted = max(least, math.ceil(busy * (1 + _CPU_MARGIN)))
    if wanted > WORTH * held:
        return given.no_advice(topic, "the CPUs were used", alike, asked)
    if given.whole_nodes is not False:
        return given.no_advice(topic, given.nobody_gains, alike, asked)
    return given.advice(
        topic,
        float(wanted),
        float(held),
        alike,
        confidence="low",
        margin=_CPU_MARGIN,
        evidence={"cpus_busy_max": busy},
    )


# --------------------------------------------------------------------------------------------- what is to be expected


def _expected(given: _Given) -> AdviceLine:
    """Median and range of GPU-hours, energy and power of the runs that completed."""
    done = [job for job in given.alike if job.completed and job.gpu_hours is not None]
    if len(done) < given.options.least_runs:
        return given.too_few("expected", done, "GPU-hours are known")
    evidence: dict[str, float | str | None] = {}
    for name, values in (
        ("gpu_hours", [job.gpu_hours for job in done if job.gpu_hours is not None]),
        ("energy_j", [job.energy_j for job in done if job.energy_j is not None]),
        ("power_w", [job.power_w for job in done if job.power_w is not None]),
        ("elapsed_s", [job.elapsed_s for job in done if job.elapsed_s is not None]),
    ):
        for end, fraction in (("p05", 0.05), ("median", 0.5), ("p95", 0.95)):
            evidence[f"{name}_{end}"] = percentile(values, fraction) if values else None
    hours = float(evidence["gpu_hours_median"] or 0.0)
    return given.advice("expected", hours, None, done, evidence=evidence)


def _problems(given: _Given) -> AdviceLine:
    """Problems that the runs had: {code: runs}, of those that two runs or a fifth of them had.

    Where there are too few runs for advice on the request, one that had a problem is a hint, of
    confidence low.
    """
    few = _problems_of(given, given.group.few) if given.group.few else None
    if few is not None and (few.value is not None or not given.group.jobs):
        return few
    return _problems_of(given, given.group.jobs)


def _problems_of(given: _Given, jobs: Sequence[PastJob]) -> AdviceLine:
    counts: Counter[str] = Counter()
    for job in jobs:
        counts.update(job.problems)
    own = jobs is given.group.few or given.group.level != "user"
    least = min(2.0, _OFTEN * len(jobs)) if own else 2.0
    often: dict[str, float] = {}
    for code, runs in sorted(counts.items(), key=lambda count: (-count[1], count[0])):
        if runs >= least:
            often[code] = float(runs)
    ends = Counter(job.state for job in jobs)
    for state in ("FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL"):
        if ends[state] >= 2:
            often[state] = float(ends[state])
    often |= _recoverable(jobs)
    if not often:
        return given.no_advice("problems", "none in these runs", jobs)
    concerned = [
        job for job in jobs if often.keys() & {*job.problems, job.state} or any(job.recoverable)
    ]
    return AdviceLine(
        "problems",
        float(len(concerned)),
        confidence=given.confidence(jobs),
        runs=len(jobs),
        of=len(jobs),
        jobs=_labels(concerned),
        evidence=often,
    )


def _recoverable(jobs: Sequence[PastJob]) -> dict[str, float]:
    """Return shares of recoverable GPU-hours by cause, if large enough to mention."""
    hours = math.fsum(
        job.gpu_hours or 0.0 for job in jobs if any(part is not None for part in job.recoverable)
    )
    shares = {}
    for place, cause in enumerate(WASTE):
        parts = [job.recoverable[place] for job in jobs if len(job.recoverable) > place]
        lost = math.fsum(part for part in parts if part is not None)
        if hours and (lost >= WORTH_NAMING * hours or lost >= HOURS_WORTH_NAMING * len(jobs)):
            shares[f"{RECOVERABLE}{cause}"] = lost / hours
    return shares


_LINES: Mapping[Topic, Callable[[_Given], AdviceLine]] = {
    "gpus": _gpus,
    "gpu_memory": _gpu_memory,
    "sharing": _sharing,
    "time": _time,
    "host_memory": _host_memory,
    "cores": _cores,
    "expected": _expected,
    "problems": _problems,
}
