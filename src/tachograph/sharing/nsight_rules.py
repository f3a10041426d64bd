"""What the rules of Nsight Compute say of a kernel beside what is found here: agreement, claim by claim.

What a rule found stands in its text alone; `CLAIMS` has the words by which each is known. They are those of the rules
that NVIDIA ships in the folder `sections` of Nsight Compute, of 2019 to 2025. A rule that finds nothing writes nothing,
and whether it was applied is not recorded: silence is never taken for a result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import fsum
from typing import Literal, NamedTuple

from tachograph.catalog.units import plural, text
from tachograph.nsight.launches import RuleResult, RuleType, SpeedupType
from tachograph.sharing import kernel_metrics
from tachograph.sharing.demand import PIPES
from tachograph.sharing.kernel_facts import KernelView
from tachograph.sharing.kernel_metrics import PIPE_NAMES
from tachograph.sharing.roofline import NEAR
from tachograph.sharing.utilization import CYCLES, IDLE, distribution

Agreement = Literal["agrees", "differs", "not_comparable"]
MOST_OF_THE_TIME = 0.5  # share of a kernel's time from which on a claim counts as made of the kernel


@dataclass(frozen=True, slots=True)
class ComparedRule:
    """What a rule says of a kernel, and what is found here.

    rule, section: identifiers. claim: in a few words; None: none that is known, see `text`, of the launches of most
    time. share: fraction 0..1 of the time of launches with rules in which it says so. speedup_percent: its estimate,
    mean over that time, 0..100; None: no estimate; speedup_type: of the run time (global) or the use of the hardware
    (local), None where launches differ. ours: what is found here, None: nothing to compare with, or not measured.
    agreement: differs also where the claim holds in less than half of the time, and is found here.
    """

    rule: str
    section: str
    type: RuleType | None
    claim: str | None
    text: str
    share: float
    speedup_percent: float | None
    speedup_type: SpeedupType | None
    ours: str | None
    agreement: Agreement


class _Found(NamedTuple):
    """Whether a claim holds by what is found here, and that in words."""

    holds: bool
    words: str


_Finder = Callable[[KernelView, re.Match[str]], _Found | None]  # None: not measured


@dataclass(frozen=True, slots=True)
class _Claim:
    """How a claim is known by identifier and text, and what is found here. says: with what the pattern captured."""

    rule: str
    pattern: re.Pattern[str]
    says: str
    finder: _Finder


_NAMES = {"dram": "DRAM", "l2_bandwidth": "L2 bandwidth", "l1_bandwidth": "L1 bandwidth", "issue": "issue slots",
          **PIPE_NAMES}  # fmt: skip
_OF_MEMORY = frozenset({"dram", "l2_bandwidth", "l1_bandwidth"})
_OF_BOTH = frozenset({"lsu", "tex"})  # the throughput of the SM and that of memory have these among their parts


def _limited(view: KernelView, _: re.Match[str], *, by: str) -> _Found | None:
    """by: latency, small_grid, compute, memory, or throughput, which is either of the two."""
    found = view.judged.limits
    if found.bound is None:
        return None
    if found.limiting is None:
        return _Found(found.bound == by, found.bound.replace("_", " "))
    resource = found.limiting.resource
    sides = {"throughput", "memory" if resource in _OF_MEMORY else "compute"}
    sides |= {"memory", "compute"} if resource in _OF_BOTH else set()
    return _Found(by in sides, f"{_NAMES[resource]} {text(found.limiting.demand, 'fraction')}")


def _small_grid(view: KernelView, _: re.Match[str]) -> _Found | None:
    footprint, sms = view.kernel.demand.footprint, view.kernel.gpu.sms
    if footprint is None or sms is None:
        return None
    return _Found(view.judged.limits.small_grid is not None, f"{plural(footprint.blocks, 'block')} for {sms} SMs")


def _part_of_a_warp(view: KernelView, _: re.Match[str]) -> _Found | None:
    footprint = view.kernel.demand.footprint
    if footprint is None:
        return None
    return _Found(footprint.threads % kernel_metrics.WARP != 0, f"{plural(footprint.threads, 'thread')} in a block")


def _fact(view: KernelView, _: re.Match[str], *, name: str, least: float | None = None, below: float | None = None
          ) -> _Found | None:  # fmt: skip
    """A number from `least` on, or below `below`."""
    fact = view.facts[name]
    if fact.share is None:
        return None
    holds = fact.share >= least if least is not None else below is not None and fact.share < below
    return _Found(holds, f"{fact.label} {text(fact.share, 'fraction')}")


def _occupancy_missed(view: KernelView, _: re.Match[str]) -> _Found | None:
    possible, reached = view.facts["occupancy_possible"].value, view.facts["occupancy"].value
    if possible is None or reached is None:
        return None
    words = f"{text(reached, 'fraction')} of {text(possible, 'fraction')} possible"
    return _Found(possible - reached > _OCCUPANCY_MISSED, words)


def _uneven(view: KernelView, _: re.Match[str]) -> _Found | None:
    spread = distribution(view.kernel)
    return None if spread is None else _Found(spread.idle >= IDLE.some, f"idle SMs {text(spread.idle, 'fraction')}")


def _load(view: KernelView, _: re.Match[str], *, of: str, least: float | None = None, below: float | None = None
          ) -> _Found | None:  # fmt: skip
    """The load of a resource of the demand, from `least` on, or below `below`: what is hardly used costs little."""
    demand = view.kernel.demand
    load = {"dram": demand.dram, "l2_bandwidth": demand.l2_bandwidth, **demand.cycles}.get(of)
    if load is None:
        return None
    holds = load >= least if least is not None else below is not None and load < below
    return _Found(holds, f"{_NAMES[of]} {text(load, 'fraction')}")


_COMPUTING = ("alu", "fma", "fp16", "fp64", "tensor")  # pipelines among which the rule seeks the busiest


def _busiest(view: KernelView) -> tuple[str, float] | None:
    loads = {pipe: view.kernel.demand.cycles[pipe] for pipe in _COMPUTING if pipe in view.kernel.demand.cycles}
    return max(loads.items(), key=lambda load: load[1]) if loads else None


def _pipes_idle(view: KernelView, _: re.Match[str]) -> _Found | None:
    found = _busiest(view)
    return None if found is None else _Found(found[1] < CYCLES.high, _pipe_words(*found))


def _busiest_pipe(view: KernelView, match: re.Match[str]) -> _Found | None:
    found, named = _busiest(view), _pipes_named(match["pipe"])
    return None if found is None or not named else _Found(found[0] in named, _pipe_words(*found))


def _pipe_words(pipe: str, load: float) -> str:
    return f"{PIPE_NAMES[pipe]} {text(load, 'fraction')}"


def _pipes_named(name: str) -> frozenset[str]:
    """Return the pipelines that Nsight Compute means: `Tensor (FP)` is one of the tensor pipelines.

    >>> sorted(_pipes_named("Tensor (FP)")), sorted(_pipes_named("Shared")), _pipes_named("TMA")
    (['tensor'], ['fp16', 'fp64', 'tensor'], frozenset())
    """
    first = name.split("(")[0].strip().lower()
    return frozenset({"fp64", "fp16", "tensor"}) if first == "shared" else frozenset({first} & set(PIPES))


def _fp64(view: KernelView, _: re.Match[str], *, used: bool) -> _Found | None:
    placed = view.judged.placement
    achieved, roof = placed.achieved.get("fp64"), placed.roof("fp64")
    if achieved is None or roof is None:
        return None
    share = achieved / roof.peak
    return _Found((share >= _FP64_USED) == used, f"FP64 {text(share, 'fraction')} of its peak")


def _stalled(view: KernelView, _: re.Match[str], *, reason: str) -> _Found | None:
    shares = kernel_metrics.stalls(view.kernel.metrics)
    if shares is None:
        return None
    share = fsum(value for name, value in shares.items() if name in (reason, f"{reason}s"))
    return _Found(share >= _STALLED, f"{reason} {text(share, 'fraction')} of the waiting")


# thresholds of the rules themselves
_OCCUPANCY_MISSED = 0.1  # AchievedOccupancy
_OCCUPANCY_LOW = 0.8  # TheoreticalOccupancy
_FEW_THREADS = 24 / kernel_metrics.WARP  # ThreadDivergence
_FP64_USED = 0.155  # SOLFPRoofline: 15 %, as printed without decimals
_STALLED = 0.3  # CPIStall, of the cycles between two instructions
# reason to wait -> words of CPIStall
_STALL_WORDS = {
    "barrier": r"sibling warps at a \w+ barrier",
    "branch_resolving": r"branch target to be computed",
    "dispatch_stall": r"on a dispatch stall",
    "drain": r"after EXIT waiting for all outstanding",
    "imc_miss": r"immediate constant cache",
    "lg_throttle": r"local and global \(LG\)",
    "long_scoreboard": r"scoreboard dependency on an? L1TEX",
    "math_pipe_throttle": r"waiting for the (?:math )?execution pipe to be available",
    "membar": r"waiting on a memory barrier",
    "mio_throttle": r"for the MIO \(?(?:memory input/output\) )?instruction queue",
    "no_instruction": r"selected to fetch an instruction",
    "short_scoreboard": r"scoreboard dependency on an? MIO",
    "sleeping": r"blocked, yielded, or sleep",
    "tex_throttle": r"instruction queue for texture",
    "wait": r"fixed latency execution dependency",
}
# of these rules, one claim alone is made of a kernel: that of most of its time
_ONE_VERDICT = frozenset({"SOLBottleneck", "SOLFPRoofline", "HighPipeUtilization"})


def _claim(rule: str, pattern: str, says: str, finder: _Finder) -> _Claim:
    return _Claim(rule, re.compile(pattern), says, finder)


_OVER = r"greater than [\d.,]+ ?% of the available compute or memory performance"
_L1_LOADED = partial(_load, of="l1_bandwidth", least=CYCLES.some)
_PATTERN = r"access pattern for [^.]* (?:from|in|to) {} might not be optimal"
# the first claim whose words are found counts
CLAIMS: tuple[_Claim, ...] = (
    _claim("SOLBottleneck", r"grids? (?:is|that are) too small to fill", "small grid",
           partial(_limited, by="small_grid")),
    _claim("SOLBottleneck", r"typically indicate latency issues", "latency", partial(_limited, by="latency")),
    _claim("SOLBottleneck", r"Compute is more heavily utilized", "compute", partial(_limited, by="compute")),
    _claim("SOLBottleneck", r"Memory is more heavily utilized", "memory", partial(_limited, by="memory")),
    _claim("SOLBottleneck", r"Compute and Memory are well-balanced", "compute and memory alike",
           partial(_limited, by="throughput")),
    _claim("SOLBottleneck", rf"{_OVER}.*Compute Workload Analysis", "compute, nearly full",
           partial(_limited, by="compute")),
    _claim("SOLBottleneck", rf"{_OVER}.*Memory Workload Analysis", "memory, nearly full",
           partial(_limited, by="memory")),
    _claim("SOLBottleneck", _OVER, "compute or memory nearly full", partial(_limited, by="throughput")),
    _claim("LaunchConfiguration", r"less than the GPU's \d+ multiprocessors", "small grid", _small_grid),
    _claim("LaunchConfiguration", r"full waves? and a partial wave", "tail effect",
           partial(_fact, name="tail", least=IDLE.some)),
    _claim("LaunchConfiguration", r"executed in groups of 32 threads", "blocks of broken warps", _part_of_a_warp),
    _claim("TheoreticalOccupancy", r"below the hardware maximum", "low possible occupancy",
           partial(_fact, name="occupancy_possible", below=_OCCUPANCY_LOW)),
    _claim("AchievedOccupancy", r"difference between (?:the )?calculated theoretical", "occupancy not reached",
           _occupancy_missed),
    _claim("WorkloadImbalance", r"One or more SMs have", "uneven load of SMs", _uneven),
    _claim("IssueSlotUtilization", r"only issues an instruction every", "issue slots idle",
           partial(_load, of="issue", below=NEAR)),
    *(_claim("CPIStall", words, f"waits: {reason}", partial(_stalled, reason=reason))
      for reason, words in _STALL_WORDS.items()),
    _claim("ThreadDivergence", r"threads? being active per cycle", "few threads of a warp",
           partial(_fact, name="threads", below=_FEW_THREADS)),
    _claim("HighPipeUtilization", r"All (?:compute )?pipelines are under-utilized", "pipelines idle", _pipes_idle),
    _claim("HighPipeUtilization", r"^(?P<pipe>[\w ()]{1,20}?) is the highest-utilized pipeline",
           "busiest pipe: {pipe}", _busiest_pipe),
    _claim("SOLFPRoofline", r"\b(?:1[6-9]|[2-9]\d|1\d\d)% of its (?:FP|fp)64 peak", "much FP64",
           partial(_fp64, used=True)),
    _claim("SOLFPRoofline", r"\b(?:\d|1[0-5])% of its (?:FP|fp)64 peak", "little FP64", partial(_fp64, used=False)),
    _claim("SharedMemoryConflicts", r"bank conflict", "bank conflicts", _L1_LOADED),
    _claim("UncoalescedSharedAccess", r"uncoalesced shared accesses", "uncoalesced shared accesses", _L1_LOADED),
    _claim("UncoalescedGlobalAccess", r"uncoalesced global accesses", "uncoalesced accesses",
           partial(_load, of="l2_bandwidth", least=CYCLES.some)),
    _claim("MemoryCacheAccessPattern", _PATTERN.format("L1TEX"), "sectors of L1 in part", _L1_LOADED),
    _claim("MemoryCacheAccessPattern", _PATTERN.format("L2"), "sectors of L2 in part",
           partial(_load, of="l2_bandwidth", least=CYCLES.some)),
    _claim("MemoryCacheAccessPattern", _PATTERN.format("DRAM"), "sectors of DRAM in part",
           partial(_load, of="dram", least=CYCLES.some)),
)  # fmt: skip
_CLAIMS_OF = {rule: tuple(claim for claim in CLAIMS if claim.rule == rule) for rule in {claim.rule for claim in CLAIMS}}


@dataclass(slots=True)
class _Said:
    """One claim of a kernel, over its launches; the first result is that of most time."""

    first: RuleResult
    claim: _Claim | None
    match: re.Match[str] | None
    shares: list[float] = field(default_factory=list)
    estimates: list[tuple[float, float]] = field(default_factory=list)  # share, percent
    kinds: set[SpeedupType | None] = field(default_factory=set)

    @property
    def share(self) -> float:
        return min(1.0, fsum(self.shares))

    @property
    def says(self) -> str | None:
        if self.claim is None or self.match is None:
            return None
        return self.claim.says.format(**self.match.groupdict())


def compared_rules(view: KernelView) -> tuple[ComparedRule, ...] | None:
    """Return what rules of Nsight Compute say of a kernel beside what is found here; None: no rules were applied.

    In the order of the report, information without a known claim left out.
    """
    if not view.kernel.rules:
        return None
    return tuple(_compared(said, view) for said in _without_minor(_claimed(view)))


def _claimed(view: KernelView) -> list[_Said]:
    found: dict[tuple[str, str | None], _Said] = {}
    for part in view.kernel.rules:
        seen: set[tuple[str, str | None]] = set()
        for result in part.rules:
            claim, match = _known_claim(result)
            if claim is None and result.type in ("INF", None):
                continue
            said = _Said(result, claim, match)
            key = (result.rule, said.says)
            said = found.setdefault(key, said)
            if key not in seen:  # a rule may say the same of loads and stores of one launch
                said.shares.append(part.share)
            seen.add(key)
            if result.speedup_percent is not None:
                said.estimates.append((part.share, result.speedup_percent))
                said.kinds.add(result.speedup_type)
    return list(found.values())


def _known_claim(result: RuleResult) -> tuple[_Claim | None, re.Match[str] | None]:
    for claim in _CLAIMS_OF.get(result.rule, ()):
        if (match := claim.pattern.search(result.text)) is not None:
            return claim, match
    return None, None


def _without_minor(claimed: Iterable[_Said]) -> list[_Said]:
    """Of rules with one verdict, the verdict of most time."""
    kept = list(claimed)
    for rule in _ONE_VERDICT:
        verdicts = [said for said in kept if said.first.rule == rule and said.claim is not None]
        most = max(verdicts, key=lambda said: said.share, default=None)
        kept = [said for said in kept if said is most or said not in verdicts]
    return kept


def _compared(said: _Said, view: KernelView) -> ComparedRule:
    first, claim = said.first, said.claim
    found = claim.finder(view, said.match) if claim is not None and said.match is not None else None
    made = first.rule in _ONE_VERDICT or said.share >= MOST_OF_THE_TIME
    agreement: Agreement = "not_comparable"
    if found is not None:
        agreement = "agrees" if found.holds == made else "differs"
    weight = fsum(share for share, _ in said.estimates)
    return ComparedRule(
        rule=first.rule,
        section=first.section,
        type=first.type,
        claim=said.says,
        text=first.text,
        share=said.share,
        speedup_percent=fsum(share * percent for share, percent in said.estimates) / weight if weight else None,
        speedup_type=next(iter(said.kinds)) if len(said.kinds) == 1 else None,
        ours=None if found is None else found.words,
        agreement=agreement,
    )


@dataclass(frozen=True, slots=True)
class RuleDifference:
    """A claim that differs from what is found here. `of`: numbers of the kernels."""

    rule: str
    claim: str
    of: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RuleAgreement:
    """How many of the comparable claims on several kernels agree, and which differ, those of most kernels first."""

    agree: int
    comparable: int
    differ: tuple[RuleDifference, ...]


def rule_agreement(views: Sequence[KernelView]) -> RuleAgreement | None:
    """Return the agreement over kernels; None: rules were applied to none of them."""
    compared = [(view.number, rule) for view in views for rule in compared_rules(view) or ()]
    if not any(view.kernel.rules for view in views):
        return None
    differ: dict[tuple[str, str], list[int]] = {}
    for number, rule in compared:
        if rule.agreement == "differs":
            differ.setdefault((rule.rule, rule.claim or rule.rule), []).append(number)
    return RuleAgreement(
        agree=sum(rule.agreement == "agrees" for _, rule in compared),
        comparable=sum(rule.agreement != "not_comparable" for _, rule in compared),
        differ=tuple(
            RuleDifference(*key, tuple(numbers))
            for key, numbers in sorted(differ.items(), key=lambda one: -len(one[1]))
        ),
    )
