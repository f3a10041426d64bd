"""Target `postgresql`: tables that always mirror the chosen jobs of the lake.

One transaction: a reader sees the state before or the one after, and an export that is killed has
done nothing. What is sent is what changed: rows carry their analysis (`seq`), so the target itself
shows which jobs are current. Jobs that no longer count, or that the filter no longer chooses, are
deleted.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from tachograph.catalog.errors import ExportError, UsageError
from tachograph.catalog.secrets import HIDDEN, redacted, remember_passwords_of, remember_secrets
from tachograph.catalog.tables import FINDINGS, JOB_GPUS, JOB_SUMMARIES
from tachograph.export.content import ExportContent, ExportResult
from tachograph.export.registry import Progress

if TYPE_CHECKING:
    from psycopg import Connection

    from tachograph.export.postgresql_tables import DatabaseSchema

CONNECT_S = 10
_QUOTED = re.compile('"[^"]*"')
EXPORTS = "exports"
_COLUMNS = (
    "lake text PRIMARY KEY, exported timestamptz NOT NULL, jobs bigint NOT NULL, written "
    "bigint NOT NULL"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the database and the names."""
    parser.add_argument(
        "--to",
        default="",
        metavar="ADDRESS",
        help="postgresql://USER@HOST/DATABASE or 'service=NAME' (default: the PG* variables)",
    )
    parser.add_argument(
        "--schema", default="tachograph", metavar="NAME", help="its schema (default tachograph)"
    )
    parser.add_argument(
        "--table-prefix", default="", metavar="TEXT", help="prefix of the names of tables"
    )


def export(
    content: ExportContent, options: argparse.Namespace, progress: Progress
) -> Sequence[ExportResult]:
    """Update the tables to the content; return numbers of written, removed and unchanged rows.

    Errors: UsageError without psycopg; ExportError when the database does not respond or rejects
    it.
    """
    try:
        from tachograph.export.postgresql_tables import DatabaseSchema
    except ImportError as problem:
        raise UsageError(
            f"PostgreSQL needs psycopg: {problem}",
            do="pip install 'tachograph[postgresql]'",
        ) from None
    place = DatabaseSchema(options.schema, options.table_prefix)
    with _connected(options.to) as connection:
        where = f"{connection.info.dbname}.{place}"
        return _Export(connection, place, content, where).run(progress)


