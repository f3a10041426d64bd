"""One pair of kinds explained, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from tachograph.interference.jobs.together import Together
from tachograph.interference.jobs.words import times
from tachograph.report.colocate.judge import Proposal
from tachograph.report.colocate.kinds import Kind
from tachograph.report.colocate.report import ColocateReport
from tachograph.report.colocate.said import (
    BY_PROFILE,
    bandwidth,
    both_of,
    pair_called,
    pipes_said,
    profile_lines,
    way_called,
)
from tachograph.report.lines import Line, plain, wrapped
from tachograph.units import MI, plural, printable, text


def explained_lines(report: ColocateReport, proposal: Proposal, width: int) -> Iterator[Line]:
    """Yield all that is to be said of a pair."""
    one, other, advice = proposal.one, proposal.other, proposal.advice
    yield plain(f"{pair_called(proposal)}, {one.gpus} x {one.device.name}: {way_called(proposal)}", "bold")
    for kind in (one,) if one is other else (one, other):
        yield from wrapped(_asks(kind), width, first="  ", indent="    ")
        yield from profile_lines(kind, width) if kind.profile else ()
    measured = one.issue == other.issue == "profile"
    yield plain("Why", "bold")
    for sentence in advice.why:
        yield from wrapped(sentence, width, first="  ", indent="    ")
    if advice.worst:
        more = "" if measured else ", and what was not measured is short"
        said = f"At worst {both_of(advice.worst)}: always busy at the same time{more}."
        yield from wrapped(said, width, first="  ", indent="    ")
    if proposal.kernels is not None:
        yield from wrapped(_by_kernels(proposal.kernels, assumed=not measured), width, first="  ", indent="    ")
    if proposal.runs is not None and proposal.runs.worst is not None:
        mean = both_of((proposal.runs.slowdown, proposal.runs.other_slowdown))
        said = f"Over all pairs of their runs, while both are busy, read carefully: {mean} on average, "
        said += f"{times(proposal.runs.worst[0])} in the worst pair."
        yield from wrapped(said, width, first="  ", indent="    ")
    if proposal.saved_h:
        saved = f"Saved: up to {text(proposal.saved_h, 'h')} of GPU time, were they always there at the same time."
        yield from wrapped(saved, width, first="  ", indent="    ")
    told = (*advice.unknown, *advice.cautions, *((BY_PROFILE,) if proposal.kernels else ()))
    if told:
        yield plain("Not known, and to be minded", "bold")
        for sentence in told:
            yield from wrapped(f"{sentence.removesuffix('.')}.", width, first="  ", indent="    ")
    yield from wrapped(bandwidth(report, one.device.name), width, style="dim")


def _asks(kind: Kind) -> str:
    """What a kind asks: the run that asks most."""
    most = kind.mix.highest
    memory = None if most.hbm_bytes is None else most.hbm_bytes / MI
    parts = [
        f"busy {text(kind.busy, 'fraction')} of the time; while busy",
        f"SMs {text(most.sm_share, 'fraction')},",
        f"{pipes_said(most)}memory bandwidth {text(most.dram, 'fraction')} of the peak;",
        f"memory {text(memory, 'MiB')}",
    ]
    return (
        f"{printable(kind.label)}: {plural(kind.runs, 'run')}, {text(kind.gpu_hours, 'h')}; "
        f"at the most {' '.join(parts)}."
        + (f" A run is at most {text(kind.spread, 'fraction')} away from their mean." if kind.runs > 1 else "")
    )


def _by_kernels(found: Together, *, assumed: bool) -> str:
    """What is expected kernel by kernel, and of each side the kernel that is worst off."""
    worst = [
        f"{printable(name)} {times(slowdown)} beside {printable(beside)}"
        for slowdown, name, beside in dict.fromkeys(one for one in found.worst_of if one)
    ]
    carefully = ", issue slots assumed" if assumed else ""
    return (
        f"Kernel by kernel under MPS, all SMs for both, while both are busy{carefully}: "
        f"{both_of(found.slowdowns)} on average; at worst {'; '.join(worst)}."
    )
