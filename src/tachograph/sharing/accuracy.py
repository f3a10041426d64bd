"""Published measurements of kernels that share a GPU, and the errors of the estimator against them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from tachograph.sharing.contention import DOMINANCE, curve_errors, dram_load, residency
from tachograph.sharing.demand import H100_NVL, Calibration, Demand, Estimate, Footprint, GpuCapacity, Sharing
from tachograph.sharing.estimate import estimate

PublishedRead = Literal["slowdown", "gain"]
MATTERS = 1.2  # a slowdown from which on nobody would call a pair safe
_KIB, _MIB = 1024.0, 1024.0 * 1024.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedNumber:
    """One measurement. `read`: slowdown of the last of `demands`, or gain: sequential time over time together.

    `calibration`: of its GPU, from kernels that ran alone there; None: the default. `without`: the same without any
    constant that its GPU gave.
    """

    table: str
    name: str
    measured: float
    read: PublishedRead
    demands: tuple[Demand, Demand]
    gpu: GpuCapacity = H100_NVL
    calibration: Calibration | None = None
    without: Calibration | None = None
    sharing: Sharing | None = None
    note: str = ""  # where the number, or a demand, is not simply a cell of the table

    @property
    def slowdown(self) -> float:
        """What was measured, as a slowdown of the last or, of a gain, of both until the later one has ended."""
        return self.measured if self.read == "slowdown" else self._alone / self.measured

    @property
    def _alone(self) -> float:
        """Time one after the other over that of the longer one."""
        seconds = [demand.seconds or 1.0 for demand in self.demands]
        return sum(seconds) / max(seconds)


RTX_3090 = GpuCapacity(name="NVIDIA GeForce RTX 3090", sms=82, threads_per_sm=1536, blocks_per_sm=16)
V100 = GpuCapacity(
    name="NVIDIA V100", sms=80, threads_per_sm=2048, blocks_per_sm=32, registers_per_sm=65536,
    shared_bytes_per_sm=96 * _KIB, l1_bytes=128 * _KIB, l2_bytes=6 * _MIB, dram_bytes_per_s=1.134e12,
)  # fmt: skip
RTX_5090 = GpuCapacity(
    name="NVIDIA GeForce RTX 5090", sms=170, threads_per_sm=1536, blocks_per_sm=24, registers_per_sm=65536,
    shared_bytes_per_sm=100 * _KIB, l1_bytes=128 * _KIB, l2_bytes=96e6, dram_bytes_per_s=1.792e12,
)  # fmt: skip

# copy kernel alone on half of the SMs, Table 2: (blocks, share of the highest bandwidth achieved)
SOLO_BANDWIDTH = ((33, 0.2133), (66, 0.4012), (99, 0.5506), (132, 0.6918))
_OF_PEAK = 0.42 / 0.6918  # 42 % of the peak where 69.18 % of the highest bandwidth of a copy was measured
_COPY_IPC = 0.61
# a miss over a hit of a V100 by latency, Jia et al. 2018 (arXiv 1804.06826): for where what was measured is left out
_V100_L2_COST, _V100_L1_COST = 425 / 193, 193 / 28


def fitted_curvature(alone: Sequence[tuple[float, float]] = SOLO_BANDWIDTH, *, step: float = 0.001) -> float:
    """Return c of u (1 + c u^2) = k blocks that fits kernels alone best: each block keeps k requests on their way.

    `alone`: (blocks, share of the highest bandwidth of a copy, 0..1); u is the share of what can be achieved. No
    slowdown enters. Least squares of relative errors of the requests, over multiples of `step` up to 4.

    >>> round(fitted_curvature(), 3)
    1.254
    """
    points = [(blocks, _achieved(used)) for blocks, used in alone]
    return step * min(range(1, round(4.0 / step) + 1), key=lambda steps: curve_errors(points, steps * step)[0])


def _achieved(of_copies: float) -> float:
    """Share of the bandwidth that can be achieved, of one of the highest that copies of the H100 achieved."""
    return of_copies * _OF_PEAK / Calibration().achievable_share


def fitted_l2_miss_cost(slower: float = 1.79) -> float:
    """Return the time of a miss in L2 over that of a hit that makes two copies as much slower as was published.

    Two kernels of 66 blocks that copy arrays of 22.5 MB, each on SMs of its own, took 1.79 times as long (section
    4.1.2, Figure 2: the highest). It is none of the twenty. Beside each other nothing is found in L2, and DRAM is used
    by both as by two copies of 66 blocks, whose slowdown is that of the estimator.

    >>> round(fitted_l2_miss_cost(), 2)
    1.41
    """
    used = _achieved(SOLO_BANDWIDTH[1][1])
    curvature = Calibration().dram_curvature
    requests = used * (1.0 + curvature * used * used)
    together = dram_load(2.0 * requests, curvature)
    return slower / (1.0 + curvature * together * together)


def fitted_l1_miss_cost(slower: float = 2.0, copied: float = 2 * 64 * _KIB) -> float:
    """Return the time of a miss in L1 over that of a hit at which two copies of 64 KB have no gain from co-location.

    Below arrays of 64 KB, blocks that copy side by side on an SM gained, above it not (section 4.2.1, Figure 3). It is
    none of the twenty.

    >>> round(fitted_l1_miss_cost(), 2)
    5.75
    """
    size, known = H100_NVL.l1_bytes or copied, Calibration()
    together = residency(2.0 * copied / size, known.l1_knee, known.l1_cliff)
    return 1.0 + (slower - 1.0) / (1.0 - together)


# V100, two blocks of 64 threads on an SM copy N KB each, twice: ms one after the other, and together
_V100_L1 = ((16, 84.0, 42.4), (32, 167.1, 155.4), (48, 250.2, 815.7), (64, 593.8, 1818.0))
_V100_L1_96 = 4701.61  # ms one after the other, of 96 KB

# of copies that stream: nothing is found again, and what passes through L2 is what passes to DRAM
_STREAMS: Mapping[str, Any] = MappingProxyType({"l2_hit": 0.0, "l2_bytes": 0.0, "l1_hit": 0.0, "l1_bytes": 0.0})
_NO_MEMORY: Mapping[str, Any] = MappingProxyType({**_STREAMS, "l2_bandwidth": 0.0})
_NO_LOADS = {"lsu": 0.0, "tex": 0.0, "l1_bandwidth": 0.0}
_ONE_BLOCK = Footprint(1, 1024, 32, 1024.0)  # of which two meet in no SM


def _copy(bandwidth: float) -> Demand:
    """The copy kernel of 4 GiB, 132 blocks on 132 SMs. `bandwidth`: share of the highest that a copy achieved."""
    return Demand(
        name="copy", cycles={"issue": _COPY_IPC / 4, "fma": 0.0}, dram=bandwidth * _OF_PEAK, warps=8.0,
        irregular=1.0, seconds=1.0, footprint=Footprint(132, 1024, 32, 1024.0), **_STREAMS,
    )  # fmt: skip


def _copy_on_half(bandwidth: float, of: float = 1.0) -> Demand:
    """The copy kernel on a half of the SMs, alone as well as beside the other: they meet in DRAM only.

    `bandwidth`: share of the highest that a copy achieved, which is `of` what can be achieved.
    """
    return Demand(
        name="copy", dram=bandwidth * of, dram_of="achievable", irregular=1.0, seconds=1.0, footprint=_ONE_BLOCK,
        **_STREAMS,
    )  # fmt: skip


def _compute(ipc: float, threads: int, *, name: str = "fmul", fp64: float | None = None, blocks: int = 132) -> Demand:
    """A kernel that multiplies registers: it waits for arithmetic only, and hardly touches memory."""
    cycles = {"issue": ipc / 4, "fma": ipc / 4} if fp64 is None else {"issue": ipc / 4, "fp64": fp64}
    return Demand(
        name=name, cycles=cycles | _NO_LOADS, dram=0.0, warps=threads / 32 / 4, irregular=0.0, seconds=1.0,
        footprint=Footprint(blocks, threads, 32, 1024.0), **_NO_MEMORY,
    )  # fmt: skip


def _sleep(blocks: int) -> Demand:
    return Demand(
        name="sleep", cycles={"issue": 0.2 / 4, "fma": 0.0} | _NO_LOADS, dram=0.0, warps=8.0, irregular=0.0,
        seconds=1.0, footprint=Footprint(blocks, 1024, 32, 1024.0), **_NO_MEMORY,
    )  # fmt: skip


def _of_bandwidth() -> list[PublishedNumber]:
    measured = (1.06, 1.14, 1.23, 1.36)
    rows = [
        PublishedNumber(
            table="Table 2", name=f"copy + copy, {blocks} blocks", measured=slowdown, read="slowdown",
            demands=(_copy_on_half(used, _achieved(1.0)), _copy_on_half(used, _achieved(1.0))),
        )
        for (blocks, used), slowdown in zip(SOLO_BANDWIDTH, measured, strict=True)
    ]  # fmt: skip
    return [*rows, PublishedNumber(
        table="Table 2", name="copy + copy, RTX 3090", measured=1.9, read="slowdown",
        demands=(_copy_on_half(0.9), _copy_on_half(0.9)), gpu=RTX_3090, note="latency under load as on the H100",
    )]  # fmt: skip


def _of_ipc() -> list[PublishedNumber]:
    cases = ((1.08, 128, 1.915), (2.06, 128, 1.896), (2.9, 128, 1.893), (3.45, 128, 1.65), (4.0, 256, 1.001))
    return [
        PublishedNumber(
            table="Table 3", name=f"fmul of IPC {ipc:g} + copy", measured=gain, read="gain",
            demands=(_compute(ipc, threads), _copy(0.6918)),
        )
        for ipc, threads, gain in cases
    ]  # fmt: skip


def _of_fp64() -> list[PublishedNumber]:
    cases = ((0.51, 0.2496, 1.988), (1.02, 0.4932, 1.977), (1.53, 0.7299, 1.356), (2.01, 0.9659, 1.018))
    return [
        PublishedNumber(
            table="Table 4", name=f"FP64 + FP64, pipe {100 * used:.2f} % each", measured=gain, read="gain",
            demands=(_compute(ipc, 128, name="dmul", fp64=used), _compute(ipc, 128, name="dmul", fp64=used)),
        )
        for ipc, used, gain in cases
    ]  # fmt: skip


def _of_pitfalls() -> list[PublishedNumber]:
    small = _compute(3.45, 128)
    mm = Demand(name="mm", cycles={"issue": 0.75, "fma": 0.6}, warps=1.0, seconds=1.0,
                footprint=Footprint(128, 128))  # fmt: skip
    text = "in words only: perfect overlap, or as long as in turn"
    return [
        PublishedNumber(
            table="Pitfall 1", name="fmul of IPC 4 + copy", measured=2.0, read="slowdown",
            demands=(_compute(4.0, 1024), _copy(0.6918)), note="of the copy kernel",
        ),
        PublishedNumber(
            table="Pitfall 2", name="two of 6.25 % occupancy, streams", measured=1.85, read="slowdown",
            demands=(small, small), note="IPC 3.45 is that of the same kernel in Table 3",
        ),
        PublishedNumber(
            table="Pitfall 2", name="two of 6.25 % occupancy, 6.25 % of SMs", measured=15.8, read="slowdown",
            demands=(small, small), sharing=Sharing("mps", (0.0625, 0.0625)), note="IPC as above",
        ),
        PublishedNumber(
            table="Section 4.3", name="torch.mm + torch.mm", measured=1.7, read="slowdown", demands=(mm, mm),
            note="why its warps wait was not published: irregular",
        ),
        PublishedNumber(
            table="Section 4.1", name="sleep + sleep, 132 blocks", measured=2.0, read="gain",
            demands=(_sleep(132), _sleep(132)), note=text,
        ),
        PublishedNumber(
            table="Section 4.1", name="sleep + sleep, 264 blocks", measured=1.0, read="gain",
            demands=(_sleep(264), _sleep(264)), note=text,
        ),
    ]  # fmt: skip


def twenty() -> tuple[PublishedNumber, ...]:
    """Return the twenty numbers of the paper."""
    return (*_of_bandwidth(), *_of_ipc(), *_of_fp64(), *_of_pitfalls())


def held_out() -> tuple[PublishedNumber, ...]:
    """Return the numbers of other GPUs, milliseconds and GB/s as printed there; see `SEEN` for what was fitted to them.

    Use of the FP64 pipe follows from times alone: with four independent operations it is full.
    """
    return (*_fp64_of_80(), *_rest_of_80(), *_v100_l2(), *_v100_l1(), *_rtx_5090_l2())


def _fp64_of_80() -> list[PublishedNumber]:
    in_turn, together = (237.894, 246.93, 358.643, 473.949), (124.381, 234.181, 346.017, 461.351)
    rows = []
    for ilp, (one_by_one, both) in enumerate(zip(in_turn, together, strict=True), start=1):
        used = (in_turn[3] / 4 * ilp) / one_by_one
        # half of the slots at most: the pipe takes an instruction every second cycle
        kernel = _compute(2.0 * used, 128, name="dmul", fp64=used, blocks=80)
        rows.append(
            PublishedNumber(
                table="FP64", name=f"FP64 + FP64, {ilp} independent", measured=one_by_one / both, read="gain",
                demands=(kernel, kernel), gpu=V100, note=f"pipe {used:.1%}, from times alone",
            )
        )  # fmt: skip
    return rows


def _rest_of_80() -> list[PublishedNumber]:
    compute, copy = _compute(3.45, 128, blocks=80), replace(_copy(0.6918), footprint=Footprint(80, 1024))
    timed = (replace(compute, seconds=0.125251), replace(copy, seconds=0.326442))
    alone, both = (377.292, 473.506, 423.897, 477.128), (245.14, 254.29, 248.06, 256.30)
    rows = [
        PublishedNumber(
            table="Bandwidth", name=f"copy + copy, {blocks} blocks", measured=one / half, read="slowdown",
            demands=(_copy_on_half(one / max(alone)), _copy_on_half(one / max(alone))), gpu=V100,
            note="GB/s alone over GB/s together; latency under load as on the H100",
        )
        for blocks, one, half in zip((40, 80, 120, 160), alone, both, strict=True)
    ]  # fmt: skip
    return [
        *rows,
        PublishedNumber(
            table="IPC", name="fmul + copy, unequal times", measured=(125.251 + 326.442) / 327.297, read="gain",
            demands=timed, gpu=V100, note="demands of the H100: not published of this GPU",
        ),
        PublishedNumber(
            table="Blocks", name="sleep + sleep, 80 blocks", measured=204.809 / 102.418, read="gain",
            demands=(_sleep(80), _sleep(80)), gpu=V100,
        ),
        PublishedNumber(
            table="Blocks", name="sleep + sleep, 160 blocks", measured=204.81 / 204.817, read="gain",
            demands=(_sleep(160), _sleep(160)), gpu=V100,
        ),
    ]  # fmt: skip


# V100, two copies of arrays of N MB by 40 blocks each, on different SMs: ms alone, and together
_V100_L2 = ((1, 8.867, 14.42), (2, 16.29, 28.15), (3, 24.15, 43.91), (4, 47.51, 61.06), (5, 100.0, 117.4),
            (6, 274.2, 346.5))  # fmt: skip
# RTX 5090, the same by 85 blocks: (MB, time together over time alone)
_RTX_5090_L2 = ((4, 1.82), (8, 1.81), (16, 1.39), (24, 1.55), (32, 4.67), (40, 5.62), (48, 4.79), (56, 4.04),
                (64, 3.21), (72, 2.04), (80, 2.04), (96, 2.03), (112, 2.00), (128, 2.04))  # fmt: skip
_L2_LATENCY_NS = 358 / 2.407  # of Blackwell, Jarmusch et al. 2025 (arXiv 2507.10789), at the boost clock


def _v100_l2() -> list[PublishedNumber]:
    """Loads are found in L1, up to 4 MB of them: what L2 keeps are stores, and what returns to them is not known.

    Up to 3 MB a copy takes as long for each byte: half of the SMs then take of L2 what those of the RTX 5090 take.
    """
    share, plateau = _RTX_5090_L2[0][1] / 2, _V100_L2[2][1] / _V100_L2[2][0]
    rows = []
    for size, alone, together in _V100_L2:
        copy = Demand(
            name="copy", irregular=1.0, seconds=alone / 1e3, footprint=Footprint(40, 1024, 32, 1024.0),
            l2_bandwidth=min(share, share * plateau * size / alone),
        )  # fmt: skip
        rows.append(
            PublishedNumber(
                table="L2, V100", name=f"copy + copy, {size} MB", measured=together / alone, read="slowdown",
                demands=(copy, copy), gpu=V100, note="share of L2 by that of the RTX 5090 and by times alone",
            )
        )  # fmt: skip
    return rows


def l1_of_v100() -> Calibration:
    """Return the calibration of L1 of the V100: of 64 and 96 KB alone, and of two of 64 KB, of which nothing stays.

    >>> of_l1 = l1_of_v100()
    >>> round(of_l1.l1_miss_cost, 1), round(of_l1.l1_knee, 2), round(of_l1.l1_cliff, 2)
    (10.9, 0.95, 1.6)
    """
    each = {size: in_turn / 2 / size for size, in_turn, _ in _V100_L1}
    per_byte = each[48]
    size, in_turn, together = _V100_L1[3]
    cost = together / size / per_byte
    lost = [(time / per_byte - 1.0) / (cost - 1.0) for time in (in_turn / 2 / size, _V100_L1_96 / 2 / 96)]
    fall = (lost[1] - lost[0]) / 0.5  # from 1 to 1.5 times the size of L1
    knee = 1.0 - lost[0] / fall
    return Calibration(l1_miss_cost=cost, l1_knee=knee, l1_cliff=knee + 1.0 / fall, measured_on=V100.name, source="L1")


def _v100_l1() -> list[PublishedNumber]:
    rows = []
    for size, in_turn, together in _V100_L1:
        copy = Demand(
            name="copy", cycles={"issue": 0.05, "fma": 0.0, "l1_bandwidth": 0.1}, dram=0.0, l2_hit=1.0, l2_bytes=0.0,
            l2_bandwidth=0.1, l1_bytes=2 * size * _KIB, warps=1.0, irregular=1.0, seconds=in_turn / 2e3,
            footprint=Footprint(80, 64, 32, 1024.0),
        )  # fmt: skip
        rows.append(
            PublishedNumber(
                table="L1, V100", name=f"copy + copy, {size} KB a block", measured=2 * together / in_turn,
                read="slowdown", demands=(copy, copy), gpu=V100, calibration=l1_of_v100(),
                without=Calibration(l1_cliff=1.0), note="issue slots and bandwidths: small, not published",
            )
        )  # fmt: skip
    return rows


def _rtx_5090_l2() -> list[PublishedNumber]:
    """Each thread has one load and one store of 4 bytes under way: that is what half of the SMs move through L2."""
    known, share = Calibration(), _V100_L2[1][2] / _V100_L2[1][1] / 2
    moved = 2 * 4 * 85 * 1024 / (_L2_LATENCY_NS * 1e-9)
    achievable = (RTX_5090.dram_bytes_per_s or 0.0) * known.achievable_share
    rows = []
    for size, measured in _RTX_5090_L2:
        swept = 2e6 * size
        missed = 1.0 - residency(swept / (RTX_5090.l2_bytes or swept), known.l2_knee, known.l2_cliff)
        longer = max(1.0 + missed * (known.l2_miss_cost - 1.0), missed * moved / achievable)
        copy = Demand(
            name="copy", dram=missed * moved / longer / achievable, dram_of="achievable", l2_bytes=swept,
            l2_bandwidth=share / longer, l2_bytes_per_s=moved / longer, irregular=1.0, seconds=1.0,
            footprint=Footprint(85, 1024, 32, 1024.0),
        )  # fmt: skip
        rows.append(
            PublishedNumber(
                table="L2, RTX 5090", name=f"copy + copy, {size} MB", measured=measured, read="slowdown",
                demands=(copy, copy), gpu=RTX_5090, note="traffic by threads and latency, share of L2 by the V100's",
            )
        )  # fmt: skip
    return rows


# {constant: what it was fitted to, or chosen by}; nothing else was
SEEN: Mapping[str, str] = MappingProxyType(
    {
        "dram_curvature": "H100, Table 2: four copies alone",
        "achievable_share": "V100, bandwidth: the highest of copies alone",
        "dominance": "none: errors are the same for any factor from 1.3 on",
        "l2_knee": "H100, section 4.1.2: the array that stays in L2 alone",
        "l2_miss_cost": "H100, section 4.1.2: the highest slowdown in Figure 2, which is in no table here",
        "l1_knee": "H100, section 4.2.1: the array that stays in L1 alone",
        "l1_miss_cost": "H100, section 4.2.1: where the gain ends in Figure 3, which is in no table here",
        "l2_cliff, l1_cliff": "V100, L1: 64 and 96 KB alone, two of 64 KB together",
        "margin": "V100, FP64: the largest slowdown of two kernels that need less than all of everything",
    }
)
FITTED_TABLES = frozenset({"L1, V100", "FP64", "Bandwidth"})  # of other GPUs: a constant saw a number of it


def _without_h100() -> Calibration:
    """The constants without those that the H100 gave."""
    of_v100 = l1_of_v100()
    return replace(of_v100, dram_curvature=0.0, l2_knee=of_v100.l1_knee, l2_miss_cost=_V100_L2_COST)


# {resource: its constants where none was measured: latency of DRAM without load, caches of least recent use}
_UNMEASURED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "dram": {"dram_curvature": 0.0, "achievable_share": 1.0},
        "l2": {"l2_knee": 1.0, "l2_cliff": 1.0, "l2_miss_cost": _V100_L2_COST},
        "l1": {"l1_knee": 1.0, "l1_cliff": 1.0, "l1_miss_cost": _V100_L1_COST},
    }
)
# {table: the resource that its kernels meet on}; of the others no constant was measured
_RESOURCE_OF: Mapping[str, str] = MappingProxyType(
    {"Table 2": "dram", "Bandwidth": "dram", "L2, V100": "l2", "L2, RTX 5090": "l2", "L1, V100": "l1"}
)
LeftOut = Literal["GPU", "resource"]
LEFT_OUT: tuple[LeftOut, ...] = ("GPU", "resource")


@dataclass(frozen=True, slots=True)
class CheckedEstimate:
    """A published number, what is predicted, and what is predicted without what its GPU, or its resource, gave.

    upper: bound of the slowdown that was measured. rules: {name of a rule: what it predicts}. Errors are relative:
    (predicted - measured) / measured.
    """

    published: PublishedNumber
    predicted: float
    upper: float
    safe: bool
    left_out: Mapping[LeftOut, float]
    rules: Mapping[str, float]

    @property
    def error(self) -> float:
        """Error of what is predicted."""
        return self.predicted / self.published.measured - 1.0

    def error_without(self, left_out: LeftOut) -> float:
        """Return the error of what is predicted without what its GPU, or resource, gave."""
        return self.left_out[left_out] / self.published.measured - 1.0

    @property
    def covered(self) -> bool:
        """Whether the measured slowdown is at or under the upper value."""
        return self.published.slowdown <= self.upper


@dataclass(frozen=True, slots=True)
class EstimatorAccuracy:
    """All errors. `twenty`: of the paper; `held_out`: of other GPUs."""

    twenty: tuple[CheckedEstimate, ...]
    held_out: tuple[CheckedEstimate, ...]
    curvature: float

    @property
    def tables(self) -> tuple[TableErrors, ...]:
        """Errors of each table, then of all that no constant saw."""
        names = dict.fromkeys(one.published.table for one in self.held_out)
        of_others = {name: [one for one in self.held_out if one.published.table == name] for name in names}
        never = [one for name, rows in of_others.items() if name not in FITTED_TABLES for one in rows]
        return (
            TableErrors("the twenty of the paper", True, tuple(self.twenty)),
            *(TableErrors(name, name in FITTED_TABLES, tuple(rows)) for name, rows in of_others.items()),
            TableErrors("all never fitted", False, tuple(never)),
            TableErrors("all", True, (*self.twenty, *self.held_out)),
        )


@dataclass(frozen=True, slots=True)
class TableErrors:
    """The errors of one table. `fitted`: a constant saw one of its numbers."""

    table: str
    fitted: bool
    rows: tuple[CheckedEstimate, ...]

    @property
    def coverage(self) -> float:
        """Share of measured values at or under the upper value."""
        return sum(one.covered for one in self.rows) / len(self.rows)

    @property
    def wrongly_safe(self) -> int:
        """How many pairs are called safe that were measured to be slowed by `MATTERS` or more."""
        return sum(one.safe and one.published.slowdown >= MATTERS for one in self.rows)

    def rule(self, name: str) -> float:
        """Return the mean error of a rule."""
        each = [abs(one.rules[name] / one.published.measured - 1.0) for one in self.rows]
        return sum(each) / len(each)


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Mean and highest absolute error, relative, and whose is the highest."""

    mean: float
    worst: float
    worst_of: str


