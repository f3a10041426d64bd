"""Start Python processes that load no modules from the working directory.

Python looks for modules in the working directory first (`-m`, `-c`, and thus the workers of
multiprocessing). A file that lies there under the name of a module, of the standard library too,
would be run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.context import SpawnContext

SAFE_PATH = "PYTHONSAFEPATH"  # the environment's form of -P


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module with this interpreter.

    >>> python_command("tachograph", "version")[1:]
    ['-P', '-m', 'tachograph', 'version']
    """
    return [sys.executable, "-I" if sys.flags.isolated else "-P", "-m", module, *arguments]


@contextmanager
def spawned_workers(**environment: str) -> Iterator[SpawnContext]:
    """Inside the block, start workers safely, with these variables in their environment.

    Workers started inside the block by others (Dask) are safe, too. multiprocessing has no way to
    hand over options of the interpreter, so they are in this process's environment during the
    block: programs of the user have no place there.
    """
    from multiprocessing import get_context

    environment = {SAFE_PATH: "1", **environment}
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield get_context("spawn")  # a fork would copy Polars and Delta without their threads
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
