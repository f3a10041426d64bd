"""All pairs as lines of text: a matrix where it is small, else the best and the worst of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tachograph.figures.kernel_page import shortened, shortened_apart
from tachograph.interference.jobs.together import Together
from tachograph.interference.outcome import Matrix
from tachograph.report.kernels.judged import resource_name
from tachograph.report.kernels.report import GpuPart, KernelsReport, KernelView, Numbered
from tachograph.report.lines import Line, plain, wrapped
from tachograph.units import text

MOST_COLUMNS = 16  # of a matrix that is printed
_LISTED = 5  # pairs of a list
NOTHING = 255  # in Matrix.binding


@dataclass(frozen=True, slots=True)
class Pair:
    """A kernel beside another. slowdown, gain None: not known. binding: the resource, None nothing."""

    row: KernelView
    column: Numbered
    slowdown: float | None
    gain: float | None
    binding: str | None
    safe: bool


def pairs_of(part: GpuPart) -> list[Pair]:
    """Return all pairs of a part, row by row; none where they were not asked for."""
    found = part.pairs
    if found is None:
        return []
    return [
        Pair(
            row,
            column,
            _known(float(found.slowdown[i, j])),
            _known(float(found.gain[i, j])),
            binding_of(found, i, j),
            bool(found.safe[i, j]),
        )
        for i, row in enumerate(part.kernels)
        for j, column in enumerate(part.columns)
    ]


def binding_of(found: Matrix, row: int, column: int) -> str | None:
    """Return what binds a row beside a column; None: nothing."""
    place = int(found.binding[row, column])
    return None if place == NOTHING else found.resources[place]


def pair_lines(report: KernelsReport, part: GpuPart, width: int) -> Iterator[Line]:
    """Yield the slowdown of each kernel while another runs beside it."""
    shares = "" if report.sharing.shares is None else ", MPS with shares of the SMs"
    yield from wrapped(f"Slowdown of a row while a column runs beside it{shares}", width, style="bold")
    table = list(_matrix(part, width)) if len(part.columns) <= MOST_COLUMNS else []
    if table and max(len(words) for ((words, _),) in table) <= width:
        yield from table
        yield from _named_columns(part, width)
    else:
        told = f"{len(part.kernels)} x {len(part.columns)} pairs: all of them with --json, --csv or --html"
        yield from wrapped(told, width, style="dim")
    yield from _best(part, width)
    if part.mixed is not None:
        yield from wrapped(mixed_words(part.mixed), width)
    yield from wrapped(calibrated_words(part), width, style="dim")


def mixed_words(mixed: Together) -> str:
    """Return what happens to all kernels of a report beside all of another, in a sentence.

    >>> mixed_words(Together((1.2, None), (None, None), ((2.0, "copy", "mm"), None), safe=False))
    'All beside all of the other report, weighted by time: 1.20x, the other –; worst is copy beside mm, 2.00x.'
    """
    here, there = text(mixed.slowdown, "times"), text(mixed.other_slowdown, "times")
    worst = ""
    if mixed.worst is not None:
        slowdown, one, other = mixed.worst
        worst = f"; worst is {one} beside {other}, {text(slowdown, 'times')}"
    return f"All beside all of the other report, weighted by time: {here}, the other {there}{worst}."


def calibrated_words(part: GpuPart) -> str:
    """Return what the estimates rest on, in a sentence."""
    calibration = part.calibration
    if calibration.measured_on is None:
        return "Estimated with what was published of the H100 NVL: nothing was measured on this GPU."
    measured_on, published = calibration.measured_on, calibration.source == "published"
    if published:
        words = f"Estimated with what was published of the {measured_on.removeprefix('NVIDIA ')}"
    else:
        words = f"Estimated with what was measured on {measured_on} ({calibration.source})"
    same = part.gpu.name == measured_on
    return words + ("." if same else ", which is another GPU: measure this one with `tachograph interference bench`.")


def _matrix(part: GpuPart, width: int) -> Iterator[Line]:
    cells = [[factor(pair.slowdown) for pair in row] for row in _rows(part)]
    heads = [str(view.number) for view in part.columns]
    wide = max(len(cell) for row in [heads, *cells] for cell in row)
    room = max(8, width - (wide + 2) * len(heads) - 4)
    names = shortened_apart([view.label for view in part.kernels], min(36, room))
    longest = max(map(len, names))
    yield plain(" " * (longest + 4) + "".join(f"  {head:>{wide}}" for head in heads), "bold")
    for view, name, row in zip(part.kernels, names, cells, strict=True):
        yield plain(f"{view.number:>3} {name:<{longest}}" + "".join(f"  {cell:>{wide}}" for cell in row))


def _named_columns(part: GpuPart, width: int) -> Iterator[Line]:
    """What the numbers above the columns are, where no row tells it."""
    if part.columns[0].number != part.kernels[0].number:
        named = ", ".join(f"{view.number} {shortened(view.label, 30)}" for view in part.columns)
        yield from wrapped(named, width, first="columns: ", indent="  ")


def _rows(part: GpuPart) -> Iterator[list[Pair]]:
    pairs, columns = pairs_of(part), len(part.columns)
    for begin in range(0, len(pairs), columns):
        yield pairs[begin : begin + columns]


def _best(part: GpuPart, width: int) -> Iterator[Line]:
    safe: dict[frozenset[int], Pair] = {}
    for pair in pairs_of(part):
        if pair.safe:  # either way round it is one pair
            safe.setdefault(frozenset((pair.row.number, pair.column.number)), pair)
    if not safe:
        yield from wrapped("No pair is safe: in each a resource nears its limit, or was not measured.", width)
        return
    best = sorted(safe.values(), key=lambda pair: (-(pair.gain or 0.0), pair.row.number, pair.column.number))[:_LISTED]
    named = ", ".join(f"{pair.row.number}+{pair.column.number} ({part_of_time(pair.gain)})" for pair in best)
    are = "pair is" if len(safe) == 1 else "pairs are"
    yield from wrapped(
        f"{len(safe):,} {are} safe: no resource nears its limit. Best, with the time together as a share of the time "
        f"one after the other: {named}.",
        width,
    )


def part_of_time(gain: float | None) -> str:
    """Return the time together as a share of the time one after the other, `?` where it is not known.

    >>> part_of_time(2.0), part_of_time(0.88), part_of_time(None)
    ('50 %', '114 %', '?')
    """
    return "?" if gain is None or not gain > 0 else f"{100 / gain:.0f} %"


def factor(value: float | None) -> str:
    """Return a factor without its sign, `?` where it is not known.

    >>> factor(1.0), factor(15.84), factor(None)
    ('1.00', '15.8', '?')
    """
    return "?" if value is None else text(value, "times").removesuffix("x")


def worst_of(part: GpuPart) -> Pair | None:
    """Return the pair in which one is slowed down most."""
    known = [pair for pair in pairs_of(part) if pair.slowdown is not None]
    return max(known, key=lambda pair: pair.slowdown or 0.0, default=None)


def binding_words(pair: Pair) -> str:
    """Return what binds a pair, in a word."""
    return "nothing" if pair.binding is None else resource_name(pair.binding)


def _known(value: float) -> float | None:
    return None if value != value else value
