"""What is drawn on the page of kernels are the numbers of the JSON: each mark, each roof, each cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import pi
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nsight_reports import PUBLISHED, raw_csv
from tachograph.catalog.config import Configuration
from tachograph.figures import kernel_page
from tachograph.nsight.reports import read_reports
from tachograph.report.kernels_html import plots
from tachograph.report.kernels_json import kernels_json
from tachograph.report.kernels_sentences import RESOURCE_NAMES
from tachograph.sharing.kernel_facts import KernelsRequest
from tachograph.sharing.kernel_report import build_kernels_report

Values = dict[str, Any]


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Values, Mapping[str, Figure]]:
    """The JSON of a GPU, and the figures of its page as they are before they become SVG."""
    figures: dict[str, Figure] = {}

    def keep(figure: Figure, *, name: str, label: str) -> str:
        figures[name] = figure
        return "<svg/>"

    monkeypatch.setattr(kernel_page, "to_svg", keep)
    kernels = tuple(replace(made, ms=made.ms * (1 + place / 7)) for place, made in enumerate(PUBLISHED[1:]))
    file = tmp_path / "made.csv"
    file.write_text(raw_csv(kernels), encoding="utf-8")
    report = build_kernels_report(read_reports([file]), KernelsRequest(matrix=True), configuration=Configuration())
    (part,) = report.parts
    plots(part)
    gpu: Values = kernels_json(report)["gpus"][0]
    assert len(gpu["kernels"]) == 12  # each has a radar
    return gpu, figures


def across(line: Line2D) -> list[float]:
    """Where the points of a line are, from left to right or by angle."""
    return [float(value) for value in np.asarray(line.get_xdata(), float)]


def up(line: Line2D) -> list[float]:
    """How high, or how far from the middle, the points of a line are."""
    return [float(value) for value in np.asarray(line.get_ydata(), float)]


def along(axis: str, kernel: Values) -> float:
    """The value of an axis of the radars in JSON."""
    names = {name: key for key, name in RESOURCE_NAMES.items()}
    if axis == "DRAM":
        return float(kernel["demand"]["dram"])
    if axis in ("warps", "SMs"):
        return float(kernel["uses"]["occupancy"] if axis == "warps" else kernel["demand"]["sm_share"])
    return float(kernel["demand"]["cycles"][names[axis]])


def test_radars_show_the_values_of_the_json(drawn: tuple[Values, Mapping[str, Figure]]) -> None:
    gpu, figures = drawn
    dials = [dial for dial in figures["radar0"].axes if dial.get_title()]
    assert len(dials) == len(gpu["kernels"])
    for dial, kernel in zip(dials, gpu["kernels"], strict=True):
        assert dial.get_title().split()[0] == str(kernel["number"])
        names = [tick.get_text() for tick in dial.get_xticklabels()]
        assert {"issue", "FMA", "FP64", "LSU", "DRAM", "warps", "SMs"} <= set(names)
        (marks,) = [line for line in dial.lines if line.get_marker() == "o"]
        (outline,) = [line for line in dial.lines if line.get_marker() == "None"]
        wanted = [along(name, kernel) for name in names]
        assert across(marks) == pytest.approx([2 * pi * place / len(names) for place in range(len(names))])
        assert up(marks) == pytest.approx(wanted)
        assert up(outline) == pytest.approx([*wanted, wanted[0]])


def test_the_roofline_shows_the_values_of_the_json(drawn: tuple[Values, Mapping[str, Figure]]) -> None:
    gpu, figures = drawn
    (axes,) = figures["roofline0"].axes
    marks = {
        (across(line)[0], up(line)[0]): float(line.get_markersize()) for line in axes.lines if line.get_marker() == "o"
    }
    placed = [
        one for one in gpu["kernels"] if one["roofline"]["intensity"] and sum(one["roofline"]["achieved"].values())
    ]
    wanted = {
        (one["roofline"]["intensity"], sum(one["roofline"]["achieved"].values())): 4 + 16 * one["share"] ** 0.5
        for one in placed
    }
    assert len(wanted) > 8
    assert marks == pytest.approx(wanted)
    roofs = [line for line in axes.lines if line.get_marker() == "None"]
    slopes = [line for line in roofs if up(line)[0] != up(line)[1]]
    (slope,) = slopes
    bandwidth = np.array(up(slope)) / np.array(across(slope))
    assert bandwidth == pytest.approx(gpu["gpu"]["dram_bytes_per_s"])
    flat = {up(line)[0] for line in roofs if line is not slope}
    used = {kind for one in gpu["kernels"] for kind, rate in one["roofline"]["achieved"].items() if rate}
    peaks = [roof for one in gpu["kernels"] for roof in one["roofline"]["roofs"] if roof["name"] in used]
    assert sorted(flat) == pytest.approx(
        sorted(max(roof["peak"] for roof in peaks if roof["name"] == kind) for kind in used)
    )


def test_the_heat_map_shows_the_values_of_the_json(drawn: tuple[Values, Mapping[str, Figure]]) -> None:
    gpu, figures = drawn
    axes = figures["pairs0"].axes[0]
    rows = [int(tick.get_text().split()[-1]) for tick in axes.get_yticklabels()]
    columns = [int(tick.get_text()) for tick in axes.get_xticklabels()]
    shown = np.asarray(axes.images[0].get_array())
    written = {
        (round(text.get_position()[1]), round(text.get_position()[0])): float(text.get_text()) for text in axes.texts
    }
    assert len(gpu["pairs"]) == len(rows) * len(columns) == len(written)
    for pair in gpu["pairs"]:
        cell = rows.index(pair["row"]), columns.index(pair["column"])
        assert shown[cell] == pytest.approx(pair["slowdown"])
        assert written[cell] == pytest.approx(pair["slowdown"], rel=0.006)
