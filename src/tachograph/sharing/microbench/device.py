"""A GPU as the micro-benchmarks use it, and the code that is loaded on it."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from tachograph.catalog.errors import TachographError
from tachograph.sharing.demand import GpuCapacity

_INSTRUCTION = 16  # bytes, on every chip since Volta
_REGISTERS = 0x2F04  # of .nv.info: EIATTR_REGCOUNT with a value of its own length
_SYMBOLS, _NO_BITS = 2, 8  # kinds of sections


@dataclass(frozen=True, slots=True)
class ElfSection:
    """One section of the file; `size` also where it holds no bytes, such as shared memory."""

    name: str
    kind: int
    size: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Code:
    """A kernel as compiled: registers of a thread, static shared memory of a block in bytes, instructions."""

    kernel: str
    registers: int | None
    shared_bytes: int
    instructions: int


def codes(image: bytes) -> Mapping[str, Code]:
    """Return {kernel: its resources} of a cubin."""
    found = list(sections(image))
    names = _symbols(image, found)
    registers = {names[number]: count for number, count in _registers(found) if number < len(names)}
    shared = {section.name.removeprefix(".nv.shared."): section.size for section in found}
    texts = [section for section in found if section.name.startswith(".text.")]
    kernels = [(section.name.removeprefix(".text."), section) for section in texts]
    return MappingProxyType(
        {
            name: Code(name, registers.get(name), shared.get(name, 0), section.size // _INSTRUCTION)
            for name, section in sorted(kernels, key=lambda one: one[0])
        }
    )


def sections(image: bytes) -> Iterator[ElfSection]:
    """Yield the sections of a 64-bit ELF file in its order."""
    (table,) = struct.unpack_from("<Q", image, 0x28)
    step, count, of_names = struct.unpack_from("<HHH", image, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", image, table + place * step) for place in range(count)]
    words = headers[of_names][4]
    for name, kind, _flags, _address, offset, size in headers:
        content = b"" if kind == _NO_BITS else image[offset : offset + size]
        yield ElfSection(_word(image, words + name), kind, size, content)


def _symbols(image: bytes, found: list[ElfSection]) -> list[str]:
    table = next((section.content for section in found if section.kind == _SYMBOLS), b"")
    words = next((section.content for section in found if section.name == ".strtab"), b"")
    return [_word(words, struct.unpack_from("<I", table, place)[0]) for place in range(0, len(table), 24)]


def _registers(found: list[ElfSection]) -> Iterator[tuple[int, int]]:
    """(number of a symbol, registers of a thread)."""
    content = next((section.content for section in found if section.name == ".nv.info"), b"")
    place = 0
    while place + 4 <= len(content):
        what, length = struct.unpack_from("<HH", content, place)
        if what == _REGISTERS:
            yield struct.unpack_from("<II", content, place + 4)
        place += 4 + (length if what & 0xFF == 4 else 0)  # of other forms, the two bytes are the value


def _word(content: bytes, place: int) -> str:
    return content[place : content.index(b"\0", place)].decode()


class LaunchError(TachographError):
    """The GPU rejected a launch, or failed while it ran."""


class MemoryFullError(LaunchError):
    """The GPU has not enough free memory for an allocation."""


class HangingError(LaunchError):
    """A kernel did not end within its time. Nothing can end it but the end of the process."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """Threads of which an SM can do one operation per cycle. None: unknown."""

    fp32: int | None
    fp64: int | None


Mark = Any  # a point in a stream, which only the device that made it understands


class BenchDevice(Protocol):
    """A GPU with two streams, 0 and 1. All that fails raises LaunchError, or one of its kind."""

    gpu: GpuCapacity
    lanes: Lanes
    driver: str
    arch: str  # such as sm_90

    def code(self, kernel: str) -> Code | None:
        """Resources of the compiled kernel; None: unknown."""
        ...

    def free_bytes(self) -> int:
        """Memory that is free now."""
        ...

    def allocate(self, size: int, *, ones: str = "") -> int:
        """The address of `size` bytes: filled with ones, of float or double, else with zeros."""
        ...

    def free(self, address: int) -> None:
        """Free memory."""

    def launch(self, kernel: str, *, blocks: int, threads: int, arguments: Sequence[int], stream: int) -> None:
        """Put a launch at the end of a stream; each argument is 8 bytes wide."""

    def mark(self, stream: int) -> Mark:
        """A point at the end of the stream, whose time is taken when the stream gets there."""
        ...

    def follow(self, stream: int, mark: Mark) -> None:
        """Block the stream until another one has reached the mark."""

    def wait(self, marks: Sequence[Mark], limit_s: float) -> None:
        """Wait until all marks were reached, `limit_s` at most; then HangingError."""

    def seconds(self, begin: Mark, end: Mark) -> float:
        """Time between two marks that were reached."""
        ...

    def numbers(self, address: int, count: int) -> tuple[int, ...]:
        """The 64-bit integers at this address."""
        ...
