"""Every check, in the order of `catalog.codes.CODES`: one module per code, which holds its CHECK.

A check is added by a module here and its code in CODES, or by an installed package
(tachograph.catalog.doors).
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

from tachograph.catalog.codes import CODES
from tachograph.catalog.doors import added_entries
from tachograph.judge.check import Check

_OWN = tuple(cast("Check", import_module(f"{__name__}.{code}").CHECK) for code in CODES)
CHECKS: tuple[Check, ...] = (*_OWN, *added_entries("checks", Check))
# checks of the recording of a job, and not of the job
OF_RECORDING = frozenset(
    check.code for check in CHECKS if check.family in ("data quality", "telemetry")
)
