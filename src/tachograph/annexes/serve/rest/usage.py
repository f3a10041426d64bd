"""Endpoints of sums over jobs: usage of users and accounts, waste, advice."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, get_args

import msgspec

from tachograph.annexes.serve.snapshot import View
from tachograph.api.answers import ObjectAnswer, RowLimit
from tachograph.api.choices import JobChoice
from tachograph.api.endpoints import (
    BOOLEAN,
    COUNT,
    MOMENT,
    NUMBER,
    OBJECT,
    TEXT,
    Endpoint,
    ObjectShape,
    Schema,
    described,
    field_schemas,
    list_of,
    object_of,
    or_null,
)
from tachograph.api.parameters import (
    JobChoiceParameters,
    Parameters,
    UsageParameters,
    Word,
    says,
)
from tachograph.api.viewer import Role
from tachograph.judge.advice.advise import TOPICS, Confidence
from tachograph.judge.advice.past_jobs import LEVELS
from tachograph.judge.advice.request import JobRequest
from tachograph.judge.capacity import CAPACITY_LABELS, CapacityReport
from tachograph.judge.ledger import WasteReport
from tachograph.judge.usage import UsageReport
from tachograph.report.json_values import json_values
from tachograph.report.waste import OF_HEADINGS, waste_json

_LEDGER = {
    "jobs": "Jobs in the ledger: ended, measured, with whole GPUs.",
    "gpu_hours": "GPU-hours that these jobs held. Unit: h.",
    "first": "Start of the first job. Null: no job.",
    "last": "End of the last job. Null: no job.",
    "causes": "A row per cause; time in use, by whether work was seen; time not measured.",
    "left_out": "A row per reason for leaving jobs out of the ledger.",
    "assumptions": "Assumptions under which hours are recoverable.",
    "by": "What the rows are grouped by.",
    "groups": "A row per group, largest loss first. Null: grouped by cause only.",
    "jobs_of": "The cause whose jobs are listed. Null: none.",
    "concerned": "Jobs of this cause, largest loss first. Null: not requested.",
    "currency": "",
    "unpriced_jobs": "Jobs without a price.",
}
_USAGE = {
    "jobs": "Number of jobs.",
    "gpu_hours": "GPU-hours of jobs with known GPUs, running ones included. Unit: h.",
    "weeks": (
        "A row per week in which jobs ended, oldest first: what was lost, and recovered "
        "against the weeks before."
    ),
    "days": (
        "A row per day, oldest first: GPU-hours by use, those of a job spread evenly over its run "
        "time; left_out: of jobs that are not in the ledger."
    ),
    "findings": (
        "A row per reported finding, most lost GPU-hours first, with the advice for the job that "
        "lost most."
    ),
    "worst": "Jobs with the most lost GPU-hours.",
    "queue": "Jobs by recoverable GPU-hours, largest first, with the main cause.",
    "running": "Running jobs, latest first.",
}


class LedgerParameters(JobChoiceParameters, frozen=True, kw_only=True):
    """Job filter, and lists in addition to the causes."""

    by: Annotated[
        Word, says("Groups: cause (none), user, account, partition, cluster or gpu_model.")
    ] = "cause"
    jobs: Annotated[Word, says("A cause whose jobs are listed, or all.")] | None = None
    top: Annotated[RowLimit, says("Maximum number of groups and of jobs.")] | None = None


def _ledger_schemas() -> Schema:
    fields = field_schemas(WasteReport, without=OF_HEADINGS)
    capacity = object_of(
        {
            **field_schemas(CapacityReport, without=("zone_name",)),
            **{
                name: described(f"GPU-hours: {label}. Unit: h.", NUMBER)
                for name, label in {"installed": "installed", **CAPACITY_LABELS}.items()
            },
        }
    )
    return {
        **{name: described(_LEDGER[name], schema) for name, schema in fields.items()},
        "capacity": described(
            "All installed GPU-hours by what became of them. Unit: h. Null: no node was polled, "
            "only some jobs are chosen, or the viewer does not see all jobs.",
            or_null(capacity),
        ),
        "currency": described("Currency of costs. Null: no price is configured.", or_null(TEXT)),
        "lost": described("GPU-hours lost to all causes. Unit: h.", NUMBER),
        "recoverable": described(
            "GPU-hours that are recoverable under the assumptions. Unit: h.", NUMBER
        ),
    }


def waste(view: View, parameters: LedgerParameters) -> ObjectAnswer:
    """Return the ledger as `tachograph waste --json`; as a table as `--csv`."""
    page = view.opened.waste(
        parameters.by,
        jobs_of=parameters.jobs,
        top=parameters.top,
        capacity=view.viewer.sees_all,
        **parameters.chosen(),
    )
    report = page.report
    groups = report.causes if report.groups is None else report.groups
    return ObjectAnswer(page.json(), rows=groups if report.concerned is None else report.concerned)


def _usage_schemas() -> Schema:
    fields = field_schemas(UsageReport, without=("waste", "zone_name"))
    return {
        "name": described("Name of the user or account.", TEXT),
        **{name: described(_USAGE[name], schema) for name, schema in fields.items()},
        "recovered": described(
            "GPU-hours recovered in all weeks. Unit: h. Null: one week.", NUMBER
        ),
        "waste": described("The ledger of these jobs.", object_of(_ledger_schemas())),
    }


def user(view: View, parameters: UsageParameters) -> ObjectAnswer:
    """Return a user's usage in visible jobs. Errors: NotFoundError without jobs."""
    return _usage(view, parameters.name, parameters.choice("user"))


