"""Jobs with the data that rules need, in batches; the back-test of a rule within a time limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import polars as pl

from tachograph.catalog.tables import JOB_NODE_MINUTES
from tachograph.judge.rules.metrics import OF_HOSTS
from tachograph.judge.rules.ruleset import RuleSet
from tachograph.judge.rules.verdicts import changes, compare, counts
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_gpus, read_node_minutes

BATCH = 10_000  # jobs whose GPUs are in memory at a time
SMALL_BATCH = 1_000  # where the time is limited


def rule_batches(
    lake: Lake, jobs: pl.DataFrame, *rulesets: RuleSet, size: int = BATCH
) -> Iterator[tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]]:
    """Yield jobs with their GPUs, and with node minutes if a rule names host metrics."""
    hosts = any(not OF_HOSTS.isdisjoint(ruleset.metrics) for ruleset in rulesets)
    for first in range(0, max(1, jobs.height), size):
        some = jobs.slice(first, size)
        nodes = read_node_minutes(lake, some) if hosts else JOB_NODE_MINUTES.empty()
        yield some, read_gpus(lake, some), nodes


@dataclass(frozen=True, slots=True)
class Backtest:
    """Effect of changed rules.

    changes: jobs whose verdict differs; counts: jobs by rule and both verdicts.

    judged: of `jobs` that were chosen, those for which there was time, the newest.
    """

    changes: pl.DataFrame
    counts: pl.DataFrame
    judged: int
    jobs: int


def backtest(
    lake: Lake,
    jobs: pl.DataFrame,
    before: RuleSet,
    after: RuleSet,
    *,
    clock: Callable[[], float],
    limit_s: float,
) -> Backtest:
    """Return verdicts that change between two versions of rules, newest jobs first.

    `jobs`: rows of job_summaries. No batch is begun after `limit_s` seconds of `clock`.

    No batch is begun after `limit_s` seconds of `clock`.
    """
    newest = jobs.sort("start", "job_key", descending=True)
    until, parts, judged = clock() + limit_s, [], 0
    for tables in rule_batches(lake, newest, before, after, size=SMALL_BATCH):
        parts.append(compare(*tables, before, after))
        judged += tables[0].height
        if clock() > until:
            break
    compared = pl.concat(parts)
    names = jobs.select("job_key", "job_id", "display_id", "user", "account")
    named = changes(compared).join(names, on="job_key", how="left", maintain_order="left")
    return Backtest(named, counts(compared), judged, jobs.height)
