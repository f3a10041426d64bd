"""Radar plots: their numbers recomputed in plain Python, gaps where nothing was measured, files,
options.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from matplotlib.figure import Figure

from tachograph.annexes.lab.figures import radar
from tachograph.annexes.lab.radar import build_radar, radar_json, write_radar
from tachograph.catalog.errors import UsageError
from tachograph.catalog.tables import JOB_SUMMARIES
from tachograph.judge.workload.classes import AXES, WORKLOAD_CLASSES

MEANS = (
    "sm_active_mean", "tensor_active_mean", "dram_active_mean", "gr_engine_active_mean", "gpu_util_mean",
    "pcie_tx_bytes_per_s_mean", "pcie_rx_bytes_per_s_mean", "fp64_active_mean", "tensor_dfma_active_mean",
)  # fmt: skip


def made(number: int, *, missing: float = 0.2, without: tuple[str, ...] = ()) -> pl.DataFrame:
    draw = random.Random(number)
    rows: list[dict[str, Any]] = []
    for place in range(number):
        row: dict[str, Any] = {
            "job_key": f"c:{place}:0",
            "job_id": str(place),
            "user": draw.choice(["ann", "bob", None]),
        }
        row |= {
            "gpu_hours": draw.random() * 10,
            "workload": draw.choice(WORKLOAD_CLASSES),
            "samples": 9,
            "partition": "gpu",
        }
        for name in MEANS:
            if name not in without and draw.random() >= missing:
                row[name] = draw.random() * (4e9 if "bytes" in name else 1)
        rows.append(row)
    schema = {name: dtype for name, dtype in JOB_SUMMARIES.schema.items() if name != "seq"}
    return pl.DataFrame(
        [{name: row.get(name) for name in schema} for row in rows], schema=schema, orient="row"
    )


def plain(row: dict[str, Any]) -> dict[str, float | None]:
    pcie = [value for name in MEANS[5:7] if (value := row[name]) is not None]
    fp64 = [value for name in MEANS[7:] if (value := row[name]) is not None]
    return {
        "sm": row[MEANS[0]],
        "tensor": row[MEANS[1]],
        "dram": row[MEANS[2]],
        "gr": row[MEANS[4]] if row[MEANS[3]] is None else row[MEANS[3]],
        "io": min(1.0, max(pcie) / 2.5e9) if pcie else None,
        "fp64": None if row[MEANS[7]] is None else max(fp64),
    }


@pytest.mark.parametrize("by", ["job", "user", "workload", "all"])
def test_profiles_as_plain_python_has_them(by: str) -> None:
    jobs = made(60)
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in jobs.iter_rows(named=True):
        name = {"job": row["job_id"], "all": "all"}.get(by, row.get(by) or "not known")
        groups.setdefault(name, []).append(row)
    found = radar.compute(jobs, by=by).tables["profiles"].to_dicts()
    assert {row["name"] for row in found} == set(groups)
    hours = [row["gpu_hours"] for row in found]
    assert hours == sorted(hours, reverse=True)
    for row in found:
        mine = groups[row["name"]]
        assert row["jobs"] == len(mine)
        assert row["gpu_hours"] == pytest.approx(math.fsum(one["gpu_hours"] for one in mine))
        for axis in AXES:
            known = [value for one in mine if (value := plain(one)[axis]) is not None]
            assert row[axis] == (pytest.approx(math.fsum(known) / len(known)) if known else None)


def lines(figure: Figure, panel: int = 0) -> list[tuple[list[float], list[float]]]:
    """Sides of the polygons of a panel: (angles, values)."""
    drawn = [np.asarray(line.get_data()) for line in figure.axes[panel].get_lines()]
    return [(list(points[0]), list(points[1])) for points in drawn if points.shape[1] == 2]


def test_a_missing_axis_is_a_gap() -> None:
    jobs = made(1, missing=0, without=("fp64_active_mean",))
    numbers = radar.compute(jobs)
    assert numbers.missing == {"fp64": "not measured: fp64_active or tensor_dfma_active"}
    assert radar.sentences(numbers) == ("FP64 was not measured in all: a gap, not 0.",)
    figure = radar.draw(numbers)
    sides = lines(figure)
    assert len(sides) == 4  # of six: the two beside the gap are missing
    assert not any(0.0 in values for _, values in sides)
    assert not figure.axes[0].patches
    assert "no data" in figure.axes[0].get_xticklabels()[5].get_text()
    whole = radar.draw(radar.compute(made(1, missing=0)))
    assert (len(lines(whole)), len(whole.axes[0].patches)) == (6, 1)


def test_what_is_drawn_are_the_numbers() -> None:
    numbers = radar.compute(made(3, missing=0))
    figure = radar.draw(numbers)
    for panel, profile in enumerate(numbers.tables["profiles"].iter_rows(named=True)):
        drawn = [values[0] for _, values in lines(figure, panel)]
        assert drawn == pytest.approx([profile[axis] for axis in AXES])
    many = radar.compute(made(60))
    assert many.facts["panels"] == 48
    assert radar.sentences(many)[0] == "The grid shows 48 of 60: those with most GPU-hours."


def test_each_class_has_a_plot() -> None:
    numbers = radar.nominal()
    assert numbers.tables["profiles"].get_column("name").to_list() == list(WORKLOAD_CLASSES[:-1])
    assert sum(panel.axison for panel in radar.draw(numbers).axes) == 12


def test_nothing_and_nonsense() -> None:
    numbers = radar.compute(made(0))
    assert (numbers.tables, numbers.missing) == ({}, {"profiles": "no jobs"})
    with pytest.raises(UsageError, match="no groups by 'usr'"):
        radar.compute(made(1), by="usr")


@pytest.mark.slow
def test_files_hold_the_same_numbers_and_the_same_bytes(tmp_path: Path) -> None:
    report = build_radar(made(4), by="user", chosen=[("user", "ann")])
    files = write_radar(report, tmp_path / "a", formats=["svg"])
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == list(files)
    written = json.loads((tmp_path / "a" / "radar.json").read_text(encoding="utf-8"))
    assert written == json.loads(json.dumps(radar_json(report, files)))
    table = pl.read_csv(tmp_path / "a" / "radar.profiles.csv", schema_overrides={"name": pl.String})
    for row, other in zip(table.to_dicts(), written["profiles"], strict=True):
        assert all(row[axis] == pytest.approx(other[axis]) for axis in AXES)
    tables = report.classes.tables
    # Twelve take seconds.
    few = replace(report.classes, tables={**tables, "profiles": tables["profiles"].head(1)})
    write_radar(replace(report, classes=few), tmp_path / "b", formats=["svg"])
    for name in ("radar_grid.svg", "radar.profiles.csv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
