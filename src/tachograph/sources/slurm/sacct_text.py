"""Records of `sacct --parsable2` text, and the parts written by users.

Slurm keeps line breaks and delimiters in job names and submit lines, and sacct prints them as they
are. So a line of a text column may look like a record of another job, byte for byte. Three kinds of
text are read: without any column that a user can write, each line is a record; with a delimiter
that nobody could know, text ends where it stands; anything else only on the word of who exported
it.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import TypedDict

from tachograph.catalog.errors import InputError
from tachograph.sources.slurm.commands import FIELDS, IDENTITY
from tachograph.sources.slurm.records import RejectedRecord, SlurmEntry

DELIMITERS = ("^|^", "|#", "|", ";", "\t", ",")
QUOTING = (",", ";", "\t")  # what programs that write CSV put between fields
_QUOTED = re.compile(r'(?:^|[,;\t])"', re.MULTILINE)

# sacct -P -n -X -D of Open XDMoD, and the fields of docs/accounting.md, now and before (submit line
# last)
_XDMOD = (
    "jobid jobidraw cluster partition qos account group gid user uid submit eligible start end "
    "elapsed exitcode "
    "state nnodes ncpus reqcpus reqmem reqtres alloctres timelimit nodelist jobname"
)
_BEFORE = (
    "jobid jobidraw cluster partition qos account user submit eligible start end elapsed state "
    "exitcode nnodes "
    "nodelist alloctres reqtres constraints timelimit jobname submitline"
)
_DOCUMENTED = (  # not one field more or less than another list: the last one may be empty
    "jobid jobidraw cluster partition qos account user submit eligible start end elapsed "
    "suspended state exitcode "
    "nnodes nodelist alloctres reqtres reqcpus reqmem totalcpu maxrss tresusageintot "
    "constraints timelimit jobname "
    "submitline"
)
_UNGUESSABLE = 16  # characters of a random delimiter, at the least: 64 bits in hexadecimal
_COLUMN_NAME = re.compile(r"[A-Za-z]+(?:%-?\d+)?\r?")

LAYOUTS = tuple(tuple(names.split()) for names in (_XDMOD, _BEFORE, _DOCUMENTED))
# fields in which people write what they like, the likeliest to hold a delimiter first
_FREE = (
    "submitline",
    "jobname",
    "comment",
    "admincomment",
    "systemcomment",
    "extra",
    "workdir",
    "reason",
)
FIELD_NAMES = IDENTITY.union(FIELDS.lower().split(), _FREE)  # of sacct, in lower case

_ID = re.compile(r"[1-9]\d{0,17}(?:_(?:\d+|\[[^\]|]*\](?:%\d+)?)|\+\d+)?(?:\.\S+)?\Z", re.ASCII)
_RAW_ID = re.compile(r"(?:[1-9]\d{0,17}(?:\.\S+)?)?\Z", re.ASCII)
_TIME = re.compile(r"(?:\d{4}-\d\d-\d\dT\d\d:\d\d.*|\d+|Unknown|None|N/A|)\Z")
_SHAPES: Mapping[str, re.Pattern[str]] = {
    "jobid": _ID,
    "jobidraw": _RAW_ID,
    "state": re.compile(r"(?:[A-Z][A-Z_]*\+?(?: by .*)?|)\Z"),
    "exitcode": re.compile(r"(?:\d+:\d+|)\Z", re.ASCII),
    **dict.fromkeys(("submit", "eligible", "start", "end"), _TIME),
    **dict.fromkeys(("elapsed", "suspended"), re.compile(r"(?:[\d:.-]+|)\Z", re.ASCII)),
    **dict.fromkeys(
        ("elapsedraw", "nnodes", "ncpus", "alloccpus", "uid"), re.compile(r"\d*\Z", re.ASCII)
    ),
    **dict.fromkeys(
        ("alloctres", "reqtres"), re.compile(r"(?:[^=,]+=[^=,]*(?:,[^=,]+=[^=,]*)*|)\Z")
    ),
}


@dataclass(frozen=True)
class SacctLayout:
    """Column names (lower case) and the delimiter."""

    names: tuple[str, ...]
    delimiter: str
    has_header: bool

    @cached_property
    def checks(self) -> list[tuple[int, re.Pattern[str]]]:
        """Columns whose content has a known format."""
        return [
            (position, _SHAPES[name]) for position, name in enumerate(self.names) if name in _SHAPES
        ]

    @cached_property
    def id_checks(self) -> list[tuple[int, re.Pattern[str]]]:
        """The columns that identify the start of a record."""
        return [
            (position, _ID if name == "jobid" or "jobid" not in self.names else _RAW_ID)
            for position, name in enumerate(self.names)
            if name in {"jobid", "jobidraw"}
        ]

    @cached_property
    def free(self) -> tuple[int, ...]:
        """Columns that may contain delimiters; the last one if none is known."""
        if not self.holds_text:
            return ()
        columns = [self.names.index(name) for name in _FREE if name in self.names]
        return tuple(columns) or (len(self.names) - 1,)

    @property
    def holds_text(self) -> bool:
        """Whether users can write into one of the columns."""
        return not IDENTITY.issuperset(self.names)

    @property
    def is_framed(self) -> bool:
        """Return whether records are unambiguous: unguessable delimiter, id first."""
        return is_unguessable(self.delimiter) and self.names[0] in IDENTITY

    @property
    def open_end(self) -> bool:
        """Whether the last column may go on in the next line."""
        return self.names[-1] in _FREE

    def starts(self, line: str) -> bool:
        """Return whether a line starts a record: its id columns look like job ids."""
        values = line.split(self.delimiter, self.id_checks[-1][0] + 1)
        # An id is followed by a delimiter.
        if len(values) <= min(self.id_checks[0][0] + 1, len(self.names) - 1):
            return False
        return all(
            pattern.match(values[position])
            for position, pattern in self.id_checks
            if position < len(values)
        )

    def checked(self, where: str) -> SacctLayout:
        """Return the layout itself when jobs can be read from it.

        Errors: InputError when start or end is not among the fields.
        """
        missing = [name for name in ("Start", "End") if name.lower() not in self.names]
        if missing:
            raise InputError(
                f"no field {' and no field '.join(missing)}",
                where=where,
                do="export with sacct --parsable2 "
                "--format=JobID,JobIDRaw,User,Submit,Start,End,Elapsed,State,NodeList,AllocTRES",
            )
        return self


def is_unguessable(delimiter: str) -> bool:
    """Return whether a delimiter is random enough that no user could write it into a text before.

    >>> is_unguessable("0b8f3c52-6a0e-4a3f-9f2d-8f6c2b1d7e90"), is_unguessable("^|^"), is_unguessable("|" * 40)
    (True, False, False)
    """
    return len(delimiter) >= _UNGUESSABLE and len(set(delimiter)) >= _UNGUESSABLE // 2


def column_names(fields: str) -> tuple[str, ...]:
    """Return the names of a `--fields` list, lower case, without widths.

    >>> column_names("JobID,JobIDRaw,JobName%50")
    ('jobid', 'jobidraw', 'jobname')

    Errors: InputError when it names no job id.
    """
    names = tuple(
        name.strip().partition("%")[0].lower() for name in fields.split(",") if name.strip()
    )
    if "jobid" not in names and "jobidraw" not in names:
        raise InputError(
            "the list of fields names no JobID",
            where="--fields",
            do="give the list of fields that sacct was run with",
        )
    return names


def find_layout(
    first_line: str, *, fields: str | None, delimiter: str | None, where: str
) -> SacctLayout:
    """Return the layout of a file from its first line: header, `fields`, or a known list of fields.

    Errors: InputError when it is unknown.
    """
    line = first_line.rstrip("\r")
    between = delimiter or _delimiter_of(line)
    if between is None:
        raise InputError(
            "this is not sacct text with delimiters",
            where=where,
            do="export with `sacct --parsable2` or `sacct --json`",
        )
    parts = [part.strip().strip('"').lower() for part in line.split(between)]
    written = len(parts)
    if parts[-1] == "" and len(parts) > 1:  # --parsable: a trailing delimiter
        parts.pop()
    if "jobid" in parts or "jobidraw" in parts:
        return SacctLayout(
            tuple(part.partition("%")[0] for part in parts), between, has_header=True
        ).checked(where)
    if fields:
        return SacctLayout(column_names(fields), between, has_header=False).checked(where)
    for names in LAYOUTS:
        layout = SacctLayout(names, between, has_header=False)
        if len(names) in {len(parts), written} and layout.starts(line):
            return layout
    raise InputError(
        f"no header, and no known list has {len(parts)} fields",
        where=where,
        do="export without --noheader, or give the list with --fields jobid,jobidraw,...",
    )


def _delimiter_of(line: str) -> str | None:
    """Return a line's delimiter; a long one only if it includes every bar."""
    if (random := _random_delimiter(line)) is not None:
        return random
    bars = line.count("|")
    for candidate in DELIMITERS:
        if candidate in line and (len(candidate) == 1 or line.count(candidate) == bars):
            return candidate
    return None


