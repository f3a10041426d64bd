"""Endpoint of the annex lab: the study of the system."""

from __future__ import annotations

from tachograph.api.answers import ObjectAnswer
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
from tachograph.api.pages import PageView
from tachograph.api.parameters import StudyParameters


def _study_schemas() -> Schema:
    from tachograph.annexes.lab.figures.dataset import Dataset

    figure = {
        "number": COUNT,
        "name": TEXT,
        "title": TEXT,
        "question": or_null(TEXT),
        "drawn": BOOLEAN,
        "jobs": COUNT,
        "facts": OBJECT,
        "missing": OBJECT,
        "sentences": list_of(TEXT),
        "tables": {**OBJECT, "additionalProperties": TEXT},
    }
    question = {"question": TEXT, "answers": list_of(TEXT), "consequence": or_null(TEXT)}
    dataset = {
        **field_schemas(Dataset),
        "coverage_low_share": NUMBER,
        "never_measured": {},
        "lake": described("Location of the lake. Null: visible to admins only.", or_null(TEXT)),
    }
    figures = {**OBJECT, "additionalProperties": object_of(figure)}
    questions = {**OBJECT, "additionalProperties": object_of(question)}
    return {
        "title": described("Heading of the study.", TEXT),
        "site": described("Name of the site.", TEXT),
        "made": described("When it was made.", MOMENT),
        "tachograph": described("The version that made it.", TEXT),
        "settings": described("How its metrics are defined.", OBJECT),
        "dataset": described("The jobs that were studied.", {**OBJECT, "properties": dataset}),
        "figures": described("Numbers of each figure.", figures),
        "questions": described("Answers to the research questions.", questions),
        "files": described("Always empty: nothing is written.", list_of(TEXT)),
    }


def study(view: PageView, parameters: StudyParameters) -> ObjectAnswer:
    """Return the study, as `tachograph study --json` prints it."""
    page = view.opened.study(
        parameters.figure,
        wanted=parameters.job_filter(now=view.now, zone_name=view.zone_name),
        **parameters.settings(),
    )
    values = page.json()
    dataset = {**values["dataset"], "lake": values["dataset"]["lake"] or None}
    return ObjectAnswer({**values, "dataset": dataset})


ENDPOINTS = (
    Endpoint(
        "/study",
        "study",
        "The study of the system: figures and answers to its questions.",
        study,
        ObjectShape(_study_schemas),
        StudyParameters,
    ),
)
