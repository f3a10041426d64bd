"""Sums of PM samples, from which scores of any span are computed: average, then clamp."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import msgspec

from tachograph.catalog.devices import match_device
from tachograph.catalog.score_formulas import (
    DRAM_ACTIVE,
    DRAM_ELAPSED,
    ELAPSED,
    FP32,
    FP64,
    SM_ACTIVE,
    SM_ELAPSED,
    TENSOR,
    WARPS,
    practice_gpu,
    practice_gpumem,
    practice_gpumem_normalized,
)

if TYPE_CHECKING:
    from tachograph.catalog.rows import GpuScoreRow

MINUTE_S = 60.0
# {column of gpu_scores: metric that it is the sum of}
SUM_COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "sm_cycles_active": SM_ACTIVE,
        "sm_cycles_elapsed": SM_ELAPSED,
        "gpc_cycles_elapsed": ELAPSED,
        "warps_active": WARPS,
        "dram_cycles_active": DRAM_ACTIVE,
        "dram_cycles_elapsed": DRAM_ELAPSED,
        "pipe_tensor_cycles_active": TENSOR,
        "pipe_fp64_cycles_active": FP64,
        "pipe_fp32_cycles_active": FP32,
    }
)
# {counter: (metric, metric of the cycles that it is a share of)}
_SHARES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "sm_active": (SM_ACTIVE, SM_ELAPSED),
        "dram_active": (DRAM_ACTIVE, DRAM_ELAPSED),
        "tensor_active": (TENSOR, SM_ELAPSED),
        "fp64_active": (FP64, SM_ELAPSED),
        "fp32_active": (FP32, SM_ELAPSED),
    }
)
# {counter: metric with one cycle per Hz and second}
_CLOCKS: Mapping[str, str] = MappingProxyType(
    {"sm_clock_mhz": SM_ELAPSED, "mem_clock_mhz": DRAM_ELAPSED}
)


class PmSums(msgspec.Struct):
    """Sums over a GPU's samples. begin, end: first and last, s since 1970.

    measured_s: length of the samples. lost_s: time between samples without any. overflows: number
    of full buffers. sums: {metric: sum of its values}; without metrics that were cut.
    """

    begin: float
    end: float
    measured_s: float = 0.0
    samples: int = 0
    overflows: int = 0
    lost_s: float = 0.0
    sums: dict[str, float] = {}

    def add(self, other: PmSums) -> None:
        """Add samples of the same GPU and metrics, in any order."""
        if not other.samples and not other.overflows:
            return
        for metric, value in other.sums.items():
            self.sums[metric] = self.sums.get(metric, 0.0) + value
        self.begin, self.end = min(self.begin, other.begin), max(self.end, other.end)
        self.measured_s += other.measured_s
        self.samples += other.samples
        self.overflows += other.overflows
        self.lost_s += other.lost_s

    @property
    def minute(self) -> int:
        """Number of the minute since 1970 in which it begins."""
        return int(self.begin // MINUTE_S)

    def scores(self, max_warps: int | None) -> dict[str, float | None]:
        """Return the published scores, 0..100.

        None where a metric was cut, the GPU was idle, or W_max is unknown.

        >>> sums = {SM_ACTIVE: 500.0, SM_ELAPSED: 1000.0, WARPS: 16000.0}
        >>> PmSums(0.0, 1.0, 1.0, 1, sums=sums).scores(64)
        {'score_gpu': 75.0, 'score_gpumem': None, 'score_gpumem_normalized': None}
        """
        cycles = dict(self.sums)
        if SM_ELAPSED in cycles:  # of the formulas' two elapsed cycles, the one in the SMs' clock
            cycles[ELAPSED] = cycles[SM_ELAPSED]
        score_gpu = None
        if max_warps is not None:
            score_gpu = practice_gpu(cycles, max_warps=max_warps).value
        return {
            "score_gpu": score_gpu,
            "score_gpumem": practice_gpumem(cycles).value,
            "score_gpumem_normalized": practice_gpumem_normalized(cycles).value,
        }

    def counters(self, warps_per_sm: int | None) -> dict[str, float]:
        """Return the sums as DCGM's counters: shares of elapsed cycles (0..1), and clocks.

        warps_per_sm: maximum of an SM of the device, the base of occupancy. Absent: not measured.

        >>> sums = {SM_ACTIVE: 1e9, SM_ELAPSED: 2e9, WARPS: 32e9}
        >>> PmSums(0.0, 2.0, 2.0, 1, sums=sums).counters(64)
        {'sm_active': 0.5, 'sm_occupancy': 0.25, 'sm_clock_mhz': 1000.0}
        """
        counters: dict[str, float | None] = {"sm_active": None, "sm_occupancy": None}  # come first
        for name, metrics in _SHARES.items():
            counters[name] = self._share(*metrics)
        resident = self._share(WARPS, SM_ELAPSED)
        if resident is not None and warps_per_sm:
            counters["sm_occupancy"] = resident / warps_per_sm
        if self.measured_s > 0:
            for name, metric in _CLOCKS.items():
                if metric in self.sums:
                    counters[name] = self.sums[metric] / self.measured_s / 1e6
        return {name: value for name, value in counters.items() if value is not None}

    def _share(self, metric: str, of: str) -> float | None:
        whole = self.sums.get(of, 0.0)
        return self.sums[metric] / whole if metric in self.sums and whole > 0 else None

    def row(
        self, *, node: str, gpu: int, mig: int | None, max_warps: int | None, cut: str | None
    ) -> GpuScoreRow:
        """Return a row of gpu_scores."""
        row: dict[str, Any] = {
            "t": datetime.fromtimestamp(self.begin, UTC),
            "node": node,
            "gpu": gpu,
            "mig": mig,
        }
        row |= {
            "duration_s": self.end - self.begin,
            "measured_s": self.measured_s,
            "pm_samples": self.samples,
        }
        row |= {
            "overflows": self.overflows,
            "lost_s": self.lost_s,
            "max_warps": max_warps,
            "cut": cut or None,
        }
        row |= {column: self.sums.get(metric) for column, metric in SUM_COLUMNS.items()}
        return cast("GpuScoreRow", row | self.scores(max_warps))

    def as_json(self) -> dict[str, Any]:
        """Return it as a document."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document


