"""Every column that a partition's reduction fills, from loops over the rows of each segment."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections import Counter as Counts
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from plain_reference import EDGES, LOWERING
from polars.testing import assert_frame_equal

from madelake import table_frame, utc
from tachograph.catalog.arrays import Bytes, Singles
from tachograph.catalog.config import AnalysisOptions
from tachograph.catalog.counters import COUNTERS, CounterKind
from tachograph.catalog.tables import GPU_KEY, GPU_SAMPLES, MINUTE_MEANS, PIPES, TIME
from tachograph.pipeline.accumulators import Accumulators, merge_segments
from tachograph.pipeline.minutes import PartitionMinutes
from tachograph.pipeline.partition import reduce_partition
from tachograph.pipeline.statistics import INTEGRATED, SQUARED

DAY = utc(3)
RIDGE = (8.0, math.nan, 0.5, 100.0)  # FLOP/B of each of PIPES
Row = dict[str, Any]
# distances of samples (s) on each GPU, and the sampling interval (s) of its rows
GPUS: Mapping[tuple[str, int, int | None], tuple[Sequence[float], Sequence[float]]] = {
    ("n1", 0, None): ([10] * 9 + [30, 10, 30.000001] + [10] * 20, [10]),
    ("n1", 1, None): ([10] * 14 + [60] * 16, [10, 60]),
    ("n2", 0, 1): ([20] * 8 + [50, 20], [20]),
    ("n2", 0, 2): ([1000, 1000, 2500], [1000]),
    ("n3", 0, None): ([], [math.nan]),
}
MEASURED = [counter for counter in COUNTERS if counter.name != "fp16_active"]
CHANGED = 14  # row of the second with which its other interval begins
HELD = (  # run, GPU, first and last second: the last is no more its own
    (1, 0, -5, 90), (3, 0, 95, 120), (2, 0, 120, 290.000001), (3, 0, 300, 321), (3, 0, 330, 350),
    (1, 1, 10, 1000), (2, 2, 0, 79), (4, 3, 0, 9000), (2, 4, 0, 10), (3, 4, 20, 30),
)  # fmt: skip
STARTS = {1: -5.0, 2: -50.0, 3: -70.0, 4: 0.0}


def value_of(name: str, unit: str, draw: random.Random, before: float | None) -> float | None:
    """A value of a counter, often equal to another, or at a border of what is counted."""
    if draw.random() < 0.2 and name != "gpu_util":
        return None
    choices: Mapping[str, Sequence[float]] = {
        "bitmask": (0, 1, 2, 0x10, 0x100, *LOWERING),
        "code": (0, 13, 13, 79),
        "flag": (0, 1),
        "fraction": (0, 0, 0.25, 0.5, 0.5, draw.random()),
        "W": (-3.0, 90.0, draw.random() * 300),
        "C": (-20.0, -7.0),
        "J": ((before or 0) + draw.random() * 99, 5.0),
        "count": ((before or 0) + draw.randrange(3), 1),
    }
    return draw.choice(choices.get(unit, (7.0, draw.random() * 1e6)))


def made(seed: int) -> pl.DataFrame:
    """Samples of GPUS: no FP16 pipe; no FP64 and memory pipe in most of a GPU's."""
    draw = random.Random(seed)
    rows: list[Row] = []
    for key, (distances, _) in GPUS.items():
        second = 0.0
        values: Row = {}
        for distance in (*distances, 0):
            values = {
                counter.name: value_of(counter.name, counter.unit, draw, values.get(counter.name))
                for counter in COUNTERS
            }
            values["fp16_active"] = None
            if key[1] == 0 and key[2] is None and second > 90:
                values |= {"fp64_active": None, "throttle_reasons": None, "xid": None}
            if key[1] == 1:
                values |= dict.fromkeys(PIPES.values())
            moment = DAY + timedelta(seconds=second)
            rows.append(dict(zip(GPU_KEY, key, strict=True)) | {"t": moment} | values)
            second += distance
    return table_frame("gpu_samples", rows)


