"""`GET /jobs/{key}`: the report of one job."""

from __future__ import annotations

from typing import Any

from tachograph.catalog.tables import JOB_GPUS, JOB_SUMMARIES
from tachograph.judge.culprit import Culprit
from tachograph.judge.finding import Finding
from tachograph.web.answers import ObjectAnswer
from tachograph.web.parameters import JobParameters
from tachograph.web.rest.job_kernels import reports_schema
from tachograph.web.rest.job_steps import steps_schemas
from tachograph.web.shapes import (
    COUNT,
    NUMBER,
    TEXT,
    ObjectShape,
    TableShape,
    columns_schema,
    described,
    list_of,
    object_of,
    or_null,
    public_columns,
    type_schema,
)
from tachograph.web.snapshot import View

PARAMETERS = JobParameters


def _properties() -> dict[str, Any]:
    finding = type_schema(Finding)
    series = list_of(NUMBER)
    gpu = {"node": TEXT, "gpu": COUNT, "mig": or_null(COUNT), "values": series}
    timeline = {
        "bin_s": NUMBER,
        "bins": COUNT,
        "counter": or_null(TEXT),
        "gpus": list_of(object_of(gpu)),
        "means": {"type": "object", "additionalProperties": series},
    }
    return {
        **columns_schema(public_columns(JOB_SUMMARIES)),
        "node_list": described("Its nodes, folded.", TEXT),
        "headline": described("What it did, in a sentence.", TEXT),
        "next_time": described(
            "Options for the next request, and why.", or_null(object_of({"line": TEXT, "why": or_null(TEXT)}))
        ),
        "culprit": described(
            "Likely culprit of a hang of several GPUs, or why none is named.", or_null(type_schema(Culprit))
        ),
        "findings": described("Those that are reported, most urgent first.", list_of(finding)),
        "verdicts": described("Every check with its result.", list_of(finding)),
        "evidence": described(
            "Numbers behind the findings, by code.",
            {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": NUMBER}},
        ),
        "per_gpu": described("A row per GPU.", list_of(TableShape(public_columns(JOB_GPUS)).row_schema())),
        "timeline": described("Activity in bins of equal length.", object_of(timeline)),
        "steps": described("Its steps.", object_of(steps_schemas())),
        "kernels": reports_schema(),
        "caveats": described("What limits these numbers.", list_of(TEXT)),
        "other_runs": described("job_key of each other run of a requeued job.", list_of(TEXT)),
    }


RETURNS = ObjectShape(_properties)


def answer(view: View, parameters: JobParameters) -> ObjectAnswer:
    """Return the report, as `tachograph job ID --json` prints it."""
    return ObjectAnswer(view.job(parameters.key, cluster=parameters.cluster, run=parameters.run).json())
