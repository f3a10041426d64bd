"""Scores from recorded counters: by hand, in plain Python, and where inputs are missing."""

from __future__ import annotations

import json
import math
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobframes import frame, gpus, summary
from tachograph.catalog.tables import FINDINGS, JOB_SUMMARIES, SCORES
from tachograph.judge.finding import EVIDENCE
from tachograph.judge.scores import judge_scores

H200 = {"gpu_model": "H200 SXM 141GB", "sm_clock_mhz_mean": 1980.0, "mem_clock_mhz_mean": 3201.0}
fraction = st.floats(0, 1) | st.none()
clock = st.sampled_from([None, 0.0, 1410.0, 3201.0])
GPU = st.fixed_dictionaries(
    {
        "sm_occupancy_mean": fraction,
        "sm_active_mean": fraction,
        "dram_active_mean": fraction,
        "sm_clock_mhz_mean": clock,
        "mem_clock_mhz_mean": clock,
    }
)


def judged(
    *rows: dict[str, Any], high: float = 70.0, **job: Any
) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """The job's row, its GPUs' rows, its findings by code."""
    jobs = frame(JOB_SUMMARIES, [summary(gpus=max(1, len(rows)), **job)])
    scored = judge_scores(jobs, gpus(*rows))
    assert scored.jobs.columns == jobs.columns
    assert scored.gpus.columns == gpus(*rows).columns
    assert dict(scored.findings.schema) == {
        name: dtype for name, dtype in FINDINGS.schema.items() if name != "seq"
    }
    found = {row["code"]: row for row in scored.findings.iter_rows(named=True)}
    return scored.jobs.row(0, named=True), list(scored.gpus.iter_rows(named=True)), found


