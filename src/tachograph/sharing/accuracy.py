"""Published measurements of kernels that share a GPU, and the errors of the estimator against them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tachograph.sharing.contention import DOMINANCE, L1_HOLDS, L2_HOLDS, cache_stays, cache_table, curve_errors
from tachograph.sharing.demand import H100_NVL, Calibration, Demand, Footprint, GpuCapacity, Sharing
from tachograph.sharing.estimate import estimate

PublishedRead = Literal["slowdown", "gain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedNumber:
    """One measurement. `read`: slowdown of the last of `demands`, or gain: sequential time over time together."""

    table: str
    name: str
    measured: float
    read: PublishedRead
    demands: tuple[Demand, Demand]
    gpu: GpuCapacity = H100_NVL
    sharing: Sharing | None = None
    note: str = ""  # where the number, or a demand, is not simply a cell of the table


RTX_3090 = GpuCapacity(name="NVIDIA GeForce RTX 3090", sms=82, threads_per_sm=1536, blocks_per_sm=16)
SMS_80 = GpuCapacity(name="a GPU of 80 SMs", sms=80, threads_per_sm=2048, blocks_per_sm=32)

# copy kernel alone on half of the SMs, Table 2: (blocks, share of the highest bandwidth achieved)
SOLO_BANDWIDTH = ((33, 0.2133), (66, 0.4012), (99, 0.5506), (132, 0.6918))
_COPY_IPC = 0.61


def fitted_curvature(alone: Sequence[tuple[float, float]] = SOLO_BANDWIDTH, *, step: float = 0.001) -> float:
    """Return c of u (1 + c u^2) = k blocks that fits kernels alone best: each block keeps k requests on their way.

    `alone`: (blocks, share of the bandwidth used, 0..1). No slowdown enters. Least squares of relative errors of the
    requests, over multiples of `step` up to 4.

    >>> round(fitted_curvature(), 3)
    0.571
    """
    return step * min(range(1, round(4.0 / step) + 1), key=lambda steps: curve_errors(alone, steps * step)[0])


def fitted_l2_miss_cost(slower: float = 1.79, copied: float = 45e6) -> float:
    """Return the time of a miss in L2 over that of a hit that makes two copies as much slower as was published.

    Two kernels that copy arrays of 22.5 MB, each on SMs of its own, took 1.79 times as long (section 4.1.2, Figure 2:
    the highest). It is none of the twenty. Alone all is found in L2, and all their time waits for it.

    >>> round(fitted_l2_miss_cost(), 3)
    1.991
    """
    return _miss_cost(slower, copied / ((H100_NVL.l2_bytes or copied) * L2_HOLDS))


def fitted_l1_miss_cost(slower: float = 2.0, copied: float = 2 * 64 * 1024.0) -> float:
    """Return the time of a miss in L1 over that of a hit at which two copies of 64 KB have no gain from co-location.

    Below arrays of 64 KB, blocks that copy side by side on an SM gained, above it not (section 4.2.1, Figure 3). It is
    none of the twenty.

    >>> round(fitted_l1_miss_cost(), 2)
    4.39
    """
    return _miss_cost(slower, copied / ((H100_NVL.l1_bytes or copied) * L1_HOLDS))


def _miss_cost(slower: float, filled: float) -> float:
    """Time of a miss over that of a hit where two alike, each of which fills so much of a cache, are so much slower."""
    alone, together = cache_stays(filled, cache_table()), cache_stays(2.0 * filled, cache_table())
    return 1.0 + (slower - 1.0) / (alone - together - (slower - 1.0) * (1.0 - alone))


def _copy(bandwidth: float) -> Demand:
    """The copy kernel of 4 GiB, 132 blocks on 132 SMs. `bandwidth`: share of the highest that was achieved."""
    return Demand(
        name="copy", cycles={"issue": _COPY_IPC / 4}, dram=bandwidth, dram_of="achievable", warps=8.0,
        irregular=1.0, seconds=1.0, footprint=Footprint(132, 1024),
    )  # fmt: skip


def _copy_on_half(bandwidth: float) -> Demand:
    """The copy kernel on a half of the SMs, alone as well as beside the other: they meet in DRAM only."""
    return Demand(name="copy", dram=bandwidth, dram_of="achievable", irregular=1.0, seconds=1.0)


def _compute(ipc: float, threads: int, *, name: str = "fmul", fp64: float | None = None, blocks: int = 132) -> Demand:
    """A kernel that multiplies registers: it waits for arithmetic only, and hardly touches memory."""
    cycles = {"issue": ipc / 4} | ({} if fp64 is None else {"fp64": fp64})
    return Demand(
        name=name, cycles=cycles, dram=0.0, warps=threads / 32 / 4, irregular=0.0, seconds=1.0,
        footprint=Footprint(blocks, threads),
    )  # fmt: skip


def _sleep(blocks: int) -> Demand:
    return Demand(
        name="sleep", cycles={"issue": 0.2 / 4}, dram=0.0, warps=8.0, irregular=0.0, seconds=1.0,
        footprint=Footprint(blocks, 1024),
    )  # fmt: skip


def _of_bandwidth() -> list[PublishedNumber]:
    measured = (1.06, 1.14, 1.23, 1.36)
    rows = [
        PublishedNumber(
            table="Table 2", name=f"copy + copy, {blocks} blocks", measured=slowdown, read="slowdown",
            demands=(_copy_on_half(used), _copy_on_half(used)),
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
    mm = Demand(name="mm", cycles={"issue": 0.75, "fma": 0.6}, warps=1.0, seconds=1.0, footprint=Footprint(128, 128))
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
    """Return the numbers of the other GPU, milliseconds and GB/s as printed there; nothing was chosen by them.

    Use of the FP64 pipe follows from times alone: with four independent operations it is full.
    """
    return (*_fp64_of_80(), *_rest_of_80())


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
                demands=(kernel, kernel), gpu=SMS_80, note=f"pipe {used:.1%}, from times alone",
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
            demands=(_copy_on_half(one / max(alone)), _copy_on_half(one / max(alone))), gpu=SMS_80,
            note="GB/s alone over GB/s together; latency under load as on the H100",
        )
        for blocks, one, half in zip((40, 80, 120, 160), alone, both, strict=True)
    ]  # fmt: skip
    return [
        *rows,
        PublishedNumber(
            table="IPC", name="fmul + copy, unequal times", measured=(125.251 + 326.442) / 327.297, read="gain",
            demands=timed, gpu=SMS_80, note="demands of the H100: not published of this GPU",
        ),
        PublishedNumber(
            table="Blocks", name="sleep + sleep, 80 blocks", measured=204.809 / 102.418, read="gain",
            demands=(_sleep(80), _sleep(80)), gpu=SMS_80,
        ),
        PublishedNumber(
            table="Blocks", name="sleep + sleep, 160 blocks", measured=204.81 / 204.817, read="gain",
            demands=(_sleep(160), _sleep(160)), gpu=SMS_80,
        ),
    ]  # fmt: skip


_GAVE_CURVATURE = "Table 2"


@dataclass(frozen=True, slots=True)
class CheckedEstimate:
    """A published number, what is predicted, and what is predicted without anything from its table.

    Errors are relative: (predicted - measured) / measured.
    """

    published: PublishedNumber
    predicted: float
    left_out: float

    @property
    def error(self) -> float:
        """Error of what is predicted."""
        return self.predicted / self.published.measured - 1.0

    @property
    def longer_left_out(self) -> float:
        """Time that was measured over the time that is predicted without its table."""
        times = self.published.measured / self.left_out
        return times if self.published.read == "slowdown" else 1.0 / times

    @property
    def error_left_out(self) -> float:
        """Error of what is predicted without its table."""
        return self.left_out / self.published.measured - 1.0


@dataclass(frozen=True, slots=True)
class EstimatorAccuracy:
    """All errors. `twenty`: of the paper; `held_out`: of another GPU."""

    twenty: tuple[CheckedEstimate, ...]
    held_out: tuple[CheckedEstimate, ...]
    curvature: float


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Mean and highest absolute error, relative, and whose is the highest."""

    mean: float
    worst: float
    worst_of: str


