from __future__ import annotations

from study_of import study_of

from tachograph.annexes.lab.figures import temporal_imbalance as figure


def test_bands_and_sentences() -> None:
    jobs = [(0.1, 0.6), (0.29, 0.3), (0.5, 0.29), (0.71, 0.1), (0.9, 0.2), (0.0, None)]
    numbers = figure.compute(
        study_of(
            *({"gpu_util_mean": util, "temporal_imbalance": ti, "gpus": 1} for util, ti in jobs)
        )
    )
    assert (numbers.jobs, numbers.facts["jobs"], numbers.facts["median"]) == (6, 5, 0.29)
    assert [numbers.facts[f"{band}_even_jobs"] for band in ("low", "mid", "high")] == [0, 1, 2]
    assert figure.sentences(numbers) == (
        "Of 5 jobs that used a GPU, half have a temporal imbalance of at most 0.29.",
        (
            "Use is steady over time (temporal imbalance under 0.30) in 0 % of the 2 jobs with "
            "utilisation under 30 %; "
            "100 % of the 1 job with utilisation 30 to 70 %; 100 % of the 2 jobs with "
            "utilisation over 70 %."
        ),
        "Over 0.70: 0 % of the jobs with a temporal imbalance.",
    )
    left, _ = figure.draw(numbers).axes
    labels = [label.get_text() for label in left.get_yticklabels()]
    assert labels == ["under 30 %\nn = 2", "30 to 70 %\nn = 1", "over 70 %\nn = 2"]
