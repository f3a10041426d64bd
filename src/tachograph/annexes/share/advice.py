"""Whether and how jobs should share a GPU: MPS, MPS with SM shares, MIG, time-slicing; why.

The order is: memory holds all of them; MPS where all demand fits; MPS with a share of the SMs for
each where issue slots or a pipe are short; MIG where memory bandwidth or L2 are, which MPS does not
keep apart; else time-slicing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Literal

from tachograph.annexes.share.demand import (
    CYCLES,
    Calibration,
    CorunOutcome,
    Demand,
    Estimate,
    GpuCapacity,
    MixCorunOutcome,
)
from tachograph.annexes.share.mixes import MixMembers, issued_at_least, issuing, launches_known
from tachograph.annexes.share.partitions import (
    if_wide,
    on_share,
    on_slice,
    over_members,
    shares_for,
    smallest_together,
)
from tachograph.catalog.config import InterferenceOptions
from tachograph.catalog.mig import MigProfile, profiles_of
from tachograph.catalog.units import MI, text

SharingMode = Literal["mps", "mps_share", "mig", "time_slicing", "no"]
SHARING_MODES: Mapping[SharingMode, str] = MappingProxyType(
    {
        "mps": "MPS",
        "mps_share": "MPS with shares",
        "mig": "MIG",
        "time_slicing": "time-slicing",
        "no": "do not",
    }
)
# what resources are called; a pipe that is not here is "<name> pipe"
RESOURCE_LABELS: Mapping[str, str] = MappingProxyType(
    {
        "issue": "issue slots",
        "fma": "FP32 pipe",
        "fp16": "FP16 pipe",
        "fp64": "FP64 pipe",
        "tensor": "tensor cores",
        "dram": "memory bandwidth",
        "l1_bandwidth": "L1 bandwidth",
        "l2_bandwidth": "L2 bandwidth",
        "l2": "L2 cache",
        "l1": "L1 cache",
        "blocks": "room for blocks",
        "sms": "SMs",
        "hbm": "memory",
    }
)
PROFILE_THEM = (
    "To decide, profile the kernels of both: `ncu --set full -o report PROGRAM`, then "
    "`tachograph share kernels "
    "report.ncu-rep`, and `tachograph share colocate --profile KIND=report.ncu-rep`."
)
MPS_OF_ONE_USER = (
    "MPS: a GPU fault of one process also ends the others; an MPS server serves one user at a "
    "time, so jobs of different users wait for each other unless it is started for several users."
)


def resource(name: str) -> str:
    """Return the label of a resource.

    >>> resource("dram"), resource("xu")
    ('memory bandwidth', 'xu pipe')
    """
    return RESOURCE_LABELS.get(name, f"{name} pipe")


def times(slowdown: float | None) -> str:
    """Return a slowdown as people read it.

    >>> times(1.1), times(15.8), times(None)
    ('1.10x', '15.8x', '–')
    """
    return text(slowdown, "times")


def each(slowdowns: Sequence[float | None]) -> str:
    """Return slowdowns of all members; one number if equal.

    >>> each([1.0, 1.25]), each([1.0, 1.0])
    ('1.00x and 1.25x', '1.00x each')
    """
    return _joined([times(slowdown) for slowdown in slowdowns])


def percents(shares: Sequence[float]) -> str:
    """Return shares of all members; one number if equal.

    >>> percents([0.4, 0.6]), percents([0.5, 0.5])
    ('40 % and 60 %', '50 % each')
    """
    return _joined([text(share, "fraction") for share in shares])


def _joined(texts: Sequence[str]) -> str:
    return f"{texts[0]} each" if len(set(texts)) == 1 else " and ".join(texts)


def limit(name: str, settings: InterferenceOptions) -> float:
    """Return the limit of the total demand for a resource, a fraction."""
    if name == "dram":
        return settings.safe_dram
    return settings.safe_cycles if name in CYCLES else 1.0


def total_demand(sums: Mapping[str, float], settings: InterferenceOptions) -> str:
    """Return the three resources nearest to their limits.

    >>> total_demand({"issue": 0.3, "dram": 0.35}, InterferenceOptions())
    'total demand: memory bandwidth 35 % (limit 70 %), issue slots 30 % (limit 90 %)'
    """
    near = sorted(sums.items(), key=lambda item: -item[1] / limit(item[0], settings))
    shown = [
        (
            f"{resource(name)} {text(total, 'fraction')} (limit "
            f"{text(limit(name, settings), 'fraction')})"
        )
        for name, total in near[:3]
        if total > 0
    ]
    return f"total demand: {', '.join(shown)}" if shown else "total demand: not measured"


Slowdowns = tuple[float | None, ...]  # of each member; None not known
_BY_WORST = ", by the worst case, which decides"


@dataclass(frozen=True, slots=True)
class SharingAdvice:
    """Sharing mode to use, and the reason.

    shares: of the SMs, one for each member (`mps_share`). profiles: MIG, one for each. slowdowns:
    expected of each in that mode, from measured demands; conservative: decisive, see `SharingCase`;
    worst: if all are always busy together and unmeasured resources are contended. binding: the
    resource that slows them most. why: sentences with the numbers, also of rejected modes. safe:
    all sums are below their limits, and no decisive value is unknown.
    """

    mode: SharingMode
    shares: tuple[float, ...] | None
    why: tuple[str, ...]
    unknown: tuple[str, ...]
    slowdowns: Slowdowns = ()
    conservative: Slowdowns = ()
    worst: Slowdowns = ()
    binding: str | None = None
    profiles: tuple[str, ...] | None = None
    cautions: tuple[str, ...] = ()
    safe: bool = False


@dataclass(frozen=True, kw_only=True)
class SharingCase:
    """Input of one piece of advice.

    estimate: from measured demands, without any isolation. conservative: the same with
    `settings.assumed_issue` in place of unmeasured issue slots; a sharing mode is advised only
    where this is safe, too. members: kernels of each, with shares of its time, conservative. busy:
    share 0..1 of its time in which each does anything at all; they are assumed to be independent: a
    member is slowed for the share of its time in which another is busy. shared: the estimate under
    MPS with these shares of the SMs. by_worst: the worst slowdowns decide, as kernels of one were
    profiled, unless all kernels of all were and every pair is safe.
    """

    estimate: Estimate
    conservative: Estimate
    demands: tuple[Demand, ...]
    members: tuple[MixMembers, ...]
    gpu: GpuCapacity
    settings: InterferenceOptions
    calibration: Calibration
    busy: tuple[float, ...]
    same_user: bool
    by_worst: bool
    shared: Callable[[tuple[float, ...]], Estimate]

    @cached_property
    def assumed(self) -> tuple[Demand, ...]:
        """The demands with unmeasured issue slots assumed."""
        return tuple(issuing(demand, self.settings.assumed_issue) for demand in self.demands)

    @cached_property
    def others(self) -> tuple[float, ...]:
        """For each member the share of time in which another is busy."""
        return tuple(min(1.0, math.fsum(self.busy) - share) for share in self.busy)

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """Sentences on missing measurements."""
        return tuple(dict.fromkeys((*self.estimate.unknown, *_unknown(self))))

    @property
    def unmeasured(self) -> list[str]:
        """Names of members without measured issue slots."""
        return [demand.name for demand in self.demands if "issue" not in demand.cycles]

    @property
    def slowdowns(self) -> Slowdowns:
        """Expected slowdown of each, from measured demands."""
        return self.over_all_time([member.slowdown for member in self.estimate.members])

    @property
    def decisive(self) -> Slowdowns:
        """Slowdowns that decide: with assumed issue slots, or the estimator's worst case."""
        members = self.conservative.members
        if self.unsure(self.conservative):
            return self.over_all_time([member.worst for member in members])
        return self.over_all_time([member.slowdown for member in members])

    @property
    def worst(self) -> Slowdowns:
        """Worst case: always together; unmeasured issue slots may be the bottleneck."""
        count = float(len(self.demands))
        known = []
        for member in self.estimate.members:
            worst = member.worst
            if (
                isinstance(member, MixCorunOutcome)
                and worst is not None
                and member.worst_pair is not None
            ):
                worst = max(worst, member.worst_pair[0])
            known.append(worst)
        if self.unmeasured:
            return tuple(max(worst or 1.0, count) for worst in known)
        return tuple(known)

    @property
    def binding(self) -> str | None:
        """Resource that slows them most; without slowdown, the one of highest total demand."""
        slowed = [member for member in self.conservative.members if member.binding is not None]
        if slowed:
            return max(slowed, key=lambda member: member.slowdown or math.inf).binding
        return max(self.estimate.sums, key=lambda name: self.estimate.sums[name], default=None)

    def unsure(self, estimate: Estimate) -> bool:
        """Whether the worst slowdowns of `estimate` decide, instead of the expected ones."""
        return self.by_worst and bool(self.unmeasured or not estimate.safe)

    def acceptable(self, slowdowns: Sequence[float | None]) -> bool:
        """Whether all are known and none exceeds the limit."""
        return all(s is not None and s <= self.settings.max_slowdown + 1e-9 for s in slowdowns)

    def over_all_time(self, slowdowns: Sequence[float | None]) -> Slowdowns:
        """Expected slowdowns over all time, from those while others are busy."""
        return tuple(
            None if s is None else 1 + share * (s - 1)
            for s, share in zip(slowdowns, self.others, strict=True)
        )

    def over_limit(self) -> list[str]:
        """Resources with measured demand at the limit, highest excess first."""
        sums, settings = self.estimate.sums, self.settings
        names = [name for name, total in sums.items() if total >= limit(name, settings)]
        return sorted(names, key=lambda name: sums[name] / limit(name, settings), reverse=True)

    def conflicts(self) -> list[str]:
        """Resources at their limit, and those that slow a member beyond the allowed slowdown."""
        names = self.over_limit()
        for estimate, slowdowns in (
            (self.estimate, self.slowdowns),
            (self.conservative, self.decisive),
        ):
            for member, slowdown in zip(estimate.members, slowdowns, strict=True):
                if (
                    member.binding
                    and slowdown is not None
                    and slowdown > self.settings.max_slowdown
                ):
                    names.append(member.binding)
        return list(dict.fromkeys(names))