def _random_delimiter(header: str) -> str | None:
    """Return a header's unguessable delimiter."""
    name = re.match("jobidraw|jobid|cluster", header, re.IGNORECASE)
    if name is None:
        return None
    rest = header[name.end() :]
    for size in range(min(64, len(rest)), _UNGUESSABLE - 1, -1):
        # --parsable: one more at the end
        names = rest.removesuffix(rest[:size]).split(rest[:size])[1:]
        if (
            len(names) > 1
            and is_unguessable(rest[:size])
            and all(map(_COLUMN_NAME.fullmatch, names))
        ):
            return rest[:size]
    return None


def decode(content: bytes, *, where: str) -> tuple[str, bool]:
    """Return the text and whether it is valid UTF-8; other bytes become surrogates.

    Errors: InputError for UTF-16.
    """
    if content[:2] in {b"\xff\xfe", b"\xfe\xff"}:
        raise InputError("the file is UTF-16", where=where, do="save it as UTF-8")
    try:
        return content.decode("utf-8-sig"), True
    except UnicodeDecodeError:
        return content.decode("utf-8-sig", "surrogateescape"), False


TextKey = tuple[str, str, str]  # cluster, raw id, submit time: a run of a job, or a step


@dataclass(slots=True)
class WrittenTexts:
    """Texts that users wrote, per run and step, from a separate answer, joined by id.

    of: {key: {column: text}}. ambiguous: keys with two different texts, both unused. used: the
    texts taken.
    """

    of: dict[TextKey, dict[str, str]] = field(default_factory=dict)
    ambiguous: set[TextKey] = field(default_factory=set)
    used: set[TextKey] = field(default_factory=set)

    def join(self, fields: Mapping[str, str]) -> dict[str, str]:
        """Return the fields of a record with its texts; its own fields are never replaced."""
        key = _text_key(fields)
        self.used.add(key)
        return {**self.of.get(key, {}), **fields}

    def rejected(self) -> list[RejectedRecord]:
        """Texts that match no record, or belong to a record with two."""
        unknown = [
            (0, "text_of_unknown_job", ".".join(key)) for key in self.of if key not in self.used
        ]
        return [*unknown, *((0, "two_texts", ".".join(key)) for key in sorted(self.ambiguous))]


