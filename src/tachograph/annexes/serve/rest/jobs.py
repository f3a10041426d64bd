"""Endpoints of jobs: lists, and details of one."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal
from urllib.parse import quote

import msgspec
import polars as pl

from tachograph.annexes.serve.jobs import JobListParameters
from tachograph.annexes.serve.labels import LabelForm, record_label
from tachograph.annexes.serve.snapshot import View
from tachograph.api.answers import (
    ObjectAnswer,
    Paging,
    TableAnswer,
    decode_cursor,
    page_of,
    rows_behind,
)
from tachograph.api.endpoints import (
    BOOLEAN,
    COUNT,
    MOMENT,
    NUMBER,
    OBJECT,
    OF_FINDINGS,
    PAGE,
    TEXT,
    Endpoint,
    ObjectShape,
    Schema,
    TableShape,
    columns_schema,
    described,
    list_of,
    object_of,
    or_null,
    public_columns,
    table_shape,
    type_schema,
)
from tachograph.api.parameters import JobChoiceParameters, JobParameters, Parameters, Word, says
from tachograph.api.viewer import Role
from tachograph.catalog.tables import (
    FINDINGS,
    JOB_GPUS,
    JOB_MINUTES,
    JOB_NODE_MINUTES,
    JOB_NODES,
    JOB_SUMMARIES,
    LABELS,
    STEP_SUMMARIES,
    LakeTable,
)
from tachograph.judge.culprit import Culprit
from tachograph.judge.finding import CheckedValue, Finding
from tachograph.judge.waste import EnergyEstimate
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter
from tachograph.lake.labels import read_labels
from tachograph.lake.problems import lake_errors
from tachograph.lake.query import read_consistently, scan_rows
from tachograph.report.company import GpuCompany
from tachograph.report.job_kernels import AttachedReport
from tachograph.report.jobs import KNOWN


def jobs(view: View, parameters: JobListParameters, paging: Paging) -> TableAnswer:
    """Return a part of the list of jobs, as `tachograph jobs --json` prints it."""
    page = view.jobs.on_node(parameters.node, view.opened.lake).page(
        parameters.job_filter(now=view.now, zone_name=view.zone_name),
        columns=paging.names if set(KNOWN).issuperset(paging.names) else (),
        sort=parameters.sort,
        limit=paging.limit,
        after=paging.after,
        zone_name=view.zone_name,
    )
    return TableAnswer(page.table.frame, page.cursor, page.table.matching)


_JOBS_SHAPE = table_shape(JOB_SUMMARIES, *OF_FINDINGS)
_MY_COLUMNS = (
    *("job_key", "job_id", "display_id", "cluster", "name", "account", "partition", "state"),
    *("start", "end", "elapsed_s", "gpus", "gpu_util_mean", "hbm_peak_fraction", "coverage"),
)
_MY_JOBS_SHAPE = TableShape(
    (
        *(column for column in JOB_SUMMARIES.columns if column.name in _MY_COLUMNS),
        *OF_FINDINGS,
        PAGE,
    )
)


class MyJobsParameters(Parameters, frozen=True, kw_only=True):
    """Filters of one's own jobs by state."""

    state: Annotated[
        tuple[Word, ...], says("Base state, such as RUNNING or COMPLETED; any of them.")
    ] = ()


def my_jobs(view: View, parameters: MyJobsParameters, paging: Paging) -> TableAnswer:
    """Return a part of the viewer's own jobs, the latest first."""
    page = view.jobs.page(
        JobFilter(users=(view.viewer.name,), states=parameters.state),
        columns=_MY_COLUMNS,
        limit=paging.limit,
        after=paging.after,
    )
    frame = page.table.frame
    names = [column.name for column in _MY_JOBS_SHAPE.columns if column is not PAGE]
    links = [f"job/{quote(key, safe='')}" for key in frame.get_column("job_key")]
    rows = frame.select(names).with_columns(pl.Series(PAGE.name, links, dtype=pl.String))
    return TableAnswer(rows, page.cursor, page.table.matching)


def _run(view: View, parameters: JobParameters) -> pl.DataFrame:
    """The row of the run of a job that is requested."""
    return view.opened.run_of(parameters.key, cluster=parameters.cluster, run=parameters.run)


_JOB_KEY = described("The run of the job.", TEXT)


def _reports_schema() -> Schema:
    sentence = "Reports attached to the job, oldest first, with their longest kernels."
    return described(sentence, list_of(type_schema(AttachedReport)))


def _steps_schemas() -> Schema:
    row = {
        **columns_schema(public_columns(STEP_SUMMARIES)),
        "by_srun": described(
            "True if srun started it, false if Slurm started it with the job.", BOOLEAN
        ),
        "idle": described("Whether its GPUs were idle. Null: undetermined.", or_null(BOOLEAN)),
    }
    gap = {
        "begin": MOMENT,
        "end": MOMENT,
        "elapsed_s": NUMBER,
        "measured_s": NUMBER,
        "idle_s": NUMBER,
    }
    return {
        "headline": described("Which steps were idle, and how long no step ran.", TEXT),
        "steps": described("A row per step.", list_of(object_of(row))),
        "gaps": described("Times in which no srun step ran.", list_of(object_of(gap))),
    }


