"""Fixtures for the Slurm sources."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from slurm_reading import ReadText, Write

from tachograph.sources.sacct import Reading, read_file
from tachograph.sources.slurm.records import Cluster


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file and returns its path."""

    def writer(content: str | bytes) -> Path:
        path = tmp_path / "accounting.txt"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return writer


@pytest.fixture
def read_text(write: Write) -> ReadText:
    """Reads accounting given as text or bytes, in one reading."""

    def reader(
        content: str | bytes, *, cluster: Cluster | None = None, fields: str | None = None, delimiter: str | None = None
    ) -> Reading:
        readings = list(read_file(write(content), cluster=cluster or Cluster(), fields=fields, delimiter=delimiter))
        assert len(readings) == 1
        return readings[0]

    return reader


@pytest.fixture(scope="session")
def now() -> datetime:
    return datetime(2027, 1, 1, tzinfo=UTC)
