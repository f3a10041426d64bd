"""Answers of the REST API in the format that a request accepts: JSON, CSV, Parquet."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec
import polars as pl
from starlette.responses import Response

from tachograph.api.answers import Answer, FormatChoice, FormatName, ObjectAnswer, TableAnswer
from tachograph.catalog.columns import INTERNAL, must_exist
from tachograph.catalog.errors import UsageError
from tachograph.catalog.spreadsheets import table_csv
from tachograph.catalog.units import escaped_json
from tachograph.report.json_values import json_values

PROBLEM_TYPE = "application/problem+json"


@dataclass(frozen=True, slots=True)
class Format:
    """A format: name, media type, ending of files, rows to bytes."""

    name: FormatName
    media_type: str
    suffix: str
    encode: Callable[[pl.DataFrame], bytes]


def encode_json(value: object) -> bytes:
    r"""Return a value as JSON with control and direction characters escaped.

    >>> encode_json({"name": "\u202eö"}).decode()
    '{"name":"\\u202eö"}'
    """
    return escaped_json(msgspec.json.encode(value).decode()).encode()


def _json(rows: pl.DataFrame) -> bytes:
    return escaped_json(rows.write_json()).encode()


def _csv(rows: pl.DataFrame) -> bytes:
    """Return CSV: times in UTC, null empty, lists joined with `+`, harmless texts."""
    return table_csv(rows, datetime_format="%Y-%m-%dT%H:%M:%SZ").encode()


def _parquet(rows: pl.DataFrame) -> bytes:
    target = io.BytesIO()
    rows.write_parquet(target)
    return target.getvalue()


# the one that is preferred first
FORMATS = (
    Format("json", "application/json", ".json", _json),
    Format("csv", "text/csv", ".csv", _csv),
    Format("parquet", "application/vnd.apache.parquet", ".parquet", _parquet),
)
JSON = FORMATS[0]
_MEDIA_RANGE = re.compile(r"([^\s;,]+/[^\s;,]+)\s*(?:;\s*q\s*=\s*([^\s;,]*))?")


def choose_format(accept: str, offered: Sequence[Format]) -> Format | None:
    """Return the format that Accept prefers, the first of equals; None if it accepts none.

    >>> choose_format("text/csv;q=0.5, application/*;q=0.8, application/json;q=0", FORMATS).name
    'parquet'
    >>> choose_format("", FORMATS).name, choose_format("image/png", FORMATS)
    ('json', None)
    """
    if not accept.strip():
        return offered[0]
    weights = {name: _weight(written) for name, written in _MEDIA_RANGE.findall(accept.lower())}

    def weight(form: Format) -> float:
        ranges = (form.media_type, f"{form.media_type.partition('/')[0]}/*", "*/*")
        return next((weights[name] for name in ranges if name in weights), 0.0)

    best = max(offered, key=weight)
    return best if weight(best) > 0 else None


def _weight(written: str) -> float:
    """Return the weight of a media range: 1 by default, 0 if it is not a number."""
    try:
        return float(written or 1)
    except ValueError:
        return 0.0


def respond(answer: Answer, form: Format, choice: FormatChoice, *, title: str) -> Response:
    """Return an answer in a format. `title`: file name for downloads.

    Errors: UsageError for a field that the answer does not have.
    """
    if isinstance(answer, ObjectAnswer) and form is JSON:
        values = _chosen_keys(json_values(answer.values), choice.names)
        return Response(encode_json(values), answer.status, media_type=form.media_type)
    rows = answer.rows
    if rows is None:
        raise AssertionError("a table format was chosen for an answer without a table")
    table = public_rows(rows, choice.names)
    if isinstance(answer, TableAnswer) and form is JSON:
        content = _with_documents(table, answer.documents)
    else:
        content = form.encode(table)
    response = Response(content, media_type=form.media_type)
    if choice.format is not None and form is not JSON:
        response.headers["content-disposition"] = f'attachment; filename="{title}{form.suffix}"'
    return response


def public_rows(rows: pl.DataFrame, names: Sequence[str] = ()) -> pl.DataFrame:
    """Return the columns `names` (default: all) without internal ones.

    Errors: UsageError for a column that is not there.
    """
    public = [name for name in rows.columns if name not in INTERNAL]
    must_exist(names, public, what="field", error=UsageError)
    selected = rows.select(names or public)
    return selected.with_columns(pl.col(pl.Float32).cast(pl.Float64))


def _chosen_keys(values: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
    must_exist(names, tuple(values), what="field", error=UsageError)
    return {name: values[name] for name in names} if names else values


def _with_documents(table: pl.DataFrame, documents: Sequence[str]) -> bytes:
    """Return rows as JSON with the decoded values of `documents`."""
    if set(table.columns).isdisjoint(documents):
        return JSON.encode(table)
    rows = msgspec.json.decode(JSON.encode(table))
    for row in rows:
        for name in documents:
            if row.get(name) is not None:
                row[name] = msgspec.json.decode(row[name])
    return encode_json(rows)


def is_named(tag: str, if_none_match: str) -> bool:
    """Return whether If-None-Match names an entity tag, even if a proxy weakened it.

    >>> is_named('"a"', 'W/"a"'), is_named('W/"a"', '"b", W/"a"'), is_named('"a"', '')
    (True, True, False)
    """
    return tag.removeprefix("W/") in (
        name.strip().removeprefix("W/") for name in if_none_match.split(",")
    )


def problem(
    status: int,
    what: str,
    do: str,
    *,
    docs: str,
    headers: Mapping[str, str] | None = None,
    candidates: Sequence[tuple[str, str]] = (),
) -> Response:
    """Return an error as RFC 9457 problem details; `docs`: the page that describes its type.

    candidates: (cluster, job_key) of the jobs that match.
    """
    title = HTTPStatus(status).phrase
    body: dict[str, Any] = {
        "type": f"{docs}#{problem_name(status)}",
        "title": title,
        "status": status,
        "detail": what,
        "do": do,
    }
    if candidates:
        body["candidates"] = [{"cluster": cluster, "job_key": key} for cluster, key in candidates]
    return Response(encode_json(body), status, headers, media_type=PROBLEM_TYPE)


def problem_name(status: int) -> str:
    """Return the name of the type of a problem.

    >>> problem_name(404)
    'not-found'
    """
    return HTTPStatus(status).phrase.lower().replace(" ", "-")
