"""The rules of workload classes, and the class of one reading of a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Literal

from tachograph.catalog.counters import COUNTERS_BY_NAME as COUNTERS
from tachograph.judge.workload.classes import (
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
    RULED,
    TENSOR,
    TENSOR_HEAVY,
    TENSOR_HEAVY_SM,
    TENSOR_SM,
    UNKNOWN,
    WORKLOAD_CLASSES,
    Bottleneck,
)
from tachograph.judge.workload.settings import WorkloadSettings

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
class WorkloadCondition:
    """One part of a rule: that a quantity is at least `threshold`, or (`least` False) that it is below it.

    Of `fp64` the FP64 pipe or FP64 tensor work counts; of `io` either direction of PCIe (B/s), or copying from IO_COPY
    on as published.
    """

    quantity: Quantity
    least: bool
    threshold: float


def _at(quantity: Quantity, threshold: float) -> WorkloadCondition:
    return WorkloadCondition(quantity, True, threshold)


def _below(quantity: Quantity, threshold: float) -> WorkloadCondition:
    return WorkloadCondition(quantity, False, threshold)


# per class but the last, in their order: what must all hold
CONDITIONS: tuple[tuple[WorkloadCondition, ...], ...] = (
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
RULE_COUNT = len(CONDITIONS)


@dataclass(frozen=True, slots=True)
class KnownReading:
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


def verdicts(known: KnownReading, weights: tuple[float, float, float, float]) -> tuple[int, ...]:
    """Return for each rule but the last whether it holds: NO, YES, MAYBE.

    FP64 tensor work (`dfma`) is part of `tensor`: it counts for FP64 and not for the tensor classes; where it is not
    known it is at most `tensor`.
    """
    return tuple(min(_holds(condition, known, weights) for condition in rule) for rule in CONDITIONS)


def _holds(condition: WorkloadCondition, known: KnownReading, weights: tuple[float, float, float, float]) -> int:
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


def bounds(known: KnownReading, weights: tuple[float, float, float, float]) -> tuple[float, float]:
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


_NAN = float("nan")


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What is known of a GPU at one time, or its means over some: fractions 0..1, bytes per second. None: missing."""

    sm_active: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None
    gr_engine_active: float | None = None
    gpu_util: float | None = None
    fp64_active: float | None = None
    tensor_dfma_active: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    pcie_rx_bytes_per_s: float | None = None
    mem_copy_util: float | None = None

    @property
    def engine(self) -> float | None:
        """Activity of the graphics and compute engine; utilisation where it is missing."""
        return self.gpu_util if self.gr_engine_active is None else self.gr_engine_active


