"""Profiles: reports of Nsight Compute that a person attached to a job, with their launches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

import polars as pl

from tachograph.annexes.share.nsight.launches import Launch, NcuReport, encodable
from tachograph.annexes.share.nsight.packed_launches import pack_launches, unpack_launches
from tachograph.catalog.errors import InputError, LakeError, NotFoundError
from tachograph.catalog.tables import PROFILES
from tachograph.lake.conform import resolve
from tachograph.lake.delta import COMMIT_ATTEMPTS, Lake
from tachograph.lake.problems import lake_errors

if TYPE_CHECKING:
    from tachograph.catalog.rows import ProfileRow


# The one name of all appends: a name of its own for each would stay in the log for ever.
_APPENDS = "profiles"
_CONTENT = ("content", "kernels", "ranges")
_SAME = ("digest", *_CONTENT)
_FACTS = tuple(name for name in PROFILES.schema if name not in _CONTENT)
_DIGITS = 8  # characters of a digest, after names that several reports of a job have


@dataclass(frozen=True, slots=True)
class AttachedProfile:
    """An attached report: `report.launches` are stored, of `launches` in the file.

    at: when it was attached.
    """

    report: NcuReport
    launches: int
    at: datetime


def attach_profiles(
    lake: Lake, job_key: str, job_id: str, profiles: Sequence[AttachedProfile]
) -> tuple[str, ...]:
    """Attach reports to a job in one commit; return the digests of new or changed ones.

    A report is called by the last part of its name.

    Errors: LakeError where the lake cannot be written.
    """
    rows = [_row(job_key, job_id, profile) for profile in profiles]

    def new(stored: pl.DataFrame) -> list[ProfileRow]:
        stored_rows = stored.select(_SAME).rows()
        return [row for row in rows if tuple(map(row.get, _SAME)) not in stored_rows]

    return tuple(row["digest"] for row in _append(lake, job_key, new))


def detach_profiles(
    lake: Lake, job_key: str, names: Collection[str] = (), *, at: datetime
) -> tuple[str, ...]:
    """Detach the named reports of a job, or all; return the names of those removed.

    Errors: NotFoundError for a name that no attached report has; LakeError where the lake cannot be
    written.
    """

    def detached(stored: pl.DataFrame) -> list[ProfileRow]:
        names_attached = stored["report"].unique().sort()
        for name in names:
            if name not in names_attached:
                raise NotFoundError(
                    f"no report {name!r} is attached to this job",
                    do=f"attached: {', '.join(names_attached) or 'none'}",
                )
        empty: ProfileRow = {"kernels": [], "ranges": [], "problems": [], "at": at}
        rows = stored.select("job_key", "job_id", "digest", "report").to_dicts()
        return [
            {**row, **empty}
            for row in cast("list[ProfileRow]", rows)
            if not names or row["report"] in names
        ]

    return tuple(row["report"] for row in _append(lake, job_key, detached))


def read_profiles(lake: Lake, job_keys: Collection[str] | None = None) -> pl.DataFrame:
    """Return attached reports without launches, of some jobs or all, oldest first."""
    return _read(lake, job_keys, _FACTS).sort("job_key", "at", "report", "digest")


def read_attached(lake: Lake, job_key: str) -> tuple[AttachedProfile, ...]:
    """Return a job's attached reports, oldest first; equal names get a part of the digest.

    A report whose launches are in another version of the format has none, and that as a problem.
    """
    rows = _read(lake, [job_key], tuple(PROFILES.schema)).sort("at", "report", "digest")
    names = Counter(rows["report"])
    return tuple(
        _profile(row, alone=names[row["report"]] == 1)
        for row in cast("Iterator[ProfileRow]", rows.iter_rows(named=True))
    )


def _row(job_key: str, job_id: str, profile: AttachedProfile) -> ProfileRow:
    report = profile.report
    return {
        "job_key": job_key,
        "job_id": job_id,
        "digest": report.digest,
        "report": encodable(Path(report.file).name),
        "at": profile.at,
        "launches": profile.launches,
        "launches_kept": len(report.launches),
        "problems": list(map(encodable, report.problems)),
        **pack_launches(report.launches),
    }


def _append(
    lake: Lake, job_key: str, rows_of: Callable[[pl.DataFrame], list[ProfileRow]]
) -> list[ProfileRow]:
    """Append the rows derived from the existing ones, and return them."""
    for _ in range(COMMIT_ATTEMPTS):
        before = lake.mark(PROFILES, _APPENDS) or 0
        rows = rows_of(_read(lake, [job_key], tuple(PROFILES.schema)))
        if not rows:
            return rows
        table = pl.DataFrame(rows, schema=PROFILES.row_schema)
        done = lake.append(PROFILES, table, app_id=_APPENDS, mark=before + 1, after=before)
        if not (done.known or done.overtaken):
            return rows
    raise LakeError(
        "other processes attach reports at the same time", where=lake.uri(PROFILES), do="try again"
    )


def _read(lake: Lake, job_keys: Collection[str] | None, columns: Sequence[str]) -> pl.DataFrame:
    """Current rows, one per (job_key, digest), without detached ones."""
    files = lake.files(PROFILES)
    if job_keys is not None:
        files = [file for file in files if any(file.may_name(key) for key in job_keys)]
    if not files:
        return PROFILES.empty().select(columns)
    row = [*PROFILES.key, "seq"]
    with lake_errors(lake.uri(PROFILES)):
        rows = lake.read_files(PROFILES, files)
        if job_keys is not None:
            rows = rows.filter(pl.col("job_key").is_in(list(job_keys)))
        current = resolve(rows.select(*row, "launches_kept").collect(), PROFILES)[0]
        attached = current.drop_nulls("launches_kept").lazy()  # the other columns are large
        return rows.join(attached, on=row, how="semi").select(columns).collect()


def _profile(row: ProfileRow, *, alone: bool) -> AttachedProfile:
    name = row["report"] if alone else f"{row['report']} ({row['digest'][:_DIGITS]})"
    launches: tuple[Launch, ...] = ()
    problems = list(row["problems"])
    count, kept = row["launches"] or 0, row["launches_kept"] or 0  # it is attached
    if count > kept:
        problems.append(
            f"{count - kept:,} of {count:,} launches are left out: the longest were attached"
        )
    try:
        launches = unpack_launches(row, report=name)
    except InputError as problem:
        problems.append(f"{problem.what}; {problem.do}")
    report = NcuReport(name, launches, problems=tuple(problems), digest=row["digest"])
    return AttachedProfile(report, count, row["at"])
