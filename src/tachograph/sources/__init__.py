"""Sources: each reads one format and hands over chunks of contract columns. It never guesses a value.

A source is added by one file and one line in `registry.SOURCES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tachograph.schema import Reject

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True)
class Part:
    """Rows for one table: contract column names, in the units given (contract units where none is given).

    `rejects` are rows the reader itself had to give up (a line that does not parse, a time that does not exist).
    """

    table: str
    frame: pl.DataFrame
    units: Mapping[str, str] = field(default_factory=dict)
    rejects: tuple[Reject, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """What lands in the lake whole or not at all. `id` is the same whenever the same input is read again."""

    id: str
    source: str
    origin: str
    parts: tuple[Part, ...]
    rows_read: int
