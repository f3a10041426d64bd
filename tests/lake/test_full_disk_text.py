"""Where the disk is full, one error comes of it: what threads of a library print when they panic
is not shown.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

WORK = """
import os, sys
from pathlib import Path
import numpy as np
import polars as pl
from tachograph.catalog.tables import GPU_SAMPLES
from tachograph.lake.problems import lake_errors
from tachograph.lake.store import write_compact

rows = 20_000
chance = np.random.default_rng(1)
frame = GPU_SAMPLES.empty().clear(rows).with_columns(
    [pl.Series(name, chance.random(rows), dtype=of) for name, of in GPU_SAMPLES.schema.items() if of == pl.Float32]
)
os.write(2, b"before\\n")
try:
    with lake_errors(sys.argv[1], writing=True):
        write_compact(frame, GPU_SAMPLES, Path(sys.argv[1]), row_group_rows=1 << 20)
except Exception as problem:
    os.write(2, f"{problem}\\n".encode())
"""


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))


def test_what_a_thread_prints_when_it_panics_is_not_shown(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-B", "-c", WORK, str(tmp_path)],  # bytecode would be cut off
        capture_output=True,
        text=True,
        preexec_fn=limited,
    )
    lines = done.stderr.splitlines()
    assert lines[0] == "before"
    assert len(lines) == 2, done.stderr
    assert "free some space" in lines[1]
