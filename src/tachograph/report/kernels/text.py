"""Kernels as lines of text: a table per GPU, what happens when they run together, pitfalls, what was not collected."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tachograph.figures.kernel_page import shortened, shortened_apart
from tachograph.interference.jobs.words import times
from tachograph.interference.outcome import Sharing
from tachograph.report.kernels.explain import explain_lines
from tachograph.report.kernels.facts import busiest_pipe, launches_words, said, took
from tachograph.report.kernels.judged import pitfall_numbers, resource_name
from tachograph.report.kernels.pairs import pair_lines, part_of_time
from tachograph.report.kernels.report import Disturber, GpuPart, KernelsReport, KernelView, Lacking, Together, total_s
from tachograph.report.lines import Line, plain, wrapped
from tachograph.units import plural, text

SLOWDOWN_SAYS = (
    "slowdown: time beside the others over time alone; worst: where the others are served first; held up by: what "
    "there is too little of."
)
Cell = Callable[[KernelView], str]
_DISTURBERS = 3  # named in a line
_SUMS = 6  # resources named
_NUMBERS = 8  # kernels named by number in a line, of more only how many there are


def limited_by(view: KernelView) -> str:
    """Return what limits a kernel, in a word or two."""
    resource = view.judged.limited_by
    return "–" if resource is None else resource_name(resource)


def disturbed_by(view: KernelView) -> str:
    """Return the resources by which others disturb a kernel much, else somewhat; `?` behind what nobody measured."""
    fears = [fear for fear in view.judged.fears if fear.resource != "sms"]  # tells how to read the others
    named = [resource_name(fear.resource) for fear in fears if fear.level == "high"]
    unknown = [f"{resource_name(fear.resource)}?" for fear in fears if fear.level == "unknown"]
    some = [resource_name(fear.resource) for fear in fears if fear.level == "some"]
    if some and not named:
        named = [f"some: {', '.join(some)}"]
    return ", ".join(named + unknown) or "little"


def score_text(view: KernelView, name: str) -> str:
    """Return a score as it is shown."""
    return said(view.scores[name])


def pipe_text(view: KernelView) -> str:
    """Return the busiest pipeline and how busy it is."""
    busiest = busiest_pipe(view.kernel)
    return text(None) if busiest is None else f"{resource_name(busiest[0])} {text(busiest[1], 'fraction')}"


# heading, cell; forms from wide to narrow leave out what tells least
_COLUMNS: dict[str, tuple[str, Cell]] = {
    "time": ("time", lambda view: text(view.share, "fraction")),
    "launches": ("launches", lambda view: text(view.kernel.launches, "count")),
    "smi": ("nvidia-smi", lambda view: said(view.facts["gpu_util"])),
    "ipc": ("IPC", lambda view: text(view.facts["ipc"].value, "ratio")),
    "pipe": ("busiest pipe", pipe_text),
    "dram": ("DRAM", lambda view: said(view.facts["dram"])),
    "occupancy": ("occupancy", lambda view: said(view.facts["occupancy"])),
    "sms": ("SMs", lambda view: said(view.facts["sm_share"])),
    "limited": ("limited by", limited_by),
    "disturbed": ("disturbed by", disturbed_by),
    "score": ("score", lambda view: score_text(view, "score_gpu_practice")),
    "score_mem": ("of memory", lambda view: score_text(view, "score_gpumem_practice")),
}
_SHORT = {"launches": "n", "smi": "smi", "pipe": "pipe", "occupancy": "occ.", "score": "score", "score_mem": "mem."}
_IN_FULL = {"score_mem": "score of memory"}  # where it stands alone
_LEFT = frozenset({"limited", "disturbed"})
_FORMS: tuple[tuple[int, bool, tuple[str, ...]], ...] = (  # least room of a name, short headings, columns left out
    (36, False, ()),
    (26, True, ()),
    (24, True, ("score_mem", "launches")),
    (24, True, ("score_mem", "score", "launches")),
    (20, True, ("score_mem", "score", "launches", "smi")),
    (16, True, ("score_mem", "score", "launches", "smi", "sms", "time")),
    (12, True, ("score_mem", "score", "launches", "smi", "sms", "time", "occupancy", "pipe", "ipc")),
)
_NAME = 36  # most characters of a name
_COLUMNS_SAY = {
    "time": "share of the time of all",
    "launches": "how often it ran",
    "smi": "what nvidia-smi shows as utilisation",
    "ipc": "instructions per cycle and SM, at most 4",
    "pipe": "the busiest pipeline, each for a kind of instructions (ALU, FMA, FP64, LSU, ...)",
    "dram": "share of the peak bandwidth",
    "occupancy": "warps there, of all that fit",
    "sms": "share of the time in which they had work",
    "limited": "the fullest resource (issue: the slots for instructions), or latency: it waits",
    "score": "0 best, 100 worst",
    "score_mem": "the same of memory",
}


def kernels_lines(report: KernelsReport, *, width: int = 100, ascii_only: bool = False) -> list[Line]:
    """Return the report as styled lines (see lines.to_rich)."""
    if report.explained is not None:
        lines = explain_lines(report.explained, width=width, ascii_only=ascii_only)
    elif report.together is not None and not any(part.columns for part in report.parts):
        lines = []
    else:
        lines = [line for part in report.parts for line in _part(report, part, width)]
    if report.together is not None:
        lines += together_lines(report, report.together, width)
    while lines and lines[-1] == plain(""):
        lines.pop()
    return lines


def headline(part: GpuPart) -> str:
    """Return what was read of a GPU, in a sentence."""
    launches = sum(view.kernel.launches for view in part.kernels)
    sms = f", {part.gpu.sms} SMs" if part.gpu.sms else ""
    less = "took less time" if total_s(part) is not None else "not shown"
    more = f"; {plural(part.left_out, 'more kernel')} {less}" if part.left_out else ""
    counts = f"{plural(len(part.kernels), 'kernel')}, {launches_words(launches)}, {took(total_s(part))}"
    return f"{part.gpu.name}{sms}: {counts}{more}"


def numbers_text(numbers: Sequence[int], of: int) -> str:
    """Return which kernels are meant, by their numbers.

    >>> numbers_text([1, 2, 5], 9), numbers_text([1, 2], 2), numbers_text([1], 1)
    ('kernels 1, 2, 5', 'all kernels', 'the kernel')
    """
    if len(numbers) == of:
        return "all kernels" if of > 1 else "the kernel"
    if len(numbers) > _NUMBERS:
        return f"{len(numbers)} kernels"
    return f"kernel{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _part(report: KernelsReport, part: GpuPart, width: int) -> Iterator[Line]:
    yield from wrapped(headline(part), width, style="bold")
    yield plain("")
    yield from _table(part.kernels, width)
    if part.disturbers is not None:
        yield from wrapped(disturbers_words(part.disturbers), width)
    yield plain("")
    if part.pairs is not None:
        yield from pair_lines(report, part, width)
        yield plain("")
    yield from _pitfalls(part, width)
    yield from lacking_lines(part.lacking, part.command, len(part.kernels), width)


def disturbers_words(found: Sequence[Disturber]) -> str:
    """Return which kernels of a table disturb others most, in a line.

    >>> disturbers_words([Disturber(4, "fmul<4, 256>", 2.0, 3, "issue")]), disturbers_words([])
    ('Disturbs most: 4 fmul<4, 256> (3 takes 2.00x as long: held up by issue)', 'Disturbs most: none disturbs another.')
    """
    named = [
        f"{one.number} {shortened(one.label, 24)} ({one.victim} takes {times(one.slowdown)} as long{_why(one.binding)})"
        for one in found[:_DISTURBERS]
    ]
    return f"Disturbs most: {', '.join(named) or 'none disturbs another.'}"


def _why(binding: str | None) -> str:
    if binding is None:
        return ""
    return f": {'waits for' if binding == 'blocks' else 'held up by'} {resource_name(binding)}"


def legend(columns: Iterable[str] = tuple(_COLUMNS), *, short: bool = True) -> str:
    """Return what the columns of the table are, in a sentence.

    >>> legend(["time", "occupancy"]), legend(["occupancy"], short=False)
    ('time: share of the time of all; occ.: warps there, of all that fit.', 'occupancy: warps there, of all that fit.')
    """
    said = (
        f"{_SHORT.get(name, _COLUMNS[name][0]) if short else _COLUMNS[name][0]}: {_COLUMNS_SAY[name]}"
        for name in columns
        if name in _COLUMNS_SAY
    )
    return f"{'; '.join(said)}."


def _table(views: Sequence[KernelView], width: int) -> list[Line]:
    """The widest form that fits, what it has no room for, and what its columns are."""
    for least, short, left_out in _FORMS:
        columns = [name for name in _COLUMNS if name not in left_out]
        table = _form(views, columns, least, short=short)
        spare = width - _wide(table)
        if spare >= 0:
            named = max(len(name) for name in shortened_apart([view.label for view in views], least))
            table = _form(views, columns, max(least, min(_NAME, named + spare)), short=short)
            break
    else:
        table = _form(views, columns, least, short=short, width=width)
    lacks = [_IN_FULL.get(name, _COLUMNS[name][0]) for name in _COLUMNS if name not in columns]
    no_room = wrapped(f"no room for: {', '.join(lacks)}", width, style="dim") if lacks else []
    return [*table, *no_room, *wrapped(legend(columns, short=short), width, style="dim")]


def _form(
    views: Sequence[KernelView], columns: Sequence[str], name_width: int, *, short: bool, width: int | None = None
) -> list[Line]:
    """Such columns as lines; the last goes on below itself where `width` is given, and too little for it."""
    headings = [_SHORT.get(name, _COLUMNS[name][0]) if short else _COLUMNS[name][0] for name in columns]
    names = shortened_apart([view.label for view in views], name_width)
    rows = [
        [str(view.number), name, *(_COLUMNS[column][1](view) for column in columns)]
        for view, name in zip(views, names, strict=True)
    ]
    left = {1, *(place + 2 for place, name in enumerate(columns) if name in _LEFT)}
    table = aligned(["#", "kernel", *headings], rows, left=left)
    if width is None or _wide(table) <= width:
        return table
    last = max(len(cells[-1]) for cells in [headings, *rows])
    room = max(len(headings[-1]), width - (_wide(table) - last))
    folded = [
        cells
        for row in rows
        for place, part in enumerate(textwrap.wrap(row[-1], room))
        for cells in ([*(row[:-1] if place == 0 else [""] * (len(row) - 1)), part],)
    ]
    return [((words[:width], style),) for ((words, style),) in aligned(["#", "kernel", *headings], folded, left=left)]


def _wide(table: Sequence[Line]) -> int:
    return max(len(words) for ((words, _),) in table)


def aligned(headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: set[int]) -> list[Line]:
    """Return a heading and rows; columns of `left` begin at the left, the others end at the right."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        placed = zip(cells, widths, range(len(widths)), strict=True)
        return "  ".join(f"{cell:<{wide}}" if n in left else f"{cell:>{wide}}" for cell, wide, n in placed).rstrip()

    return [plain(line(headings), "bold"), *(plain(line(row)) for row in rows)]


