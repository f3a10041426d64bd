"""Patterns and rules out of the text of a file."""

from __future__ import annotations

from tachograph.rules.model import Loaded


def load_patterns(text: str, file: str) -> Loaded:
    """Return the patterns of a file (JSON, comments allowed) and what is wrong in it; it never raises.

    The text holds one rule, one pattern (`description`, `criterion`, `false_positives`, `cures`, `rules`), or a list.
    """
    raise NotImplementedError
