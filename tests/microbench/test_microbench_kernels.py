"""The kernels as NVRTC compiles them: they do the work they are said to do, and no compiler leaves any of it out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from tachograph.catalog.errors import NotFoundError, UsageError
from tachograph.sharing.demand import H100_NVL
from tachograph.sharing.microbench.cuda_device import CompiledProgram, compile_kernels, source
from tachograph.sharing.microbench.experiments import full_loads
from tachograph.sharing.microbench.launch_demand import unit_of_work
from tachograph.sharing.microbench.machine_code import Code, CodeLoop, instructions, sections
from tachograph.sharing.microbench.workloads import KERNELS

ARCHES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
CHAINS = [name for name, about in KERNELS.items() if about.kind == "chains"]
STEPS = {"tensor": 16, "shared": 16}  # of a chain in a round; 64 of all others


@cache
def compiled(arch: str) -> CompiledProgram:
    try:
        return compile_kernels(arch)
    except NotFoundError as problem:
        if os.environ.get("TACHOGRAPH_REQUIRE_SERVERS") == "1":
            pytest.fail(str(problem))
        pytest.skip(str(problem))


def code_of(arch: str, kernel: str) -> Code:
    return compiled(arch).codes[kernel]


def loop(arch: str, kernel: str) -> CodeLoop:
    found = code_of(arch, kernel).working_loop(KERNELS[kernel].operation)
    assert found is not None
    return found


def text_of(arch: str, kernel: str) -> bytes:
    return next(one.content for one in sections(compiled(arch).image) if one.name == f".text.{kernel}")


def operations(arch: str, kernel: str) -> list[str | None]:
    return [one.operation for one in instructions(text_of(arch, kernel), int(arch[3:]))]


def ptx(kernel: str) -> str:
    text = compiled("compute_90").image.decode()
    body = text[text.index(f".entry {kernel}(") :]
    return body[: body.index("\n}")]


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("kernel", CHAINS)
def test_chains_are_all_that_a_round_is(arch: str, kernel: str) -> None:
    """Its named instructions fill the loop; no other memory, and no other pipeline but for the loop itself and sums."""
    name, count = kernel.split("_")
    work = STEPS.get(name, 64) * (1 if name == "shared" else int(count))
    found = Counter(loop(arch, kernel).operations)
    assert found[KERNELS[kernel].operation] == work
    others = found - Counter({KERNELS[kernel].operation: work, "NOP": found["NOP"]})
    if name == "alu":
        assert others.pop("SHF") == work
    if name == "shared":
        assert others.pop("LOP3") == 2 * work  # sums, on a pipeline that has room for four times as many
    assert others.total() <= 8
    assert not {"LDG", "STG", "LDL", "STL"} & set(others)


@pytest.mark.parametrize("arch", ARCHES)
def test_every_instruction_of_every_kernel_is_known(arch: str) -> None:
    for kernel in KERNELS:
        assert None not in operations(arch, kernel), kernel
        assert code_of(arch, kernel).instructions == len(operations(arch, kernel))


@pytest.mark.parametrize("arch", ARCHES)
def test_operations_and_branches_are_what_nvdisasm_says(arch: str, tmp_path: Path) -> None:
    """Names of all instructions, and where every branch goes, by NVIDIA's disassembler."""
    program = shutil.which("nvdisasm")
    if program is None:
        pytest.skip("no nvdisasm is installed")
    (tmp_path / "k.cubin").write_bytes(compiled(arch).image)
    words = [program, "-hex", "-c", str(tmp_path / "k.cubin")]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    for kernel in KERNELS:
        labels: dict[str, int] = {}
        lines: list[str] = []
        waiting: list[str] = []
        body = printed[printed.index(f".text.{kernel}:") :]
        body = re.split(r"\n\s*\.section", body)[0]
        for line in body.splitlines():
            if label := re.match(r"(\.L_x_\d+):", line.strip()):
                waiting.append(label[1])
            if found := re.search(r"/\*[0-9a-f]{4,5}\*/\s+(.*?);?\s+/\* 0x[0-9a-f]{16} \*/", line):
                labels |= dict.fromkeys(waiting, len(lines))
                waiting = []
                lines.append(found[1])
        decoded = instructions(text_of(arch, kernel), int(arch[3:]))
        names = [re.sub(r"^@!?U?P\w+\s+", "", line).split()[0].partition(".")[0] for line in lines]
        assert [one.operation for one in decoded] == names
        goals = {place: re.search(r"`\((\.L_x_\d+)\)", line) for place, line in enumerate(lines)}
        for place, one in enumerate(decoded):
            goal = goals[place]
            if one.operation == "BRA" and goal is not None:
                assert one.target == labels[goal[1]]


