"""Workload classes of readings as arrays, for single readings, live views and stored minutes.

It needs neither tables nor a compiler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tachograph.catalog.arrays import Bytes, Floats, Singles
from tachograph.judge.workload.classes import (
    ALL_PIPES,
    IO_BYTES_PER_S,
    IO_COPY,
    MAYBE,
    MIXED_PLACE,
    NO,
    PCIE,
    UNKNOWN_PLACE,
    WORKLOAD_CLASSES,
    YES,
    Quantity,
    WorkloadCondition,
    rules_of,
)
from tachograph.judge.workload.settings import WorkloadSettings

Verdicts = NDArray[np.int8]

AT_A_TIME = 8192  # minutes: what they take stays in the cache of a core
# counters that classes look at
COUNTERS = (
    *("sm_active", "dram_active", "gr_engine_active", "gpu_util", *ALL_PIPES),
    "tensor_dfma_active",
    "pcie_tx_bytes_per_s",
    "pcie_rx_bytes_per_s",
    "mem_copy_util",
)


@dataclass(frozen=True, slots=True)
class WorkloadRows:
    """Per reading: index in CLASSES, real utilisation 0..1 or NaN, verdicts (rules x rows)."""

    labels: Bytes
    real: Floats
    verdicts: Verdicts


# {quantity: (least, most)} that each reading may have; NaN: nothing bounds it
Bounds = Mapping[Quantity, tuple[Floats, Floats]]


def classify_rows(
    values: Mapping[str, Floats], size: int, settings: WorkloadSettings | None = None
) -> WorkloadRows:
    """Return classes of `size` readings: the first rule that holds, if earlier ones are decided.

    `values`: {counter: fractions 0..1, or bytes per second}; NaN, or a counter that is not there:
    it was not measured.

    >>> found = classify_rows({"sm_active": np.array([0.9, np.nan])}, 2, WorkloadSettings(published=True))
    >>> found.labels.tolist(), found.real.round(3).tolist()
    ([6, 0], [0.315, 0.0])
    """
    settings = settings or WorkloadSettings()
    bounds = quantity_bounds(values, size, settings)
    rules = rules_of(published=settings.published)
    verdicts = np.empty((len(rules), size), np.int8)
    least: dict[tuple[Quantity, float], Verdicts] = {}
    for index, rule in enumerate(rules):
        parts = [_holds(condition, bounds, least) for condition in rule.conditions]
        verdicts[index] = parts[0]
        for part in parts[1:]:
            np.minimum(verdicts[index], part, out=verdicts[index])
    # The last class holds where no other does.
    requested = np.vstack([verdicts, np.full((1, size), YES, np.int8)])
    first = np.argmax(requested != NO, axis=0)
    labels = np.array([*(rule.place for rule in rules), MIXED_PLACE])[first]
    labels[requested[first, np.arange(size)] == MAYBE] = UNKNOWN_PLACE
    low, high = bounds["real"]
    return WorkloadRows(labels.astype(np.uint8), np.where(low == high, low, np.nan), verdicts)


def quantity_bounds(values: Mapping[str, Floats], size: int, settings: WorkloadSettings) -> Bounds:
    """Return lower and upper bounds of the rules' quantities; equal where known.

    FP64 tensor work is part of tensor activity: it counts for FP64 and not for the tensor classes;
    where it is unknown it is at most the tensor activity. As published, what is missing is 0,
    copying counts as I/O, and FP64 tensor work does not count.
    """
    nothing, published = np.full(size, np.nan), settings.published

    def column(name: str) -> Floats:
        found = values.get(name, nothing)
        return np.nan_to_num(found) if published else found

    sm, tensor, dram, fp64 = (
        column(name) for name in ("sm_active", "tensor_active", "dram_active", "fp64_active")
    )
    engine, util = values.get("gr_engine_active", nothing), values.get("gpu_util")
    if util is not None:
        engine = np.where(np.isnan(engine), util, engine)
    if published:
        engine = np.nan_to_num(engine)
    low, missing = np.zeros(size), np.zeros(size)
    for value, weight in zip((sm, tensor, dram, engine), settings.weights, strict=True):
        unknown = np.isnan(value)
        low += np.where(unknown, 0.0, weight * value)
        missing += np.where(unknown, weight, 0.0)
    matrix = np.zeros(size) if published else values.get("tensor_dfma_active", nothing)
    no_matrix = np.isnan(matrix)
    directions = [column(name) for name in PCIE]
    if published:
        directions.append(column("mem_copy_util") * (IO_BYTES_PER_S / IO_COPY))
    other = np.where(no_matrix, tensor, tensor - matrix)
    pipes = [column(name) for name in ALL_PIPES]
    return {
        "real": (np.clip(low, 0.0, 1.0), np.clip(low + missing, 0.0, 1.0)),
        "sm": (sm, sm),
        "dram": (dram, dram),
        "gr": (engine, engine),
        "tensor": (other, other),
        "fp64": (np.fmax(fp64, matrix), np.maximum(fp64, np.where(no_matrix, tensor, matrix))),
        "io": (np.fmax.reduce(directions), np.maximum.reduce(directions)),
        "pipe_lead": (np.fmax.reduce(pipes) - dram, np.maximum.reduce(pipes) - dram),
        "gr_alone": (
            engine - np.where(np.isnan(sm), 1.0, sm),
            engine - np.where(np.isnan(sm), 0.0, sm),
        ),
    }


def _holds(
    condition: WorkloadCondition, bounds: Bounds, made: dict[tuple[Quantity, float], Verdicts]
) -> Verdicts:
    """The verdict of a condition; each comparison is `made` once."""
    key = (condition.quantity, condition.threshold)
    if key not in made:
        low, high = bounds[condition.quantity]
        made[key] = (low >= condition.threshold).view(np.int8) + (
            ~(high < condition.threshold)
        ).view(np.int8)
    return made[key] if condition.least else np.int8(YES) - made[key]


@dataclass(frozen=True, slots=True)
class MinuteLabeller:
    """Labels the minutes of GPUs by their means, while samples are reduced (pipeline.partition)."""

    settings: WorkloadSettings = field(default_factory=WorkloadSettings)

    @property
    def labels(self) -> int:
        """How many classes there are, unknown among them."""
        return len(WORKLOAD_CLASSES)

    @property
    def counters(self) -> tuple[str, ...]:
        """Counters that decide."""
        return COUNTERS

    def __call__(self, means: Mapping[str, Singles], size: int) -> Bytes:
        """Return for each of `size` minutes the place of its class in WORKLOAD_CLASSES.

        `means`: {counter: fractions 0..1, or bytes per second}; NaN, or a counter that is not
        there: not measured.
        """
        label = np.empty(size, np.uint8)
        for at in range(0, size, AT_A_TIME):
            end = min(at + AT_A_TIME, size)
            part = {
                name: np.asarray(means[name][at:end], np.float64)
                for name in COUNTERS
                if name in means
            }
            label[at:end] = classify_rows(part, end - at, self.settings).labels
        return label