# kept free beside what both used: their own contexts are in what was used, that of the MPS server
# is not. Ours
CONTEXT_BYTES = 512 * MI
NOT_KEPT_APART = frozenset({"dram", "l2_bandwidth", "l2"})  # by MPS


def by_mps(case: SharingCase) -> SharingAdvice | str:
    """MPS, all SMs for all."""
    slowdowns, conservative = case.slowdowns, case.decisive
    if None in slowdowns or None in conservative:
        return "MPS: undetermined, see Unknown."
    over = case.over_limit()
    if over:
        return f"MPS alone: {_too_much(case, over)}; {_expected(case)}."
    if not case.acceptable(conservative):
        by = next(iter(case.conflicts()), None)
        slowed = f", slowed by {resource(by)}" if by else ""
        return (
            f"MPS alone: {_expected(case)}{slowed}; more than {times(case.settings.max_slowdown)}."
        )
    why = (f"MPS: {total_demand(case.estimate.sums, case.settings)}; {_expected(case)}.",)
    safe = case.estimate.safe and not case.missing
    return SharingAdvice(
        "mps", None, why, case.missing, slowdowns, conservative, case.worst, case.binding, safe=safe
    )


def by_shares(case: SharingCase) -> SharingAdvice | str:
    """MPS with a fixed share of the SMs for each, if SMs are the bottleneck."""
    conflicts = case.conflicts()
    if not conflicts or None in case.slowdowns or NOT_KEPT_APART & set(conflicts):
        return ""
    shares = shares_for(case.assumed)
    estimate = case.shared(shares)
    lost = _on_shares(case, shares, estimate.members)
    wide = tuple(if_wide(demand, share) for demand, share in zip(case.demands, shares, strict=True))
    unsure = case.unsure(estimate)
    assumed_lost = _unsure(case, lost, estimate.members) if unsure else lost
    conservative = _conservative(case.members, assumed_lost, wide)
    sentence = (
        f"MPS with parts of the SMs, {percents(shares)}, in proportion to what they need, so "
        "that no SM is shared: "
        f"{_by_width(case, lost, conservative)}{_BY_WORST if unsure else ''}."
    )
    if not case.acceptable(lost) or not case.acceptable(conservative):
        return sentence
    most = tuple(
        outcome.worst if launches_known(members) else if_all_wide
        for members, outcome, if_all_wide in zip(case.members, estimate.members, wide, strict=True)
    )
    return SharingAdvice(
        "mps_share", shares, (sentence,), case.missing, lost, conservative, most, conflicts[0]
    )


