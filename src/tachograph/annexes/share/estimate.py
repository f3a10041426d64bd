"""Estimated effect of sharing a GPU, for one pair and for all pairs of kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tachograph.annexes.share.calibration import measured_on
from tachograph.annexes.share.contention import RESOURCES
from tachograph.annexes.share.demand import (
    CYCLES,
    NOTHING,
    Calibration,
    CorunOutcome,
    Demand,
    Estimate,
    GpuCapacity,
    Matrix,
    Sharing,
)
from tachograph.annexes.share.kernel_arrays import (
    KernelArrays,
    arrays_of,
    launch_known,
    uses_l2,
)
from tachograph.annexes.share.turns import PairSlowdowns, pair_slowdowns, slower_on
from tachograph.catalog.arrays import Flags, Floats
from tachograph.catalog.config import InterferenceOptions
from tachograph.catalog.errors import InputError

_FELT = 1.005  # a slowdown below this has no binding resource
_AT_ONCE = 1 << 14  # pairs that are computed together: memory is bounded by them
_SUMS = (*CYCLES, "dram", "l2_bandwidth", "l2", "l1")


def estimate(
    demands: Sequence[Demand],
    *,
    gpu: GpuCapacity,
    calibration: Calibration | None = None,
    sharing: Sharing | None = None,
    settings: InterferenceOptions | None = None,
) -> Estimate:
    """Return the estimate for two kernels that are launched again and again together on `gpu`.

    What was not measured is named in `unknown`, and widens the interval. Without a calibration that
    of the H100 NVL counts, as published. Errors: InputError for more or fewer than two demands, and
    where `sharing.shares` are not one for each, above 0 and at most 1.

    >>> from tachograph.annexes.share.demand import H100_NVL, Footprint
    >>> small = Footprint(blocks=132, threads=128, registers=32, shared_bytes=0.0)
    >>> fp64 = Demand(name="fp64", cycles={"issue": 0.38, "fp64": 0.73}, dram=0.0, footprint=small)
    >>> both = estimate([fp64, fp64], gpu=H100_NVL)
    >>> round(both.members[0].slowdown, 2), both.members[0].binding, round(both.gain, 2)
    (1.46, 'fp64', 1.37)
    """
    if len(demands) != 2:
        raise InputError(f"{len(demands)} kernels cannot be compared", do="name two")
    calibration, sharing = calibration or Calibration(), sharing or Sharing()
    first, second = _matrices(demands[:1], demands[1:], gpu, calibration, sharing, settings)
    kernels = arrays_of(demands, gpu, calibration)
    may_thrash = bool(first.may_thrash[0, 0])
    unknown = _unknown(demands, kernels, gpu, calibration, may_thrash=may_thrash)
    return Estimate(
        members=(_member(first, demands[0].name), _member(second, demands[1].name)),
        sums=_sums(kernels),
        gain=float(first.gain[0, 0]),
        safe=bool(first.safe[0, 0]),
        unknown=tuple(dict.fromkeys(unknown)),
        may_thrash=may_thrash,
    )


def _member(pair: Matrix, name: str) -> CorunOutcome:
    """Return the only pair of a matrix."""
    return CorunOutcome(
        name=name,
        slowdown=float(pair.slowdown[0, 0]),
        low=float(pair.low[0, 0]),
        high=float(pair.high[0, 0]),
        binding=pair.bound_by(0, 0),
    )


def matrix(
    rows: Sequence[Demand],
    columns: Sequence[Demand] | None = None,
    *,
    gpu: GpuCapacity,
    calibration: Calibration | None = None,
    sharing: Sharing | None = None,
    settings: InterferenceOptions | None = None,
) -> Matrix:
    """Return the estimates of each of `rows` beside each of `columns` (None: `rows`).

    `sharing.shares` are of row and column. Errors: as `estimate`.
    """
    columns = rows if columns is None else columns
    calibration, sharing = calibration or Calibration(), sharing or Sharing()
    return _matrices(rows, columns, gpu, calibration, sharing, settings)[0]


def _matrices(
    rows: Sequence[Demand],
    columns: Sequence[Demand],
    gpu: GpuCapacity,
    calibration: Calibration,
    sharing: Sharing,
    settings: InterferenceOptions | None,
) -> tuple[Matrix, Matrix]:
    """Return the estimates of rows beside columns, and in the same cells those of the columns."""
    shares = sharing.shares or (1.0, 1.0)
    if len(shares) != 2 or not all(0.0 < share <= 1.0 for share in shares):
        listed = ", ".join(f"{share:g}" for share in shares)
        raise InputError(
            f"{len(shares)} shares of the SMs for 2 kernels: {listed}",
            do="give one for each, above 0 and at most 1",
        )
    own, own_longer = _on_share(arrays_of(rows, gpu, calibration), shares[0], gpu, calibration)
    other, longer = _on_share(arrays_of(columns, gpu, calibration), shares[1], gpu, calibration)
    step = max(1, _AT_ONCE // max(1, len(columns)))
    parts = [
        pair_slowdowns(
            own.part(slice(start, start + step)).along(0),
            other.along(1),
            gpu,
            calibration,
            apart=sum(shares) <= 1.0,
        )
        for start in range(0, len(rows), step)
    ]
    of_rows, of_columns = (
        _slowed(PairSlowdowns(*map(np.concatenate, zip(*of_parts, strict=True))), times)
        for of_parts, times in zip(
            zip(*parts, strict=True), (own_longer[:, None], longer[None, :]), strict=True
        )
    )
    limit = (settings or InterferenceOptions()).max_slowdown
    gain = 1.0 / of_rows.slowdown + 1.0 / of_columns.slowdown
    safe = np.maximum(of_rows.high, of_columns.high) <= limit
    first, second = (
        Matrix(
            slowdown=one.slowdown,
            low=one.low,
            high=one.high,
            binding=one.binding.astype(np.uint8),
            resources=RESOURCES,
            in_turn=one.in_turn,
            gain=gain,
            safe=safe,
            may_thrash=one.may_thrash,
        )
        for one in (of_rows, of_columns)
    )
    return first, second


def _slowed(pairs: PairSlowdowns, times: Floats) -> PairSlowdowns:
    """Return pairs of kernels that are so many times slower alone, by their share of the SMs."""
    slowdown = pairs.slowdown * times
    bound = np.where(times > pairs.slowdown, RESOURCES.index("sms"), pairs.binding)
    return pairs._replace(
        slowdown=slowdown,
        low=pairs.low * times,
        high=pairs.high * times,
        binding=np.where(slowdown < _FELT, NOTHING, bound),
    )


def _on_share(
    kernels: KernelArrays, share: float, gpu: GpuCapacity, calibration: Calibration
) -> tuple[KernelArrays, Floats]:
    """Return kernels on a share of the SMs, and how much slower that makes each alone."""
    longer = slower_on(kernels, share, gpu, calibration)
    return (kernels if share >= 1.0 else kernels.on_share(share, longer)), longer


def _sums(kernels: KernelArrays) -> dict[str, float]:
    """{resource: what both need}, of what is known of one of them."""
    needs = np.column_stack(
        [kernels.cycles, kernels.dram, kernels.l2_bandwidth, kernels.l2, kernels.l1]
    )
    is_known: Flags = np.asarray(np.isfinite(needs).any(axis=0))
    totals = np.nansum(needs, axis=0)
    return {name: float(totals[index]) for index, name in enumerate(_SUMS) if is_known[index]}


_LABELS = {"issue": "issue slots", "dram": "bandwidth of DRAM", "l1_bandwidth": "bandwidth of L1"}


def _unknown(
    demands: Sequence[Demand],
    kernels: KernelArrays,
    gpu: GpuCapacity,
    calibration: Calibration,
    *,
    may_thrash: bool,
) -> Iterator[str]:
    """A sentence per missing value of demands, GPU and calibration."""
    names = (*CYCLES, "dram")
    needs = np.column_stack([kernels.cycles, kernels.dram])
    is_needed: Flags = np.any(np.nan_to_num(needs) > 0.0, axis=0)
    is_needed[[names.index("issue"), names.index("dram")]] = True
    launches_known = np.atleast_1d(launch_known(kernels, gpu))
    for demand, need, launched in zip(demands, needs, launches_known, strict=True):
        missing = [
            _LABELS.get(name, name)
            for name, value, matters in zip(names, need, np.atleast_1d(is_needed), strict=True)
            if matters and np.isnan(value)
        ]
        if np.isnan(need[1 : len(CYCLES) - 1]).all():
            missing.append("every pipe")
        if missing:
            yield f"{demand.name}: not measured: {', '.join(missing)}"
        if not launched:
            yield f"{demand.name}: what room its blocks need is not known; they may have to wait"
        if demand.irregular is None:
            yield f"{demand.name}: why its warps wait is not known; taken as half for memory"
        if not demand.launch_s:
            yield f"{demand.name}: how long a launch takes alone is not known; taken as equal"
    if may_thrash:
        yield "L2: what both use again there is not known, or not what stays of it; they may thrash it"
    l2_measured = (calibration.l2_bytes_per_s or gpu.l2_bytes_per_s) is not None
    if not l2_measured and np.count_nonzero(uses_l2(kernels)) > 1:
        yield f"{gpu.name}: what its L2 can deliver was not measured"
    if not measured_on(calibration, gpu) and np.count_nonzero(kernels.dram > 0) > 1:
        of = calibration.measured_on or "another GPU"
        yield f"{gpu.name}: latency of DRAM under load was not measured; that of {of} is taken"
