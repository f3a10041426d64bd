"""Figure 12: the published type beside the limiter."""

from __future__ import annotations

from typing import Any

import pytest
from study_of import study_of

from tachograph.annexes.lab.figures import bounds as figure
from tachograph.annexes.lab.figures.numbers import StudyOptions

JOBS: list[dict[str, Any]] = [
    *(
        {"bound": "memory", "limiter": limiter, "gpu_hours": 2.0}
        for limiter in ("memory", "neither", "neither")
    ),
    {"bound": "compute", "limiter": "nvlink", "gpu_hours": 4.0},
    {"bound": "memory", "limiter": None, "gpu_hours": 100.0},
    {"bound": None, "limiter": "pcie", "gpu_hours": 100.0},
]


def test_both_rules_are_of_the_same_jobs() -> None:
    numbers = figure.compute(study_of(*JOBS))
    assert numbers.tables["both"].rows() == [
        ("compute", "nvlink", 1, 4.0),
        ("memory", "memory", 1, 2.0),
        ("memory", "neither", 2, 4.0),
    ]
    shares = {(row["rule"], row["kind"]): row for row in numbers.tables["shares"].to_dicts()}
    assert {key: row["jobs_share"] for key, row in shares.items()} == {
        ("bound", "compute"): 0.25,
        ("bound", "memory"): 0.75,
        ("limiter", "memory"): 0.25,
        ("limiter", "neither"): 0.5,
        ("limiter", "nvlink"): 0.25,
    }
    assert shares["limiter", "nvlink"]["gpu_hours_share"] == pytest.approx(0.4)
    assert figure.sentences(numbers) == (
        (
            "Of 4 jobs, 75.0 % are memory-bound by the FP64 roofline as published. The "
            "limiter, of the busiest pipe, "
            "memory and links, is memory in 25.0 %, NVLink in 25.0 %, none of them in 50.0 %."
        ),
        "In 66.7 % of the memory-bound jobs memory is not the limiter.",
    )
    (axes,) = figure.draw(numbers).axes
    assert axes.get_title() == "n = 4 jobs"
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == [
        f"{what}: {rule}" for what in ("jobs", "GPU-hours") for rule in ("FP64 roofline", "limiter")
    ]


def test_hours_that_are_not_known_are_not_drawn() -> None:
    jobs = [{"bound_tensor": "memory", "limiter": "memory", "gpu_hours": None}]
    numbers = figure.compute(study_of(*jobs, options=StudyOptions(pipe="tensor")))
    (axes,) = figure.draw(numbers).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "jobs: tensor roofline",
        "jobs: limiter",
    ]
    assert len(figure.sentences(numbers)) == 1


@pytest.mark.parametrize(
    ("jobs", "why"),
    [
        ([], "no jobs"),
        ([{"bound": "memory"}], "not measured: limiter"),
        ([{"bound": "memory"}, {"limiter": "memory"}], "no job has both a type and a limiter"),
    ],
)
def test_nothing_to_draw(jobs: list[dict[str, str]], why: str) -> None:
    numbers = figure.compute(study_of(*jobs))
    assert numbers.missing == {"both": why, "shares": why}
    assert figure.sentences(numbers) == ()
