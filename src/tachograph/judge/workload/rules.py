"""The class of one GPU reading, and which counters are missing if it has none."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

import numpy as np

from tachograph.catalog.counters import COUNTERS_BY_NAME as COUNTERS
from tachograph.judge.workload.arrays import classify_rows
from tachograph.judge.workload.classes import (
    DECIDING,
    IO_BYTES_PER_S,
    MADE_OF,
    MAYBE,
    MIXED_PLACE,
    NO,
    PCIE,
    RULED,
    UNKNOWN,
    WORKLOAD_CLASSES,
    YES,
    Bottleneck,
    WorkloadRule,
    rules_of,
)
from tachograph.judge.workload.settings import WorkloadSettings

_NAN = float("nan")


@dataclass(frozen=True, slots=True)
class KnownReading:
    """A reading's values for the rules: fractions, B/s; NaN: missing. copy: 0 is missing."""

    sm: float
    tensor: float
    dram: float
    gr: float
    fp64: float
    fp32: float
    fp16: float
    dfma: float
    tx: float
    rx: float
    copy: float


@dataclass(frozen=True, slots=True)
class GpuReading:
    """A GPU's values at one time, or means: fractions 0..1, bytes per second. None: missing."""

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
    fp32_active: float | None = None
    fp16_active: float | None = None

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
        """The class, and the counters it lacks.

        >>> classify(GpuReading(dram_active=0.1, tensor_active=0, fp64_active=0)).label
        'unknown (needs SM_ACTIVE, GR_ENGINE_ACTIVE, PCIE_TX_BYTES, PCIE_RX_BYTES)'
        """
        named = ", ".join(_short(name) for name in self.needs)
        return f"{self.name} (needs {named})" if named else self.name

    @property
    def message(self) -> str | None:
        """How to enable missing counters; None if none is missing."""
        return enabling(self.needs) if self.needs else None


def classify(reading: GpuReading, settings: WorkloadSettings | None = None) -> Classified:
    """Return the class of a reading: the first rule that holds, unless an earlier one is undecided.

    >>> classify(GpuReading(sm_active=0.7, tensor_active=0.6, dram_active=0.3, gr_engine_active=0.9)).name
    'tensor-heavy compute'
    >>> classify(GpuReading(gpu_util=1.0)).name
    'unknown'
    """
    settings = settings or WorkloadSettings()
    found = verdicts(reading, settings)
    rules = rules_of(published=settings.published)
    index = next((index for index, verdict in enumerate(found) if verdict != NO), len(found))
    real = real_utilisation(reading, settings)
    if index < len(found) and found[index] == MAYBE:
        first = next((index for index, verdict in enumerate(found) if verdict == YES), len(found))
        unsure = [rules[index] for index in range(first) if found[index] == MAYBE]
        return Classified(UNKNOWN, "unknown", real, _needs(reading, unsure))
    place = rules[index].place if index < len(rules) else MIXED_PLACE
    return Classified(WORKLOAD_CLASSES[place], RULED[place].bottleneck, real)


def verdicts(reading: GpuReading, settings: WorkloadSettings) -> tuple[int, ...]:
    """Return for each rule but the last whether it holds of a reading: NO, YES, MAYBE."""
    values = {
        field.name: np.array([_number(getattr(reading, field.name))])
        for field in fields(GpuReading)
    }
    return tuple(int(verdict) for verdict in classify_rows(values, 1, settings).verdicts[:, 0])


def known_of(reading: GpuReading, settings: WorkloadSettings) -> KnownReading:
    """Return a reading's values used by the rules; as published, missing ones are 0."""
    published = settings.published
    missing = 0.0 if published else _NAN
    return KnownReading(
        sm=_number(reading.sm_active, missing),
        tensor=_number(reading.tensor_active, missing),
        dram=_number(reading.dram_active, missing),
        gr=_number(reading.engine, missing),
        fp64=_number(reading.fp64_active, missing),
        fp32=_number(reading.fp32_active, missing),
        fp16=_number(reading.fp16_active, missing),
        dfma=0.0 if published else _number(reading.tensor_dfma_active),
        tx=_number(reading.pcie_tx_bytes_per_s, missing),
        rx=_number(reading.pcie_rx_bytes_per_s, missing),
        copy=_number(reading.mem_copy_util, missing) if published else 0.0,
    )


def real_utilisation(reading: GpuReading, settings: WorkloadSettings | None = None) -> float | None:
    """Return the weighted activity of a GPU, 0..1; None if a weighted counter is missing.

    >>> real_utilisation(GpuReading(sm_active=0.8, tensor_active=0.4, dram_active=0.5, gpu_util=1.0))
    0.62
    """
    settings = settings or WorkloadSettings()
    values = (reading.sm_active, reading.tensor_active, reading.dram_active, reading.engine)
    weighted = tuple(zip(values, settings.weights, strict=True))
    if not settings.published and any(value is None and weight for value, weight in weighted):
        return None
    together = math.fsum((value or 0.0) * weight for value, weight in weighted)
    return min(1.0, max(0.0, together))


def enabling(counters: Iterable[str]) -> str:
    """Return instructions that enable the recording of missing counters.

    >>> enabling(["sm_active"])
    'let DCGM record SM_ACTIVE (DCGM_FI_PROF_SM_ACTIVE, field 1002)'
    """
    named = [
        f"{_short(name)} (DCGM_FI_{COUNTERS[name].dcgm_name}, field {COUNTERS[name].dcgm_id})"
        for name in counters
    ]
    return f"let DCGM record {', '.join(named)}"


def reading_of(row: Mapping[str, object]) -> GpuReading:
    """Return the reading that a row holds in columns named like the counters."""
    values = {field.name: row.get(field.name) for field in fields(GpuReading)}
    return GpuReading(
        **{n: float(v) for n, v in values.items() if isinstance(v, int | float) and v == v}
    )


def _short(name: str) -> str:
    """A counter as DCGM's users call it."""
    dcgm = COUNTERS[name].dcgm_name or name.upper()
    return dcgm.removeprefix("PROF_").removeprefix("DEV_").removeprefix("PIPE_")


def _number(value: float | None, missing: float = _NAN) -> float:
    return missing if value is None else float(value)


def _needs(reading: GpuReading, rules: Iterable[WorkloadRule]) -> tuple[str, ...]:
    """Missing counters that these rules look at."""
    missing = {name for name in DECIDING if getattr(reading, name) is None}
    if reading.engine is not None:
        missing.discard("gr_engine_active")
    if any((getattr(reading, name) or 0.0) >= IO_BYTES_PER_S for name in PCIE):
        missing -= set(PCIE)  # the other direction decides
    deciding: set[str] = set()
    for rule in rules:
        for condition in rule.conditions:
            deciding.update(MADE_OF[condition.quantity])
    return tuple(name for name in DECIDING if name in deciding & missing)