def stretches(held: Iterable[tuple[int, int, float, float]]) -> pl.DataFrame:
    keys = list(GPUS)
    rows = [
        (run, *keys[gpu], DAY + timedelta(seconds=begin), DAY + timedelta(seconds=end))
        for run, gpu, begin, end in held
    ]
    schema = {"run": pl.Int32(), **{name: GPU_SAMPLES.schema[name] for name in GPU_KEY}}
    schema |= {"start": TIME, "end": TIME}
    return pl.DataFrame(rows, schema, orient="row").sort(*GPU_KEY, "start", nulls_last=False)


class Levels:
    """Labels 1 and 2 for minutes below half and others; 0 where nothing was measured."""

    labels = 3
    counters: Collection[str] = ("gpu_temp_c",)

    def __call__(self, means: Mapping[str, Singles], size: int) -> Bytes:
        level = means["gpu_temp_c"]
        return np.where(np.isnan(level), 0, np.where(level < -10, 1, 2)).astype(np.uint8)


def us(moment: datetime) -> int:
    return round((moment - DAY).total_seconds() * 1e6)


def statistics(rows: Sequence[Row], before: float | None, gap_s: float) -> Row:
    """All statistics of the counters of one segment."""
    found: Row = {}
    for counter in MEASURED:
        name = counter.name
        known = [(us(row["t"]), row[name]) for row in rows if row[name] is not None]
        values = [value for _, value in known]
        steps = [(b[0] - a[0], a[1], b[1]) for a, b in pairwise(known)]
        found[f"n_{name}"] = len(values)
        first, last = (known[0], known[-1]) if known else ((None, None), (None, None))
        borders = {"first": first[1], "last": last[1], "t_first": first[0], "t_last": last[0]}
        if counter.unit == "bitmask":
            found[f"lowered_{name}"] = sum(any(bit & value for bit in LOWERING) for value in values)
            found[f"bits_{name}"] = int(np.bitwise_or.reduce([0, *values]))
        elif counter.unit == "code":
            series = [value for value in (before, *values) if value is not None]
            new = [b for a, b in pairwise(series) if b not in (a, 0)]
            found |= {f"events_{name}": len(new), f"max_new_{name}": max(new, default=None)}
            found |= {f"max_{name}": max(values, default=None), f"first_{name}": first[1]}
            found[f"last_{name}"] = (series or [None])[-1]
        elif counter.kind is CounterKind.CUMULATIVE:
            found[f"grown_{name}"] = sum(max(b - a, 0) for _, a, b in steps)
            found[f"seconds_{name}"] = sum(step[0] for step in steps) * 1e-6
            found |= {f"{stem}_{name}": value for stem, value in borders.items()}
        else:
            found |= {f"sum_{name}": sum(values), f"max_{name}": max(values, default=None)}
            if name == "gpu_util":
                found["zeros_gpu_util"] = values.count(0)
            if name in SQUARED:
                found[f"square_{name}"] = sum(value * value for value in values)
            if name in INTEGRATED:
                near = [step for step in steps if step[0] <= gap_s * 1e6]
                found[f"area_{name}"] = sum((a + b) / 2 * d * 1e-6 for d, a, b in near)
                found[f"seconds_{name}"] = sum(d for d, _, _ in near) * 1e-6
                found |= {f"{stem}_{name}": value for stem, value in borders.items()}
    return found


def roofline(rows: Sequence[Row]) -> Row:
    """Samples by label, of the pipes that the segment has."""
    pipes = [pipe for pipe, name in PIPES.items() if any(row[name] is not None for row in rows)]
    names = [f"{label}_{pipe}" for label in ("compute", "memory") for pipe in PIPES]
    found = dict.fromkeys(("known", "idle", *names), 0)
    for row in rows:
        values = {pipe: row[PIPES[pipe]] for pipe in pipes}
        memory = row["dram_active"]
        if not pipes or None in (memory, *values.values()):
            continue
        found["known"] += 1
        found["idle"] += not any(values.values())
        for pipe, value in values.items() if any(values.values()) else ():
            found[f"compute_{pipe}"] += 0 < value >= memory
            found[f"memory_{pipe}"] += memory > value
    return found


