"""Help: keys from their table, signs and colours, unsupported counters and how to enable them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from rich.segment import Segment

from tachograph.annexes.watch.live.fleet_rows import absent_columns
from tachograph.annexes.watch.live.render import weighed_parts
from tachograph.annexes.watch.live.unsupported import unsupported_lines
from tachograph.annexes.watch.live.view import FleetView
from tachograph.annexes.watch.tui import colours, keys
from tachograph.annexes.watch.tui.fleet_table import COLUMNS
from tachograph.annexes.watch.tui.page import Page, Row, heading, paragraph, side_by_side
from tachograph.catalog.units import printable
from tachograph.judge.health import CRIT, HOT, WARN
from tachograph.judge.workload.settings import Weights

PLACES = {
    "": "Everywhere",
    "fleet": "Fleet",
    "focus": "Focus on a GPU",
    "job": "Job",
}
# titles of columns that need an explanation -> explanation
ABBREVIATIONS: Mapping[str, str] = MappingProxyType(
    {
        "real": "real utilisation, see below",
        "GPU%": "utilisation: share of time with a kernel running",
        "cls": "class by its letter; for a group the most frequent, + with others",
        "SM": "SM activity: share of cycles with a resident warp",
        "GR": "share of time the engine was busy",
        "OCC": "occupancy: resident warps, share of the maximum",
        "TENS": "share of cycles the tensor pipes were active",
        "DRAM": "share of cycles device memory moved data",
        "FP64": "share of cycles the FP64 pipe was active; also FP32, FP16",
        "mem°": "memory temperature; temp: GPU temperature",
        "MHz": "SM clock",
        "PCIe<": "bytes per second from the host; PCIe>: to the host",
        "NVLnk": "NVLink bytes per second, both directions",
        "held": "time since the job got the GPU",
    }
)
_TWO_COLUMNS = 110  # characters: entries of half of it are still read without wrapping each
_KEY, _FILTER = 9, 18  # characters of the names that entries begin with


class HelpScreen(Page):
    """The whole help, in rows that scroll."""

    def rows(self, view: FleetView, width: int, height: int) -> Sequence[Row]:
        """Return all rows."""
        return help_rows(view, width=width)


def help_rows(view: FleetView, *, width: int) -> list[Row]:
    """Return the help in rows of `width` characters, in two columns if they fit."""
    troubles = [*_unsupported(view, width=width), *_problems(view, width=width)]
    if width < _TWO_COLUMNS:
        return [
            *troubles,
            *_signs(width),
            *_all_keys(("", "fleet"), width),
            *_columns(view, width),
            *_all_keys(tuple(PLACES)[2:], width),
            *_filters(width),
        ]
    half = (width - 3) // 2
    left_rows = _all_keys(("", "fleet"), half)
    right_rows = [
        *_signs(half),
        *_columns(view, half),
        *_filters(half),
        *_all_keys(tuple(PLACES)[2:], half),
    ]
    return [*troubles, *side_by_side([left_rows, right_rows], [half, half], gap=3)]


def _all_keys(screens: Sequence[str], width: int) -> list[Row]:
    rows: list[Row] = []
    for screen in screens:
        rows.append(heading(PLACES[screen], width))
        for key in keys.of(screen):
            rows += _entry(key.shown, key.text, _KEY, width)
        rows.append([])
    return rows


def _filters(width: int) -> list[Row]:
    rows = [heading("Filters", width)]
    for written, meaning in (
        ("ana", "in name, job, user, class or health"),
        ("user=ana", "exact; job=10*, job=- (no job known)"),
        ("class=idle", "a class, its code, or a bottleneck: class=memory"),
        ("sm<20", "percent; also <= > >= = !=; mem>40 (GiB), power>500"),
        ("!nid00 health!=OK", "negation; all terms must match"),
    ):
        rows += _entry(written, meaning, _FILTER, width)
    return [*rows, []]


def real_sentence(weights: Weights) -> str:
    """Return the definition of real utilisation.

    >>> real_sentence((0.5, 0.0, 0.5, 0.0))
    'Real utilisation is a weighted mean: 50 % of SM + 50 % of DRAM activity.'
    """
    parts = " + ".join(weighed_parts(weights, "% of"))
    return f"Real utilisation is a weighted mean: {parts} activity."


def _columns(view: FleetView, width: int) -> list[Row]:
    rows = [heading("Columns of the fleet", width)]
    absent = {column.title for column in COLUMNS if column.name in absent_columns(view)}
    for title, meaning in ABBREVIATIONS.items():
        if title not in absent:
            rows += _entry(title, meaning, _KEY, width)
    return [*rows, *paragraph(real_sentence(view.settings.weights), width), []]


def _signs(width: int) -> list[Row]:
    limits: Row = []
    for look in colours.SHOWN_LOOKS:
        limits += [Segment(look.mark, look.style), Segment(f" {look.name}  ")]
    health: Row = []
    for state, meaning in ((HOT, "hot"), (WARN, "new errors"), (CRIT, "memory errors")):
        health += [
            Segment(colours.state_text(state), colours.HEALTH_STYLES[state]),
            Segment(f" {meaning}   "),
        ]
    return [heading("Bottleneck and health", width), limits, health, []]


def _unsupported(view: FleetView, *, width: int) -> list[Row]:
    if not view.about.unsupported:
        return []
    rows = [heading("Unsupported counters", width)]
    for line in unsupported_lines(view.about, begin=""):
        rows += paragraph(printable(line), width, indent=2)
    return [*rows, []]


def _problems(view: FleetView, *, width: int) -> list[Row]:
    if not view.snapshot.problems:
        return []
    rows = [heading("Problems", width)]
    for problem in view.snapshot.problems:
        rows += paragraph(printable(problem.sentence), width, colours.NOTICE, indent=2)
    return [*rows, []]


def _entry(name: str, text: str, room: int, width: int) -> list[Row]:
    """Return a name with its explanation, wrapped over several rows."""
    body = paragraph(text, max(10, width - room - 1))
    first: Row = [Segment(f"{name:<{room}} ", colours.BOLD), *body[0]]
    if len(name) > room:
        first = [Segment(f"{name} ", colours.BOLD)]
        body = [[], *paragraph(text, max(10, width - room - 1))]
    return [first, *([Segment(" " * (room + 1)), *row] for row in body[1:])]
