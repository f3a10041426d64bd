"""Figures 8 and 9: imbalance by the pipes in use and by job type."""

from __future__ import annotations

from statistics import median
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl
import pytest
from study_of import study_of

from tachograph.annexes.lab.figures import spatial_imbalance_by_type, temporal_imbalance_by_type


def job(
    imbalance: float | None, pipes: list[str] | None = None, bound: str | None = None, **given: Any
) -> Any:
    return {
        "gpu_util_mean": 0.5,
        "spatial_imbalance": imbalance,
        "pipes": pipes,
        "bound": bound,
        **given,
    }


def group(values: list[float], pipes: list[str], bound: str | None = None) -> list[Any]:
    return [job(value, pipes, bound) for value in values]


EVEN = [0.01 * place for place in range(10)]
UNEVEN = [0.5 + 0.02 * place for place in range(11)]
STUDY = [
    *group(UNEVEN, ["tensor", "fp64"], "compute"),
    *group(EVEN, ["fp64"], "memory"),
    *group([0.9] * 6, ["fp32"], "memory"),
    *group([0.7, 0.7, 0.8], ["fp16"]),
    *group([0.95], []),
    job(0.3),
    job(None, ["fp64"], "compute"),
    job(0.3, ["fp64"], "compute", gpu_util_mean=None),
]


def test_groups_medians_and_sentences() -> None:
    numbers = spatial_imbalance_by_type.compute(study_of(*STUDY))
    rows = {row["group"]: row for row in numbers.tables["pipes"].to_dicts()}
    expected = {
        "FP64+T": UNEVEN,
        "FP64": EVEN,
        "FP32": [0.9] * 6,
        "FP16": [0.7, 0.7, 0.8],
        "none": [0.95],
    }
    assert {name: row["jobs"] for name, row in rows.items()} == {
        k: len(values) for k, values in expected.items()
    }
    assert list(rows) == ["FP64+T", "FP64", "FP32", "FP16", "none"]
    for name, values in expected.items():
        assert rows[name]["median"] == pytest.approx(median(values))
        assert numbers.facts[f"pipes_{name}_median"] == pytest.approx(median(values))
    types = {
        row["group"]: (row["jobs"], row["median"]) for row in numbers.tables["types"].to_dicts()
    }
    assert types == {
        "compute": (11, pytest.approx(median(UNEVEN))),
        "memory": (16, pytest.approx(median(EVEN + [0.9] * 6))),
    }
    assert (numbers.facts["jobs"], numbers.facts["pipes_jobs"], numbers.facts["types_jobs"]) == (
        32,
        31,
        27,
    )
    assert spatial_imbalance_by_type.sentences(numbers) == (
        (
            "Of 31 jobs with a spatial imbalance and measured pipes, the 11 jobs that use FP64 "
            "and tensor have the "
            "highest median spatial imbalance (0.60), the 10 jobs that use FP64 alone the "
            "lowest (0.04), of groups "
            "with at least 10 jobs."
        ),
        (
            "The median spatial imbalance is 0.60 for 11 compute-bound jobs and 0.08 for 16 "
            "memory-bound jobs "
            "(FP64 roofline)."
        ),
    )


def test_every_job_of_a_drawn_group_is_a_dot_of_its_strip() -> None:
    numbers = spatial_imbalance_by_type.compute(study_of(*STUDY))
    curves = numbers.tables["pipes_cumulative"]
    assert curves.filter(pl.col("group") == "FP16").rows() == [
        ("FP16", 0.7, pytest.approx(2 / 3)),
        ("FP16", 0.7, pytest.approx(2 / 3)),
        ("FP16", 0.8, 1.0),
    ]
    left, right = spatial_imbalance_by_type.draw(numbers).axes
    labels = [label.get_text() for label in left.get_yticklabels()]
    assert labels == ["FP64+T\nn = 11", "FP64\nn = 10", "FP32\nn = 6", "FP16\nn = 3", "none\nn = 1"]
    dots = [line for line in left.lines if line.get_marker() == "o" and line.get_alpha()]
    assert [len(np.asarray(line.get_xdata())) for line in dots] == [11, 10, 6, 3, 1]
    heights = np.asarray(dots[0].get_ydata())
    assert -0.5 < heights.min() < heights.max() < 0.3
    legend = right.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        "compute-bound (n = 11)",
        "memory-bound (n = 16)",
    ]


def test_order_of_pipes_does_not_matter() -> None:
    jobs = [job(0.1, ["fp64", "tensor"]), job(0.2, ["tensor", "fp64"])]
    rows = spatial_imbalance_by_type.compute(study_of(*jobs)).tables["pipes"]
    assert rows.select("group", "jobs").rows() == [("FP64+T", 2)]


def test_groups_beyond_the_eighth_are_counted() -> None:
    sets = [
        ["fp64"],
        ["fp32"],
        ["fp16"],
        ["tensor"],
        ["fp64", "fp32"],
        ["fp64", "fp16"],
        ["fp64", "tensor"],
    ]
    sets += [["fp32", "fp16", "tensor"], ["fp32", "fp16"]]
    jobs = [job(0.1, pipes) for place, pipes in enumerate(sets) for _ in range(10 - place)]
    numbers = spatial_imbalance_by_type.compute(study_of(*jobs, job(0.2, ["fp16", "tensor"])))
    assert numbers.tables["pipes"]["drawn"].to_list() == [True] * 8 + [False] * 2
    assert (numbers.facts["pipes_groups_not_drawn"], numbers.facts["pipes_jobs_not_drawn"]) == (
        2,
        3,
    )
    left, _ = spatial_imbalance_by_type.draw(numbers).axes
    assert left.get_ylabel() == "pipes in use (T: tensor)\n(not drawn: 3 jobs of other groups)"
    assert "FP32+FP16+T\nn = 3" in [label.get_text() for label in left.get_yticklabels()]


@pytest.mark.parametrize("figure", [spatial_imbalance_by_type, temporal_imbalance_by_type])
def test_no_jobs_and_nothing_measured(figure: ModuleType) -> None:
    assert figure.compute(study_of()).missing == {"pipes": "no jobs", "types": "no jobs"}
    unmeasured = figure.compute(study_of({"gpus": 4}))
    assert unmeasured.missing["types"] == "not measured: gpu_util (mean)"
    assert figure.sentences(unmeasured) == ()
    without_pipes = {"gpu_util_mean": 0.5, "spatial_imbalance": 0.1, "temporal_imbalance": 0.1}
    neither = figure.compute(study_of(without_pipes))
    assert not neither.tables
    assert neither.missing["types"] == "no job is known to be compute-bound or memory-bound"
    assert figure.sentences(neither) == ()
