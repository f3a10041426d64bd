"""What the columns and sums on the pages mean; headings lead to their place here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tachograph.annexes.serve.shapes import OF_FINDINGS, public_columns
from tachograph.annexes.serve.snapshot import View
from tachograph.api.parameters import Parameters
from tachograph.catalog.counters import COUNTERS
from tachograph.catalog.tables import JOB_SUMMARIES

PARAMETERS = Parameters
COLUMNS = {column.name: column for column in (*public_columns(JOB_SUMMARIES), *OF_FINDINGS)}
SUMS: Mapping[str, str] = {
    "used": "GPU-hours held by these jobs: GPUs times run time, also without work.",
    "lost": "GPU-hours of ended jobs in which a GPU did no work, by one cause each. Hours that were "
    "not measured are never counted as lost.",
    "recoverable": "Lost GPU-hours that a change of the job would have given to others, under the "
    "assumptions listed on the page Waste.",
    "recovered": "GPU-hours that were lost less than the share of the weeks before would let one "
    "expect.",
}


def content(view: View, parameters: Parameters) -> Mapping[str, Any]:
    """Return the meaning of sums and columns."""
    return {"sums": SUMS, "columns": COLUMNS, "counters": _counters()}


def _counters() -> dict[str, str]:
    """Return {column: what its counter is}; others are explained by their own sentence."""
    return {
        f"{counter.name}_{statistic}": counter.sentence
        for counter in COUNTERS
        for statistic in ("mean", "max")
    }
