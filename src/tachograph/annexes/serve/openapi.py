"""The OpenAPI 3.1 document, generated from endpoints, parameters and shapes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from tachograph.annexes.serve.answers import JSON, PROBLEM_TYPE, Format
from tachograph.annexes.serve.endpoints import API, COUNT_HEADER, formats_of
from tachograph.api.endpoints import (
    OBJECT,
    TEXT,
    Endpoint,
    Schema,
    TableShape,
    described,
    list_of,
    type_schema,
)
from tachograph.api.parameters import Parameters
from tachograph.api.viewer import Role
from tachograph.catalog.version import __version__
from tachograph.report.json_values import json_values

VERSION = "3.1.0"
# what the document itself returns
DOCUMENT = {
    "openapi": described("Version of the format.", TEXT),
    "info": described("Name and version of the program.", OBJECT),
    "servers": described("The address that precedes the paths.", list_of(OBJECT)),
    "security": described("Authentication methods.", list_of(OBJECT)),
    "paths": described("The endpoints.", OBJECT),
    "components": described("Parts that several endpoints share.", OBJECT),
}
_IN_PATH = re.compile(r"{(\w+)}")
# {status: when a request is answered so}
PROBLEMS: Mapping[int, str] = MappingProxyType(
    {
        400: "A parameter is unknown, given twice, or of another type.",
        401: "The request is not authenticated.",
        403: "The role does not allow it.",
        404: "No such job, user, account, node, finding, column or address; or it is not visible.",
        413: "The body is too long.",
        415: "The body is of another type.",
        405: "The address does not have this method; the header Allow names those it has.",
        406: "No format in the header Accept is offered.",
        429: "Too many requests; the header Retry-After names the seconds to wait.",
        503: "The lake cannot be read, or nothing was analyzed yet.",
    }
)


@dataclass(frozen=True, slots=True)
class DescribedParameter:
    """A parameter of an endpoint: its location and schema."""

    name: str
    place: str
    required: bool
    schema: Schema

    @property
    def sentence(self) -> str:
        """Description."""
        return str(_without_null(self.schema).get("description", ""))


def openapi_document(endpoints: Sequence[Endpoint], root: str = "") -> Schema:
    """Return the OpenAPI document of the endpoints; `root`: base path of the service."""
    paths: dict[str, Any] = {}
    for entry in endpoints:
        paths.setdefault(entry.path, {})[entry.method.lower()] = _operation(entry)
    return json_values(
        {
            "openapi": VERSION,
            "info": {
                "title": "Tachograph",
                "version": __version__,
                "summary": "GPU jobs of a cluster: what they did with their GPUs.",
                "description": "Times are UTC, fractions 0..1; null is missing.",
            },
            "servers": [{"url": f"{root}{API}"}],
            "security": [{"token": []}, {"session": []}],
            "paths": paths,
            "components": {
                "schemas": {"Problem": _problem_schema()},
                "securitySchemes": {
                    "token": {
                        "type": "http",
                        "scheme": "bearer",
                        "description": "`tachograph serve token create`",
                    },
                    "session": {"type": "apiKey", "in": "cookie", "name": "tachograph_session"},
                },
            },
        }
    )


def _operation(entry: Endpoint) -> Schema:
    parameters = described_parameters(entry)
    operation: Schema = {
        "operationId": operation_id(entry),
        "summary": entry.sentence,
        "description": f"Least role: {entry.least.label}.",
        "parameters": [
            _parameter(parameter) for parameter in parameters if parameter.place != "body"
        ],
        "responses": _responses(entry),
    }
    if entry.method == "POST":
        operation["requestBody"] = _body(
            [parameter for parameter in parameters if parameter.place == "body"]
        )
    if entry.least is Role.ANONYMOUS:
        operation["security"] = []
    return operation


def operation_id(entry: Endpoint) -> str:
    """Return the name of the operation, unique in the document."""
    return f"{entry.method.lower()}_{entry.name}"


def described_parameters(entry: Endpoint) -> list[DescribedParameter]:
    """Return the parameters of an endpoint, path parameters first."""
    parameters = list(_of_struct(entry.parameters, entry))
    if entry.choice is not None:
        parameters += _of_struct(entry.choice, entry)
    return sorted(parameters, key=lambda parameter: parameter.place != "path")


def _of_struct(kind: type[Parameters], entry: Endpoint) -> Iterator[DescribedParameter]:
    in_path, whole = _IN_PATH.findall(entry.path), type_schema(kind)
    for name, schema in whole["properties"].items():
        in_body = entry.method == "POST" and name not in in_path
        described_schema = schema if in_body else _without_null(schema)
        if name == "format":
            described_schema = {
                **described_schema,
                "enum": [form.name for form in formats_of(entry)],
            }
        place = "body" if in_body else "query"
        if name in in_path:
            place = "path"
        yield DescribedParameter(name, place, name in whole.get("required", ()), described_schema)


def _without_null(schema: Schema) -> Schema:
    """Schema without null: queries omit missing parameters."""
    if "anyOf" in schema:
        (variant,) = (each for each in schema["anyOf"] if each != {"type": "null"})
        return dict(variant)
    if None in schema.get("enum", ()):
        return {**schema, "enum": [value for value in schema["enum"] if value is not None]}
    return schema


def _parameter(parameter: DescribedParameter) -> Schema:
    schema = {name: value for name, value in parameter.schema.items() if name != "description"}
    written: Schema = {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.required,
        "schema": schema,
    }
    if parameter.sentence:
        written["description"] = parameter.sentence
    return written


def _body(parameters: Sequence[DescribedParameter]) -> Schema:
    required = [parameter.name for parameter in parameters if parameter.required]
    schema: Schema = {
        "type": "object",
        "properties": {parameter.name: parameter.schema for parameter in parameters},
    }
    if required:
        schema["required"] = required
    schema["additionalProperties"] = False
    return {"required": bool(required), "content": {JSON.media_type: {"schema": schema}}}


def _responses(entry: Endpoint) -> Schema:
    shape = entry.returns
    headers = {
        "Cache-Control": _header("Answers are private to one viewer."),
        "Vary": _header("Headers on which the answer depends."),
    }
    if entry.of_lake and entry.versioned:
        headers["ETag"] = _header(
            "Tag of version, viewer and address; send it as If-None-Match to get 304 if unchanged."
        )
    if isinstance(shape, TableShape):
        headers[COUNT_HEADER] = _header("Number of rows in all parts together.", "integer")
        headers["Link"] = _header('The next part of the list, rel="next"; absent in the last part.')
    content = {form.media_type: _media(form, shape.schema()) for form in formats_of(entry)}
    answer: Schema = {"description": entry.sentence, "content": content}
    if entry.of_lake:
        answer["headers"] = headers
    responses: Schema = {"200": answer}
    if entry.of_lake and entry.versioned:
        responses["304"] = {"description": "Unchanged since the tag in If-None-Match."}
    for status in () if isinstance(shape, TableShape) else shape.also:
        responses[str(status)] = {**answer, "description": PROBLEMS[status]}
    for status in problem_statuses(entry):
        responses.setdefault(str(status), _problem(status))
    return responses


def problem_statuses(entry: Endpoint) -> tuple[int, ...]:
    """Return the statuses of errors of an endpoint."""
    statuses = {400, 406, 429}
    if entry.least > Role.ANONYMOUS:
        statuses |= {401, 403}
    if entry.of_lake:
        statuses |= {404, 503}
    if entry.method == "POST":
        statuses |= {413, 415}
    return tuple(sorted(statuses))


def _media(form: Format, schema: Schema) -> Schema:
    if form.name == "json":
        return {"schema": schema}
    if form.name == "csv":
        return {
            "schema": {
                "type": "string",
                "description": "A header, then a line per row; null is empty.",
            }
        }
    return {"schema": {"type": "string", "format": "binary"}}


def _header(sentence: str, kind: str = "string") -> Schema:
    return {"description": sentence, "schema": {"type": kind}}


def _problem(status: int) -> Schema:
    content = {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {"description": PROBLEMS[status], "content": content}


def _problem_schema() -> Schema:
    return {
        "type": "object",
        "description": "An error as in RFC 9457.",
        "properties": {
            "type": {
                "type": "string",
                "format": "uri-reference",
                "description": "Kind of the error; the page describes it.",
            },
            "title": {"type": "string", "enum": [HTTPStatus(status).phrase for status in PROBLEMS]},
            "status": {"type": "integer", "enum": list(PROBLEMS)},
            "detail": {"type": "string", "description": "What is wrong."},
            "do": {"type": "string", "description": "What to do."},
            "candidates": {
                "type": "array",
                "description": (
                    "Jobs with the given id, one on each of several clusters: the id alone is "
                    "ambiguous."
                ),
                "items": {
                    "type": "object",
                    "properties": {"cluster": {"type": "string"}, "job_key": {"type": "string"}},
                    "required": ["cluster", "job_key"],
                    "additionalProperties": False,
                },
            },
        },
        "required": ["type", "title", "status", "detail", "do"],
        "additionalProperties": False,
    }
