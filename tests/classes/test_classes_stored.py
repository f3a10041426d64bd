"""Findings of classes: one of each, the same from stored minutes as while analysing, of recorded
jobs too.
"""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import timedelta
from pathlib import Path
from statistics import mean
from typing import Any

import polars as pl
import pytest
from made_jobs import RESTING, WORKING, gpu_minutes, node_minutes, phases, verdicts

from jobframes import START, frame, gpus, summary
from madelake import held, job, make_lake, summarized
from tachograph.catalog.config import ClassOptions, Thresholds
from tachograph.catalog.tables import JOB_MINUTES, JOB_NODE_MINUTES, JOB_SUMMARIES
from tachograph.judge.checks import CHECKS
from tachograph.judge.classes.characteristics import GPU, HOST
from tachograph.judge.completions import Completed, Questions, refuted, unmeasured
from tachograph.judge.families import covered, settled
from tachograph.judge.families import verdicts as decided_verdicts
from tachograph.judge.finding import EVIDENCE, FINDING_SCHEMA, Finding, read_findings
from tachograph.judge.job_classes import CLASS_CODES, JOB_CLASSES, class_verdicts, judge_classes
from tachograph.judge.judge import judge_summaries, summary_verdicts
from tachograph.judge.waste import with_hours
from tachograph.lake.query import read_summaries, read_verdicts
from tachograph.pipeline.minutes import read_stored
from tachograph.pipeline.summaries import JobTables
from tachograph.pipeline.timelines import timelines_of

EXAMPLES = {
    "job_hang": ((70, WORKING), (80, RESTING)),
    "cold_start": ((80, RESTING), (70, WORKING)),
    "stall": ((50, WORKING), (80, RESTING), (50, WORKING)),
}


def both(minutes: pl.DataFrame, of_gpus: pl.DataFrame, **given: Any) -> dict[str, Finding]:
    """Findings that hold of a job: of classes, and of the checks that see one job."""
    row = summary(gpu_model="A100 SXM 40GB", samples=1, **given)
    jobs = pl.DataFrame([row], schema=JOB_SUMMARIES.schema)
    timelines = timelines_of(minutes, idle_util=0.01)
    tables = JobTables(jobs, of_gpus, timelines, JOB_NODE_MINUTES.empty())
    gaps = unmeasured(jobs, timelines, of_gpus)

    def again(whole: Completed, questions: Questions) -> pl.DataFrame:
        summaries = summary_verdicts(whole, Thresholds(), questions)
        classes = class_verdicts(whole, ClassOptions(), questions)
        return decided_verdicts(pl.concat([summaries, classes]), CHECKS)

    own = pl.concat(
        [
            judge_classes(jobs, of_gpus, timelines, tables.node_minutes, ClassOptions()),
            judge_summaries(jobs, of_gpus, timelines, Thresholds()),
        ]
    )
    uncertain = refuted(tables, gaps, decided_verdicts(own, CHECKS), again, idle_util=0.02)
    joined = settled(own, uncertain, CHECKS, gaps)
    return {finding.code: finding for finding in read_findings(joined) if finding.verdict == "yes"}


def test_idle_gpus_decide_load_imbalance_which_more_specific_findings_cover() -> None:
    busy = {
        "gpu_util_mean": 0.9,
        "sm_active_mean": 0.5,
        "power_w_mean": 200.0,
        "gpu_model": "A100 SXM 40GB",
    }
    idle = {
        "gpu_util_mean": 0.0,
        "sm_active_mean": 0.0,
        "power_w_mean": 50.0,
        "gpu_model": "A100 SXM 40GB",
    }
    rows = gpu_minutes(phases((30, WORKING)))
    found = both(rows, gpus(busy, idle), gpu_util_mean=0.45, elapsed_s=1800.0)
    assert found["one_gpu_of_many"].reported
    assert found["load_imbalance_waste"].covered_by == "one_gpu_of_many"
    found = both(
        rows, gpus(busy, idle | {"gpu_util_mean": 0.1}), gpu_util_mean=0.5, elapsed_s=1800.0
    )
    assert not set(found) & {"one_gpu_of_many", "gpus_never_used", "imbalanced_gpus"}
    assert found["load_imbalance_waste"].reported
    assert "idle_gpus" not in found


@pytest.mark.parametrize("code", EXAMPLES)
def test_a_class_of_hosts_is_covered_by_the_one_of_gpus(code: str) -> None:
    rows = [
        {
            **dict.fromkeys(FINDING_SCHEMA),
            "job_key": job_key,
            "code": each,
            "verdict": "yes",
            "severity": "hint",
        }
        for job_key, codes in (("a", (f"{code}_host", code)), ("b", (f"{code}_host",)))
        for each in codes
    ]
    found = pl.DataFrame(rows, schema=dict(FINDING_SCHEMA))
    gaps = pl.DataFrame({"job_key": ["a", "b"], "elapsed_s": [9e3, 9e3]})
    assert covered(found, CHECKS, gaps)["covered_by"].to_list() == [code, None, None]


