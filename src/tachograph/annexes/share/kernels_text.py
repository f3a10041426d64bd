"""The report on profiled kernels as lines of text: the table, one kernel explained, pairs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from tachograph.annexes.share import kernels_sentences as sentences
from tachograph.annexes.share.advice import times
from tachograph.annexes.share.demand import PIPES, CorunOutcome, Matrix, unless_nan
from tachograph.annexes.share.kernel_facts import (
    GpuPart,
    KernelFact,
    KernelPair,
    KernelsReport,
    KernelView,
    MissingMetric,
    PairEstimate,
    busiest_pipe,
    pairs_of,
)
from tachograph.annexes.share.kernel_names import shortened, shortened_apart
from tachograph.annexes.share.utilization import Sensitivity, SensitivityLevel
from tachograph.catalog.units import plural, printable, text
from tachograph.report.lines import Line, bar, plain, wrapped
from tachograph.report.tables import TextColumn, fit_table

MOST_COLUMNS = 16  # of a matrix that is printed
_LISTED = 5  # pairs of a list


def pair_lines(report: KernelsReport, part: GpuPart, pairs: Matrix, width: int) -> Iterator[Line]:
    """Yield the slowdown of each kernel while the other one runs."""
    shares = "" if report.sharing.shares is None else ", MPS with shares of the SMs"
    yield from wrapped(
        f"Slowdown of a row while a column runs beside it{shares}", width, style="bold"
    )
    table = list(_matrix(part, pairs, width)) if len(part.kernels) <= MOST_COLUMNS else []
    if table and max(len(words) for ((words, _),) in table) <= width:
        yield from table
    else:
        more = (
            f"{len(part.kernels)} x {len(part.kernels)} pairs: all of them with --json, "
            "--csv or --html"
        )
        yield from wrapped(more, width, style="dim")
    yield from _best(part, width)
    yield from wrapped(sentences.calibration_sentence(part), width, style="dim")


def _matrix(part: GpuPart, pairs: Matrix, width: int) -> Iterator[Line]:
    heads = [str(view.number) for view in part.kernels]
    cells = [
        [sentences.factor(unless_nan(slowdown)) for slowdown in row]
        for row in pairs.slowdown.tolist()
    ]
    wide = max(map(len, chain(heads, *cells)))
    room = max(8, width - (wide + 2) * len(heads) - 4)
    names = shortened_apart([view.label for view in part.kernels], min(36, room))
    longest = max(map(len, names))
    yield plain(" " * (longest + 4) + _aligned(heads, wide), "bold")
    for view, name, row in zip(part.kernels, names, cells, strict=True):
        yield plain(f"{view.number:>3} {name:<{longest}}" + _aligned(row, wide))


def _aligned(cells: Sequence[str], width: int) -> str:
    return "".join(f"  {cell:>{width}}" for cell in cells)


def _best(part: GpuPart, width: int) -> Iterator[Line]:
    safe: dict[frozenset[int], KernelPair] = {}
    for pair in pairs_of(part):
        if pair.safe:  # either way round it is one pair
            safe.setdefault(frozenset((pair.row.number, pair.column.number)), pair)
    if not safe:
        yield from wrapped(
            "No pair is safe: in each a resource nears its limit, or was not measured.", width
        )
        return
    best = sorted(
        safe.values(), key=lambda pair: (-(pair.gain or 0.0), pair.row.number, pair.column.number)
    )[:_LISTED]
    named = ", ".join(
        f"{pair.row.number}+{pair.column.number} ({sentences.part_of_time(pair.gain)})"
        for pair in best
    )
    are = "pair is" if len(safe) == 1 else "pairs are"
    yield from wrapped(
        f"{len(safe):,} {are} safe: no resource nears its limit. Best, with the time together "
        "as a share of the time "
        f"one after the other: {named}.",
        width,
    )


_BAR = 14
_UNUSED = 0.005  # a resource with less demand is only named
_LEAST_NOTE = 24  # characters: shorter ones have no information
LEVELS = {"high": "much", "some": "some", "low": "little", "unknown": "not known"}


def explain_lines(view: KernelView, *, width: int = 100, ascii_only: bool = False) -> list[Line]:
    """Return everything about one kernel as styled lines."""
    lines = wrapped(f"{view.number}  {view.label}", width, first="", indent="   ", style="bold")
    lines += wrapped(printable(view.kernel.name), width, first="   ", indent="   ", style="dim")
    lines += wrapped(where_it_ran(view), width, first="   ", indent="   ")
    for heading, body in (
        ("Use, and the source of each number", _facts(view.facts.values(), width, ascii_only)),
        ("Limits", _limits(view, width, ascii_only)),
        ("Sensitivity to co-runners", _sensitivities(view, width)),
        ("Scores, 0 best, 100 worst", _facts(view.scores.values(), width, ascii_only)),
        ("Pitfalls", _explained_pitfalls(view, width)),
        ("Not collected", _lacking(view, width)),
    ):
        rows = list(body)
        if rows:
            lines += [plain(""), plain(heading, "bold"), *rows]
    return lines


def where_it_ran(view: KernelView) -> str:
    """Return GPU, shape and time of a kernel, in a sentence."""
    kernel, footprint = view.kernel, view.kernel.demand.footprint
    shape = "unknown shape"
    if footprint is not None:
        shape = f"{plural(footprint.blocks, 'block')} of {plural(footprint.threads, 'thread')}"
    if kernel.variants > 1:
        shape += f" (the longest of {kernel.variants} shapes)"
    share = "" if view.share is None else f", {text(view.share, 'fraction')} of the time"
    spent = (
        f"{sentences.launches_text(kernel.launches)}, "
        f"{sentences.duration_text(kernel.seconds)}{share}"
    )
    return printable(f"{kernel.gpu.name}; {shape}; {spent}; {', '.join(kernel.reports)}")


def _facts(facts: Iterable[KernelFact], width: int, ascii_only: bool) -> Iterator[Line]:
    rows = list(facts)
    labels, values = (
        max(len(fact.label) for fact in rows),
        max(len(sentences.fact_text(fact)) for fact in rows),
    )
    for fact in rows:
        drawn = bar(fact.share, _BAR, ascii_only=ascii_only)
        line = f"  {fact.label:<{labels}}  {drawn}  {sentences.fact_text(fact):>{values}}"
        note = _note(fact, width - len(line) - 2)
        yield (line, ""), (f"  {note}" if note else "", "dim")


def _note(fact: KernelFact, room: int) -> str:
    """The note and the source of a number, as far as they fit."""
    both = "; ".join(part for part in (fact.note, fact.metric) if part)
    if len(both) <= room:
        return both
    if fact.note and len(fact.note) <= room:
        return fact.note
    return shortened(fact.metric, room) if room >= _LEAST_NOTE else ""


def _limits(view: KernelView, width: int, ascii_only: bool) -> Iterator[Line]:
    found = view.limits
    yield from wrapped(sentences.limits_sentence(found), width, first="  ", indent="  ")
    used = [limit for limit in found.resources if limit.demand >= _UNUSED]
    names = max((len(sentences.resource_name(limit.resource)) for limit in used), default=0)
    for limit in used:
        drawn = bar(limit.demand, _BAR, ascii_only=ascii_only)
        of = " of what can be achieved" if limit.measured_on else ""
        room = f"{text(limit.head_room, 'fraction')} left{of}"
        name, demand = sentences.resource_name(limit.resource), text(limit.demand, "fraction")
        yield plain(f"  {name:<{names}}  {drawn}  {demand:>6}  {room}")
    unused = [
        sentences.resource_name(limit.resource)
        for limit in found.resources
        if limit.demand < _UNUSED
    ]
    if unused:
        yield from wrapped(
            f"not used: {', '.join(unused)}", width, first="  ", indent="  ", style="dim"
        )


def _sensitivities(view: KernelView, width: int) -> Iterator[Line]:
    judged = [sensitivity for sensitivity in view.sensitivities if not _is_unused(sensitivity)]
    names = max(len(sentences.resource_name(sensitivity.resource)) for sensitivity in judged)
    for one in judged:
        first = f"  {sentences.resource_name(one.resource):<{names}}  {LEVELS[one.level]:<9}  "
        yield from wrapped(
            sentences.sensitivity_sentence(one), width, first=first, indent=" " * len(first)
        )


def _is_unused(sensitivity: Sensitivity) -> bool:
    """Whether it is a pipeline with nothing to do."""
    return (
        sensitivity.resource in PIPES
        and sensitivity.value is not None
        and sensitivity.value < _UNUSED
    )


def _explained_pitfalls(view: KernelView, width: int) -> Iterator[Line]:
    for pitfall in view.pitfalls:
        yield from wrapped(sentences.pitfall_sentence(pitfall), width, first="  ", indent="  ")


def _lacking(view: KernelView, width: int) -> Iterator[Line]:
    missing = view.kernel.missing
    for lack in missing:
        yield from wrapped(
            f"{lack.metric}: {lack.meaning}", width, first="  ", indent="    ", style="dim"
        )
    if missing:
        parts = dict.fromkeys(lack.options for lack in missing)
        yield plain(f"  collect it with: ncu {' '.join(parts)} -o REPORT PROGRAM")


Cell = Callable[[KernelView], str]


def limited_by(view: KernelView) -> str:
    """Return a kernel's limit in a word or two."""
    resource = view.limits.limited_by
    return "–" if resource is None else sentences.resource_name(resource)


