"""What comes of a rule over one job."""

from __future__ import annotations

from collections.abc import Mapping

from tachograph.rules.checker import Program
from tachograph.rules.model import BUDGET, Budget, Outcome, Ranks


def evaluate(program: Program, job: Ranks, parameters: Mapping[str, float], budget: Budget = BUDGET) -> Outcome:
    """Return the outcome; it never raises, whatever the rule says and the job holds."""
    raise NotImplementedError
