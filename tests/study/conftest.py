"""A lake made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from studied_lake import studied_lake


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the lake of six jobs."""
    folder = tmp_path_factory.mktemp("study") / "lake"
    studied_lake(folder)
    return folder
