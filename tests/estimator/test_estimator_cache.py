"""What was compiled is compiled again when a function it calls has changed, in whatever file of
its folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CALLED = """
from tachograph.catalog.compiled import either

@either
def inner(x: float) -> float:
    return x + {number}
"""
MIDDLE = """
from called import inner
from tachograph.catalog.compiled import either

@either
def middle(x: float) -> float:
    return inner(x)
"""
LOOP = """
from middle import middle
from tachograph.catalog.compiled import compiled

@compiled
def loop(x: float) -> float:
    return middle(x) * 2.0

print(loop(1.0))
"""


@pytest.mark.slow
def test_a_change_of_what_is_called_is_noticed(tmp_path: Path) -> None:
    for name, text in (("middle", MIDDLE), ("loop", LOOP)):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    for number, found in ((1.0, "4.0"), (22.0, "46.0")):
        (tmp_path / "called.py").write_text(CALLED.format(number=number), encoding="utf-8")
        run = subprocess.run(
            [sys.executable, "-B", "loop.py"],
            cwd=tmp_path,
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kept")},
            capture_output=True,
            text=True,
            check=True,
        )
        assert run.stdout.strip() == found
    assert list((tmp_path / "kept").rglob("*.nbi"))  # it is kept at all
