"""Every check, in the order of `catalog.codes.CODES`: one module per code, which holds its CHECK.

A check is added by a module here and its code in CODES.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

from tachograph.catalog.codes import CODES
from tachograph.judge.check import Check

CHECKS: tuple[Check, ...] = tuple(cast("Check", import_module(f"{__name__}.{code}").CHECK) for code in CODES)