def _on_shares(
    case: SharingCase, shares: tuple[float, ...], outcomes: Sequence[CorunOutcome]
) -> Slowdowns:
    """Return the loss of each on its SM share, at all times: a share is fixed."""
    own = [
        over_members(members, partial(on_share, share=share, gpu=case.gpu))
        for members, share in zip(case.members, shares, strict=True)
    ]
    return tuple(map(_on_its_own, case.members, outcomes, own))


def _unsure(case: SharingCase, lost: Slowdowns, outcomes: Sequence[CorunOutcome]) -> Slowdowns:
    """Return slowdowns at the estimator's error bound, while another is busy, too."""
    slowdowns: list[float | None] = []
    for slowdown, share, outcome in zip(lost, case.others, outcomes, strict=True):
        if slowdown is not None:
            slowdown += share * ((outcome.worst or 1.0) - (outcome.slowdown or 1.0))
        slowdowns.append(slowdown)
    return tuple(slowdowns)


def _on_its_own(members: MixMembers, outcome: CorunOutcome, own: float | None) -> float | None:
    """Return the slowdown on a share of the SMs.

    Without a footprint `own` is that of width, `outcome` that of memory.
    """
    if launches_known(members) or outcome.slowdown is None:
        return outcome.slowdown
    return (
        max(outcome.slowdown, own) if own is not None and outcome.binding in NOT_KEPT_APART else own
    )


