"""How kernels or jobs should share a GPU, if at all: MPS, MPS with shares of the SMs, MIG, time-slicing; and why.

The order is: memory holds all of them; MPS where all that is asked for fits; MPS with a share of the SMs for each where
issue slots or a pipe are short; MIG where memory bandwidth or L2 are, which MPS does not keep apart; else in turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from tachograph.config import Interference
from tachograph.interference.demand import CYCLES, Calibration, Demand, Gpu
from tachograph.interference.jobs.mig import Profile, profiles_of, smallest_together
from tachograph.interference.jobs.mixes import issued_at_least
from tachograph.interference.outcome import Estimate
from tachograph.units import MI, text

AdvisedWay = Literal["mps", "mps_share", "mig", "time_slicing", "no"]
WAYS: Mapping[AdvisedWay, str] = MappingProxyType(
    {
        "mps": "MPS",
        "mps_share": "MPS with shares",
        "mig": "MIG",
        "time_slicing": "in turn",
        "no": "do not",
    }
)
# what resources are called; a pipe that is not here is "<name> pipe"
RESOURCES: Mapping[str, str] = MappingProxyType(
    {
        "issue": "issue slots",
        "fma": "FP32 pipe",
        "fp16": "FP16 pipe",
        "fp64": "FP64 pipe",
        "tensor": "tensor cores",
        "dram": "memory bandwidth",
        "l2": "L2 cache",
        "l1": "L1 cache",
        "blocks": "room for blocks",
        "sms": "SMs",
    }
)
# kept free beside what both used: their own contexts are in what was used, that of the MPS server is not. Ours
CONTEXT_BYTES = 512 * MI
_NOT_KEPT_APART = frozenset({"dram", "l2"})  # by MPS
MPS_OF_ONE_USER = (
    "MPS: if one process ends with a GPU fault, those of the others end, too; a server serves one user at a time, so "
    "jobs of different users need one that is started for several, or wait for each other."
)


@dataclass(frozen=True, slots=True)
class Advice:
    """How to share, and why.

    shares: of the SMs, one for each member (`mps_share`). profiles: MIG, one for each. slowdowns: what is expected of
    each in that way, None not known; worst: were they always busy together and what nobody measured short. binding:
    the resource that slows them most. why: sentences with the numbers, those of ways that were passed over among them.
    safe: all sums are below their limits, and nothing that decides is unknown.
    """

    way: AdvisedWay
    shares: tuple[float, ...] | None
    why: tuple[str, ...]
    unknown: tuple[str, ...]
    slowdowns: tuple[float | None, ...] = ()
    worst: tuple[float | None, ...] = ()
    binding: str | None = None
    profiles: tuple[str, ...] | None = None
    cautions: tuple[str, ...] = ()
    safe: bool = False


@dataclass(frozen=True, slots=True)
class _Case:
    """What is judged; `others`: for each member the share of time in which another is busy."""

    estimate: Estimate
    demands: tuple[Demand, ...]
    gpu: Gpu
    settings: Interference
    calibration: Calibration
    others: tuple[float, ...]
    shared: Callable[[tuple[float, ...]], Estimate] | None
    missing: tuple[str, ...] = ()

    def good(self, slowdowns: Sequence[float | None]) -> bool:
        """Whether all are known and none is above the limit."""
        return all(s is not None and s <= self.settings.max_slowdown + 1e-9 for s in slowdowns)

    def met(self, slowdowns: Sequence[float | None]) -> tuple[float | None, ...]:
        """What is expected of slowdowns that hold while others are busy, too."""
        return tuple(
            None if s is None else 1 + share * (s - 1) for s, share in zip(slowdowns, self.others, strict=True)
        )


def advise(
    estimate: Estimate,
    demands: Sequence[Demand],
    *,
    gpu: Gpu,
    settings: Interference,
    calibration: Calibration | None = None,
    busy: Sequence[float] | None = None,
    same_user: bool = True,
    shared: Callable[[tuple[float, ...]], Estimate] | None = None,
) -> Advice:
    """Return how `demands` should share `gpu`, of which `estimate` tells what happens without anything kept apart.

    `busy`: share 0..1 of its time in which each does anything at all (1: always); they are taken to be independent, so
    that a member is slowed for the share of its time in which another is busy. `shared`: what happens under MPS with
    these shares of the SMs; without it every kernel is taken to spread evenly over fewer SMs.

    >>> from tachograph.interference.outcome import Outcome
    >>> asked = [Demand(name=name, cycles={"issue": 0.2}, dram=0.1, hbm_bytes=4e9) for name in "ab"]
    >>> alone = Estimate(tuple(Outcome(name, 1.0, 1.0, None) for name in "ab"), {"issue": 0.4}, 2.0, 1.0, True, ())
    >>> advise(alone, asked, gpu=Gpu(name="A100 SXM 40GB", hbm_bytes=40e9), settings=Interference()).way
    'mps'
    """
    shares = tuple(busy) if busy is not None else (1.0,) * len(demands)
    others = tuple(min(1.0, math.fsum(shares) - share) for share in shares)
    case = _Case(
        estimate,
        tuple(demands),
        gpu,
        settings,
        calibration or Calibration(),
        others,
        shared,
        tuple(dict.fromkeys((*estimate.unknown, *_unknown(demands, gpu)))),
    )
    room, held = _memory(case)
    if not held:
        return Advice("no", None, (room,), case.missing, binding="hbm")
    passed = [room]
    for way in (_mps, _mps_share, _mig, _in_turn):
        found = way(case)
        if isinstance(found, Advice):
            cautions = (MPS_OF_ONE_USER,) if found.way in ("mps", "mps_share") and not same_user else ()
            return replace(found, why=(*passed, *found.why), cautions=cautions)
        passed += [found] if found else []
    return _none(case, passed)


def resource(name: str) -> str:
    """Return what people call a resource.

    >>> resource("dram"), resource("xu")
    ('memory bandwidth', 'xu pipe')
    """
    return RESOURCES.get(name, f"{name} pipe")


def times(slowdown: float | None) -> str:
    """Return a slowdown as people read it.

    >>> times(1.1), times(None)
    ('1.10x', '–')
    """
    return text(None) if slowdown is None else f"{slowdown:.2f}x"


def limit(name: str, settings: Interference) -> float:
    """Return up to which share a resource may be asked for by all together."""
    return settings.safe_dram if name == "dram" else settings.safe_cycles if name in CYCLES else 1.0


def _unknown(demands: Sequence[Demand], gpu: Gpu) -> list[str]:
    """What decides and nobody measured, a sentence each."""
    told = []
    lacking = [demand.name for demand in demands if "issue" not in demand.cycles]
    if lacking:
        least = ", ".join(text(issued_at_least(demand), "fraction") for demand in demands)
        told.append(
            f"Issue slots were not measured: at least {least} are taken, anything above is possible. "
            "A report of Nsight Compute tells (`tachograph kernels`)."
        )
    if any(demand.dram is None for demand in demands):
        told.append("Memory bandwidth was not measured.")
    if any(demand.hbm_bytes is None for demand in demands) or gpu.hbm_bytes is None:
        told.append("How much memory they need together, or what the GPU has, is not known.")
    return told


def _memory(case: _Case) -> tuple[str, bool]:
    """A sentence on memory, and whether it holds all of them; what is not known is not held against them."""
    used = [demand.hbm_bytes for demand in case.demands]
    known = [amount for amount in used if amount is not None]
    if len(known) < len(used) or case.gpu.hbm_bytes is None:
        return "Memory: whether it holds all of them is not known.", True
    total = math.fsum(known) + CONTEXT_BYTES
    share, allowed = total / case.gpu.hbm_bytes, case.settings.safe_hbm
    amounts = " + ".join(text(amount / MI, "MiB") for amount in known)
    held = share <= allowed
    verdict = "within" if held else "more than"
    return (
        f"Memory: {amounts} at their peaks and {text(CONTEXT_BYTES / MI, 'MiB')} for a further context are "
        f"{text(share, 'fraction')} of {text(case.gpu.hbm_bytes / MI, 'MiB')}, {verdict} the "
        f"{text(allowed, 'fraction')} allowed."
    ), held


def _conflicts(case: _Case, slowdowns: Sequence[float | None]) -> list[str]:
    """Resources that reach their limit, the shortest one first, and what slows a member beyond what is allowed."""
    over = {name: total for name, total in case.estimate.sums.items() if total >= limit(name, case.settings)}
    names = sorted(over, key=lambda name: over[name] / limit(name, case.settings), reverse=True)
    binding = [
        member.binding
        for member, slowdown in zip(case.estimate.members, slowdowns, strict=True)
        if member.binding and slowdown is not None and slowdown > case.settings.max_slowdown
    ]
    return list(dict.fromkeys((*names, *binding)))


# each of the ways returns what is advised, or why not this one ("" where it is out of the question)
def _mps(case: _Case) -> Advice | str:
    members = case.estimate.members
    slowdowns = case.met([member.slowdown for member in members])
    conflicts = _conflicts(case, slowdowns)
    if any(slowdown is None for slowdown in slowdowns):
        return "MPS: what would happen cannot be said, see what is not known."
    if conflicts:
        return f"MPS alone: {_short(case, conflicts)}; {_expected(slowdowns)}."
    if not case.good(slowdowns):
        return f"MPS alone: {_expected(slowdowns)}, over {times(case.settings.max_slowdown)}."
    why = (f"MPS: {_sums(case)}; {_expected(slowdowns)}.",)
    safe = case.estimate.safe and not case.missing
    return Advice("mps", None, why, case.missing, slowdowns, _worst(case), _binding(case), safe=safe)


def _mps_share(case: _Case) -> Advice | str:
    slowdowns = case.met([member.slowdown for member in case.estimate.members])
    conflicts = _conflicts(case, slowdowns)
    if not conflicts or None in slowdowns or _NOT_KEPT_APART & set(conflicts):
        return ""
    shares = _shares(case.demands)
    lost = _on_shares(case, shares)
    apart = " and ".join(text(share, "fraction") for share in shares)
    said = f"MPS with {apart} of the SMs, in proportion to what they need, so that no SM is shared: {_expected(lost)}."
    if not case.good(lost):
        return said
    worst = tuple(_at_worst(demand, share) for demand, share in zip(case.demands, shares, strict=True))
    return Advice("mps_share", shares, (said,), case.missing, lost, worst, conflicts[0])


def _shares(demands: Sequence[Demand]) -> tuple[float, ...]:
    """Shares of the SMs in proportion to what each needs of an SM, where it is; alike where that is not known."""
    needs = [
        max(demand.cycles.values(), default=0.0) * (1.0 if demand.sm_share is None else demand.sm_share)
        for demand in demands
    ]
    total = math.fsum(needs)
    return tuple(need / total if min(needs) > 0 else 1 / len(needs) for need in needs)


def _on_shares(case: _Case, shares: tuple[float, ...]) -> tuple[float | None, ...]:
    """What each loses all the time it works, for its share is its own whether others are busy or not."""
    own = [on_share(demand, share, gpu=case.gpu) for demand, share in zip(case.demands, shares, strict=True)]
    if case.shared is None:
        return tuple(own)
    told = [member.slowdown for member in case.shared(shares).members]
    blind = [demand.footprint is None for demand in case.demands]  # then only `own` knows how wide it is
    return tuple(
        None if theirs is None or (ours is None and one_blind) else max(theirs, ours or 1.0) if one_blind else theirs
        for theirs, ours, one_blind in zip(told, own, blind, strict=True)
    )


def on_share(demand: Demand, share: float, *, gpu: Gpu) -> float | None:
    """Return how much longer a kernel takes on a share 0..1 of the SMs; None where what it occupies is not known.

    With a footprint: as many more waves of blocks, or, where an SM is asked for more than it gives, that. Without:
    what it keeps busy of the SMs over what it gets.

    >>> on_share(Demand(name="a", sm_share=0.6), 0.5, gpu=Gpu(name="g"))
    1.2
    """
    if share <= 0:
        return None
    width = 1.0 if demand.sm_share is None else demand.sm_share
    crowded = max((asked * width / share for asked in demand.cycles.values()), default=0.0)
    feet = demand.footprint
    if feet is not None and feet.blocks_per_sm and gpu.sms:
        some = max(1, math.floor(gpu.sms * share + 1e-9))
        waves = math.ceil(feet.blocks / (some * feet.blocks_per_sm)) / math.ceil(
            feet.blocks / (gpu.sms * feet.blocks_per_sm)
        )
        return max(1.0, waves, crowded)
    return None if demand.sm_share is None else max(1.0, width / share, crowded)


def _at_worst(demand: Demand, share: float) -> float | None:
    """Were every kernel as wide as the GPU, for the part of the time in which SMs are active."""
    return None if demand.sm_share is None else 1 + demand.sm_share * (1 / share - 1)


def _mig(case: _Case) -> Advice | str:
    slowdowns = case.met([member.slowdown for member in case.estimate.members])
    short = next((name for name in _conflicts(case, slowdowns) if name in _NOT_KEPT_APART), None)
    if short is None:
        return ""
    profiles = profiles_of(case.gpu.name, case.gpu.hbm_bytes)
    if not profiles:
        return f"MIG would keep {resource(short)} apart, but {case.gpu.name} has no MIG."
    chosen = smallest_together([[one for one in profiles if _fits(case, demand, one)] for demand in case.demands])
    if chosen is None:
        return f"MIG would keep {resource(short)} apart, but no slices of one GPU hold them without slowing them."
    pairs = list(zip(case.demands, chosen, strict=True))
    lost = tuple(_on_slice(case, demand, profile) for demand, profile in pairs)
    names = tuple(profile.name for profile in chosen)
    said = (
        f"MIG keeps {resource(short)} apart: {' and '.join(names)} are the smallest slices that hold them; "
        f"{_expected(lost)}."
    )
    worst = tuple(_at_worst(demand, float(profile.sms)) for demand, profile in pairs)
    return Advice("mig", None, (said,), case.missing, lost, worst, short, profiles=names)


def _fits(case: _Case, demand: Demand, profile: Profile) -> bool:
    if demand.hbm_bytes is None or case.gpu.hbm_bytes is None:
        return False
    if demand.hbm_bytes + CONTEXT_BYTES > case.settings.safe_hbm * float(profile.memory) * case.gpu.hbm_bytes:
        return False
    return case.good([_on_slice(case, demand, profile)])


def _on_slice(case: _Case, demand: Demand, profile: Profile) -> float | None:
    """Slowdown on a slice: that of fewer SMs, or of less bandwidth."""
    narrow = on_share(demand, float(profile.sms), gpu=case.gpu)
    if narrow is None or demand.dram is None:
        return None
    share = demand.dram / (case.calibration.achievable_share if demand.dram_of == "peak" else 1.0)
    return max(narrow, share / float(profile.memory))


def _in_turn(case: _Case) -> Advice | str:
    count = float(len(case.demands))
    slowdowns = case.met([count] * len(case.demands))
    meeting = " and ".join(text(share, "fraction") for share in case.others)
    said = f"In turn: another is busy for {meeting} of their time; {_expected(slowdowns)}."
    if not case.good(slowdowns):
        return said
    return Advice("time_slicing", None, (said,), case.missing, slowdowns, (count,) * len(case.demands), "sms")


def _none(case: _Case, passed: Sequence[str]) -> Advice:
    last = f"Each way slows one of them beyond {times(case.settings.max_slowdown)}, or cannot be judged."
    slowdowns = case.met([member.slowdown for member in case.estimate.members])
    return Advice("no", None, (*passed, last), case.missing, slowdowns, _worst(case), _binding(case))


def _worst(case: _Case) -> tuple[float | None, ...]:
    """Always together; where issue slots were not measured they may be what is short, then each has its part."""
    blind = any("issue" not in demand.cycles for demand in case.demands)
    count = float(len(case.demands))
    return tuple(max(member.worst or 1.0, count) if blind else member.worst for member in case.estimate.members)


def _binding(case: _Case) -> str | None:
    slowed = [member for member in case.estimate.members if member.binding is not None]
    if slowed:
        return max(slowed, key=lambda member: member.slowdown or math.inf).binding
    return max(case.estimate.sums, key=lambda name: case.estimate.sums[name], default=None)


def _sums(case: _Case) -> str:
    asked = sorted(case.estimate.sums.items(), key=lambda item: -item[1] / limit(item[0], case.settings))
    shown = [
        f"{resource(name)} {text(total, 'fraction')} (limit {text(limit(name, case.settings), 'fraction')})"
        for name, total in asked[:3]
        if total > 0
    ]
    return f"together they ask for {', '.join(shown)}" if shown else "together they ask for nothing that was measured"


def _short(case: _Case, conflicts: Sequence[str]) -> str:
    """What is asked for beyond its limit; else what slows them although it is not."""
    sums, settings = case.estimate.sums, case.settings
    over = [name for name in conflicts if sums.get(name, 0.0) >= limit(name, settings)]
    said = [
        f"{resource(name)} {text(sums[name], 'fraction')}, limit {text(limit(name, settings), 'fraction')}"
        for name in over[:3]
    ]
    return f"too much is asked of {'; '.join(said)}" if over else f"slowed by {resource(conflicts[0])}"


def _expected(slowdowns: Sequence[float | None]) -> str:
    return f"expected {' and '.join(map(times, slowdowns))}"
