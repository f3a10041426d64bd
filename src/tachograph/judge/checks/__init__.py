"""Every check, in the order of `catalog.codes.CODES`: one module per code, which holds its CHECK.

A check is added by a module here and its code in CODES, or by an installed package
(tachograph.catalog.doors). CHECKS imports all of them, and so is made when it is first used; a
report names few.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import cast

from tachograph.catalog.codes import CODES, HOST_CODES
from tachograph.catalog.doors import added_entries
from tachograph.judge.check import Check, condition_problem

CHECKS: tuple[Check, ...]
OF_RECORDING: frozenset[str]  # checks of the recording of a job, and not of the job
_RECORDING = ("data quality", "telemetry")


def __getattr__(name: str) -> object:
    """Make CHECKS and OF_RECORDING."""
    if name == "CHECKS":
        globals()[name] = (*map(_own, CODES), *_added())
    elif name == "OF_RECORDING":
        checks = cast("tuple[Check, ...]", __getattr__("CHECKS"))
        globals()[name] = frozenset(check.code for check in checks if is_of_recording(check))
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[name]


def is_of_recording(check: Check) -> bool:
    """Return whether a check is of the recording of a job, and not of the job."""
    return check.family in _RECORDING


@cache
def check_of(code: str) -> Check | None:
    """Return the check that reports a code, without importing the others; None: none does."""
    module = code.removesuffix("_host") if code in HOST_CODES else code
    if module in CODES:
        return _own(module)
    return next((check for check in _added() if code in check.codes), None)


def _own(code: str) -> Check:
    return cast("Check", import_module(f"{__name__}.{code}").CHECK)


@cache
def _added() -> tuple[Check, ...]:
    return added_entries(
        "checks",
        Check,
        problem_of=condition_problem,
        do="make it compare columns, for example pl.col('gpu_temp_c_max') < 18",
    )
