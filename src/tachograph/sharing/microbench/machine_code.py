"""Machine code of NVIDIA GPUs since Volta: kernels of a cubin, their instructions and loops, and what each issues."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

_INSTRUCTION = 16  # bytes
_REGISTERS = 0x2F04  # of .nv.info: EIATTR_REGCOUNT with a value of its own length
_SYMBOLS, _NO_BITS = 2, 8  # kinds of sections
_OPERATION = 0x1FF  # of the opcode, which is the low 12 bits; the others tell the kinds of operands
_TURING, _HOPPER, _BLACKWELL = 75, 90, 100
_BRANCH = "BRA"

# {pipeline: {low 9 bits of the opcode: operation}}; names as nvdisasm prints them for sm_75 to sm_120, pipelines as the
# Kernel Profiling Guide of Nsight Compute assigns operations to them. `other`: neither of demand.PIPES
_PIPELINES: Mapping[str, Mapping[int, str]] = {
    "alu": {
        0x002: "MOV", 0x006: "VOTE", 0x007: "SEL", 0x008: "FSEL", 0x009: "FMNMX", 0x00B: "FSETP", 0x00C: "ISETP",
        0x010: "IADD3", 0x011: "LEA", 0x012: "LOP3", 0x013: "IABS", 0x016: "PRMT", 0x017: "IMNMX", 0x019: "SHF",
        0x01C: "PLOP3", 0x036: "VIADD", 0x03E: "F2FP", 0x045: "I2FP", 0x048: "VIMNMX",
    },
    "fma": {0x020: "FMUL", 0x021: "FADD", 0x023: "FFMA", 0x024: "IMAD", 0x025: "IMAD", 0x026: "IDP", 0x027: "IMAD"},
    "fp16": {0x030: "HADD2", 0x031: "HFMA2", 0x032: "HMUL2", 0x035: "HFMA2"},
    "fp64": {0x028: "DMUL", 0x029: "DADD", 0x02A: "DSETP", 0x02B: "DFMA"},
    "lsu": {
        0x03B: "LDSM", 0x181: "LDG", 0x183: "LDL", 0x184: "LDS", 0x186: "STG", 0x187: "STL", 0x188: "STS",
        0x189: "SHFL", 0x18C: "ATOMS", 0x18E: "RED", 0x1A3: "ATOMG", 0x1A8: "ATOMG", 0x1A9: "ATOMG", 0x1AE: "LDGSTS",
    },
    "tensor": {0x037: "IMMA", 0x03C: "HMMA", 0x03F: "DMMA"},
    "uniform": {
        0x05A: "UI2F", 0x05C: "UF2I", 0x082: "UMOV", 0x086: "VOTEU", 0x08C: "UISETP", 0x090: "UIADD3", 0x091: "ULEA",
        0x092: "ULOP3", 0x097: "UIADD3", 0x099: "USHF", 0x09C: "UPLOP3", 0x0A4: "UIMAD", 0x0A5: "UIMAD",
        0x0A6: "UIMAD", 0x0B9: "ULDC", 0x0CA: "R2UR", 0x0CB: "CS2UR", 0x1AC: "LDCU", 0x1C2: "R2UR", 0x1C4: "REDUX",
    },
    "xu": {
        0x100: "FLO", 0x101: "BREV", 0x104: "F2F", 0x105: "F2I", 0x106: "I2F", 0x108: "MUFU", 0x109: "POPC",
        0x110: "F2F", 0x111: "F2I", 0x112: "I2F",
    },
    "other": {
        0x005: "CS2R", 0x102: "FCHK", 0x118: "NOP", 0x119: "S2R", 0x11A: "DEPBAR", 0x11C: "B2R", 0x11D: "BAR",
        0x141: "BSYNC", 0x144: "CALL", 0x145: "BSSY", 0x146: "YIELD", 0x147: _BRANCH, 0x148: "WARPSYNC", 0x14D: "EXIT",
        0x150: "RET", 0x155: "BMOV", 0x15C: "BPT", 0x15D: "NANOSLEEP", 0x182: "LDC", 0x18F: "CCTL", 0x192: "MEMBAR",
        0x1AB: "ERRBAR", 0x1AF: "LDGDEPBAR", 0x1C3: "S2UR",
    },
}  # fmt: skip
_OPERATIONS = {code: (name, pipe) for pipe, names in _PIPELINES.items() for code, name in names.items()}
_SINCE_BLACKWELL = {0x035: ("IADD", "alu")}
_OF_VOLTA = {0x036: ("HMMA", "tensor")}


@dataclass(frozen=True, slots=True)
class ElfSection:
    """One section of the file; `size` also where it holds no bytes, such as shared memory."""

    name: str
    kind: int
    size: int
    content: bytes


@dataclass(frozen=True, slots=True)
class MachineInstruction:
    """One instruction: operation and pipeline, None where unknown. `target`: place where a branch goes."""

    opcode: int
    operation: str | None
    pipe: str | None
    target: int | None = None


@dataclass(frozen=True, slots=True)
class CodeLoop:
    """An innermost loop: what a warp issues in one iteration, in order; NOPs take a slot to issue like all others."""

    instructions: tuple[MachineInstruction, ...]

    def count(self, operation: str) -> int:
        """Return how many of its instructions are this operation."""
        return sum(one.operation == operation for one in self.instructions)

    @property
    def operations(self) -> tuple[str | None, ...]:
        """All operations in order."""
        return tuple(one.operation for one in self.instructions)

    @property
    def pipes(self) -> Mapping[str, int]:
        """{pipeline: instructions}; `other` for those of none, or unknown ones."""
        return MappingProxyType(Counter(one.pipe or "other" for one in self.instructions))


@dataclass(frozen=True, slots=True)
class Code:
    """A kernel as compiled: registers of a thread, static shared memory of a block in bytes, instructions, loops.

    `arch`: of which the loops are, such as sm_90. `loaded`: this code is what a GPU runs; else the driver compiles PTX,
    and what it makes of it is not known: registers are None then.
    """

    kernel: str
    registers: int | None
    shared_bytes: int
    instructions: int
    arch: str = ""
    loops: tuple[CodeLoop, ...] = ()
    loaded: bool = True

    def working_loop(self, operation: str) -> CodeLoop | None:
        """Return the innermost loop with the most of this operation; None: no loop has it."""
        found = max(self.loops, key=lambda one: one.count(operation), default=None)
        return found if found is not None and found.count(operation) else None


def codes(image: bytes, arch: str) -> Mapping[str, Code]:
    """Return {kernel: its code} of a cubin for `arch`, such as sm_90."""
    found = list(sections(image))
    names = _symbols(image, found)
    registers = {names[number]: count for number, count in _registers(found) if number < len(names)}
    shared = {section.name.removeprefix(".nv.shared."): section.size for section in found}
    texts = [section for section in found if section.name.startswith(".text.")]
    kernels = sorted((section.name.removeprefix(".text."), section.content) for section in texts)
    return MappingProxyType(
        {
            name: Code(
                name, registers.get(name), shared.get(name, 0), len(text) // _INSTRUCTION, arch,
                innermost_loops(instructions(text, _generation(arch))),
            )
            for name, text in kernels
        }
    )  # fmt: skip


def _generation(arch: str) -> int:
    """Return the number of an architecture: 90 of sm_90a."""
    return int("".join(letter for letter in arch if letter.isdigit()))


def instructions(text: bytes, generation: int) -> tuple[MachineInstruction, ...]:
    """Return the instructions of machine code; `generation`: number of the architecture.

    >>> instructions(bytes.fromhex("20720000000000000000000000000000"), 90)[0].operation
    'FMUL'
    """
    return tuple(_decoded(text, place, generation) for place in range(len(text) // _INSTRUCTION))


def _decoded(text: bytes, place: int, generation: int) -> MachineInstruction:
    low, high = struct.unpack_from("<QQ", text, place * _INSTRUCTION)
    opcode = low & 0xFFF
    code = opcode & _OPERATION
    own = _SINCE_BLACKWELL if generation >= _BLACKWELL else _OF_VOLTA if generation < _TURING else {}
    operation, pipe = own.get(code) or _OPERATIONS.get(code) or (None, None)
    target = place + 1 + _distance(low, high, generation) if operation == _BRANCH else None
    return MachineInstruction(opcode, operation, pipe, target)


def _distance(low: int, high: int, generation: int) -> int:
    """Instructions from the one after a branch to where it goes. Its unit is 4 bytes."""
    words = (low >> 34) | ((high & 0x3FFFF) << 30)
    words -= (words >> 47) << 48
    if generation >= _HOPPER:  # the lowest byte lies elsewhere
        words = (words << 8) | ((low >> 16) & 0xFF)
    return words * 4 // _INSTRUCTION


def innermost_loops(code: Sequence[MachineInstruction]) -> tuple[CodeLoop, ...]:
    """Return the loops that hold no other one, each from where its branch goes back to up to that branch.

    A branch to itself, which ends every kernel, is none.
    """
    spans = [(one.target, place) for place, one in enumerate(code) if one.target is not None and one.target < place]
    inner = [
        (begin, end)
        for begin, end in spans
        if not any(begin <= first and last <= end for first, last in spans if (first, last) != (begin, end))
    ]
    return tuple(CodeLoop(tuple(code[begin : end + 1])) for begin, end in inner)


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
