from __future__ import annotations

from typing import Any

import pytest
from study_of import study_of

from tachograph.annexes.lab.figures import hbm_peak as figure

GIB = 1024.0


def job(
    peak: float | None, capacity_gib: float | None = None, request: str | None = None
) -> dict[str, Any]:
    hbm_mib = None if capacity_gib is None else capacity_gib * GIB
    return {"hbm_peak_fraction": peak, "hbm_mib": hbm_mib, "hbm_request": request}


def test_shares_of_the_jobs_that_asked_for_the_large_memory() -> None:
    peaks = [0.05, 0.19, 0.20, 0.31, 0.4999, 0.50, 0.50, 0.79, 0.80, 1.0]
    jobs = [job(peak, 80, "80g") for peak in peaks]
    others = [job(0.99, 40, "40g"), job(0.99, 40), job(0.99, 80), job(None, 80, "80g")]
    numbers = figure.compute(study_of(*jobs, *others))
    facts = numbers.facts
    assert (facts["population"], facts["request_gb"], facts["population_jobs"], facts["jobs"]) == (
        "requested",
        80,
        11,
        10,
    )
    assert facts["under_20_share"] == sum(peak < 0.2 for peak in peaks) / 10 == 0.2
    assert facts["under_50_share"] == sum(peak < 0.5 for peak in peaks) / 10 == 0.5
    assert facts["at_least_80_share"] == sum(peak >= 0.8 for peak in peaks) / 10 == 0.2
    table = numbers.tables["histogram"]
    assert table.height == 20
    found = {row["low"]: row["jobs"] for row in table.to_dicts() if row["jobs"]}
    assert found == {0.05: 1, 0.15: 1, 0.2: 1, 0.3: 1, 0.45: 1, 0.5: 2, 0.75: 1, 0.8: 1, 0.95: 1}
    assert table.get_column("share").sum() == pytest.approx(1)
    curve = dict(numbers.tables["cumulative"].rows())
    assert curve == pytest.approx(
        {peak: sum(other <= peak for other in peaks) / 10 for peak in peaks}
    )
    shares, unknown = figure.sentences(numbers)
    assert shares == (
        "Of 10 jobs that requested GPUs with 80 GB, 20.0 % use less than 20 % of the GPU "
        "memory at their peak, "
        "50.0 % less than 50 %, 20.0 % at least 80 % and 10.0 % at least 90 %; the median is 50 %."
    )
    assert unknown == "The peak of 1 job more of this kind is not known."
    assert figure.draw(numbers).axes[0].get_title() == "n = 10 jobs that requested GPUs with 80 GB"


@pytest.mark.parametrize(
    ("jobs", "population", "chosen"),
    [
        ([(40, "40g"), (80, "80g")], "requested", [1]),
        ([(40, None), (80, "80g")], "requested", [1]),
        ([(None, "40g"), (None, "80g")], "requested", [1]),
        ([(79.6, "80g"), (79.6, None)], "requested", [0]),  # one capacity, and it was requested
        ([(40, None), (80, "80g"), (140.4, None)], "requested", [1]),
        ([(40, "40g"), (80, None)], "largest_capacity", [1]),  # the small memory was requested
        ([(40, None), (79.6, None), (80, None)], "largest_capacity", [1, 2]),
        ([(140.4, None), (144, None), (94, None)], "largest_capacity", [0, 1]),
        ([(79.6, None), (80, None), (None, None)], "all", [0, 1, 2]),
        ([(None, None), (None, "large")], "all", [0, 1]),
    ],
)
def test_who_has_a_large_memory(
    jobs: list[tuple[float | None, str | None]], population: str, chosen: list[int]
) -> None:
    peaks = [0.1 * (place + 1) for place in range(len(jobs))]
    numbers = figure.compute(
        study_of(*(job(peak, *about) for peak, about in zip(peaks, jobs, strict=True)))
    )
    assert numbers.facts["population"] == population
    assert numbers.tables["cumulative"].get_column("value").to_list() == [
        peaks[place] for place in chosen
    ]


def test_without_peaks_nothing_is_drawn() -> None:
    unmeasured = figure.compute(study_of(job(None, 80, "80g")))
    assert unmeasured.missing["histogram"] == "not measured: hbm_peak_fraction"
    others = figure.compute(study_of(job(None, 80, "80g"), job(0.5, 40)))
    assert others.missing["cumulative"] == "the peak of no job with a large memory is known"
    for numbers in (unmeasured, others, figure.compute(study_of())):
        assert not numbers.tables
        assert figure.sentences(numbers) == ()
