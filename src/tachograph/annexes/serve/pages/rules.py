"""The catalogue of rules, and how often each holds here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tachograph.annexes.serve.snapshot import View
from tachograph.api.parameters import Parameters, Word
from tachograph.judge.judge import rules_in_use
from tachograph.judge.rules.listing import parameter_text
from tachograph.lake.filters import JobFilter


class RulesParameters(Parameters, frozen=True, kw_only=True):
    """`rule`: shown in full."""

    rule: Word = ""


PARAMETERS = RulesParameters


def content(view: View, parameters: RulesParameters) -> Mapping[str, Any]:
    """Return catalogue, counts and one rule. Errors: NotFoundError: unknown rule."""
    ruleset = rules_in_use(view.configuration)
    counted = view.jobs.verdict_counts(JobFilter()).select("code", "verdict", "jobs")
    return {
        "entries": ruleset.entries,
        "disabled": ruleset.disabled,
        "errors": ruleset.errors if view.viewer.sees_server else (),
        "chosen": ruleset.only([parameters.rule]).entries if parameters.rule else (),
        "numbers": {(code, verdict): jobs for code, verdict, jobs in counted.rows()},
        "parameter_text": parameter_text,
        "jobs": len(view.jobs),
    }
