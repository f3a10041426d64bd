"""The Prometheus text format, read fast: the samples of a page, and the rejected lines.

The format is Prometheus' "Text-based format" 0.0.4; prometheus-client's parser is the reference.
The lines that exporters write, `NAME{LABELS} VALUE [TIMESTAMP]`, are taken apart here; every other
one is left to the reference, so both read the same. The labels of one GPU repeat with every metric:
they stay text until they are needed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import TypeVar

from prometheus_client.parser import parse_labels, text_string_to_metric_families

from tachograph.catalog.chunks import Reject

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
_LABEL = re.compile(r'([a-zA-Z][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"', re.ASCII | re.DOTALL)
_LABELS = re.compile(rf"(?:{_LABEL.pattern}(?:,{_LABEL.pattern})*,?)?", re.ASCII | re.DOTALL)
_ESCAPED = re.compile(r'\\([\\n"])')
_SIGNS = {"\\": "\\", "n": "\n", '"': '"'}
ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
# The reference runs off the end of some broken lines.
_NOT_READ = (ValueError, IndexError, OverflowError)
_BLOCKS_KEPT = 1 << 16
_LONGEST_KEPT = 1 << 11  # characters of names and labels that are remembered
_LONGEST_LINE = 1 << 16  # characters; the reference takes time by the square of a line
_NO_PAGE = 1000  # unreadable lines in a row from the beginning: this is something else
_T = TypeVar("_T")


@dataclass(slots=True)
class PageSamples:
    """The samples of a page, column by column.

    `labels`: as written between the braces, see `labels_of`; `stamps`: seconds since 1970, None
    where none is written. `rejects`: `unreadable_line`, `not_text` (no UTF-8), `cut_off_line` (the
    page does not end with a line end). `unread`: how many lines the metrics have that are not
    wanted.
    """

    names: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    stamps: list[float | None] = field(default_factory=list)
    rejects: tuple[Reject, ...] = ()
    unread: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_stamped(self) -> bool:
        """Return whether any value has a timestamp."""
        return self.stamps.count(None) < len(self.stamps)

    def __iter__(self) -> Iterator[tuple[str, str, float, float | None]]:
        return zip(self.names, self.labels, self.values, self.stamps, strict=True)


class _Everything:
    """A container that everything is in."""

    def __contains__(self, name: object) -> bool:
        return True


_EVERYTHING = _Everything()


def parse_page(page: bytes, *, wanted: Container[str] = _EVERYTHING) -> PageSamples:
    """Return the samples of a page, of the metrics `wanted` or all.

    Lines of other metrics are not read, so they are not rejected either.

    >>> list(parse_page(b'# HELP t Temperature\\nt{gpu="0"} 41\\nt{gpu="1"} 39 1700000000000\\n'))
    [('t', 'gpu="0"', 41.0, None), ('t', 'gpu="1"', 39.0, 1700000000.0)]
    """
    lines, rejects = _lines(page)
    # OpenMetrics writes seconds.
    per_second = 1 if lines and lines[-1].startswith("# EOF") else 1000
    names: list[str] = []
    blocks: list[str] = []
    values: list[float] = []
    stamps: list[float | None] = []
    unread: list[str] = []
    unreadable: list[str] = []
    # Local names: this loop runs once per line of every scrape.
    is_name, plain = _is_name, _labels_written_plainly
    rest = iter(lines)
    for raw_line in rest:
        line = raw_line.strip()
        if not line or line[0] == "#":
            continue
        head, brace, tail = line.rpartition("} ")
        if brace:
            name, brace, block = head.partition("{")
        else:
            name, brace, tail = line.partition(" ")
            block = ""
        if is_name(name):
            if name not in wanted:
                unread.append(name)
                continue
            try:
                if brace and "_" not in tail and plain(block) is not None:
                    if " " in tail:
                        value, _, written = tail.partition(" ")
                        stamp = int(written) / per_second if written.isdecimal() else None
                        values.append(float(tail if stamp is None else value))
                        stamps.append(stamp)
                    else:
                        values.append(float(tail))
                        stamps.append(None)
                    names.append(name)
                    blocks.append(block)
                    continue
            except (ValueError, OverflowError):
                pass
        odd = _by_reference(line, per_second)
        if odd is None:
            unreadable.append(line)
            if len(unreadable) >= _NO_PAGE and not names:
                unreadable += rest
        elif odd[0] in wanted:
            names.append(odd[0])
            blocks.append(odd[1])
            values.append(odd[2])
            stamps.append(odd[3])
    counted = (*rejects, *_counted("unreadable_line", unreadable))
    return PageSamples(names, blocks, values, stamps, counted, Counter(unread))


def at_places(column: list[_T], indices: Sequence[int]) -> list[_T]:
    """Return the values of a column at some indices."""
    if isinstance(indices, range):  # all series of a metric are contiguous
        return column[indices.start : indices.stop]
    return [column[index] for index in indices]


def labels_of(block: str) -> Mapping[str, str]:
    """Return the labels written between braces.

    >>> dict(labels_of('gpu="0",modelName="a, \\\\"b\\\\" }"'))
    {'gpu': '0', 'modelName': 'a, "b" }'}
    """
    plain = _labels_written_plainly(block)
    return MappingProxyType(parse_labels(block)) if plain is None else plain


def _labels_written_plainly(block: str) -> Mapping[str, str] | None:
    return _plain_labels(block) if len(block) <= _LONGEST_KEPT else _plain_labels.__wrapped__(block)


@lru_cache(maxsize=_BLOCKS_KEPT)
def _plain_labels(block: str) -> Mapping[str, str] | None:
    """Return the labels if they are in exporters' usual form and unique; then braces are quoted."""
    if not _LABELS.fullmatch(block):
        return None
    pairs = _LABEL.findall(block)
    if "\\" in block:
        pairs = [(name, _ESCAPED.sub(lambda sign: _SIGNS[sign[1]], value)) for name, value in pairs]
    labels = dict(pairs)
    return MappingProxyType(labels) if len(labels) == len(pairs) else None


