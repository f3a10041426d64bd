"""`tachograph analyze` and `ingest` tell the allocator to keep memory before Polars is there.

What the environment says stays.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys
from tachograph.pipeline import memory
was, loaded = memory.keep_freed_memory, []
def watched(*setting):
    loaded.append("polars" in sys.modules)
    was(*setting)
memory.keep_freed_memory = watched
from tachograph.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(loaded, os.environ["_RJEM_MALLOC_CONF"])
"""


KEPT = "dirty_decay_ms:60000,muzzy_decay_ms:-1"
OF_POLARS = "dirty_decay_ms:500,muzzy_decay_ms:1000"


@pytest.mark.parametrize(
    ("command", "given", "told"),
    [
        (("ingest", "ldms", "none.parquet"), {}, KEPT),
        (("analyze",), {"_RJEM_MALLOC_CONF": "thp:always"}, f"{KEPT},thp:always"),
        # Of a parent process.
        (("analyze",), {"_RJEM_MALLOC_CONF": f"{KEPT},{OF_POLARS},{KEPT}"}, KEPT),
    ],
)
def test_allocator_is_told_before_polars_is_loaded(
    command: tuple[str, ...], given: dict[str, str], told: str, tmp_path: Path
) -> None:
    line = [sys.executable, "-c", SCRIPT, *command, "--lake", str(tmp_path / "none")]
    done = subprocess.run(
        line, env=given, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    if command[0] == "ingest":
        told = told.replace(KEPT, f"{KEPT},narenas:1", 1)
    assert done.stdout == f"[False] {OF_POLARS},{told}\n", done.stderr
