"""A command in this process: what became of it, as of one in a process of its own, a second
earlier.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess

from copied_environment import variables
from tachograph.cli import main


def clean_environment(**more: str) -> dict[str, str]:
    """The variables of this process but those that Tachograph reads, and these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TACHOGRAPH_")}
    return kept | more


def run_here(
    words: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> CompletedProcess[str]:
    """Return exit code, stdout and stderr of `tachograph` with these arguments, in a folder;
    defects are raised.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2))
    with (
        chdir(folder),
        variables(environment),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = main(words)
    for stream in (out, err):
        stream.seek(0)
    return CompletedProcess(list(words), code, out.read(), err.read())


def run_well(folder: Path, command: str, *words: str, code: int = 0) -> CompletedProcess[str]:
    """Return what a command did that ends with `code`, with the lake of the folder, its home."""
    environment = {"HOME": str(folder), "TACHOGRAPH_LAKE": "lake"}
    done = run_here([*command.split(), *words], folder, environment)
    assert done.returncode == code, done.stdout + done.stderr
    return done
