"""A verdict on a job that was measured in part is never contradicted when the rest is shown."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl
import pytest
from hidden_samples import KINDS, contradictions, verdicts


class Judged(NamedTuple):
    """Findings, and what each job is."""

    findings: pl.DataFrame
    jobs: pl.DataFrame

    def of(self, kind: str, hidden: str = "") -> dict[str, str]:
        """{code: verdict} of a job."""
        mine = self.jobs.filter(kind=kind, hidden=hidden).join(self.findings, on="job_id")
        return dict(mine.select("code", "verdict").iter_rows())


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    return Judged(*verdicts(tmp_path_factory.mktemp("hidden") / "lake", list(KINDS), [1]))


def test_no_limiter_and_no_class_is_contradicted(judged: Judged) -> None:
    whole = {row["kind"]: row for row in judged.jobs.filter(hidden="").iter_rows(named=True)}
    named = 0
    for row in judged.jobs.iter_rows(named=True):
        complete = whole[row["kind"]]
        # an idle job has none: nothing was near its peak
        assert row["limiter"] in (None, complete["limiter"] or "neither"), row
        if complete["workload"] != "unknown":
            assert row["workload"] in (None, "unknown", complete["workload"]), row
        named += row["limiter"] is not None and row["workload"] != "unknown"
    assert named > len(whole), "not simply nothing"


# what is found of each kind of job where all of it was measured
FOUND = {
    "idle": "idle_job", "light": "low_utilisation", "one of four": "one_gpu_of_many",
    "three of four": "gpus_never_used", "uneven": "load_imbalance_waste", "stops": "job_hang",
    "waits": "busy_waiting", "begins late": "cold_start", "stands still": "stall",
    "bursts": "bursty", "copies": "stable", "stencil": "memory_bound", "plain": "no_tensor_use",
    "hot": "gpu_overheated", "full": "memory_nearly_full", "broken": "xid_error",
}  # fmt: skip


def test_no_verdict_is_contradicted_when_the_rest_is_shown(judged: Judged) -> None:
    wrong = contradictions(judged.findings, judged.jobs)
    told = wrong.select("kind", "hidden", "code", "verdict", "whole", "sentence")
    assert not told.height, told.rows()[:10]


@pytest.mark.parametrize(("kind", "code"), FOUND.items())
def test_what_was_measured_whole_is_found(judged: Judged, kind: str, code: str) -> None:
    assert judged.of(kind)[code] == "yes"
    assert judged.of("training")[code] == ("yes" if code == "stable" else "no")


def test_of_a_few_minutes_hardly_anything_is_concluded(judged: Judged) -> None:
    """Three minutes of two hours: what they show holds, and nothing of what they may hide."""
    first = "all but the first minutes (1)"
    about_the_rest = ("low_utilisation", "job_hang", "stall", "bursty", "memory_nearly_full")
    for kind in KINDS:
        part = judged.of(kind, first)
        assert {part[code] for code in about_the_rest} - {"yes"} == {"unknown"}, kind
        assert part["low_coverage"] == "yes"
    assert judged.of("idle", first)["idle_job"] == "unknown"
    assert judged.of("training", first)["idle_job"] == "no"
    assert judged.of("hot", first)["gpu_overheated"] == "yes"


def test_some_verdicts_hold_where_little_is_missing(judged: Judged) -> None:
    """Of most jobs a part decides: what is unknown is not simply what was measured in part."""
    parts = judged.jobs.filter(pl.col("hidden").str.starts_with("a part of a GPU"))
    found = parts.join(judged.findings, on="job_id").filter(pl.col("verdict") != "unknown")
    assert found.filter(verdict="no").height > 10 * parts.height
    assert found.filter(verdict="yes").height > parts.height
