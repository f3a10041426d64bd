"""Mixes of kernels: demands of recorded means, and how much mixes slow each other down."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from tachograph.annexes.share.demand import (
    CYCLES,
    NOTHING,
    Calibration,
    CorunBounds,
    Demand,
    GpuCapacity,
    Sharing,
)
from tachograph.annexes.share.estimate import matrix
from tachograph.catalog.arrays import Floats
from tachograph.catalog.config import InterferenceOptions
from tachograph.catalog.units import MI

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


# counters of DCGM and the pipe each is of; FP32 is the FMA pipe, which does integer multiplication,
# too
COUNTER_OF_PIPE: Mapping[str, str] = MappingProxyType(
    {"fp16": "fp16_active", "fma": "fp32_active", "fp64": "fp64_active", "tensor": "tensor_active"}
)
LEAST_ACTIVE = 0.01  # below it a ratio of pipe and SM activity is rounding error

MixMembers = tuple[tuple[float, Demand], ...]  # (share of the time, demand), shares add up to 1
SmShares = tuple[float, float]  # of two that share a GPU, each above 0 and at most 1


@dataclass(frozen=True, slots=True)
class Mix:
    """Several kernels, or runs of a job, as one.

    mean: weighted by time, None where a member's number is unknown; it understates phases. highest:
    of each resource the highest known demand of a member.
    """

    mean: Demand
    highest: Demand
    members: MixMembers

    @property
    def demands(self) -> list[Demand]:
        """Demands of its members."""
        return [demand for _, demand in self.members]


def mix(demands: Sequence[Demand], weights: Sequence[float], *, name: str) -> Mix:
    """Return the mix of `demands` by their weights, of which one is above 0.

    >>> short, long = Demand(name="a", dram=0.8), Demand(name="b", dram=0.2)
    >>> both = mix([short, long], [1.0, 3.0], name="both")
    >>> round(both.mean.dram, 3), both.highest.dram, both.members[0][0]
    (0.35, 0.8, 0.25)
    """
    total = math.fsum(weights)
    shares = [weight / total for weight in weights]
    return Mix(
        _folded(demands, name, lambda numbers: _mean(numbers, shares)),
        _folded(demands, name, _highest),
        tuple(zip(shares, demands, strict=True)),
    )


def _folded(
    demands: Sequence[Demand], name: str, fold: Callable[[Sequence[float | None]], float | None]
) -> Demand:
    """Return what jobs and kernels both report, folded into one; memory is the most at any time."""
    cycles: dict[str, float] = {}
    for resource in CYCLES:
        share = fold([demand.cycles.get(resource) for demand in demands])
        if share is not None:
            cycles[resource] = share
    return Demand(
        name=name,
        cycles=MappingProxyType(cycles),
        dram=fold([demand.dram for demand in demands]),
        sm_share=fold([demand.sm_share for demand in demands]),
        hbm_bytes=_highest([demand.hbm_bytes for demand in demands]),
    )


def _mean(numbers: Sequence[float | None], shares: Sequence[float]) -> float | None:
    """Return the weighted mean; None if a number is unknown."""
    products = [
        share * number for share, number in zip(shares, numbers, strict=True) if number is not None
    ]
    return math.fsum(products) if len(products) == len(numbers) else None


def _highest(numbers: Sequence[float | None]) -> float | None:
    return max((value for value in numbers if value is not None), default=None)


def busy_of(row: JobSummaryRow) -> float | None:
    """Return the busy share 0..1 of a job's GPU time, from its row of job_summaries.

    From engine activity, else `gpu_util`, which is coarser: a moment of work counts for its whole
    period.

    >>> busy_of({"gr_engine_active_mean": None, "gpu_util_mean": 0.3})
    0.3
    """
    for counter in ("gr_engine_active", "gpu_util"):
        share = _number(row, f"{counter}_mean")
        if share is not None:
            return min(1.0, share)
    return None


def of_means(row: JobSummaryRow) -> Demand:
    """Return the demand of a job **while its GPUs are busy**, from its job_summaries row.

    DCGM reports shares of all cycles of all SMs. A pipe's share is divided by that of the SMs that
    held warps, that of the whole GPU (memory, SMs) by the share of busy time. Where SM activity was
    negligible, pipes are unknown, as is all that DCGM does not report: issue slots, caches, blocks.
    `dram` is a share of the peak.

    >>> job = {"sm_active_mean": 0.4, "gr_engine_active_mean": 0.8, "fp64_active_mean": 0.1, "dram_active_mean": 0.2}
    >>> demand = of_means(job)
    >>> demand.cycles["fp64"], demand.dram, demand.sm_share
    (0.25, 0.25, 0.5)
    """
    busy, active, hbm_mib = (
        busy_of(row), _number(row, "sm_active_mean"), _number(row, "hbm_used_mib_max")
    )  # fmt: skip
    cycles: dict[str, float] = {}
    for pipe, counter in COUNTER_OF_PIPE.items():
        share = _share(_number(row, f"{counter}_mean"), active)
        if share is not None and (active or 0.0) >= LEAST_ACTIVE:
            cycles[pipe] = share
    return Demand(
        name=str(row.get("name") or row.get("display_id") or row.get("job_id") or "job"),
        cycles=MappingProxyType(cycles),
        dram=_share(_number(row, "dram_active_mean"), busy),
        sm_share=_share(active, busy),
        seconds=_number(row, "elapsed_s"),
        hbm_bytes=None if hbm_mib is None else hbm_mib * MI,
    )


def _number(row: Mapping[str, object], name: str) -> float | None:
    """Return a number of a row.

    That of `judge` needs Polars, which a day on a GPU does not have.
    """
    value: Any = row.get(name)
    return None if value is None or math.isnan(value) else float(value)


def _share(part: float | None, whole: float | None) -> float | None:
    """Return a part as a fraction 0..1 of a whole; None if one is unknown, or the whole is 0."""
    if part is None or not whole:
        return None
    return max(0.0, min(1.0, part / whole))


# Of rows and columns, with the options of `corun_bounds`.
CorunLaw = Callable[..., CorunBounds]


def corun_bounds(
    rows: Sequence[Demand],
    columns: Sequence[Demand],
    *,
    gpu: GpuCapacity,
    calibration: Calibration,
    settings: InterferenceOptions,
    shares: SmShares | None = None,
) -> CorunBounds:
    """Return the bounds by the estimator, under MPS.

    All advice on sharing calls the estimator here.
    """
    sharing = Sharing("mps", shares)
    return matrix(
        rows, columns, gpu=gpu, calibration=calibration, sharing=sharing, settings=settings
    )


def bounds_of_mixes(rows: Sequence[Mix], columns: Sequence[Mix], law: CorunLaw) -> CorunBounds:
    """Return the bounds of each mix beside each, while both run.

    In turns a kernel meets a launch of the other, so that a short one counts as often as a long
    one; beside each other they meet as long as they run. `law`: of kernels beside kernels.
    """
    own, others = _members(rows), _members(columns)
    pairs = law(own, others)
    row_shares, column_shares = _shares_of_members(rows), _shares_of_members(columns).T
    launches = _shares_of_launches(columns).T
    met = pairs.in_turn @ launches + (1.0 - pairs.in_turn) @ column_shares

    def folded(values: Floats) -> Floats:
        """Mean over the kernels that are met, then over those that meet them."""
        in_turn = (pairs.in_turn * values) @ launches
        side_by_side = ((1.0 - pairs.in_turn) * values) @ column_shares
        mean: Floats = row_shares @ ((in_turn + side_by_side) / met)
        return mean

    slowdown, low, high = (folded(ends) for ends in (pairs.slowdown, pairs.low, pairs.high))
    binding, largest_loss = np.full(slowdown.shape, NOTHING, np.uint8), np.zeros(slowdown.shape)
    for index in np.unique(pairs.binding[pairs.binding != NOTHING]).tolist():
        lost = folded(np.where(pairs.binding == index, pairs.slowdown - 1, 0.0))
        binding[lost > largest_loss] = index
        largest_loss = np.maximum(largest_loss, lost)
    return CorunBounds(slowdown, low, high, binding, pairs.resources, folded(pairs.in_turn))


def worst_kernels(one: Mix, other: Mix, law: CorunLaw) -> tuple[str, str, float]:
    """Return the kernel of `one` with the highest upper end, the kernel beside it, and that end."""
    high = law(one.demands, other.demands).high
    row, column = np.unravel_index(int(high.argmax()), high.shape)
    return one.demands[row].name, other.demands[column].name, float(high[row, column])


def _members(mixes: Sequence[Mix]) -> list[Demand]:
    return list(chain.from_iterable(whole.demands for whole in mixes))


def _shares_of_members(mixes: Sequence[Mix]) -> Floats:
    """Return (mixes, members of all mixes): the share of each member in its own mix."""
    owner = np.repeat(np.arange(len(mixes)), [len(whole.members) for whole in mixes])
    shares = np.zeros((len(mixes), len(owner)))
    shares[owner, np.arange(len(owner))] = [share for whole in mixes for share, _ in whole.members]
    return shares


def _shares_of_launches(mixes: Sequence[Mix]) -> Floats:
    """The same, of the launches of its own mix; of its time where it is not known how long one is."""
    launches = _shares_of_members(mixes)
    launch_s = np.array([demand.launch_s or np.nan for demand in _members(mixes)])
    for row, shares in enumerate(launches):
        counts = np.where(shares > 0.0, shares / launch_s, 0.0)
        if np.isfinite(counts).all():
            launches[row] = counts / counts.sum()
    return launches
