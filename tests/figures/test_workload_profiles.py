"""Radar plots of workload classes: numbers recomputed in plain Python, gaps where nothing was
measured.
"""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from study_of import study_of

from tachograph.annexes.lab.figures import workload_profiles
from tachograph.annexes.lab.figures.registry import FIGURES, find_figure
from tachograph.judge.workload.classes import AXES, WORKLOAD_CLASSES

MEANS = (
    "sm_active_mean", "tensor_active_mean", "dram_active_mean", "gr_engine_active_mean", "gpu_util_mean",
    "pcie_tx_bytes_per_s_mean", "pcie_rx_bytes_per_s_mean", "fp64_active_mean", "tensor_dfma_active_mean",
)  # fmt: skip


def population(number: int, *, missing: float = 0.2, without: str = "") -> list[dict[str, Any]]:
    draw = random.Random(number)
    rows: list[dict[str, Any]] = []
    for _ in range(number):
        row: dict[str, Any] = {
            "gpu_hours": draw.random() * 10,
            "workload": draw.choice(WORKLOAD_CLASSES),
        }
        for name in MEANS:
            if name != without and draw.random() >= missing:
                row[name] = draw.random() * (4e9 if "bytes" in name else 1)
        rows.append(row)
    return rows


def plain(row: dict[str, Any]) -> dict[str, float | None]:
    pcie = [value for name in MEANS[5:7] if (value := row.get(name)) is not None]
    fp64 = [value for name in MEANS[7:] if (value := row.get(name)) is not None]
    return {
        "sm": row.get(MEANS[0]),
        "tensor": row.get(MEANS[1]),
        "dram": row.get(MEANS[2]),
        "gr": row.get(MEANS[4]) if row.get(MEANS[3]) is None else row[MEANS[3]],
        "io": min(1.0, max(pcie) / 2.5e9) if pcie else None,
        "fp64": None if row.get(MEANS[7]) is None else max(fp64),
    }


def test_profiles_as_plain_python_has_them() -> None:
    jobs = population(60)
    numbers = workload_profiles.compute(study_of(*jobs, {"workload": None}))
    profiles = numbers.tables["profiles"].to_dicts()
    assert [row["workload"] for row in profiles] == [
        name for name in WORKLOAD_CLASSES if any(job["workload"] == name for job in jobs)
    ]
    for row in profiles:
        of_class = [job for job in jobs if job["workload"] == row["workload"]]
        assert row["jobs"] == len(of_class)
        assert row["gpu_hours"] == pytest.approx(math.fsum(job["gpu_hours"] for job in of_class))
        for axis in AXES:
            values = [value for job in of_class if (value := plain(job)[axis]) is not None]
            mean = math.fsum(values) / len(values) if values else None
            assert row[axis] == (None if mean is None else pytest.approx(mean))
    assert (numbers.facts["jobs"], numbers.jobs) == (60, 61)


def sides(figure: Figure, panel: int = 0) -> list[tuple[list[float], list[float]]]:
    """Sides of the polygon of a panel: (angles, values); ranges of rules have one angle."""
    lines = [np.asarray(line.get_data()) for line in figure.axes[panel].get_lines()]
    return [
        (list(points[0]), list(points[1]))
        for points in lines
        if points.shape[1] == 2 and points[0][0] != points[0][1]
    ]


def test_a_missing_axis_is_a_gap() -> None:
    numbers = workload_profiles.compute(
        study_of(*population(1, missing=0, without="fp64_active_mean"))
    )
    assert numbers.missing == {"fp64": "not measured: fp64_active or tensor_dfma_active"}
    assert workload_profiles.sentences(numbers) == ("FP64 was not measured in all: a gap, not 0.",)
    figure = workload_profiles.draw(numbers)
    assert len(sides(figure)) == 4  # of six: the two beside the gap are missing
    assert not any(0.0 in values for _, values in sides(figure))
    assert not figure.axes[0].patches
    assert "no data" in figure.axes[0].get_xticklabels()[5].get_text()


def test_what_is_drawn_are_the_numbers() -> None:
    numbers = workload_profiles.compute(study_of(*population(40, missing=0)))
    figure = workload_profiles.draw(numbers)
    profiles = numbers.tables["profiles"]
    assert sum(panel.axison for panel in figure.axes) == profiles.height > 8
    for panel, profile in enumerate(profiles.iter_rows(named=True)):
        values = [values[0] for _, values in sides(figure, panel)]
        assert values == pytest.approx([profile[axis] for axis in AXES])
        assert len(figure.axes[panel].patches) == 1


def test_it_is_drawn_if_it_is_named() -> None:
    assert find_figure("14").name == "workload_profiles"
    assert find_figure("workload_profiles") not in FIGURES
    nothing = workload_profiles.compute(study_of({"workload": None}))
    assert nothing.missing == {"profiles": "not measured: workload"}
