"""Explains a reading's class: the matching rule, values and thresholds."""

from __future__ import annotations

from tachograph.catalog.units import text
from tachograph.judge.workload.classes import (
    ALL_PIPES,
    IO_COPY,
    MAYBE,
    NO,
    UNKNOWN,
    WORKLOAD_CLASSES,
    WorkloadCondition,
    rules_of,
)
from tachograph.judge.workload.rules import GpuReading, KnownReading, classify, known_of, verdicts
from tachograph.judge.workload.settings import WorkloadSettings

NAMES = {
    "real": "real",
    "sm": "SM",
    "tensor": "TENSOR",
    "dram": "DRAM",
    "gr": "GR",
    "fp64": "FP64",
    "gr_alone": "GR without SM",
}


def explained(reading: GpuReading, settings: WorkloadSettings | None = None) -> str:
    """Return the rule a reading meets, with values; or the missing counters.

    >>> explained(GpuReading(sm_active=0.72, tensor_active=0.61, dram_active=0.3, gr_engine_active=0.9))
    'TENSOR 61 % >= 50 %, SM 72 % >= 60 %'
    >>> explained(GpuReading(sm_active=0.9, dram_active=0.2, gpu_util=0.9))
    'tensor-heavy compute is undetermined: TENSOR_ACTIVE, FP64_ACTIVE are missing'
    """
    settings = settings or WorkloadSettings()
    values = known_of(reading, settings)
    results = verdicts(reading, settings)
    index = next((index for index, verdict in enumerate(results) if verdict != NO), len(results))
    if index == len(results):
        return "no other rule holds"
    rule = rules_of(published=settings.published)[index]
    if results[index] == MAYBE:
        return f"{WORKLOAD_CLASSES[rule.place]} is undetermined: {_missing(reading, settings)}"
    return ", ".join(_condition(condition, values, settings) for condition in rule.conditions)


def _missing(reading: GpuReading, settings: WorkloadSettings) -> str:
    label = classify(reading, settings).label.removeprefix(f"{UNKNOWN} (needs ").removesuffix(")")
    return f"{label} {'are' if ',' in label else 'is'} missing"


def _condition(
    condition: WorkloadCondition, values: KnownReading, settings: WorkloadSettings
) -> str:
    """A condition that holds."""
    sign = ">=" if condition.least else "<"
    if condition.quantity == "io":
        return _io(condition, values, sign)
    if condition.quantity == "pipe_lead":
        return _pipe_lead(values)
    name, value = _value(condition, values, settings)
    return (
        f"{name} {_percent(value, condition.threshold)} {sign} "
        f"{text(condition.threshold, 'fraction')}"
    )


def _value(
    condition: WorkloadCondition, values: KnownReading, settings: WorkloadSettings
) -> tuple[str, float]:
    """Deciding value of a quantity, and its name."""
    name = NAMES[condition.quantity]
    match condition.quantity:
        case "real":
            return name, _highest_real(values, settings)
        case "gr_alone":
            return name, values.gr - values.sm
        case "tensor" if values.dfma > 0:
            return "TENSOR without FP64", values.tensor - values.dfma
        case "fp64" if not values.fp64 >= condition.threshold:
            return "FP64 TENSOR", values.dfma
        case "sm" | "tensor" | "dram" | "gr" | "fp64":
            value: float = getattr(values, condition.quantity)
            return name, value
        case _:
            raise AssertionError(condition.quantity)


def _highest_real(values: KnownReading, settings: WorkloadSettings) -> float:
    """Upper bound of real utilisation."""
    parts = zip((values.sm, values.tensor, values.dram, values.gr), settings.weights, strict=True)
    return min(1.0, sum(weight * (value if value == value else 1.0) for value, weight in parts))


def _pipe_lead(values: KnownReading) -> str:
    """The most active pipe, which is less active than memory."""
    names = [name.removesuffix("_active") for name in ALL_PIPES]
    busiest = max(names, key=lambda name: float(getattr(values, name)))
    value, dram = float(getattr(values, busiest)), values.dram
    return f"{busiest.upper()} beside DRAM {_percent(value, dram)} < {_percent(dram, value)}"


def _io(condition: WorkloadCondition, values: KnownReading, sign: str) -> str:
    directions = {"PCIe TX": values.tx, "PCIe RX": values.rx}
    busiest = max(
        directions,
        key=lambda name: -1.0 if directions[name] != directions[name] else directions[name],
    )
    if (
        condition.least
        and values.copy >= IO_COPY
        and not directions[busiest] >= condition.threshold
    ):
        return f"MEMCPY {_percent(values.copy, IO_COPY)} >= {text(IO_COPY, 'fraction')}"
    return (
        f"{busiest} {_bytes(directions[busiest], condition.threshold)} {sign} "
        f"{text(condition.threshold, 'B/s')}"
    )


def _percent(value: float, threshold: float) -> str:
    alike = _alike(value, threshold, "fraction")
    return f"{_digits(value * 100, threshold * 100)} %" if alike else text(value, "fraction")


def _bytes(value: float, threshold: float) -> str:
    return (
        f"{_digits(value / 1e9, threshold / 1e9)} GB/s"
        if _alike(value, threshold, "B/s")
        else text(value, "B/s")
    )


def _alike(value: float, threshold: float, unit: str) -> bool:
    """Whether a value is written like the threshold that it is not."""
    return value != threshold and text(value, unit) == text(threshold, unit)


def _digits(value: float, threshold: float) -> str:
    """A number with as many digits as distinguish it from another."""
    for digits in range(3, 18):
        short = f"{value:.{digits}g}"
        if float(short) != threshold:
            return short
    return repr(value)
