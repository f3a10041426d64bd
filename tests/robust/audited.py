"""Runs commands in this process and writes down each path in the working directory that one opened
or listed.

What a library written in C or Rust opens by itself is not seen here, but by strace.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# {event of an audit hook: where in its arguments the path is}
PATHS = {
    "open": 0,
    "os.listdir": 0,
    "os.scandir": 0,
    "import": 1,
    "ctypes.dlopen": 0,
    "os.chdir": 0,
    "os.open": 0,
}


class WorkingDirectoryAudit:
    """What was opened in the working directory, by the command that ran."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.command = ""
        self.opened: dict[str, set[str]] = {}

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Write down an event that concerns the working directory."""
        if event in PATHS:
            path = arguments[PATHS[event]]
            if (
                event == "open"
                and arguments[1] is None
                and isinstance(path, str)
                and not os.path.lexists(path)
            ):
                return  # relative to a folder that is open, as shutil.rmtree does: by os.open
            for inside in self._inside(path):
                self.opened.setdefault(self.command, set()).add(f"{event} {inside}")

    def _inside(self, path: object) -> Iterator[str]:
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if (
            isinstance(path, str)
            and "/" not in path
            and path.endswith((".so", ".so.1", ".so.12", ".so.6"))
        ):
            return  # a library that is looked for in the system's folders
        if isinstance(path, str) and path:
            whole = os.path.abspath(path)  # noqa: PTH100 as pathlib opens what is audited here
            if whole == self._folder or whole.startswith(f"{self._folder}/"):
                yield path


def main() -> None:
    """Run each list of words that is in the file named first; write what was opened into the
    second.
    """
    calls: dict[str, list[str]] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    audit = WorkingDirectoryAudit(os.getcwd())  # noqa: PTH109
    sys.addaudithook(audit)
    from tachograph.cli import main as tachograph

    codes = {}
    for audit.command, words in calls.items():
        codes[audit.command] = tachograph(words)
    sys.stdout.flush()
    opened = {command: sorted(paths) for command, paths in audit.opened.items()}
    Path(sys.argv[2]).write_text(json.dumps({"opened": opened, "codes": codes}), encoding="utf-8")


if __name__ == "__main__":
    main()
