"""`GET /jobs/{key}/steps`: the steps of one job."""

from __future__ import annotations

from typing import Any

from tachograph.catalog.tables import STEP_SUMMARIES
from tachograph.web.answers import ObjectAnswer
from tachograph.web.parameters import JobParameters
from tachograph.web.shapes import (
    MOMENT,
    NUMBER,
    TEXT,
    ObjectShape,
    columns_schema,
    described,
    list_of,
    object_of,
    public_columns,
)
from tachograph.web.snapshot import View

PARAMETERS = JobParameters


def steps_schemas() -> dict[str, Any]:
    """Return the schema of each key of steps, as `tachograph job ID --steps --json` prints them."""
    row = {
        **columns_schema(public_columns(STEP_SUMMARIES)),
        "by_srun": described("srun started it, not Slurm with the job.", {"type": "boolean"}),
        "idle": described("Whether its GPUs were idle. Null: undetermined.", {"type": ["boolean", "null"]}),
    }
    gap = {"begin": MOMENT, "end": MOMENT, "elapsed_s": NUMBER, "measured_s": NUMBER, "idle_s": NUMBER}
    return {
        "headline": described("Which were idle, and how long none ran.", TEXT),
        "steps": described("A row per step.", list_of(object_of(row))),
        "gaps": described("Times in which no srun step ran.", list_of(object_of(gap))),
    }


def _properties() -> dict[str, Any]:
    return {"job_key": described("The run of the job.", TEXT), **steps_schemas()}


RETURNS = ObjectShape(_properties, table=True)


def answer(view: View, parameters: JobParameters) -> ObjectAnswer:
    """Return headline, rows and gaps; as a table the rows of step_summaries."""
    page = view.job(parameters.key, cluster=parameters.cluster, run=parameters.run)
    rows = view.opened.steps(view.opened.run_of(parameters.key, cluster=parameters.cluster, run=parameters.run))
    return ObjectAnswer({"job_key": page.report.summary["job_key"], **page.steps.json()}, rows=rows)
