"""`GET /study`: the study of the system."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from tachograph.figures.dataset import Dataset
from tachograph.web.answers import ObjectAnswer
from tachograph.web.parameters import JobChoiceParameters, Word
from tachograph.web.shapes import (
    MOMENT,
    NUMBER,
    TEXT,
    ObjectShape,
    described,
    field_schemas,
    list_of,
    object_of,
    or_null,
)
from tachograph.web.snapshot import View


class StudyParameters(JobChoiceParameters, frozen=True, kw_only=True):
    """Which jobs, which figures, and how their metrics are defined."""

    figure: Annotated[tuple[Word, ...], msgspec.Meta(description="Names or numbers of figures; all without any.")] = ()
    pipe: Annotated[Word, msgspec.Meta(description="Pipe of the roofline: fp64, fp32, fp16 or tensor.")] = "fp64"
    window: (
        Annotated[Literal[1, 5, 15, 30], msgspec.Meta(description="Windows of spatial imbalance. Unit: min.")] | None
    ) = None
    variant: Annotated[Word, msgspec.Meta(description="paper, or notebooks.")] = "paper"
    whiskers: Annotated[Word, msgspec.Meta(description="Whiskers of box plots: tukey or percentile.")] = "tukey"
    no_filter: Annotated[
        tuple[Word, ...], msgspec.Meta(description="Reasons that leave no job out, such as short or idle.")
    ] = ()


PARAMETERS = StudyParameters


def _properties() -> dict[str, Any]:
    of_any_keys = {"type": "object"}
    figure = {
        "number": {"type": "integer"},
        "name": TEXT,
        "title": TEXT,
        "question": or_null(TEXT),
        "drawn": {"type": "boolean"},
        "jobs": {"type": "integer"},
        "facts": of_any_keys,
        "missing": of_any_keys,
        "sentences": list_of(TEXT),
        "tables": {"type": "object", "additionalProperties": TEXT},
    }
    question = {"question": TEXT, "answers": list_of(TEXT), "consequence": or_null(TEXT)}
    dataset = field_schemas(Dataset) | {
        "coverage_low_share": NUMBER,
        "never_measured": {},
        "lake": described("Where the lake is. Null: for admins alone.", or_null(TEXT)),
    }
    return {
        "title": described("What stands above it.", TEXT),
        "site": described("Name of the site.", TEXT),
        "made": described("When it was made.", MOMENT),
        "tachograph": described("The version that made it.", TEXT),
        "settings": described("How its metrics are defined.", of_any_keys),
        "dataset": described("Which jobs it is of.", {"type": "object", "properties": dataset}),
        "figures": described("Numbers of each figure.", {"type": "object", "additionalProperties": object_of(figure)}),
        "questions": described(
            "Answers to the research questions.", {"type": "object", "additionalProperties": object_of(question)}
        ),
        "files": described("Always empty: nothing is written.", list_of(TEXT)),
    }


RETURNS = ObjectShape(_properties)


def answer(view: View, parameters: StudyParameters) -> ObjectAnswer:
    """Return the study, as `tachograph figures --json` prints it."""
    page = view.opened.study(
        parameters.figure,
        wanted=parameters.job_filter(now=view.now, zone_name=view.zone_name),
        pipe=parameters.pipe,
        window=parameters.window,
        variant=parameters.variant,
        whiskers=parameters.whiskers,
        no_filter=parameters.no_filter,
    )
    values = page.json()
    return ObjectAnswer({**values, "dataset": {**values["dataset"], "lake": values["dataset"]["lake"] or None}})
