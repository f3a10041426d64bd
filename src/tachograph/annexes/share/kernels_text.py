"""The report on profiled kernels as sections of tables and sentences, and these as lines of text.

The page has the same sections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

from tachograph.annexes.share import kernels_sentences as sentences
from tachograph.annexes.share.demand import Matrix
from tachograph.annexes.share.kernel_facts import (
    GpuPart,
    KernelFact,
    KernelsReport,
    KernelView,
    PairEstimate,
    busiest_pipe,
)
from tachograph.annexes.share.kernel_names import shortened
from tachograph.annexes.share.kernels import collect_command
from tachograph.catalog.units import printable, text
from tachograph.report.lines import Line, plain, wrapped
from tachograph.report.tables import TextColumn, fit_table

MOST_COLUMNS = 16  # of a matrix that is printed
_UNUSED = 0.005  # a pipeline with less demand is not named
_NAME, _LEAST_NAME = 36, 16  # characters of a name, at most and at least
LEVELS = {"high": "much", "some": "some", "low": "little", "unknown": "not known"}


@dataclass(frozen=True, slots=True)
class KernelSection:
    """A part of the report: a table, and paragraphs below it."""

    heading: str
    columns: Sequence[TextColumn] = ()
    paragraphs: Sequence[str] = ()

    def lines(self, width: int) -> Iterator[Line]:
        """Yield the section as lines of text, an empty one last; none if it has no content."""
        if not (self.columns or self.paragraphs):
            return
        yield from wrapped(self.heading, width, style="bold")
        if self.columns:
            yield from fit_table(self.columns, width).with_note(width=width)
        for paragraph in self.paragraphs:
            yield from wrapped(paragraph, width, indent="  ", first="")
        yield plain("")


def kernels_lines(report: KernelsReport, *, width: int = 100) -> list[Line]:
    """Return the report as styled lines (see lines.to_rich)."""
    lines: list[Line] = []
    for section in _shown(report):
        lines += section.lines(width)
    return lines[:-1]


def _shown(report: KernelsReport) -> Iterator[KernelSection]:
    if report.explained is not None:
        yield from explained(report.explained)
    for part in report.parts:
        if report.explained is None and (report.together is None or part.pairs is not None):
            yield from part_sections(part)
    if report.together is not None:
        yield together_section(report, report.together)


def limited_by(view: KernelView) -> str:
    """Return a kernel's limit in a word or two."""
    resource = view.limits.limited_by
    return "–" if resource is None else sentences.resource_name(resource)


def sensitive_to(view: KernelView) -> str:
    """Return the resources to which a kernel is very sensitive, else somewhat; `?` behind those
    not measured.
    """
    named: dict[str, list[str]] = {level: [] for level in LEVELS}
    for sensitivity in view.sensitivities:
        if sensitivity.resource != "sms":  # that qualifies the others
            named[sensitivity.level].append(sentences.resource_name(sensitivity.resource))
    resources = named["high"]
    if named["some"] and not resources:
        resources = [f"some: {', '.join(named['some'])}"]
    return ", ".join([*resources, *(f"{name}?" for name in named["unknown"])]) or "little"


def pipe_text(view: KernelView) -> str:
    """Return the busiest pipeline and how busy it is."""
    busiest = busiest_pipe(view.kernel)
    if busiest is None:
        return text(None)
    return f"{sentences.resource_name(busiest[0])} {text(busiest[1], 'fraction')}"


def _fact(name: str) -> Callable[[KernelView], str]:
    """Return a function of the text of a fact or a score."""
    return lambda view: sentences.fact_text(view.facts.get(name) or view.scores[name])


# title, the same in a narrow terminal, cell, order of hiding there (the lowest first), meaning
_COLUMNS: tuple[tuple[str, str, Callable[[KernelView], str], int | None, str], ...] = (
    ("time", "time", lambda view: text(view.share, "fraction"), 5, "share of all kernels' time"),
    ("launches", "n", lambda view: f"{view.kernel.launches:,}", 1, "number of launches"),
    ("nvidia-smi", "smi", _fact("gpu_util"), 3, "what nvidia-smi shows as utilisation"),
    ("IPC", "IPC", _fact("ipc"), 8, "instructions per cycle and SM, at most 4"),
    ("busiest pipe", "pipe", pipe_text, 7, "each is for a kind of instructions"),
    ("DRAM", "DRAM", _fact("dram"), None, "share of the peak bandwidth"),
    ("occupancy", "occ.", _fact("occupancy"), 6, "resident warps as a share of those that fit"),
    ("SMs", "SMs", _fact("sm_share"), 4, "share of the time with work"),
    ("limited by", "limited by", limited_by, None, "the fullest resource, or latency: it waits"),
    ("sensitive to", "sensitive to", sensitive_to, None, "co-runners there slow it down"),
    ("score", "score", _fact("score_gpu_practice"), 2, "0 best, 100 worst"),
    ("memory score", "mem.", _fact("score_gpumem_practice"), 0, "likewise"),
)
LEGEND = "; ".join(f"{title}: {meaning}" for title, _, _, _, meaning in _COLUMNS)


