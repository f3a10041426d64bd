"""Jobs whose GPUs have different sampling intervals, or pieces of them: by time, not by sample.

The expected values are computed in plain Python from the samples and the intervals that they were
made with.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pytest

from in_memory import outcome
from madelake import held, job, utc
from tachograph.catalog.config import AnalysisOptions, Configuration
from tachograph.catalog.tables import TIME
from tachograph.pipeline.windows import (
    BORDER_WINDOWS,
    COMPLETE_WINDOWS,
    IMBALANCE,
    UNITS,
    Windows,
    fold_windows,
)

START = utc(3, 8)
Values = dict[str, float]


@dataclass(frozen=True, slots=True)
class Sampled:
    """A sample, and for how many seconds it stands."""

    row: dict[str, Any]
    seconds: float


def sampled(
    gpu: int,
    pieces: Sequence[tuple[float, float, float]],
    values: Callable[[float], Values],
    *,
    node: str = "n1",
    start: datetime = START,
) -> list[Sampled]:
    """Return samples of a GPU in pieces (begin, end, interval), all in s from the start.

    A sample stands for its interval, the last of a piece at most for the time to its end.
    """
    samples = []
    for begin, end, every in pieces:
        for number in range(math.ceil((end - begin) / every)):
            at = begin + number * every
            row = {"node": node, "gpu": gpu, "t": start + timedelta(seconds=at), **values(at)}
            samples.append(Sampled(row, min(every, end - at)))
    return samples


def share_of_time(samples: Iterable[Sampled], where: Callable[[dict[str, Any]], bool]) -> float:
    """Return the share of the sampled time of some samples."""
    samples = list(samples)
    return math.fsum(one.seconds for one in samples if where(one.row)) / math.fsum(
        one.seconds for one in samples
    )


def mean_of_gpus(gpus: Iterable[Sequence[Sampled]], name: str) -> float:
    """Return the mean over GPUs of the means over time."""
    means = [
        math.fsum(one.seconds * one.row[name] for one in of_gpu)
        / math.fsum(one.seconds for one in of_gpu)
        for of_gpu in gpus
    ]
    return math.fsum(means) / len(means)


def job_of(
    gpus: Sequence[Sequence[Sampled]], seconds: float, analysis: AnalysisOptions | None = None
) -> dict[str, Any]:
    """Return the summary of a job that held the GPUs of n1 for so long."""
    end = START + timedelta(seconds=seconds)
    return outcome(
        [one.row for of_gpu in gpus for one in of_gpu],
        [job("1", START, end, gpus=len(gpus))],
        held("1", "n1", range(len(gpus))),
        devices=[{"node": "n1", "gpu": gpu, "model": "H100-SXM5-80GB"} for gpu in range(len(gpus))],
        configuration=Configuration(analysis=analysis or AnalysisOptions()),
    ).jobs["1"]


def work(at: float) -> Values:
    """Busy in three minutes of four, at levels that change with time."""
    level = 0.2 + 0.6 * (at % 600) / 600 if at % 240 < 180 else 0.0
    return {
        "gpu_util": level,
        "fp64_active": level / 2,
        "dram_active": 0.3 if level else 0.0,
        "throttle_reasons": 0x20 if at % 300 < 150 else 0,
        "power_w": 100 + 400 * level,
    }


def idle(_: float) -> Values:
    return dict.fromkeys(("gpu_util", "fp64_active", "dram_active"), 0.0) | {
        "throttle_reasons": 0,
        "power_w": 70.0,
    }


HOURS_S = 4 * 3600.0


@pytest.mark.parametrize("intervals_s", [(10, 60), (60, 10), (1, 30), (10, 15), (10, 20, 60)])
def test_each_gpu_counts_by_its_time(intervals_s: tuple[float, ...]) -> None:
    gpus = [
        sampled(gpu, [(0, HOURS_S, every)], idle if gpu == 0 else work)
        for gpu, every in enumerate(intervals_s)
    ]
    every_sample = [one for of_gpu in gpus for one in of_gpu]
    row = job_of(gpus, HOURS_S)
    near = pytest.approx
    assert row["samples"] == len(every_sample)
    assert row["coverage"] == near(1.0, abs=1e-3)
    is_zero = share_of_time(every_sample, lambda one: one["gpu_util"] == 0)
    assert row["zero_util_fraction"] == near(is_zero, abs=1e-3)
    assert row["idle_fraction"] == near(is_zero, abs=1e-3)
    working = [one for one in every_sample if one.row["fp64_active"] > 0]
    bound = share_of_time(working, lambda one: one["fp64_active"] >= one["dram_active"])
    assert row["compute_fraction"] == near(bound, abs=1e-3)
    assert row["memory_fraction"] == near(1 - bound, abs=1e-3)
    for name in ("gpu_util", "fp64_active", "dram_active"):
        assert row[f"{name}_mean"] == near(mean_of_gpus(gpus, name), rel=1e-3)
    assert row["power_w_sampled_mean"] == near(mean_of_gpus(gpus, "power_w"), rel=1e-3)
    squares = math.fsum(one.seconds * one.row["fp64_active"] ** 2 for one in every_sample)
    total = math.fsum(one.seconds * one.row["fp64_active"] for one in every_sample)
    assert row["main_pipe_at_work"] == near(squares / total, rel=1e-3)
    assert row["work_fraction"] == near(at_work(gpus, "fp64_active"), rel=1e-3)


def at_work(gpus: Iterable[Sequence[Sampled]], name: str) -> float:
    """Return the share of time at work: of each GPU, weighted by its work."""
    shares, weights = [], []
    for of_gpu in gpus:
        seconds = math.fsum(one.seconds for one in of_gpu)
        total = math.fsum(one.seconds * one.row[name] for one in of_gpu)
        square = math.fsum(one.seconds * one.row[name] ** 2 for one in of_gpu)
        if square:
            shares.append(total * total**2 / (seconds * square))
            weights.append(total)
    return math.fsum(shares) / math.fsum(weights)


def test_labels_and_histograms_count_by_time() -> None:
    """Two GPUs at work all the time, one bound by arithmetic and one by memory."""
    compute = {"gpu_util": 1.0, "fp64_active": 0.8, "dram_active": 0.1}
    memory = {"gpu_util": 1.0, "fp64_active": 0.1, "dram_active": 0.8}
    gpus = [
        sampled(0, [(0, HOURS_S, 10)], lambda _: compute),
        sampled(1, [(0, HOURS_S, 60)], lambda _: memory),
    ]
    row = job_of(gpus, HOURS_S, AnalysisOptions())
    assert row["compute_fraction"] == pytest.approx(0.5, abs=1e-3)
    counted = [number for number in row["intensity_histogram"] if number]
    assert counted == [pytest.approx(len(gpus[0] + gpus[1]) / 2, rel=1e-3)] * 2


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("start", [START, utc(3, 23, 40, 30)])
@pytest.mark.parametrize("window_s", [60, 300])
def test_even_load_is_even(nodes: int, start: datetime, window_s: int) -> None:
    """Two GPUs that are equally busy, sampled every 10 s and every minute: no imbalance."""
    places = [("n1", 0), ("n1", 1) if nodes == 1 else ("n2", 0)]
    rows = [
        one.row
        for (node, gpu), every in zip(places, (10, 60), strict=True)
        for one in sampled(
            gpu, [(0, 3600, every)], lambda _: {"gpu_util": 0.5}, node=node, start=start
        )
    ]
    row = outcome(
        rows,
        [job("1", start, start + timedelta(hours=1), gpus=2, nodes=nodes)],
        [allocation for node, gpu in places for allocation in held("1", node, (gpu,))],
        configuration=Configuration(analysis=AnalysisOptions(window_s=window_s)),
    ).jobs["1"]
    assert row["spatial_imbalance"] == pytest.approx(0.0, abs=1e-6)


def random_pieces(source: random.Random, seconds: float) -> list[tuple[float, float, float]]:
    """Pieces of a GPU's time: its usual interval, denser samples for 2 s to 10 min, gaps.

    Twelve samples or more show the usual interval between them, six that it is there again.
    """
    usual = source.choice([10.0, 15.0, 30.0, 60.0])
    pieces, at = [], 0.0
    while at < seconds:
        end = min(at + source.uniform(12, 60) * usual, seconds)
        if source.random() < 0.9 and end - at > 5 * usual:
            pieces.append((at, end, usual))
        at = end
        kind = source.random()
        if kind < 0.7:
            end = min(at + source.choice([2.0, 5.0, 20.0, 45.0, 75.0, 600.0]), seconds)
            pieces.append((at, end, source.choice([1.0, 2.0])))
            at = end
    return pieces


@pytest.mark.parametrize("seed", range(30))
def test_coverage_of_random_pieces(seed: int) -> None:
    source = random.Random(seed)
    seconds = source.uniform(3, 9) * 3600
    gpus = [
        sampled(gpu, random_pieces(source, seconds), idle if gpu else work)
        for gpu in range(source.randint(1, 3))
    ]
    expected = math.fsum(one.seconds for of_gpu in gpus for one in of_gpu)
    row = job_of(gpus, seconds)
    assert row["coverage"] == pytest.approx(expected / (len(gpus) * seconds), abs=0.01)
    for name in ("gpu_util", "power_w_sampled"):
        counter = name.removesuffix("_sampled")
        assert row[f"{name}_mean"] == pytest.approx(
            mean_of_gpus(gpus, counter), rel=0.02, abs=0.005
        )


def test_few_denser_samples_stand_for_little() -> None:
    """After each five minutes come six samples a second apart; an hour and a half is missing."""
    cycles = [306 * number for number in range(60) if not 20 <= number < 38]
    pieces = [
        piece
        for begin in cycles
        for piece in ((begin, begin + 300, 10), (begin + 300, begin + 306, 1))
    ]
    row = job_of([sampled(0, pieces, work)], 306 * 60)
    assert row["coverage"] == pytest.approx(42 / 60, abs=0.005)


def test_windows_of_several_partitions_are_added_in_one_unit() -> None:
    """Equally busy GPUs on two nodes, every 10 s and every minute; the third has few samples."""
    parts = []
    for unit_us, total in ((10e6, 3.0), (60e6, 0.5), (None, 3.0)):
        complete = {"run": 1, "counter": "gpu_util", "window": 0, "total": total, "most": total}
        parts.append(
            Windows(
                pl.DataFrame([complete], schema=COMPLETE_WINDOWS),
                pl.DataFrame(schema=BORDER_WINDOWS),
                pl.DataFrame(schema=IMBALANCE),
                pl.DataFrame([{"run": 1, "unit_us": unit_us}], schema=UNITS),
            )
        )
    folded, _ = fold_windows(
        parts,
        pl.DataFrame(schema=BORDER_WINDOWS),
        pl.DataFrame({"run": [1], "start": [START]}, schema={"run": pl.Int32, "start": TIME}),
        analysis=AnalysisOptions(),
        day=START.date(),
        last=True,
    )
    assert folded["even_gpus"].to_list() == [3.0]


def at_times(gpu: int, seconds: Iterable[float]) -> list[dict[str, Any]]:
    return [
        {"node": "n1", "gpu": gpu, "t": START + timedelta(seconds=at), "gpu_util": 0.5}
        for at in seconds
    ]


GAP = [*range(0, 100, 10), *range(600, 700, 10)]
JITTER = [10.05 * number - 0.25 * (number % 2) for number in range(120)]  # 9.8, 10.3, 9.8, ...


@pytest.mark.parametrize(
    ("gpus", "elapsed_s", "intervals_s", "coverage"),
    [
        pytest.param([GAP], 1200, [10.0], 20 / 120, id="a gap is no interval"),
        pytest.param([JITTER], 1206, [10.05], 1.0, id="jitter moves no interval"),
        pytest.param(
            [range(0, 1200, 10), [600]], 1200, [10.0, 10.0], 121 / 240, id="as the other GPU"
        ),
        pytest.param(
            [range(0, 1200, 10), [0, 400, 800]], 1200, [10.0, 10.0], 123 / 240, id="few distances"
        ),
        pytest.param([[600]], 1200, [None], None, id="one sample shows none"),
        pytest.param([[0, 400, 800]], 1200, [400.0], 1.0, id="its own where there is no other"),
    ],
)
def test_the_interval_of_a_gpu(
    gpus: Sequence[Iterable[float]],
    elapsed_s: float,
    intervals_s: Sequence[float | None],
    coverage: float | None,
) -> None:
    found = outcome(
        [row for gpu, seconds in enumerate(gpus) for row in at_times(gpu, seconds)],
        [job("1", START, START + timedelta(seconds=elapsed_s), gpus=len(gpus))],
        held("1", "n1", range(len(gpus))),
    )
    row = found.jobs["1"]
    of_gpus = [found.gpus["1", "n1", gpu, None]["interval_s"] for gpu in range(len(gpus))]
    assert of_gpus == pytest.approx(intervals_s, abs=0.005)
    assert row["interval_s"] == pytest.approx(intervals_s[0], abs=0.005)
    assert row["coverage"] == pytest.approx(coverage, abs=1e-3)