def test_the_same_from_stored_minutes_as_while_analysing(tmp_path: Path) -> None:
    """The lake's own way: samples every 30 s over a midnight, of a job that hangs and one that
    works.
    """
    begin = START.replace(hour=22)
    samples = []
    for node, idle in (("n1", 80), ("n2", 0)):
        for place, each in enumerate(phases((170 - idle, WORKING), (idle, RESTING))):
            assert each is not None
            for second in (0, 30):
                t = begin + timedelta(minutes=place, seconds=second)
                samples += [{"t": t, "node": node, "gpu": gpu, **each} for gpu in (0, 1)]
    end = begin + timedelta(minutes=170)
    lake = make_lake(
        tmp_path / "lake",
        gpu_samples=samples,
        jobs=[job("1", begin, end, gpus=2), job("2", begin, end, gpus=2)],
        allocations=[*held("1", "n1", (0, 1), begin, end), *held("2", "n2", (0, 1), begin, end)],
    )
    summarized(lake)
    jobs = read_summaries(lake)
    stored = (
        read_verdicts(lake, jobs)
        .filter(pl.col("code").is_in(CLASS_CODES))
        .drop("seq")
        .sort("job_id", "code")
    )
    classified = judge_classes(jobs, *read_stored(lake, jobs, idle_util=0.01), ClassOptions())
    again = with_hours(classified, jobs, CHECKS).sort("job_id", "code")
    # It decides load_imbalance_waste.
    assert stored.equals(again.filter(pl.col("code") != "idle_gpus"))
    holds = again.filter(pl.col("verdict") == "yes").select("job_id", "code").rows()
    assert holds == [("1", "job_hang")]
    assert again.height == 2 * 5  # one node: idle_nodes does not apply


def test_every_class_has_its_row_and_its_evidence_a_name() -> None:
    rows = node_minutes(phases((90, WORKING | dict.fromkeys(JOB_NODE_MINUTES.schema, 1.0))))
    of_gpus = gpus({"node": "n1"}, {"node": "n2"})
    found = verdicts(gpu_minutes(phases(*EXAMPLES["job_hang"])), nodes=rows, of_gpus=of_gpus)
    assert set(found) | {"idle_nodes_host"} == set(CLASS_CODES)  # hosts of one node were measured
    assert all(
        finding.kind == "check" and finding.sentence.endswith(".") for finding in found.values()
    )
    assert {name for finding in found.values() for name in finding.evidence} <= set(EVIDENCE)


def test_the_registry_names_characteristics_that_exist() -> None:
    for each in JOB_CLASSES:
        assert set(each.gpu) | set(each.more_gpu) <= set(GPU), each.code
        assert set(each.host) | set(each.more_host) <= set(HOST), each.code
    assert len(set(CLASS_CODES)) == len(CLASS_CODES) == 11


@pytest.mark.recorded
def test_a_recorded_job_that_began_late(recorded: Path) -> None:
    """870 s of nothing, then about 20 %: 24 minutes in all, so it is no cold start, and the
    verdict says why.
    """
    samples = json.loads((recorded / "nersc_perlmutter" / "metrics-data.json").read_text())[
        "46599456"
    ]
    names = {
        "gpu_util": ("gpu_utilization", 0.01), "power_w": ("power_usage", 1.0), "sm_active": ("sm_active", 1.0),
        "tensor_active": ("tensor_active", 1.0), "dram_active": ("dram_active", 1.0),
        "fp32_active": ("fp32_active", 1.0),
    }  # fmt: skip
    per_minute: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in samples:
        per_minute[row["Floored Relative Time"] // 60].append(row)
    rows = [
        {"job_key": "c:100:1", "job_id": "100", "seq": 1, "node": "n1", "gpu": 0, "minute": minute}
        | {"t": START + timedelta(minutes=minute), "samples": len(seen)}
        | {
            ours: factor * mean(one[f"nersc_ldms_dcgm_{name}"] for one in seen)
            for ours, (name, factor) in names.items()
        }
        for minute, seen in sorted(per_minute.items())
    ]
    found = verdicts(frame(JOB_MINUTES, rows))
    assert found["cold_start"].verdict == "no"
    assert found["cold_start"].sentence == (
        "No: GPU activity stayed under 1 % for the first 16 min; a cold start is 1 h or more, "
        "and the job ran 24 min."
    )
    assert {found[code].verdict for code in ("job_hang", "stall", "stable")} == {"no"}
    assert "the job ran 24 min" in found["job_hang"].sentence


def test_without_a_sample_no_class_is_denied() -> None:
    found = verdicts(elapsed_s=20.0, samples=0, gpus=2, gpus_seen=0)
    assert {finding.verdict for finding in found.values()} == {"unknown"}
    assert {"job_hang", "cold_start", "stall"} <= set(found)
