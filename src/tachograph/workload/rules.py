"""The rules of workload classes as a table, and what they say of one reading in logic of three values.

An AND is false where one part is false, an OR true where one part is true, whatever the others are (Kleene). `kernel`
holds the same rules compiled, for the minutes of millions of jobs; `rows` asks this table of many readings at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from tachograph.workload.classes import (
    BUSY,
    BUSY_SM_BELOW,
    COMPUTE_ACTIVE_SM,
    COMPUTE_HEAVY_SM,
    FP64,
    FP64_SM,
    IDLE_BELOW,
    IO_BYTES_PER_S,
    IO_COPY,
    IO_SM_BELOW,
    LOW_BELOW,
    MEMORY_ACTIVE,
    MEMORY_BOUND,
    MEMORY_BOUND_SM_BELOW,
    TENSOR,
    TENSOR_HEAVY,
    TENSOR_HEAVY_SM,
    TENSOR_SM,
)

Quantity = Literal["real", "sm", "tensor", "dram", "gr", "fp64", "io"]
OF_REAL = ("sm_active", "tensor_active", "dram_active", "gr_engine_active")
PCIE = ("pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s")
# what decides, in the order in which it is named; FP64 tensor work and utilisation only add to the others
DECIDING = (*OF_REAL, "fp64_active", *PCIE)
# counters that a quantity is made of
MADE_OF: Mapping[Quantity, tuple[str, ...]] = MappingProxyType(
    {
        "real": OF_REAL,
        "sm": ("sm_active",),
        "tensor": ("tensor_active",),
        "dram": ("dram_active",),
        "gr": ("gr_engine_active",),
        "fp64": ("fp64_active", "tensor_active"),
        "io": PCIE,
    }
)

# AND is the lesser of two, OR the greater
NO, MAYBE, YES = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Condition:
    """One part of a rule: that a quantity is at least `threshold`, or (`least` False) that it is below it.

    Of `fp64` the FP64 pipe or FP64 tensor work counts; of `io` either direction of PCIe (B/s), or copying from IO_COPY
    on as published.
    """

    quantity: Quantity
    least: bool
    threshold: float


def _at(quantity: Quantity, threshold: float) -> Condition:
    return Condition(quantity, True, threshold)


def _below(quantity: Quantity, threshold: float) -> Condition:
    return Condition(quantity, False, threshold)


# per class but the last, in their order: what must all hold
CONDITIONS: tuple[tuple[Condition, ...], ...] = (
    (_below("real", IDLE_BELOW), _below("gr", IDLE_BELOW), _below("dram", IDLE_BELOW), _below("io", IO_BYTES_PER_S)),
    (_at("tensor", TENSOR_HEAVY), _at("sm", TENSOR_HEAVY_SM)),
    (_at("tensor", TENSOR), _at("sm", TENSOR_SM)),
    (_at("fp64", FP64), _at("sm", FP64_SM)),
    (_at("io", IO_BYTES_PER_S), _below("sm", IO_SM_BELOW)),
    (_at("dram", MEMORY_BOUND), _below("sm", MEMORY_BOUND_SM_BELOW)),
    (_at("sm", COMPUTE_HEAVY_SM),),
    (_at("sm", COMPUTE_ACTIVE_SM),),
    (_at("dram", MEMORY_ACTIVE),),
    (_at("gr", BUSY), _below("sm", BUSY_SM_BELOW)),
    (_below("gr", LOW_BELOW), _below("sm", LOW_BELOW), _below("dram", LOW_BELOW)),
)
RULES = len(CONDITIONS)


@dataclass(frozen=True, slots=True)
class Known:
    """What the rules look at of one reading: fractions 0..1, bytes per second; NaN: missing. copy: 0 does not count."""

    sm: float
    tensor: float
    dram: float
    gr: float
    fp64: float
    dfma: float
    tx: float
    rx: float
    copy: float


def verdicts(known: Known, weights: tuple[float, float, float, float]) -> tuple[int, ...]:
    """Return for each rule but the last whether it holds: NO, YES, MAYBE.

    FP64 tensor work (`dfma`) is part of `tensor`: it counts for FP64 and not for the tensor classes; where it is not
    known it is at most `tensor`.
    """
    return tuple(min(_holds(condition, known, weights) for condition in rule) for rule in CONDITIONS)


def _holds(condition: Condition, known: Known, weights: tuple[float, float, float, float]) -> int:
    threshold = condition.threshold
    match condition.quantity:
        case "real":
            low, high = bounds(known, weights)
            verdict = int(low >= threshold) + int(high >= threshold)
        case "io":
            directions = max(_least(known.tx, threshold), _least(known.rx, threshold))
            verdict = max(_least(known.copy, IO_COPY), directions)
        case "fp64":
            unknown = known.dfma != known.dfma
            matrix = (NO if known.tensor < threshold else MAYBE) if unknown else _least(known.dfma, threshold)
            verdict = max(_least(known.fp64, threshold), matrix)
        case "tensor":
            verdict = _least(known.tensor if known.dfma != known.dfma else known.tensor - known.dfma, threshold)
        case "sm":
            verdict = _least(known.sm, threshold)
        case "dram":
            verdict = _least(known.dram, threshold)
        case "gr":
            verdict = _least(known.gr, threshold)
    return verdict if condition.least else YES - verdict


def bounds(known: Known, weights: tuple[float, float, float, float]) -> tuple[float, float]:
    """Return between what real utilisation lies (0..1): the same twice where all that weighs is known."""
    low = missing = 0.0
    for value, weight in zip((known.sm, known.tensor, known.dram, known.gr), weights, strict=True):
        if value == value:
            low += weight * value
        else:
            missing += weight
    return min(max(low, 0.0), 1.0), min(max(low + missing, 0.0), 1.0)


def _least(value: float, threshold: float) -> int:
    """Whether value >= threshold: of a missing value neither this nor its opposite is true."""
    return int(value >= threshold) + int(not value < threshold)
