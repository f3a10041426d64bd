"""Classes of many readings at once, without a compiler: what live views are made of.

The same rules as for one reading and for stored minutes, asked of arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tachograph.catalog.arrays import Bytes, Flags, Floats
from tachograph.judge.workload.classes import IO_COPY
from tachograph.judge.workload.rules import (
    CONDITIONS,
    DECIDING,
    MADE_OF,
    MAYBE,
    NO,
    PCIE,
    RULE_COUNT,
    YES,
    WorkloadCondition,
)
from tachograph.judge.workload.settings import WorkloadSettings

Verdicts = NDArray[np.int8]

# counters that classes look at
COUNTERS = (
    *("sm_active", "tensor_active", "dram_active", "gr_engine_active", "gpu_util", "fp64_active"),
    *("tensor_dfma_active", "pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s", "mem_copy_util"),
)


@dataclass(frozen=True, slots=True)
class WorkloadRows:
    """Per reading: its place in CLASSES; its real utilisation 0..1, NaN unknown; what each rule says (rules x rows)."""

    labels: Bytes
    real: Floats
    verdicts: Verdicts


@dataclass(frozen=True, slots=True)
class _KnownRows:
    """What the rules look at, as in rules.Known; `low`, `high`: between what real utilisation lies."""

    sm: Floats
    tensor: Floats
    dram: Floats
    gr: Floats
    fp64: Floats
    dfma: Floats
    tx: Floats
    rx: Floats
    copy: Floats
    low: Floats
    high: Floats


def classify_rows(values: Mapping[str, Floats], size: int, settings: WorkloadSettings | None = None) -> WorkloadRows:
    """Return the classes of `size` readings: of each the first rule that holds, unless one before cannot be decided.

    `values`: {counter: fractions 0..1, or bytes per second}; NaN, or a counter that is not there: nobody measured it.

    >>> found = classify_rows({"sm_active": np.array([0.9, np.nan])}, 2, Settings(published=True))
    >>> found.labels.tolist(), found.real.round(3).tolist()
    ([6, 0], [0.315, 0.0])
    """
    settings = settings or WorkloadSettings()
    known = _known(values, size, settings)
    verdicts = np.empty((RULE_COUNT, size), np.int8)
    least: dict[WorkloadCondition, Verdicts] = {}
    for rule, conditions in enumerate(CONDITIONS):
        parts = [_holds(condition, known, least) for condition in conditions]
        verdicts[rule] = parts[0]
        for part in parts[1:]:
            np.minimum(verdicts[rule], part, out=verdicts[rule])
    asked = np.vstack([verdicts, np.full((1, size), YES, np.int8)])  # the last class holds where no other does
    labels = np.argmax(asked != NO, axis=0)
    labels[asked[labels, np.arange(size)] == MAYBE] = RULE_COUNT + 1
    real = np.where(_lacks_weight(known, settings), np.nan, known.low)
    return WorkloadRows(labels.astype(np.uint8), real, verdicts)


def needs_rows(
    values: Mapping[str, Floats],
    size: int,
    settings: WorkloadSettings | None = None,
    *,
    rows: WorkloadRows | None = None,
) -> Mapping[str, Flags]:
    """Return which readings are unknown for want of a counter: {each of DECIDING: flag per reading}.

    `rows`: what `classify_rows` said of them, where that is known already.

    >>> found = needs_rows({"tensor_active": np.zeros(1), "dram_active": np.zeros(1), "gpu_util": np.ones(1)}, 1)
    >>> [name for name, flags in found.items() if flags[0]]
    ['sm_active', 'fp64_active', 'pcie_tx_bytes_per_s', 'pcie_rx_bytes_per_s']
    """
    rows = rows or classify_rows(values, size, settings)
    open_ = (rows.verdicts == MAYBE) & (np.cumsum(rows.verdicts == YES, axis=0) == 0) & (rows.labels == RULE_COUNT + 1)
    missing = {name: np.isnan(values[name]) if name in values else np.ones(size, np.bool_) for name in DECIDING}
    if "gpu_util" in values:
        missing["gr_engine_active"] = missing["gr_engine_active"] & np.isnan(values["gpu_util"])
    if (settings or WorkloadSettings()).published:
        return {name: np.zeros(size, np.bool_) for name in DECIDING}
    moved = np.zeros(size, np.bool_)  # by one direction: then the other is not asked for
    for name in PCIE:
        if name in values:
            threshold = next(c.threshold for rule in CONDITIONS for c in rule if c.quantity == "io")
            moved |= values[name] >= threshold
    found: dict[str, Flags] = {}
    for name in DECIDING:
        asking = [any(name in MADE_OF[c.quantity] for c in rule) for rule in CONDITIONS]
        found[name] = open_[asking].any(axis=0) & missing[name] & ~(moved if name in PCIE else False)
    return found


def _known(values: Mapping[str, Floats], size: int, settings: WorkloadSettings) -> _KnownRows:
    """What the rules look at; of the published ones what is missing is 0."""
    nothing, zero = np.full(size, np.nan), np.zeros(size)

    def column(name: str) -> Floats:
        found = values.get(name, nothing)
        return np.nan_to_num(found) if settings.published else found

    engine, util = values.get("gr_engine_active", nothing), values.get("gpu_util")
    if util is not None:
        engine = np.where(np.isnan(engine), util, engine)
    if settings.published:
        engine = np.nan_to_num(engine)
    sm, tensor, dram = column("sm_active"), column("tensor_active"), column("dram_active")
    low, missing = np.zeros(size), np.zeros(size)
    for value, weight in zip((sm, tensor, dram, engine), settings.weights, strict=True):
        unknown = np.isnan(value)
        low += np.where(unknown, 0.0, weight * value)
        missing += np.where(unknown, weight, 0.0)
    return _KnownRows(
        sm, tensor, dram, engine, column("fp64_active"),
        zero if settings.published else column("tensor_dfma_active"),
        column("pcie_tx_bytes_per_s"), column("pcie_rx_bytes_per_s"),
        column("mem_copy_util") if settings.published else zero,
        np.clip(low, 0.0, 1.0), np.clip(low + missing, 0.0, 1.0),
    )  # fmt: skip


def _lacks_weight(known: _KnownRows, settings: WorkloadSettings) -> Flags:
    """Where something that weighs is missing."""
    lacking = np.zeros(len(known.sm), np.bool_)
    for value, weight in zip((known.sm, known.tensor, known.dram, known.gr), settings.weights, strict=True):
        if weight:
            lacking |= np.isnan(value)
    return lacking


def _holds(condition: WorkloadCondition, known: _KnownRows, made: dict[WorkloadCondition, Verdicts]) -> Verdicts:
    """What a condition says; each comparison is `made` once."""
    positive = condition if condition.least else WorkloadCondition(condition.quantity, True, condition.threshold)
    if positive not in made:
        made[positive] = _at_least(positive, known)
    return made[positive] if condition.least else np.int8(YES) - made[positive]


def _at_least(condition: WorkloadCondition, known: _KnownRows) -> Verdicts:
    threshold = condition.threshold
    match condition.quantity:
        case "real":
            return (known.low >= threshold).view(np.int8) + (known.high >= threshold).view(np.int8)
        case "io":
            directions = np.maximum(_least(known.tx, threshold), _least(known.rx, threshold))
            return np.maximum(directions, _least(known.copy, IO_COPY))
        case "fp64":
            unsure = np.where(known.tensor < threshold, np.int8(NO), np.int8(MAYBE))
            matrix = np.where(np.isnan(known.dfma), unsure, _least(known.dfma, threshold))
            return np.maximum(_least(known.fp64, threshold), matrix)
        case "tensor":
            return _least(np.where(np.isnan(known.dfma), known.tensor, known.tensor - known.dfma), threshold)
        case "sm" | "dram" | "gr":
            return _least({"sm": known.sm, "dram": known.dram, "gr": known.gr}[condition.quantity], threshold)


def _least(value: Floats, threshold: float) -> Verdicts:
    """Whether value >= threshold: of a missing value neither this nor its opposite is true."""
    return (value >= threshold).view(np.int8) + (~(value < threshold)).view(np.int8)
