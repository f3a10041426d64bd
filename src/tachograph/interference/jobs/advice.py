"""How kernels or jobs should share a GPU, if at all: MPS, MPS with shares of the SMs, MIG, time-slicing; and why.

The order is: memory holds all of them; MPS where all that is asked for fits; MPS with a share of the SMs for each where
issue slots or a pipe are short; MIG where memory bandwidth or L2 are, which MPS does not keep apart; else in turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from tachograph.config import Interference
from tachograph.interference.demand import Calibration, Demand, Gpu
from tachograph.interference.jobs.case import Advice, Case
from tachograph.interference.jobs.mixes import Members, issued_at_least, issuing
from tachograph.interference.jobs.ways import CONTEXT_BYTES, by_mps, by_shares, by_slices, in_turn
from tachograph.interference.jobs.words import MPS_OF_ONE_USER, PROFILE_THEM, percents, times
from tachograph.interference.outcome import Estimate
from tachograph.units import MI, text


def advise(
    estimate: Estimate,
    demands: Sequence[Demand],
    *,
    gpu: Gpu,
    settings: Interference,
    careful: Estimate | None = None,
    calibration: Calibration | None = None,
    members: Sequence[Members] | None = None,
    busy: Sequence[float] | None = None,
    same_user: bool = True,
    by_margin: bool = False,
    shared: Callable[[tuple[float, ...]], Estimate] | None = None,
) -> Advice:
    """Return how `demands` should share `gpu`, of which `estimate` tells what happens without anything kept apart.

    `careful`: the same were issue slots that nobody measured asked for, as much as `settings.assumed_issue`; a way is
    advised only where that holds, too. Left out, nothing is assumed. `members`: of each its kernels, with the share of
    its time, read carefully; left out, each is one. `busy`: share 0..1 of its time in which each does anything at all
    (1: always); they are taken to be independent, so that a member is slowed for the share of its time in which another
    is busy. `by_margin`: what is expected comes from profiled kernels of one at the least, so that where `estimate` is
    not safe, or issue slots are assumed, the upper value of each decides. `shared`: what happens under MPS with these
    shares of the SMs; without it every kernel is taken to spread evenly over fewer SMs.

    >>> from tachograph.interference.outcome import Outcome
    >>> asked = [Demand(name=name, cycles={"issue": 0.2}, dram=0.1, hbm_bytes=4e9) for name in "ab"]
    >>> alone = Estimate(tuple(Outcome(name, 1.0, 1.0, None) for name in "ab"), {"issue": 0.4}, 2.0, 1.0, True, ())
    >>> advise(alone, asked, gpu=Gpu(name="A100 SXM 40GB", hbm_bytes=40e9), settings=Interference()).way
    'mps'
    """
    shares = tuple(busy) if busy is not None else (1.0,) * len(demands)
    assumed = tuple(issuing(demand, settings.assumed_issue) for demand in demands)
    case = Case(
        estimate=estimate,
        careful=careful or estimate,
        demands=tuple(demands),
        assumed=assumed,
        members=tuple(members) if members is not None else tuple(((1.0, demand),) for demand in assumed),
        gpu=gpu,
        settings=settings,
        calibration=calibration or Calibration(),
        others=tuple(min(1.0, math.fsum(shares) - share) for share in shares),
        shared=shared,
        missing=tuple(dict.fromkeys((*estimate.unknown, *_unknown(demands, gpu, settings)))),
        by_margin=by_margin,
    )
    room, held = _memory(case)
    if not held:
        return Advice("no", None, (room,), case.missing, binding="hbm")
    passed = [room]
    for way in (by_mps, by_shares, by_slices, in_turn):
        found = way(case)
        if isinstance(found, Advice):
            cautions = (MPS_OF_ONE_USER,) if found.way in ("mps", "mps_share") and not same_user else ()
            return replace(found, why=(*passed, *found.why), cautions=cautions)
        passed += [found] if found else []
    last = f"No way is expected to keep all of them below {times(settings.max_slowdown)}."
    slowdowns, most = case.slowdowns, case.carefully
    return Advice("no", None, (*passed, last), case.missing, slowdowns, most, case.worst, case.binding)


def _unknown(demands: Sequence[Demand], gpu: Gpu, settings: Interference) -> list[str]:
    """What decides and nobody measured, a sentence each."""
    told = []
    blind = [demand for demand in demands if "issue" not in demand.cycles]
    if blind:
        whose = "" if len(blind) == len(demands) else f" of {' and '.join(demand.name for demand in blind)}"
        least = percents([issued_at_least(demand) for demand in blind])
        told.append(
            f"Issue slots{whose} were not measured: pipes take at least {least}, anything above is possible; "
            f"{text(settings.assumed_issue, 'fraction')} are counted for {'each' if len(blind) > 1 else 'it'}. "
            f"{PROFILE_THEM}"
        )
    if any(demand.dram is None for demand in demands):
        told.append("Memory bandwidth was not measured.")
    if any(demand.hbm_bytes is None for demand in demands) or gpu.hbm_bytes is None:
        told.append("How much memory they need together, or what the GPU has, is not known.")
    return told


def _memory(case: Case) -> tuple[str, bool]:
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