def segments(frame: pl.DataFrame, held: Iterable[tuple[int, int, float, float]]) -> list[Row]:
    """The segments in order; `rows`: their samples."""
    found: list[Row] = []
    for place, (key, (_, intervals)) in enumerate(GPUS.items()):
        everything = [
            row for row in frame.rows(named=True) if tuple(row[k] for k in GPU_KEY) == key
        ]
        cut = CHANGED if len(intervals) > 1 else len(everything)
        for run, gpu, begin, end in held:
            for piece, interval_s in enumerate(intervals if gpu == place else ()):
                rows = [
                    (number, row)
                    for number, row in enumerate(everything)
                    if begin * 1e6 <= us(row["t"]) < end * 1e6 and (number >= cut) == (piece > 0)
                ]
                if not rows:
                    continue
                first = rows[0][0]
                before = everything[first - 1]["xid"] if first else None
                own = [row for _, row in rows]
                segment: Row = {"run": run, **dict(zip(GPU_KEY, key, strict=True)), "rows": own}
                segment |= {"samples": len(own), "interval_us": interval_s * 1e6}
                segment |= {"t_first": us(own[0]["t"]), "t_last": us(own[-1]["t"])}
                segment["steady_us"] = interval_s * 1e6 if len(everything) > 11 else None
                segment["sampled_us"] = len(own) * interval_s * 1e6
                segment["continues"] = bool(piece and found and found[-1]["run"] == run)
                segment["gap_us"] = None if math.isnan(interval_s) else interval_s * 3e6
                found.append(segment | statistics(own, before, interval_s * 3))
    return found


def compare(frame: pl.DataFrame, expected: Sequence[Row]) -> None:
    assert frame.height == len(expected)
    offset = us(DAY) - int(DAY.timestamp() * 1e6)
    for told, row in zip(frame.iter_rows(named=True), expected, strict=True):
        assert set(told) == set(row) - {"rows", "minutes"}
        for name, value in told.items():
            want = row[name]
            if name.startswith("t_") and value is not None:
                value += offset
            if isinstance(want, float):
                want = pytest.approx(want, rel=1e-9, abs=1e-9, nan_ok=True)
            assert value == want, (name, row["run"])


def reduced(
    frame: pl.DataFrame, intervals: pl.DataFrame, **given: Any
) -> tuple[Accumulators, PartitionMinutes]:
    starts = {run: DAY + timedelta(seconds=second) for run, second in STARTS.items()}
    ridges = dict.fromkeys([("n1", 0), ("n2", 0)], RIDGE)
    options = AnalysisOptions()
    return reduce_partition(
        frame, intervals, starts, ridges, analysis=options, day=DAY.date(), **given
    )


@pytest.mark.parametrize("seed", range(2))
def test_segments_are_those_of_plain_loops(seed: int) -> None:
    frame = made(seed)
    held = [(7, 0, 5, 40), (8, 0, 40, 41), (9, 2, 20, 60)]
    intervals = stretches(HELD)
    part, minutes = reduced(
        frame,
        intervals,
        labeller=Levels(),
        steps=stretches(held),
        handovers=stretches([(1, 0, 10, 30)]),
    )
    expected = segments(frame, HELD)
    for row in expected:
        row |= roofline(row["rows"]) | dict.fromkeys(("label_0", "label_1", "label_2"), 0)
        by_minute: dict[int, list[Row]] = defaultdict(list)
        for sample in row["rows"]:
            by_minute[(us(sample["t"]) - round(STARTS[row["run"]] * 1e6)) // 60_000_000].append(
                sample
            )
        row["minutes"] = by_minute
        for samples in by_minute.values():
            known = [one["gpu_temp_c"] for one in samples if one["gpu_temp_c"] is not None]
            label = 0 if not known else 1 if sum(known) / len(known) < -10 else 2
            row[f"label_{label}"] += len(samples)
    compare(part.segments, expected)
    compare(part.steps, segments(frame, held))
    assert (part.samples, part.handed_over) == (frame.height, 2)
    assert part.attributed == sum(row["samples"] for row in expected)
    assert part.gpu_seconds == pytest.approx(33 * 10 + 14 * 10 + 17 * 60 + 11 * 20 + 4 * 1000)
    sampled_us = [row["sampled_us"] for row in expected]
    assert part.gpu_seconds_attributed == pytest.approx(float(np.nansum(sampled_us)) / 1e6)
    of_minutes(minutes, expected)
    of_intensities(part, expected)
    # What a counter did between stretches of one day is not the run's.
    mine = {"run": 3, "node": "n1"}
    merged = merge_segments([part.segments, part.segments.clear()]).filter(**mine)
    apart = part.segments.filter(**mine).select("grown_energy_j", "seconds_energy_j").sum()
    assert_frame_equal(merged.select(apart.columns), apart)
    assert merge_segments([part.segments.clear()]).schema == part.segments.schema
    assert merge_segments([]).columns == ["run", *GPU_KEY]
    alone, _ = reduced(
        frame.drop("dram_active"), intervals, steps=stretches([]), handovers=stretches([])
    )
    assert (alone.steps.height, alone.handed_over, alone.intensities.height) == (0, 0, 0)
    assert not {"known", "label_0", "n_dram_active"} & set(alone.segments.columns)
    bare, _ = reduced(frame, intervals)
    assert (bare.steps.height, bare.handed_over) == (0, 0)


