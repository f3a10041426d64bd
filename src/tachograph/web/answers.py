"""Answers of the REST API in the format that a request accepts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import polars as pl
from starlette.responses import Response

from tachograph.report.json_values import json_rows, json_values


@dataclass(frozen=True, slots=True)
class TableAnswer:
    """Rows; `cursor` of the next page, "" for the last; `matching`: how many rows there are in all."""

    rows: pl.DataFrame
    cursor: str = ""
    matching: int | None = None


@dataclass(frozen=True, slots=True)
class ObjectAnswer:
    """One object."""

    values: Mapping[str, Any]
    status: int = 200


Answer: TypeAlias = TableAnswer | ObjectAnswer


def respond(answer: Answer, accept: str) -> Response:
    """Return an answer as JSON."""
    value: Any = json_rows(answer.rows) if isinstance(answer, TableAnswer) else json_values(answer.values)
    return Response(msgspec.json.encode(value), media_type="application/json")
