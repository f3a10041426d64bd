"""Mixes of kernels: coarse demands of recorded means, and how mixes slow each other down."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from tachograph.annexes.share.demand import (
    CYCLES,
    NOTHING,
    Demand,
    Matrix,
    MixCorunOutcome,
    WorstPair,
    unless_nan,
)
from tachograph.catalog.arrays import Bytes, Floats
from tachograph.catalog.devices import Device
from tachograph.catalog.units import MI

# counters of DCGM and the pipe each is of; FP32 is the FMA pipe, which does integer multiplication,
# too
COUNTER_OF_PIPE: Mapping[str, str] = MappingProxyType(
    {"fp16": "fp16_active", "fma": "fp32_active", "fp64": "fp64_active", "tensor": "tensor_active"}
)
# share of issue slots that a pipe takes at the least when it works all the time: 32 threads of a
# warp over its lanes on one scheduler (16 of FP32, 8 of FP64 on the A100, which has the fewest).
# Tensor: one instruction works for long
_ISSUED_BY: Mapping[str, float] = MappingProxyType(
    {"fp16": 0.5, "fma": 0.5, "fp64": 0.25, "tensor": 0.0}
)
LEAST_ACTIVE = 0.01  # below it a ratio of pipe and SM activity is rounding error
_NUMBERS = ("dram", "l2_hit", "l2_bytes", "l1_hit", "l1_bytes", "warps", "irregular", "sm_share")

MixMembers = tuple[tuple[float, Demand], ...]  # (share of the time, demand), shares add up to 1


@dataclass(frozen=True, slots=True)
class Mix:
    """Several kernels, or runs of a job, as one.

    mean: weighted by time; understates phases. highest: of each resource the highest demand of a
    member.
    """

    mean: Demand
    highest: Demand
    members: MixMembers

    @property
    def demands(self) -> list[Demand]:
        """Demands of its members."""
        return [demand for _, demand in self.members]


def launches_known(members: MixMembers) -> bool:
    """Return whether the launch of each member is known, and with it how wide its kernels are."""
    return all(demand.footprint is not None for _, demand in members)


def mix(
    demands: Sequence[Demand], weights: Sequence[float] | None = None, *, name: str | None = None
) -> Mix:
    """Return the mix of `demands`, weighted by `weights`, else by seconds, else equally.

    A number that is unknown for one member is None in the mean. `highest` has the highest known
    numbers. Footprints and reused bytes in caches have no mean: only `highest` has the largest
    working sets, and a footprint is kept if all members have the same. Errors: ValueError without
    members, or with invalid weights.

    >>> short, long = Demand(name="a", dram=0.8, seconds=1.0), Demand(name="b", dram=0.2, seconds=3.0)
    >>> both = mix([short, long])
    >>> round(both.mean.dram, 3), both.highest.dram, both.members[0][0]
    (0.35, 0.8, 0.25)
    """
    if not demands:
        raise ValueError("a mix of nothing")
    shares = _shares(demands, weights)
    called = name or " + ".join(dict.fromkeys(demand.name for demand in demands))
    mean = _folded(demands, called, lambda numbers: _mean(numbers, shares))
    return Mix(
        replace(mean, l2_bytes=None, l1_bytes=None),
        _folded(demands, called, _most),
        tuple(zip(shares, demands, strict=True)),
    )


def mix_of_one(demand: Demand) -> Mix:
    """Return the mix of a single member."""
    return Mix(demand, demand, ((1.0, demand),))


def _shares(demands: Sequence[Demand], weights: Sequence[float] | None) -> tuple[float, ...]:
    reported = [demand.seconds for demand in demands] if weights is None else list(weights)
    known = [1.0 if None in reported or weight is None else float(weight) for weight in reported]
    total = math.fsum(known)
    if len(known) != len(demands) or not (0 < total < math.inf) or min(known) < 0:
        raise ValueError(f"weights {known} do not fit {len(demands)} members")
    return tuple(weight / total for weight in known)


def _folded(
    demands: Sequence[Demand], name: str, fold: Callable[[Sequence[float | None]], float | None]
) -> Demand:
    """Every number of `demands` folded into one; seconds are a sum, memory the most at any time."""
    known = set[str]().union(*(demand.cycles for demand in demands))
    cycles: dict[str, float] = {}
    for resource in CYCLES:
        share = fold([demand.cycles.get(resource) for demand in demands])
        if resource in known and share is not None:
            cycles[resource] = share
    numbers: dict[str, Any] = {}
    for field in _NUMBERS:
        numbers[field] = fold([getattr(demand, field) for demand in demands])
    if len({demand.dram_of for demand in demands}) > 1:
        numbers["dram"] = None  # shares of different things do not add up
    seconds = [demand.seconds for demand in demands if demand.seconds is not None]
    footprints = {demand.footprint for demand in demands}
    return Demand(
        name=name,
        cycles=MappingProxyType(cycles),
        dram_of=demands[0].dram_of,
        seconds=math.fsum(seconds) if len(seconds) == len(demands) else None,
        hbm_bytes=_all_known_most([demand.hbm_bytes for demand in demands]),
        footprint=footprints.pop() if len(footprints) == 1 else None,
        **numbers,
    )


def _mean(numbers: Sequence[float | None], shares: Sequence[float]) -> float | None:
    known = [
        share * number for share, number in zip(shares, numbers, strict=True) if number is not None
    ]
    return math.fsum(known) if len(known) == len(numbers) else None


def _most(numbers: Sequence[float | None]) -> float | None:
    return max((number for number in numbers if number is not None), default=None)


def _all_known_most(numbers: Sequence[float | None]) -> float | None:
    return None if None in numbers else _most(numbers)


def busy_of(row: Mapping[str, Any]) -> float | None:
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


def of_means(row: Mapping[str, Any], *, device: Device | None = None) -> Demand:
    """Return the demand of a job **while its GPUs are busy**, from its job_summaries row.

    DCGM reports shares of all cycles of all SMs. A pipe's share is divided by that of the SMs that
    held warps, that of the whole GPU (memory, SMs) by the share of busy time. Where SM activity was
    negligible, pipes are unknown. DCGM has no issue slots (see `issued_at_least` for a bound from
    pipes), caches, waiting, footprints: these are None. `dram` is a share of the peak. `warps` need
    the `device`. `seconds`: those of the job, also idle ones.

    >>> job = {"sm_active_mean": 0.4, "gr_engine_active_mean": 0.8, "fp64_active_mean": 0.1, "dram_active_mean": 0.2}
    >>> demand = of_means(job)
    >>> demand.cycles["fp64"], demand.dram, demand.sm_share
    (0.25, 0.25, 0.5)
    """
    busy, active = busy_of(row), _number(row, "sm_active_mean")
    occupancy, used = _number(row, "sm_occupancy_mean"), _number(row, "hbm_used_mib_max")
    enough = active is not None and active >= LEAST_ACTIVE
    pipes = {pipe: _number(row, f"{counter}_mean") for pipe, counter in COUNTER_OF_PIPE.items()}
    warps = None
    if enough and device is not None and occupancy is not None:
        warps = _share(occupancy, active) * device.max_warps_per_sm / 4
    return Demand(
        name=str(row.get("name") or row.get("display_id") or row.get("job_id") or "job"),
        cycles=MappingProxyType(
            {
                pipe: _share(share, active)
                for pipe, share in pipes.items()
                if enough and share is not None
            }
        ),
        dram=_over(_number(row, "dram_active_mean"), busy),
        sm_share=_over(active, busy),
        warps=warps,
        seconds=_number(row, "elapsed_s"),
        hbm_bytes=None if used is None else used * MI,
    )


def issued_at_least(demand: Demand) -> float:
    """Return the least share of issue slots of a kernel, from its measured pipes.

    >>> issued_at_least(Demand(name="a", cycles={"fma": 0.4, "fp64": 0.2}))
    0.25
    """
    if "issue" in demand.cycles:
        return demand.cycles["issue"]
    return min(
        1.0, math.fsum(_ISSUED_BY.get(pipe, 0.0) * share for pipe, share in demand.cycles.items())
    )


def issuing(demand: Demand, share: float = 0.0) -> Demand:
    """Return `demand` with issue slots, if not measured, from `share` or its pipes (the higher).

    >>> issuing(Demand(name="a", cycles={"fma": 0.4}), 0.5).cycles["issue"]
    0.5
    """
    if "issue" in demand.cycles:
        return demand
    return replace(demand, cycles={**demand.cycles, "issue": max(share, issued_at_least(demand))})


def mix_issuing(whole: Mix, share: float = 0.0) -> Mix:
    """Return the mix of the same members, each with issue slots; see `issuing`."""
    demands = [issuing(demand, share) for demand in whole.demands]
    if len(demands) == 1:
        return mix_of_one(demands[0])
    return mix(demands, [part for part, _ in whole.members], name=whole.mean.name)


def _number(row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    return None if value is None or math.isnan(value) else float(value)


def _share(part: float, whole: float | None) -> float:
    return 0.0 if not whole else max(0.0, min(1.0, part / whole))


def _over(share: float | None, busy: float | None) -> float | None:
    """Convert a share of all time to one of busy time; None without busy time."""
    return None if share is None or not busy else _share(share, busy)


@dataclass(frozen=True, slots=True)
class MixOutcome:
    """Two mixes side by side. safe: all pairs of their members are."""

    members: tuple[MixCorunOutcome, MixCorunOutcome]
    safe: bool

    @property
    def slowdowns(self) -> tuple[float | None, float | None]:
        """Slowdown of each; None: unknown for a pair of their members."""
        return self.members[0].slowdown, self.members[1].slowdown

    @property
    def worst(self) -> WorstPair | None:
        """The pair with the largest slowdown, over all known pairs."""
        pairs = (member.worst_pair for member in self.members if member.worst_pair)
        return max(pairs, default=None)


def corun_of_mixes(one: Mix, other: Mix, *, here: Matrix, there: Matrix) -> MixOutcome:
    """Return the expected outcome of two mixes that run side by side, independent of each other.

    A member of one then overlaps a member of the other for the product of their shares: slowdowns
    are weighted by it. `here`: members of `one` beside those of `other`; `there`: the reverse.
    """
    of_one, of_other = shares_of([one]), shares_of([other])
    return MixOutcome(
        members=(
            _outcome(one, here, folded(here, of_one, of_other)),
            _outcome(other, there, folded(there, of_other, of_one)),
        ),
        safe=bool(here.safe.all() and there.safe.all()),
    )


def _outcome(whole: Mix, found: Matrix, of_mix: Matrix) -> MixCorunOutcome:
    return MixCorunOutcome(
        whole.mean.name,
        unless_nan(of_mix.slowdown[0, 0]),
        unless_nan(of_mix.worst[0, 0]),
        of_mix.bound_by(0, 0),
        _worst(found),
    )


def shares_of(mixes: Sequence[Mix]) -> Floats:
    """Return (mixes, members of all mixes): the share of each member in its own mix."""
    whose = np.repeat(np.arange(len(mixes)), [len(one.members) for one in mixes])
    shares = np.zeros((len(mixes), len(whose)))
    shares[whose, np.arange(len(whose))] = [share for one in mixes for share, _ in one.members]
    return shares


def folded(found: Matrix, rows: Floats, columns: Floats) -> Matrix:
    """Return the matrix of mixes from the matrix of members; see `shares_of`.

    Names and gains are not set.

    The binding resource of a mix slows it most, over all pairs of members. Unknown for one pair:
    unknown.
    """
    known = np.nan_to_num(found.slowdown, nan=1.0)
    slowdown: Floats = rows @ known @ columns.T
    worst: Floats = rows @ np.nan_to_num(found.worst, nan=1.0) @ columns.T
    more = known - 1
    binding = np.full(slowdown.shape, NOTHING, np.uint8)
    most = np.zeros(slowdown.shape)
    for resource in np.unique(found.binding[found.binding != NOTHING]).tolist():
        lost = rows @ np.where(found.binding == resource, more, 0.0) @ columns.T
        binding[lost > most] = resource
        most = np.maximum(most, lost)
    unmeasured = np.isnan(found.slowdown)
    if unmeasured.any():
        unknown = rows @ unmeasured @ columns.T > 0
        slowdown[unknown], worst[unknown], binding[unknown] = np.nan, np.nan, NOTHING
    safe: Bytes = (rows @ (found.safe == 0) @ columns.T == 0).astype(np.uint8)
    gain = np.full(slowdown.shape, np.nan)
    return Matrix((), (), found.resources, slowdown, worst, gain, binding, safe)


def _worst(found: Matrix) -> WorstPair | None:
    cells = (
        (value, found.rows[i], found.columns[j])
        for i, row in enumerate(found.slowdown.tolist())
        for j, value in enumerate(row)
        if not math.isnan(value)
    )
    return max(cells, default=None)
