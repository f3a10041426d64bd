"""`GET /jobs/{key}/kernels`: the kernels of the reports of Nsight Compute that are attached to one job."""

from __future__ import annotations

from typing import Any

from tachograph.api.job_sharing import MOST_KERNELS
from tachograph.lake.profiles import read_attached
from tachograph.sharing.attached import job_kernels
from tachograph.sharing.calibration import calibration_of
from tachograph.sharing.job_kernels import AttachedReport
from tachograph.web.answers import ObjectAnswer
from tachograph.web.parameters import JobParameters
from tachograph.web.shapes import TEXT, ObjectShape, Schema, described, list_of, type_schema
from tachograph.web.snapshot import View

PARAMETERS = JobParameters


def reports_schema() -> Schema:
    """Return the schema of the reports that are attached to a job."""
    return described("Reports attached to it, the first one first, with their longest kernels.", list_of(_report()))


def _report() -> Schema:
    return type_schema(AttachedReport)


def _properties() -> dict[str, Any]:
    return {"job_key": described("The run of the job.", TEXT), "reports": reports_schema()}


RETURNS = ObjectShape(_properties)


def answer(view: View, parameters: JobParameters) -> ObjectAnswer:
    """Return the reports, with up to MOST_KERNELS kernels of each."""
    row = view.opened.run_of(parameters.key, cluster=parameters.cluster, run=parameters.run).row(0, named=True)
    attached = read_attached(view.opened.lake, row["job_key"])
    reports = job_kernels(attached, calibration_of(view.configuration), most=MOST_KERNELS).reports if attached else ()
    return ObjectAnswer({"job_key": row["job_key"], "reports": reports})
