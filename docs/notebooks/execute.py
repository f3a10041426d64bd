"""Executes the notebooks of this folder where `tachograph-demo` is, and writes them back with their
outputs.

    tachograph demo && python PATH/TO/docs/notebooks/execute.py [--check]

`--check` writes nothing and fails where a cell prints something else than the notebook shows;
images are not compared.
"""

from __future__ import annotations

import copy
import difflib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def main(arguments: list[str]) -> int:
    """Execute every notebook; return 1 where `--check` finds a difference."""
    different = False
    for file in sorted(FOLDER.glob("*.ipynb")):
        shown = nbformat.read(file, as_version=4)  # type: ignore[no-untyped-call]
        made = executed(shown)
        if "--check" not in arguments:
            file.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            continue
        before, after = list(printed(shown)), list(printed(made))
        sys.stderr.writelines(
            difflib.unified_diff(before, after, f"{file.name} as it is", "as it prints now")
        )
        different |= before != after
    return int(different)


def executed(notebook: nbformat.NotebookNode) -> dict[str, Any]:
    """Return the notebook with the outputs of its cells, and nothing that differs from run to
    run.
    """
    made = copy.deepcopy(notebook)
    os.environ.pop("TACHOGRAPH_LAKE", None)
    client = NotebookClient(made, timeout=300, kernel_name="python3", record_timing=False)
    client.km = client.create_kernel_manager()
    client.km.transport = "ipc"  # a socket of this user, no port
    client.execute()
    for output in (output for cell in made.cells for output in cell.get("outputs", [])):
        if "<iframe" in output.get("data", {}).get("text/html", ""):
            del output["data"]["text/html"]  # a whole page, which viewers of notebooks do not show
    cells = [{**cell, "metadata": {}} for cell in made.cells]
    return {**made, "cells": cells, "metadata": METADATA}


def printed(notebook: Mapping[str, Any]) -> Iterator[str]:
    """Return what the cells of a notebook print or show as text, line by line."""
    for place, cell in enumerate(notebook["cells"]):
        for output in cell.get("outputs", []):
            text = output.get("text") or output.get("data", {}).get("text/plain", "")
            yield from (f"[{place}] {line}\n" for line in text.splitlines())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
