"""What follows from the answers: each sentence where its condition holds, and none where it does
not.
"""

from __future__ import annotations

from typing import Any

import pytest
from study_of import study_of

from tachograph.annexes.lab.figures.consequences import CONSEQUENCES, consequence
from tachograph.annexes.lab.figures.registry import FIGURES, QUESTIONS, load_figure


def follows(question: str, *jobs: dict[str, Any]) -> str | None:
    study = study_of(*jobs)
    return consequence(
        question, {entry.name: load_figure(entry).compute(study) for entry in FIGURES}
    )


def pipes(used: list[str], number: int) -> list[dict[str, Any]]:
    row = {"gpu_util_mean": 0.5, "fp64_active_mean": 0.1, "tensor_active_mean": 0.1, "pipes": used}
    return [row] * number


def peak(fraction: float, gib: float) -> dict[str, Any]:
    return {"hbm_peak_fraction": fraction, "hbm_mib": gib * 1024}


def test_every_question_has_one_and_nothing_follows_from_nothing() -> None:
    assert set(CONSEQUENCES) == set(QUESTIONS)
    for question, (name, _) in CONSEQUENCES.items():
        assert next(entry.question for entry in FIGURES if entry.name == name) == question
        assert follows(question) is None
        assert follows(question, {"gpus": 4}) is None
        assert consequence(question, {}) is None


def test_pipes_that_are_left_unused() -> None:
    assert follows("RQ1", *pipes(["fp64"], 8), *pipes(["fp64", "tensor"], 2)) == (
        "80.0 % of the jobs leave the tensor pipe unused: look there for matrix products."
    )
    assert (
        follows("RQ1", *pipes(["tensor"], 1))
        == "100 % use no FP64, and GPUs without a fast FP64 pipe would serve them."
    )
    assert follows("RQ1", *pipes(["fp64", "tensor"], 19), *pipes([], 1)) is None


def test_jobs_that_would_fit_on_smaller_gpus() -> None:
    jobs = [peak(0.4, 80), peak(0.46, 80), peak(0.99, 80), peak(1.0, 40)]
    assert follows("RQ2", *jobs) == (
        "Of these jobs, 1 (33.3 %) would fit on the GPUs with 40 GiB, which this system has, "
        "with 10 % to spare; "
        "peaks between samples are not seen."
    )
    assert "none would fit" in str(follows("RQ2", *jobs[1:]))
    alone = follows("RQ2", peak(0.4, 80), peak(0.9, 80))
    assert alone == (
        "Of these jobs, 50.0 % would fit in half of that memory; peaks between samples are "
        "not seen."
    )
    assert follows("RQ2", peak(0.9, 80)) is None


@pytest.mark.parametrize(
    ("limiters", "expected"),
    [
        (
            ["memory", "memory", "neither"],
            "Memory limits 66.7 % of the jobs, more than anything else: ",
        ),
        (["compute"], "Arithmetic limits 100 % of the jobs, more than anything else: "),
        (
            ["neither", "neither", "pcie"],
            "In 66.7 % of the jobs no pipe, memory or link came near its peak: ",
        ),
        (["pcie"], "Traffic over PCIe limits 100 % of the jobs"),
    ],
)
def test_what_limits_most_jobs(limiters: list[str], expected: str) -> None:
    assert str(
        follows("RQ3", *({"bound": "memory", "limiter": one} for one in limiters))
    ).startswith(expected)


def spread(imbalance: float, unused: int) -> dict[str, Any]:
    held = {
        "gpus": 4,
        "gpus_seen": 4,
        "gpus_never_used": unused,
        "gpu_hours_never_used": 1.0 * unused,
    }
    return {"gpu_util_mean": 0.2, "spatial_imbalance": imbalance, **held}


def test_gpus_beside_the_only_one_used() -> None:
    assert follows("RQ4", spread(0.75, 3), spread(0.1, 0)) == (
        "1 job held 3 GPU-hours of GPUs beside the only one they used: requests of one GPU "
        "would free them."
    )
    assert str(follows("RQ4", spread(0.74, 2), spread(0.1, 0))).startswith(
        "1 job (50.0 %) over 0.70: "
    )
    assert str(follows("RQ4", spread(0.1, 0))).startswith(
        "No job is over 0.70, and none used only one"
    )


def test_gpus_far_below_their_own_peak() -> None:
    jobs = [{"gpu_util_mean": 0.5, "temporal_imbalance": value} for value in (0.71, 0.3)]
    assert str(follows("RQ5", *jobs)).startswith(
        "1 job (50.0 %) over 0.70: on average one of their GPUs works at under 30 %"
    )
    assert str(follows("RQ5", jobs[1])).startswith(
        "No job is over 0.70: on average every GPU that worked"
    )


def test_whether_utilisation_shows_arithmetic() -> None:
    jobs = [{"gpu_util_mean": place / 10, "fp64_active_mean": place / 20} for place in range(1, 6)]
    assert follows("RQ6", *jobs) == (
        "Utilisation ranks jobs much as FP64 activity (1.00) does, so it shows which jobs "
        "compute most."
    )
    mixed = [
        {**job, "fp64_active_mean": value}
        for job, value in zip(jobs, (0.3, 0.1, 0.2, 0.5, 0.1), strict=True)
    ]
    assert str(follows("RQ6", *mixed)).startswith(
        "Utilisation does not rank jobs as the activity of the only pipe"
    )
    assert (
        follows(
            "RQ6",
            *(
                {"gpu_util_mean": job["gpu_util_mean"], "power_w_mean": 1.0 + at}
                for at, job in enumerate(jobs)
            ),
        )
        is None
    )