def _job_schemas() -> Schema:
    finding = type_schema(Finding)
    series = list_of(NUMBER)
    gpu = {"node": TEXT, "gpu": COUNT, "mig": or_null(COUNT), "values": series}
    timeline = {
        "bin_s": NUMBER,
        "bins": COUNT,
        "counter": or_null(TEXT),
        "gpus": list_of(object_of(gpu)),
        "means": {**OBJECT, "additionalProperties": series},
    }
    numbers = {**OBJECT, "additionalProperties": {**OBJECT, "additionalProperties": NUMBER}}
    proposal = object_of({"line": TEXT, "why": or_null(TEXT)})
    per_gpu = TableShape(public_columns(JOB_GPUS)).row_schema()
    per_node = TableShape(public_columns(JOB_NODES)).row_schema()
    return {
        **columns_schema(public_columns(JOB_SUMMARIES)),
        "node_list": described("Its nodes as a host list.", TEXT),
        "headline": described("Summary of the job in a sentence.", TEXT),
        "next_time": described("Options for the next request, and why.", or_null(proposal)),
        "culprit": described(
            "Likely culprit of a hang of several GPUs, or why none is named.",
            or_null(type_schema(Culprit)),
        ),
        "findings": described("Reported findings, most urgent first.", list_of(finding)),
        "verdicts": described("Every check with its result.", list_of(finding)),
        "evidence": described("Numbers behind the findings, by code.", numbers),
        "per_gpu": described("A row per GPU.", list_of(per_gpu)),
        "per_node": described(
            "A row per node and step with samples of cgroups.", list_of(per_node)
        ),
        "energy_estimate": described(
            "Energy with the overhead of the site, emissions. Null: unknown or not configured.",
            or_null(type_schema(EnergyEstimate)),
        ),
        "timeline": described("Activity in bins of equal length.", object_of(timeline)),
        "steps": described("Its steps.", object_of(_steps_schemas())),
        "kernels": _reports_schema(),
        "caveats": described("Limits of these numbers, as sentences.", list_of(TEXT)),
        "other_runs": described("job_key of each other run of a requeued job.", list_of(TEXT)),
        "company": described("Other jobs on its GPUs.", type_schema(GpuCompany)),
    }


def job(view: View, parameters: JobParameters) -> ObjectAnswer:
    """Return the report of one job, as `tachograph job ID --json` prints it."""
    page = view.job(parameters.key, cluster=parameters.cluster, run=parameters.run)
    return ObjectAnswer(page.json())


def _page_of_minutes(
    lake: Lake, table: LakeTable, run: pl.DataFrame, paging: Paging
) -> TableAnswer:
    """Return the requested page of a table by minute, sorted by key, for `run`.

    Only the rows of GPUs, or nodes, that are in that part are read whole. Errors: LakeError,
    UsageError as `page_of`.
    """

    def read() -> TableAnswer:
        rows, of_unit = scan_rows(lake, table, run), list(table.key[:-1])
        with lake_errors(lake.uri(table)):
            units = rows.group_by(of_unit).len("rows").collect(engine="streaming").sort(of_unit)
            last = decode_cursor(paging.after)[:-1] if paging.after else None
            behind = pl.lit(value=True) if last is None else rows_behind(units, of_unit, last)
            begun = units.filter(~behind).tail(1)  # the cursor is within it, or after its last row
            remaining = pl.concat([begun, units.filter(behind)])
            row_limit = int(begun.get_column("rows").sum()) + paging.limit
            units_read = remaining.filter(
                pl.col("rows").cum_sum().shift(1, fill_value=0) <= row_limit
            ).select(of_unit)
            near = [
                pl.col(name).is_in(units_read.get_column(name).unique().implode())
                for name in ("job_key", "node")
            ]
            of_units = (
                rows.filter(*near)
                .join(units_read.lazy(), on=of_unit, how="semi", nulls_equal=True)
                .collect()
            )
        return replace(
            page_of(of_units.sort(*table.key), table.key, paging),
            matching=int(units.get_column("rows").sum()),
        )

    return read_consistently(lake, read)


def minutes(view: View, parameters: JobParameters, paging: Paging) -> TableAnswer:
    """Return a part of the rows of job_minutes of one job."""
    return _page_of_minutes(view.opened.lake, JOB_MINUTES, _run(view, parameters), paging)


def node_minutes(view: View, parameters: JobParameters, paging: Paging) -> TableAnswer:
    """Return a part of the rows of job_node_minutes of one job."""
    return _page_of_minutes(view.opened.lake, JOB_NODE_MINUTES, _run(view, parameters), paging)


def steps(view: View, parameters: JobParameters) -> ObjectAnswer:
    """Return headline, rows and gaps of the steps; as a table the rows of step_summaries."""
    page = view.job(parameters.key, cluster=parameters.cluster, run=parameters.run)
    values = {"job_key": page.report.summary["job_key"], **page.steps.json()}
    return ObjectAnswer(values, rows=view.opened.steps(_run(view, parameters)))


