"""Every figure of small made-up studies: its numbers, reasons and sentences, and what is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import polars as pl
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import Rectangle
from study_of import study_of
from syrupy.assertion import SnapshotAssertion

from tachograph.annexes.lab.figures.numbers import FigureNumbers, Study, StudyOptions
from tachograph.annexes.lab.figures.registry import find_figure, load_figure

Job = dict[str, Any]
A100 = "A100 SXM 80GB"
PIPES = ("fp64", "fp32", "fp16", "tensor")
KWH = 3.6e6
FIGURE_OF = {
    "bands": "spatial_imbalance",
    "steadiness": "temporal_imbalance",
    "combinations": "pipe_combinations",
    "groups": "spatial_imbalance_by_type",
    "intensity": "arithmetic_intensity",
    "limits": "bounds",
    "links": "correlation",
    "maps": "utilisation_heatmaps",
    "memory": "hbm_peak",
    "sizes": "job_overview",
    "windows": "window_lengths",
}


def rows(names: str, *values: Sequence[Any]) -> list[Job]:
    """Jobs, each given by the values of the named columns."""
    return [dict(zip(names.split(), row, strict=True)) for row in values]


def histogram(**pipes: dict[int, int]) -> list[int]:
    """Return 4 x 32 counts from {pipe: {bin: samples}}."""
    counts = [0] * 128
    for pipe, bins in pipes.items():
        for place, samples in bins.items():
            counts[PIPES.index(pipe) * 32 + place] = samples
    return counts


def uses(*used: str, util: float | None = None, without: str = "") -> Job:
    """A job that uses some pipes; the one it is `without` was not measured."""
    means = {f"{pipe}_active_mean": 0.1 * (pipe in used) for pipe in PIPES if pipe != without}
    return means | {"pipes": list(used), "gpu_util_mean": util}


def energy(hours: float, kwh: float | None, bound: str | None = None, gpus: int = 4) -> Job:
    """A job of four GPUs, of so many of which the energy is known."""
    joule = None if kwh is None else kwh * KWH
    return {"gpu_hours": hours, "energy_j": joule, "energy_gpus": gpus, "bound": bound}


def group(values: Iterable[float], pipes: Sequence[str], bound: str | None = None) -> list[Job]:
    names = "gpu_util_mean spatial_imbalance pipes bound"
    return rows(names, *((0.5, value, list(pipes), bound) for value in values))


def over_windows(values: dict[int, list[float | None]]) -> Study:
    """A study of jobs in three bands, with these imbalances over windows of so many seconds."""
    utils = (0.1, 0.2, 0.9, None)
    study = study_of(*rows("gpu_util_mean spatial_imbalance", *((util, 0.1) for util in utils)))
    windows = [
        study.jobs.select("job_key").with_columns(
            window_s=pl.lit(length), spatial_imbalance=pl.Series(found, dtype=pl.Float64)
        )
        for length, found in values.items()
    ]
    return replace(study, windows=pl.concat(windows))


INTENSE: list[Job] = [
    {
        "gpu_model": A100,
        "hbm_mib": 81920.0,
        "bound": "memory",
        "samples": 20,
        "idle_fraction": 0.5,
        "intensity_histogram": histogram(fp64={0: 1, 16: 5, 19: 3}, fp32={31: 2}),
        "memory_fraction": 0.75,
        "fp64_active_mean": 0.2,
        "fp32_active_mean": 0.2,
        "fp16_active_mean": 0.0,
    },
    {
        "gpu_model": A100,
        "hbm_mib": 81920.0,
        "bound": "compute",
        "samples": 30,
        "idle_fraction": 0.0,
        "intensity_histogram": histogram(fp64={20: 1}),
        "memory_fraction": 0.25,
        "bound_fp32": "memory",
    },
    {"gpu_model": f"{A100}+B200", "intensity_histogram": histogram(fp64={1: 7})},
    {"gpu_model": "X-1", "samples": 10, "idle_fraction": 1.0, "memory_fraction": 0.5},
]
LIMITED = rows(
    "bound limiter gpu_hours",
    ("memory", "memory", 2.0),
    ("memory", "neither", 2.0),
    ("memory", "neither", 2.0),
    ("compute", "nvlink", 4.0),
    ("memory", None, 100.0),
    (None, "pcie", 100.0),
)
CORRELATED = rows(
    "gpu_util_mean power_w_mean pcie_tx_bytes_per_s_mean pcie_rx_bytes_per_s_mean "
    "tensor_active_mean mem_temp_c_mean",
    (0.1, 100.0, 9.0, 5.0, 0.0, 50.0),
    (0.2, 150.0, 8.0, 6.0, 0.0, 60.0),
    (0.2, 200.0, 8.0, 7.0, 0.0, None),
    (0.9, 400.0, 1.0, 1.0, 0.0, None),
    (0.5, 120.0, None, 2.0, 0.0, None),
    (None, 300.0, None, None, 0.0, None),
)
# some with energy, some without; one whose energy is known for three of four GPUs
ENERGIES = [
    energy(1.0, 0.2, "memory"),
    energy(2.0, 0.4, "memory"),
    energy(3.0, 0.9, "memory"),
    energy(1000.0, 100.0, "compute"),
    energy(0.5, 0.1),
    energy(9.0, 1.0, "memory", gpus=3),
    energy(0.0, 1.0, "memory"),
    energy(9.0, None, "memory"),
    energy(1.0, 0.0, "memory"),
]
# borders of the shares among them; the last four did not request the large memory, or left no peak
PEAKS = rows(
    "hbm_peak_fraction hbm_mib hbm_request",
    *(
        (peak, 81920.0, "80g")
        for peak in (0.05, 0.19, 0.20, 0.31, 0.4999, 0.50, 0.50, 0.79, 0.80, 1.0)
    ),
    (0.99, 40960.0, "40g"),
    (0.99, 40960.0, None),
    (0.99, 81920.0, None),
    (None, 81920.0, "80g"),
)
GROUPS = [
    *group([0.5 + 0.02 * place for place in range(11)], ["tensor", "fp64"], "compute"),
    *group([0.01 * place for place in range(10)], ["fp64"], "memory"),
    *group([0.9] * 6, ["fp32"], "memory"),
    *group([0.7, 0.7, 0.8], ["fp16"]),
    *group([0.95], []),
    {"gpu_util_mean": 0.5, "spatial_imbalance": 0.3},
    {"gpu_util_mean": 0.5, "pipes": ["fp64"], "bound": "compute"},
    {"spatial_imbalance": 0.3, "pipes": ["fp64"], "bound": "compute"},
]
# ten sets of pipes, the first in both orders; the ninth and the tenth are not drawn
SETS = [
    ("fp64",),
    ("fp32",),
    ("fp16",),
    ("tensor",),
    ("fp64", "fp32"),
    ("fp64", "fp16"),
    ("tensor", "fp64"),
    ("fp32", "fp16", "tensor"),
    ("fp32", "fp16"),
    ("fp16", "tensor"),
]
SIZED = rows(
    "gpus elapsed_s gpu_util_mean",
    *((4, 3600.0 * hours, hours / 25) for hours in range(1, 13)),
    *((1, 1800.0 * half, 1 - half / 40) for half in range(1, 11)),
    (2, 7200.0, None),
    (16, 86400.0, 0.9),
    (17, 0.0, 0.1),
)
BANDED = rows(
    "gpu_util_mean spatial_imbalance",
    (0.1, 0.75),
    (0.2, 0.1),
    (0.30, 0.2),
    (0.70, 0.4),
    (0.9, 0.05),
    (0.95, None),
    (None, 0.5),
)
# of four GPUs one is used; all; three of four seen; none; a single one; nothing known; two
USED = rows(
    "gpu_util_mean spatial_imbalance gpus gpus_seen gpus_never_used",
    (0.5, 0.5, 4, 4, 3),
    (0.5, 0.5, 4, 4, 0),
    (0.5, 0.5, 4, 3, 2),
    (0.5, None, 4, 4, 4),
    (0.5, None, 1, 1, 0),
    (0.5, 0.5, 4, None, None),
    (0.5, 0.5, 4, 4, 2),
)
STEADY = rows(
    "gpu_util_mean temporal_imbalance gpus",
    (0.1, 0.6, 1),
    (0.29, 0.3, 1),
    (0.5, 0.29, 1),
    (0.71, 0.1, 1),
    (0.9, 0.2, 1),
    (0.0, None, 1),
)
MAPPED = "gpu_util_mean fp64_active_mean dram_active_mean bound"
MAPS = rows(
    MAPPED,
    (0.9, 0.50, 0.10, "compute"),
    (0.7, 0.52, 0.12, "compute"),
    (0.2, 0.06, 0.05, "compute"),
    (0.4, 0.00, 0.80, "memory"),
    (0.6, 0.03, 0.40, "memory"),
    (0.6, 0.03, 0.40, "memory"),
    (0.1, 0.02, 0.01, "memory"),
    (None, 0.1, 0.1, "memory"),
    (0.5, 0.1, 0.1, None),
    (0.5, None, 0.1, "memory"),
)
BY_TENSOR = {
    "gpu_util_mean": 0.5,
    "tensor_active_mean": 0.3,
    "fp64_active_mean": 0.1,
    "dram_active_mean": 0.2,
    "bound": "memory",
    "bound_tensor": "compute",
}
WINDOWS: dict[int, list[float | None]] = {
    60: [0.1, 0.2, 0.3, 0.9],
    300: [0.75, None, 0.3, 0.9],
    1800: [0.8, 0.9, 0.72, 0.9],
}
TENSOR, FP32 = StudyOptions(pipe="tensor"), StudyOptions(pipe="fp32")
EVERY_SET = [used for count in range(5) for used in combinations(PIPES, count)]
STUDIES: dict[str, Study] = {
    "bands": study_of(*BANDED),
    "bands of GPUs not used": study_of(*USED),
    "combinations": study_of(
        *(uses("fp64", util=util) for util in (0.2, 0.4, None)),
        *(uses("fp64", "tensor", util=util) for util in (0.5, 0.9)),
        *[uses("fp32", "fp16", util=1.0)] * 2,
        uses(util=0.05),
        {"gpu_util_mean": 0.7},
        uses("fp64", without="tensor"),
    ),
    "combinations without a pipe": study_of(
        uses("fp64", without="tensor"), uses("fp64", "fp32", without="tensor")
    ),
    "combinations that are rare": study_of(
        *(uses(*used, util=0.5) for place, used in enumerate(EVERY_SET) for _ in range(place + 1))
    ),
    "combinations of one job": study_of(uses("fp16", util=0.3)),
    "energy": study_of(*ENERGIES),
    "energy of one type": study_of(energy(3.0, 0.9, "memory"), energy(0.1, 0.03, "memory")),
    "groups": study_of(*GROUPS),
    "groups beyond the eighth": study_of(
        *(job for place, used in enumerate(SETS) for job in group([0.1] * (10 - place), used)),
        *group([0.1], ["fp64", "tensor"]),
    ),
    "intensity": study_of(*INTENSE),
    "intensity by FP32": study_of(*INTENSE, options=FP32),
    "intensity of an unknown model": study_of(
        {"gpu_model": "X-1", "intensity_histogram": histogram(fp64={0: 1})}
    ),
    "limits": study_of(*LIMITED),
    "limits without hours": study_of(
        {"bound_tensor": "memory", "limiter": "memory", "gpu_hours": None}, options=TENSOR
    ),
    "links": study_of(*CORRELATED),
    "maps": study_of(*MAPS),
    "maps by tensor": study_of(BY_TENSOR, options=TENSOR),
    "memory": study_of(*PEAKS),
    "sizes": study_of(*SIZED),
    "sizes in part": study_of({"gpus": 3}, {"gpus": 7, "elapsed_s": 0.0}, {"gpus": 0}),
    "steadiness": study_of(*STEADY),
    "windows": over_windows(WINDOWS),
}


def written(values: Iterable[Any]) -> str:
    """Values in a line; numbers to nine digits: the last ones differ between machines."""
    return " | ".join(
        f"{value:.9g}" if isinstance(value, float) else str(value) for value in values
    )


def texts(things: Iterable[Any]) -> str:
    return written(repr(thing.get_text()) for thing in things)


def drawn(axes: Axes) -> Iterator[str]:
    """What an axes shows: words, limits, heights of bars, sums of lines and maps."""
    legend, lines = axes.get_legend(), [np.asarray(line.get_data(), float) for line in axes.lines]
    segments = [
        part.get_segments() for part in axes.collections if isinstance(part, LineCollection)
    ]
    lines += [np.concatenate(ends).T for ends in segments if ends]
    maps = [part.get_array() for part in (*axes.collections, *axes.images)]
    bars = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
    yield f"axes: {written((axes.axison, axes.get_yscale(), axes.get_title()))}"
    yield f"labels: {written((axes.get_xlabel(), axes.get_ylabel()))}"
    yield f"limits: {written(float(end) for end in (*axes.get_xlim(), *axes.get_ylim()))}"
    yield f"x: {texts(axes.get_xticklabels())}"
    yield f"y: {texts(axes.get_yticklabels())}"
    yield f"texts: {texts(axes.texts)}"
    yield f"legend: {texts(legend.get_texts() if legend else ())}"
    boxes = [f"{bar.get_x():.6g}+{bar.get_width():.6g}, {bar.get_height():.6g}" for bar in bars]
    yield f"bars: {written(boxes)}"
    yield f"lines: {written(f'{len(xs)} ({xs.sum():.6g}, {ys.sum():.6g})' for xs, ys in lines)}"
    sums = [np.nansum(np.ma.filled(part, np.nan)) for part in maps if part is not None]
    yield f"maps: {written(float(total) for total in sums)}"


def described(name: str, numbers: FigureNumbers) -> Iterator[str]:
    """Everything that a figure computes, says and draws; of tables, rows that count something."""
    module = load_figure(find_figure(name))
    yield from (f"{fact}: {written([value])}" for fact, value in numbers.facts.items())
    for part, table in numbers.tables.items():
        counts = [column for column in ("jobs", "samples") if column in table.columns]
        filled = table.filter(pl.all_horizontal(pl.col(counts) > 0)) if counts else table
        yield f"{part}, {table.height} rows: {written(table.columns)}"
        yield from map(written, filled.iter_rows())
    yield from (f"not drawn: {part}: {why}" for part, why in numbers.missing.items())
    yield from module.sentences(numbers)
    figure = module.draw(numbers)
    for axes in figure.axes:
        yield from drawn(axes)
    yield from (f"legend: {texts(legend.get_texts())}" for legend in figure.legends)
    yield f"notes: {figure.get_supxlabel()!r}"


@pytest.mark.parametrize("case", STUDIES)
def test_what_a_figure_says_and_draws(case: str, snapshot: SnapshotAssertion) -> None:
    name = FIGURE_OF.get(case.split()[0], case.split()[0])
    numbers = load_figure(find_figure(name)).compute(STUDIES[case])
    assert "\n".join(described(name, numbers)) == snapshot


THREE = (0.1, 0.2, 0.3)
UNMEASURED = {"gpu_util_mean": 0.5}
ALONE = {"gpu_util_mean": 0.5, "spatial_imbalance": 0.1, "temporal_imbalance": 0.1}
BOTH = "gpu_util_mean power_w_mean"
NO_TYPE = "no job is known to be compute-bound or memory-bound"
NO_UTIL = "not measured: gpu_util (mean)"
REQUESTED = {"hbm_mib": 81920.0, "hbm_request": "80g"}
NOTHING: list[tuple[str, list[Job], str]] = [
    ("1", [{"gpus": 0}], "not measured: gpus"),
    ("2", [UNMEASURED], "not measured: pipes"),
    (
        "2",
        [uses("fp64", without="tensor"), uses("tensor", without="fp64")],
        "no job measured all of the pipes",
    ),
    ("3", [REQUESTED], "not measured: hbm_peak_fraction"),
    (
        "3",
        [REQUESTED, {"hbm_peak_fraction": 0.5, "hbm_mib": 40960.0}],
        "the peak of no job with a large memory is known",
    ),
    ("4", [{"gpu_model": A100}], "device peaks not known, or no pipe measured with dram_active"),
    (
        "4",
        [{"gpu_model": A100, "intensity_histogram": histogram()}],
        "no sample with an arithmetic intensity",
    ),
    ("5", [energy(1.0, None)], "not measured: energy_j"),
    ("5", [energy(0.0, 1.0)], "no job with GPU-hours and the energy of all its GPUs"),
    ("6", [{"spatial_imbalance": 0.5}], NO_UTIL),
    ("6", [{"gpu_util_mean": 0.5, "gpus": 1}], "no job has more than one GPU"),
    ("6", [{"gpu_util_mean": 0.0, "gpus": 4}], "no GPU was ever active"),
    (
        "6",
        [{"gpu_util_mean": 0.0, "gpus": 4}, {"spatial_imbalance": 0.5}],
        "no GPU was ever active",
    ),
    ("7", [{"gpu_util_mean": 0.0, "gpus": 1}], "no GPU was ever active"),
    *((number, [{"gpus": 4}], NO_UTIL) for number in ("8", "9")),
    *((number, [ALONE], NO_TYPE) for number in ("8", "9")),
    (
        "10",
        [{"gpu_util_mean": 0.5, "dram_active_mean": 0.5}],
        "not measured: fp64_active (mean), bound",
    ),
    (
        "10",
        [UNMEASURED, *rows(MAPPED, (None, 0.1, 0.1, "memory"))],
        "no job has all of a type, utilisation and activity",
    ),
    ("11", rows(BOTH, (0.5, 1.0), (0.6, 2.0)), "fewer than 3 jobs"),
    ("11", rows(BOTH, *((None, power) for power in THREE)), NO_UTIL),
    ("11", rows(BOTH, *((0.5, power) for power in THREE)), "utilisation is the same in all jobs"),
    (
        "11",
        rows(BOTH, *zip((0.5, 0.6, None), THREE, strict=True)),
        "utilisation measured in fewer than 3 jobs",
    ),
    (
        "11",
        rows(BOTH, *((util, 1.0) for util in THREE)),
        "no other counter that differs between jobs",
    ),
    ("12", [{"bound": "memory"}], "not measured: limiter"),
    ("12", [{"bound": "memory"}, {"limiter": "memory"}], "no job has both a type and a limiter"),
    ("13", [ALONE], "minutes of jobs were not read"),
    *((str(number), [], "no jobs") for number in range(1, 15)),
]


@pytest.mark.parametrize(("number", "jobs", "why"), NOTHING)
def test_why_nothing_is_drawn(number: str, jobs: list[Job], why: str) -> None:
    figure = load_figure(find_figure(number))
    numbers = figure.compute(study_of(*jobs))
    assert not numbers.tables
    assert why in numbers.missing.values()
    assert figure.sentences(numbers) == ()


def test_windows_of_every_length_are_needed() -> None:
    study = over_windows({60: [0.1, None, None, None], 300: [None, 0.1, 0.1, 0.1]})
    missing = load_figure(find_figure("13")).compute(study).missing
    assert set(missing.values()) == {"no job has an imbalance over windows of every length"}


@pytest.mark.parametrize(
    ("jobs", "population", "selected"),
    [
        ([(40, "40g"), (80, "80g")], "requested", [1]),
        ([(40, None), (80, "80g")], "requested", [1]),
        ([(None, "40g"), (None, "80g")], "requested", [1]),
        ([(79.6, "80g"), (79.6, None)], "requested", [0]),  # one capacity, and it was requested
        ([(40, None), (80, "80g"), (140.4, None)], "requested", [1]),
        ([(40, "40g"), (80, None)], "largest_capacity", [1]),  # the small memory was requested
        ([(40, None), (79.6, None), (80, None)], "largest_capacity", [1, 2]),
        ([(140.4, None), (144, None), (94, None)], "largest_capacity", [0, 1]),
        ([(79.6, None), (80, None), (None, None)], "all", [0, 1, 2]),
        ([(None, None), (None, "large")], "all", [0, 1]),
    ],
)
def test_who_has_a_large_memory(
    jobs: list[tuple[float | None, str | None]], population: str, selected: list[int]
) -> None:
    peaks = [0.1 * (place + 1) for place in range(len(jobs))]
    made = [
        {"hbm_peak_fraction": peak, "hbm_mib": gib and gib * 1024.0, "hbm_request": request}
        for peak, (gib, request) in zip(peaks, jobs, strict=True)
    ]
    numbers = load_figure(find_figure("hbm_peak")).compute(study_of(*made))
    assert numbers.facts["population"] == population
    values = numbers.tables["cumulative"].get_column("value").to_list()
    assert values == [peaks[place] for place in selected]


@pytest.mark.parametrize(
    ("figure", "most", "top"),
    [
        *(
            ("spatial_imbalance", most, top)
            for most, top in ((0.0, 0.1), (0.1, 0.1), (0.11, 0.2), (0.45, 0.5), (0.51, 1.0))
        ),
        ("spatial_imbalance", -1e-16, 0.1),  # rounding may take an imbalance below zero
        *(
            ("utilisation_heatmaps", most, top)
            for most, top in (
                (0.98, 1.0),
                (0.61, 0.8),
                (0.6, 0.6),
                (0.012, 0.015),
                (0.0007, 0.0008),
            )
        ),
    ],
)
def test_axes_end_at_a_round_number(figure: str, most: float, top: float) -> None:
    names = f"{MAPPED} spatial_imbalance"
    module = load_figure(find_figure(figure))
    study = study_of(
        *rows(names, (0.5, most, 0.1, "compute", most), (0.5, 0.0, 0.1, "compute", 0.0))
    )
    left, right, *_ = module.draw(module.compute(study)).axes
    assert (left.get_xlim()[1], *right.get_xlim()) == pytest.approx((top, 0, top))
