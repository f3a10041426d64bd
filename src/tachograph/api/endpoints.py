"""Endpoints of the REST API: what they answer, and the JSON Schema of it.

Schemas are derived from table columns and report types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import msgspec
import polars as pl

from tachograph.api.answers import Answer, FormatChoice, Paging, TableAnswer
from tachograph.api.parameters import Parameters
from tachograph.api.viewer import Role
from tachograph.catalog.columns import FINDINGS_COLUMN, INTERNAL, LOST_COLUMN, SEVERITY_COLUMN
from tachograph.catalog.table_columns import TableColumn
from tachograph.catalog.tables import LakeTable

Schema: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TableShape:
    """A list of rows, requested a page at a time.

    documents: {column of JSON: the schema of what it holds}, for formats that have objects.
    """

    columns: tuple[TableColumn, ...]
    documents: Mapping[str, Schema] = field(default_factory=dict)

    def schema(self) -> Schema:
        """Return the schema of the list as JSON."""
        return {"type": "array", "items": self.row_schema()}

    def row_schema(self) -> Schema:
        """Return the schema of one row, with chosen fields only."""
        properties = columns_schema(self.columns)
        for name, inner in self.documents.items():
            properties[name] = {**inner, "description": properties[name]["description"]}
        return {"type": "object", "properties": properties, "additionalProperties": False}

    def with_documents(self, part: TableAnswer) -> TableAnswer:
        """Return rows with documents as values, in formats that have objects."""
        return replace(part, documents=tuple(self.documents))


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """An object. properties: a schema per key; table: has rows for tabular formats.

    also: further statuses with which it is answered. choices: whether format and fields can be
    chosen.
    """

    properties: Callable[[], Schema]
    table: bool = False
    also: tuple[int, ...] = ()
    choices: bool = True

    def schema(self) -> Schema:
        """Return the schema of the object; with chosen fields it has these alone."""
        return {"type": "object", "properties": self.properties(), "additionalProperties": False}


Shape: TypeAlias = TableShape | ObjectShape


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A REST endpoint: path below `/api/v1`, name, a sentence, its result.

    answer: called with the View (for endpoints of the service alone, the ServedLake), the
    parameters, and for tables the Paging. Its TachographErrors become problem responses with their
    status. least: minimum role. A POST has its parameters in a JSON body. versioned: the answer
    depends on version and parameters only. of_lake: False for endpoints of the service alone, which
    work without a readable lake. light: small pages are computed by the server itself, as they need
    hardly any time and memory; all other answers come from a worker.
    """

    path: str
    name: str
    sentence: str
    answer: Callable[..., Answer]
    returns: Shape
    parameters: type[Parameters] = Parameters
    least: Role = Role.USER
    method: Literal["GET", "POST"] = "GET"
    versioned: bool = True
    of_lake: bool = True
    light: bool = False

    @property
    def choice(self) -> type[FormatChoice] | None:
        """Page and format parameters; None without any."""
        if isinstance(self.returns, TableShape):
            return Paging
        return FormatChoice if self.returns.choices else None

    @property
    def has_rows(self) -> bool:
        """Whether it offers formats of tables beside JSON."""
        return isinstance(self.returns, TableShape) or self.returns.table


def table_shape(
    table: LakeTable, *more: TableColumn, documents: Mapping[str, Schema] | None = None
) -> TableShape:
    """Return the shape of rows of a table, and `more` columns."""
    return TableShape((*public_columns(table), *more), documents or {})


def public_columns(table: LakeTable) -> tuple[TableColumn, ...]:
    """Return the columns of a table without the lake's own."""
    return tuple(column for column in table.columns if column.name not in INTERNAL)


# what a list of jobs has beside job_summaries
OF_FINDINGS = (
    TableColumn(
        FINDINGS_COLUMN,
        pl.List(pl.String()),
        "",
        "Codes of the reported findings, most urgent first.",
        None,
    ),
    TableColumn(
        SEVERITY_COLUMN, pl.String(), "", "Most urgent of these: problem, hint.", "no finding"
    ),
    TableColumn(
        LOST_COLUMN,
        pl.Float64(),
        "h",
        "GPU-hours lost to all causes of waste together.",
        "not known",
    ),
)


