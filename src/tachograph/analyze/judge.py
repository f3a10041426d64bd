"""What is judged of jobs that are over: one step per layer, each a pure function of what was summarized."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from tachograph import advice, classes, scores, waste, workload
from tachograph.analyze.rules import said
from tachograph.config import Configuration
from tachograph.rules.judge import judge as judge_by_rules
from tachograph.rules.ruleset import RuleSet


@dataclass(frozen=True, slots=True)
class Judged:
    """Summaries and GPUs with their judged columns, and findings; each without `seq`."""

    jobs: pl.DataFrame
    gpus: pl.DataFrame
    findings: pl.DataFrame


def judge(
    jobs: pl.DataFrame,
    gpus: pl.DataFrame,
    timelines: pl.DataFrame,
    node_minutes: pl.DataFrame,
    *,
    configuration: Configuration,
    ruleset: RuleSet,
) -> Judged:
    """Return what is to be written of some jobs.

    `jobs`: rows of job_summaries. `gpus`: their rows of job_gpus. `timelines`: one row per (job_key, minute), in order,
    as `reduce.timelines.together` returns. `node_minutes`: HOST_CHARACTERISTICS, one row per (job_key, node, minute),
    in order; none where the hosts tell nothing. `ruleset`: `analyze.rules.rules_in_use`.
    """
    of_classes = classes.judge(jobs, gpus, timelines, node_minutes, configuration.classes)
    given = advice.find_all(jobs, gpus, timelines, configuration.thresholds, of_classes)
    found = [given, advice.settled(of_classes, given)]
    scored = scores.judge(jobs, gpus, configuration.scores)
    jobs, gpus = scored.jobs, scored.gpus
    found.append(scored.findings)
    classified = workload.judge(jobs, gpus, found[0])
    jobs, gpus = classified.jobs, classified.gpus
    found.append(classified.findings)
    found.append(judge_by_rules(jobs, gpus, node_minutes, ruleset, told=said(pl.concat(found))))
    findings = pl.concat(found)
    jobs = waste.judge(
        jobs,
        gpus,
        timelines,
        findings,
        idle_util=configuration.thresholds.idle_util,
        idle_minutes=configuration.waste.idle_minutes,
    )
    return Judged(jobs, gpus, findings)