def mean(values: list[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def by_hand(rows: list[dict[str, Any]]) -> tuple[float | None, float | None, float | None]:
    """The three scores of a job, from the formulas as they are written."""
    resident = mean(
        [row["sm_occupancy_mean"] for row in rows if row["sm_occupancy_mean"] is not None]
    )
    score = None if resident is None else 100 * (1 - min(resident, 1.0))
    both = [
        row
        for row in rows
        if row["dram_active_mean"] is not None and row["sm_active_mean"] is not None
    ]
    timed = [row for row in both if row["sm_clock_mhz_mean"] and row["mem_clock_mhz_mean"]]
    d, s = (mean([row[f"{name}_active_mean"] for row in both]) for name in ("dram", "sm"))
    f_mem, f_sm = (
        mean([row[f"{name}_clock_mhz_mean"] for row in timed]) or 1.0 for name in ("mem", "sm")
    )
    if d is None or s is None or d + s == 0:
        return score, None, None
    return score, 100 * d * f_mem / (d * f_mem + s * f_sm), 100 * d / (d + s)


def same(found: float | None, wanted: float | None) -> bool:
    if found is None or wanted is None:
        return found is wanted
    return math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-9)


@given(st.lists(GPU, min_size=1, max_size=4))
def test_they_are_those_of_the_formulas(rows: list[dict[str, Any]]) -> None:
    job, each, _ = judged(*rows)
    for row, wanted in [
        (job, by_hand(rows)),
        *((one, by_hand([told])) for one, told in zip(each, rows, strict=True)),
    ]:
        assert all(same(row[name], value) for name, value in zip(SCORES, wanted, strict=True)), (
            row,
            wanted,
        )
        assert all(row[name] is None or 0 <= row[name] <= 100 for name in SCORES)


def test_a_job_by_hand() -> None:
    row = {"sm_occupancy_mean": 0.2, "sm_active_mean": 0.8, "dram_active_mean": 0.4}
    job, each, found = judged(H200 | row, H200 | row | {"sm_occupancy_mean": 0.4})
    assert [gpu["score_gpu"] for gpu in each] == [80.0, 60.0]
    assert job["score_gpu"] == pytest.approx(70.0)  # 100 x (1 - 0.3)
    # 44.7.
    assert job["score_gpumem"] == pytest.approx(100 * 0.4 * 3201 / (0.4 * 3201 + 0.8 * 1980))
    assert job["score_gpumem_normalized"] == pytest.approx(100 / 3)
    assert (found["score_gpu"]["verdict"], found["score_gpumem"]["verdict"]) == ("yes", "no")
    assert "occupancy 30 % on average" in found["score_gpu"]["sentence"]
    assert "memory was active 40 % of the time, the SMs 80 %" in found["score_gpumem"]["sentence"]
    assert "equal" not in found["score_gpumem"]["sentence"]


def test_memory_and_sms_fully_active_on_an_h200() -> None:
    job, _, _ = judged(H200 | {"sm_active_mean": 1.0, "dram_active_mean": 1.0})
    assert round(job["score_gpumem"], 1) == 61.8
    assert job["score_gpumem_normalized"] == 50.0


@pytest.mark.parametrize(
    ("row", "needs", "words"),
    [
        (
            {},
            {"score_gpu": ["sm_occupancy"], "score_gpumem": ["dram_active", "sm_active"]},
            "not measured: dram_active",
        ),
        (
            {"sm_active_mean": 0.5},
            {"score_gpu": ["sm_occupancy"], "score_gpumem": ["dram_active"]},
            "dram_active",
        ),
        (
            {"sm_active_mean": 0.0, "dram_active_mean": 0.0},
            {"score_gpumem": []},
            "neither the SMs nor memory",
        ),
    ],
)
def test_what_is_missing_is_named(
    row: dict[str, Any], needs: dict[str, list[str]], words: str
) -> None:
    _, _, found = judged(H200 | row)
    for code, names in needs.items():
        assert (found[code]["verdict"], found[code]["needs"]) == ("unknown", names)
        assert json.loads(found[code]["checks"])[0]["value"] is None
    assert words in found["score_gpumem"]["sentence"]


def test_clocks_that_are_not_known_are_equal_and_it_is_said() -> None:
    row = {
        "sm_occupancy_mean": 0.5,
        "sm_active_mean": 0.5,
        "dram_active_mean": 0.5,
        "sm_clock_mhz_mean": 1980.0,
    }
    job, _, found = judged(row)
    assert job["score_gpumem"] == job["score_gpumem_normalized"] == 50.0
    assert "clocks were not measured and are taken as equal" in found["score_gpumem"]["sentence"]
    assert "mem_clock_mhz_mean" not in json.loads(found["score_gpumem"]["evidence"])


def test_a_job_of_which_the_gpus_are_not_known() -> None:
    job, _, found = judged(attribution="ambiguous")
    assert [job[name] for name in SCORES] == [None] * 3
    assert all(
        row["verdict"] == "unknown" and "which GPUs" in row["sentence"] for row in found.values()
    )


def test_scores_are_facts_with_evidence_that_has_a_name() -> None:
    _, _, found = judged(
        H200 | {"sm_occupancy_mean": 0.01, "sm_active_mean": 0.5, "dram_active_mean": 0.9}
    )
    assert {(row["kind"], row["severity"], row["advice"]) for row in found.values()} == {
        ("score", "fact", None)
    }
    assert all(set(json.loads(row["evidence"])) <= set(EVIDENCE) for row in found.values())


def test_many_jobs_at_once_are_each_their_own() -> None:
    rows = [summary(job_key=f"c:{n}:1", job_id=str(n), gpus=1) for n in range(50)]
    units = [
        {"job_key": f"c:{n}:1", "job_id": str(n), "sm_occupancy_mean": n / 50} for n in range(49)
    ]
    scored = judge_scores(frame(JOB_SUMMARIES, rows), gpus(*units[::-1]))
    assert scored.jobs["score_gpu"].to_list() == [
        pytest.approx(100 * (1 - n / 50)) for n in range(49)
    ] + [None]
    assert scored.findings.height == 100
    assert scored.findings.filter(pl.col("verdict") == "yes").height == 16  # 100, 98, ... 70


@pytest.mark.parametrize(("level", "told"), [(0.0005, True), (0.3, False)])
def test_of_gpus_at_rest_nothing_is_advised(level: float, told: bool) -> None:
    row = {"sm_occupancy_mean": level, "sm_active_mean": level, "dram_active_mean": level}
    _, _, found = judged(row)
    assert [("hardly anything ran" in one["sentence"]) for one in found.values()] == [told, told]
    assert ("room for" in found["score_gpu"]["sentence"]) is not told
