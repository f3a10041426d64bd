"""Phrases that the table of pairs and the page of one pair share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tachograph.interference.demand import Demand
from tachograph.interference.jobs.words import WAYS, resource, times
from tachograph.report.colocate.judge import Proposal
from tachograph.report.colocate.kinds import Kind
from tachograph.report.colocate.report import ColocateReport
from tachograph.report.lines import Line, wrapped
from tachograph.units import plural, printable, text

BY_PROFILE = (
    "*: by profile, kernel by kernel, each meeting those of the other for the share of their times. Nsight Compute "
    "runs one kernel at a time, at locked clocks, with caches emptied before: what kernels of one job take from each "
    "other is not in it, and all shares are of that clock."
)


def pair_called(proposal: Proposal) -> str:
    """Return what a pair is called."""
    other = "itself" if proposal.one is proposal.other else printable(proposal.other.label)
    return f"{printable(proposal.one.label)} with {other}"


def way_called(proposal: Proposal) -> str:
    """Return what its way of sharing is called, with the shares or slices."""
    advice = proposal.advice
    if advice.shares is not None:
        return f"MPS {' / '.join(text(share, 'fraction') for share in advice.shares)}"
    if advice.profiles is not None:
        return f"MIG {' / '.join(advice.profiles)}"
    return WAYS[advice.way]


def both_of(numbers: Sequence[float | None]) -> str:
    """Return slowdowns of both; one number where they are the same."""
    return " / ".join(dict.fromkeys(map(times, numbers))) if numbers else text(None)


def pipes_said(demand: Demand) -> str:
    """Return what is asked of each pipe, of those that are asked for anything, to be followed by something else."""
    return "".join(
        f"{resource(pipe)} {text(share, 'fraction')}, " for pipe, share in demand.cycles.items() if share >= 0.01
    )


def bandwidth(report: ColocateReport, only: str | None = None) -> str:
    """Return which bandwidth counts as all there is; `only`: on this model."""
    models = ", ".join(
        f"{text(share, 'fraction')} of the peak on {model}"
        for model, share in report.achievable
        if only in (None, model)
    )
    origin = report.calibration.measured_on or "another model"
    return (
        f"Bandwidth that can be achieved: {models}; as calibrated ({report.calibration.source}, {origin}), or the "
        "highest sample of these jobs where that is more."
    )


def profile_lines(kind: Kind, width: int) -> Iterator[Line]:
    """Yield of which reports a kind is known, its kernels of most time, and what does not fit the lake."""
    profile = kind.profile
    if profile is None:
        return
    mean, pipes = profile.mix.mean, pipes_said(profile.mix.mean)
    first = sorted(profile.mix.members, key=lambda member: -member[0])[:3]
    kernels = ", ".join(f"{text(share, 'fraction')} {printable(one.name)}" for share, one in first)
    said = (
        f"{printable(kind.label)}: by {printable(', '.join(profile.reports))}: {plural(profile.kernels, 'kernel')}, "
        f"launched {plural(profile.launches, 'time')}; of their time {kernels}; on average "
        f"{pipes}memory bandwidth {text(mean.dram, 'fraction')} of the peak."
    )
    yield from wrapped(said, width, first="  ", indent="    ")
    for apart in profile.apart:
        yield from wrapped(f"{printable(apart)}.", width, first="  ! ", indent="    ")