@pytest.mark.parametrize("chains", [1, 2, 3, 4])
def test_chains_are_independent_of_each_other(chains: int) -> None:
    """In PTX of compute_90 every register is written once: so a chain is the registers that feed each other."""
    for name, word in (("fmul", "mul.rn.f32"), ("dmul", "mul.rn.f64")):
        chain: dict[str, int] = {}
        lengths: Counter[int] = Counter()
        for made, first, second in re.findall(rf"{re.escape(word)}\s+(%\w+), (%\w+), (%\w+);", ptx(f"{name}_{chains}")):
            number = next((chain[one] for one in (second, first) if one in chain), len(set(chain.values())))
            chain[made] = number
            lengths[number] += 1
        assert lengths == dict.fromkeys(range(chains), 64)


@pytest.mark.parametrize("kernel", KERNELS)
def test_both_clocks_are_read_before_and_after(kernel: str) -> None:
    """Of the SM, which counts cycles, and of the GPU, which counts ns: together they tell how fast the SM was."""
    assert ptx(kernel).count("%clock64") == 2
    assert ptx(kernel).count("%globaltimer") == 2


def test_clocks_are_read_around_the_work() -> None:
    for kernel in CHAINS:
        codes = operations("sm_90", kernel)
        work = [place for place, code in enumerate(codes) if code == KERNELS[kernel].operation]
        clocks = [place for place, code in enumerate(codes) if code == "CS2R"]
        assert min(clocks) < work[0]
        assert max(clocks) > work[-1]


@pytest.mark.parametrize("arch", ARCHES)
def test_many_loads_are_under_way_before_the_first_store(arch: str) -> None:
    found = [one for one in loop(arch, "copy_4").operations if one in ("LDG", "STG")]
    assert found == ["LDG"] * 4 + ["STG"] * 4  # of 16 bytes: one load for each of the four in the source
    found = [one for one in loop(arch, "copy_1").operations if one in ("LDG", "STG")]
    assert found == ["LDG", "STG"] * 4


@pytest.mark.parametrize("arch", ARCHES)
def test_reads_of_l2_are_under_way_together(arch: str) -> None:
    """No sum stands between two loads, and no store in the loop."""
    found = [one for one in loop(arch, "read_l2").operations if one in ("LDG", "LOP3", "STG")]
    first = next(place for place, one in enumerate(found) if one == "LDG")
    assert found[first : first + 8] == ["LDG"] * 8
    assert found.count("LDG") == 8
    assert "STG" not in found
    assert found[first:].count("LOP3") >= 16  # 32 words, two to three of them in each


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("kernel", ["sweep_l1", "sweep_l2"])
def test_sweeps_load_each_word_and_store_nothing(arch: str, kernel: str) -> None:
    found = Counter(loop(arch, kernel).operations)
    assert (found["LDG"], found["STG"]) == (1, 0)
    assert operations(arch, kernel).count("STG") == 3  # the sum at the end, and the pace
    assert len(loop(arch, kernel).instructions) < 20


@pytest.mark.parametrize(
    ("kernel", "kept"),
    [
        ("copy_1", {"ld.global.cg.u32"}),
        ("copy_4", {"ld.relaxed.gpu.global.v4.u32", "ld.global.cg.u32"}),
        ("read_l2", {"ld.relaxed.gpu.global.v4.u32", "ld.global.cg.u32"}),
        ("sweep_l2", {"ld.global.cg.u32"}),
        ("sweep_l1", {"ld.global.ca.u32"}),
    ],
)
def test_loads_pass_l1_or_are_kept_in_it(kernel: str, kept: set[str]) -> None:
    assert set(re.findall(r"ld\.[\w.]*global\.[\w.]+", ptx(kernel))) == kept


def scopes(arch: str, kernel: str) -> set[int]:
    """Of all loads: bits 64 to 84 of the instruction, without its size; they tell scope and strength."""
    text = text_of(arch, kernel)
    places = [place for place, one in enumerate(instructions(text, int(arch[3:]))) if one.operation == "LDG"]
    return {int.from_bytes(text[place * 16 + 8 : place * 16 + 11], "little") & 0x1FFFFF & ~0x700 for place in places}


@pytest.mark.parametrize("arch", ARCHES)
def test_both_ways_past_l1_are_the_same_instruction(arch: str) -> None:
    """Of 16 bytes, relaxed, and of 4 bytes, cg; loads that L1 keeps are another one."""
    past = scopes(arch, "copy_1")
    assert len(past) == 1
    for kernel in ("copy_4", "read_l2", "sweep_l2"):
        assert scopes(arch, kernel) == past
    assert scopes(arch, "sweep_l1") not in (past, set())


@pytest.mark.parametrize("arch", ARCHES)
def test_a_tile_of_the_multiplication(arch: str) -> None:
    found = Counter(loop(arch, "matmul").operations)
    # loads of four words each: 16 columns of `left` and of `right`
    assert {name: found[name] for name in ("FFMA", "LDG", "STS", "LDS", "BAR")} == {
        "FFMA": 256, "LDG": 8, "STS": 8, "LDS": 32, "BAR": 2
    }  # fmt: skip


def test_sleeping_threads_need_for_nothing_else() -> None:
    codes = operations("sm_90", "sleep")
    assert "NANOSLEEP" in codes
    assert not {"FMUL", "FFMA", "DMUL", "LDG", "MUFU", "HMMA"} & set(codes)


