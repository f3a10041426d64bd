"""The report on what could share a GPU, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tachograph.interference.jobs.ways import CONTEXT_BYTES
from tachograph.interference.jobs.words import MPS_OF_ONE_USER, PROFILE_THEM, WAYS, resource
from tachograph.report.colocate.judge import Proposal
from tachograph.report.colocate.kinds import LEFT_OUT, short_label
from tachograph.report.colocate.report import ColocateReport
from tachograph.report.colocate.said import BY_PROFILE, bandwidth, both_of, pair_called, profile_lines, way_called
from tachograph.report.colocate.text_matrix import matrices_lines
from tachograph.report.colocate.text_pair import explained_lines
from tachograph.report.columns import local_time
from tachograph.report.lines import Line, plain, wrapped
from tachograph.units import MI, plural, text

_ISSUE = 7  # column of a table: where issue slots are known from, of use where any kind was profiled
_NOTHING = "No two kinds of jobs are proposed to share a GPU."
_SAVED = (
    "saved: GPU-hours of both less those of one GPU until the slower one is through, if both are always there at the "
    "same time: the most there is. No kind is in two pairs; pairs of one user come first, nobody else has to agree."
)
_SLOWDOWN = (
    "measured: slowdown by what was measured, of the time in which a job uses the GPU, by the runs that ask most; both "
    "are taken to be busy at times that have nothing to do with each other. careful: what decides; the same were "
    "{assumed} of the issue slots asked for by each, and kernels on a part of the SMs as wide as the GPU{margin}; only "
    "where it holds a pair is proposed. at worst: always at the same time, and what was not measured is short."
)
_MARGIN = ", where a kind was profiled with the estimator's margin of {:g} unless all pairs of kernels are safe"
_NOT_LOOKED_AT = (
    "Not looked at: processors and memory of the host, PCIe, NVLink, network, and whether Slurm lets jobs share."
)
_UNKNOWN = f"None is safe before its kernels were profiled: DCGM tells neither issue slots nor caches. {PROFILE_THEM}"


def colocate_lines(report: ColocateReport, *, width: int = 100, top: int | None = None) -> list[Line]:
    """Return the report as styled lines (see lines.to_rich); `top`: at most so many pairs of each table."""
    if report.chosen:
        return [line for proposal in report.chosen for line in explained_lines(report, proposal, width)]
    if report.matrices:
        return list(matrices_lines(report.matrices, width))
    lines = [line for said in headlines(report) for line in wrapped(said, width, style="bold")]
    if report.missing:
        lines += wrapped(_missing(report), width)
    if report.proposals:
        lines += [plain(""), *_table(report.proposals[:top], width), plain("")]
        lines += _reasons(report.proposals[:top], width)
        if top is not None and len(report.proposals) > top:
            lines += [plain(f"{top:,} of {plural(len(report.proposals), 'pair')}", "dim")]
        lines += [plain(""), plain("Read it so", "bold"), *_notes(report, width)]
    if report.profiled:
        lines += [plain(""), plain("Profiled", "bold")]
        lines += [line for kind in report.profiled for line in profile_lines(kind, width)]
    if report.refused:
        lines += [plain(""), plain("Not proposed", "bold"), *_refused(report.refused[:top], width)]
        if top is not None and report.not_proposed > top:
            lines += [plain(f"{top:,} of {plural(report.not_proposed, 'pair')}", "dim")]
    return [*lines, *_left_out(report, width)]


def headlines(report: ColocateReport) -> tuple[str, str]:
    """Return the report in two sentences: what was looked at, what came of it."""
    if report.first is None or report.last is None:
        return "No job to look at.", _NOTHING
    begin, end = (local_time(moment, report.zone_name)[:10] for moment in (report.first, report.last))
    looked = (
        f"{begin} to {end}: {plural(report.jobs, 'job')} ({text(report.gpu_hours, 'h')} of GPU time), "
        f"{plural(report.kinds, 'kind')} of jobs that may share."
    )
    if not report.proposals:
        return looked, " ".join([_NOTHING, *_why_none(report)])
    pairs = plural(len(report.proposals), "pair")
    return looked, f"{pairs} on one GPU in place of two would save up to {text(report.saved_h, 'h')}."


def _why_none(report: ColocateReport) -> Iterator[str]:
    """Why there is no proposal, and what to try."""
    if report.short:
        short = ", ".join(f"{resource(name)} {count:,}" for name, count in report.short)
        judged = plural(sum(count for _, count in report.short), "pair")
        yield f"{judged} judged; what they have too little of: {short}. `--all` shows each with its numbers."
    elif not report.kinds and report.left_out:
        yield "None may share, for the reasons below."
    rare = next((jobs for reason, jobs, _ in report.left_out if reason == "few_runs"), 0)
    if rare:
        often = f"fewer than {report.least_runs} times under its name"
        yield f"{plural(rare, 'job')} left out, each of a kind that ran {often}: `--runs 1` takes them in."


def _missing(report: ColocateReport) -> str:
    return (
        f"Never measured: {', '.join(report.missing)}. Without them nothing can be said of any job: let DCGM, "
        "dcgm-exporter or LDMS record these fields (docs/counters.md)."
    )


def _table(proposals: Sequence[Proposal], width: int) -> list[Line]:
    headings = ["", "one", "other", "GPUs", "how", "measured", "careful"]
    headings += ["issue slots", "at worst", "memory", "short first", "saved"]
    rows = [
        [
            str(number),
            short_label(proposal.one),
            "itself" if proposal.one is proposal.other else short_label(proposal.other),
            f"{proposal.one.gpus} x {proposal.one.device.name}",
            way_called(proposal),
            both_of(proposal.advice.slowdowns),
            both_of(proposal.advice.careful),
            " / ".join(dict.fromkeys((proposal.one.issue, proposal.other.issue))),
            both_of(proposal.advice.worst),
            text(proposal.memory, "fraction"),
            resource(proposal.advice.binding) if proposal.advice.binding else text(None),
            text(proposal.saved_h, "h"),
        ]
        for number, proposal in enumerate(proposals, 1)
    ]
    for kept in (
        range(12),
        (0, 1, 2, 3, 4, 5, 6, 7, 8, 11),
        (0, 1, 2, 3, 4, 5, 6, 7, 11),
        (0, 1, 2, 3, 4, 6, 7, 11),
        (0, 1, 2, 3, 4, 6, 11),
        (0, 1, 2, 3, 6, 11),
    ):  # less of it where there is little room
        places = [n for n in kept if n != _ISSUE or any(proposal.kernels for proposal in proposals)]
        lines = _aligned([[cells[n] for n in places] for cells in (headings, *rows)])
        if max(len(line[0][0]) for line in lines) <= width:
            break
    return lines


def _reasons(proposals: Sequence[Proposal], width: int) -> Iterator[Line]:
    for number, proposal in enumerate(proposals, 1):
        own = "one user's own; " if proposal.same_user else ""
        said = f"{own}{_runs(proposal)}. {proposal.advice.why[-1]}"
        yield from wrapped(said, width, first=f"{number:>2} ", indent="   ")


def _runs(proposal: Proposal) -> str:
    one, other = proposal.one, proposal.other
    if one is other:
        more = f", up to {proposal.packed} at a time" if proposal.packed > 2 else ""
        return f"{plural(one.runs, 'run')}{more}"
    return f"{plural(one.runs, 'run')} and {plural(other.runs, 'run')}"


def _notes(report: ColocateReport, width: int) -> Iterator[Line]:
    margin = _MARGIN.format(report.settings.margin) if report.profiled else ""
    said = [_SAVED, _SLOWDOWN.format(assumed=text(report.settings.assumed_issue, "fraction"), margin=margin)]
    if any("assumed" in (proposal.one.issue, proposal.other.issue) for proposal in report.proposals):
        said.append(_UNKNOWN)
    if any(proposal.kernels for proposal in report.proposals):
        said.append(BY_PROFILE)
    said += [
        f"Memory: the highest use of any run, and {text(CONTEXT_BYTES / MI, 'MiB')} for a further context.",
        bandwidth(report),
        _NOT_LOOKED_AT,
    ]
    if any(proposal.advice.cautions for proposal in report.proposals):
        said.append(MPS_OF_ONE_USER)
    for sentence in said:
        yield from wrapped(sentence, width, first="  ", indent="    ")


def _refused(proposals: Sequence[Proposal], width: int) -> Iterator[Line]:
    for proposal in proposals:
        head = f"  {pair_called(proposal)}: "
        if proposal.taken:
            reason = f"{WAYS[proposal.advice.way]}, but one of them is in a pair above."
        else:
            reason = " ".join(proposal.advice.why)
        yield from wrapped(reason, width, first=head, indent="    ")


def _left_out(report: ColocateReport, width: int) -> list[Line]:
    lines = [plain("Left out", "dim")] if report.left_out else []
    for reason, jobs, hours in report.left_out:
        said = f"{plural(jobs, 'job')} ({text(hours, 'h')}): {LEFT_OUT[reason]}"
        lines += wrapped(said, width, style="dim", first="  ", indent="    ")
    if report.cut:
        lines += wrapped(
            f"Not compared: {plural(report.cut, 'kind')} of few GPU-hours, for there are too many.", width, style="dim"
        )
    return [plain(""), *lines] if lines else []


def _aligned(rows: Sequence[Sequence[str]]) -> list[Line]:
    """A heading and rows; the first and the last column, numbers, to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = (0, len(widths) - 1)

    def line(cells: Sequence[str]) -> str:
        placed = zip(cells, widths, range(len(widths)), strict=True)
        return "  ".join(f"{cell:>{wide}}" if n in right else f"{cell:<{wide}}" for cell, wide, n in placed).rstrip()

    heading, *body = map(line, rows)
    return [plain(heading, "bold"), *map(plain, body)]
