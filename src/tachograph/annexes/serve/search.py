"""What the search box finds: jobs, users, accounts, nodes and job names that a viewer may see."""

from __future__ import annotations

from typing import Annotated, Literal, get_args
from urllib.parse import quote, urlencode

import polars as pl

from tachograph.annexes.serve.snapshot import View
from tachograph.api.parameters import Parameters, Word, says
from tachograph.catalog.tables import JOB_GPUS
from tachograph.lake.filters import JOB_NAMES, called

Kind = Literal["job", "array", "het", "user", "account", "node", "name"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SCHEMA = {"kind": pl.String(), "name": pl.String()}
_IDS = {"display_id": "job", "array_job_id": "array", "het_job_id": "het"}
_OF_JOBS = ("user", "account", "name")


class SearchParameters(Parameters, frozen=True, kw_only=True):
    """What is looked for."""

    q: Annotated[Word, says("Part of an id or a name, without regard to case.")] = ""
    kind: Annotated[Kind, says("Only these.")] | None = None


def found(view: View, text: str, kind: Kind | None = None) -> pl.DataFrame:
    """Return SCHEMA of what contains `text`: the same, then what begins with it, then the rest.

    A text without characters finds nothing.
    """
    wanted = text.strip().lower()
    names = view.once("searched names", lambda: _names(view))
    if not wanted:
        return names.clear()
    lowered = pl.col("name").str.to_lowercase()
    nearness = (
        pl.when(lowered == wanted)
        .then(0)
        .when(lowered.str.starts_with(wanted))
        .then(1)
        .otherwise(2)
    )
    return (
        names.filter(
            lowered.str.contains(wanted, literal=True),
            pl.lit(value=True) if kind is None else pl.col("kind") == kind,
        )
        .sort(nearness, pl.col("kind").cast(pl.Enum(KINDS)), pl.col("name").str.len_chars(), "name")
        .select(list(SCHEMA))
    )


def place(kind: str, name: str) -> str:
    """Return the address of the page of what was found, below that of the service.

    >>> place("node", "a/b"), place("name", "train")
    ('node/a%2Fb', 'jobs?name=train')
    """
    if kind == "name":
        return f"jobs?{urlencode({'name': name})}"
    if kind in ("array", "het"):
        return f"jobs?{urlencode({'where': f'{kind}_job_id={name}'})}"
    return f"{kind}/{quote(name, safe='')}"


def only_place(view: View, text: str) -> str | None:
    """Return the address of what `text` names whole; None: several, or none, are called so.

    A job is named by any of its ids and by its key, an array by its own, the others by their names.
    """
    name_sought = text.strip()
    named = found(view, name_sought).filter(pl.col("name") == name_sought, pl.col("kind") != "name")
    if named.height == 1:
        return place(*named.row(0))
    of_jobs = view.jobs.rows(JOB_NAMES).filter(called(name_sought))
    waiting = view.not_analyzed().filter(
        pl.any_horizontal(pl.col(column) == name_sought for column in ("job_id", "display_id"))
    )
    if named.is_empty() and not (of_jobs.is_empty() and waiting.is_empty()):
        return place("job", name_sought)
    return None


def _names(view: View) -> pl.DataFrame:
    """Return SCHEMA of all that the viewer can find."""
    jobs = view.jobs.rows((*_IDS, *_OF_JOBS)).lazy()
    nodes = view.opened.lake.scan(JOB_GPUS).select(pl.col("node").alias("name"))
    columns = [
        *((jobs.select(pl.col(column).alias("name")), kind) for column, kind in _IDS.items()),
        *((jobs.select(pl.col(column).alias("name")), column) for column in _OF_JOBS),
        (nodes, "node"),
    ]
    return (
        pl.concat(
            names.drop_nulls().unique().select(pl.lit(kind).alias("kind"), "name")
            for names, kind in columns
        )
        .unique()
        .collect()
    )
