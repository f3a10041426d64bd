"""stable: the same all the time."""

from __future__ import annotations

import pytest
from made_jobs import (
    BUSY_HOST,
    RESTING,
    WORKING,
    Levels,
    gpu_minutes,
    node_minutes,
    phases,
    verdicts,
)

from tachograph.judge.finding import Finding


def stable(*parts: tuple[int, Levels | None], wobble: float = 0.0, **given: object) -> Finding:
    return verdicts(gpu_minutes(phases(*parts, wobble=wobble)), **given)["stable"]  # type: ignore[arg-type]


def test_a_steady_job() -> None:
    finding = stable((100, WORKING), wobble=0.05)  # up to 5 % away, 3 % on average
    assert (finding.verdict, finding.severity, finding.advice) == ("yes", "fact", None)
    assert "stayed within 10 % of their mean" in finding.sentence
    assert {check.name: check.holds for check in finding.checks} == dict.fromkeys(
        ("gpu_util", "sm_active", "dram_active", "power", "tensor_active", "pcie", "nvlink"), True
    )


def test_the_mean_distance_counts_too() -> None:
    finding = stable((100, WORKING), wobble=0.095)  # never over 10 % away, 5.7 % on average
    assert finding.verdict == "no"
    assert "within 10 % of it in 100 % of the minutes" in finding.sentence


def test_a_job_that_changes() -> None:
    assert stable((50, WORKING), (50, RESTING)).verdict == "no"


def test_a_job_that_does_nothing_has_no_load() -> None:
    finding = stable((100, RESTING))
    assert finding.verdict == "no"
    assert finding.sentence.startswith("No: there was no load: ")


def test_half_of_the_secondary_characteristics_suffice() -> None:
    parts = phases((100, WORKING), wobble=0.0)
    rows = [
        each | {"tensor_active": 0.2 + 0.2 * (minute % 2)}
        for minute, each in enumerate(parts)
        if each is not None
    ]
    assert verdicts(gpu_minutes(rows))["stable"].verdict == "yes"
    two = [each | {"pcie_rx_bytes_per_s": 1e9 * (minute % 2 + 1), "pcie_tx_bytes_per_s": 0.0}
           for minute, each in enumerate(rows)]  # fmt: skip
    assert verdicts(gpu_minutes(two))["stable"].verdict == "no"


def test_too_short_and_too_few_minutes_do_not_tell() -> None:
    assert stable((19, WORKING)).verdict == "unknown"
    assert stable((20, WORKING)).verdict == "yes"
    assert stable((50, WORKING), (20, None), (50, WORKING)).verdict == "yes"
    finding = stable((50, WORKING), (30, None), (50, WORKING))
    assert finding.verdict == "unknown"
    assert finding.sentence == "Unknown: 100 of 130 minutes were measured; 80 % are needed."


def test_missing_counters() -> None:
    rows = gpu_minutes(phases((60, WORKING), wobble=0.0), without=("sm_active", "dram_active"))
    finding = verdicts(rows)["stable"]
    assert finding.verdict == "yes"
    assert finding.needs == ("sm_active", "dram_active")
    assert "2 of 4 voted; not measured: SM activity, memory traffic" in finding.sentence
    rows = gpu_minutes(
        phases((60, WORKING), wobble=0.0), without=("sm_active", "dram_active", "power_w")
    )
    assert verdicts(rows)["stable"].verdict == "unknown"
    rows = gpu_minutes(
        phases((60, WORKING), (60, RESTING)), without=("sm_active", "dram_active", "power_w")
    )
    assert verdicts(rows)["stable"].verdict == "no"  # one that is not steady is enough


def test_hosts() -> None:
    rows = node_minutes(phases((60, BUSY_HOST), wobble=0.04))
    found = verdicts(gpu_minutes(phases((60, WORKING), wobble=0.04)), nodes=rows)
    assert found["stable_host"].verdict == "yes"
    changing = verdicts(gpu_minutes(phases((30, WORKING), (30, RESTING))), nodes=rows)
    assert changing["stable_host"].verdict == "no"  # gpu_util is one of the host characteristics
    assert verdicts(nodes=rows)["stable_host"].verdict == "yes"  # four of five are enough


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETED"])
def test_a_running_job_is_stable_so_far(state: str) -> None:
    assert ("so far" in stable((60, WORKING), state=state).sentence) is (state == "RUNNING")


def test_a_short_job_is_told_its_own_time() -> None:
    finding = verdicts(gpu_minutes([WORKING]), elapsed_s=20.0)["stable"]
    assert finding.sentence == "Unknown: the job ran 20 s; 20 min are needed."
