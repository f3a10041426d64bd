"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
RECORDED = Path(os.environ.get("TACHOGRAPH_RECORDED", REPOSITORY.parent / "shared" / "data"))


@pytest.fixture(scope="session")
def recorded() -> Path:
    """Folder of recorded real inputs; a run that requires them (TACHOGRAPH_REQUIRE_RECORDED=1) fails without."""
    if RECORDED.is_dir():
        return RECORDED
    if os.environ.get("TACHOGRAPH_REQUIRE_RECORDED") == "1":
        pytest.fail(f"recorded inputs are required and {RECORDED} is absent")
    pytest.skip(f"no recorded inputs at {RECORDED}: set TACHOGRAPH_RECORDED to their folder")