def sensitive_to(view: KernelView) -> str:
    """Return the resources to which a kernel is very sensitive, else somewhat; `?` behind those
    not measured.
    """
    named: dict[SensitivityLevel, list[str]] = defaultdict(list)
    for sensitivity in view.sensitivities:
        if sensitivity.resource != "sms":  # that qualifies the others
            named[sensitivity.level].append(sentences.resource_name(sensitivity.resource))
    most = named["high"]
    if named["some"] and not most:
        most = [f"some: {', '.join(named['some'])}"]
    return ", ".join([*most, *(f"{name}?" for name in named["unknown"])]) or "little"


def score_text(view: KernelView, name: str) -> str:
    """Return a score as text."""
    return sentences.fact_text(view.scores[name])


def pipe_text(view: KernelView) -> str:
    """Return the busiest pipeline and how busy it is."""
    busiest = busiest_pipe(view.kernel)
    return (
        text(None)
        if busiest is None
        else f"{sentences.resource_name(busiest[0])} {text(busiest[1], 'fraction')}"
    )


# title, cell
_COLUMNS: dict[str, tuple[str, Cell]] = {
    "time": ("time", lambda view: text(view.share, "fraction")),
    "launches": ("launches", lambda view: text(view.kernel.launches, "count")),
    "smi": ("nvidia-smi", lambda view: sentences.fact_text(view.facts["gpu_util"])),
    "ipc": ("IPC", lambda view: text(view.facts["ipc"].value, "ratio")),
    "pipe": ("busiest pipe", pipe_text),
    "dram": ("DRAM", lambda view: sentences.fact_text(view.facts["dram"])),
    "occupancy": ("occupancy", lambda view: sentences.fact_text(view.facts["occupancy"])),
    "sms": ("SMs", lambda view: sentences.fact_text(view.facts["sm_share"])),
    "limited": ("limited by", limited_by),
    "sensitive": ("sensitive to", sensitive_to),
    "score": ("score", lambda view: score_text(view, "score_gpu_practice")),
    "score_mem": ("memory score", lambda view: score_text(view, "score_gpumem_practice")),
}
_SHORT = {
    "launches": "n",
    "smi": "smi",
    "pipe": "pipe",
    "occupancy": "occ.",
    "score": "score",
    "score_mem": "mem.",
}
_LEFT = frozenset({"limited", "sensitive"})
# hidden first where a terminal is narrow
_EXPENDABLE = ("score_mem", "launches", "score", "smi", "sms", "time", "occupancy", "pipe", "ipc")
_NAME, _LEAST_NAME = 36, 16  # characters of a name, at most and at least
_COLUMN_MEANINGS = {
    "time": "share of the total time of all kernels",
    "launches": "number of launches",
    "smi": "what nvidia-smi shows as utilisation",
    "ipc": "instructions per cycle and SM, at most 4",
    "pipe": "the busiest pipeline, each for a kind of instructions (ALU, FMA, FP64, LSU, ...)",
    "dram": "share of the peak bandwidth",
    "occupancy": "resident warps as a share of those that fit",
    "sms": "share of the time with work",
    "limited": "the resource nearest its limit (issue: instruction slots), or latency: it waits",
    "score": "0 best, 100 worst",
    "score_mem": "the score of memory, likewise",
}


