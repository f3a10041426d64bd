"""The reference of the REST API for api.md: endpoints and errors, from the catalogue."""

from __future__ import annotations

from collections.abc import Iterator

from tachograph.annexes.serve.answers import problem_name
from tachograph.annexes.serve.endpoints import Endpoint
from tachograph.annexes.serve.openapi import PROBLEMS, described_parameters
from tachograph.annexes.serve.registry import ENDPOINTS

# of lists and of all, described above the reference
_EVERYWHERE = frozenset({"format", "fields", "limit", "after"})
_FILTERS = frozenset({"user", "account", "partition", "state", "attribution", "finding", "verdict"})
_FILTERS |= {"since", "until", "where"}


def reference() -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """Yield (text, rows of its table) for each part; the first row has the headings; no rows, no
    table.
    """
    yield (
        "## Endpoints\n\nThe OpenAPI document has the parameters, fields and errors of each.",
        [("endpoint", "what", "least role", "parameters"), *map(_endpoint_row, ENDPOINTS)],
    )
    errors = [(str(status), f"`{problem_name(status)}`", when) for status, when in PROBLEMS.items()]
    yield "## Errors", [("status", "`type`", "when"), *errors]


def _endpoint_row(endpoint: Endpoint) -> tuple[str, ...]:
    names = [parameter.name for parameter in described_parameters(endpoint)]
    own = [f"`{name}`" for name in names if name not in _EVERYWHERE]
    if set(names) >= _FILTERS:
        own = ["filters", *(f"`{name}`" for name in names if name not in _EVERYWHERE | _FILTERS)]
    return (
        f"`{endpoint.method} {endpoint.path}`",
        endpoint.sentence,
        endpoint.least.label,
        ", ".join(own),
    )