def by_slices(case: SharingCase) -> SharingAdvice | str:
    """MIG, if memory bandwidth or L2 is the limiting resource."""
    short = next((name for name in case.conflicts() if name in NOT_KEPT_APART), None)
    if short is None:
        return ""
    profiles = profiles_of(case.gpu.name, case.gpu.hbm_bytes)
    if not profiles:
        return f"MIG would keep {resource(short)} apart, but {case.gpu.name} has no MIG."
    choices = []
    for demand, members in zip(case.assumed, case.members, strict=True):
        choices.append([profile for profile in profiles if _fits(case, demand, members, profile)])
    slices = smallest_together(choices)
    if slices is None:
        return (
            f"MIG would keep {resource(short)} apart, but no slices of one GPU hold both without "
            "slowing them: each has fewer SMs and at most half of the bandwidth, whatever their "
            "kernels are."
        )
    lost = tuple(
        _on_slice(case, members, part) for members, part in zip(case.members, slices, strict=True)
    )
    wide = tuple(_wide_on(demand, part) for demand, part in zip(case.assumed, slices, strict=True))
    conservative = _conservative(case.members, lost, wide)
    names = tuple(profile.name for profile in slices)
    sentence = (
        f"MIG keeps {resource(short)} apart: {' and '.join(names)} are the smallest slices "
        "that hold them; "
        f"{_by_width(case, lost, conservative)}."
    )
    return SharingAdvice(
        "mig", None, (sentence,), case.missing, lost, conservative, wide, short, profiles=names
    )


def _fits(case: SharingCase, demand: Demand, members: MixMembers, profile: MigProfile) -> bool:
    if demand.hbm_bytes is None or case.gpu.hbm_bytes is None:
        return False
    if (
        demand.hbm_bytes + CONTEXT_BYTES
        > case.settings.safe_hbm * float(profile.memory) * case.gpu.hbm_bytes
    ):
        return False
    lost = (_on_slice(case, members, profile),)
    return case.acceptable(lost) and case.acceptable(
        _conservative([members], lost, (_wide_on(demand, profile),))
    )


def _on_slice(case: SharingCase, members: MixMembers, profile: MigProfile) -> float | None:
    return over_members(
        members, partial(on_slice, profile=profile, gpu=case.gpu, calibration=case.calibration)
    )


def _wide_on(demand: Demand, profile: MigProfile) -> float | None:
    return if_wide(demand, float(min(profile.sms, profile.memory)))


def in_turn(case: SharingCase) -> SharingAdvice | str:
    """Time-slicing: whoever works has the whole GPU, and half of the time while another works."""
    count = float(len(case.demands))
    slowdowns = case.over_all_time([count] * len(case.demands))
    meeting = percents(case.others)
    sentence = (
        f"Time-slicing: share of their busy time in which another works, too: {meeting}; "
        f"expected {each(slowdowns)}."
    )
    if not case.acceptable(slowdowns):
        return sentence
    worst = (count,) * len(case.demands)
    return SharingAdvice(
        "time_slicing", None, (sentence,), case.missing, slowdowns, slowdowns, worst, "sms"
    )


def _conservative(members: Sequence[MixMembers], lost: Slowdowns, wide: Slowdowns) -> Slowdowns:
    """Return slowdowns on a part of the SMs, assuming wide kernels if the width is unknown."""
    slowdowns: list[float | None] = []
    for kernels, slowdown, if_all_wide in zip(members, lost, wide, strict=True):
        if launches_known(kernels) or slowdown is None:
            slowdowns.append(slowdown)
        elif if_all_wide is None:
            slowdowns.append(None)
        else:
            slowdowns.append(max(slowdown, if_all_wide))
    return tuple(slowdowns)