def kernels_lines(
    report: KernelsReport, *, width: int = 100, ascii_only: bool = False
) -> list[Line]:
    """Return the report as styled lines (see lines.to_rich)."""
    if report.explained is not None:
        lines = explain_lines(report.explained, width=width, ascii_only=ascii_only)
    elif report.together is not None and all(part.pairs is None for part in report.parts):
        lines = []
    else:
        lines = []
        for part in report.parts:
            lines += _part(report, part, width)
    if report.together is not None:
        lines += together_lines(report, report.together, width)
    while lines and lines[-1] == plain(""):
        lines.pop()
    return lines


def _part(report: KernelsReport, part: GpuPart, width: int) -> Iterator[Line]:
    yield from wrapped(sentences.headline(part), width, style="bold")
    yield plain("")
    yield from _table(part.kernels, width)
    yield plain("")
    if part.pairs is not None:
        yield from pair_lines(report, part, part.pairs, width)
        yield plain("")
    yield from _pitfalls(part, width)
    yield from lacking_lines(part.lacking, part.command, len(part.kernels), width)


def legend(columns: Iterable[str] = tuple(_COLUMNS), *, short: bool = True) -> str:
    """Return the meaning of the columns of the table, in a sentence.

    >>> legend(["time", "launches"]), legend(["launches"], short=False)
    ('time: share of the total time of all kernels; n: number of launches.', 'launches: number of launches.')
    """
    meanings = []
    for name in columns:
        if name in _COLUMN_MEANINGS:
            title, _ = _COLUMNS[name]
            if short:
                title = _SHORT.get(name, title)
            meanings.append(f"{title}: {_COLUMN_MEANINGS[name]}")
    return f"{'; '.join(meanings)}."


