"""The example notebook shows what it prints, on the demo's lake."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

NOTEBOOKS = Path(__file__).resolve().parent.parent.parent / "docs" / "notebooks"


def test_the_cells_print_what_the_notebook_shows(demo: Path, tmp_path: Path) -> None:
    shutil.copytree(demo, tmp_path / demo.name)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("TACHOGRAPH_")
    }
    program = [sys.executable, str(NOTEBOOKS / "execute.py"), "--check"]
    done = subprocess.run(
        program, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tachograph-study" / "study.html").exists()
