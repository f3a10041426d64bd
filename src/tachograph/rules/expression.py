"""Expressions of rules, as trees."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """Root of everything that stands in an expression; `at`: where, in characters from its beginning."""

    at: int
    depth: int