def _text_key(fields: Mapping[str, str]) -> TextKey:
    return fields.get("cluster", ""), fields.get("jobidraw", ""), fields.get("submit", "")


def read_texts(content: bytes, *, delimiter: str, where: str) -> WrittenTexts:
    """Return users' texts in an answer of sacct with columns framed by the raw id.

    Errors: InputError where the answer cannot be split: the delimiter is in a text, so somebody saw
    it in time.
    """
    header, _, rest = decode(content, where=where)[0].partition("\n")
    names = tuple(name.lower() for name in header.split(delimiter))
    texts = WrittenTexts()
    for _, values in _framed(rest, names, delimiter, line=2, where=where):
        if len(values) != len(names) or values[-1] != values[names.index("jobidraw")]:
            raise _cannot_split(where)
        fields = dict(zip(names[:-1], values[:-1], strict=True))
        key = _text_key(fields)
        written = {name: value for name, value in fields.items() if name not in IDENTITY}
        if texts.of.setdefault(key, written) != written:
            texts.ambiguous.add(key)
    for key in texts.ambiguous:
        del texts.of[key]
        texts.used.add(key)
    return texts


def _cannot_split(where: str) -> InputError:
    return InputError(
        "a text holds the delimiter, or a part is missing",
        where=where,
        do="export it again, with a new delimiter",
    )


