"""Reports of Nsight Compute (.ncu-rep) written from scratch, such as the library of Nsight Compute
itself reads them.

The layout is the one that NVIDIA documents (Customization Guide, "Report File Format", version 7):
a magic number, a header, blocks; every part a protobuf message (version 2) after its length as 32
bits, little endian. The field numbers are those of the .proto files that every Nsight Compute
brings in `extras/FileFormat`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MAGIC = b"NVR\0"
FORMAT = 7


@dataclass(frozen=True)
class Instanced:
    """A metric with one value per SM, source line or the like. `total` None: it has no value of
    its own.
    """

    values: Sequence[float]
    total: float | None = None


@dataclass(frozen=True)
class Single:
    """A number stored in 32 bits: `float32` or `uint32`."""

    value: float | int


Value = float | int | str | Single | Instanced | None  # None: the metric is there and has no value


@dataclass(frozen=True)
class MadeLaunch:
    """One profiled kernel. `ranges`: NVTX push/pop ranges of the default domain, outermost
    first.
    """

    name: str = "copy(float*, float const*)"
    function: str = "copy"
    mangled: str = "_Z4copyPfPKf"
    metrics: Mapping[str, Value] = field(default_factory=dict)
    grid: tuple[int, int, int] = (132, 1, 1)
    block: tuple[int, int, int] = (256, 1, 1)
    ranges: tuple[str, ...] = ()
    started: tuple[str, ...] = ()  # NVTX start/end ranges
    domain: str = "<default domain>"
    context: int = 1
    stream: int = 7


def report(
    launches: Sequence[MadeLaunch], *, version: int = FORMAT, per_block: int = 1_000_000
) -> bytes:
    """A whole file."""
    blocks = [launches[at : at + per_block] for at in range(0, len(launches), per_block)] or [()]
    names: dict[str, int] = {}
    return MAGIC + _sized(_uint(1, version)) + b"".join(_block(part, names) for part in blocks)


def write(path: Path, launches: Sequence[MadeLaunch], **options: int) -> Path:
    """`path`, with a whole file in it."""
    path.write_bytes(report(launches, **options))
    return path


def compressed(content: bytes | bytearray) -> bytes:
    """The content as a frame of zstd (RFC 8878) in blocks that are stored as they are."""
    parts = [content[at : at + 100_000] for at in range(0, len(content), 100_000)]
    blocks = b"".join(
        struct.pack("<I", len(part) << 3 | (at == len(parts) - 1))[:3] + part
        for at, part in enumerate(parts)
    )
    return b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", len(content)) + blocks


def _block(launches: Sequence[MadeLaunch], names: dict[str, int]) -> bytes:
    known = len(names)
    payload = b"".join(
        _sized(_result(launch, names, number)) for number, launch in enumerate(launches)
    )
    strings = b"".join(_text(1, name) for name in list(names)[known:])
    details = _uint(1, 4711) + _uint(2, 1_760_000_000)
    head = (
        _uint(1, 0)
        + _uint(2, len(launches))
        + _message(3, details)
        + _message(4, strings)
        + _uint(5, len(payload))
    )
    return _sized(head) + payload


def _result(launch: MadeLaunch, names: dict[str, int], number: int) -> bytes:
    parts = [
        _uint(1, 1),  # thread
        _uint(2, number + 1),  # call
        _uint(3, 0),
        _uint(4, number),
        _text(5, launch.mangled),
        _text(6, launch.function),
        _text(7, launch.name),
        _uint(8, 3),
        _message(9, _three((0, 0, 0))),
        _message(10, _three(launch.grid)),
        _message(11, _three(launch.block)),
    ]
    for name, value in launch.metrics.items():
        parts.append(_message(13, _metric(names.setdefault(name, len(names)), value)))
    parts += [_message(15, b""), _uint(16, 0)]
    if launch.ranges or launch.started:
        parts.append(_message(21, _nvtx(launch)))
    parts += [_uint(22, launch.context), _uint(23, launch.stream)]
    return b"".join(parts)


def _metric(name: int, value: Value) -> bytes:
    if isinstance(value, Instanced):
        total = b"" if value.total is None else _message(2, _value(value.total))
        rows = b"".join(
            _message(3, _message(1, _value(at)) + _message(2, _value(each)))
            for at, each in enumerate(value.values)
        )
        return _uint(1, name) + total + rows
    return _uint(1, name) + (b"" if value is None else _message(2, _value(value)))


def _value(value: float | int | str | Single) -> bytes:
    match value:
        case str():
            return _text(1, value)
        case Single(float() as number):
            return _key(2, 5) + struct.pack("<f", number)
        case Single(number):
            return _uint(4, int(number))
        case float():
            return _key(3, 1) + struct.pack("<d", value)
    return _uint(5, value)


def _nvtx(launch: MadeLaunch) -> bytes:
    domain = _uint(1, 0) + _text(2, launch.domain)
    stack = b"".join(_message(3, _text(1, name)) for name in launch.ranges)
    thread = _uint(1, 1) + _message(2, _uint(1, 0) + stack)
    started = b"".join(
        _message(3, _uint(1, at + 1) + _text(2, name)) for at, name in enumerate(launch.started)
    )
    return (
        _message(1, domain) + _message(2, thread) + _message(3, _uint(1, 0) + started) + _uint(4, 0)
    )


def _three(numbers: tuple[int, int, int]) -> bytes:
    return b"".join(_uint(at, number) for at, number in enumerate(numbers, 1))


def _sized(message: bytes) -> bytes:
    return struct.pack("<I", len(message)) + message


def _message(number: int, body: bytes) -> bytes:
    return _key(number, 2) + _varint(len(body)) + body


def _text(number: int, text: str) -> bytes:
    return _message(number, text.encode())


def _uint(number: int, value: int) -> bytes:
    return _key(number, 0) + _varint(value)


def _key(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
