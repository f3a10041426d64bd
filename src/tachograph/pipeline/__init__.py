"""Analysis: from samples and accounting in the lake to summaries, minutes and findings beside them.

`analyze` is imported when it is asked for: it brings the compiler along, which those who only read need not wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tachograph.pipeline.run import AnalysisReport, analyze

__all__ = ["AnalysisReport", "analyze"]


def __getattr__(name: str) -> Any:
    """Return `analyze` or `AnalysisReport`."""
    if name not in __all__:
        raise AttributeError(name)
    from tachograph.pipeline import run

    return getattr(run, name)
