"""Spool of samples while a job runs: one growing file, cheap to write, always readable.

`MAGIC`, then records: length and CRC-32 of the payload (little-endian, 32 bits each), then the
payload, whose first byte is its kind: `J` is a document (JSON, compressed), `S` are rows of samples
(columns one after the other, compressed). A record that was cut off, by a kill or a full disk, ends
the file for its readers; those before it hold.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from tachograph.catalog.arrays import Floats, Ints, Longs, Singles
from tachograph.catalog.durable import sync_folder
from tachograph.catalog.errors import InputError, unreadable

MAGIC: Final = b"tachograph spool 1\n"
SPOOL_SUFFIX: Final = ".spool"
_FRAME = struct.Struct("<II")
_ROWS = struct.Struct("<I")
_LEVEL = 1  # of zlib: a fraction of a millisecond for some seconds of a node
_MOST_BYTES = 256 << 20  # of a record: a length beyond is damage
_KEPT_BYTES = 32 << 20  # that wait for space on the disk; the oldest samples are dropped beyond

SpoolDocument = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SpoolRows:
    """Samples: t (us since 1970), index of the GPU among those named before, counters x rows.

    `singles` and `doubles` are in the order of the names in the head; NaN missing.
    """

    t: Longs
    gpu: Ints
    singles: Singles
    doubles: Floats


class SpoolWriter:
    """Writes a spool. Rows wait in memory until `flush`, and longer while the disk is full.

    lost: rows that were dropped. problem: why the last flush did not write, "" where it did.
    """

    def __init__(self, path: Path, head: SpoolDocument) -> None:
        """Begin a new file with a head that names `singles` and `doubles`. Errors: OSError."""
        self.path = path
        self.lost = 0
        self.problem = ""
        self._rows: list[SpoolRows] = []
        self._waiting: list[tuple[bytes, int]] = []  # records, and the rows in each
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        self._size = 0
        try:
            self._write(MAGIC + _record(b"J", _packed(head)))
            os.fsync(self._fd)
            sync_folder(path.parent)
        except OSError:
            self.close()
            path.unlink(missing_ok=True)
            raise

    def add(self, rows: SpoolRows) -> None:
        """Keep rows for the next flush."""
        self._rows.append(rows)

    def note(self, document: SpoolDocument) -> None:
        """Add a document, after the rows added so far, to the next flush."""
        self._pack()
        self._waiting.append((_record(b"J", _packed(document)), 0))

    def flush(self) -> bool:
        """Write what waits, on the disk when this returns; True where it is all written.

        A disk that is full is tried again at the next flush.
        """
        self._pack()
        while self._waiting:
            try:
                self._write(self._waiting[0][0])
            except OSError as problem:
                self.problem = problem.strerror or str(problem)
                self._give_up()
                return False
            del self._waiting[0]
        try:
            os.fdatasync(self._fd)
        except OSError as problem:
            self.problem = problem.strerror or str(problem)
            return False
        self.problem = ""
        return True

    def close(self) -> None:
        """Close the file, what waits is not written; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _pack(self) -> None:
        if self._rows:
            count = sum(len(rows.t) for rows in self._rows)
            self._waiting.append((_record(b"S", _pack_rows(self._rows)), count))
            self._rows.clear()

    def _write(self, record: bytes) -> None:
        """Append whole or not at all. Errors: OSError."""
        view, written = memoryview(record), 0
        try:
            while written < len(view):
                written += os.write(self._fd, view[written:])
        except OSError:
            if written:
                os.ftruncate(self._fd, self._size)
            raise
        self._size += len(view)

    def _give_up(self) -> None:
        """Drop the oldest rows beyond what may wait; documents stay."""
        waiting = sum(len(record) for record, _ in self._waiting)
        index = 0
        while waiting > _KEPT_BYTES and index < len(self._waiting):
            record, rows = self._waiting[index]
            if rows:
                self.lost += rows
                waiting -= len(record)
                del self._waiting[index]
            else:
                index += 1


def read_spool(path: Path) -> Iterator[SpoolDocument | SpoolRows]:
    """Yield the head, then documents and rows in order of writing, until a truncation.

    Errors: InputError for a file that is no spool, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise InputError(
                    "not a recording",
                    where=path,
                    do="name a file that `tachograph record` wrote",
                )
            widths: tuple[int, int] | None = None
            for payload in _payloads(file.read):
                content = _read_payload(payload, widths)
                if not isinstance(content, SpoolRows) and widths is None:
                    widths = len(content["singles"]), len(content["doubles"])
                yield content
            if widths is None:
                raise InputError("the recording is empty", where=path, do="delete it")
    except OSError as problem:
        raise unreadable(problem, path) from None
    except (ValueError, KeyError, zlib.error) as problem:
        raise InputError(
            f"the recording is damaged: {problem}", where=path, do="copy it again"
        ) from None


def _payloads(read: Any) -> Iterator[bytes]:
    """Yield the payloads of complete records."""
    while len(frame := read(_FRAME.size)) == _FRAME.size:
        length, checksum = _FRAME.unpack(frame)
        if length > _MOST_BYTES:
            return
        payload = read(length)
        if len(payload) < length or zlib.crc32(payload) != checksum:
            return
        yield payload


def _read_payload(payload: bytes, widths: tuple[int, int] | None) -> SpoolDocument | SpoolRows:
    content = zlib.decompress(payload[1:])
    if payload[:1] == b"J" or widths is None:
        document: SpoolDocument = json.loads(content)
        return document
    (count,) = _ROWS.unpack_from(content)
    ends = np.cumsum(
        [_ROWS.size, 8 * count, 4 * count, 4 * count * widths[0], 8 * count * widths[1]]
    ).tolist()
    t, gpu, singles, doubles = (content[a:b] for a, b in pairwise(ends))
    return SpoolRows(
        np.frombuffer(t, "<i8"),
        np.frombuffer(gpu, "<i4"),
        np.frombuffer(singles, "<f4").reshape(widths[0], count),
        np.frombuffer(doubles, "<f8").reshape(widths[1], count),
    )


def _record(kind: bytes, content: bytes) -> bytes:
    payload = kind + zlib.compress(content, _LEVEL)
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def _packed(document: SpoolDocument) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")


def _pack_rows(parts: Sequence[SpoolRows]) -> bytes:
    t = np.concatenate([rows.t for rows in parts])
    columns = (
        _ROWS.pack(len(t)),
        t.astype("<i8").tobytes(),
        np.concatenate([rows.gpu for rows in parts]).astype("<i4").tobytes(),
        np.concatenate([rows.singles for rows in parts], axis=1).astype("<f4").tobytes(),
        np.concatenate([rows.doubles for rows in parts], axis=1).astype("<f8").tobytes(),
    )
    return b"".join(columns)