def _pitfalls(part: GpuPart, width: int) -> Iterator[Line]:
    """Each conclusion that would be wrong once, with the kernels it is wrong of."""
    of: dict[str, list[str]] = {}
    for view in part.kernels:
        for pitfall in view.judged.pitfalls:
            named = f"{view.number} {shortened(view.label, 24)} ({pitfall_numbers(pitfall)})"
            of.setdefault(pitfall.why, []).append(named)
    if not of:
        return
    yield plain("Do not be misled", "bold")
    for why, kernels in of.items():
        more = [f"and {len(kernels) - _NUMBERS} more"] if len(kernels) > _NUMBERS else []
        yield from wrapped(f"{why}:", width, first="  ", indent="  ")
        yield from wrapped(", ".join([*kernels[:_NUMBERS], *more]), width, first="    ", indent="    ", style="dim")
    yield plain("")


def lacking_lines(lacking: Sequence[Lacking], command: str | None, of: int, width: int) -> Iterator[Line]:
    """Yield what was not collected, and the command that collects it."""
    if not lacking:
        return
    yield plain("Not collected", "bold")
    for lack in lacking:
        yield from wrapped(
            f"{lack.metric}: {lack.tells} ({numbers_text(lack.of, of)})", width, first="  ", indent="    ", style="dim"
        )
    if command:
        yield plain(f"  collect it with: {command}")
    yield plain("")


