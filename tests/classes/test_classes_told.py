"""What is told of classes: once, the same from stored minutes as while analysing, of recorded jobs too."""

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
from tachograph.judge.checks import precedence, summaries
from tachograph.judge.classes.characteristics import GPU, HOST
from tachograph.judge.classes.verdicts import CLASS_CODES, JOB_CLASSES, judge_classes
from tachograph.judge.finding import EVIDENCE
from tachograph.lake.query import read_summaries, read_verdicts
from tachograph.pipeline.minutes import read_stored
from tachograph.pipeline.timelines import timelines_of

ADVICE_OF = {"job_hang": "hung", "cold_start": "late_start", "stall": "stalled"}
EXAMPLES = {
    "job_hang": ((70, WORKING), (80, RESTING)),
    "cold_start": ((80, RESTING), (70, WORKING)),
    "stall": ((50, WORKING), (80, RESTING), (50, WORKING)),
}


def both(minutes: pl.DataFrame, of_gpus: pl.DataFrame, **given: Any) -> tuple[set[str], dict[str, str]]:
    """Codes of advice given beside the classes, and {class that holds: its severity}."""
    jobs = pl.DataFrame([summary(gpu_model="A100 SXM 40GB", **given)], schema=JOB_SUMMARIES.schema)
    timelines = timelines_of(minutes, idle_util=0.01)
    found = judge_classes(jobs, of_gpus, timelines, JOB_NODE_MINUTES.empty(), ClassOptions())
    given_advice = summaries.judge_summaries(jobs, of_gpus, timelines, Thresholds(), found)
    holds = precedence.settled(found, given_advice).filter(pl.col("verdict") == "yes")
    return set(given_advice["code"]), dict(holds.select("code", "severity").iter_rows())


@pytest.mark.parametrize("code", EXAMPLES)
def test_a_class_is_not_told_again_as_advice(code: str) -> None:
    rows = gpu_minutes(phases(*EXAMPLES[code]))
    elapsed = 60.0 * rows.height
    alone = {
        finding.code for finding in summaries.find_in_summary(summary(elapsed_s=elapsed), gpus(), rows, Thresholds())
    }
    assert ADVICE_OF[code] in alone
    told, holds = both(rows, gpus(), elapsed_s=elapsed)
    assert ADVICE_OF[code] not in told
    assert code in holds


def test_advice_is_given_where_the_time_is_too_short_for_a_class() -> None:
    told, holds = both(gpu_minutes(phases((70, WORKING), (30, RESTING))), gpus(), elapsed_s=6000.0)
    assert "hung" in told
    assert "job_hang" not in holds


def test_idle_gpus_are_a_fact_where_advice_says_which() -> None:
    busy = {"gpu_util_mean": 0.9, "sm_active_mean": 0.5, "power_w_mean": 200.0, "gpu_model": "A100 SXM 40GB"}
    rest = {"gpu_util_mean": 0.0, "sm_active_mean": 0.0, "power_w_mean": 50.0, "gpu_model": "A100 SXM 40GB"}
    rows = gpu_minutes(phases((30, WORKING)))
    told, holds = both(rows, gpus(busy, rest), gpu_util_mean=0.45, elapsed_s=1800.0)
    assert "one_gpu_of_many" in told
    assert holds["idle_gpus"] == "fact"
    told, holds = both(rows, gpus(busy, rest | {"gpu_util_mean": 0.1}), gpu_util_mean=0.5, elapsed_s=1800.0)
    assert not told & {"one_gpu_of_many", "gpus_never_used", "imbalanced_gpus"}
    assert holds["idle_gpus"] == "hint"


@pytest.mark.parametrize(("code", "advised"), [(f"{code}_host", advised) for code, advised in ADVICE_OF.items()])
def test_a_class_told_from_hosts_is_a_fact_beside_advice_that_says_it(code: str, advised: str) -> None:
    """Of GPUs the time may be too short for the class, of hosts just long enough."""
    said = {"job_key": ["a", "b"], "code": [code] * 2, "verdict": ["yes"] * 2, "severity": ["hint"] * 2}
    given = pl.DataFrame({"job_key": ["a"], "code": [advised], "verdict": ["yes"]})
    assert precedence.settled(pl.DataFrame(said), given)["severity"].to_list() == ["fact", "hint"]


def test_the_same_from_stored_minutes_as_while_analysing(tmp_path: Path) -> None:
    """The lake's own way: samples every 30 s over a midnight, of a job that hangs and one that works."""
    begin = START.replace(hour=22)
    samples = []
    for node, rested in (("n1", 80), ("n2", 0)):
        for place, each in enumerate(phases((170 - rested, WORKING), (rested, RESTING))):
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
    stored = read_verdicts(lake, jobs).filter(pl.col("kind") == "class").drop("seq").sort("job_id", "code")
    again = judge_classes(jobs, *read_stored(lake, jobs, idle_util=0.01), ClassOptions()).sort("job_id", "code")
    assert stored.equals(again)
    holds = again.filter(pl.col("verdict") == "yes").select("job_id", "code").rows()
    assert holds == [("1", "job_hang")]
    assert again.height == 2 * 5  # one node: idle_nodes is not asked


def test_every_class_has_its_row_and_its_evidence_a_name() -> None:
    rows = node_minutes(phases((90, WORKING | dict.fromkeys(JOB_NODE_MINUTES.schema, 1.0))))
    of_gpus = gpus({"node": "n1"}, {"node": "n2"})
    found = verdicts(gpu_minutes(phases(*EXAMPLES["job_hang"])), nodes=rows, of_gpus=of_gpus)
    assert set(found) | {"idle_nodes_host"} == set(CLASS_CODES)  # hosts of one node were measured
    assert all(finding.kind == "class" and finding.sentence.endswith(".") for finding in found.values())
    assert {name for finding in found.values() for name in finding.evidence} <= set(EVIDENCE)


def test_the_registry_names_characteristics_that_exist() -> None:
    for each in JOB_CLASSES:
        assert set(each.gpu) | set(each.more_gpu) <= set(GPU), each.code
        assert set(each.host) | set(each.more_host) <= set(HOST), each.code
    assert len(set(CLASS_CODES)) == len(CLASS_CODES) == 11


@pytest.mark.recorded
def test_a_recorded_job_that_began_late(recorded: Path) -> None:
    """870 s of nothing, then about 20 %: 24 minutes in all, so it is no cold start, and the verdict says why."""
    samples = json.loads((recorded / "nersc_perlmutter" / "metrics-data.json").read_text())["46599456"]
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
        "No: GPU activity stayed under 1 % for the first 16 min; a cold start is 1 h or more, and the job ran 24 min."
    )
    assert {found[code].verdict for code in ("job_hang", "stall", "stable")} == {"no"}
    assert "the job ran 24 min" in found["job_hang"].sentence


def test_without_a_sample_no_class_is_denied() -> None:
    told = verdicts(elapsed_s=20.0, samples=0, gpus=2, gpus_seen=0)
    assert {finding.verdict for finding in told.values()} == {"insufficient"}
    assert {"job_hang", "cold_start", "stall"} <= set(told)