def part_sections(part: GpuPart) -> Iterator[KernelSection]:
    """Yield the sections on the kernels of one GPU."""
    views = part.kernels
    table = [
        TextColumn("#", [str(view.number) for view in views], right=True),
        TextColumn(
            "kernel",
            [shortened(view.label, _NAME) for view in views],
            least=_LEAST_NAME,
            shorten=lambda room: [shortened(view.label, room) for view in views],
        ),
    ]
    for title, short, cell, hide, _ in _COLUMNS:
        right = cell not in (limited_by, sensitive_to)
        cells = [cell(view) for view in views]
        folds = cell is sensitive_to
        table.append(TextColumn(title, cells, right, short=short, hide=hide, folds=folds))
    yield KernelSection(sentences.headline(part), table, [LEGEND])
    if part.pairs is not None:
        yield _pair_section(part, part.pairs)
    of: dict[str, list[str]] = {}  # each pitfall once, with the kernels it applies to
    for view in views:
        for pitfall in view.pitfalls:
            numbers = sentences.pitfall_numbers(pitfall)
            of.setdefault(pitfall.why, []).append(f"{view.number} ({numbers})")
    pitfalls = [f"{why}: {sentences.first_of(kernels)}" for why, kernels in of.items()]
    yield KernelSection("Pitfalls", (), pitfalls)
    lacks = [
        f"{lack.metric}: {lack.meaning} (kernel {sentences.first_of(map(str, numbers))})"
        for lack, numbers in part.not_collected.items()
    ]
    yield _lacking(lacks, part.collect_with)


def _pair_section(part: GpuPart, pairs: Matrix) -> KernelSection:
    """Return the slowdown of each kernel while the other one runs, and the best pairs."""
    count = len(part.kernels)
    labels = [f"{view.number} {shortened(view.label, _LEAST_NAME)}" for view in part.kernels]
    columns = [TextColumn("", labels)]
    for index, view in enumerate(part.kernels):
        slowdowns = list(map(sentences.factor, pairs.slowdown[:, index].tolist()))
        columns.append(TextColumn(str(view.number), slowdowns, right=True, hide=count - index))
    note = [sentences.calibration_sentence(part)]
    if count > MOST_COLUMNS:
        columns = []
        note = [f"{count} x {count} pairs: all of them with --json or --csv", *note]
    safe = [
        (float(pairs.gain[i, j]), f"{part.kernels[i].number}+{part.kernels[j].number}")
        for i, j in combinations_with_replacement(range(count), 2)
        if pairs.safe[i, j]
    ]
    safe.sort(key=lambda pair: -pair[0])
    best = [f"{numbers} ({sentences.part_of_time(gain)})" for gain, numbers in safe]
    meaning = "upper ends of both within the limit; time together, of one after the other"
    note.append(f"Safe ({meaning}): {sentences.first_of(best) or 'no pair'}.")
    return KernelSection("Slowdown of a row while a column runs beside it", columns, note)


def explained(view: KernelView) -> Iterator[KernelSection]:
    """Yield the sections on one kernel."""
    name = printable(view.kernel.name)
    where = sentences.where_it_ran(view)
    yield KernelSection(f"{view.number}  {view.label}", (), [name, where])
    yield _facts("Use, and the source of each number", view.facts.values())
    yield KernelSection("Limits", (), [sentences.limits_sentence(view.limits)])
    pipes = view.kernel.pipes
    judged = [
        sensitivity
        for sensitivity in view.sensitivities
        if sensitivity.resource not in pipes or pipes[sensitivity.resource].value >= _UNUSED
    ]
    columns = [
        TextColumn("resource", [sentences.resource_name(one.resource) for one in judged]),
        TextColumn("sensitive", [LEVELS[one.level] for one in judged]),
        TextColumn("evidence", list(map(sentences.sensitivity_sentence, judged)), folds=True),
    ]
    yield KernelSection("Sensitivity to co-runners", columns)
    yield _facts("Scores, 0 best, 100 worst", view.scores.values())
    pitfalls = [f"{one.why} ({sentences.pitfall_numbers(one)})" for one in view.pitfalls]
    yield KernelSection("Pitfalls", (), pitfalls)
    missing = view.kernel.missing
    lacks = [f"{lack.metric}: {lack.meaning}" for lack in missing]
    yield _lacking(lacks, collect_command(missing))


def _facts(heading: str, facts: Iterable[KernelFact]) -> KernelSection:
    rows = list(facts)
    sources = ["; ".join(filter(None, (fact.note, fact.metric))) for fact in rows]
    columns = [
        TextColumn("quantity", [fact.label for fact in rows]),
        TextColumn("value", list(map(sentences.fact_text, rows)), right=True),
        TextColumn("source", sources, folds=True),
    ]
    return KernelSection(heading, columns)


def _lacking(lacks: Sequence[str], command: str | None) -> KernelSection:
    collect = [f"collect it with: {command}"] if command else []
    return KernelSection("Not collected", (), [*lacks, *collect])


def together_section(report: KernelsReport, together: PairEstimate) -> KernelSection:
    """Return the estimate for two kernels."""
    views, outcomes = together.members, together.estimate.members
    columns = [
        TextColumn("#", [str(view.number) for view in views], right=True),
        TextColumn("kernel", [shortened(view.label, _NAME) for view in views]),
        TextColumn(
            "slowdown", [text(outcome.slowdown, "times") for outcome in outcomes], right=True
        ),
        TextColumn("interval", list(map(sentences.interval, outcomes)), right=True),
        TextColumn("bottleneck", list(map(sentences.bottleneck, outcomes))),
    ]
    paragraphs = [*sentences.together_sentences(together), sentences.SLOWDOWN_LEGEND]
    return KernelSection(sentences.together_heading(report.sharing), columns, paragraphs)
