"""`GET /me`: who the request is from."""

from __future__ import annotations

from typing import Any

from tachograph.web.answers import ObjectAnswer
from tachograph.web.parameters import Parameters
from tachograph.web.shapes import COUNT, TEXT, ObjectShape, described, list_of
from tachograph.web.snapshot import View
from tachograph.web.viewer import Role

PARAMETERS = Parameters


def _properties() -> dict[str, Any]:
    return {
        "name": described("User name.", TEXT),
        "role": described("What they may see.", {**TEXT, "enum": [role.label for role in Role]}),
        "accounts": described("Accounts whose jobs a manager sees.", list_of(TEXT)),
        "via": described("How they were identified.", TEXT),
        "jobs": described("How many jobs are visible.", COUNT),
    }


RETURNS = ObjectShape(_properties)


def answer(view: View, parameters: Parameters) -> ObjectAnswer:
    """Return name, role, and the number of visible jobs."""
    viewer = view.viewer
    return ObjectAnswer(
        {
            "name": viewer.name,
            "role": viewer.role.label,
            "accounts": sorted(viewer.accounts),
            "via": viewer.via,
            "jobs": len(view.jobs),
        }
    )
