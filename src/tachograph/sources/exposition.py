"""The Prometheus text format, read fast: the samples of a page, and the rejected lines.

The format is Prometheus' "Text-based format" 0.0.4; prometheus-client's parser is the reference. The lines that
exporters write, `NAME{LABELS} VALUE [TIMESTAMP]`, are taken apart here; every other one is left to the reference, so
both read the same. The labels of one GPU repeat with every metric: they stay text until they are needed. Pages of an
exporter that follow each other differ in their values alone: `PageLayouts` takes these from pages with known series.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from types import MappingProxyType
from typing import TypeVar

from prometheus_client.parser import parse_labels, text_string_to_metric_families

from tachograph.catalog.chunks import Reject

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
_LABEL = re.compile(r'([a-zA-Z][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"', re.ASCII | re.DOTALL)
_LABELS = re.compile(rf"(?:{_LABEL.pattern}(?:,{_LABEL.pattern})*,?)?", re.ASCII | re.DOTALL)
_ESCAPED = re.compile(r'\\([\\n"])')
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
_NOT_READ = (ValueError, IndexError, OverflowError)  # the reference runs off the end of some broken lines
_BLOCKS_KEPT = 1 << 16
_LONGEST_KEPT = 1 << 11  # characters of names and labels that are remembered
_LONGEST_LINE = 1 << 16  # characters; the reference takes time by the square of a line
_LAYOUTS_KEPT = 1 << 27  # characters of pages
_NO_PAGE = 1000  # unreadable lines in a row from the beginning: this is something else
_T = TypeVar("_T")


@dataclass(slots=True)
class PageSamples:
    """The samples of a page, column by column.

    `labels`: as written between the braces, see `labels_of`; `stamps`: seconds since 1970, None where none is written.
    `rejects`: `unreadable_line`, `not_text` (no UTF-8), `cut_off_line` (the page does not end with a line end).
    `unread`: how many lines the metrics have that are not wanted.
    """

    names: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    stamps: list[float | None] = field(default_factory=list)
    rejects: tuple[Reject, ...] = ()
    unread: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_stamped(self) -> bool:
        """Whether a time is written behind any value."""
        return self.stamps.count(None) < len(self.stamps)

    def __iter__(self) -> Iterator[tuple[str, str, float, float | None]]:
        return zip(self.names, self.labels, self.values, self.stamps, strict=True)


class _Everything:
    """A container that everything is in."""

    def __contains__(self, name: object) -> bool:
        return True


_EVERYTHING = _Everything()


def parse_page(page: bytes, *, wanted: Container[str] = _EVERYTHING) -> PageSamples:
    """Return the samples of a page, those of the metrics `wanted` or of all.

    Lines of other metrics are not read, so they are not rejected either.

    >>> list(parse_page(b'# HELP t Temperature\\nt{gpu="0"} 41\\nt{gpu="1"} 39 1700000000000\\n'))
    [('t', 'gpu="0"', 41.0, None), ('t', 'gpu="1"', 39.0, 1700000000.0)]
    """
    return _parsed(*_lines(page), wanted)


def _parsed(lines: Sequence[str], rejects: Sequence[Reject], wanted: Container[str]) -> PageSamples:
    per_second = 1 if lines and lines[-1].startswith("# EOF") else 1000  # OpenMetrics writes seconds
    names: list[str] = []
    blocks: list[str] = []
    values: list[float] = []
    stamps: list[float | None] = []
    unread: list[str] = []
    unreadable: list[str] = []
    is_name, plain = _is_name, _labels_written_plainly  # local names: this loop runs once per line of every scrape
    rest = iter(lines)
    for given in rest:
        line = given.strip()
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


@dataclass(frozen=True, slots=True)
class _PageLayout:
    """A page without its values. `heads`: of its lines, whole ones of comments, joined; `ends`: where each head ends.

    `read`, `tails`: the lines of samples, and where their values begin; `others`: the same of lines that are not read.
    """

    samples: PageSamples
    heads: str
    ends: list[slice]
    read: list[int]
    tails: list[slice]
    others: list[tuple[int, slice]]

    def values(self, lines: Sequence[str]) -> list[float] | None:
        """Return the values of a page that has the same series in the same lines, and no times; else None."""
        if len(lines) != len(self.ends) or _heads(lines, self.ends) != self.heads:
            return None
        written = [lines[line][tail] for line, tail in zip(self.read, self.tails, strict=True)]
        joined = "\n".join(written)
        if " " in joined or "_" in joined or "}" in joined:  # a time follows, or float reads what is no number here
            return None
        for line, tail in self.others:
            value = lines[line][tail]
            if "}" in value or not value.strip():
                return None
        try:
            return list(map(float, written))
        except ValueError:
            return None


class PageLayouts:
    """Reads pages as `parse_page` does, those with known series faster; remembers the last page of each exporter."""

    def __init__(self, wanted: Container[str]) -> None:
        self._wanted = wanted
        self._known: dict[tuple[str, str], _PageLayout | None] = {}
        self._size = 0

    def parse(self, page: bytes, *, exporter: str = "") -> PageSamples:
        """Return the samples of a page; the names and labels of a page with known series are the same lists.

        >>> pages, line = PageLayouts({"t"}), b't{gpu="0"} %d\\n'
        >>> first, second, third = (pages.parse(line % value) for value in (41, 39, 40))
        >>> second.values, third.values, second.labels is third.labels
        ([39.0], [40.0], True)
        """
        lines, rejects = _lines(page)
        first = next((line for line in lines if line[:1] not in ("", "#")), "")
        key = (exporter, first.rpartition(" ")[0])
        known = None if rejects else self._known.get(key)
        values = None if known is None else known.values(lines)
        if known is not None and values is not None:
            same = known.samples
            return PageSamples(same.names, same.labels, values, same.stamps, (), same.unread)
        samples = _parsed(lines, rejects, self._wanted)
        again = key in self._known  # a page may come once; what the next one may save is prepared with the second
        self._keep(key, _layout(lines, samples, self._wanted) if again else None)
        return samples

    def _keep(self, key: tuple[str, str], layout: _PageLayout | None) -> None:
        before = self._known.get(key)
        self._size -= 0 if before is None else len(before.heads)
        self._size += 0 if layout is None else len(layout.heads)
        if self._size > _LAYOUTS_KEPT or len(self._known) > _BLOCKS_KEPT:
            self._known.clear()
            self._size = 0 if layout is None else len(layout.heads)
        self._known[key] = layout


def _layout(lines: Sequence[str], samples: PageSamples, wanted: Container[str]) -> _PageLayout | None:
    """The layout of a page; None where its next one cannot be read by it."""
    if samples.rejects or not samples.names or samples.is_stamped:
        return None
    ends: list[slice] = []
    read: list[int] = []
    others: list[int] = []
    names: list[str] = []
    for number, line in enumerate(lines):
        if line[:1] in ("", "#"):
            ends.append(_slice(None, None))
            continue
        head, brace, _ = line.rpartition("} ")
        name = head.partition("{")[0] if brace else line.partition(" ")[0]
        if not _is_name(name):
            return None
        ends.append(_slice(None, len(head) + 2 if brace else len(name) + 1))
        if name in wanted:
            names.append(name)
        (read if name in wanted else others).append(number)
    if names != samples.names:
        return None
    once = {text: text for text in chain(samples.names, samples.labels)}
    samples.names = [once[name] for name in samples.names]
    samples.labels = [once[block] for block in samples.labels]
    tails = [_slice(ends[line].stop, None) for line in read]
    rest = [(line, _slice(ends[line].stop, None)) for line in others]
    heads = _heads(lines, ends)
    kept = PageSamples(samples.names, samples.labels, [], samples.stamps, (), samples.unread)
    made = _PageLayout(kept, heads, ends, read, tails, rest)
    return made if _same_floats(made.values(lines), samples.values) else None


def _heads(lines: Sequence[str], ends: Sequence[slice]) -> str:
    return "\n".join([line[end] for line, end in zip(lines, ends, strict=True)])


@lru_cache(maxsize=4096)
def _slice(start: int | None, stop: int | None) -> slice:
    """One object for all lines that are cut at one place."""
    return slice(start, stop)


def _same_floats(some: Sequence[float] | None, others: Sequence[float]) -> bool:
    """Whether all are equal, NaN to NaN."""
    return some is not None and array("d", some).tobytes() == array("d", others).tobytes()


def at_places(column: list[_T], places: Sequence[int]) -> list[_T]:
    """Return the values of a column at some places."""
    if isinstance(places, range):  # all series of a metric are contiguous
        return column[places.start : places.stop]
    return [column[place] for place in places]


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
    """The labels, where they are written as exporters write them and none twice: then every brace is quoted."""
    if not _LABELS.fullmatch(block):
        return None
    pairs = _LABEL.findall(block)
    if "\\" in block:
        pairs = [(name, _ESCAPED.sub(_unescaped, value)) for name, value in pairs]
    labels = dict(pairs)
    return MappingProxyType(labels) if len(labels) == len(pairs) else None


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


def _is_name(name: str) -> bool:
    return len(name) <= _LONGEST_KEPT and _is_short_name(name)


@lru_cache(maxsize=4096)
def _is_short_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def _by_reference(line: str, per_second: int) -> tuple[str, str, float, float | None] | None:
    """One sample as the reference reads it; None where it cannot."""
    if len(line) > _LONGEST_LINE:
        return None
    try:
        (family,) = text_string_to_metric_families(line)
        (sample,) = family.samples
        value = float(sample.value)
    except _NOT_READ:
        return None
    block = ",".join(f'{_quoted(name)}="{text.translate(_ESCAPES)}"' for name, text in sample.labels.items())
    stamp = None if sample.timestamp is None else float(sample.timestamp) * 1000 / per_second
    return sample.name, block, value, stamp


def _quoted(label: str) -> str:
    """A label name, in quotes where it is not one of the plain ones."""
    return label if _is_name(label) else f'"{label.translate(_ESCAPES)}"'


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
