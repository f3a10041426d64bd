"""Where native code crashed a worker of the tests: Python's own report knows Python's threads only.

The kernel writes a core file where `ulimit -c` allows it, as .ci/run does; gdb reads it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

MOST_FRAMES = 40
GDB_S = 120


def stack_of_core(folder: Path) -> str:
    """Return the stack of the thread that crashed, by the newest core file of a folder; empty
    without a file, or without gdb.
    """
    cores = sorted(folder.glob("core*"), key=lambda path: path.stat().st_mtime)
    cores = [path for path in cores if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]
    gdb = shutil.which("gdb")
    if not cores or gdb is None:
        return ""
    words = [gdb, "-nx", "-batch", "-ex", f"bt {MOST_FRAMES}", "-ex", "info threads"]
    done = subprocess.run(
        [*words, sys.executable, str(cores[-1])], capture_output=True, text=True, timeout=GDB_S
    )
    return f"{cores[-1]}:\n{done.stdout}"