def sums_of(document: Mapping[str, Any]) -> PmSums:
    """Return the sums from `as_json`; ignores unknown keys."""
    sums = msgspec.convert(document, PmSums)
    sums.sums = _in_one_clock(sums.sums)
    return sums


def _in_one_clock(sums: Mapping[str, float]) -> dict[str, float]:
    """Return the sums with elapsed cycles of the SMs, for which older ones have those of GPCs."""
    if SM_ELAPSED in sums or ELAPSED not in sums:
        return dict(sums)
    return {**sums, SM_ELAPSED: sums[ELAPSED]}


def sums_of_row(row: GpuScoreRow) -> PmSums:
    """Return the sums of a row of gpu_scores."""
    begin = row["t"].timestamp()
    values: Mapping[str, Any] = row
    sums = {
        metric: values[column]
        for column, metric in SUM_COLUMNS.items()
        if values[column] is not None
    }
    return PmSums(
        begin,
        begin + (row["duration_s"] or 0.0),
        row["measured_s"] or 0.0,
        row["pm_samples"] or 0,
        row["overflows"] or 0,
        row["lost_s"] or 0.0,
        _in_one_clock(sums),
    )


def total(parts: Iterable[PmSums]) -> PmSums | None:
    """Return the sum of all; None if empty. Keeps only metrics that all of them have.

    >>> parts = [PmSums(0, 1, 1, 10, sums={SM_ACTIVE: 1.0, WARPS: 5.0}), PmSums(1, 2, 1, 10, sums={SM_ACTIVE: 2.0})]
    >>> whole = total(parts)
    >>> whole.samples, whole.sums == {SM_ACTIVE: 3.0}
    (20, True)
    """
    every = list(parts)
    if not every:
        return None
    whole = PmSums(every[0].begin, every[0].end)
    for part in every:
        whole.add(part)
    common = (
        set.intersection(*(set(part.sums) for part in every if part.samples))
        if whole.samples
        else set()
    )
    whole.sums = {metric: value for metric, value in whole.sums.items() if metric in common}
    return whole


def warps_of(model: str | None) -> int | None:
    """Return W_max of a device, the most warps that an SM holds; None: unknown device.

    >>> warps_of("NVIDIA H100 80GB HBM3"), warps_of("Tesla T4"), warps_of("unknown")
    (64, 32, None)
    """
    device = match_device(model)
    return None if device is None else device.max_warps_per_sm


def finite(values: Iterable[float]) -> bool:
    """Return whether all are numbers."""
    return all(math.isfinite(value) for value in values)
