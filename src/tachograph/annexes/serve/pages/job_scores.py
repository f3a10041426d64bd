"""The GPU scores of a job, each way in which they were measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tachograph.annexes.serve.snapshot import View
from tachograph.api.job_scores import scores_of
from tachograph.api.parameters import JobParameters
from tachograph.report.score_ways import HEADINGS, way_remarks, way_row

PARAMETERS = JobParameters


def content(view: View, parameters: JobParameters) -> Mapping[str, Any]:
    """Return a row per way, and why they differ."""
    row = view.opened.run_of(parameters.key, cluster=parameters.cluster, run=parameters.run).row(
        0, named=True
    )
    found = scores_of(view.opened.lake, row)
    return {
        "headings": HEADINGS,
        "rows": list(map(way_row, found.ways)),
        "remarks": list(way_remarks(found.ways)),
        "job": found.job,
        "key": row["job_key"],
    }
