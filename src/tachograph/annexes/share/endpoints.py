"""Endpoint of the annex share: kernels of reports that are attached to a job."""

from __future__ import annotations

from tachograph.api.answers import ObjectAnswer
from tachograph.api.endpoints import (
    TEXT,
    Endpoint,
    ObjectShape,
    Schema,
    described,
    list_of,
    type_schema,
)
from tachograph.api.pages import PageView
from tachograph.api.parameters import JobParameters
from tachograph.report.job_kernels import MOST_KERNELS, AttachedReport


def kernels(view: PageView, parameters: JobParameters) -> ObjectAnswer:
    """Return the reports attached to one job, with up to MOST_KERNELS kernels of each."""
    # The service lists its endpoints when it starts, and needs the estimator at a request only.
    from tachograph.annexes.share.attached import attached_job_kernels

    run = view.opened.run_of(parameters.key, cluster=parameters.cluster, run=parameters.run)
    key = run.item(0, "job_key")
    attached = attached_job_kernels(view.opened.lake, key, view.configuration, most=MOST_KERNELS)
    return ObjectAnswer({"job_key": key, "reports": attached.reports})


def _schemas() -> Schema:
    reports = "Reports attached to the job, oldest first, with their longest kernels."
    return {
        "job_key": described("The run of the job.", TEXT),
        "reports": described(reports, list_of(type_schema(AttachedReport))),
    }


ENDPOINTS = (
    Endpoint(
        "/jobs/{key}/kernels",
        "job_kernels",
        "Kernels of the reports attached to a job.",
        kernels,
        ObjectShape(_schemas),
        JobParameters,
    ),
)
