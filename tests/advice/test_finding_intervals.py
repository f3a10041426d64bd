"""Intervals of findings lie inside their job: its last minute is seldom whole."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobframes import START, gpus, minutes, summary
from one_job import verdicts_of
from tachograph.catalog.config import Thresholds
from tachograph.judge.finding import Finding

# (utilisation; tensor cores and DRAM; power) of a minute
WORKS, WAITS, IDLE = (1.0, 0.3, 400.0), (1.0, 0.001, 70.0), (0.0, 0.0, 60.0)
Minutes = list[tuple[float, float, float]]


def with_intervals(levels: Minutes, *, cut_s: float, of_state: str) -> dict[str, Finding]:
    """Return the findings about a part of a job that ended `cut_s` before its last minute did."""
    util, work, power = zip(*levels, strict=True)
    elapsed_s = 60.0 * len(levels) - cut_s
    as_of = START + timedelta(seconds=elapsed_s)
    row = summary(
        state=of_state,
        elapsed_s=elapsed_s,
        end=None if of_state == "RUNNING" else as_of,
        as_of=as_of,
        gpu_util_mean=sum(util) / len(util),
        gpu_util_max=max(util),
    )
    rows = minutes(util, util, tensor_active=work, dram_active=work, power_w=power)
    found = verdicts_of(row, gpus(), rows, Thresholds())
    return {finding.code: finding for finding in found if finding.begin or finding.end}


def lengths_of(*levels: tuple[float, float, float]) -> st.SearchStrategy[Minutes]:
    """Return up to 90 minutes of each level, one after the other."""
    lengths = st.tuples(*(st.integers(0, 90) for _ in levels))
    return lengths.map(
        lambda counts: [
            level for level, count in zip(levels, counts, strict=True) for _ in range(count)
        ]
    ).filter(bool)


@settings(max_examples=60, deadline=None)
@given(
    lengths_of(IDLE, WORKS, IDLE, WORKS, WAITS, IDLE, WAITS),
    st.floats(0.0, 59.0),
    st.sampled_from(["COMPLETED", "RUNNING"]),
)
def test_an_interval_lies_inside_the_job(levels: Minutes, cut_s: float, of_state: str) -> None:
    end = START + timedelta(seconds=60.0 * len(levels) - cut_s)
    for code, finding in with_intervals(levels, cut_s=cut_s, of_state=of_state).items():
        assert finding.begin is not None, code
        assert finding.end is not None, code
        assert START <= finding.begin <= finding.end <= end, code


@pytest.mark.parametrize(
    ("last", "code", "length"),
    [(WAITS, "busy_waiting", "idle_s"), (IDLE, "job_hang", "interval_s")],
)
def test_a_stop_lasts_until_the_end_of_the_job(
    last: tuple[float, float, float], code: str, length: str
) -> None:
    found = with_intervals([WORKS] * 30 + [last] * 60, cut_s=45.0, of_state="FAILED")[code]
    assert found.begin == START + timedelta(minutes=30)
    assert found.end == START + timedelta(minutes=89, seconds=15)
    assert found.evidence[length] == 59 * 60.0 + 15.0
    assert "for 59 min" in found.sentence
