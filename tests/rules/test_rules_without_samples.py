"""Of a job without a single sample no rule about samples is denied."""

from __future__ import annotations

import pytest
from ruled_jobs import SHIPPED, Job, found

CODES = tuple(entry.code for entry in SHIPPED.entries)
BLIND = {"samples": 0, "gpus": 2, "elapsed_s": 20.0, "coverage": 0.0}


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("elapsed_s", [20.0, 7200.0])
def test_nothing_is_denied_without_samples(code: str, elapsed_s: float) -> None:
    verdict = found(Job(BLIND | {"elapsed_s": elapsed_s}), code).verdict
    assert verdict == "unknown"


def test_accounting_alone_denies() -> None:
    assert (
        found(
            Job(BLIND | {"elapsed_s": 7200.0, "timelimit_s": 14400.0}), "unused_time_limit"
        ).verdict
        == "no"
    )


def test_with_samples_a_short_job_is_denied_as_before() -> None:
    one = found(
        Job(BLIND | {"samples": 40, "gpu_util_mean": 0.5}, gpus=[{"gpu_util_mean": 0.5}]),
        "small_kernels",
    )
    assert one.verdict == "no"
