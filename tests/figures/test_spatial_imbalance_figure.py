from __future__ import annotations

from study_of import study_of

from tachograph.figures import spatial_imbalance as figure


def test_bands_shares_and_sentences() -> None:
    jobs = [(0.1, 0.75), (0.2, 0.1), (0.30, 0.2), (0.70, 0.4), (0.9, 0.05), (0.95, None), (None, 0.5)]
    numbers = figure.compute(study_of(*({"gpu_util_mean": util, "spatial_imbalance": si} for util, si in jobs)))
    facts = numbers.facts
    assert (facts["low_jobs"], facts["mid_jobs"], facts["high_jobs"], facts["jobs"]) == (2, 2, 1, 5)
    assert (facts["low_even_share"], facts["mid_even_share"], facts["high_even_share"]) == (0.5, 0.5, 1.0)
    assert facts["median"] == 0.2
    table = numbers.tables["distribution"]
    for band, found in (("low", [(0.1, 1), (0.75, 1)]), ("mid", [(0.2, 1), (0.4, 1)]), ("high", [(0.05, 1)])):
        rows = [(row["low"], row["jobs"]) for row in table.to_dicts() if row["band"] == band and row["jobs"]]
        assert rows == found
    assert figure.sentences(numbers)[1] == (
        "Work is spread evenly (spatial imbalance under 0.30) in 50.0 % of the 2 jobs with utilisation under 30 %; "
        "50.0 % of the 2 jobs with utilisation 30 to 70 %; 100 % of the 1 job with utilisation over 70 %."
    )
    assert figure.draw(numbers).axes


def test_what_is_not_measured_is_said() -> None:
    numbers = figure.compute(study_of({"gpu_util_mean": 0.5}, {"gpu_util_mean": 0.9}))
    assert numbers.missing["distribution"] == "nobody measured spatial_imbalance"
    assert figure.sentences(numbers) == ()
    assert figure.compute(study_of()).missing["cumulative"] == "no jobs"