def formula(name: str, **values: int) -> int:
    """A line of kernels.cu that computes a place, in Python."""
    sides = {"TILE": 64, "DEPTH": 16}
    names = "|".join(
        ("LEFT_PITCH", "SHARED_STEP", "LEFT_ROW", "LEFT_COLUMN", "RIGHT_ROW", "RIGHT_COLUMN", "SHARED_WORD")
    )
    lines = dict(re.findall(rf"#define ({names})(?:\([^)]*\))? (.+?)(?: //.*)?\n", source()))
    assert all(f"#define {side} {value} " in source() for side, value in sides.items())
    return int(eval(lines[name].replace("/", "//"), {}, sides | values))  # a formula of this repository


def conflicts(words: list[int], width: int) -> int:
    """How often the fullest bank is asked for different words, at most, of the groups that are served at once."""
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
                    (formula(f"{side}_ROW", thread=one, part=part), formula(f"{side}_COLUMN", thread=one, part=part))
                    for one in threads
                ]
                assert conflicts([row * width + column for row, column in found], 1) == 1, (side, warp, part)
                places.update(found)
        for k in range(16):  # reads of four words: rows of `left` by thread / 16, columns of `right` by thread % 16
            assert conflicts([k * pitch + one // 16 * 4 for one in threads], 4) == 1
            assert conflicts([k * 64 + one % 16 * 4 for one in threads], 4) == 1
    assert left == right == {(row, column) for row in range(16) for column in range(64)} - (left ^ right)
    assert pitch % 4 == 0  # reads of four words begin at 16 bytes


def test_the_old_layout_of_the_multiplication_had_sixteen_conflicts() -> None:
    """Rows of 64 words by thread % 16: all in one bank. What the check above would say of them."""
    assert conflicts([thread % 16 * 64 + thread // 16 for thread in range(32)], 1) == 16


@pytest.mark.parametrize("ways", [1, 8])
def test_reads_of_shared_memory_have_as_many_conflicts_as_they_name(ways: int) -> None:
    for load in range(16):
        words = [formula("SHARED_WORD", thread=thread, ways=ways) for thread in range(32)]
        assert conflicts([word + load * formula("SHARED_STEP") for word in words], 4) == ways
    about = KERNELS[f"shared_{ways}"]
    assert about.wavefronts == 16 * 4 * ways


@pytest.mark.parametrize("arch", ARCHES)
def test_two_launches_find_room_on_an_sm(arch: str) -> None:
    codes = compiled(arch).codes
    assert sorted(codes) == sorted(KERNELS)
    threads = {"sm_75": 1024, "sm_86": 1536, "sm_89": 1536, "sm_120": 1536}.get(arch, 2048)
    for kernel, workload in full_loads(replace(H100_NVL, threads_per_sm=threads)).items():
        registers, resident = codes[kernel].registers, workload.threads * -(-workload.blocks // 132)
        assert registers is not None
        assert 2 * resident <= threads
        assert 2 * -(-registers // 8) * 8 * resident <= 65536, kernel
    assert codes["matmul"].shared_bytes >= 2 * 16 * 64 * 4


def test_counts_are_of_the_chip_at_hand() -> None:
    """The same source: a multiplication in FP64 stands among idle instructions where few lanes do it."""
    workload = full_loads(H100_NVL)["dmul_4"]
    issued = {arch: unit_of_work(workload, code_of(arch, "dmul_4")) for arch in ("sm_90", "sm_120")}
    assert {arch: one and one.pipes["fp64"] for arch, one in issued.items()} == {"sm_90": 256.0, "sm_120": 256.0}
    assert {arch: one and one.issued for arch, one in issued.items()} == {"sm_90": 262.0, "sm_120": 1278.0}
    assert loop("sm_120", "dmul_4").count("NOP") == 1019


def test_a_unit_of_work_is_a_load_of_a_warp_however_loops_are_unrolled() -> None:
    workload = full_loads(H100_NVL)["copy_1"]
    for arch in ARCHES:
        found = unit_of_work(workload, code_of(arch, "copy_1"))
        assert found is not None
        assert found.pipes["lsu"] == 2.0
        assert 5 < found.issued < 14
    assert unit_of_work(workload, None) is None


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


def test_what_the_driver_compiles_is_counted_in_the_nearest_machine_code() -> None:
    between, real = compiled("sm_88").codes, compiled("sm_87").codes
    assert all(one.loaded for one in real.values())
    for kernel in KERNELS:
        one = between[kernel]
        assert (one.arch, one.loaded, one.registers) == ("sm_87", False, None)
        assert one.loops == real[kernel].loops


@pytest.mark.parametrize("arch", ARCHES)
def test_loops_end_in_their_branch_and_hold_no_other(arch: str) -> None:
    for kernel in KERNELS:
        for found in code_of(arch, kernel).loops:
            assert found.operations[-1] == "BRA"
        assert all(one != other for one, other in pairwise(code_of(arch, kernel).loops))