PAGE = TableColumn(
    "page", pl.String(), "", "Address of its page, relative to that of the service.", None
)


def columns_schema(columns: tuple[TableColumn, ...]) -> Schema:
    """Return {column: its schema}, with unit and meaning, and the meaning of null.

    >>> columns_schema((TableColumn("elapsed_s", pl.Float64(), "s", "Run time.", "not known"),))
    {'elapsed_s': {'type': ['number', 'null'], 'description': 'Run time. Unit: s. Null: not known.', 'x-unit': 's'}}
    """
    return {column.name: _column_schema(column) for column in columns}


def _column_schema(column: TableColumn) -> Schema:
    schema = _type_schema(column.dtype)
    sentences = [column.sentence]
    if column.unit:
        sentences.append(f"Unit: {column.unit}.")
        schema["x-unit"] = column.unit
    if column.null is not None:
        sentences.append(f"Null: {column.null}.")
        schema["type"] = [schema["type"], "null"]
    described = {"type": schema.pop("type"), "description": " ".join(sentences)}
    return described | schema


def _type_schema(dtype: pl.DataType) -> Schema:
    match dtype:
        case pl.List(inner=inner):
            items = _type_schema(inner() if isinstance(inner, type) else inner)
            return {"type": "array", "items": items | {"type": [items["type"], "null"]}}
        case pl.Datetime():
            return {"type": "string", "format": "date-time"}
        case pl.Boolean():
            return {"type": "boolean"}
        case pl.String():
            return {"type": "string"}
        case _ if dtype.is_integer():
            return {"type": "integer"}
        case _ if dtype.is_numeric():
            return {"type": "number"}
    raise TypeError(f"no schema for {dtype}")


def type_schema(kind: Any) -> Schema:
    """Return the schema of `json_values` of a type; tables are lists of any rows.

    >>> type_schema(float), type_schema(bool | None)
    ({'type': ['number', 'null']}, {'anyOf': [{'type': 'boolean'}, {'type': 'null'}]})
    """
    (schema,), components = msgspec.json.schema_components([kind], schema_hook=_foreign)
    inlined: Schema = _inlined(schema, components)
    return inlined


def _foreign(kind: type) -> Schema:
    if issubclass(kind, pl.DataFrame):
        return {"type": "array", "items": {"type": "object"}}
    # What msgspec expects of a hook that does not know a type.
    raise NotImplementedError(f"no schema for {kind}")


def _inlined(schema: Any, components: Mapping[str, Any]) -> Any:
    """Return a schema with references inlined; NaN and infinities are null in JSON."""
    if isinstance(schema, list):
        return [_inlined(each, components) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(components[schema["$ref"].rpartition("/")[2]], components)
    inlined = {
        name: _inlined(each, components)
        for name, each in schema.items()
        if name not in ("title", "default")
    }
    return inlined | {"type": ["number", "null"]} if inlined.get("type") == "number" else inlined


def field_schemas(kind: type, *, without: tuple[str, ...] = ()) -> Schema:
    """Return {field: its schema} of a data class as `json_values` makes it."""
    properties: Schema = type_schema(kind)["properties"]
    return {name: each for name, each in properties.items() if name not in without}


def described(sentence: str, schema: Mapping[str, Any]) -> Schema:
    """Return a schema with its description."""
    return {**schema, "description": sentence}


def list_of(items: Mapping[str, Any]) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": dict(items)}


def object_of(properties: Mapping[str, Any]) -> Schema:
    """Return the schema of an object with exactly these keys."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def or_null(schema: Mapping[str, Any]) -> Schema:
    """Return the schema of a value that may be missing."""
    return {"anyOf": [dict(schema), {"type": "null"}]}


TEXT: Mapping[str, Any] = MappingProxyType({"type": "string"})
NUMBER: Mapping[str, Any] = MappingProxyType({"type": ["number", "null"]})
BOOLEAN: Mapping[str, Any] = MappingProxyType({"type": "boolean"})
OBJECT: Mapping[str, Any] = MappingProxyType({"type": "object"})  # of any keys
COUNT: Mapping[str, Any] = MappingProxyType({"type": "integer"})
MOMENT: Mapping[str, Any] = MappingProxyType({"type": "string", "format": "date-time"})
