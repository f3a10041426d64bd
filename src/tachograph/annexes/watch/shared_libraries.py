"""Loads shared libraries of wheels before their users search elsewhere."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from importlib import metadata


def load_of_package(package: str, *names: str) -> None:
    """Load a package's libraries by these prefixes, in order.

    CUDA for Python looks in site-packages alone, not along PYTHONPATH, and then takes one of the
    system, of another version; CUPTI finds those beside it by their names only, so that the
    system's come first, too. What is loaded is not looked for.
    """
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        return
    for name in names:
        for file in files:
            if file.name.startswith(name):
                with suppress(OSError):  # whoever needs it reports that
                    ctypes.CDLL(str(file.locate()))
