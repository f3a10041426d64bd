"""What Prometheus' remote write sends, by hand: the only way to put stale marks into a server from
outside.

Protocol buffers of `prometheus.WriteRequest` (varints and length-prefixed fields) in the block
format of snappy, of which only literals are used.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import httpx2

from servers.prometheus import Series

_STALE = struct.pack("<Q", 0x7FF0000000000002)  # the NaN that reports that a series ended
_LITERAL = 60_000  # bytes; a literal with a length of two bytes holds 65,536


def write(url: str, series: Sequence[Series]) -> None:
    """Send series to a VictoriaMetrics that runs; a value that is NaN becomes a stale mark."""
    body = _snappy(b"".join(_field(1, _series(one)) for one in series))
    headers = {"Content-Encoding": "snappy", "X-Prometheus-Remote-Write-Version": "0.1.0"}
    httpx2.post(f"{url}/api/v1/write", content=body, headers=headers, timeout=60).raise_for_status()
    httpx2.get(f"{url}/internal/force_flush", timeout=60).raise_for_status()


def _series(one: Series) -> bytes:
    labels = (
        _field(1, name.encode()) + _field(2, value.encode())
        for name, value in sorted(one.labels.items())
    )
    return b"".join(_field(1, label) for label in labels) + b"".join(
        _field(2, _sample(*point)) for point in one.points
    )


def _sample(t: float, value: float) -> bytes:
    written = _STALE if math.isnan(value) else struct.pack("<d", value)
    return b"\x09" + written + b"\x10" + _varint(round(t * 1000))


def _field(number: int, body: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(body)) + body


def _varint(number: int) -> bytes:
    low, high = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(high) if high else bytes([low])


def _snappy(body: bytes) -> bytes:
    parts = [body[start : start + _LITERAL] for start in range(0, len(body), _LITERAL)]
    return _varint(len(body)) + b"".join(
        b"\xf4" + struct.pack("<H", len(part) - 1) + part for part in parts
    )
