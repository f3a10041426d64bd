"""Classes of many readings without a compiler: the same as compiled, as one by one, and as plain
Python has them.
"""

from __future__ import annotations

import math
import re
from dataclasses import fields

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from tachograph.annexes.watch.explained import explained
from tachograph.catalog.arrays import Floats
from tachograph.judge.health import (
    CLOCKS_LOWERED,
    XID_CRITICAL,
    XID_MEANINGS,
    XID_OFTEN_THE_PROGRAM,
)
from tachograph.judge.workload.arrays import MinuteLabeller, classify_rows
from tachograph.judge.workload.classes import UNKNOWN, WORKLOAD_CLASSES
from tachograph.judge.workload.rules import GpuReading, classify
from tachograph.judge.workload.settings import PRESETS, Weights, WorkloadSettings

NAMES = tuple(field.name for field in fields(GpuReading))
EDGES = [0.0, 0.01, 0.05, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0]


def single(value: float) -> float:
    """As the lake keeps it, so that all forms see the same."""
    return float(np.float32(value))


FRACTIONS = st.one_of(
    st.none(),
    st.sampled_from(EDGES).map(single),
    st.sampled_from(EDGES).map(lambda edge: single(max(0.0, edge - 1e-6))),
    st.floats(0, 1, width=32),
)
BYTES = st.one_of(
    st.none(), st.sampled_from([0.0, 9.9e8, 1e9, 3e10]).map(single), st.floats(0, 4e9, width=32)
)
READINGS = st.builds(
    GpuReading, **{name: BYTES if "bytes" in name else FRACTIONS for name in NAMES}
)
WEIGHTS = st.one_of(
    st.sampled_from([*PRESETS.values(), (1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0)]),
    st.tuples(*[st.integers(0, 9)] * 4)
    .filter(any)
    .map(
        lambda given: (
            given[0] / sum(given),
            given[1] / sum(given),
            given[2] / sum(given),
            given[3] / sum(given),
        )
    ),
)


def columns(readings: list[GpuReading]) -> dict[str, Floats]:
    return {
        name: np.array(
            [math.nan if (v := getattr(r, name)) is None else v for r in readings], np.float64
        )
        for name in NAMES
    }


@given(st.lists(READINGS, min_size=1, max_size=40), WEIGHTS, st.booleans())
def test_rows_are_what_minutes_of_single_precision_get(
    readings: list[GpuReading], weights: Weights, published: bool
) -> None:
    how, values = WorkloadSettings(weights, published=published), columns(readings)
    minutes = {name: each.astype(np.float32) for name, each in values.items()}
    compiled = MinuteLabeller(how)(minutes, len(readings))
    rows = classify_rows(values, len(readings), how)
    assert rows.labels.tolist() == compiled.tolist()
    assert [classify(reading, how).name for reading in readings] == [
        WORKLOAD_CLASSES[place] for place in compiled
    ]
    if published:
        assert UNKNOWN not in {WORKLOAD_CLASSES[place] for place in rows.labels}
        assert not np.isnan(rows.real).any()


def test_counters_that_nobody_tells_may_be_left_out() -> None:
    found = classify_rows({}, 3)
    assert [WORKLOAD_CLASSES[place] for place in found.labels] == [UNKNOWN] * 3
    assert np.isnan(found.real).all()
    assert classify_rows({}, 0).labels.shape == (0,)


COMPARED = re.compile(r"^[\w /]+? ([\d.<]+)( %| [kMGTP]?B/s) (>=|<) ([\d.]+)( %| [kMGTP]?B/s)$")


@given(READINGS, st.booleans())
@example(GpuReading(sm_active=0.1484375), True)  # written with two digits it is the threshold, 15 %
def test_the_explanation_of_a_class_is_true(reading: GpuReading, published: bool) -> None:
    """Every comparison in the text holds as printed; an unknown class names all it needs."""
    how = WorkloadSettings(published=published)
    found, reported = classify(reading, how), explained(reading, how)
    if found.name == UNKNOWN:
        named = found.label.removeprefix("unknown (needs ").removesuffix(")")
        assert f"is undetermined: {named} " in reported
        return
    if found.name == WORKLOAD_CLASSES[11]:
        assert reported == "no other rule holds"
        return
    for part in reported.split(", "):
        match = COMPARED.match(part)
        assert match, part
        value, threshold = (_number(match[i], match[i + 1]) for i in (1, 4))
        assert (value >= threshold) if match[3] == ">=" else (value < threshold), reported


def _number(digits: str, unit: str) -> float:
    prefix = unit.strip().removesuffix("B/s") if "B/s" in unit else ""
    return (
        float(digits.lstrip("<"))
        * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}[prefix]
    )


def test_an_explanation_says_what_is_seen() -> None:
    solver = GpuReading(0.9, 0.6, 0.2, 0.9, None, 0.0, 0.55, 0.0, 0.0)
    assert explained(solver) == "FP64 TENSOR 55 % >= 20 %, SM 90 % >= 50 %"
    loading = GpuReading(0.1, 0.0, 0.2, 0.5, None, 0.0, None, 1e6, 2.5e9)
    assert explained(loading) == "PCIe RX 2.50 GB/s >= 1.00 GB/s, SM 10 % < 30 %"
    near = GpuReading(0.5999, 0.55, 0.2, 0.9, None, 0.0, None, 0.0, 0.0)
    assert explained(near) == "TENSOR 55 % >= 15 %, SM 60 % >= 40 %"
    just = GpuReading(0.2999, 0.0, 0.2, 0.9, None, 0.0, None, 2e9, 0.0)
    assert explained(just) == "PCIe TX 2.00 GB/s >= 1.00 GB/s, SM 29.99 % < 30 %"
    assert explained(GpuReading(0.01, 0, 0, 0.01, None, 0, None, 0, 0)).startswith(
        "real 0.45 % < 5 %, GR 1 % < 5 %"
    )
    streaming = GpuReading(0.9, 0.0, 0.704, 0.9, None, 0.0, None, 0.0, 0.0, None, 0.703, 0.1)
    assert explained(streaming) == (
        "DRAM 70 % >= 50 %, SM 90 % >= 50 %, FP32 beside DRAM 70.3 % < 70.4 %"
    )
    launches = GpuReading(0.0004, 0, 0, 0.39, None, 0, None, 0, 0)
    assert explained(launches) == "GR without SM 39 % >= 15 %, SM 0.04 % < 25 %"
    copying = GpuReading(0.1, 0, 0.2, 0.5, None, 0, None, 0, 0, 0.7)
    assert (
        explained(copying, WorkloadSettings(published=True))
        == "MEMCPY 70 % >= 40 %, SM 10 % < 30 %"
    )


def test_codes_of_the_driver() -> None:
    from tachograph.pipeline.partition import LOWERING_BITS

    assert sum(CLOCKS_LOWERED) == LOWERING_BITS
    assert set(XID_MEANINGS) == XID_CRITICAL | XID_OFTEN_THE_PROGRAM
    assert not XID_CRITICAL & XID_OFTEN_THE_PROGRAM