def account(view: View, parameters: UsageParameters) -> ObjectAnswer:
    """Return an account's usage in visible jobs. Errors: NotFoundError without jobs."""
    return _usage(view, parameters.name, parameters.choice("account"))


def _usage(view: View, name: str, which: JobChoice) -> ObjectAnswer:
    """The usage; as a table its weeks."""
    usage = view.opened.usage(**which)
    values = {
        "name": name,
        **json_values(usage, without=("waste", "zone_name")),
        "recovered": usage.recovered,
        "waste": waste_json(usage.waste),
    }
    return ObjectAnswer(values, rows=usage.weeks)


class AdviceParameters(Parameters, frozen=True, kw_only=True):
    """The job to be submitted: a script, or names, which override the script."""

    script: Annotated[str, msgspec.Meta(max_length=1_000_000), says("Text of the job script.")] = ""
    user: (
        Annotated[
            Word, says("User of the job (default: you); others only for roles that see all jobs.")
        ]
        | None
    ) = None
    name: Annotated[Word, says("Name of the job.")] | None = None
    partition: Annotated[Word, says("Partition.")] | None = None
    gpus: Annotated[int, msgspec.Meta(ge=0, le=1_000_000), says("GPUs of the job.")] | None = None


def _advice_schemas() -> Schema:
    of_line = {
        "topic": described("Topic of the line.", {**TEXT, "enum": list(TOPICS)}),
        "value": described("Advised value. Null: no advice, see reason.", NUMBER),
        "asked": described("Requested value. Null: not given.", NUMBER),
        "option": described("Option for sbatch. Null: none.", or_null(TEXT)),
        "reason": described("Why there is no advice. Null: there is advice.", or_null(TEXT)),
        "confidence": described(
            "Confidence of the advice.", {**TEXT, "enum": list(get_args(Confidence))}
        ),
        "margin": described("Margin added to the largest use. Null: none.", NUMBER),
        "runs": described("Past jobs that support it.", COUNT),
        "of": described("Past jobs of the group.", COUNT),
        "jobs": described("Ids of the latest of these jobs.", list_of(TEXT)),
        "evidence": described("Further numbers.", OBJECT),
        "followed": described("True if the advice is reliable enough for a job script.", BOOLEAN),
        "sentence": described("The advice as a sentence.", TEXT),
    }
    level = or_null({**TEXT, "enum": list(LEVELS)})
    of_group = {
        "level": described("Similarity of the past jobs. Null: too few jobs.", level),
        "runs": described("Number of past jobs used.", COUNT),
        "since": described("Submission of the first. Null: none.", or_null(MOMENT)),
        "counted": described("Past jobs by level.", OBJECT),
    }
    of_request: Schema = {name: {} for name in asdict(JobRequest())}
    lines = list_of(_keyed(of_line))
    return {
        "request": described("The request as it was understood.", _keyed(of_request)),
        "group": described("The past jobs used.", _keyed(of_group)),
        "headline": described("The advice in a sentence.", TEXT),
        "lines": described("One per topic; empty without past jobs.", lines),
        "sbatch": described("Lines for the job script.", list_of(TEXT)),
    }


def _keyed(properties: Schema) -> Schema:
    """An object of some of these keys."""
    return {**OBJECT, "properties": properties, "additionalProperties": False}


def advice(view: View, parameters: AdviceParameters) -> ObjectAnswer:
    """Return the advice; for other users' jobs only viewers of all jobs get the past jobs."""
    viewer = view.viewer
    of_user = parameters.user or viewer.name
    page = view.opened.advise(
        parameters.script,
        user=of_user,
        name=parameters.name,
        partition=parameters.partition,
        gpus=parameters.gpus,
        history=viewer.sees_all or of_user == viewer.name,
    )
    return ObjectAnswer(page.json())


ENDPOINTS = (
    Endpoint(
        "/users/{name}",
        "user",
        "What a user used: by week, lost and recovered.",
        user,
        ObjectShape(_usage_schemas, table=True),
        UsageParameters,
    ),
    Endpoint(
        "/accounts/{name}",
        "account",
        "What an account used: by week, lost and recovered.",
        account,
        ObjectShape(_usage_schemas, table=True),
        UsageParameters,
    ),
    Endpoint(
        "/waste",
        "waste",
        "The ledger of GPU time that did no work.",
        waste,
        ObjectShape(_ledger_schemas, table=True),
        LedgerParameters,
        least=Role.ANONYMOUS,
    ),
    Endpoint(
        "/advice",
        "advice",
        "What to request for a job, from the past jobs of its user.",
        advice,
        ObjectShape(_advice_schemas, choices=False),
        AdviceParameters,
        method="POST",
        versioned=False,
        light=True,  # a form waits for it, and it is as small as the history of one user
    ),
)
