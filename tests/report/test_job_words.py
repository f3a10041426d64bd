"""Sentences about the data of one job."""

from __future__ import annotations

import pytest

from tachograph.report.job_sentences import caveat_sentences
from tachograph.report.verdict import verdict_sentence


def test_reasons_to_leave_a_job_out_are_words() -> None:
    caveats = caveat_sentences({"excluded": "no_samples,short"})
    assert caveats == ("Left out of studies: there are no samples, it was short.",)


@pytest.mark.parametrize(
    ("because", "in_verdict", "in_data"),
    [
        ("unplaced", "nothing records where it ran", "No sample is shown."),
        (
            "part_of_nodes",
            "no sample can be attributed to it",
            "No sample is shown: those of its nodes may belong to other jobs.",
        ),
    ],
)
def test_why_nothing_is_known_of_gpus_is_true_of_its_cause(
    because: str, in_verdict: str, in_data: str
) -> None:
    row = {"attribution": "ambiguous", "ambiguous_because": because}
    assert verdict_sentence(row, []) == f"What its GPUs did is not known: {in_verdict}."
    assert in_data in caveat_sentences(row)
    assert len([note for note in caveat_sentences(row) if "No sample is shown" in note]) == 1


@pytest.mark.parametrize(
    ("job_id", "sentence"),
    [
        ("local-20261122-003730-3738", "Its GPUs are those that were recorded."),
        ("100", "Its GPUs are known from a map of jobs to GPUs, or job labels of samples."),
    ],
)
def test_who_says_which_gpus_were_its_own(job_id: str, sentence: str) -> None:
    assert caveat_sentences({"attribution": "explicit", "job_id": job_id}) == (sentence,)
