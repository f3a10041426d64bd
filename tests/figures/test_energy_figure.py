from __future__ import annotations

from typing import Any

import pytest
from study_of import study_of

from tachograph.annexes.lab.figures import energy as figure

KWH = 3.6e6


def job(
    hours: float | None, kwh: float | None, bound: str | None = None, **others: Any
) -> dict[str, Any]:
    """Return a job of 4 GPUs, all of whose energy is known."""
    joule = None if kwh is None else kwh * KWH
    return {"gpu_hours": hours, "energy_j": joule, "energy_gpus": 4, "bound": bound} | others


JOBS = (
    job(1.0, 0.2, "memory"),
    job(2.0, 0.4, "memory"),
    job(3.0, 0.9, "memory"),
    job(1000.0, 100.0, "compute"),
    job(0.5, 0.1),
    job(9.0, 1.0, "memory", energy_gpus=3),  # energy of one GPU not known
    job(0.0, 1.0, "memory"),
    job(9.0, None, "memory"),
)


def test_bins_totals_and_what_is_left_out() -> None:
    numbers = figure.compute(study_of(*JOBS))
    found = {
        (row["type"], row["bin"]): (row["jobs"], row["low_gpu_hours"], row["high_gpu_hours"])
        for row in numbers.tables["boxes"].to_dicts()
    }
    assert found == {
        ("memory", 0): (3, 1.0, pytest.approx(10**0.5)),
        ("compute", 6): (1, 1000.0, pytest.approx(10**3.5)),
        ("unknown", -1): (1, pytest.approx(10**-0.5), 1.0),
    }
    memory = numbers.tables["boxes"].to_dicts()[1]
    assert (memory["median"], memory["q1"], memory["q3"]) == pytest.approx((0.4, 0.3, 0.65))
    totals = {row["type"]: row for row in numbers.tables["totals"].to_dicts()}
    assert (totals["memory"]["jobs_share"], totals["compute"]["jobs_share"]) == (0.75, 0.25)
    assert totals["memory"]["energy_kwh_share"] == pytest.approx(1.5 / 101.5)
    assert totals["compute"]["gpu_hours_share"] == pytest.approx(1000 / 1006)
    assert totals["unknown"]["jobs"] == 1
    assert totals["unknown"]["jobs_share"] is None
    facts = numbers.facts
    assert (facts["jobs"], facts["typed_jobs"]) == (5, 4)
    left_out = ("energy_unknown_jobs", "energy_partly_known_jobs", "nothing_used_jobs")
    assert [facts[name] for name in left_out] == [1, 1, 1]
    assert figure.draw(numbers).axes


def test_what_is_said() -> None:
    assert figure.sentences(figure.compute(study_of(*JOBS))) == (
        (
            "Of 4 jobs of a known type (together 102 kWh), memory-bound jobs are 75.0 % of the "
            "jobs, take 0.6 % of "
            "the GPU-hours and 1.5 % of the energy, 0.25 kWh per GPU-hour; compute-bound jobs "
            "are 25.0 % of the jobs, "
            "take 99.4 % of the GPU-hours and 98.5 % of the energy, 0.1 kWh per GPU-hour."
        ),
        "A GPU-hour of a compute-bound job uses 0.40 times the energy of a memory-bound one.",
    )
    alone = figure.compute(study_of(job(3.0, 0.9, "memory"), job(0.1, 0.03, "memory")))
    assert figure.sentences(alone) == (
        (
            "Of 2 jobs of a known type (together 0.93 kWh), memory-bound jobs are 100 % of the "
            "jobs, take 100 % of "
            "the GPU-hours and 100 % of the energy, 0.3 kWh per GPU-hour."
        ),
    )


def test_nothing_to_draw() -> None:
    for study, why in (
        (study_of(), "no jobs"),
        (study_of(job(1.0, None)), "not measured: energy_j"),
        (study_of(job(0.0, 1.0)), "no job with GPU-hours and the energy of all its GPUs"),
    ):
        numbers = figure.compute(study)
        assert not numbers.tables
        assert numbers.missing["boxes"] == why
        assert figure.sentences(numbers) == ()
