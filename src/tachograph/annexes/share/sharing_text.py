"""Report on co-location as text: table of pairs, one pair explained, matrix of groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tachograph.annexes.share.advice import (
    CONTEXT_BYTES,
    MPS_OF_ONE_USER,
    PROFILE_THEM,
    SHARING_MODES,
    resource,
    times,
)
from tachograph.annexes.share.colocation import ColocateReport
from tachograph.annexes.share.demand import Demand
from tachograph.annexes.share.job_groups import LEFT_OUT, JobGroup, short_label
from tachograph.annexes.share.mixes import MixOutcome
from tachograph.annexes.share.proposals import GroupMatrix, SharingProposal
from tachograph.catalog.columns import local_time
from tachograph.catalog.units import MI, plural, printable, text
from tachograph.report.lines import Line, plain, wrapped
from tachograph.report.tables import TextColumn, fit_table

BY_PROFILE = (
    "*: by profile, kernel by kernel, each meeting those of the other for the share of their times. Nsight Compute "
    "runs one kernel at a time, at locked clocks, with caches emptied before: what kernels of one job take from each "
    "other is not in it, and all shares are of that clock."
)


def pair_called(proposal: SharingProposal) -> str:
    """Return the name of a pair."""
    other = "itself" if proposal.one is proposal.other else printable(proposal.other.label)
    return f"{printable(proposal.one.label)} with {other}"


def way_called(proposal: SharingProposal) -> str:
    """Return the name of its sharing mode, with the shares or slices."""
    advice = proposal.advice
    if advice.shares is not None:
        return f"MPS {' / '.join(text(share, 'fraction') for share in advice.shares)}"
    if advice.profiles is not None:
        return f"MIG {' / '.join(advice.profiles)}"
    return SHARING_MODES[advice.mode]


def both_of(numbers: Sequence[float | None]) -> str:
    """Return slowdowns of both; one number if equal."""
    return " / ".join(dict.fromkeys(map(times, numbers))) if numbers else text(None)


def pipes_said(demand: Demand) -> str:
    """Return the demand of each pipe that is used, to be followed by other parts."""
    return "".join(
        f"{resource(pipe)} {text(share, 'fraction')}, "
        for pipe, share in demand.cycles.items()
        if share >= 0.01
    )


def bandwidth(report: ColocateReport, only: str | None = None) -> str:
    """Return the bandwidth that counts as 100 %; `only`: on this model."""
    models = ", ".join(
        f"{text(share, 'fraction')} of the peak on {model}"
        for model, share in report.achievable
        if only in (None, model)
    )
    origin = report.calibration.measured_on or "another model"
    return (
        f"Achievable bandwidth: {models}; as calibrated "
        f"({report.calibration.source}, {origin}), or the "
        "highest sample of these jobs if that is more."
    )


def profile_lines(kind: JobGroup, width: int) -> Iterator[Line]:
    """Yield the reports behind a group, its longest kernels, conflicts with the lake."""
    profile = kind.profile
    if profile is None:
        return
    mean, pipes = profile.mix.mean, pipes_said(profile.mix.mean)
    first = sorted(profile.mix.members, key=lambda member: -member[0])[:3]
    kernels = ", ".join(f"{text(share, 'fraction')} {printable(one.name)}" for share, one in first)
    message = (
        f"{printable(kind.label)}: by {printable(', '.join(profile.reports))}: "
        f"{plural(profile.kernels, 'kernel')}, "
        f"launched {plural(profile.launches, 'time')}; of their time {kernels}; on average "
        f"{pipes}memory bandwidth {text(mean.dram, 'fraction')} of the peak."
    )
    yield from wrapped(message, width, first="  ", indent="    ")
    for apart in profile.apart:
        yield from wrapped(f"{printable(apart)}.", width, first="  ! ", indent="    ")


def explained_lines(
    report: ColocateReport, proposal: SharingProposal, width: int
) -> Iterator[Line]:
    """Yield everything about a pair."""
    one, other, advice = proposal.one, proposal.other, proposal.advice
    yield plain(
        f"{pair_called(proposal)}, {one.gpus} x {one.device.name}: {way_called(proposal)}", "bold"
    )
    for kind in (one,) if one is other else (one, other):
        yield from wrapped(_demand_sentence(kind), width, first="  ", indent="    ")
        yield from profile_lines(kind, width) if kind.profile else ()
    measured = one.issue == other.issue == "profile"
    yield plain("Evidence", "bold")
    for sentence in advice.why:
        yield from wrapped(sentence, width, first="  ", indent="    ")
    if advice.worst:
        more = "" if measured else ", and an unmeasured resource is the bottleneck"
        message = f"Worst case {both_of(advice.worst)}: always busy at the same time{more}."
        yield from wrapped(message, width, first="  ", indent="    ")
    if proposal.kernels is not None:
        yield from wrapped(
            _by_kernels(proposal.kernels, assumed=not measured), width, first="  ", indent="    "
        )
    if proposal.runs is not None and proposal.runs.worst is not None:
        mean = both_of(proposal.runs.slowdowns)
        message = (
            f"Over all pairs of their runs, while both are busy, conservative: {mean} on average, "
        )
        message += f"{times(proposal.runs.worst[0])} in the worst pair."
        yield from wrapped(message, width, first="  ", indent="    ")
    if proposal.saved_h:
        saved = (
            f"Saved: up to {text(proposal.saved_h, 'h')} of GPU time, if both always run "
            "at the same time."
        )
        yield from wrapped(saved, width, first="  ", indent="    ")
    notes = (*advice.unknown, *advice.cautions, *((BY_PROFILE,) if proposal.kernels else ()))
    if notes:
        yield plain("Unknown, and cautions", "bold")
        for sentence in notes:
            yield from wrapped(f"{sentence.removesuffix('.')}.", width, first="  ", indent="    ")
    yield from wrapped(bandwidth(report, one.device.name), width, style="dim")


def _demand_sentence(kind: JobGroup) -> str:
    """Demand of a job group: that of its most demanding run."""
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
        + (
            f" A run is at most {text(kind.spread, 'fraction')} away from their mean."
            if kind.runs > 1
            else ""
        )
    )


def _by_kernels(found: MixOutcome, *, assumed: bool) -> str:
    """Expected results by kernel, and the worst kernel of each side."""
    worst_pairs = (member.worst_pair for member in found.members)
    worst = [
        f"{printable(name)} {times(slowdown)} beside {printable(beside)}"
        for slowdown, name, beside in dict.fromkeys(filter(None, worst_pairs))
    ]
    assumption = ", issue slots assumed" if assumed else ""
    return (
        f"Kernel by kernel under MPS, all SMs for both, while both are busy{assumption}: "
        f"{both_of(found.slowdowns)} on average; at worst {'; '.join(worst)}."
    )


MOST_PRINTED = 20  # groups of a printed matrix, those with most GPU-hours
_CELL = 6
_READ = (
    "Slowdown of the row beside the column under MPS, while the row uses the GPU, unmeasured "
    "resources included; mem: not enough memory for both. *: from a profile. `--csv` and `--json` "
    "have all pairs, and the bottleneck."
)


def matrices_lines(matrices: Sequence[GroupMatrix], width: int) -> Iterator[Line]:
    """Yield each matrix, of the kinds of most GPU-hours, as many as fit, and how to read them."""
    for of_all in matrices:
        yield from _matrix_lines(of_all, width)
        yield plain("")
    yield from wrapped(_READ, width, style="dim")


def _matrix_lines(of_all: GroupMatrix, width: int) -> Iterator[Line]:
    names = [short_label(kind) for kind in of_all.kinds]
    wide = max(map(len, names[:MOST_PRINTED]))
    count = min(len(names), MOST_PRINTED, max(1, (width - wide - 3) // _CELL))
    first = of_all.kinds[0]
    yield plain(f"{first.gpus} x {first.device.name}: {plural(len(names), 'job group')}", "bold")
    yield plain(
        " " * (wide + 3) + "".join(f"{number:>{_CELL}}" for number in range(1, count + 1)), "bold"
    )
    for row in range(count):
        cells = "".join(f"{_cell(of_all, row, column):>{_CELL}}" for column in range(count))
        yield plain(f"{row + 1:>2} {names[row]:<{wide}}{cells}")
    if count < len(names):
        yield plain(f"{count} of {plural(len(names), 'job group')}, those of most GPU-hours", "dim")


def _cell(of_all: GroupMatrix, row: int, column: int) -> str:
    if of_all.full[row, column]:
        return "mem"
    slowdown = float(of_all.conservative[row, column])
    return text(None) if slowdown != slowdown else f"{slowdown:.2f}"


_NOTHING = "No two jobs are proposed to share a GPU."
_SAVED = (
    "saved: GPU-hours of both less those of one GPU until the slower one ends, if both always run "
    "at the same time: an upper bound. No group is in two pairs; pairs of one user are chosen "
    "first, as no other user has to agree."
)
_SLOWDOWN = (
    "measured: slowdown from measured counters of the most demanding runs, while a job uses the "
    "GPU; both are assumed to be busy at independent times. conservative: decides which pairs are "
    "proposed; assumes {assumed} of the issue slots for each, and kernels on a part of the SMs as "
    "wide as the GPU{by_worst}. worst case: both always busy at the same time, and an unmeasured "
    "resource is the bottleneck."
)
_BY_WORST = "; for profiled groups the worst case, unless all pairs of kernels are safe"
_NOT_LOOKED_AT = (
    "Not considered: processors and memory of the host, PCIe, NVLink, network, and whether "
    "Slurm lets jobs share."
)
_UNKNOWN = (
    "No pair is safe until its kernels are profiled: DCGM reports neither issue slots nor "
    f"caches. {PROFILE_THEM}"
)


def colocate_lines(
    report: ColocateReport, *, width: int = 100, top: int | None = None
) -> list[Line]:
    """Return the report as styled lines (see lines.to_rich); `top`: at most so many pairs of
    each table.
    """
    lines: list[Line] = []
    if report.chosen:
        for proposal in report.chosen:
            lines += explained_lines(report, proposal, width)
        return lines
    if report.matrices:
        return list(matrices_lines(report.matrices, width))
    for message in headlines(report):
        lines += wrapped(message, width, style="bold")
    if report.missing:
        lines += wrapped(missing_sentence(report), width)
    if report.proposals:
        lines += [plain(""), *_table(report.proposals[:top], width), plain("")]
        lines += reason_lines(report.proposals[:top], width)
        if top is not None and len(report.proposals) > top:
            lines += [plain(f"{top:,} of {plural(len(report.proposals), 'pair')}", "dim")]
        lines += [plain(""), plain("Notes", "bold"), *note_lines(report, width)]
    if report.profiled:
        lines += [plain(""), plain("Profiled", "bold")]
        for group in report.profiled:
            lines += profile_lines(group, width)
    if report.refused:
        lines += [plain(""), plain("Not proposed", "bold"), *_refused(report.refused[:top], width)]
        if top is not None and report.not_proposed > top:
            lines += [plain(f"{top:,} of {plural(report.not_proposed, 'pair')}", "dim")]
    return [*lines, *left_out_lines(report, width)]


def headlines(report: ColocateReport, *, by_form: bool = False) -> tuple[str, str]:
    """Return two sentences, jobs and result; by_form: name form fields, not options."""
    if report.first is None or report.last is None:
        return "No jobs.", _NOTHING
    begin, end = (
        local_time(moment, report.zone_name)[:10] for moment in (report.first, report.last)
    )
    jobs = (
        f"{begin} to {end}: {plural(report.jobs, 'job')} ({text(report.gpu_hours, 'h')} of GPU "
        "time), "
        f"{plural(report.kinds, 'job group')} considered."
    )
    if not report.proposals:
        return jobs, " ".join([_NOTHING, *_why_none(report, by_form=by_form)])
    pairs = plural(len(report.proposals), "pair")
    return jobs, f"{pairs} on one GPU in place of two would save up to {text(report.saved_h, 'h')}."


def _why_none(report: ColocateReport, *, by_form: bool) -> Iterator[str]:
    """Why there is no proposal, and what to try."""
    if report.short:
        short = ", ".join(f"{resource(name)} {count:,}" for name, count in report.short)
        judged = plural(sum(count for _, count in report.short), "pair")
        yield f"{judged} estimated, none of them good enough; limited by: {short}." + (
            "" if by_form else " `--all` shows each with its numbers."
        )
    elif not report.kinds and report.left_out:
        yield "None may share, for the reasons below."
    rare = next((jobs for reason, jobs, _ in report.left_out if reason == "few_runs"), 0)
    if rare:
        often = f"fewer than {report.least_runs} times under its name"
        how = 'set "Runs of a group, at least" to 1' if by_form else "use `--runs 1`"
        yield (
            f"{plural(rare, 'job')} not considered, each of a group that ran {often}: to include "
            f"them, {how}."
        )


def missing_sentence(report: ColocateReport) -> str:
    """Return which counters no job has."""
    return (
        f"Never measured: {', '.join(report.missing)}. Without them every job is undetermined: "
        "have DCGM, "
        "dcgm-exporter or LDMS record these fields (docs/counters.md)."
    )


@dataclass(frozen=True, slots=True)
class ProposalColumn:
    """A column of the pairs: title, cells; `hide`: higher values are hidden first."""

    title: str
    cell: Callable[[SharingProposal], str]
    right: bool = False
    hide: int | None = None


def proposal_columns(proposals: Sequence[SharingProposal]) -> list[ProposalColumn]:
    """Return the columns; issue slots only if a group was profiled."""
    issue = ProposalColumn(
        "issue slots",
        lambda pair: " / ".join(dict.fromkeys((pair.one.issue, pair.other.issue))),
        hide=5,
    )
    return [
        ProposalColumn("one", lambda pair: short_label(pair.one)),
        ProposalColumn(
            "other", lambda pair: "itself" if pair.one is pair.other else short_label(pair.other)
        ),
        ProposalColumn("GPUs", lambda pair: f"{pair.one.gpus} x {pair.one.device.name}", hide=6),
        ProposalColumn("mode", way_called, hide=7),
        ProposalColumn("measured", lambda pair: both_of(pair.advice.slowdowns), hide=4),
        ProposalColumn("conservative", lambda pair: both_of(pair.advice.conservative)),
        *([issue] if any(proposal.kernels for proposal in proposals) else []),
        ProposalColumn("worst case", lambda pair: both_of(pair.advice.worst), hide=3),
        ProposalColumn("memory", lambda pair: text(pair.memory, "fraction"), hide=2),
        ProposalColumn(
            "bottleneck",
            lambda pair: resource(pair.advice.binding) if pair.advice.binding else text(None),
            hide=1,
        ),
        ProposalColumn("saved", lambda pair: text(pair.saved_h, "h"), right=True),
    ]


def _table(proposals: Sequence[SharingProposal], width: int) -> list[Line]:
    """The proposed pairs."""
    columns = [
        TextColumn("", [str(number) for number, _ in enumerate(proposals, 1)], right=True),
        *(
            TextColumn(
                column.title,
                list(map(column.cell, proposals)),
                right=column.right,
                hide=column.hide,
            )
            for column in proposal_columns(proposals)
        ),
    ]
    return fit_table(columns, width).with_note(width=width)


def reason_lines(proposals: Sequence[SharingProposal], width: int) -> Iterator[Line]:
    """Yield why each pair is proposed."""
    for number, proposal in enumerate(proposals, 1):
        own = "both of one user; " if proposal.same_user else ""
        message = f"{own}{_runs(proposal)}. {proposal.advice.why[-1]}"
        yield from wrapped(message, width, first=f"Pair {number}: ", indent="  ")


def _runs(proposal: SharingProposal) -> str:
    one, other = proposal.one, proposal.other
    if one is other:
        return plural(one.runs, "run")
    return f"{plural(one.runs, 'run')} and {plural(other.runs, 'run')}"


def note_lines(report: ColocateReport, width: int) -> Iterator[Line]:
    """Yield notes: meaning of the columns, ignored effects."""
    by_worst = _BY_WORST if report.profiled else ""
    phrases = [
        _SAVED,
        _SLOWDOWN.format(
            assumed=text(report.settings.assumed_issue, "fraction"), by_worst=by_worst
        ),
    ]
    if any(
        "assumed" in (proposal.one.issue, proposal.other.issue) for proposal in report.proposals
    ):
        phrases.append(_UNKNOWN)
    if any(proposal.kernels for proposal in report.proposals):
        phrases.append(BY_PROFILE)
    phrases += [
        (
            f"Memory: the highest use of any run, and {text(CONTEXT_BYTES / MI, 'MiB')} for a "
            "further context."
        ),
        bandwidth(report),
        _NOT_LOOKED_AT,
    ]
    if any(proposal.advice.cautions for proposal in report.proposals):
        phrases.append(MPS_OF_ONE_USER)
    for sentence in phrases:
        yield from wrapped(sentence, width, first="  ", indent="    ")


def _refused(proposals: Sequence[SharingProposal], width: int) -> Iterator[Line]:
    for proposal in proposals:
        head = f"  {pair_called(proposal)}: "
        if proposal.taken:
            reason = f"{SHARING_MODES[proposal.advice.mode]}, but one of them is in a pair above."
        else:
            reason = " ".join(proposal.advice.why)
        yield from wrapped(reason, width, first=head, indent="    ")


def left_out_lines(report: ColocateReport, width: int) -> list[Line]:
    """Return which jobs are left out, and why."""
    lines = [plain("Left out", "dim")] if report.left_out else []
    for reason, jobs, hours in report.left_out:
        message = f"{plural(jobs, 'job')} ({text(hours, 'h')}): {LEFT_OUT[reason]}"
        lines += wrapped(message, width, style="dim", first="  ", indent="    ")
    if report.cut:
        lines += wrapped(
            (
                f"Not compared: {plural(report.cut, 'job group')} with few GPU-hours (too many "
                "groups)."
            ),
            width,
            style="dim",
        )
    return [plain(""), *lines] if lines else []
