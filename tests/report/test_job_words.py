"""Sentences about the data of one job."""

from __future__ import annotations

import pytest

from tachograph.report.job_sentences import caveat_sentences


def test_reasons_to_leave_a_job_out_are_words() -> None:
    caveats = caveat_sentences({"excluded": "no_samples,short"})
    assert caveats == ("Left out of studies: there are no samples, it was short.",)


@pytest.mark.parametrize(
    ("job_id", "sentence"),
    [
        ("local-20261122-003730-3738", "Its GPUs are those that were recorded."),
        ("100", "Its GPUs are known from a map of jobs to GPUs."),
    ],
)
def test_who_says_which_gpus_were_its_own(job_id: str, sentence: str) -> None:
    assert caveat_sentences({"attribution": "explicit", "job_id": job_id}) == (sentence,)
