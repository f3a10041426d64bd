"""Records a lake as this version writes it: `PYTHONPATH=tests python tests/upgrade/record_lake.py
NAME`.

To be called where the format of the lake changes, before the change: `lakes/NAME.tar.xz` is then
read by every later version (`make upgrade-test`). Of an earlier version: with its sources in
PYTHONPATH too.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from unpacked import unpack

HERE = Path(__file__).parent
STEPS = (
    ("ingest", "ldms", "input/telemetry"),
    ("ingest", "sacct", "input/accounting"),
    ("analyze",),
)


def main(name: str) -> None:
    """Ingest and analyze the input beside, and pack the lake with what `jobs --json` prints of
    it.
    """
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        unpack(HERE / "input.tar.xz", folder)
        for words in STEPS:
            _run(folder, *words)
        (folder / "jobs.json").write_text(_run(folder, "jobs", "--json"), encoding="utf-8")
        with tarfile.open(HERE / "lakes" / f"{name}.tar.xz", "w:xz") as archive:
            for part in ("lake", "jobs.json"):
                archive.add(folder / part, part)


def _run(folder: Path, *words: str) -> str:
    command = [
        sys.executable,
        "-m",
        "tachograph",
        *words,
        "--lake",
        "lake",
        "--config",
        "input/tachograph.toml",
    ]
    return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main(*sys.argv[1:])
