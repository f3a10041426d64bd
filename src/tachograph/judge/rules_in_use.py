"""The rules of an analysis: which are in use, and what is told beside them."""

from __future__ import annotations

import polars as pl

from tachograph.catalog.codes import known_codes
from tachograph.catalog.config import Configuration
from tachograph.judge.checks import summaries
from tachograph.judge.checks.precedence import SUPERSEDED
from tachograph.judge.rules.ruleset import RuleSet, read_rules

# {finding: advice that is not worth telling beside it}
_INSTEAD = {**{rule.code: rule.supersedes for rule in summaries.SUMMARY_CHECKS}, **SUPERSEDED}
# codes that no rule of a site may have: a job has one finding of each code
RESERVED = frozenset(known_codes())


def rules_in_use(configuration: Configuration) -> RuleSet:
    """Return the rules that jobs are judged by, those of the site's folder as they are now.

    Errors: ConfigError.
    """
    return read_rules(configuration.rules, reserved=RESERVED)


def said(findings: pl.DataFrame) -> pl.DataFrame:
    """Return (job_key, code) of findings that hold, and of advice that one of them makes not worth telling.

    >>> found = pl.DataFrame({"job_key": ["c:1:0"], "code": ["stalled"], "verdict": ["yes"]})
    >>> said(found)["code"].sort().to_list()
    ['bursty', 'stalled']
    """
    holds = findings.filter(pl.col("verdict") == "yes").select("job_key", "code")
    pairs = [(code, instead) for code, others in _INSTEAD.items() for instead in others]
    beside = pl.DataFrame(pairs, schema={"code": pl.String(), "instead": pl.String()}, orient="row")
    quiet = holds.join(beside, on="code").select("job_key", code="instead")
    return pl.concat([holds, quiet]).unique()
