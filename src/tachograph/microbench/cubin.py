"""What a compiled CUDA program says of its kernels, read from its ELF file without a driver."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

_INSTRUCTION = 16  # bytes, on every chip since Volta
_REGISTERS = 0x2F04  # of .nv.info: EIATTR_REGCOUNT with a value of its own length
_SYMBOLS, _NO_BITS = 2, 8  # kinds of sections


@dataclass(frozen=True, slots=True)
class Section:
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
    """Return {kernel: what it takes} of a cubin."""
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


def sections(image: bytes) -> Iterator[Section]:
    """Yield the sections of a 64-bit ELF file in its order."""
    (table,) = struct.unpack_from("<Q", image, 0x28)
    step, count, of_names = struct.unpack_from("<HHH", image, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", image, table + place * step) for place in range(count)]
    words = headers[of_names][4]
    for name, kind, _flags, _address, offset, size in headers:
        content = b"" if kind == _NO_BITS else image[offset : offset + size]
        yield Section(_word(image, words + name), kind, size, content)


def _symbols(image: bytes, found: list[Section]) -> list[str]:
    table = next((section.content for section in found if section.kind == _SYMBOLS), b"")
    words = next((section.content for section in found if section.name == ".strtab"), b"")
    return [_word(words, struct.unpack_from("<I", table, place)[0]) for place in range(0, len(table), 24)]


def _registers(found: list[Section]) -> Iterator[tuple[int, int]]:
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
