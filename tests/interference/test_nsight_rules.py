"""Claims of the rules of Nsight Compute beside the findings here: each claim agrees, differs, and is not comparable."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from published_launches import COPY, busy, launch, waiting

from tachograph.catalog.config import Configuration
from tachograph.nsight.launches import Chip, Launch, NcuReport, RuleResult
from tachograph.sharing.kernel_facts import KernelsRequest, KernelView
from tachograph.sharing.kernel_report import build_kernels_report
from tachograph.sharing.nsight_rules import CLAIMS, ComparedRule, compared_rules, rule_agreement

LATENT = busy(0.1, 50.0, dram=5.0)
OF_FMA = busy(3.6, 50.0, dram=5.0, fma=90.0)
OF_DRAM = busy(0.6, 50.0, dram=85.0)
UNMEASURED = {"launch__registers_per_thread": 16.0}
SMALL, LARGE = (13, 1, 1), (264, 1, 1)
NAMELESS = Chip(attributes={})
ACTIVE, FULL = "pct_of_peak_sustained_active", "pct_of_peak_sustained_elapsed"
POSSIBLE, OCCUPANCY = "sm__maximum_warps_per_active_cycle_pct", f"sm__warps_active.avg.{ACTIVE}"
THREADS = "smsp__thread_inst_executed_per_inst_executed.ratio"
L1, L2, DRAM = f"l1tex__throughput.avg.{ACTIVE}", f"lts__throughput.avg.{FULL}", f"gpu__dram_throughput.avg.{FULL}"


def spread(mean: float, least: float, most: float) -> dict[str, float]:
    return {f"sm__cycles_active.{kind}": cycles for kind, cycles in (("avg", mean), ("min", least), ("max", most))}


def of_fp64(per_second: float) -> dict[str, float]:
    """Instructions of FP64 per second, all of them fused."""
    counts = dict.fromkeys(("dadd", "dmul"), 0.0) | {"dfma": per_second}
    return {f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum.per_second": rate for name, rate in counts.items()}


@dataclass(frozen=True)
class Case:
    """A claim as its rule words it; metrics by which it holds here, does not, and is not known."""

    rule: str
    says: str
    text: str
    holds: Mapping[str, Any]
    fails: Mapping[str, Any]
    unknown: Mapping[str, Any] = field(default_factory=dict)


OVER = "This workload is utilizing greater than 80.0% of the available compute or memory performance of the device."
TAIL = "This kernel launch results in 1 full waves and a partial wave of 66 thread blocks."
STALLED = "On average, each warp of this kernel spends 9.1 cycles being stalled"
STALLS = {
    "barrier": "waiting for sibling warps at a CTA barrier.",
    "branch_resolving": "waiting for a branch target to be computed, and the warp program counter to be updated.",
    "dispatch_stall": "waiting on a dispatch stall.",
    "drain": "after EXIT waiting for all outstanding memory operations to complete.",
    "imc_miss": "waiting for an immediate constant cache (IMC) miss.",
    "lg_throttle": "waiting for the L1 instruction queue for local and global (LG) memory operations to be not full.",
    "long_scoreboard": "waiting for a scoreboard dependency on a L1TEX (local, global, surface, texture) operation.",
    "math_pipe_throttle": "waiting for the execution pipe to be available.",
    "membar": "waiting on a memory barrier.",
    "mio_throttle": "waiting for the MIO (memory input/output) instruction queue to be not full.",
    "no_instruction": "waiting to be selected to fetch an instruction or waiting on an instruction cache miss.",
    "short_scoreboard": "waiting for a scoreboard dependency on a MIO (memory input/output) operation (not to L1TEX).",
    "sleeping": "due to all threads in the warp being in the blocked, yielded, or sleep state.",
    "tex_throttle": "waiting for the L1 instruction queue for texture operations to be not full.",
    "wait": "waiting on a fixed latency execution dependency.",
}
CASES = (
    Case(
        "SOLBottleneck",
        "small grid",
        "This kernel grid is too small to fill the available resources on this device.",
        {**LATENT, "grid": SMALL},
        {**LATENT, "grid": LARGE},
        UNMEASURED,
    ),
    Case(
        "SOLBottleneck",
        "latency",
        "Achieved compute throughput and/or memory bandwidth below 60.0% of peak typically indicate latency issues.",
        LATENT,
        OF_DRAM,
        UNMEASURED,
    ),
    Case(
        "SOLBottleneck",
        "compute",
        "Compute is more heavily utilized than Memory: Look at the Compute Workload Analysis report section.",
        OF_FMA,
        OF_DRAM,
        UNMEASURED,
    ),
    Case(
        "SOLBottleneck",
        "memory",
        "Memory is more heavily utilized than Compute: Look at the Memory Workload Analysis.",
        OF_DRAM,
        OF_FMA,
        UNMEASURED,
    ),
    Case(
        "SOLBottleneck",
        "compute and memory alike",
        "Compute and Memory are well-balanced: To reduce runtime, both computation and memory traffic must be reduced.",
        OF_DRAM,
        LATENT,
        UNMEASURED,
    ),
    Case(
        "SOLBottleneck",
        "compute, nearly full",
        f"{OVER} Start by analyzing workloads in the Compute Workload Analysis section.",
        OF_FMA,
        OF_DRAM,
        UNMEASURED,
    ),
    Case(
        "SOLBottleneck",
        "memory, nearly full",
        f"{OVER} Start by analyzing DRAM in the Memory Workload Analysis section.",
        OF_DRAM,
        OF_FMA,
        UNMEASURED,
    ),
    Case("SOLBottleneck", "compute or memory nearly full", OVER, OF_FMA, LATENT, UNMEASURED),
    Case(
        "LaunchConfiguration",
        "small grid",
        "The grid for this launch is configured to execute only 13 blocks, which is "
        "less than the GPU's 132 multiprocessors.",
        {**LATENT, "grid": SMALL},
        {**LATENT, "grid": LARGE},
        {**LATENT, "chip": NAMELESS},
    ),
    Case(
        "LaunchConfiguration",
        "tail effect",
        TAIL,
        {"launch__waves_per_multiprocessor": 1.5},
        {"launch__waves_per_multiprocessor": 1.89},
    ),
    Case(
        "LaunchConfiguration",
        "blocks of broken warps",
        "Threads are executed in groups of 32 threads called warps.",
        {**LATENT, "block": (48, 1, 1)},
        {**LATENT, "block": (64, 1, 1)},
        {"grid": None, "block": None},
    ),
    Case(
        "TheoreticalOccupancy",
        "low possible occupancy",
        "The 3.00 theoretical warps per scheduler this kernel can issue "
        "according to its occupancy are below the hardware maximum of 16.",
        {POSSIBLE: 18.75},
        {POSSIBLE: 100.0},
    ),
    Case(
        "AchievedOccupancy",
        "occupancy not reached",
        "The difference between calculated theoretical (100.0%) and measured achieved occupancy (50.0%)",
        {POSSIBLE: 100.0, OCCUPANCY: 50.0},
        {POSSIBLE: 100.0, OCCUPANCY: 95.0},
        {POSSIBLE: 100.0},
    ),
    Case(
        "WorkloadImbalance",
        "uneven load of SMs",
        "One or more SMs have a much higher number of active cycles than the average.",
        spread(50.0, 10.0, 100.0),
        spread(98.0, 97.0, 100.0),
    ),
    Case(
        "IssueSlotUtilization",
        "issue slots idle",
        "Every scheduler is capable of issuing one instruction per cycle, but "
        "for this kernel each scheduler only issues an instruction every 8.1 cycles.",
        LATENT,
        OF_FMA,
    ),
    *(
        Case(
            "CPIStall",
            f"waits: {reason}",
            f"{STALLED} {words}",
            waiting(**{reason: 5.0}),
            waiting(selected=1.0, **{"wait" if reason != "wait" else "barrier": 5.0}),
        )
        for reason, words in STALLS.items()
    ),
    Case(
        "ThreadDivergence",
        "few threads of a warp",
        "This kernel achieves an average of 10.0 threads being active per cycle.",
        {THREADS: 10.0},
        {THREADS: 32.0},
    ),
    Case(
        "HighPipeUtilization",
        "pipelines idle",
        "All compute pipelines are under-utilized.",
        busy(0.5, 50.0, fma=5.0),
        OF_FMA,
        LATENT,
    ),
    Case(
        "HighPipeUtilization",
        "busiest pipe: FMA",
        "FMA is the highest-utilized pipeline (90.0%) based on active cycles.",
        busy(3.0, 50.0, fma=70.0, alu=10.0),
        busy(3.0, 50.0, fma=10.0, alu=70.0),
        LATENT,
    ),
    Case(
        "SOLFPRoofline",
        "much FP64",
        "The workload achieved 0% of this device's FP32 peak performance and 66% of its FP64 peak performance.",
        of_fp64(1e13),
        of_fp64(1e11),
    ),
    Case(
        "SOLFPRoofline",
        "little FP64",
        "The kernel achieved close to 0% of this device's fp32 peak performance and 1% of its fp64 peak performance.",
        of_fp64(1e11),
        of_fp64(1e13),
    ),
    Case(
        "SharedMemoryConflicts",
        "bank conflicts",
        "The memory access pattern for shared loads might not be optimal and "
        "causes on average a 4.0 - way bank conflict across all 100 shared load requests.",
        {L1: 60.0},
        {L1: 2.0},
    ),
    Case(
        "UncoalescedSharedAccess",
        "uncoalesced shared accesses",
        "This kernel has uncoalesced shared accesses resulting in a total of 9 excessive wavefronts.",
        {L1: 60.0},
        {L1: 2.0},
    ),
    Case(
        "UncoalescedGlobalAccess",
        "uncoalesced accesses",
        "This kernel has uncoalesced global accesses resulting in a total of 9 excessive sectors.",
        {L2: 40.0},
        {L2: 2.0},
    ),
    *(
        Case(
            "MemoryCacheAccessPattern",
            f"sectors of {cache} in part",
            f"The memory access pattern for global loads from "
            f"{named} might not be optimal. On average, only 4.0 of the 32 bytes transmitted per sector are utilized.",
            {metric: 60.0},
            {metric: 2.0},
        )
        for cache, named, metric in (("L1", "L1TEX", L1), ("L2", "L2", L2), ("DRAM", "DRAM", DRAM))
    ),
)


def said(rule: str, text: str, speedup: float | None = None, *, kind: str = "OPT", of: str = "global") -> RuleResult:
    return RuleResult.of(rule, "Section", kind, text, speedup=speedup, speedup_type=of)


def made(metrics: Mapping[str, Any], *rules: RuleResult, **how: Any) -> Launch:
    """A launch; metrics may have its grid, block and chip among them."""
    how = {name: metrics[name] for name in ("grid", "block", "chip") if name in metrics} | how
    numbers = {name: value for name, value in metrics.items() if name not in ("grid", "block", "chip")}
    return replace(launch(numbers, **how), rules=rules)


def views(*launches: Launch) -> Sequence[KernelView]:
    found = build_kernels_report([NcuReport("a.ncu-rep", launches)], KernelsRequest(), configuration=Configuration())
    return found.parts[0].kernels


def compared(*launches: Launch) -> tuple[ComparedRule, ...]:
    (view,) = views(*launches)
    found = compared_rules(view)
    assert found is not None
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}: {case.says}")
def test_each_claim_both_ways(case: Case) -> None:
    for metrics, agreement in ((case.holds, "agrees"), (case.fails, "differs"), (case.unknown, "not_comparable")):
        (found,) = compared(made(metrics, said(case.rule, case.text)))
        assert (found.claim, found.agreement, found.share) == (case.says, agreement, 1.0)
        assert (found.ours is None) == (agreement == "not_comparable")


def test_each_known_claim_has_a_case() -> None:
    known = [(claim.rule, claim.says.partition(":")[0]) for claim in CLAIMS]
    assert {(case.rule, case.says.partition(":")[0]) for case in CASES} == set(known)
    assert sum(case.rule == "CPIStall" for case in CASES) == sum(rule == "CPIStall" for rule, _ in known)


def test_what_is_found_here_is_in_words() -> None:
    (slow,) = compared(made(COPY.metrics, said("SOLBottleneck", OVER)))
    assert slow.ours == "latency"
    (full,) = compared(made(OF_DRAM, said("SOLBottleneck", OVER)))
    assert full.ours == "DRAM 94 %"
    few_blocks = said("LaunchConfiguration", "less than the GPU's 132 multiprocessors")
    (few,) = compared(made({**LATENT, "grid": SMALL}, few_blocks))
    assert few.ours == "13 blocks for 132 SMs"


def test_a_claim_in_part_of_the_time() -> None:
    tail = said("LaunchConfiguration", TAIL, 50.0)
    other = said("SOLBottleneck", "indicates nothing that is known", kind="INF")
    short, long = made({}, tail, other, seconds=2e-3), made({}, other, seconds=8e-3)
    waves = {"launch__waves_per_multiprocessor": 1.5}
    (found,) = compared(made(waves, tail, other, seconds=2e-3), made(waves, other, seconds=8e-3))
    assert found.share == pytest.approx(0.2)
    assert found.agreement == "differs"  # found here, and not of most of its time
    waves = {"launch__waves_per_multiprocessor": 2.0}
    (found,) = compared(made(waves, tail, other, seconds=2e-3), made(waves, other, seconds=8e-3))
    assert found.agreement == "agrees"  # neither
    (found,) = compared(short, long)
    assert found.agreement == "not_comparable"


def test_estimates_are_weighted_by_time() -> None:
    rules = [said("CPIStall", f"{STALLED} {STALLS['barrier']}", percent) for percent in (10.0, 50.0)]
    (found,) = compared(made({}, rules[0], seconds=3e-3), made({}, rules[1], seconds=1e-3))
    assert found.speedup_percent == pytest.approx(20.0)
    assert found.speedup_type == "global"
    mixed = replace(rules[1], speedup_type="local")
    (found,) = compared(made({}, rules[0]), made({}, mixed))
    assert found.speedup_percent == pytest.approx(30.0)
    assert found.speedup_type is None


def test_launches_without_rules_count_in_no_share() -> None:
    tail = said("LaunchConfiguration", TAIL)
    (found,) = compared(made({}, tail, seconds=1e-3), made({}, seconds=9e-3))
    assert found.share == 1.0


def test_without_durations_each_launch_counts_alike() -> None:
    tail, other = said("LaunchConfiguration", TAIL), said("Other", "Anything.")
    found = compared(*(made({}, rule, seconds=None, number=number) for number, rule in enumerate((tail, other, other))))
    assert {rule.rule: round(rule.share, 9) for rule in found} == {
        "Other": round(2 / 3, 9),
        "LaunchConfiguration": round(1 / 3, 9),
    }


def test_one_verdict_on_the_bottleneck() -> None:
    texts = ("typically indicate latency issues", "Memory is more heavily utilized than Compute")
    verdicts = [said("SOLBottleneck", text) for text in texts]
    (found,) = compared(made(LATENT, verdicts[0], seconds=6e-3), made(LATENT, verdicts[1], seconds=4e-3))
    assert found.share == pytest.approx(0.6)
    assert (found.claim, found.agreement) == ("latency", "agrees")


def test_a_rule_that_is_not_known_is_shown_with_its_text() -> None:
    unknown = said("SlowPipeLimiter", "This kernel uses the FP64 pipeline.", 12.0, of="local")
    information = said("SlowPipeLimiter", "Nothing to see.", kind="INF")
    (found,) = compared(made({}, information, unknown))
    assert found == ComparedRule("SlowPipeLimiter", "Section", "OPT", None, unknown.text, 1.0, 12.0, "local", None,
                                 "not_comparable")  # fmt: skip


def test_words_of_a_claim_in_another_rule_are_none() -> None:
    (found,) = compared(made(LATENT, said("SharedMemoryConflicts", "typically indicate latency issues")))
    assert found.claim is None


def test_no_rules() -> None:
    assert [compared_rules(view) for view in views(made(LATENT))] == [None]
    assert rule_agreement(views(made(LATENT))) is None
    assert rule_agreement([]) is None


def test_the_order_of_launches_does_not_matter() -> None:
    choice = random.Random(7)
    launches = [
        made(LATENT, *(said(case.rule, case.text, 5.0 + number) for case in choice.sample(CASES, 4)), number=number)
        for number in range(12)
    ]
    first = compared(*launches)
    choice.shuffle(launches)
    assert sorted(compared(*launches), key=repr) == sorted(first, key=repr)


def test_agreement_over_kernels() -> None:
    latency = said("SOLBottleneck", "typically indicate latency issues")
    unknown = said("Other", "Anything.")
    found = rule_agreement(
        views(
            made(LATENT, latency, unknown, name="a", seconds=4e-3),
            made(OF_DRAM, latency, name="b", seconds=3e-3),
            made(OF_FMA, latency, name="c", seconds=2e-3),
            made(LATENT, name="d"),
        )
    )
    assert found is not None
    assert (found.agree, found.comparable) == (1, 3)
    assert [(one.rule, one.claim, one.of) for one in found.differ] == [("SOLBottleneck", "latency", (2, 3))]


def test_a_recorded_gemm() -> None:
    """What ncu 2025 recorded of a GEMM on a GB200: 288 blocks of 384 threads, 1.89 waves, DRAM 0.74 %."""
    metrics = {
        "launch__waves_per_multiprocessor": 1.89,
        POSSIBLE: 18.75,
        OCCUPANCY: 15.53,
        L2: 15.12,
        DRAM: 0.74,
        "sm__inst_issued.avg.per_cycle_active": 0.2,
        "launch__registers_per_thread": 168.0,
        **spread(462061.91, 273300.0, 490850.0),
    }
    chip = Chip("NVIDIA GB200", "10.0", {"multiprocessor_count": 152.0})
    rules = (
        said("SOLBottleneck", "below 60.0% of peak typically indicate latency issues."),
        said("LaunchConfiguration", "If you execute __syncthreads() to synchronize the threads of a block, ..."),
        said("LaunchConfiguration", TAIL, 50.0),
        said("TheoreticalOccupancy", "are below the hardware maximum of 16.", 81.25, of="local"),
        said("WorkloadImbalance", "One or more SMs have a much lower number of active cycles than the average.", 5.818),
        said("WorkloadImbalance", "One or more L2 Slices have a much lower number of active cycles.", 9.1),
    )
    found = compared(made(metrics, *rules, chip=chip, grid=(9, 32, 1), block=(384, 1, 1)))
    assert [(rule.rule, rule.claim, rule.agreement) for rule in found] == [
        ("SOLBottleneck", "latency", "agrees"),
        ("LaunchConfiguration", None, "not_comparable"),
        ("LaunchConfiguration", "tail effect", "differs"),  # 5 % of the places stay empty
        ("TheoreticalOccupancy", "low possible occupancy", "agrees"),
        ("WorkloadImbalance", "uneven load of SMs", "differs"),  # 5.9 % idle
        ("WorkloadImbalance", None, "not_comparable"),
    ]
