"""Tests of the real Slurm go to one worker of pytest-xdist, one after the other: they share one cluster.

All others are distributed one by one. (`--dist loadgroup` would do, but xdist 3.8 does not group under pytest 9.2.)
"""

from __future__ import annotations

from importlib import import_module
from pathlib import PurePosixPath
from typing import Any

import pytest

SIGN = "real_slurm"  # in the name of a file whose tests use the cluster: the distributing process sees only names


def of_slurm(nodeid: str) -> bool:
    """Whether a test is in a file of those that use the cluster."""
    return SIGN in PurePosixPath(nodeid.partition("::")[0]).name


def scheduler(config: pytest.Config, log: object) -> Any:
    """What distributes every test by itself and those of the real Slurm together; None where another was asked for."""
    if config.getvalue("dist") != "load":
        return None
    made = import_module("xdist.scheduler").LoadScopeScheduling(config, log)
    made._split_scope = lambda nodeid: SIGN if of_slurm(nodeid) else nodeid  # xdist's own way: a group by its name
    return made


def check_names(items: list[pytest.Item]) -> None:
    """Refuse a test that uses the cluster in a file that does not say so."""
    for item in items:
        given = getattr(getattr(item, "callspec", None), "params", {})  # arguments of the test's own, not fixtures
        if "slurm" in getattr(item, "fixturenames", ()) and "slurm" not in given and not of_slurm(item.nodeid):
            raise pytest.UsageError(f"{item.nodeid} uses the cluster: put it into a file with {SIGN!r} in its name")
