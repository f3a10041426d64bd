"""Three ways of the data, followed through the code as it runs: which modules a call passes, and
how deep it goes.

A telemetry file's rows to the lake; samples to a row of `job_summaries`; a finding to the text and
the page. Prints JSON: for each walk the modules of the package in the order in which they are
entered, their number, and per room the depth of the deepest call, counted in functions of the
package.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import tachograph
from tachograph.cli import main

PACKAGE = str(Path(tachograph.__file__).parent) + os.sep
JOB = "1000316"  # of the demo: one of its GPUs works


class Walk:
    """Records each module of the package that is entered, and the depth of calls within it."""

    def __init__(self) -> None:
        """Nothing entered yet."""
        self.modules: dict[str, None] = {}
        self.depth: dict[str, int] = {}  # {room: depth of the deepest call in it}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Take one call; imports are no part of the way."""
        code = frame.f_code
        if (
            event != "call"
            or not code.co_filename.startswith(PACKAGE)
            or code.co_name == "<module>"
        ):
            return
        depth = 0
        at: FrameType | None = frame
        while at is not None:
            inside = at.f_code.co_filename
            if at.f_code.co_name == "<module>" and inside.startswith(PACKAGE):
                return  # a module being imported
            depth += inside.startswith(PACKAGE)
            at = at.f_back
        name = code.co_filename.removeprefix(PACKAGE).removesuffix(".py").removesuffix("/__init__")
        self.modules.setdefault(name)
        room = name.split("/")[0]
        self.depth[room] = max(self.depth.get(room, 0), depth)


def walk(*argv: str) -> dict[str, object]:
    """Return what a command passes: modules in order, their number, the depth."""
    seen = Walk()
    threading.setprofile(seen)
    sys.setprofile(seen)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = main(list(argv))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert code == 0, argv
    return {
        "command": " ".join(argv[:2]),
        "modules": len(seen.modules),
        "depth": seen.depth,
        "way": [*seen.modules],
    }


def run(folder: Path) -> list[dict[str, object]]:
    """Return the three walks, on the demo's cluster."""
    os.chdir(folder)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main(["demo", "--quiet"])
    os.chdir(folder / "tachograph-demo")
    made = ["--lake", str(folder / "lake")]
    rows = walk("ingest", "ldms", "cluster/telemetry", *made)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main(["ingest", "sacct", "cluster/accounting/sacct.txt", *made])
    summary = walk("analyze", *made)
    text = walk("job", JOB)
    page = walk("job", JOB, "--html", str(folder / "job.html"))
    return [rows, summary, text, page]


def print_walks() -> int:
    """Print the walks as JSON."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        walks = run(Path(folder))
        os.chdir(here)
    print(json.dumps({"walks": walks}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(print_walks())