@dataclass(frozen=True, slots=True)
class Classified:
    """The class of a reading. real_utilisation: 0..1, None where something that weighs is missing.

    needs: counters without which the rules cannot be decided; only where the class is unknown.
    """

    name: str
    bottleneck: Bottleneck
    real_utilisation: float | None
    needs: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The class as people read it.

        >>> classify(Reading(dram_active=0.1, tensor_active=0, fp64_active=0)).label
        'unknown (needs SM_ACTIVE, GR_ENGINE_ACTIVE, PCIE_TX_BYTES, PCIE_RX_BYTES)'
        """
        named = ", ".join(_short(name) for name in self.needs)
        return f"{self.name} (needs {named})" if named else self.name

    @property
    def message(self) -> str | None:
        """How to enable what is missing; None where nothing is."""
        return enabling(self.needs) if self.needs else None


def classify(reading: GpuReading, settings: WorkloadSettings | None = None) -> Classified:
    """Return the class of one reading: the first rule that holds, unless one before it cannot be decided.

    >>> classify(Reading(sm_active=0.7, tensor_active=0.6, dram_active=0.3, gr_engine_active=0.9)).name
    'tensor-heavy compute'
    >>> classify(Reading(gpu_util=1.0)).name
    'unknown'
    """
    settings = settings or WorkloadSettings()
    known = with_zeros(reading) if settings.published else reading
    found = verdicts(known_of(known, settings), settings.weights)
    place = next((place for place, verdict in enumerate(found) if verdict != NO), len(found))
    real = real_utilisation(known, settings)
    if place < len(found) and found[place] == MAYBE:
        first = next((place for place, verdict in enumerate(found) if verdict == YES), len(found))
        unsure = [rule for rule in range(first) if found[rule] == MAYBE]
        return Classified(UNKNOWN, "unknown", real, _needs(known, unsure))
    return Classified(WORKLOAD_CLASSES[place], RULED[place].bottleneck, real)


def known_of(reading: GpuReading, settings: WorkloadSettings) -> KnownReading:
    """Return what the rules look at of a reading."""
    published = settings.published
    return KnownReading(
        sm=_number(reading.sm_active),
        tensor=_number(reading.tensor_active),
        dram=_number(reading.dram_active),
        gr=_number(reading.engine),
        fp64=_number(reading.fp64_active),
        dfma=0.0 if published else _number(reading.tensor_dfma_active),
        tx=_number(reading.pcie_tx_bytes_per_s),
        rx=_number(reading.pcie_rx_bytes_per_s),
        copy=_number(reading.mem_copy_util) if published else 0.0,
    )


def real_utilisation(reading: GpuReading, settings: WorkloadSettings | None = None) -> float | None:
    """Return the weighted activity of a GPU, 0..1; None where something that weighs is missing.

    >>> real_utilisation(Reading(sm_active=0.8, tensor_active=0.4, dram_active=0.5, gpu_util=1.0))
    0.62
    """
    weights = (settings or WorkloadSettings()).weights
    values = (reading.sm_active, reading.tensor_active, reading.dram_active, reading.engine)
    if any(value is None and weight for value, weight in zip(values, weights, strict=True)):
        return None
    together = math.fsum((value or 0.0) * weight for value, weight in zip(values, weights, strict=True))
    return min(1.0, max(0.0, together))


def enabling(counters: Iterable[str]) -> str:
    """Return how counters are made to be recorded.

    >>> enabling(["sm_active"])
    'let DCGM record SM_ACTIVE (DCGM_FI_PROF_SM_ACTIVE, field 1002)'
    """
    told = [f"{_short(name)} (DCGM_FI_{COUNTERS[name].dcgm_name}, field {COUNTERS[name].dcgm_id})" for name in counters]
    return f"let DCGM record {', '.join(told)}"


def reading_of(row: Mapping[str, object], end: str = "") -> GpuReading:
    """Return the reading that a row holds in columns named like the counters, with `end` behind."""
    values = {field.name: row.get(field.name + end) for field in fields(GpuReading)}
    return GpuReading(**{n: float(v) for n, v in values.items() if isinstance(v, int | float) and v == v})


def _short(name: str) -> str:
    """A counter as DCGM's users call it."""
    dcgm = COUNTERS[name].dcgm_name or name.upper()
    return dcgm.removeprefix("PROF_").removeprefix("DEV_").removeprefix("PIPE_")


def _number(value: float | None) -> float:
    return _NAN if value is None else float(value)


def with_zeros(reading: GpuReading) -> GpuReading:
    """The reading as the published classifier sees it: what is missing is 0."""
    engine = reading.engine or 0.0
    values = {field.name: getattr(reading, field.name) or 0.0 for field in fields(GpuReading)}
    return GpuReading(**(values | {"gr_engine_active": engine}))


def _needs(reading: GpuReading, rules: list[int]) -> tuple[str, ...]:
    """Missing counters that these rules look at."""
    missing = {name for name in DECIDING if getattr(reading, name) is None}
    if reading.engine is not None:
        missing.discard("gr_engine_active")
    if any((getattr(reading, name) or 0.0) >= IO_BYTES_PER_S for name in PCIE):
        missing -= set(PCIE)  # the other direction decides
    asked = {name for rule in rules for condition in CONDITIONS[rule] for name in MADE_OF[condition.quantity]}
    return tuple(name for name in DECIDING if name in asked & missing)
