"""The kernels as NVRTC compiles them: they do the work that they declare, and no compiler leaves
any of it out.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from functools import cache

import pytest

from microbench.cuda_device import CompiledProgram, compile_kernels, source
from microbench.workloads import KERNELS
from tachograph.catalog.errors import NotFoundError, UsageError

# instruction of PTX that does the work of a chain
WORK = {
    "fmul": "mul.rn.f32",
    "dmul": "mul.rn.f64",
    "alu": "xor.b32",
    "xu": "rsqrt.approx.ftz.f32",
    "tensor": "mma.sync",
}


@cache
def compiled(arch: str) -> CompiledProgram:
    try:
        return compile_kernels(arch)
    except NotFoundError as problem:
        if os.environ.get("TACHOGRAPH_REQUIRE_SERVERS") == "1":
            pytest.fail(str(problem))
        pytest.skip(str(problem))


def ptx(kernel: str) -> str:
    text = compiled("compute_90").image.decode()
    body = text[text.index(f".entry {kernel}(") :]
    return body[: body.index("\n}")]


@pytest.mark.parametrize("kernel", [name for name in KERNELS if name.partition("_")[0] in WORK])
def test_a_round_of_chains_is_the_work_that_the_kernel_declares(kernel: str) -> None:
    name, chains = kernel.split("_")
    (pipe, declared), each = next(iter(KERNELS[kernel].pipes.items())), 2 if name == "alu" else 1
    assert pipe == {"fmul": "fma", "dmul": "fp64"}.get(name, name)
    assert ptx(kernel).count(WORK[name]) * each == declared
    assert declared == (16 if name == "tensor" else 64) * each * int(chains)
    assert 0 < KERNELS[kernel].issued - declared <= 8


@pytest.mark.parametrize("chains", [1, 2, 3, 4])
def test_chains_are_independent_of_each_other(chains: int) -> None:
    """In PTX of compute_90 every register is written once: so a chain is the registers that feed
    each other.
    """
    for name, word in (("fmul", "mul.rn.f32"), ("dmul", "mul.rn.f64")):
        chain: dict[str, int] = {}
        lengths: Counter[int] = Counter()
        for made, first, second in re.findall(
            rf"{re.escape(word)}\s+(%\w+), (%\w+), (%\w+);", ptx(f"{name}_{chains}")
        ):
            number = next(
                (chain[one] for one in (second, first) if one in chain), len(set(chain.values()))
            )
            chain[made] = number
            lengths[number] += 1
        assert lengths == dict.fromkeys(range(chains), 64)


@pytest.mark.parametrize("kernel", KERNELS)
def test_both_clocks_are_read_before_and_after(kernel: str) -> None:
    """Of the SM, which counts cycles, and of the GPU, which counts ns: together they tell how
    fast the SM was.
    """
    assert ptx(kernel).count("%clock64") == 2
    assert ptx(kernel).count("%globaltimer") == 2


def formula(name: str, **values: int) -> int:
    """A line of kernels.cu that computes a place, in Python."""
    sides = {"TILE": 64, "DEPTH": 16}
    names = "|".join(
        (
            "LEFT_PITCH",
            "SHARED_STEP",
            "LEFT_ROW",
            "LEFT_COLUMN",
            "RIGHT_ROW",
            "RIGHT_COLUMN",
            "SHARED_WORD",
        )
    )
    lines = dict(re.findall(rf"#define ({names})(?:\([^)]*\))? (.+?)(?: //.*)?\n", source()))
    assert all(f"#define {side} {value} " in source() for side, value in sides.items())
    # A formula of this repository.
    return int(eval(lines[name].replace("/", "//"), {}, sides | values))


def conflicts(words: list[int], width: int) -> int:
    """How often the fullest bank is asked for different words, at most, of the groups that are
    served at once.
    """
    lanes = 32 // width
    most = 0
    for begin in range(0, 32, lanes):
        group = {word + part for word in words[begin : begin + lanes] for part in range(width)}
        most = max(most, *Counter(word % 32 for word in group).values())
    return most


def test_the_multiplication_has_no_conflicts_of_banks() -> None:
    pitch = formula("LEFT_PITCH")
    left: set[tuple[int, int]] = set()
    right: set[tuple[int, int]] = set()
    for warp in range(8):
        for part in range(4):
            threads = range(warp * 32, warp * 32 + 32)
            for side, width, places in (("LEFT", pitch, left), ("RIGHT", 64, right)):
                found = [
                    (
                        formula(f"{side}_ROW", thread=one, part=part),
                        formula(f"{side}_COLUMN", thread=one, part=part),
                    )
                    for one in threads
                ]
                assert conflicts([row * width + column for row, column in found], 1) == 1, (
                    side,
                    warp,
                    part,
                )
                places.update(found)
        # Reads of four words: rows of `left` by thread / 16, columns of `right` by thread % 16.
        for k in range(16):
            assert conflicts([k * pitch + one // 16 * 4 for one in threads], 4) == 1
            assert conflicts([k * 64 + one % 16 * 4 for one in threads], 4) == 1
    assert (
        left
        == right
        == {(row, column) for row in range(16) for column in range(64)} - (left ^ right)
    )
    assert pitch % 4 == 0  # reads of four words begin at 16 bytes


@pytest.mark.parametrize("ways", [1, 8])
def test_reads_of_shared_memory_have_as_many_conflicts_as_they_name(ways: int) -> None:
    for load in range(16):
        words = [formula("SHARED_WORD", thread=thread, ways=ways) for thread in range(32)]
        assert conflicts([word + load * formula("SHARED_STEP") for word in words], 4) == ways
    about = KERNELS[f"shared_{ways}"]
    assert about.wavefronts == 16 * 4 * ways


@pytest.mark.slow
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
