"""Kinds of jobs whose kernels somebody profiled: which profile is of which kind, and whether it can be."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import chain

from tachograph.devices import Device
from tachograph.errors import InputError, TachographError, UsageError
from tachograph.interference.demand import Demand
from tachograph.interference.jobs.mixes import COUNTER_OF_PIPE, Mix, mix
from tachograph.interference.jobs.words import resource
from tachograph.interference.profile.capacities import device_of
from tachograph.interference.profile.kernels import Kernel, kernels
from tachograph.nsight.launch import Launch
from tachograph.report.colocate.kinds import Candidates, Kind, Profile
from tachograph.report.colocate.named import is_called, named
from tachograph.units import plural, text

MOST_KERNELS = 16  # of a profile that are told apart, those of most time; what is left counts as one
MOST_APART = 0.15  # of all there is, between a profile and the means of the lake. Ours

Read = Callable[[str], Sequence[Launch]]  # of a file or a folder. Errors: InputError where nothing can be read of it


def nothing_read(report: str) -> Sequence[Launch]:
    """Return no launches, of whatever report: what reads where no profile is given."""
    return ()


@dataclass(frozen=True, slots=True)
class Given:
    """A report of Nsight Compute, and the kind of jobs that somebody says it is of: user/name, a job's id, a pattern.

    configured: it stands in the configuration. Then it is no mistake that no such kind is among the jobs, and what was
    named at the command for the same kind counts in its place.
    """

    kind: str
    report: str
    configured: bool = False


@dataclass(frozen=True, slots=True)
class Profiled:
    """Kinds, those that were profiled with their profiles; a line for each profile that is not used, why."""

    kinds: tuple[Kind, ...]
    refused: tuple[str, ...]


def profiled(found: Candidates, given: Sequence[Given], read: Read) -> Profiled:
    """Return the kinds with what their profiles tell. Several reports of one kind add up.

    Errors: that of the first profile named at the command, where none of those can be used.
    """
    problems = [*_of_nothing(found, given)]
    launches = _Launches(read, problems)
    kinds = []
    for kind in found.kinds:
        own = [one for one in given if _is_of(kind, one)]
        own = [one for one in own if not one.configured] or own
        usable = [report for report in dict.fromkeys(one.report for one in own) if launches.of(report)]
        try:
            kinds.append(replace(kind, profile=profile_of(kind, usable, launches.of)) if usable else kind)
        except TachographError as problem:
            problems.append(problem)
            kinds.append(kind)
    wanted = any(not one.configured for one in given)
    if wanted and problems and not any(kind.profile for kind in kinds):
        raise problems[0]
    return Profiled(tuple(kinds), tuple(dict.fromkeys(map(str, problems))))


def _is_of(kind: Kind, given: Given) -> bool:
    pattern = given.kind.replace("[", "[[]")  # of an array, no set of letters
    return is_called(kind, given.kind) or any(
        fnmatchcase(name, pattern) for name in (kind.label, kind.name_of_all) if name is not None
    )


def _of_nothing(found: Candidates, given: Sequence[Given]) -> Iterator[TachographError]:
    """Why profiles named at the command are of no kind of jobs that is judged."""
    for one in given:
        if one.configured or any(_is_of(kind, one) for kind in found.kinds):
            continue
        try:
            named(found, one.kind)
        except TachographError as problem:
            yield type(problem)(problem.what, where=f"--profile {one.kind}", do=problem.do)


@dataclass(slots=True)
class _Launches:
    """Launches of reports, each read once, when it is asked for."""

    read: Read
    problems: list[TachographError]
    known: dict[str, Sequence[Launch]] | None = None

    def of(self, report: str) -> Sequence[Launch]:
        known = self.known = {} if self.known is None else self.known
        if report not in known:
            try:
                known[report] = self.read(report)
            except InputError as problem:
                known[report] = ()
                self.problems.append(problem)
        return known[report]


def profile_of(kind: Kind, reports: Sequence[str], launches_of: Read) -> Profile:
    """Return what reports tell of a kind.

    Errors: UsageError where they are of another GPU; InputError where they do not tell how long kernels take, or
    nothing of issue slots.
    """
    names = ", ".join(reports)
    found = kernels(chain.from_iterable(map(launches_of, reports)))
    here = [kernel for kernel in found if _ran_on(kernel, kind.device)]
    if not here:
        raise UsageError(
            f"these kernels ran on {_gpus(found)}, not on {kind.device.name}, {kind.device.sms} SMs",
            where=names,
            do="profile a job on the GPU it runs on",
        )
    timed = [kernel for kernel in here if kernel.seconds]
    if not timed:
        raise InputError(
            "no kernel tells how long it takes, and so which share of the job it is",
            where=names,
            do="collect gpu__time_duration.sum: ncu --set full does",
        )
    if not any("issue" in kernel.demand.cycles for kernel in timed):
        raise InputError(
            "no kernel tells how many issue slots it takes, which is what a profile is for",
            where=names,
            do="collect sm__inst_issued.avg.per_cycle_active: ncu --set full does",
        )
    mixed = _mixed(kind, timed)
    return Profile(
        reports=tuple(reports),
        mix=mixed,
        kernels=len(timed),
        launches=sum(kernel.launches for kernel in timed),
        seconds=math.fsum(kernel.seconds or 0.0 for kernel in timed),
        apart=(*_left_out(kind, len(found) - len(here), len(here) - len(timed)), *_apart(kind, timed)),
    )


def _ran_on(kernel: Kernel, device: Device) -> bool:
    """By the name of the chip; where the catalogue does not know it as it is, a slice among them, by its SMs."""
    known = device_of(kernel.chip)
    return known.name == device.name if known is not None else kernel.gpu.sms == device.sms


def _gpus(found: Sequence[Kernel]) -> str:
    gpus = (f"{kernel.gpu.name}{'' if kernel.gpu.sms is None else f', {kernel.gpu.sms} SMs'}" for kernel in found)
    return " and ".join(dict.fromkeys(gpus))


def _mixed(kind: Kind, timed: Sequence[Kernel]) -> Mix:
    """Kernels as the mix of a job: each as long as one of its launches, weighted by all of them, with its memory."""
    first, rest = timed[:MOST_KERNELS], timed[MOST_KERNELS:]
    demands = [_of_one_launch(kernel) for kernel in first]
    seconds = [kernel.seconds or 0.0 for kernel in first]
    if rest:
        of_rest = mix([kernel.demand for kernel in rest], name=f"{plural(len(rest), 'other kernel')}")
        demands.append(of_rest.mean)
        seconds.append(math.fsum(kernel.seconds or 0.0 for kernel in rest))
    memory = kind.mix.highest.hbm_bytes
    return mix([replace(demand, hbm_bytes=memory) for demand in demands], seconds, name=kind.label)


def _of_one_launch(kernel: Kernel) -> Demand:
    return replace(kernel.demand, seconds=(kernel.seconds or 0.0) / kernel.launches)


def _left_out(kind: Kind, elsewhere: int, timeless: int) -> Iterator[str]:
    """A sentence for each reason for which kernels of the reports are not counted."""
    if elsewhere:
        yield f"{kind.label}: {plural(elsewhere, 'kernel')} of another GPU left out"
    if timeless:
        yield f"{kind.label}: {plural(timeless, 'kernel')} left out of which the reports do not tell how long"


def _apart(kind: Kind, timed: Sequence[Kernel]) -> Iterator[str]:
    """A sentence for each resource of which the kernels and the means of the lake differ much."""
    lake, known = kind.mix.mean, [(kernel.seconds or 0.0, kernel.demand) for kernel in timed]
    told = {name: (_mean([(seconds, getattr(one, name)) for seconds, one in known]), getattr(lake, name))
            for name in ("dram", "sm_share")}  # fmt: skip
    for pipe in COUNTER_OF_PIPE:
        # of the time in which warps are on an SM, as the lake tells it
        active = [(seconds * (one.sm_share or 0.0), one.cycles.get(pipe)) for seconds, one in known]
        told[pipe] = (_mean(active), lake.cycles.get(pipe))
    for name, (of_kernels, of_lake) in told.items():
        if of_kernels is not None and of_lake is not None and abs(of_kernels - of_lake) > MOST_APART:
            yield (
                f"{kind.label}: its kernels take {text(of_kernels, 'fraction')} of {_called(name)}, its jobs "
                f"{text(of_lake, 'fraction')}: the profile may not be of this job"
            )


def _mean(values: Sequence[tuple[float, float | None]]) -> float | None:
    weight = math.fsum(weight for weight, _ in values)
    known = [weight * value for weight, value in values if value is not None]
    return math.fsum(known) / weight if weight > 0 and len(known) == len(values) else None


def _called(name: str) -> str:
    return {"dram": "the peak memory bandwidth", "sm_share": "the SMs"}.get(name, f"the {resource(name)}")
