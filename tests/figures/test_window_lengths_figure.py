"""Figure 13: spatial imbalance over windows of several lengths, of the same jobs."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from study_of import study_of

from tachograph.annexes.lab.figures import window_lengths as figure
from tachograph.annexes.lab.figures.numbers import Study

JOBS = [
    {"gpu_util_mean": util, "spatial_imbalance": 0.1, "gpus": 4} for util in (0.1, 0.2, 0.9, None)
]


def with_windows(values: dict[int, list[float | None]]) -> Study:
    """Return the study whose jobs, in order, have these imbalances over windows of so many
    seconds.
    """
    study = study_of(*JOBS)
    keys = study.jobs.get_column("job_key")
    rows = [
        pl.DataFrame(
            {"job_key": keys, "window_s": [length] * len(keys), "spatial_imbalance": found}
        )
        for length, found in values.items()
    ]
    return replace(study, windows=pl.concat(rows))


def test_lengths_are_compared_over_the_same_jobs() -> None:
    study = with_windows(
        {60: [0.1, 0.2, 0.3, 0.9], 300: [0.75, None, 0.3, 0.9], 1800: [0.8, 0.9, 0.72, 0.9]}
    )
    numbers = figure.compute(study)
    assert (numbers.facts["jobs"], numbers.facts["windows"]) == (2, "1, 5, 30")
    medians = {row["window_s"]: row["median"] for row in numbers.tables["windows"].to_dicts()}
    assert medians == pytest.approx({60: 0.2, 300: 0.525, 1800: 0.76})
    bands = {
        (row["window_s"], row["band"]): row["uneven_share"]
        for row in numbers.tables["bands"].to_dicts()
    }
    assert bands == {
        (60, "low"): 0,
        (60, "high"): 0,
        (300, "low"): 1,
        (300, "high"): 0,
        (1800, "low"): 1,
        (1800, "high"): 1,
    }
    assert figure.sentences(numbers) == (
        "Over windows of 1, 5, 30 min the median spatial imbalance of 2 jobs is 0.20, 0.53, 0.76.",
        "Imbalance over 0.70: 0 %, 50.0 %, 100 % of these jobs.",
    )
    left, right = figure.draw(numbers).axes
    assert len(left.lines) == 3 + 2  # curves and limits
    assert [label.get_text() for label in right.get_xticklabels()] == ["1 min", "5 min", "30 min"]


@pytest.mark.parametrize(
    ("study", "why"),
    [
        (study_of(), "no jobs"),
        (study_of(*JOBS), "minutes of jobs were not read"),
        (
            with_windows({60: [0.1, None, None, None], 300: [None, 0.1, 0.1, 0.1]}),
            "no job has an imbalance over windows",
        ),
    ],
)
def test_nothing_to_draw(study: Study, why: str) -> None:
    numbers = figure.compute(study)
    assert set(numbers.missing) == {"windows", "cumulative", "bands"}
    assert all(reason.startswith(why) for reason in numbers.missing.values())
    assert figure.sentences(numbers) == ()
