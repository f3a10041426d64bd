"""The version stands in the package and in its metadata: both are the same."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tachograph.catalog.version import __version__

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def test_package_and_metadata_have_one_version() -> None:
    assert tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["version"] == __version__
