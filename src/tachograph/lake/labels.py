"""Labels: findings of jobs that a person confirmed or rejected on a page."""

from __future__ import annotations

from datetime import datetime

import polars as pl

from tachograph.catalog.errors import LakeError
from tachograph.catalog.tables import LABELS
from tachograph.lake.delta import COMMIT_ATTEMPTS, Lake

# The one name of all appends: a name of its own for each would stay in the log for ever.
_APPENDS = "labels"


def write_label(
    lake: Lake,
    job_key: str,
    job_id: str,
    code: str,
    *,
    holds: bool | None,
    by: str,
    at: datetime,
    comment: str | None = None,
) -> None:
    """Record whether a finding is right; None withdraws the label. The last label counts.

    Errors: LakeError where the lake cannot be written.
    """
    values = (job_key, job_id, code, holds, by, at, comment)
    row = pl.DataFrame([values], schema=LABELS.row_schema, orient="row")
    for _ in range(COMMIT_ATTEMPTS):
        before = lake.mark(LABELS, _APPENDS) or 0
        done = lake.append(LABELS, row, app_id=_APPENDS, mark=before + 1, after=before)
        if not (done.known or done.overtaken):
            return
    raise LakeError(
        "other processes write labels at the same time", where=lake.uri(LABELS), do="try again"
    )


def read_labels(lake: Lake) -> pl.DataFrame:
    """Return the valid labels, one per (job_key, code), without withdrawn ones."""
    return lake.latest(LABELS).filter(pl.col("holds").is_not_null())
