"""`GET /waste`: the ledger of GPU time."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from tachograph.judge.ledger import WasteReport
from tachograph.web.answers import ObjectAnswer
from tachograph.web.paging import RowLimit
from tachograph.web.parameters import JobChoiceParameters, Word
from tachograph.web.shapes import NUMBER, TEXT, ObjectShape, described, field_schemas, or_null
from tachograph.web.snapshot import View


class WasteParameters(JobChoiceParameters, frozen=True, kw_only=True):
    """Which jobs, and what is listed beside the causes."""

    by: Annotated[Word, msgspec.Meta(description="Groups: cause (none), user, account, partition or gpu_model.")] = (
        "cause"
    )
    jobs: Annotated[Word, msgspec.Meta(description="A cause whose jobs are listed, or all.")] | None = None
    top: Annotated[RowLimit, msgspec.Meta(description="At most so many groups and jobs.")] | None = None


PARAMETERS = WasteParameters


def waste_schemas() -> dict[str, Any]:
    """Return the schema of each key of the ledger, as `tachograph waste --json` prints it."""
    fields = field_schemas(WasteReport, without=("users", "zone_name", "concerned_jobs"))
    described_fields = {name: described(_MEANING[name], schema) for name, schema in fields.items()}
    return described_fields | {
        "currency": described("Of amounts of money. Null: no price is configured.", or_null(TEXT)),
        "lost": described("GPU-hours of all causes together. Unit: h.", NUMBER),
        "recoverable": described("GPU-hours that are recoverable under the assumptions. Unit: h.", NUMBER),
    }


_MEANING = {
    "jobs": "Jobs in the ledger: over, measured, with GPUs of their own.",
    "gpu_hours": "GPU-hours that they held. Unit: h.",
    "first": "When the first of them started. Null: no job.",
    "last": "When the last of them ended. Null: no job.",
    "causes": "A row per cause, productive and unmeasured time.",
    "left_out": "A row per reason for which jobs are not in the ledger.",
    "assumptions": "Under which hours are recoverable.",
    "by": "What the groups are.",
    "groups": "A row per group, most lost first. Null: by cause alone.",
    "jobs_of": "The cause whose jobs are listed. Null: none.",
    "concerned": "The jobs of this cause, most first. Null: none were requested.",
    "currency": "",
    "unpriced_jobs": "Jobs without a price.",
}
RETURNS = ObjectShape(waste_schemas, table=True)


def answer(view: View, parameters: WasteParameters) -> ObjectAnswer:
    """Return the ledger, as `tachograph waste --json` prints it; as a table what `--csv` prints."""
    page = view.opened.waste(parameters.by, jobs_of=parameters.jobs, top=parameters.top, **parameters.chosen())
    report = page.report
    shown = report.concerned if report.concerned is not None else report.groups
    return ObjectAnswer(page.json(), rows=report.causes if shown is None else shown)
