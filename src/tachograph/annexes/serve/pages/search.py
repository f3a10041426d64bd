"""What the search box leads to: the page of what was named, else all that is called so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tachograph.annexes.serve.search import KINDS, SearchParameters, found, only_place, place
from tachograph.annexes.serve.snapshot import View
from tachograph.api.pages import Document
from tachograph.catalog.columns import FINDINGS_COLUMN
from tachograph.report.jobs import JobsTable, build_jobs_table

_MOST = 20  # of a kind
_COLUMNS = ("display_id", "user", "name", "state", "end", FINDINGS_COLUMN)  # of jobs

PARAMETERS = SearchParameters


def content(view: View, parameters: SearchParameters) -> Mapping[str, Any] | Document:
    """Return what was found, or the way to the page of what was named."""
    text = parameters.q.strip()
    named = only_place(view, text) if text else "jobs"
    if named is not None:
        return Document.elsewhere(named)
    names = found(view, text, parameters.kind)
    kinds = {kind: names.filter(kind=kind).get_column("name") for kind in KINDS}
    return {
        "text": text,
        "kinds": {kind: of_kind for kind, of_kind in kinds.items() if of_kind.len()},
        "table": _jobs(view, kinds["job"].head(_MOST)),
        "most": _MOST,
        "place": place,
    }


def _jobs(view: View, ids: pl.Series) -> JobsTable:
    """Return the table of the visible jobs with these ids, newest first."""
    names = view.jobs.rows(("job_key", "display_id"))
    keys = names.filter(pl.col("display_id").is_in(ids.implode())).get_column("job_key")
    return build_jobs_table(
        view.jobs.rows(job_keys=keys), view.jobs.kept_answers(keys), columns=_COLUMNS
    )
