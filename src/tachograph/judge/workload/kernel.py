"""The rules of workload classes as compiled code, for many readings at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tachograph.catalog.arrays import Bytes, Floats, Singles
from tachograph.catalog.compiled import compiled
from tachograph.judge.workload.arrays import COUNTERS
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
    TENSOR,
    TENSOR_HEAVY,
    TENSOR_HEAVY_SM,
    TENSOR_SM,
    WORKLOAD_CLASSES,
)
from tachograph.judge.workload.rules import MAYBE, NO, RULE_COUNT, YES
from tachograph.judge.workload.settings import WorkloadSettings

# written without branches, which cost more than the arithmetic
_UNKNOWN_CLASS = RULE_COUNT + 1


@compiled
def _least(value: float, threshold: float) -> int:
    """Whether value >= threshold: of a missing value neither this nor its opposite is true."""
    return int(value >= threshold) + int(not value < threshold)


@compiled
def _below(value: float, threshold: float) -> int:
    return int(value < threshold) + int(not value >= threshold)


@compiled
def _filled(value: float) -> float:
    return value if value == value else 0.0


@compiled
def _gap(value: float, weight: float) -> float:
    """What a missing value might add."""
    return 0.0 if value == value else weight


@compiled
def _first(verdict: int, place: int, later: int) -> int:
    """The place of a rule that holds, unknown where that cannot be decided, `later` where it does not hold."""
    return later if verdict == NO else place if verdict == YES else _UNKNOWN_CLASS


@compiled
def bounds(
    sm: float, tensor: float, dram: float, gr: float, w_sm: float, w_tensor: float, w_dram: float, w_gr: float
) -> tuple[float, float]:
    """Return between what real utilisation lies (0..1): the same twice where all that weighs is known."""
    low = _filled(w_sm * sm) + _filled(w_tensor * tensor) + _filled(w_dram * dram) + _filled(w_gr * gr)
    missing = _gap(sm, w_sm) + _gap(tensor, w_tensor) + _gap(dram, w_dram) + _gap(gr, w_gr)
    return min(max(low, 0.0), 1.0), min(max(low + missing, 0.0), 1.0)


@compiled
def verdicts(
    sm: float, tensor: float, dram: float, gr: float, fp64: float, dfma: float, tx: float, rx: float, copy: float,
    w_sm: float, w_tensor: float, w_dram: float, w_gr: float,
) -> tuple[int, int, int, int, int, int, int, int, int, int, int]:  # fmt: skip
    """Return for each rule but the last whether it holds: NO, YES, MAYBE. Fractions 0..1, bytes per second.

    `copy`: utilisation that counts as copying; 0 where none does. FP64 tensor work (`dfma`) is part of `tensor`: it
    counts for FP64 and not for the tensor classes; where it is not known it is at most `tensor`.
    """
    low, high = bounds(sm, tensor, dram, gr, w_sm, w_tensor, w_dram, w_gr)
    resting = int(low < IDLE_BELOW) + int(high < IDLE_BELOW)
    io = max(_least(copy, IO_COPY), _least(tx, IO_BYTES_PER_S), _least(rx, IO_BYTES_PER_S))
    other = tensor - dfma if dfma == dfma else tensor
    matrix = _least(dfma, FP64) if dfma == dfma else NO if tensor < FP64 else MAYBE
    double = max(_least(fp64, FP64), matrix)
    return (
        min(resting, _below(gr, IDLE_BELOW), _below(dram, IDLE_BELOW), YES - io),
        min(_least(other, TENSOR_HEAVY), _least(sm, TENSOR_HEAVY_SM)),
        min(_least(other, TENSOR), _least(sm, TENSOR_SM)),
        min(double, _least(sm, FP64_SM)),
        min(io, _below(sm, IO_SM_BELOW)),
        min(_least(dram, MEMORY_BOUND), _below(sm, MEMORY_BOUND_SM_BELOW)),
        _least(sm, COMPUTE_HEAVY_SM),
        _least(sm, COMPUTE_ACTIVE_SM),
        _least(dram, MEMORY_ACTIVE),
        min(_least(gr, BUSY), _below(sm, BUSY_SM_BELOW)),
        min(_below(gr, LOW_BELOW), _below(sm, LOW_BELOW), _below(dram, LOW_BELOW)),
    )


@compiled
def classify(
    sm: Singles, tensor: Singles, dram: Singles, gr: Singles, util: Singles, fp64: Singles, dfma: Singles, tx: Singles,
    rx: Singles, copy: Singles, weights: Floats, published: bool, label: Bytes,
) -> None:  # fmt: skip
    """Fill `label` with the class of each reading: its place in CLASSES.

    `util` stands in for a `gr` that is missing. `published`: the rules as published: what is missing is 0, `copy`
    counts as copying, `dfma` does not count. Else `copy` does not count.
    """
    for i in range(label.shape[0]):
        s, x, d, f = float(sm[i]), float(tensor[i]), float(dram[i]), float(fp64[i])
        engine = float(gr[i]) if gr[i] == gr[i] else float(util[i])
        matrix, sent, received, copying = float(dfma[i]), float(tx[i]), float(rx[i]), 0.0
        if published:
            s, x, d, f, engine = _filled(s), _filled(x), _filled(d), _filled(f), _filled(engine)
            matrix, sent, received, copying = 0.0, _filled(sent), _filled(received), _filled(float(copy[i]))
        found = verdicts(
            s, x, d, engine, f, matrix, sent, received, copying, weights[0], weights[1], weights[2], weights[3]
        )
        place = RULE_COUNT
        place = _first(found[10], 10, place)  # the last rule first; unrolled, so that nothing is looked up
        place = _first(found[9], 9, place)
        place = _first(found[8], 8, place)
        place = _first(found[7], 7, place)
        place = _first(found[6], 6, place)
        place = _first(found[5], 5, place)
        place = _first(found[4], 4, place)
        place = _first(found[3], 3, place)
        place = _first(found[2], 2, place)
        place = _first(found[1], 1, place)
        label[i] = _first(found[0], 0, place)


@dataclass(frozen=True, slots=True)
class MinuteLabeller:
    """Labels the minutes of GPUs by their means, while samples are reduced (reduce.partition.Labeller)."""

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
        """Return for each of `size` minutes the place of its class in CLASSES."""
        return classify_arrays(means, size, self.settings)


def classify_arrays(values: Mapping[str, Singles], size: int, settings: WorkloadSettings) -> Bytes:
    """Return for each of `size` readings the place of its class in CLASSES.

    `values`: {counter: fractions 0..1, or bytes per second}; NaN, or a counter that is not there: nobody measured it.

    >>> [CLASSES[one] for one in classify_arrays({"sm_active": np.array([0.9], np.float32)}, 1, Settings())]
    ['unknown']
    """
    nothing = np.full(size, np.nan, np.float32)
    columns = (np.ascontiguousarray(values.get(name, nothing), np.float32) for name in COUNTERS)
    sm, tensor, dram, gr, util, fp64, dfma, tx, rx, copy = columns
    label = np.empty(size, np.uint8)
    weights = np.array(settings.weights)
    classify(sm, tensor, dram, gr, util, fp64, dfma, tx, rx, copy, weights, settings.published, label)
    return label
