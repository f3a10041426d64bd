"""Layout of a report of Nsight Compute, and which parts of a truncated file are whole.

The library reads a truncated file without an error, and adds launches without metrics. The layout is documented
(Nsight Compute, Customization Guide, "Report File Format"): a magic number, a header, then blocks of a header and its
entries, every part after its length as 32 bits, little endian; headers are protobuf messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from mmap import mmap

MAGIC = b"NVR\0"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"  # of compressed reports, *.ncu-repz
FORMAT_MIN = 7  # earlier ones the library takes for empty
_LENGTH = struct.Struct("<I")
_VERSION = 1  # field of the file's header
_SOURCES, _RESULTS, _PAYLOAD_BYTES, _RANGE_RESULTS = 1, 2, 5, 7  # fields of a block's header
_VARINT_BITS_MAX = 64


@dataclass(frozen=True, slots=True)
class NcuRepLayout:
    """What a file holds by its own headers, up to the place from which on they no longer fit together.

    `version`: of the format, None: unknown. `results`: whole results; `promised`: those that the headers announce.
    `whole_bytes`: length of the part in which every block is whole. `rest`: bytes that make the whole results of the
    block after it a block of its own. An undamaged file: `whole_bytes` is its length, `rest` is empty.
    """

    version: int | None
    results: int
    promised: int
    whole_bytes: int
    rest: bytes = b""


def layout(report: bytes | mmap) -> NcuRepLayout:
    """Return the layout of a report that begins with MAGIC.

    >>> layout(MAGIC + b"\\x02\\0\\0\\0\\x08\\x07")
    NcuRepLayout(version=7, results=0, promised=0, whole_bytes=10, rest=b'')
    >>> layout(MAGIC + b"\\x02\\0\\0").version is None
    True
    """
    view = memoryview(report)
    head = _part(view, len(MAGIC))
    if head is None:
        return NcuRepLayout(None, 0, 0, 0)
    version = _numbers(head).get(_VERSION)
    at, results = len(MAGIC) + _LENGTH.size + len(head), 0
    while (block := _part(view, at)) is not None:
        counts = _numbers(block)
        announced = counts.get(_RESULTS, 0)
        first = at + _LENGTH.size + len(block)
        end = first + counts.get(_PAYLOAD_BYTES, 0)
        entries, whole_to = _entries(view, first, min(end, len(view)), counts.get(_SOURCES, 0) + announced)
        whole = max(0, entries - counts.get(_SOURCES, 0))
        if end > len(view) or whole < announced:
            rest = _block(block, counts, entries, bytes(view[first:whole_to]))
            return NcuRepLayout(version, results + whole, results + announced, at, rest)
        at, results = end, results + announced
    return NcuRepLayout(version, results, results, at)


def _entries(view: memoryview, at: int, end: int, count: int) -> tuple[int, int]:
    """Return how many of `count` entries from `at` on are whole before `end`, and where the last of these ends."""
    for number in range(count):
        if at + _LENGTH.size > end:
            return number, at
        (length,) = _LENGTH.unpack_from(view, at)
        if at + _LENGTH.size + length > end:
            return number, at
        at += _LENGTH.size + length
    return count, at


def _block(head: bytes, counts: dict[int, int], entries: int, payload: bytes) -> bytes:
    """Return a block of the first entries of another: its sources, then its results.

    Of a repeated field, the last counts: the numbers that are no longer valid are set again behind the header.
    """
    sources = min(entries, counts.get(_SOURCES, 0))
    again = {_SOURCES: sources, _RESULTS: entries - sources, _PAYLOAD_BYTES: len(payload), _RANGE_RESULTS: 0}
    head += b"".join(_field(number, value) for number, value in again.items())
    return _LENGTH.pack(len(head)) + head + payload


def _part(view: memoryview, at: int) -> bytes | None:
    """Return the part that begins with its length at `at`; None: the file ends before it does."""
    if at + _LENGTH.size > len(view):
        return None
    (length,) = _LENGTH.unpack_from(view, at)
    at += _LENGTH.size
    return bytes(view[at : at + length]) if at + length <= len(view) else None


def _numbers(message: bytes) -> dict[int, int]:
    """Return the whole numbers of a protobuf message by their field, as far as it can be read."""
    return dict(_fields(message))


def _fields(message: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        match key & 7:
            case 0:
                value, at = _varint(message, at)
                yield key >> 3, value
            case 1:
                at += 8
            case 2:
                length, at = _varint(message, at)
                at += length
            case 5:
                at += 4
            case _:
                return


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, _VARINT_BITS_MAX, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    return value, at


def _field(number: int, value: int) -> bytes:
    return bytes([number << 3]) + _encoded(value)


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
