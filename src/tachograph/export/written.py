"""What an export did, and files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tachograph.errors import ExportError


@dataclass(frozen=True, slots=True)
class Written:
    """One table, file or address: rows (series, jobs) written, taken away, left as they were."""

    what: str
    where: str
    written: int
    removed: int = 0
    unchanged: int = 0


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """A file beside `target` that takes its place when the block ends well; readers see the old or the new one.

    Errors: ExportError when it cannot be written.
    """
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    with export_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield beside
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)


@contextmanager
def export_errors(where: Path | str) -> Iterator[None]:
    """Turn what the operating system reports inside the block into ExportError."""
    try:
        yield
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise ExportError(
            f"cannot be written: {reason}", where=str(where), do="name another with --to, or make room for it"
        ) from problem