def of_minutes(minutes: PartitionMinutes, expected: Sequence[Row]) -> None:
    """Compare the minutes of all segments."""
    assert minutes.owner["run"].to_list() == [row["run"] for row in expected]
    slots = [(number, samples) for row in expected for number, samples in row["minutes"].items()]
    lengths = [len(row["minutes"]) for row in expected]
    assert minutes.begin.tolist() == [sum(lengths[:end]) for end in range(len(lengths) + 1)]
    assert set(minutes.values) == {*MINUTE_MEANS, "hbm_used_mib"} - {"fp16_active"}
    assert minutes.minute.tolist() == [number for number, _ in slots]
    assert minutes.samples.tolist() == [len(samples) for _, samples in slots]
    for name, column in minutes.values.items():
        for value, (_, samples) in zip(column.tolist(), slots, strict=True):
            known = [row[name] for row in samples if row[name] is not None]
            want = (
                sum(known) / max(len(known), 1) if name in MINUTE_MEANS else max(known, default=0)
            )
            assert value == pytest.approx(want if known else math.nan, rel=1e-6, nan_ok=True), name


def of_intensities(part: Accumulators, expected: Sequence[Row]) -> None:
    """Compare the histograms of arithmetic intensity."""
    bins: Counts[tuple[int, float | None, int]] = Counts()
    for row in expected:
        if (row["node"], row["gpu"]) not in (("n1", 0), ("n2", 0)):
            continue
        for sample in row["rows"]:
            for place, (name, ridge) in enumerate(zip(PIPES.values(), RIDGE, strict=True)):
                if sample[name] and sample["dram_active"] and ridge == ridge:
                    intensity = sample[name] / sample["dram_active"] * ridge
                    number = place * 32 + bisect_right(EDGES, intensity)
                    bins[row["run"], row["steady_us"], number] += 1
    told = {(run, steady, number): n for run, steady, number, n in part.intensities.iter_rows()}
    assert told == bins


@pytest.mark.parametrize("second", [15.0, 120.0, 150.0])
def test_a_run_cut_at_midnight_is_what_it_is_whole(second: float) -> None:
    """Between usual distances, in a gap that is bridged, and in one that is not."""
    begin = 86_400 - second
    frame = made(3).filter(pl.col("gpu") == 0, pl.col("node") != "n3")
    frame = frame.with_columns(pl.col("t") + timedelta(seconds=begin))
    held = [(run, gpu, begin, begin + 9000) for run, gpu in ((1, 0), (2, 2), (4, 3))]
    early = pl.col("t") < DAY + timedelta(days=1)
    days = [reduced(frame.filter(part), stretches(held))[0].segments for part in (~early, early)]
    expected = segments(frame, held)
    for row in expected:
        parts = [
            roofline([one for one in row["rows"] if (one["t"].date() == DAY.date()) == is_early])
            for is_early in (True, False)
        ]
        row |= {name: sum(part[name] for part in parts) for name in parts[0]}
        del row["steady_us"], row["sampled_us"]  # of few distances
    compare(merge_segments(days).drop("steady_us", "sampled_us"), expected)