def _framed(
    text: str, names: Sequence[str], delimiter: str, *, line: int, where: str
) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and values of records, from `line` on; no text has the delimiter.

    The last column ends at the last line break before the first column of the next record. A record
    that is cut off has fewer values. Errors: InputError where a record does not end in a line
    break.
    """
    if not text.strip():
        return
    parts = text.removesuffix("\n").split(delimiter)
    width = len(names) - 1
    first = parts[0]
    for begin in range(0, len(parts) - 1, width):
        values = [first, *parts[begin + 1 : begin + width + 1]]
        if begin + width < len(parts) - 1:
            values[-1], line_break, first = values[-1].rpartition("\n")
            if not line_break:
                raise _cannot_split(where)
        values[-1] = values[-1].removesuffix("\r")
        yield line, values
        line += sum(value.count("\n") for value in values) + 1


class TextOptions(TypedDict, total=False):
    """Keywords of `read_text` that say how a text is read."""

    fields: str | None
    delimiter: str | None
    trusted: bool
    texts: WrittenTexts | None


def read_text(
    content: bytes,
    *,
    where: str,
    replaced: Counter[str],
    fields: str | None = None,
    delimiter: str | None = None,
    trusted: bool = False,
    texts: WrittenTexts | None = None,
) -> Iterator[SlurmEntry]:
    """Yield records of `sacct --parsable2`, {field: text}; `place`: first line number.

    Bytes that are not UTF-8 become U+FFFD and are counted in `replaced` by field. `texts`: of these
    records, from another answer. `trusted`: no text of this file holds a line that looks like a
    record, by who exported it. Errors: InputError when the layout is unknown, or a text could be
    read as a record; a record that cannot be split has a reason instead of fields.
    """
    text, clean = decode(content, where=where)
    lines = text.split("\n")
    first = next((line for line in lines if line.strip()), "")
    layout = find_layout(first, fields=fields, delimiter=delimiter, where=where)
    numbers = _are_numbers(lines, layout)
    for position, record, values in _records_of(
        text, lines, layout, first, where=where, trusted=trusted
    ):
        if values is None:
            yield SlurmEntry(position, _replace(record), reason="field_count")
            continue
        named = dict(zip(layout.names, values, strict=True)) | numbers
        if texts is not None:
            named = texts.join(named)
        if texts is not None or (not clean and not record.isascii()):
            named = {name: _counted_replace(name, value, replaced) for name, value in named.items()}
            record = _replace(record)
        yield SlurmEntry(position, record, named)


def _records_of(
    text: str, lines: Sequence[str], layout: SacctLayout, first: str, *, where: str, trusted: bool
) -> Iterator[tuple[int, str, list[str] | None]]:
    """Place, text and fields of the records, by the method that suits columns and delimiter."""
    header = first.rstrip("\r") if layout.has_header else None
    if layout.holds_text and layout.is_framed:
        begin = text.index(first) + (len(first) + 1 if layout.has_header else 0)
        ends_in_delimiter = first.rstrip("\r").endswith(layout.delimiter)
        columns = (*layout.names, "") if ends_in_delimiter else layout.names
        line_number = text.count("\n", 0, begin) + 1
        for position, values in _framed(
            text[begin:], columns, layout.delimiter, line=line_number, where=where
        ):
            if tuple(value.lower() for value in values) != columns:
                whole = values[: len(layout.names)] if len(values) == len(columns) else None
                yield position, layout.delimiter.join(values), whole
        return
    several = sum(bool(line.strip()) for line in lines) > (2 if layout.has_header else 1)
    if layout.holds_text and several and not trusted:
        raise _refused(layout, where)
    if layout.has_header and layout.delimiter in QUOTING and _QUOTED.search(text):
        yield from _csv_records(text, layout)
        return
    records = _records(lines, layout, header) if layout.holds_text else enumerate(lines, start=1)
    for position, line in records:
        record = line.removesuffix("\r")
        if record.strip() and record != header:
            yield position, record, _split(record, layout)


def _refused(layout: SacctLayout, where: str) -> InputError:
    names = ", ".join(name for name in layout.names if name not in IDENTITY)
    return InputError(
        (
            f"a line may be a record or text of a user ({names}): the delimiter "
            f"{layout.delimiter!r} can be guessed"
        ),
        where=where,
        do="export it with sacct --parsable2 --delimiter=$(cat /proc/sys/kernel/random/uuid) "
        "or sacct --json, leave "
        "these columns out, or add --trusted",
    )


def _are_numbers(lines: Iterable[str], layout: SacctLayout) -> dict[str, str]:
    """Return whether all ids look like 605717.0: numbers, not steps."""
    if not layout.has_header or layout.names[0] != "jobid" or "step" in layout.names:
        return {}
    ids = [
        line.split(layout.delimiter, 1)[0].strip('"')
        for line in lines
        if line[:1].isdigit() or line[:1] == '"'
    ]
    records = [word for word in ids if word[:1].isdigit()]
    return {"step": ""} if records and all(word.endswith(".0") for word in records) else {}


def _csv_records(text: str, layout: SacctLayout) -> Iterator[tuple[int, str, list[str] | None]]:
    """Yield place, text and fields of quoted CSV records; no fields: wrong number."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=layout.delimiter)
    begin = 1
    try:
        for values in reader:
            begin, position = reader.line_num + 1, begin
            names = tuple(value.strip().partition("%")[0].lower() for value in values)
            if any(values) and names != layout.names:
                text_of = layout.delimiter.join(values)
                yield (
                    position,
                    text_of,
                    values if len(values) == len(layout.names) else _split(text_of, layout),
                )
    except csv.Error as problem:
        yield begin, str(problem), None