def predict(published: PublishedNumber, calibration: Calibration, *, dominance: float = DOMINANCE) -> Estimate:
    """Return the estimate for a published case."""
    return estimate(
        published.demands, gpu=published.gpu, calibration=calibration, sharing=published.sharing, dominance=dominance
    )


def estimator_accuracy(*, dominance: float = DOMINANCE) -> EstimatorAccuracy:
    """Return the estimator's errors."""
    curvature, without_h100 = fitted_curvature(), _without_h100()

    def judged(published: PublishedNumber) -> CheckedEstimate:
        calibration = published.calibration or Calibration(dram_curvature=curvature)
        no_gpu = published.without or (without_h100 if published.gpu == H100_NVL else calibration)
        no_resource = replace(calibration, **_UNMEASURED.get(_RESOURCE_OF.get(published.table, ""), {}))
        without: dict[LeftOut, Calibration] = {"GPU": no_gpu, "resource": no_resource}
        found = predict(published, calibration, dominance=dominance)
        uppers = [member.upper or 1.0 for member in found.members]
        most = max(uppers) if published.read == "gain" else uppers[-1]
        return CheckedEstimate(
            published,
            _read(published, found),
            most,
            found.safe,
            {name: _read(published, predict(published, one, dominance=dominance)) for name, one in without.items()},
            _rules(published, found),
        )

    return EstimatorAccuracy(tuple(map(judged, twenty())), tuple(map(judged, held_out())), curvature)


def _read(published: PublishedNumber, found: Estimate) -> float:
    value = found.gain if published.read == "gain" else found.members[-1].slowdown
    assert value is not None, published.name
    return value


RULES = ("no slowdown", "largest shared sum")


def _rules(published: PublishedNumber, found: Estimate) -> Mapping[str, float]:
    """What is predicted by rules that need no model: nothing is slowed; all are, by the largest sum of demands."""
    alone = published.slowdown * published.measured if published.read == "gain" else 1.0
    values = (1.0, max(1.0, *found.sums.values()))
    read = [alone / value if published.read == "gain" else value for value in values]
    return MappingProxyType(dict(zip(RULES, read, strict=True)))


def errors(judged: Sequence[CheckedEstimate], *, left_out: LeftOut | None = None) -> ErrorSummary:
    """Return mean and highest error, or those without what each GPU, or resource, gave."""
    each = [(abs(one.error if left_out is None else one.error_without(left_out)), one.published.name) for one in judged]
    worst, name = max(each)
    return ErrorSummary(sum(error for error, _ in each) / len(each), worst, name)
