"""All kinds of jobs beside all, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tachograph.report.colocate.kinds import short_label
from tachograph.report.colocate.of_all import KindMatrix
from tachograph.report.lines import Line, plain, wrapped
from tachograph.units import plural, text

MOST_PRINTED = 20  # kinds of a matrix that is printed, those of most GPU-hours
_CELL = 6
_READ = (
    "Slowdown of the row beside the column by MPS, of the time in which the row uses the GPU, what nobody measured "
    "counted; mem: memory does not hold both. *: by profile. `--csv` and `--json` have all, and what slows."
)


def matrices_lines(matrices: Sequence[KindMatrix], width: int) -> Iterator[Line]:
    """Yield each matrix, of the kinds of most GPU-hours, as many as fit, and how to read them."""
    for of_all in matrices:
        yield from _matrix_lines(of_all, width)
        yield plain("")
    yield from wrapped(_READ, width, style="dim")


def _matrix_lines(of_all: KindMatrix, width: int) -> Iterator[Line]:
    names = [short_label(kind) for kind in of_all.kinds]
    wide = max(map(len, names[:MOST_PRINTED]))
    count = min(len(names), MOST_PRINTED, max(1, (width - wide - 3) // _CELL))
    first = of_all.kinds[0]
    yield plain(f"{first.gpus} x {first.device.name}: {plural(len(names), 'kind')} of jobs", "bold")
    yield plain(" " * (wide + 3) + "".join(f"{number:>{_CELL}}" for number in range(1, count + 1)), "bold")
    for row in range(count):
        cells = "".join(f"{_cell(of_all, row, column):>{_CELL}}" for column in range(count))
        yield plain(f"{row + 1:>2} {names[row]:<{wide}}{cells}")
    if count < len(names):
        yield plain(f"{count} of {plural(len(names), 'kind')}, those of most GPU-hours", "dim")


def _cell(of_all: KindMatrix, row: int, column: int) -> str:
    if of_all.full[row, column]:
        return "mem"
    slowdown = float(of_all.careful[row, column])
    return text(None) if slowdown != slowdown else f"{slowdown:.2f}"
