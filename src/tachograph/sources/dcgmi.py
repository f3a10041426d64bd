"""Parses output of `dcgmi`: `dmon`, its list of fields, and `discovery`.

Formats: DCGM's own `dcgmi` (2.x to 4.x), short names in `dcgmlib/src/dcgm_fields.cpp`. A header
names the columns and is repeated every 14 ticks, a row of units follows; one row per entity and
tick. Names differ between versions, so `dmon -l` of the installed one is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from tachograph.catalog.chunks import TEXT_BLANKS

# short names where `dmon -l` gives none; {name: field}
DMON_NAMES: Final[Mapping[str, int]] = MappingProxyType({
    "SMCLK": 100, "MMCLK": 101, "DVCCTR": 112, "MMTMP": 140, "MTMP": 140, "TMPTR": 150, "GTMP": 150, "POWER": 155,
    "TOTEC": 156, "PCIRP": 202, "GPUTL": 203, "MCUTL": 204, "XIDER": 230, "FBFRE": 251,
    "FBUSD": 252, "URMPS": 393, "CRMPS": 394, "RRF": 395, "GRACT": 1001, "SMACT": 1002, "SMOCC": 1003, "TENSO": 1004,
    "DRAMA": 1005, "DRACT": 1005, "FP64A": 1006, "FP32A": 1007, "FP16A": 1008, "PCITX": 1009, "PCIRX": 1010,
    "NVLTX": 1011, "NVLRX": 1012, "TIMMA": 1013, "THMMA": 1014, "TDFMA": 1015, "ESVTL": 310, "EDVTL": 311,
})  # fmt: skip
_TOKEN = re.compile(r"\S+")
_HEADER = re.compile(r"\s*#\s*Entity\b")
_UNITS = re.compile(r"\s*I[Dd]\b")
_ROW = re.compile(
    r"\s*(GPU|GPU-I|GPU-CI|vGPU|Switch|NvSwitch|Link|CPU|Core)\s+(\d{1,9})(?=\s|$)", re.ASCII
)
# where a line begins behind a time that another program wrote
_BEGIN = re.compile(
    r"#\s*Entity\b|\bI[Dd]\b|\b(?:GPU|GPU-I|GPU-CI|vGPU|Switch|Link|CPU|Core)\s+\d", re.ASCII
)
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_FIELD = re.compile(r"\S+\s+(\S+)\s+(\d{1,5})\s*", re.ASCII)
_DEVICE = re.compile(r"\|\s*(\d*)\s*\|\s*(Name|PCI Bus ID|Device UUID):\s*(.*?)\s*\|", re.ASCII)
_INSTANCE = re.compile(r"\bI\s+(\d+)/(\d+)\b.*EntityID:\s*(\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class DcgmEntity:
    """Entity of a row: GPU, GPU-I (slice), GPU-CI (part of a slice), others."""

    kind: str
    number: int


@dataclass(frozen=True, slots=True)
class DmonRow:
    """One row: {column: value} of numeric columns."""

    entity: DcgmEntity
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _DmonColumn:
    name: str
    start: int
    end: int


@dataclass(slots=True)
class DmonStream:
    """Output of `dmon`, line by line. columns: from the last header; complaints: other lines."""

    columns: tuple[str, ...] = ()
    complaints: list[str] = field(default_factory=list)
    _columns: tuple[_DmonColumn, ...] = ()

    def line(self, text: str) -> DmonRow | None:
        """Return the row in a line, or None.

        >>> stream = DmonStream()
        >>> stream.line("#Entity   GPUTL  SMACT"), stream.line("ID       ")
        (None, None)
        >>> stream.line("GPU 0     N/A    0.973")
        DmonRow(entity=DcgmEntity(kind='GPU', number=0), values={'SMACT': 0.973})
        """
        header = _HEADER.match(text)
        if header:
            self._columns = tuple(_DmonColumn(*token) for token in _tokens(text, header.end()))
            self.columns = tuple(column.name for column in self._columns)
            return None
        row = _ROW.match(text)
        if row and self._columns:
            values: dict[str, float] = {}
            for name, cell in _cells(self._columns, _tokens(text, row.end())).items():
                number = _number(cell)
                if number is not None:
                    values[name] = number
            return DmonRow(DcgmEntity(row[1], int(row[2])), values)
        message = " ".join(text.split())
        if message and not _UNITS.match(text):
            self.complaints = [*self.complaints[-_KEPT_COMPLAINTS:], message[:300]]
        return None


_KEPT_COMPLAINTS = 19


def split_time(text: str) -> tuple[str, str]:
    """Return the time that another program, such as `ts`, wrote before a line, and the line.

    >>> split_time("[2026-03-01 12:00:00] GPU 0     97"), split_time("GPU 0     97")
    (('2026-03-01 12:00:00', 'GPU 0     97'), ('', 'GPU 0     97'))
    """
    begin = _BEGIN.search(text)
    if begin is None:
        return "", text
    return text[: begin.start()].strip(" \t[]"), text[begin.start() :]


def _tokens(text: str, begin: int) -> list[tuple[str, int, int]]:
    """Return the words of a line from `begin` on, with begin and end of each."""
    return [(token[0], token.start(), token.end()) for token in _TOKEN.finditer(text, begin)]


def _cells(
    columns: Sequence[_DmonColumn], tokens: Sequence[tuple[str, int, int]]
) -> Mapping[str, str]:
    """{column: text}; empty if a cell's column is ambiguous.

    A row that is full is read in the order of the header. Where cells are empty, the others begin
    (or, in old versions, end) where their names do; else each lies between the beginnings of its
    name and of the next.
    """
    names = [column.name for column in columns]
    if len(set(names)) < len(names) or len(tokens) > len(columns):
        return {}
    if len(tokens) == len(columns):
        return {name: token[0] for name, token in zip(names, tokens, strict=True)}
    begins = {column.start: column.name for column in columns}
    ends = {column.end: column.name for column in columns}
    if all(start in begins for _, start, _ in tokens):
        return {begins[start]: text for text, start, _ in tokens}
    if all(end in ends for _, _, end in tokens):
        return {ends[end]: text for text, _, end in tokens}
    return _between(columns, tokens)


def _between(
    columns: Sequence[_DmonColumn], tokens: Sequence[tuple[str, int, int]]
) -> Mapping[str, str]:
    ends = [column.start for column in columns[1:]] + [1 << 30]
    cells: dict[str, str] = {}
    for text, start, end in tokens:
        inside = [
            title.name
            for title, until in zip(columns, ends, strict=True)
            if title.start <= start and end <= until
        ]
        if len(inside) != 1 or inside[0] in cells:
            return {}
        cells[inside[0]] = text
    return cells


def _number(cell: str) -> float | None:
    """Return the number in a cell; None for missing values and truncated cells (`1234...`)."""
    if cell in TEXT_BLANKS or not _NUMBER.fullmatch(cell):
        return None
    value = float(cell)
    return value if math.isfinite(value) else None


def dmon_fields(
    columns: Sequence[str], requested: Sequence[int], names: Mapping[str, int]
) -> Mapping[str, int]:
    """Return {column: field}, of columns that are known by name.

    A header stands in the order of the requested fields; so where it has as many columns, and every
    known name is in its place, the others are known, too.

    >>> dict(dmon_fields(["GPUTL", "SLOWT"], [203, 158], {"GPUTL": 203}))
    {'GPUTL': 203, 'SLOWT': 158}
    >>> dict(dmon_fields(["SLOWT", "GPUTL"], [203, 158], {"GPUTL": 203}))
    {'GPUTL': 203}
    """
    numbers = set(requested)
    fields = {name: names[name] for name in columns if names.get(name) in numbers}
    in_order = dict(zip(columns, requested, strict=False))
    if len(columns) == len(requested) and all(
        in_order[name] == number for name, number in fields.items()
    ):
        return in_order
    return fields


def dmon_field_names(listed: str) -> Mapping[str, int]:
    """Return {short name: field} from `dcgmi dmon -l`, without ambiguous names.

    >>> dict(dmon_field_names("gpu_utilization      GPUTL               203"))
    {'GPUTL': 203}
    """
    numbers: dict[str, int] = {}
    twice: set[str] = set()
    for line in listed.splitlines():
        row = _FIELD.fullmatch(line.strip())
        if row:
            twice |= {row[1]} & set(numbers)
            numbers[row[1]] = int(row[2])
    return {name: number for name, number in numbers.items() if name not in twice}


def discovered_devices(listed: str) -> Mapping[int, Mapping[str, str]]:
    """Return {GPU: {"Name": ..., "PCI Bus ID": ..., "Device UUID": ...}} of `dcgmi discovery -l`.

    >>> discovered_devices("| 0      | Name: NVIDIA H100 |\\n|        | PCI Bus ID: 00000000:18:00.0 |")
    {0: {'Name': 'NVIDIA H100', 'PCI Bus ID': '00000000:18:00.0'}}
    """
    devices: dict[int, dict[str, str]] = {}
    gpu: int | None = None
    for line in listed.splitlines():
        row = _DEVICE.match(line.strip())
        if row:
            gpu = int(row[1]) if row[1] else gpu
            if gpu is not None and row[3]:
                devices.setdefault(gpu, {})[row[2]] = row[3]
    return devices


def discovered_instances(listed: str) -> Mapping[int, tuple[int, int]]:
    """Return {number of a GPU-I entity: (GPU, slice)} from `dcgmi discovery -c`.

    >>> discovered_instances("| -> I 0/2          | GPU Instance (EntityID: 21)      |")
    {21: (0, 2)}
    """
    rows = (_INSTANCE.search(line) for line in listed.splitlines())
    return {int(row[3]): (int(row[1]), int(row[2])) for row in rows if row}
