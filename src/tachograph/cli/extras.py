"""Names the extra to install when a command needs a library of an annex that is not installed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tachograph.catalog.errors import UsageError

# {module: extra}, as in pyproject.toml
EXTRA_OF_MODULE: Mapping[str, str] = MappingProxyType(
    {
        "matplotlib": "lab",
        "pynvml": "watch",
        "starlette": "serve",
        "textual": "watch",
        "uvicorn": "serve",
    }
)


def missing_extra(command: str, problem: ModuleNotFoundError) -> UsageError | None:
    """Return which extra to install after a failed import; None if no extra has the module."""
    module = (problem.name or "").partition(".")[0]
    extra = EXTRA_OF_MODULE.get(module)
    if extra is None:
        return None
    return UsageError(
        f"`tachograph {command}` needs {module}, which is not installed",
        do=f"pip install 'tachograph[{extra}]'",
    )
