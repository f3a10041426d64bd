"""Limits of HTTP answers: size of unpacked pieces, and bytes held by the whole process."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from typing import Final

import httpx2

HELD_AT_ONCE: Final = 1 << 30  # bytes of all answers that are read and not yet converted
_PIECE = 1 << 20  # bytes that are unpacked at a time; a kilobyte may become a megabyte
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


class HeldBytes:
    """Bytes held by several threads, never more than a limit.

    >>> held = HeldBytes(10)
    >>> held.take(8), held.take(3), held.give(8), held.take(3)
    (True, False, None, True)
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0
        self._lock = threading.Lock()

    def take(self, count: int) -> bool:
        """Reserve bytes; False if that would exceed the limit."""
        with self._lock:
            if self.count + count > self.limit:
                return False
            self.count += count
            return True

    def give(self, count: int) -> None:
        """Release reserved bytes."""
        with self._lock:
            self.count -= count


ANSWERS: Final = HeldBytes(HELD_AT_ONCE)


def unpacked(response: httpx2.Response) -> Iterator[bytes]:
    """Yield the decompressed body in pieces of at most a megabyte.

    Errors: httpx2.DecodingError for one that does not unpack, or is compressed in another way than
    gzip and deflate.
    """
    encoding = response.headers.get("content-encoding", "identity").strip().lower() or "identity"
    if encoding == "identity":
        yield from response.iter_raw()
    elif encoding in ("gzip", "x-gzip", "deflate"):
        yield from _inflated(response)
    else:
        raise httpx2.DecodingError(f"compressed as {encoding[:40]}")


def _inflated(response: httpx2.Response) -> Iterator[bytes]:
    unpacking = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        for packed in response.iter_raw():
            rest = packed
            while rest:
                piece = unpacking.decompress(rest, _PIECE)
                rest = unpacking.unconsumed_tail
                if piece:
                    yield piece
                if unpacking.eof:
                    return
    except zlib.error as problem:
        raise httpx2.DecodingError(str(problem)) from problem
    raise httpx2.DecodingError("the end is missing")
