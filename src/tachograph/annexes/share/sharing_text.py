"""Report on co-location as text: tables of pairs, one pair explained, matrix of groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tachograph.annexes.share.advice import PROFILE_THEM, resource, spans, times
from tachograph.annexes.share.colocation import ColocateReport, GroupMatrix
from tachograph.annexes.share.job_groups import LEFT_OUT, JobGroup, short_label
from tachograph.annexes.share.proposals import CONTEXT_BYTES, SharingProposal
from tachograph.annexes.share.sharing_setup import cautions, probation, setup_steps
from tachograph.catalog.columns import local_time
from tachograph.catalog.units import MI, plural, printable, text
from tachograph.report.lines import Line, plain, wrapped
from tachograph.report.tables import TextColumn, fit_table

MOST_PRINTED = 20  # groups of a printed matrix, those with most GPU-hours
_CELL = 6
_NOT_CONSIDERED = (
    "Not considered: processors and memory of the host, PCIe, NVLink, network, and whether "
    "Slurm lets jobs share."
)
_SLOWDOWN = (
    "slowdown: both ends, of each while it uses the GPU. Without profiles of both, kernels are "
    "unknown: the upper end holds if each waits for the kernels of the other, for the share of "
    f"time in which that uses the GPU. To know, {PROFILE_THEM}."
)
_FREES = (
    "frees: GPU-hours at the upper and at the lower end, if both always run at the same time. No "
    "group is in two pairs; pairs of one user come first, as no other user has to agree."
)
_EXPLAIN = (
    "`tachograph share colocate --pair ONE OTHER`: every mode of a pair, what to type, and a "
    "probation run."
)
_BY_PROFILE = (
    "*: by a profile of Nsight Compute, which runs one kernel at a time, at locked clocks, with "
    "caches emptied before. Each kernel meets those of the other job for the share of their times."
)
_MATRIX = (
    "Upper end of the slowdown of the row beside the column under MPS, while the row uses the GPU; "
    "mem: not enough memory for both. *: from a profile. `--csv` and `--json` have both ends, all "
    "pairs, and what slows them."
)


def pair_called(proposal: SharingProposal) -> str:
    """Return the name of a pair."""
    other = "itself" if proposal.one is proposal.other else printable(proposal.other.label)
    return f"{printable(proposal.one.label)} with {other}"


def answer(proposal: SharingProposal) -> str:
    """Return what to do with a pair: the mode, that it is a trial, or that it must not share."""
    if proposal.best is None or proposal.verdict == "no":
        return "do not share"
    return f"{'try ' if proposal.verdict == 'try' else ''}{proposal.best.label}"


def profile_lines(kind: JobGroup, width: int) -> Iterator[Line]:
    """Yield the reports behind a group, its longest kernels, conflicts with the lake."""
    profile = kind.profile
    if profile is None:
        return
    longest = sorted(profile.mix.members, key=lambda member: -member[0])[:3]
    kernels = [f"{text(share, 'fraction')} {printable(kernel.name)}" for share, kernel in longest]
    message = (
        f"{printable(kind.label)}: by {printable(', '.join(profile.reports))}: "
        f"{plural(profile.kernels, 'kernel')}, launched {plural(profile.launches, 'time')}; "
        f"of their time {', '.join(kernels)}."
    )
    yield from wrapped(message, width, first="  ", indent="    ")
    for difference in profile.apart:
        yield from wrapped(f"{printable(difference)}.", width, first="  ! ", indent="    ")


def about_lines(report: ColocateReport, proposal: SharingProposal, width: int) -> Iterator[Line]:
    """Yield the answer, the demand of both groups, and their memory."""
    one, other = proposal.one, proposal.other
    heading = f"{pair_called(proposal)}, {one.gpus} x {one.device.name}: {answer(proposal)}"
    yield from wrapped(heading, width, style="bold")
    for kind in (one,) if one is other else (one, other):
        yield from wrapped(_demand_sentence(kind), width, first="  ", indent="    ")
        yield from profile_lines(kind, width)
    yield from wrapped(_memory_sentence(report, proposal), width, first="  ", indent="    ")


def explained_lines(
    report: ColocateReport, proposal: SharingProposal, width: int
) -> Iterator[Line]:
    """Yield everything about a pair: demands, modes, what to type, the probation run."""
    yield from about_lines(report, proposal, width)
    if proposal.options:
        yield plain("")
        yield from fit_table(mode_columns(proposal), width).lines
        yield plain("")
    for sentence in why(report, proposal):
        yield from wrapped(sentence, width, first="  ", indent="    ")
    for step in setup_steps(proposal, report.settings):
        yield from wrapped(step.title, width, style="bold")
        for line in step.lines.splitlines():
            yield plain(f"    {line}")
    for title, sentences in (
        ("Probation", probation(proposal, report.settings)),
        ("Cautions", cautions(proposal)),
    ):
        if sentences:
            yield plain(title, "bold")
        for sentence in sentences:
            yield from wrapped(sentence, width, first="  ", indent="    ")


def _demand_sentence(kind: JobGroup) -> str:
    """Demand of a job group: that of its most demanding run."""
    highest = kind.mix.highest
    shares = [f"SMs {text(highest.sm_share, 'fraction')}"]
    for pipe, share in highest.cycles.items():
        if share >= 0.01:
            shares.append(f"{resource(pipe)} {text(share, 'fraction')}")
    shares.append(f"memory bandwidth {text(highest.dram, 'fraction')} of the peak")
    memory = None if highest.hbm_bytes is None else highest.hbm_bytes / MI
    return (
        f"{printable(kind.label)}: {plural(kind.runs, 'run')}, {text(kind.gpu_hours, 'h')}; uses "
        f"the GPU {text(kind.busy, 'fraction')} of the time, then at most {', '.join(shares)}; "
        f"memory {text(memory, 'MiB')}."
    )


def _memory_sentence(report: ColocateReport, proposal: SharingProposal) -> str:
    allowed = report.settings.safe_hbm
    verdict = "within" if proposal.memory <= allowed else "more than"
    return (
        f"Memory: both at their peaks and {text(CONTEXT_BYTES / MI, 'MiB')} for a further context "
        f"are {text(proposal.memory, 'fraction')} of {text(min(proposal.one.hbm_mib, proposal.other.hbm_mib), 'MiB')}, "
        f"{verdict} the {text(allowed, 'fraction')} allowed."
    )


def mode_columns(proposal: SharingProposal) -> list[TextColumn]:
    """Return the columns of a table of all modes, the best first."""
    options = proposal.options
    slowed = [resource(option.binding) if option.binding else text(None) for option in options]
    columns = [
        TextColumn("mode", [option.label for option in options]),
        TextColumn("slowdown of each", [spans(option.low, option.high) for option in options]),
        TextColumn("slowed by", slowed, hide=1),
    ]
    if proposal.profiled:
        expected = [spans(option.slowdowns, option.slowdowns) for option in options]
        columns.insert(1, TextColumn("expected", expected))
    return columns


def why(report: ColocateReport, proposal: SharingProposal) -> Iterator[str]:
    """Yield the reasons of the answer, a sentence each."""
    limit = times(report.settings.max_slowdown)
    best = proposal.best
    if best is None:
        yield "No mode: memory does not hold both."
        return
    if not proposal.profiled:
        yield (
            "Without profiles of both, each is slowed for the share of time in which the other "
            "uses the GPU. Kernels that fill it wait for each other, which is the upper end; "
            f"others lose less. To know, {PROFILE_THEM}."
        )
    if proposal.worst is not None:
        kernel, partner, slowdown = proposal.worst
        yield f"At worst: {printable(kernel)} {times(slowdown)} beside {printable(partner)}."
    if proposal.verdict == "share":
        yield (
            f"{best.label}: the most GPU-hours freed of the modes with both upper ends within "
            f"{limit}, then the least change. It frees {text(proposal.saved_h, 'h')}, if both "
            "always run at the same time."
        )
        if proposal.safe:
            yield f"Safe: the kernels of both are known, and both upper ends are below {limit}."
    elif proposal.verdict == "try":
        yield (
            f"No mode surely stays within {limit}. {best.label} may, and then frees up to "
            f"{text(proposal.saved_most_h, 'h')}: try it once."
        )
    else:
        yield f"No mode is expected to keep both within {limit}."


def matrices_lines(matrices: Sequence[GroupMatrix], width: int) -> Iterator[Line]:
    """Yield each matrix, of the kinds of most GPU-hours, as many as fit, and how to read them."""
    for of_all in matrices:
        names = [short_label(kind) for kind in of_all.kinds]
        wide = max(map(len, names[:MOST_PRINTED]))
        count = min(len(names), MOST_PRINTED, max(1, (width - wide - 3) // _CELL))
        first = of_all.kinds[0]
        groups = plural(len(names), "job group")
        numbers = "".join(f"{number:>{_CELL}}" for number in range(1, count + 1))
        yield plain(f"{first.gpus} x {first.device.name}: {groups}", "bold")
        yield plain(" " * (wide + 3) + numbers, "bold")
        for row in range(count):
            cells = "".join(f"{_cell(of_all, row, column):>{_CELL}}" for column in range(count))
            yield plain(f"{row + 1:>2} {names[row]:<{wide}}{cells}")
        if count < len(names):
            yield plain(f"{count} of {groups}, those of most GPU-hours", "dim")
        yield plain("")
    yield from wrapped(_MATRIX, width, style="dim")


def _cell(of_all: GroupMatrix, row: int, column: int) -> str:
    return f"{of_all.bounds.high[row, column]:.2f}" if of_all.fits[row, column] else "mem"


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
    for title, pairs in tables(report):
        lines += [plain(""), plain(title, "bold"), *_table(pairs[:top], width)]
        if top is not None and len(pairs) > top:
            lines += [plain(f"{top:,} of {plural(len(pairs), 'pair')}", "dim")]
    if report.proposals or report.trials:
        lines += [plain(""), plain("Notes", "bold"), *note_lines(report, width)]
    if report.profiled:
        lines += [plain(""), plain("Profiled", "bold")]
        for group in report.profiled:
            lines += profile_lines(group, width)
    if report.refused:
        lines += [plain(""), plain("Not proposed", "bold"), *_refused(report, top, width)]
    return [*lines, *left_out_lines(report, width)]


def tables(report: ColocateReport) -> list[tuple[str, tuple[SharingProposal, ...]]]:
    """Return the tables of pairs with their titles, without empty ones."""
    titled = [("Proposed", report.proposals), ("Worth a try, or a profile", report.trials)]
    return [(title, pairs) for title, pairs in titled if pairs]


def headlines(report: ColocateReport, *, by_form: bool = False) -> tuple[str, str]:
    """Return two sentences, jobs and result; by_form: name form fields, not options."""
    if report.first is None or report.last is None:
        no_jobs = "No jobs match: widen the filters." if by_form else "No jobs."
        return no_jobs, "No two jobs are proposed to share a GPU."
    begin, end = (
        local_time(moment, report.zone_name)[:10] for moment in (report.first, report.last)
    )
    jobs = (
        f"{begin} to {end}: {plural(report.jobs, 'job')} ({text(report.gpu_hours, 'h')} of GPU "
        f"time), {plural(report.kinds, 'job group')} considered."
    )
    limit = times(report.settings.max_slowdown)
    result = [f"No pair surely stays within {limit} on one GPU."]
    if report.proposals:
        pairs = plural(len(report.proposals), "pair")
        freed = text(report.saved_h, "h")
        result = [f"{pairs} on one GPU in place of two, within {limit}: {freed} freed."]
    if report.trials:
        pairs = plural(len(report.trials), "pair")
        freed = text(report.saved_most_h, "h")
        result.append(f"{pairs} may, depending on kernels that are not known: up to {freed} freed.")
    if report.kinds and not (report.proposals or report.trials):
        result.append(
            'To see why, name two job groups at "Explain a pair".'
            if by_form
            else "`--all` shows each with its numbers."
        )
    rare = next((jobs for reason, jobs, _ in report.left_out if reason == "few_runs"), 0)
    if rare and not report.proposals:
        how = 'set "Runs of a group, at least" to 1' if by_form else "use `--runs 1`"
        result.append(
            f"{plural(rare, 'job')} not considered, of groups that ran fewer than "
            f"{report.least_runs} times: to include them, {how}."
        )
    return jobs, " ".join(result)


def missing_sentence(report: ColocateReport) -> str:
    """Return which counters no job has."""
    return (
        f"Not recorded: {', '.join(report.missing)}. Without them every job is undetermined: have "
        "DCGM, dcgm-exporter or LDMS record these fields (docs/counters.md)."
    )


def _freed(pair: SharingProposal) -> str:
    return " to ".join(
        dict.fromkeys(text(hours, "h") for hours in (pair.saved_h, pair.saved_most_h))
    )


def proposal_columns(pairs: Sequence[SharingProposal]) -> list[TextColumn]:
    """Return the columns of a table of pairs."""

    def cells(cell: Callable[[SharingProposal], str]) -> list[str]:
        return list(map(cell, pairs))

    return [
        TextColumn("one", cells(lambda pair: short_label(pair.one))),
        TextColumn("other", cells(_other)),
        TextColumn("GPUs", cells(lambda pair: f"{pair.one.gpus} x {pair.one.device.name}"), hide=2),
        TextColumn("mode", cells(answer)),
        TextColumn("slowdown", cells(_slowdown)),
        TextColumn("memory", cells(lambda pair: text(pair.memory, "fraction")), hide=1),
        TextColumn("frees", cells(_freed), right=True),
    ]


def _other(pair: SharingProposal) -> str:
    return "itself" if pair.one is pair.other else short_label(pair.other)


def _slowdown(pair: SharingProposal) -> str:
    return text(None) if pair.best is None else spans(pair.best.low, pair.best.high)


def _table(proposals: Sequence[SharingProposal], width: int) -> list[Line]:
    numbers = [str(number) for number, _ in enumerate(proposals, 1)]
    columns = [TextColumn("", numbers, right=True), *proposal_columns(proposals)]
    return fit_table(columns, width).with_note(width=width)


def note_lines(report: ColocateReport, width: int) -> Iterator[Line]:
    """Yield notes: meaning of the columns, ignored effects."""
    sentences = [_SLOWDOWN, _FREES, _EXPLAIN, _NOT_CONSIDERED]
    if report.profiled:
        sentences.append(_BY_PROFILE)
    for sentence in sentences:
        yield from wrapped(sentence, width, first="  ", indent="    ")


def _refused(report: ColocateReport, top: int | None, width: int) -> Iterator[Line]:
    for proposal in report.refused[:top]:
        best = proposal.best
        reason = "memory does not hold both"
        if best is not None:
            reason = f"{best.label} {spans(best.low, best.high)}"
        if proposal.taken:
            reason = f"{reason}; one of them is in a pair above"
        yield from wrapped(reason, width, first=f"  {pair_called(proposal)}: ", indent="    ")
    if top is not None and report.not_proposed > top:
        yield plain(f"{top:,} of {plural(report.not_proposed, 'pair')}", "dim")


def left_out_lines(report: ColocateReport, width: int) -> list[Line]:
    """Return which jobs are left out, and why."""
    lines = [plain("Left out", "dim")] if report.left_out else []
    for reason, jobs, hours in report.left_out:
        message = f"{plural(jobs, 'job')} ({text(hours, 'h')}): {LEFT_OUT[reason]}"
        lines += wrapped(message, width, style="dim", first="  ", indent="    ")
    if report.cut:
        groups = plural(report.cut, "job group")
        message = f"Not compared: {groups} with few GPU-hours (too many groups)."
        lines += wrapped(message, width, style="dim")
    return [plain(""), *lines] if lines else []