def predict(published: PublishedNumber, *, curvature: float, dominance: float = DOMINANCE) -> float:
    """Return the estimate for a published case."""
    known = estimate(
        published.demands,
        gpu=published.gpu,
        calibration=Calibration(dram_curvature=curvature),
        sharing=published.sharing,
        dominance=dominance,
    )
    predicted = known.gain if published.read == "gain" else known.members[-1].slowdown
    assert predicted is not None, published.name
    return predicted


def estimator_accuracy(*, dominance: float = DOMINANCE) -> EstimatorAccuracy:
    """Return the estimator's errors."""
    curvature = fitted_curvature()

    def judged(published: PublishedNumber, without: float) -> CheckedEstimate:
        predicted = predict(published, curvature=curvature, dominance=dominance)
        return CheckedEstimate(published, predicted, predict(published, curvature=without, dominance=dominance))

    return EstimatorAccuracy(
        tuple(judged(row, 0.0 if row.table == _GAVE_CURVATURE else curvature) for row in twenty()),
        tuple(judged(row, curvature) for row in held_out()),
        curvature,
    )


def margin(judged: Sequence[CheckedEstimate]) -> float:
    """Return how many times as long as predicted the worst of these took, with each table left out.

    Left out is a table with all it taught: so wrong is the estimator about what it has no model of. It is the default
    of `interference.margin`, and no simulated day had a part in it.

    >>> round(margin(estimator_accuracy().twenty), 2)
    1.14
    """
    return max(one.longer_left_out for one in judged)


def errors(judged: Sequence[CheckedEstimate], *, left_out: bool = False) -> ErrorSummary:
    """Return mean and highest error, or those with each table left out."""
    each = [(abs(one.error_left_out if left_out else one.error), one.published.name) for one in judged]
    worst, name = max(each)
    return ErrorSummary(sum(error for error, _ in each) / len(each), worst, name)
