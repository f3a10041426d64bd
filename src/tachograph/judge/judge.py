"""What is judged of jobs that are over: one step per layer, each a pure function of what was summarized."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from tachograph.catalog.config import Configuration
from tachograph.judge import scores, waste
from tachograph.judge.checks import precedence, summaries
from tachograph.judge.classes import verdicts
from tachograph.judge.rules.ruleset import RuleSet
from tachograph.judge.rules.verdicts import judge_rules as judge_by_rules
from tachograph.judge.rules_in_use import said
from tachograph.judge.workload import jobs as jobs_module


@dataclass(frozen=True, slots=True)
class JudgedTables:
    """Summaries and GPUs with their judged columns, and findings; each without `seq`."""

    jobs: pl.DataFrame
    gpus: pl.DataFrame
    findings: pl.DataFrame


def judge_jobs(
    jobs: pl.DataFrame,
    gpus: pl.DataFrame,
    timelines: pl.DataFrame,
    node_minutes: pl.DataFrame,
    *,
    configuration: Configuration,
    ruleset: RuleSet,
) -> JudgedTables:
    """Return what is to be written of some jobs.

    `jobs`: rows of job_summaries. `gpus`: their rows of job_gpus. `timelines`: one row per (job_key, minute), in order,
    as `reduce.timelines.together` returns. `node_minutes`: HOST_CHARACTERISTICS, one row per (job_key, node, minute),
    in order; none where the hosts tell nothing. `ruleset`: `analyze.rules.rules_in_use`.
    """
    of_classes = verdicts.judge_classes(jobs, gpus, timelines, node_minutes, configuration.classes)
    given = summaries.judge_summaries(jobs, gpus, timelines, configuration.thresholds, of_classes)
    found = [given, precedence.settled(of_classes, given)]
    scored = scores.judge_scores(jobs, gpus, configuration.scores)
    jobs, gpus = scored.jobs, scored.gpus
    found.append(scored.findings)
    classified = jobs_module.judge_workload(jobs, gpus, found[0])
    jobs, gpus = classified.jobs, classified.gpus
    found.append(classified.findings)
    found.append(judge_by_rules(jobs, gpus, node_minutes, ruleset, told=said(pl.concat(found))))
    findings = pl.concat(found)
    jobs = waste.judge_waste(
        jobs,
        gpus,
        timelines,
        findings,
        idle_util=configuration.thresholds.idle_util,
        idle_minutes=configuration.waste.idle_minutes,
    )
    return JudgedTables(jobs, gpus, findings)
