"""The reference of the REST API for api.md: endpoints and errors, from the catalogue."""

from __future__ import annotations

from collections.abc import Iterator

from tachograph.annexes.serve.answers import problem_name
from tachograph.annexes.serve.openapi import PROBLEMS
from tachograph.annexes.serve.registry import ENDPOINTS
from tachograph.api.endpoints import Endpoint


def reference() -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """Yield (text, rows of its table) for each part; the first row has the headings; no rows, no
    table.
    """
    yield (
        (
            "## Endpoints\n\nThe OpenAPI document has the parameters, fields and errors of each. A job "
            "is chosen by `key`, with `cluster` and `run`, a list by filters."
        ),
        [("endpoint", "what", "least role"), *map(_endpoint_row, ENDPOINTS)],
    )
    errors = [(str(status), f"`{problem_name(status)}`", when) for status, when in PROBLEMS.items()]
    yield "## Errors", [("status", "`type`", "when"), *errors]


def _endpoint_row(endpoint: Endpoint) -> tuple[str, ...]:
    return f"`{endpoint.method} {endpoint.path}`", endpoint.sentence, endpoint.least.label
