"""The REST API described: every endpoint with its parameters, formats, answers and errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tachograph.annexes.serve.answers import problem_name
from tachograph.annexes.serve.endpoints import API
from tachograph.annexes.serve.openapi import (
    PROBLEMS,
    described_parameters,
    operation_id,
    problem_statuses,
)
from tachograph.annexes.serve.registry import ENDPOINTS
from tachograph.annexes.serve.shapes import row_properties
from tachograph.annexes.serve.snapshot import View
from tachograph.api.parameters import Parameters

PARAMETERS = Parameters


def content(view: View, parameters: Parameters) -> Mapping[str, Any]:
    """Return the content of the OpenAPI document as lists."""
    return {
        "api": API,
        "operations": [
            {
                "id": operation_id(entry),
                "entry": entry,
                "parameters": described_parameters(entry),
                "formats": entry.formats,
                "fields": row_properties(entry.returns),
                "statuses": problem_statuses(entry),
            }
            for entry in ENDPOINTS
        ],
        "problems_by": {status: problem_name(status) for status in PROBLEMS},
        "problems": [
            (status, problem_name(status), sentence) for status, sentence in PROBLEMS.items()
        ],
    }
