"""`GET /jobs/{key}/scores`: the GPU scores of one job, each way in which they were measured."""

from __future__ import annotations

from typing import Any

from tachograph.api.job_scores import scores_of
from tachograph.catalog.tables import SCORES
from tachograph.judge.score_ways import TITLES
from tachograph.report.score_ways import ways_json
from tachograph.web.answers import ObjectAnswer
from tachograph.web.parameters import JobParameters
from tachograph.web.shapes import TEXT, ObjectShape, described, list_of, object_of
from tachograph.web.snapshot import View

PARAMETERS = JobParameters


def _properties() -> dict[str, Any]:
    score = described("0 best, 100 worst. Null: not measured.", {"type": ["number", "null"]})
    way = {
        "way": described("How they were measured.", {"type": "string", "enum": list(TITLES)}),
        **dict.fromkeys(SCORES, score),
        "basis": described("What they are of.", TEXT),
        "notes": described("What limits them here.", list_of(TEXT)),
        "differs": described("Why they differ from those of other ways.", TEXT),
    }
    return {
        "job_key": described("The run of the job.", TEXT),
        "job_id": described("The job, as people write it.", TEXT),
        "ways": described("A row per way.", list_of(object_of(way))),
    }


RETURNS = ObjectShape(_properties)


def answer(view: View, parameters: JobParameters) -> ObjectAnswer:
    """Return what `tachograph scores ID --json` prints."""
    row = view.opened.run_of(parameters.key, cluster=parameters.cluster, run=parameters.run).row(0, named=True)
    found = scores_of(view.opened.lake, row, view.configuration)
    return ObjectAnswer({"job_key": row["job_key"], **ways_json(found.job, found.ways)})
