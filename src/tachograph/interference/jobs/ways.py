"""Ways to share a GPU, each judged: what is advised, or why not this one ("" where it is out of the question)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from tachograph.interference.demand import Demand
from tachograph.interference.jobs.case import Advice, Case, Slowdowns
from tachograph.interference.jobs.mig import Profile, profiles_of, smallest_together
from tachograph.interference.jobs.mixes import Members
from tachograph.interference.jobs.narrower import if_wide, on_share, on_slice, shares_for
from tachograph.interference.jobs.words import asked_together, each, limit, percents, resource, times
from tachograph.interference.outcome import Outcome
from tachograph.units import MI, text

# kept free beside what both used: their own contexts are in what was used, that of the MPS server is not. Ours
CONTEXT_BYTES = 512 * MI
NOT_KEPT_APART = frozenset({"dram", "l2"})  # by MPS


def by_mps(case: Case) -> Advice | str:
    """MPS, all SMs for all."""
    slowdowns, careful = case.slowdowns, case.carefully
    if None in slowdowns or None in careful:
        return "MPS: what would happen cannot be said, see what is not known."
    over = case.over()
    if over:
        return f"MPS alone: {_too_much(case, over)}; {_expected(case)}."
    if not case.good(careful):
        by = next(iter(case.conflicts()), None)
        slowed = f", slowed by {resource(by)}" if by else ""
        return f"MPS alone: {_expected(case)}{slowed}; more than {times(case.settings.max_slowdown)}."
    why = (f"MPS: {asked_together(case.estimate.sums, case.settings)}; {_expected(case)}.",)
    safe = case.estimate.safe and not case.missing
    return Advice("mps", None, why, case.missing, slowdowns, careful, case.worst, case.binding, safe=safe)


def by_shares(case: Case) -> Advice | str:
    """MPS with a share of the SMs for each, where an SM is what they have too little of."""
    conflicts = case.conflicts()
    if not conflicts or None in case.slowdowns or NOT_KEPT_APART & set(conflicts):
        return ""
    shares = shares_for(case.assumed)
    found = None if case.shared is None else case.shared(shares)
    told = None if found is None else found.members
    lost = _on_shares(case, shares, told)
    wide = tuple(if_wide(demand, share) for demand, share in zip(case.demands, shares, strict=True))
    unsure = found is not None and case.unsure(found)
    careful = _careful(case.members, _unsure(case, lost, told) if unsure and told else lost, wide)
    said = (
        f"MPS with parts of the SMs, {percents(shares)}, in proportion to what they need, so that no SM is shared: "
        f"{_by_width(case, lost, careful)}{_with_margin(case) if unsure else ''}."
    )
    if not case.good(lost) or not case.good(careful):
        return said
    worst = [one.worst for one in told] if told else careful
    most = tuple(
        worst if _laid_out(members) else wide for members, worst, wide in zip(case.members, worst, wide, strict=True)
    )
    return Advice("mps_share", shares, (said,), case.missing, lost, careful, most, conflicts[0])


def _on_shares(case: Case, shares: tuple[float, ...], told: Sequence[Outcome] | None) -> Slowdowns:
    """What each loses all the time it works, for its share is its own whether others are busy or not."""
    own = [
        _of_members(members, partial(on_share, share=share, gpu=case.gpu))
        for members, share in zip(case.members, shares, strict=True)
    ]
    return tuple(own) if told is None else tuple(map(_on_its_own, case.members, told, own))


def _unsure(case: Case, lost: Slowdowns, told: Sequence[Outcome]) -> Slowdowns:
    """The same were the estimator as wrong as it may be, for the time in which another is busy as well."""
    return tuple(
        None if slowdown is None else slowdown + share * ((one.upper or 1.0) - (one.slowdown or 1.0))
        for slowdown, share, one in zip(lost, case.others, told, strict=True)
    )


def _of_members(members: Members, lost: Callable[[Demand], float | None]) -> float | None:
    """A slowdown over all kernels of one, each for its share of the time; None where that of one is not known."""
    found = [(share, slowdown) for share, demand in members if (slowdown := lost(demand)) is not None]
    return math.fsum(share * slowdown for share, slowdown in found) if len(found) == len(members) else None


def _laid_out(members: Members) -> bool:
    """Whether it is known how many blocks its kernels launch, and with it how wide they are."""
    return all(demand.footprint is not None for _, demand in members)


def _on_its_own(members: Members, told: Outcome, own: float | None) -> float | None:
    """The slowdown on a share of the SMs: without a footprint `own` knows how wide it is, `told` what memory does."""
    if _laid_out(members) or told.slowdown is None:
        return told.slowdown
    return max(told.slowdown, own) if own is not None and told.binding in NOT_KEPT_APART else own


def by_slices(case: Case) -> Advice | str:
    """MIG, where memory bandwidth or L2 are what they have too little of."""
    short = next((name for name in case.conflicts() if name in NOT_KEPT_APART), None)
    if short is None:
        return ""
    profiles = profiles_of(case.gpu.name, case.gpu.hbm_bytes)
    if not profiles:
        return f"MIG would keep {resource(short)} apart, but {case.gpu.name} has no MIG."
    chosen = smallest_together(
        [
            [one for one in profiles if _fits(case, demand, members, one)]
            for demand, members in zip(case.assumed, case.members, strict=True)
        ]
    )
    if chosen is None:
        return (
            f"MIG would keep {resource(short)} apart, but no slices of one GPU hold both without slowing them: fewer "
            "SMs, and half of the bandwidth at the most, whatever their kernels are."
        )
    lost = tuple(_on_slice(case, members, one) for members, one in zip(case.members, chosen, strict=True))
    wide = tuple(_wide_on(demand, one) for demand, one in zip(case.assumed, chosen, strict=True))
    careful = _careful(case.members, lost, wide)
    names = tuple(profile.name for profile in chosen)
    said = (
        f"MIG keeps {resource(short)} apart: {' and '.join(names)} are the smallest slices that hold them; "
        f"{_by_width(case, lost, careful)}."
    )
    return Advice("mig", None, (said,), case.missing, lost, careful, wide, short, profiles=names)


def _fits(case: Case, demand: Demand, members: Members, profile: Profile) -> bool:
    if demand.hbm_bytes is None or case.gpu.hbm_bytes is None:
        return False
    if demand.hbm_bytes + CONTEXT_BYTES > case.settings.safe_hbm * float(profile.memory) * case.gpu.hbm_bytes:
        return False
    lost = (_on_slice(case, members, profile),)
    return case.good(lost) and case.good(_careful([members], lost, (_wide_on(demand, profile),)))


def _on_slice(case: Case, members: Members, profile: Profile) -> float | None:
    return _of_members(members, partial(on_slice, profile=profile, gpu=case.gpu, calibration=case.calibration))


def _wide_on(demand: Demand, profile: Profile) -> float | None:
    return if_wide(demand, float(min(profile.sms, profile.memory)))


def in_turn(case: Case) -> Advice | str:
    """Time-slicing: whoever works has the whole GPU, and half of the time while another works."""
    count = float(len(case.demands))
    slowdowns = case.met([count] * len(case.demands))
    meeting = percents(case.others)
    said = f"In turn: of the time in which they work another works as well, {meeting}; expected {each(slowdowns)}."
    if not case.good(slowdowns):
        return said
    worst = (count,) * len(case.demands)
    return Advice("time_slicing", None, (said,), case.missing, slowdowns, slowdowns, worst, "sms")


def _careful(members: Sequence[Members], lost: Slowdowns, wide: Slowdowns) -> Slowdowns:
    """Of a part of the SMs: without a footprint nobody knows how wide kernels are, so that they count as wide."""
    return tuple(
        one if _laid_out(own) or one is None else None if most is None else max(one, most)
        for own, one, most in zip(members, lost, wide, strict=True)
    )


def _too_much(case: Case, over: Sequence[str]) -> str:
    sums, settings = case.estimate.sums, case.settings
    said = [
        f"{resource(name)} {text(sums[name], 'fraction')}, limit {text(limit(name, settings), 'fraction')}"
        for name in over[:3]
    ]
    return f"too much is asked of {'; '.join(said)}"


def _expected(case: Case) -> str:
    """Both readings, where there are two."""
    told = f"expected {each(case.slowdowns)}"
    unsure = case.unsure(case.careful)
    if not case.blind:
        if unsure:
            return f"{told}, up to {each(case.carefully)}{_with_margin(case)}"
        return f"{told}, which decides, for all pairs of their kernels are safe" if case.by_margin else told
    assumed = text(case.settings.assumed_issue, "fraction")
    who = "each" if len(case.blind) == len(case.demands) else " and ".join(case.blind)
    return (
        f"{told} by what was measured, {each(case.carefully)} if {who} also asks for {assumed} of the issue slots"
        f"{_with_margin(case) if unsure else ''}"
    )


def _with_margin(case: Case) -> str:
    return f" with the estimator's margin of {case.settings.margin:g}, which decides"


def _by_width(case: Case, lost: Slowdowns, careful: Slowdowns) -> str:
    told = f"expected {each(lost)}"
    if all(map(_laid_out, case.members)):
        return told if careful == lost else f"{told}, {each(careful)}"
    return f"{told} if their kernels leave the other SMs idle, {each(careful)} if they are as wide as the GPU"
