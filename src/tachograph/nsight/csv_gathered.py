"""What the tables of one file gave so far, and what both pages say of a launch in the same columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from tachograph.nsight.catalogue import unit_factor
from tachograph.nsight.counted import Counted, encodable
from tachograph.nsight.csv_numbers import Numbers
from tachograph.nsight.launch import Chip, Launch, capability_of

UNKNOWN_UNIT = "a unit that is not known, or not of this metric"
NO_UNIT = "a value without its unit, which may be scaled"
TOO_FEW = "a row with too few cells"
TOO_MANY = "a row with too many cells"
NO_ID = "a row without an ID or a name of its kernel"
SURELY_BASE = 1000.0  # ncu scales what reaches it, so a value that did is in base units

_ATTRIBUTE = "device__attribute_"
_CLOCK = re.compile("clock|frequency")
_ID = re.compile(r"(\d{1,18})(?:\.0)?")
_WHOLE = re.compile(r"\d{1,18}")
_RANGES = (":Push/Pop_Range:", ":Start/Stop_Range:")
_RANGE_FIELDS = 6  # behind the name of a range, each after a colon
_DEFAULT_DOMAIN = "<default domain>"


class Table(Protocol):
    """One table of a file. `needed`: how many cells a row has at least."""

    needed: int

    def take(self, row: list[str]) -> None:
        """Read a row."""

    def finish(self, cut: Sequence[str] | None) -> None:
        """End the table. `cut`: the cells that are left of a row that the end of the file cut; None: it was not cut."""


@dataclass(slots=True)
class Gathered:
    """What was read of one file. `lost`: launches of which the end of the file cut something."""

    file: str
    counted: Counted
    numbers: Numbers
    launches: list[Launch] = field(default_factory=list)
    lost: int = 0
    summarised: int = 0  # rows of kernels of which only means over their launches were told
    _texts: dict[str, str] = field(default_factory=dict)

    def same(self, text: str) -> str:
        """Return the same object for the same text: names come again with each launch, and are kept."""
        return self._texts.setdefault(text, text)


@dataclass(frozen=True, slots=True)
class Identity:
    """Where the columns stand that say which launch a row is of; None: there is no such column."""

    kernel: int
    number: int | None
    grid: int | None
    block: int | None
    device: int | None
    capability: int | None
    ranges: tuple[int, ...]
    all: tuple[int, ...]

    @classmethod
    def of(cls, names: Sequence[str]) -> Identity:
        """Return the places in these names of columns."""
        places = {name: place for place, name in reversed(list(enumerate(names)))}
        ranges = tuple(place for place, name in enumerate(names) if is_range(name))
        known = ("ID", "Process ID", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size", "Device", "CC")
        return cls(
            kernel=places["Kernel Name"],
            number=places.get("ID"),
            grid=places.get("Grid Size"),
            block=places.get("Block Size"),
            device=places.get("Device"),
            capability=places.get("CC"),
            ranges=ranges,
            all=tuple(sorted({places[name] for name in known if name in places} | set(ranges))),
        )

    def number_in(self, row: Sequence[str]) -> int | None:
        """Return the ID of the launch, None where the cell holds none."""
        found = _ID.fullmatch(row[self.number].strip()) if self.number is not None else None
        return int(found[1]) if found else None

    def ranges_in(self, row: Sequence[str]) -> tuple[str, ...]:
        """Return the NVTX ranges around the launch, outermost first."""
        return tuple(name for place in self.ranges for name in nvtx_ranges(row[place]))


def is_range(column: str) -> bool:
    """Whether the column lists NVTX ranges."""
    return any(mark in column for mark in _RANGES)


def nvtx_ranges(cell: str) -> tuple[str, ...]:
    """Return the names of the ranges in a cell, those of a domain as `domain@name`.

    >>> nvtx_ranges('13416  "<default domain>:forward:none:none:none:none:none:none"')
    ('forward',)
    """
    found = (text.rsplit(":", _RANGE_FIELDS)[0].partition(":") for text in _quoted(cell))
    return tuple(name if domain == _DEFAULT_DOMAIN else f"{domain}@{name}" for domain, _, name in found)


def _quoted(cell: str) -> Iterator[str]:
    """Yield what stands in quotes and ends in the fields of a range: names of ranges have quotes and colons, too.

    By hand, as an expression would take the square of the length for a cell of many quotes or colons.
    """
    parts = cell.split('"')
    start = 1
    for end, part in enumerate(parts[:-1]):
        if end >= start and part.count(":") >= _RANGE_FIELDS:
            yield '"'.join(parts[start : end + 1])
            start = end + 2


@lru_cache(maxsize=4096)
def dimensions(cell: str | None) -> tuple[int, int, int] | None:
    """Return the size in x, y, z; None where the cell does not tell it.

    >>> dimensions("(384, 1, 1)"), dimensions("384")
    ((384, 1, 1), None)
    """
    numbers = [int(number) for number in _WHOLE.findall(cell)] if cell else []
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 else None


def cell_at(row: Sequence[str], place: int | None) -> str | None:
    """Return the cell without white space around it; None where there is no such column, or nothing in it."""
    return (encodable(row[place].strip()) or None) if place is not None else None


def attribute_of(metric: str) -> str | None:
    """Return the name of the attribute of the device, None for any other metric."""
    return metric[len(_ATTRIBUTE) :] if metric.startswith(_ATTRIBUTE) else None


def attribute_factor(attribute: str, unit: str) -> float | None:
    """Return the factor to what attributes are told in: clocks in kHz, memory in byte. None: unknown unit.

    >>> attribute_factor("clock_rate", "Ghz"), attribute_factor("clock_rate", ""), attribute_factor("l2_cache_size", "")
    (1000000.0, 1.0, 1.0)
    """
    factor = unit_factor(unit)
    return factor / 1e3 if factor is not None and unit.strip() and _CLOCK.search(attribute) else factor


def chip_of(device: str | None, capability: str | None, attributes: Mapping[str, float]) -> Chip:
    """Return the chip. `device`: its name, or its ordinal, which says nothing of it."""
    named = device is not None and not _WHOLE.fullmatch(device)
    return Chip(device if named else None, capability or capability_of(attributes), attributes)