@contextmanager
def _connected(address: str) -> Iterator[Connection]:
    """Yield a connection with one transaction, committed at the end of the block."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    remember_passwords_of(address)
    remember_secrets(os.environ.get("PGPASSWORD", ""))
    try:
        shown = _shown(conninfo_to_dict(address))
        timeout: dict[str, Any] = (
            {} if "connect_timeout" in address else {"connect_timeout": CONNECT_S}
        )
        with psycopg.connect(
            address, application_name="tachograph export", **timeout
        ) as connection:
            yield connection
    except psycopg.OperationalError as problem:
        raise ExportError(
            f"the database does not respond: {_line(problem)}",
            where=shown,
            do="check --to, or the PG* variables",
        ) from problem
    except psycopg.ProgrammingError as problem:
        if problem.sqlstate is None:
            # of a URI libpq quotes what it could not read, which may be any part of a password with
            # @ or /
            what = (
                _QUOTED.sub(f'"{HIDDEN}"', _line(problem)) if "://" in address else _line(problem)
            )
            raise UsageError(
                f"invalid --to: {what}", do="write postgresql://USER@HOST/DATABASE"
            ) from None
        raise _refused(problem, shown) from problem
    except psycopg.Error as problem:
        raise _refused(problem, shown) from problem


def _refused(problem: Exception, where: str) -> ExportError:
    return ExportError(
        f"the database rejected it: {_line(problem)}",
        where=where,
        do="request CREATE and INSERT there, or choose another --schema or --table-prefix",
    )


def _shown(parts: dict[str, Any]) -> str:
    """The name of the database for people; never its password."""
    named = [str(parts[name]) for name in ("service", "host", "dbname") if parts.get(name)]
    return "/".join(named) or "PostgreSQL"


def _line(problem: Exception) -> str:
    return " ".join(redacted(str(problem)).split())[:300]


class _Export:
    """One export to one target."""

    def __init__(
        self, connection: Connection, place: DatabaseSchema, content: ExportContent, where: str
    ) -> None:
        self._connection = connection
        self._place = place
        self._content = content
        self._where = where

    def run(self, progress: Progress) -> list[ExportResult]:
        """Find changes, send and record them in one transaction."""
        from tachograph.export import postgresql_tables as tables

        # one export after the other: a second one would compare with what the first is about to
        # change
        self._connection.execute(
            "SELECT pg_advisory_xact_lock(hashtext(%s))", [f"tachograph {self._place}"]
        )
        grew = tables.create(self._connection, self._place)
        self._check_lake()
        progress("export: compare", 0, 2)
        changed, gone = self._compare(everything=grew)
        progress("export: send", 1, 2)
        sent = {
            JOB_SUMMARIES.name: changed,
            JOB_GPUS.name: self._content.gpus(changed),
            FINDINGS.name: self._content.findings(changed),
        }
        removed = self._remove(gone)
        if changed.height:
            staged = {
                t.name: tables.stage(self._connection, t, sent[t.name]) for t in tables.TABLES
            }
            tables.take(self._connection, self._place, staged)
        self._note(changed.height)
        there = self._content.summaries.height
        done = [
            ExportResult(name, f"{self._where}{name}", rows.height) for name, rows in sent.items()
        ]
        done[0] = replace(done[0], removed=removed, unchanged=there - changed.height)
        return done

    def _check_lake(self) -> None:
        """Check that the tables are of this lake, as other lakes' jobs would be deleted.

        Errors: UsageError if they are not.
        """
        from psycopg.sql import SQL

        exports = self._place(EXPORTS)
        self._connection.execute(
            SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(exports, SQL(_COLUMNS))
        )
        others = self._connection.execute(
            SQL("SELECT 1 FROM {} WHERE lake <> %s").format(exports), [self._content.lake_id]
        ).fetchone()
        if others:
            raise UsageError(
                f"{self._where}* holds the jobs of another lake",
                do="choose another --table-prefix or --schema",
            )

    def _compare(self, *, everything: bool) -> tuple[pl.DataFrame, list[str]]:
        """Return summaries that the target lacks or has outdated, and keys to delete."""
        from psycopg.sql import SQL

        from tachograph.export.postgresql_tables import as_stored

        rows = self._connection.execute(
            SQL("SELECT job_key, seq FROM {}").format(self._place(JOB_SUMMARIES.name))
        ).fetchall()
        there = pl.DataFrame(rows, schema={"job_key": pl.String, "seq": pl.Int64}, orient="row")
        stored = self._content.summaries.with_columns(stored=as_stored(pl.col("job_key")))
        gone = (
            there.join(stored, left_on="job_key", right_on="stored", how="anti")
            .get_column("job_key")
            .to_list()
        )
        if everything:
            return self._content.summaries, gone
        changed = stored.join(
            there, left_on=["stored", "seq"], right_on=["job_key", "seq"], how="anti"
        )
        return changed.drop("stored"), gone

    def _remove(self, gone: Sequence[str]) -> int:
        from psycopg.sql import SQL

        if not gone:
            return 0
        command = SQL("DELETE FROM {} WHERE job_key = ANY(%s)").format(
            self._place(JOB_SUMMARIES.name)
        )
        return self._connection.execute(command, [list(gone)]).rowcount

    def _note(self, written: int) -> None:
        """Record the export."""
        from psycopg.sql import SQL

        command = SQL(
            "INSERT INTO {} VALUES (%s, %s, %s, %s) ON CONFLICT (lake) DO UPDATE SET "
            "exported = EXCLUDED.exported, jobs = EXCLUDED.jobs, written = EXCLUDED.written"
        ).format(self._place(EXPORTS))
        values = [self._content.lake_id, self._content.now, self._content.summaries.height, written]
        self._connection.execute(command, values)
