"""The kernels as NVRTC compiles them: they do the work they are said to do, and no compiler leaves any of it out."""

from __future__ import annotations

import os
import re
import struct
from collections import Counter
from functools import cache

import pytest

from tachograph.catalog.errors import NotFoundError, UsageError
from tachograph.sharing.microbench.cuda_device import CompiledProgram, compile_kernels
from tachograph.sharing.microbench.device import sections
from tachograph.sharing.microbench.experiments import KERNELS

FMUL, FFMA, DMUL, LOAD, STORE, BRANCH, SLEEP = 0x220, 0x223, 0x228, (0x381, 0x981), (0x386, 0x986), 0x947, 0x95D
CLOCK = 0x805  # CS2R, which reads the clock
ARCHES = ("sm_75", "sm_80", "sm_90")


@cache
def compiled(arch: str) -> CompiledProgram:
    try:
        return compile_kernels(arch)
    except NotFoundError as problem:
        if os.environ.get("TACHOGRAPH_REQUIRE_SERVERS") == "1":
            pytest.fail(str(problem))
        pytest.skip(str(problem))


def operations(arch: str, kernel: str) -> list[int]:
    """The code of each machine instruction of a kernel: the low 12 bits of 16 bytes."""
    text = next(one.content for one in sections(compiled(arch).image) if one.name == f".text.{kernel}")
    return [struct.unpack_from("<H", text, place)[0] & 0xFFF for place in range(0, len(text), 16)]


def loop(arch: str, kernel: str) -> list[int]:
    """The operations of the innermost loop that multiplies or copies, found by its branch back."""
    text = next(one.content for one in sections(compiled(arch).image) if one.name == f".text.{kernel}")
    codes, found = operations(arch, kernel), []
    for place in range(len(codes)):
        low, high = struct.unpack_from("<QQ", text, place * 16)
        if codes[place] != BRANCH:
            continue
        words = (low >> 34) | ((high & 0x3FFFF) << 30)
        words -= (words >> 47) << 48
        if arch == "sm_90":  # since Hopper, the lowest byte of the distance lies elsewhere
            words = (words << 8) | ((low >> 16) & 0xFF)
        begin = place + 1 + words // 4
        if begin < place and set(codes[begin : place + 1]) & {FMUL, FFMA, DMUL, *LOAD}:
            found.append(codes[begin : place + 1])
    return min(found, key=len)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("chains", [1, 2, 3, 4])
def test_each_chain_has_its_multiplications_in_machine_code(arch: str, chains: int) -> None:
    for name, code, other in (("fmul", FMUL, DMUL), ("dmul", DMUL, FMUL)):
        counted = Counter(operations(arch, f"{name}_{chains}"))
        assert counted[code] == 64 * chains
        assert counted[other] == 0
        assert counted[FFMA] == 0


@pytest.mark.parametrize("chains", [1, 2, 3, 4])
def test_chains_are_independent_of_each_other(chains: int) -> None:
    """In PTX of compute_90 every register is written once: so a chain is the registers that feed each other."""
    text = compiled("compute_90").image.decode()
    for name, word in (("fmul", "mul.rn.f32"), ("dmul", "mul.rn.f64")):
        body = text[text.index(f".entry {name}_{chains}(") :]
        body = body[: body.index("\n}")]
        chain: dict[str, int] = {}
        lengths: Counter[int] = Counter()
        for made, first, second in re.findall(rf"{re.escape(word)}\s+(%\w+), (%\w+), (%\w+);", body):
            number = next((chain[one] for one in (second, first) if one in chain), len(set(chain.values())))
            chain[made] = number
            lengths[number] += 1
        assert lengths == dict.fromkeys(range(chains), 64)


@pytest.mark.parametrize("kernel", KERNELS)
def test_both_clocks_are_read_before_and_after(kernel: str) -> None:
    """Of the SM, which counts cycles, and of the GPU, which counts ns: together they tell how fast the SM was."""
    text = compiled("compute_90").image.decode()
    body = text[text.index(f".entry {kernel}(") :]
    body = body[: body.index("\n}")]
    assert body.count("%clock64") == 2
    assert body.count("%globaltimer") == 2


def test_clocks_are_read_around_the_work() -> None:
    for kernel in ("fmul_4", "dmul_4"):
        codes = operations("sm_90", kernel)
        work = [place for place, code in enumerate(codes) if code in (FMUL, DMUL)]
        clocks = [place for place, code in enumerate(codes) if code == CLOCK]
        assert min(clocks) < work[0]
        assert max(clocks) > work[-1]


@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "sleep"])
def test_instructions_per_unit_of_work_are_as_declared(arch: str, kernel: str) -> None:
    """Declared for sm_90; demands of other chips rest on the same numbers, so these may not be far."""
    known, codes = KERNELS[kernel], loop(arch, kernel)
    units = 4 if known.kind.startswith("copy") else 1  # a loop of copies is unrolled
    tolerance = {"sm_90": 0.01, "sm_75": 0.25}[arch]
    assert len(codes) / units == pytest.approx(known.instructions, rel=tolerance)
    if known.pipe is not None:
        assert sum(code in (FMUL, FFMA, DMUL) for code in codes) == known.of_pipe


@pytest.mark.parametrize("kernel", ["copy", "copy_own"])
def test_copies_load_and_store_everything_each_round(kernel: str) -> None:
    codes = loop("sm_90", kernel)
    assert sum(code in LOAD for code in codes) == 4
    assert sum(code in STORE for code in codes) == 4
    ptx = compiled("compute_90").image.decode()
    body = ptx[ptx.index(f".entry {kernel}(") :]
    body = body[: body.index("\n}")]
    kept = {"copy": "ld.global.cg.f32", "copy_own": "ld.global.ca.f32"}[kernel]
    assert kept in body
    assert body.count("ld.global.") == body.count(kept)


def test_sleeping_threads_need_for_nothing_else() -> None:
    codes = operations("sm_90", "sleep")
    assert SLEEP in codes
    assert not {FMUL, FFMA, DMUL, *LOAD} & set(codes)


@pytest.mark.parametrize("arch", ARCHES)
def test_two_wide_blocks_fit_into_an_sm(arch: str) -> None:
    codes = compiled(arch).codes
    assert sorted(codes) == sorted(KERNELS)
    for code in codes.values():
        assert code.registers is not None
        threads = 256 if code.kernel == "matmul" else 2048
        assert code.registers * threads <= 65536
    assert codes["matmul"].shared_bytes >= 2 * 16 * 64 * 4


def test_other_chips() -> None:
    assert compiled("compute_90").kind == "ptx"
    assert compiled("sm_90").kind == "cubin"
    newer = compiled("sm_999")
    assert newer.kind == "ptx"
    assert newer.arch.startswith("compute_")
    between = compiled("sm_88")
    assert (between.kind, between.arch) == ("ptx", "compute_87")
    for wrong in ("sm_60", "hopper", "sm_"):
        with pytest.raises(UsageError, match=r"architecture|as old as"):
            compile_kernels(wrong)