def _is_name(name: str) -> bool:
    return len(name) <= _LONGEST_KEPT and _is_short_name(name)


@lru_cache(maxsize=4096)
def _is_short_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def _by_reference(line: str, per_second: int) -> tuple[str, str, float, float | None] | None:
    """One sample as parsed by the reference; None if it fails."""
    if len(line) > _LONGEST_LINE:
        return None
    try:
        (family,) = text_string_to_metric_families(line)
        (sample,) = family.samples
        value = float(sample.value)
    except _NOT_READ:
        return None
    block = ",".join(
        f'{_quoted(name)}="{text.translate(ESCAPES)}"' for name, text in sample.labels.items()
    )
    stamp = None if sample.timestamp is None else float(sample.timestamp) * 1000 / per_second
    return sample.name, block, value, stamp


def _quoted(label: str) -> str:
    """Return a label name, quoted unless it is plain."""
    return label if _is_name(label) else f'"{label.translate(ESCAPES)}"'


def _lines(page: bytes) -> tuple[list[str], list[Reject]]:
    """The complete lines that are text; a damaged one is blank."""
    rejects: list[Reject] = []
    try:
        lines = page.removeprefix(b"\xef\xbb\xbf").decode().split("\n")
    except UnicodeDecodeError:
        lines, damaged = _text_lines(page)
        rejects += _counted("not_text", damaged)
    last = lines.pop()
    if last.strip() and not last.startswith("#"):
        rejects += _counted("cut_off_line", [last])
    return (lines if not last.startswith("#") else [*lines, last]), rejects


def _text_lines(page: bytes) -> tuple[list[str], list[str]]:
    lines: list[str] = []
    damaged: list[str] = []
    for line in page.split(b"\n"):
        try:
            lines.append(line.decode())
        except UnicodeDecodeError:
            lines.append("")
            damaged.append(repr(line))
    return lines, damaged


def _counted(reason: str, lines: Sequence[str]) -> list[Reject]:
    return [Reject(reason, None, len(lines), lines[0][:200])] if lines else []
