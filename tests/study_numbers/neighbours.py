"""Modules of other folders of tests; names of test modules are unique in the tree."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent


def neighbour(folder: str, module: str) -> Any:
    """Return a module of another folder of tests."""
    place = str(TESTS / folder)
    if place not in sys.path:
        sys.path.append(place)
    return import_module(module)
