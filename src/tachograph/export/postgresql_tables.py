"""PostgreSQL tables of the lake: types, keys, comments, rows for COPY."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from psycopg import Connection
from psycopg.sql import SQL, Composable, Identifier, Literal

from tachograph.catalog.table_columns import TableColumn
from tachograph.catalog.tables import FINDINGS, JOB_GPUS, JOB_SUMMARIES, LakeTable

PARENT = JOB_SUMMARIES
CHILDREN = (JOB_GPUS, FINDINGS)  # rows that count only beside their job's summary
TABLES = (PARENT, *CHILDREN)
KEY = "job_key"
_TYPES: Mapping[Any, str] = {
    pl.String: "text",
    pl.Int64: "bigint",
    pl.Int32: "integer",
    pl.Int16: "smallint",
    pl.Float64: "double precision",
    pl.Float32: "real",
    pl.Boolean: "boolean",
    pl.Datetime: "timestamptz",
}
_JSON = ("evidence", "checks")
_TIME = "%Y-%m-%dT%H:%M:%S%.6fZ"


@dataclass(frozen=True, slots=True)
class DatabaseSchema:
    """Location of the tables: schema and name prefix."""

    schema: str
    prefix: str = ""

    def __call__(self, name: str) -> Identifier:
        """Return the qualified name of a table."""
        return Identifier(self.schema, f"{self.prefix}{name}")

    def __str__(self) -> str:
        """`schema.prefix`, as people read it."""
        return f"{self.schema}.{self.prefix}"


def type_of(column: TableColumn) -> str:
    """Return the type of a column in PostgreSQL.

    >>> [type_of(column) for column in JOB_SUMMARIES.columns if column.name in ("user", "start", "pipes", "gpus")]
    ['text', 'timestamptz', 'bigint', 'text[]']
    """
    if column.name in _JSON:
        return "jsonb"
    if isinstance(column.dtype, pl.List):
        inner = column.dtype.inner
        return f"{_TYPES[(inner if isinstance(inner, pl.DataType) else inner()).base_type()]}[]"
    return _TYPES[column.dtype.base_type()]


def create(connection: Connection, place: DatabaseSchema) -> bool:
    """Create missing schema, tables and columns; return whether an existing table grew."""
    if not connection.execute(
        "SELECT 1 FROM pg_namespace WHERE nspname = %s", [place.schema]
    ).fetchone():
        connection.execute(SQL("CREATE SCHEMA {}").format(Identifier(place.schema)))
    grew = False
    for table in TABLES:
        there = _columns(connection, place, table)
        missing = [column for column in table.columns if column.name not in there]
        if not there:
            _create_table(connection, place, table)
        for column in missing if there else ():
            connection.execute(
                SQL("ALTER TABLE {} ADD COLUMN {}").format(place(table.name), _definition(column))
            )
            grew = True
        for column in missing:
            _comment(connection, place, table, column)
    return grew


def _columns(connection: Connection, place: DatabaseSchema, table: LakeTable) -> set[str]:
    rows = connection.execute(
        (
            "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND "
            "table_name = %s"
        ),
        [place.schema, f"{place.prefix}{table.name}"],
    )
    return {name for (name,) in rows}


def _create_table(connection: Connection, place: DatabaseSchema, table: LakeTable) -> None:
    parts: list[Composable] = [_definition(column) for column in table.columns]
    nullable = [
        column.name
        for column in table.columns
        if column.name in table.key and column.null is not None
    ]
    if not nullable:
        parts.append(SQL("PRIMARY KEY ({})").format(_names(table.key)))
    if table is not PARENT:
        parts.append(SQL("FOREIGN KEY ({0}) REFERENCES {1} ({0}) ON DELETE CASCADE").format(
            Identifier(KEY), place(PARENT.name)))  # fmt: skip
    connection.execute(SQL("CREATE TABLE {} ({})").format(place(table.name), SQL(", ").join(parts)))
    if nullable:  # a primary key has no nulls; here null is a value like others
        key: list[Composable] = []
        for name in table.key:
            column = Identifier(name)
            key.append(SQL("coalesce({}, -1)").format(column) if name in nullable else column)
        connection.execute(
            SQL("CREATE UNIQUE INDEX ON {} ({})").format(place(table.name), SQL(", ").join(key))
        )
    connection.execute(
        SQL("COMMENT ON TABLE {} IS {}").format(place(table.name), Literal(table.grain))
    )


def _definition(column: TableColumn) -> Composable:
    return SQL("{} {}").format(Identifier(column.name), SQL(type_of(column)))


def _comment(
    connection: Connection, place: DatabaseSchema, table: LakeTable, column: TableColumn
) -> None:
    unit = f" [{column.unit}]" if column.unit else ""
    null = f" Null: {column.null}." if column.null else ""
    name = Identifier(place.schema, f"{place.prefix}{table.name}", column.name)
    connection.execute(
        SQL("COMMENT ON COLUMN {} IS {}").format(name, Literal(f"{column.sentence}{unit}{null}"))
    )


def stage(connection: Connection, table: LakeTable, rows: pl.DataFrame) -> Identifier:
    """Copy rows into a table that ends with the transaction; return its name."""
    name = Identifier(f"staged_{table.name}")
    columns = SQL(", ").join(_definition(column) for column in table.columns)
    connection.execute(SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DROP").format(name, columns))
    copy_in(connection, name, rows.select(*table.schema))
    return name


def copy_in(connection: Connection, name: Composable, rows: pl.DataFrame) -> None:
    """Copy rows into a table with COPY; columns are matched by name."""
    command = SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(name, _names(rows.columns))
    with connection.cursor() as cursor, cursor.copy(command) as copy:
        copy.write(as_csv(rows))


def as_csv(rows: pl.DataFrame) -> bytes:
    """Return rows for COPY: null is empty, empty text is quoted, lists are array literals.

    NaN and infinities are null.

    >>> as_csv(pl.DataFrame({"a": ["x", "", None], "b": [[1, 2], [], None]})).decode().splitlines()
    ['x,"{""1"",""2""}"', '"",{}', ',']
    """
    frame = rows.with_columns(_as_read(name, dtype) for name, dtype in rows.schema.items())
    target = io.BytesIO()
    frame.write_csv(target, include_header=False, datetime_format=_TIME, quote_style="necessary")
    return target.getvalue()


def as_stored(text: pl.Expr) -> pl.Expr:
    r"""Return texts as PostgreSQL can store them: NUL is escaped (`\\x00`).

    >>> pl.select(as_stored(pl.lit("a\0b"))).item()
    'a\\x00b'
    """
    return text.str.replace_all("\0", r"\x00", literal=True)


def _as_read(name: str, dtype: pl.DataType) -> pl.Expr:
    column = pl.col(name)
    if dtype.is_float():
        return pl.when(column.is_finite()).then(column).alias(name)
    if dtype == pl.String:
        return as_stored(column)
    if isinstance(dtype, pl.List):
        items = column.cast(pl.List(pl.String)).list.eval(_quoted_item())
        joined = pl.concat_str(pl.lit("{"), items.list.join(","), pl.lit("}"))
        return pl.when(column.is_not_null()).then(joined).alias(name)
    return column


def _quoted_item() -> pl.Expr:
    plain = as_stored(pl.element())
    escaped = plain.str.replace_all("\\", "\\\\", literal=True).str.replace_all(
        '"', '\\"', literal=True
    )
    return pl.concat_str(pl.lit('"'), escaped, pl.lit('"')).fill_null("NULL")


def _names(names: Sequence[str]) -> Composable:
    return SQL(", ").join(map(Identifier, names))


def take(connection: Connection, place: DatabaseSchema, staged: Mapping[str, Identifier]) -> None:
    """Replace the rows of the staged jobs by the staged rows."""
    names = {table.name: _names(list(table.schema)) for table in TABLES}
    values = SQL(", ").join(
        SQL("{0} = EXCLUDED.{0}").format(Identifier(name))
        for name in PARENT.schema
        if name not in PARENT.key
    )
    connection.execute(
        SQL("INSERT INTO {} ({}) SELECT {} FROM {} ON CONFLICT ({}) DO UPDATE SET {}").format(
            place(PARENT.name),
            names[PARENT.name],
            names[PARENT.name],
            staged[PARENT.name],
            _names(PARENT.key),
            values,
        )
    )
    for table in CHILDREN:
        connection.execute(
            SQL("DELETE FROM {} WHERE {} IN (SELECT {} FROM {})").format(
                place(table.name), Identifier(KEY), Identifier(KEY), staged[PARENT.name]
            )
        )
        connection.execute(
            SQL("INSERT INTO {} ({}) SELECT {} FROM {}").format(
                place(table.name), names[table.name], names[table.name], staged[table.name]
            )
        )