def together_lines(report: KernelsReport, together: Together, width: int) -> list[Line]:
    """Return what is expected of a set of kernels."""
    found = together.estimate
    lines = wrapped(together_heading(report.sharing), width, style="bold")
    rows = [
        [
            str(view.number),
            shortened(view.label, 36),
            times(outcome.slowdown),
            times(outcome.worst),
            resource_name(outcome.binding) if outcome.binding else "nothing" if outcome.slowdown else "–",
        ]
        for view, outcome in zip(together.members, found.members, strict=True)
    ]
    lines += aligned(["#", "kernel", "slowdown", "worst", "held up by"], rows, left={1, 4})
    if found.sums:
        lines += wrapped(sums_words(found.sums), width)
    lines += wrapped(f"{gain_words(found.gain, found.worst_gain)} {safe_words(found.safe)}", width)
    for unknown in found.unknown:
        lines += wrapped(unknown, width, first="  not known: ", indent="    ", style="dim")
    return lines + wrapped(SLOWDOWN_SAYS, width, style="dim")


def together_heading(sharing: Sharing) -> str:
    """Return how kernels run together.

    >>> together_heading(Sharing()), together_heading(Sharing("mps", (0.5, 0.25)))
    ('Together, as streams of one process', 'Together, as processes under MPS, with 50 % + 25 % of the SMs')
    """
    way = "streams of one process" if sharing.way == "streams" else "processes under MPS"
    shares = "" if sharing.shares is None else " + ".join(text(share, "fraction") for share in sharing.shares)
    return f"Together, as {way}" + (f", with {shares} of the SMs" if shares else "")


def sums_words(sums: Mapping[str, float]) -> str:
    """Return what all ask for together, the most first.

    >>> sums_words({"dram": 0.84, "issue": 1.9, "fp64": 0.0})
    'All together ask for: issue 190 %, DRAM 84 %.'
    """
    asked = sorted(sums.items(), key=lambda item: -item[1])[:_SUMS]
    named = ", ".join(f"{resource_name(name)} {text(share, 'fraction')}" for name, share in asked if share > 0)
    return f"All together ask for: {named}."


def gain_words(gain: float | None, worst: float | None) -> str:
    """Return how long all take together, in a sentence.

    >>> gain_words(1.8, 1.0)
    'Together they take 56 % of the time that they take one after the other, at the worst 100 %.'
    """
    if gain is None:
        return "How long they take together cannot be said."
    at_worst = "" if worst is None else f", at the worst {part_of_time(worst)}"
    return f"Together they take {part_of_time(gain)} of the time that they take one after the other{at_worst}."


def safe_words(safe: bool) -> str:
    """Return whether the set is safe, in a sentence."""
    return "Safe: no resource nears its limit." if safe else "Not safe: a resource nears its limit, or is not known."
