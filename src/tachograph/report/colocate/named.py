"""The kinds of jobs that a person means by a name."""

from __future__ import annotations

import polars as pl

from tachograph.errors import NotFoundError, UsageError
from tachograph.report.colocate.kinds import LEFT_OUT, Candidates, Kind
from tachograph.report.columns import must_exist


def is_called(kind: Kind, name: str) -> bool:
    """Return whether `name` is how a kind is written, with its array or without, or the id of one of its jobs."""
    return name in (kind.label, kind.name_of_all) or name in kind.jobs


def named(found: Candidates, name: str) -> list[Kind]:
    """Return the kinds that a person means: user/name, or the id of a job.

    Errors: UsageError where it is left out, with the reason; NotFoundError where it is not known.
    """
    kinds = [kind for kind in found.kinds if is_called(kind, name)]
    if kinds:
        return kinds
    called = pl.concat_str(pl.col("user").fill_null("?"), pl.lit("/"), pl.col("name").fill_null(""))
    mine = found.left_out.filter((called == name) | (pl.col("display_id") == name) | (pl.col("job_id") == name))
    if mine.is_empty():
        known = [kind.label for kind in found.kinds]
        must_exist([name], known, what="kind of job")
        raise NotFoundError(f"no kind of job {name!r}", do="write user/name, or the id of a job")
    reasons = dict.fromkeys(LEFT_OUT[reason] for reason in mine.get_column("reason"))
    raise UsageError(f"{name} cannot be judged: {'; '.join(reasons)}", do="name another, or see --help")
