from __future__ import annotations

import statistics

import polars as pl
import pytest
from study_of import study_of

from tachograph.annexes.lab.figures import job_overview as figure
from tachograph.annexes.lab.figures.numbers import Study

# GPUs, seconds, mean utilisation
JOBS = [
    *((4, 3600.0 * hours, hours / 25) for hours in range(1, 13)),
    *((1, 1800.0 * half, 1 - half / 40) for half in range(1, 11)),
    (2, 7200.0, None),
    (16, 86400.0, 0.9),
    (17, 0.0, 0.1),
]
EXTREMES = (
    "By size, the median utilisation is highest for 1 to 2 GPUs (86 %, 10 jobs) and lowest for "
    "3 to 4 GPUs "
    "(26 %, 12 jobs), among sizes with at least 10 jobs."
)


def test_sizes_run_times_and_utilisation() -> None:
    numbers = figure.compute(
        study_of(*({"gpus": n, "elapsed_s": s, "gpu_util_mean": u} for n, s, u in JOBS))
    )
    bins = [(1, 2), (3, 4), (5, 8), (9, 16), (17, 32)]
    sizes = numbers.tables["sizes"]
    assert sizes.select("low", "high").rows() == bins
    counts = [sum(low <= n <= high for n, _, _ in JOBS) for low, high in bins]
    assert counts == [11, 12, 0, 1, 1] == sizes.get_column("jobs").to_list()
    assert sizes.get_column("share").sum() == pytest.approx(1)
    for part, place in (("duration", 1), ("utilisation", 2)):
        found = {row["size"]: row for row in numbers.tables[part].to_dicts()}
        for low, high in bins:
            values = [job[place] for job in JOBS if low <= job[0] <= high and job[place]]
            assert (f"{low} to {high}" in found) is bool(values)
            if values:
                scale = 3600 if part == "duration" else 1
                row = found[f"{low} to {high}"]
                assert row["jobs"] == len(values)
                assert row["median"] == pytest.approx(
                    statistics.median(v or 0 for v in values) / scale
                )
                assert row["mean"] == pytest.approx(
                    statistics.fmean(v or 0 for v in values) / scale
                )
    assert (numbers.facts["duration_jobs"], numbers.facts["utilisation_jobs"]) == (24, 24)
    assert numbers.facts["duration_median"] == pytest.approx(
        statistics.median(s for _, s, _ in JOBS if s) / 3600
    )
    assert figure.sentences(numbers) == (
        "Commonest are jobs with 3 to 4 GPUs: 12 of 25 (48.0 %); the largest has 17 GPUs.",
        "The median run time of 24 jobs is 4 h.",
        "The median of the mean utilisation of 24 jobs is 46 %.",
        EXTREMES,
    )
    left, middle, right = figure.draw(numbers).axes
    assert [bar.get_height() for bar in left.patches] == counts  # type: ignore[attr-defined]
    assert middle.get_yscale() == "log"
    assert right.get_ylim() == (0, 1)


def test_what_is_not_known_is_not_drawn() -> None:
    jobs = study_of({"gpus": 3}, {"gpus": 7}, {"gpus": 0}).jobs
    numbers = figure.compute(Study(jobs.with_columns(gpus=pl.col("gpus").replace(7, None))))
    assert (numbers.facts["jobs"], numbers.facts["jobs_of_unknown_size"]) == (1, 2)
    assert numbers.missing == {"utilisation": "not measured: gpu_util (mean)"}
    assert [axes.axison for axes in figure.draw(numbers).axes] == [True, True, False]
    assert figure.sentences(numbers)[0] == (
        "Commonest are jobs with 3 to 4 GPUs: 1 of 1 (100 %); the largest has 3 GPUs."
    )
    nothing = figure.compute(study_of())
    assert not nothing.tables
    assert set(nothing.missing.values()) == {"no jobs"}
    assert figure.sentences(nothing) == ()
