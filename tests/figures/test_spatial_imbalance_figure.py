from __future__ import annotations

from statistics import median
from typing import Any

import pytest
from study_of import study_of

from tachograph.annexes.lab.figures import spatial_imbalance as figure


def job(util: float | None, imbalance: float | None, **given: Any) -> dict[str, Any]:
    return {"gpu_util_mean": util, "spatial_imbalance": imbalance, **given}


SEVEN = [(0.1, 0.75), (0.2, 0.1), (0.30, 0.2), (0.70, 0.4), (0.9, 0.05), (0.95, None), (None, 0.5)]


def test_bands_shares_and_sentences() -> None:
    numbers = figure.compute(study_of(*(job(util, si) for util, si in SEVEN)))
    facts = numbers.facts
    assert (facts["low_jobs"], facts["mid_jobs"], facts["high_jobs"], facts["jobs"]) == (2, 2, 1, 5)
    assert (facts["low_even_share"], facts["mid_even_share"], facts["high_even_share"]) == (
        0.5,
        0.5,
        1.0,
    )
    assert facts["median"] == 0.2
    assert facts["low_median"] == pytest.approx(median([0.75, 0.1]))
    bands = {
        row["band"]: (row["jobs"], row["q1"], row["p95"])
        for row in numbers.tables["bands"].to_dicts()
    }
    assert bands["mid"] == (2, pytest.approx(0.25), pytest.approx(0.39))
    assert (facts["uneven_jobs"], facts["low_uneven_share"], facts["mid_uneven_jobs"]) == (
        1,
        0.5,
        0,
    )
    assert figure.sentences(numbers) == (
        "Of 5 jobs with more than one GPU, half have a spatial imbalance of at most 0.20.",
        (
            "Work is spread evenly (spatial imbalance under 0.30) in 50.0 % of the 2 jobs with "
            "utilisation under 30 %; "
            "50.0 % of the 2 jobs with utilisation 30 to 70 %; 100 % of the 1 job with "
            "utilisation over 70 %."
        ),
        (
            "Over 0.70: 20.0 % of the jobs with a spatial imbalance, 1 of 1 at a utilisation under "
            "30 %."
        ),
    )
    curve = [row for row in numbers.tables["cumulative"].rows() if row[0] == "low"]
    assert curve == [("low", 0.1, 0.5), ("low", 0.75, 1.0)]
    assert len(figure.draw(numbers).axes) == 2


def test_one_gpu_of_many_where_all_were_seen() -> None:
    """Of four GPUs one is used, all are; three of four seen; none used; a single one: two jobs
    count.
    """
    cases = [(4, 4, 3), (4, 4, 0), (4, 3, 2), (4, 4, 4), (1, 1, 0), (4, None, None)]
    jobs = [
        job(
            0.5,
            None if gpus == 1 or unused == gpus else 0.5,
            gpus=gpus,
            gpus_seen=seen,
            gpus_never_used=unused,
        )
        for gpus, seen, unused in cases
    ]
    numbers = figure.compute(study_of(*jobs))
    assert (numbers.facts["seen_jobs"], numbers.facts["one_gpu_jobs"]) == (2, 1)
    assert figure.sentences(numbers)[3] == (
        "Of 2 jobs with several GPUs, all of which were recorded, 50.0 % used only one."
    )


@pytest.mark.parametrize(
    ("most", "top"), [(0.0, 0.1), (0.1, 0.1), (0.11, 0.2), (0.45, 0.5), (0.51, 1.0), (-1e-16, 0.1)]
)
def test_axis_follows_the_data(most: float, top: float) -> None:
    """Rounding may take an imbalance below zero: it is at zero."""
    numbers = figure.compute(study_of(job(0.5, most), job(0.5, 0.0)))
    left, right = figure.draw(numbers).axes
    assert right.get_xlim() == (0, top)
    assert left.get_xlim()[0] < 0 < left.get_xlim()[1] == top
    assert [text.get_text() for text in left.texts if "jobs" in text.get_text()] == ["no jobs"] * 2


@pytest.mark.parametrize(
    ("jobs", "why"),
    [
        ([], "no jobs"),
        ([job(None, 0.5)], "not measured: gpu_util (mean)"),
        ([job(0.5, None, gpus=1)], "no job has more than one GPU"),
        ([job(0.0, None, gpus=4)], "no GPU was ever active"),
        ([job(0.0, None, gpus=4), job(None, 0.5)], "no GPU was ever active"),
    ],
)
def test_why_nothing_is_drawn(jobs: list[dict[str, Any]], why: str) -> None:
    numbers = figure.compute(study_of(*jobs))
    assert numbers.missing == {"bands": why, "cumulative": why}
    assert not numbers.tables
    assert figure.sentences(numbers) == ()
