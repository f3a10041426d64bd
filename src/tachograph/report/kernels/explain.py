"""One kernel in full, as lines of text: what it uses, what limits it, what disturbs it, roofline, scores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tachograph.figures.bars import bar
from tachograph.figures.kernel_page import shortened
from tachograph.interference.demand import PIPES
from tachograph.interference.profile.collect import options_for
from tachograph.interference.profile.susceptibility import Susceptibility
from tachograph.report.kernels.facts import Fact, launches_words, said, took
from tachograph.report.kernels.judged import (
    fear_words,
    limited_words,
    pitfall_words,
    resource_name,
    roofline_words,
)
from tachograph.report.kernels.report import KernelView
from tachograph.report.lines import Line, plain, wrapped
from tachograph.units import printable, text

_BAR = 14
_UNUSED = 0.005  # a resource asked for less is named only
_LEAST_NOTE = 24  # characters: shorter ones tell nothing
LEVELS = {"high": "much", "some": "some", "low": "little", "unknown": "not known"}


def explain_lines(view: KernelView, *, width: int = 100, ascii_only: bool = False) -> list[Line]:
    """Return everything about one kernel as styled lines."""
    lines = wrapped(f"{view.number}  {view.label}", width, first="", indent="   ", style="bold")
    lines += wrapped(printable(view.kernel.name), width, first="   ", indent="   ", style="dim")
    lines += wrapped(where_it_ran(view), width, first="   ", indent="   ")
    for heading, body in (
        ("What it uses, and what each number is read from", _facts(view.facts.values(), width, ascii_only)),
        ("What limits it", _limits(view, width, ascii_only)),
        ("What disturbs it when others run beside it", _disturbed(view, width)),
        ("Under the roofs of the GPU", wrapped(roofline_words(view.judged.placement), width, first="  ", indent="  ")),
        ("Scores, 0 best, 100 worst", _facts(view.scores.values(), width, ascii_only)),
        ("Do not be misled", _pitfalls(view, width)),
        ("Not collected", _lacking(view, width)),
    ):
        told = list(body)
        if told:
            lines += [plain(""), plain(heading, "bold"), *told]
    return lines


def where_it_ran(view: KernelView) -> str:
    """Return GPU, shape and time of a kernel, in a sentence."""
    kernel, footprint = view.kernel, view.kernel.demand.footprint
    shape = "shape not told" if footprint is None else f"{footprint.blocks:,} blocks of {footprint.threads:,} threads"
    if kernel.variants > 1:
        shape += f" (the longest of {kernel.variants} shapes)"
    share = "" if view.share is None else f", {text(view.share, 'fraction')} of the time"
    spent = f"{launches_words(kernel.launches)}, {took(kernel.seconds)}{share}"
    return printable(f"{kernel.gpu.name}; {shape}; {spent}; {', '.join(kernel.reports)}")


def _facts(facts: Iterable[Fact], width: int, ascii_only: bool) -> Iterator[Line]:
    told = list(facts)
    labels, values = max(len(fact.label) for fact in told), max(len(said(fact)) for fact in told)
    for fact in told:
        drawn = bar(fact.share, _BAR, ascii_only=ascii_only)
        line = f"  {fact.label:<{labels}}  {drawn}  {said(fact):>{values}}"
        note = _note(fact, width - len(line) - 2)
        yield (line, ""), (f"  {note}" if note else "", "dim")


def _note(fact: Fact, room: int) -> str:
    """What a number means and is read from, as much as there is room for."""
    both = "; ".join(part for part in (fact.note, fact.metric) if part)
    if len(both) <= room:
        return both
    if fact.note and len(fact.note) <= room:
        return fact.note
    return shortened(fact.metric, room) if room >= _LEAST_NOTE else ""


def _limits(view: KernelView, width: int, ascii_only: bool) -> Iterator[Line]:
    found = view.judged.limits
    yield from wrapped(limited_words(found), width, first="  ", indent="  ")
    used = [limit for limit in found.resources if limit.demand >= _UNUSED]
    names = max((len(resource_name(limit.resource)) for limit in used), default=0)
    for limit in used:
        drawn = bar(limit.demand, _BAR, ascii_only=ascii_only)
        of = " of what can be achieved" if limit.measured_on else ""
        room = f"{text(limit.head_room, 'fraction')} left{of}"
        yield plain(f"  {resource_name(limit.resource):<{names}}  {drawn}  {text(limit.demand, 'fraction'):>6}  {room}")
    unused = [resource_name(limit.resource) for limit in found.resources if limit.demand < _UNUSED]
    if unused:
        yield from wrapped(f"not used: {', '.join(unused)}", width, first="  ", indent="  ", style="dim")


def _disturbed(view: KernelView, width: int) -> Iterator[Line]:
    fears = [fear for fear in view.judged.fears if not _is_unused(fear)]
    names = max(len(resource_name(fear.resource)) for fear in fears)
    for fear in fears:
        first = f"  {resource_name(fear.resource):<{names}}  {LEVELS[fear.level]:<9}  "
        yield from wrapped(fear_words(fear), width, first=first, indent=" " * len(first))


def _is_unused(fear: Susceptibility) -> bool:
    """Whether it is a pipeline with nothing to do."""
    return fear.resource in PIPES and fear.value is not None and fear.value < _UNUSED


def _pitfalls(view: KernelView, width: int) -> Iterator[Line]:
    for pitfall in view.judged.pitfalls:
        yield from wrapped(pitfall_words(pitfall), width, first="  ", indent="  ")


def _lacking(view: KernelView, width: int) -> Iterator[Line]:
    missing = view.kernel.missing
    for lack in missing:
        yield from wrapped(f"{lack.metric}: {lack.tells}", width, first="  ", indent="    ", style="dim")
    if missing:
        yield plain(f"  collect it with: ncu {options_for(missing)} -o REPORT PROGRAM")
