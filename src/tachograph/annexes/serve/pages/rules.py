"""The catalogue of rules, how often each holds here, and the back-test of a changed threshold."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Any

from tachograph.annexes.serve.snapshot import View
from tachograph.api.pages import Pending, Progress
from tachograph.api.parameters import JobChoiceParameters, Word
from tachograph.api.rule_jobs import Backtest, backtest
from tachograph.catalog.errors import UsageError
from tachograph.judge.judge import rules_in_use
from tachograph.judge.rules.listing import parameter_text
from tachograph.judge.rules.ruleset import with_settings
from tachograph.lake.filters import JobFilter

LIMIT_S = 20.0  # of a back-test
SHOWN = 50  # jobs whose verdict changes


class RulesParameters(JobChoiceParameters, frozen=True, kw_only=True):
    """`rule`: shown in full; `parameter`, `value`: its back-test with another threshold."""

    rule: Word = ""
    parameter: Word = ""
    value: Word = ""


PARAMETERS = RulesParameters


def content(view: View, parameters: RulesParameters) -> Mapping[str, Any]:
    """Return catalogue, counts, one rule and its back-test. Errors: NotFoundError: unknown rule."""
    ruleset = rules_in_use(view.configuration)
    chosen = ruleset.only([parameters.rule]).entries if parameters.rule else ()
    tested: Backtest | None = None
    pending: Pending | None = None
    counted = view.jobs.verdict_counts(JobFilter()).select("code", "verdict", "jobs")
    problem = ""
    if chosen and parameters.parameter and parameters.value:
        try:
            answer = _tested(view, parameters)
            if isinstance(answer, Pending):
                pending = answer
            else:
                tested = answer
        except UsageError as wrong:
            problem = f"{wrong.what.removeprefix('--set ')}; {wrong.do}"
    return {
        "entries": ruleset.entries,
        "disabled": ruleset.disabled,
        "errors": ruleset.errors if view.viewer.sees_server else (),
        "chosen": chosen,
        "numbers": {(code, verdict): jobs for code, verdict, jobs in counted.rows()},
        "tested": tested,
        "changed": None if tested is None else tested.changes.head(SHOWN),
        "pending": pending,
        "testing": pending is not None,
        "problem": problem,
        "parameters": parameters,
        "parameter_text": parameter_text,
        "jobs": len(view.jobs),
    }


def _tested(view: View, parameters: RulesParameters) -> Backtest | Pending:
    before = rules_in_use(view.configuration).only([parameters.rule])
    after = with_settings(before, [f"{parameters.parameter}={parameters.value}"])
    if after == before:
        raise UsageError("the threshold is unchanged", do="give another value")
    parameters = view.of_recent(parameters)
    wanted = parameters.job_filter(now=view.now, zone_name=view.zone_name)
    view.jobs.count(wanted)  # a malformed condition is reported at once
    return view.made(_judged_again, parameters)


def _judged_again(view: View, _: Progress, parameters: RulesParameters) -> Backtest:
    before = rules_in_use(view.configuration).only([parameters.rule])
    after = with_settings(before, [f"{parameters.parameter}={parameters.value}"])
    jobs = view.jobs.matching(parameters.job_filter(now=view.now, zone_name=view.zone_name))
    return backtest(view.opened.lake, jobs, before, after, clock=monotonic, limit_s=LIMIT_S)