_FINDINGS_SHAPE = table_shape(
    FINDINGS,
    documents={
        "evidence": {**OBJECT, "additionalProperties": {"type": "number"}},
        "checks": list_of(type_schema(CheckedValue)),
    },
)


class JobFindingsParameters(JobParameters, frozen=True, kw_only=True):
    """Which job, and which verdict."""

    verdict: Annotated[
        Literal["yes", "no", "unknown", "all"],
        says(
            "yes: triggered and reported; no; unknown: not enough was measured; all: every verdict."
        ),
    ] = "yes"


def job_findings(view: View, parameters: JobFindingsParameters, paging: Paging) -> TableAnswer:
    """Return a part of the findings of one job, in order of code."""
    verdict = None if parameters.verdict == "all" else parameters.verdict
    rows = view.opened.findings(_run(view, parameters), verdict=verdict)
    return _FINDINGS_SHAPE.with_documents(page_of(rows, FINDINGS.key, paging))


def findings(view: View, parameters: JobChoiceParameters, paging: Paging) -> TableAnswer:
    """Return a page of findings of chosen jobs by job_key; `finding`: only these codes.

    Only the part is read from the table, after it was chosen among the short rows that are kept in
    memory.
    """
    which = parameters.job_filter(now=view.now, zone_name=view.zone_name)
    page = view.jobs.answers(which, limit=paging.limit, after=paging.after)
    of_jobs = view.jobs.rows(job_keys=page.rows.get_column("job_key"))
    rows = view.opened.findings(of_jobs, verdict=None)
    part = page.rows.select(FINDINGS.key).join(
        rows, on=FINDINGS.key, how="inner", maintain_order="left"
    )
    return _FINDINGS_SHAPE.with_documents(
        TableAnswer(part.select(rows.columns), page.cursor, page.matching)
    )


def labels(view: View, parameters: Parameters, paging: Paging) -> TableAnswer:
    """Return a part of the labels of visible jobs that count."""
    return page_of(read_labels(view.opened.lake).sort(*LABELS.key), LABELS.key, paging)


def _label_schemas() -> Schema:
    return {
        "job_key": described("The job as named in the request.", TEXT),
        "finding": described("Code of the finding.", TEXT),
        "label": described("The recorded label.", TEXT),
        "comment": described("Reason for the label. Null: none given.", or_null(TEXT)),
        "by": described("Who labelled it.", TEXT),
    }


def label_add(view: View, parameters: LabelForm) -> ObjectAnswer:
    """Record and return a label. Errors: NotFoundError for an unknown job or finding."""
    record_label(view, parameters)
    return ObjectAnswer({**msgspec.structs.asdict(parameters), "by": view.viewer.name})


ENDPOINTS = (
    Endpoint(
        "/jobs",
        "jobs",
        "Jobs, filtered and sorted.",
        jobs,
        _JOBS_SHAPE,
        JobListParameters,
        light=True,
    ),
    Endpoint(
        "/jobs/{key}",
        "job",
        "The report of one job.",
        job,
        ObjectShape(_job_schemas),
        JobParameters,
        light=True,
    ),
    Endpoint(
        "/jobs/{key}/minutes",
        "job_minutes",
        "Counters of the GPUs of a job by minute.",
        minutes,
        table_shape(JOB_MINUTES),
        JobParameters,
    ),
    Endpoint(
        "/jobs/{key}/node_minutes",
        "job_node_minutes",
        "Counters of its nodes by minute.",
        node_minutes,
        table_shape(JOB_NODE_MINUTES),
        JobParameters,
    ),
    Endpoint(
        "/jobs/{key}/findings",
        "job_findings",
        "What was checked in a job, and the results.",
        job_findings,
        _FINDINGS_SHAPE,
        JobFindingsParameters,
    ),
    Endpoint(
        "/jobs/{key}/steps",
        "job_steps",
        "The steps of a job, and what they did with its GPUs.",
        steps,
        ObjectShape(lambda: {"job_key": _JOB_KEY, **_steps_schemas()}, table=True),
        JobParameters,
    ),
    Endpoint(
        "/me/jobs",
        "my_jobs",
        "The jobs of who asks, in few columns.",
        my_jobs,
        _MY_JOBS_SHAPE,
        MyJobsParameters,
        light=True,
    ),
    Endpoint(
        "/findings",
        "findings",
        "Findings of jobs, filtered.",
        findings,
        _FINDINGS_SHAPE,
        JobChoiceParameters,
    ),
    Endpoint(
        "/labels",
        "labels",
        "Findings that a person confirmed or rejected.",
        labels,
        table_shape(LABELS),
        versioned=False,
    ),
    Endpoint(
        "/labels",
        "label_add",
        "Confirm or reject a finding of a job.",
        label_add,
        ObjectShape(_label_schemas, choices=False),
        LabelForm,
        least=Role.ADMIN,
        method="POST",
        versioned=False,
        light=True,
    ),
)