def _records(
    lines: Iterable[str], layout: SacctLayout, header: str | None
) -> Iterator[tuple[int, str]]:
    """Lines joined to records, with the first line number."""
    field_count, between = len(layout.names), layout.delimiter
    held: list[str] = []
    begun = count = 0
    for number, line in enumerate(lines, start=1):
        line = line.removesuffix("\r")
        if header is not None and line == header:
            continue
        width = line.count(between) + 1
        if held and not _begins(line, width, count, field_count, layout):
            if line or layout.open_end or count < field_count:
                held.append(line)
                count += width - 1
            continue
        if held:
            yield begun, "\n".join(held).rstrip("\n")
        held, begun, count = ([line], number, width) if line.strip() else ([], number, 0)
    if held:
        yield begun, "\n".join(held).rstrip("\n")


def _begins(line: str, width: int, count: int, field_count: int, layout: SacctLayout) -> bool:
    """Whether a line of `width` fields begins a record, after `count` of `field_count` fields."""
    if count < field_count:  # the record before is not complete: go on, unless that cannot be
        overfull = count + width - 1 > field_count
        return (width >= field_count or overfull) and (
            layout.starts(line) or (width >= field_count and overfull)
        )
    if not line:
        return False
    return width >= field_count or not layout.open_end or layout.starts(line)


def _split(record: str, layout: SacctLayout) -> list[str] | None:
    """Return the fields of a record, rejoining a free text that holds the delimiter."""
    parts = record.split(layout.delimiter)
    width = len(layout.names)
    if len(parts) == width + 1 and not parts[-1].strip():
        parts.pop()
    if len(parts) <= width:
        return parts if len(parts) == width else None
    for whole in _joined(parts, layout):
        if all(pattern.match(whole[position]) for position, pattern in layout.checks):
            return whole
    return None


def _joined(parts: list[str], layout: SacctLayout) -> Iterator[list[str]]:
    """All ways to rejoin surplus delimiters into one free text, then into two."""
    surplus = len(parts) - len(layout.names)
    for position in layout.free:
        yield _join(parts, [(position, surplus)], layout.delimiter)
    if surplus > 64:
        return
    for low, high in combinations(sorted(layout.free), 2):
        for share in range(1, surplus):
            yield _join(parts, [(low, share), (high, surplus - share)], layout.delimiter)


def _join(parts: list[str], shares: list[tuple[int, int]], between: str) -> list[str]:
    """`parts` with the fields at (index, surplus) joined; indices count in the result."""
    whole: list[str] = []
    taken = 0
    for position, surplus in shares:
        ahead = position - len(whole)
        whole += parts[taken : taken + ahead]
        taken += ahead
        whole.append(between.join(parts[taken : taken + surplus + 1]))
        taken += surplus + 1
    return whole + parts[taken:]


def _replace(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _counted_replace(name: str, value: str, replaced: Counter[str]) -> str:
    whole = value if value.isascii() else _replace(value)
    if whole != value:
        replaced[name] += 1
    return whole
