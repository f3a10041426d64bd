"""The reference of the REST API for api.md: endpoints, parameters, fields and errors, from the catalogue."""

from __future__ import annotations

from collections.abc import Iterator

from tachograph.web.answers import problem_name
from tachograph.web.endpoints import Endpoint
from tachograph.web.openapi import PROBLEMS, DescribedParameter, described_parameters, problem_statuses
from tachograph.web.registry import ENDPOINTS
from tachograph.web.shapes import TableShape, row_properties

# of lists and of all, described once
_EVERYWHERE = frozenset({"format", "fields", "limit", "after"})
_FEW = 20  # fields that are named


def reference() -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """Yield (text, rows of its table) for each part; the first row has the headings; no rows, no table."""
    yield "## Endpoints", [("endpoint", "what", "least role"), *map(_line, ENDPOINTS)]
    yield from map(_endpoint, ENDPOINTS)
    errors = [(str(status), f"`{problem_name(status)}`", when) for status, when in PROBLEMS.items()]
    yield "## Errors", [("status", "`type`", "when"), *errors]


def _endpoint(entry: Endpoint) -> tuple[str, list[tuple[str, ...]]]:
    shape = entry.returns
    names = [f"`{name}`" for name in row_properties(shape)]
    shown = ", ".join(names) if len(names) <= _FEW else f"{len(names)} fields, see `/api/docs`"
    sentences = (
        entry.sentence,
        f"{'A row' if isinstance(shape, TableShape) else 'The object'} has {shown}.",
        f"Formats: {', '.join(form.name for form in entry.formats)}.",
        f"Errors: {', '.join(map(str, problem_statuses(entry)))}.",
    )
    own = [one for one in described_parameters(entry) if one.name not in _EVERYWHERE]
    table = [("parameter", "type", "meaning"), *map(_parameter, own)] if own else []
    return f"### `{entry.method} {entry.path}`\n\n{' '.join(sentences)}", table


def _line(entry: Endpoint) -> tuple[str, ...]:
    return (f"`{entry.method} {entry.path}`", entry.sentence, entry.least.label)


def _parameter(one: DescribedParameter) -> tuple[str, ...]:
    return (f"`{one.name}`", one.type_text, one.sentence)