def _table(views: Sequence[KernelView], width: int) -> list[Line]:
    """The kernels, the hidden columns, and the meaning of the others."""
    numbers = TextColumn("#", [str(view.number) for view in views], right=True)
    labels = [view.label for view in views]
    names = TextColumn(
        "kernel",
        shortened_apart(labels, _NAME),
        least=_LEAST_NAME,
        shorten=lambda room: shortened_apart(labels, room),
    )
    columns: dict[str, TextColumn] = {}
    for name, (title, cell) in _COLUMNS.items():
        columns[name] = TextColumn(
            title,
            [cell(view) for view in views],
            right=name not in _LEFT,
            short=_SHORT.get(name),
            hide=_EXPENDABLE.index(name) if name in _EXPENDABLE else None,
            folds=name == "sensitive",
        )
    table = fit_table([numbers, names, *columns.values()], width)
    shown = [name for name, column in columns.items() if column.title not in table.hidden]
    return [
        *table.with_note(width=width),
        *wrapped(legend(shown, short=table.narrow), width, style="dim"),
    ]


def _pitfalls(part: GpuPart, width: int) -> Iterator[Line]:
    """Each pitfall once, with the kernels it applies to."""
    of: dict[str, list[str]] = {}
    for view in part.kernels:
        for pitfall in view.pitfalls:
            named = (
                f"{view.number} {shortened(view.label, 24)} ({sentences.pitfall_numbers(pitfall)})"
            )
            of.setdefault(pitfall.why, []).append(named)
    if not of:
        return
    yield plain("Pitfalls", "bold")
    for why, kernels in of.items():
        more = (
            [f"and {len(kernels) - sentences.MOST_NUMBERS} more"]
            if len(kernels) > sentences.MOST_NUMBERS
            else []
        )
        yield from wrapped(f"{why}:", width, first="  ", indent="  ")
        yield from wrapped(
            ", ".join([*kernels[: sentences.MOST_NUMBERS], *more]),
            width,
            first="    ",
            indent="    ",
            style="dim",
        )
    yield plain("")


def lacking_lines(
    lacking: Sequence[MissingMetric], command: str | None, of: int, width: int
) -> Iterator[Line]:
    """Yield the metrics not collected, and the command that collects them."""
    if not lacking:
        return
    yield plain("Not collected", "bold")
    for lack in lacking:
        yield from wrapped(
            f"{lack.metric}: {lack.meaning} ({sentences.numbers_text(lack.of, of)})",
            width,
            first="  ",
            indent="    ",
            style="dim",
        )
    if command:
        yield plain(f"  collect it with: {command}")
    yield plain("")


def together_lines(report: KernelsReport, together: PairEstimate, width: int) -> list[Line]:
    """Return the estimate for a set of kernels."""
    estimate = together.estimate
    lines = wrapped(sentences.together_heading(report.sharing), width, style="bold")
    views, outcomes = together.members, estimate.members
    columns = [
        TextColumn("#", [str(view.number) for view in views], right=True),
        TextColumn("kernel", [shortened(view.label, 36) for view in views]),
        TextColumn("slowdown", [times(outcome.slowdown) for outcome in outcomes], right=True),
        TextColumn("worst", [times(outcome.worst) for outcome in outcomes], right=True),
        TextColumn("bottleneck", [_bottleneck(outcome) for outcome in outcomes]),
    ]
    lines += fit_table(columns).lines
    if estimate.sums:
        lines += wrapped(sentences.sums_sentence(estimate.sums), width)
    gain = sentences.gain_sentence(estimate.gain, estimate.worst_gain)
    lines += wrapped(f"{gain} {sentences.safe_sentence(estimate)}", width)
    for unknown in estimate.unknown:
        lines += wrapped(unknown, width, first="  not known: ", indent="    ", style="dim")
    return lines + wrapped(sentences.SLOWDOWN_LEGEND, width, style="dim")


def _bottleneck(outcome: CorunOutcome) -> str:
    if outcome.binding:
        return sentences.resource_name(outcome.binding)
    return "nothing" if outcome.slowdown else "–"