def _too_much(case: SharingCase, over: Sequence[str]) -> str:
    sums, settings = case.estimate.sums, case.settings
    shown = [
        (
            f"{resource(name)} {text(sums[name], 'fraction')}, limit "
            f"{text(limit(name, settings), 'fraction')}"
        )
        for name in over[:3]
    ]
    return f"demand above the limit: {'; '.join(shown)}"


def _expected(case: SharingCase) -> str:
    """Expected slowdowns, and the decisive ones if they differ."""
    expected = f"expected {each(case.slowdowns)}"
    unsure = case.unsure(case.conservative)
    if not case.unmeasured:
        if unsure:
            return f"{expected}, up to {each(case.decisive)}{_BY_WORST}"
        return (
            f"{expected}, which decides, for all pairs of their kernels are safe"
            if case.by_worst
            else expected
        )
    assumed = text(case.settings.assumed_issue, "fraction")
    who = "each" if len(case.unmeasured) == len(case.demands) else " and ".join(case.unmeasured)
    return (
        f"{expected} by what was measured, {each(case.decisive)} if {who} also needs {assumed} "
        "of the issue slots"
        f"{_BY_WORST if unsure else ''}"
    )


def _by_width(case: SharingCase, lost: Slowdowns, conservative: Slowdowns) -> str:
    expected = f"expected {each(lost)}"
    if all(map(launches_known, case.members)):
        return expected if conservative == lost else f"{expected}, {each(conservative)}"
    return (
        f"{expected} if their kernels leave the other SMs idle, {each(conservative)} if "
        "they are as wide as the GPU"
    )


def advise(case: SharingCase) -> SharingAdvice:
    """Return how the members of a case should share a GPU."""
    room, fits = _memory(case)
    if not fits:
        return SharingAdvice("no", None, (room,), case.missing, binding="hbm")
    passed = [room]
    for way in (by_mps, by_shares, by_slices, in_turn):
        advice = way(case)
        if isinstance(advice, SharingAdvice):
            needs_one_user = advice.mode in ("mps", "mps_share") and not case.same_user
            cautions = (MPS_OF_ONE_USER,) if needs_one_user else ()
            return replace(advice, why=(*passed, *advice.why), cautions=cautions)
        if advice:
            passed.append(advice)
    limit = times(case.settings.max_slowdown)
    last = f"No sharing mode is expected to keep all of them below {limit}."
    slowdowns, most = case.slowdowns, case.decisive
    return SharingAdvice(
        "no", None, (*passed, last), case.missing, slowdowns, most, case.worst, case.binding
    )


def _unknown(case: SharingCase) -> list[str]:
    """Decisive values that were not measured, a sentence each."""
    demands = case.demands
    sentences = []
    unmeasured = [demand for demand in demands if "issue" not in demand.cycles]
    if unmeasured:
        whose = ""
        if len(unmeasured) < len(demands):
            whose = f" of {' and '.join(demand.name for demand in unmeasured)}"
        least = percents([issued_at_least(demand) for demand in unmeasured])
        sentences.append(
            f"Issue slots{whose} were not measured: pipes need at least {least}, and may need "
            f"more; {text(case.settings.assumed_issue, 'fraction')} are assumed for "
            f"{'each' if len(unmeasured) > 1 else 'it'}. "
            f"{PROFILE_THEM}"
        )
    if any(demand.dram is None for demand in demands):
        sentences.append("Memory bandwidth was not measured.")
    if any(demand.hbm_bytes is None for demand in demands) or case.gpu.hbm_bytes is None:
        sentences.append("How much memory they need together, or what the GPU has, is not known.")
    return sentences


def _memory(case: SharingCase) -> tuple[str, bool]:
    """Sentence on memory, and whether it suffices for all; unknown counts as fitting."""
    used = [demand.hbm_bytes for demand in case.demands]
    known = [amount for amount in used if amount is not None]
    if len(known) < len(used) or case.gpu.hbm_bytes is None:
        return "Memory: whether it holds all of them is not known.", True
    total = math.fsum(known) + CONTEXT_BYTES
    share, allowed = total / case.gpu.hbm_bytes, case.settings.safe_hbm
    amounts = " + ".join(text(amount / MI, "MiB") for amount in known)
    fits = share <= allowed
    verdict = "within" if fits else "more than"
    return (
        f"Memory: {amounts} at their peaks and {text(CONTEXT_BYTES / MI, 'MiB')} for a further "
        "context are "
        f"{text(share, 'fraction')} of {text(case.gpu.hbm_bytes / MI, 'MiB')}, {verdict} the "
        f"{text(allowed, 'fraction')} allowed."
    ), fits
