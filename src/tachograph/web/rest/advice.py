"""`POST /advice`: what to request for a job, from the past jobs of its user."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, get_args

import msgspec

from tachograph.judge.advice.advise import TOPICS, Confidence
from tachograph.judge.advice.past_jobs import LEVELS
from tachograph.judge.advice.request import JobRequest
from tachograph.web.answers import ObjectAnswer
from tachograph.web.parameters import Parameters, Word
from tachograph.web.shapes import COUNT, TEXT, ObjectShape, described, list_of, or_null
from tachograph.web.snapshot import View

_NUMBER = {"type": "number"}


def _says(sentence: str) -> msgspec.Meta:
    return msgspec.Meta(description=sentence)


class AdviceParameters(Parameters, frozen=True, kw_only=True):
    """The job that is to be submitted: a script, or names; what is named counts more than the script."""

    script: Annotated[str, msgspec.Meta(max_length=1_000_000), _says("Text of the job script.")] = ""
    user: Annotated[Word, _says("Its user, where that is not who asks: for those who see all jobs.")] | None = None
    name: Annotated[Word, _says("Name of the job.")] | None = None
    partition: Annotated[Word, _says("Partition.")] | None = None
    gpus: Annotated[int, msgspec.Meta(ge=0, le=1_000_000), _says("GPUs of the job.")] | None = None


PARAMETERS = AdviceParameters


def _properties() -> dict[str, Any]:
    of_request: dict[str, Any] = {name: {} for name in asdict(JobRequest())}
    of_line = {
        "topic": described("What it is about.", {**TEXT, "enum": list(TOPICS)}),
        "value": described("What is advised. Null: nothing, for the reason.", or_null(_NUMBER)),
        "asked": described("What is requested. Null: not given.", or_null(_NUMBER)),
        "option": described("The option for sbatch. Null: there is none.", or_null(TEXT)),
        "reason": described("Why nothing is advised. Null: something is.", or_null(TEXT)),
        "confidence": described("How sure it is.", {**TEXT, "enum": list(get_args(Confidence))}),
        "margin": described("On top of the largest use. Null: none.", or_null(_NUMBER)),
        "runs": described("Past jobs that it rests on.", COUNT),
        "of": described("Past jobs of the group.", COUNT),
        "jobs": described("The latest of them.", list_of(TEXT)),
        "evidence": described("Further numbers.", {"type": "object"}),
        "followed": described("It is sure enough for a job script.", {"type": "boolean"}),
        "sentence": described("The line in words.", TEXT),
    }
    of_group = {
        "level": described("How near the past jobs are. Null: too few.", or_null({**TEXT, "enum": list(LEVELS)})),
        "runs": described("How many count.", COUNT),
        "since": described("When the first was submitted. Null: none.", or_null({**TEXT, "format": "date-time"})),
        "counted": described("Past jobs by level.", {"type": "object"}),
    }
    return {
        "request": described("What was understood of the request.", _object(of_request)),
        "group": described("The past jobs that count.", _object(of_group)),
        "headline": described("The same in words.", TEXT),
        "lines": described("One for each topic; none without past jobs.", list_of(_object(of_line))),
        "sbatch": described("Lines for the job script.", list_of(TEXT)),
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


RETURNS = ObjectShape(_properties, choices=False)


def answer(view: View, parameters: AdviceParameters) -> ObjectAnswer:
    """Return the advice; for another user's job, of those who do not see all jobs, there are no past jobs."""
    user, viewer = parameters.user or view.viewer.name, view.viewer
    own = viewer.sees_all or user == viewer.name
    page = view.opened.advise(
        parameters.script,
        user=user,
        name=parameters.name,
        partition=parameters.partition,
        gpus=parameters.gpus,
        history=own,
    )
    return ObjectAnswer(page.json())
