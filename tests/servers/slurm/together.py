"""Which tests go to one worker of pytest-xdist, one after the other, and which begin first.

Tests of a file share what it prepares, so they go together; those that are long and share nothing
go one by one. Tests of the real Slurm share one cluster, whatever their files. They begin first,
for they wait more than they work; then files marked as slow, so that no worker begins with one when
the others have ended. (`--dist loadgroup` would do, but xdist 3.8 does not group under pytest 9.2.)
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import PurePosixPath
from typing import Any

import pytest

# In the name of a file whose tests use the cluster: the distributing process sees only names.
SIGN = "real_slurm"
ONE_BY_ONE = ("test_docs_run.py", "test_recipes.py", "test_killed.py")


def of_slurm(nodeid: str) -> bool:
    """Whether a test is in a file of those that use the cluster."""
    return SIGN in _file(nodeid).name


def group(nodeid: str) -> str:
    """The name that a test shares with those it goes together with."""
    if of_slurm(nodeid):
        return SIGN
    file = _file(nodeid)
    return nodeid if file.name in ONE_BY_ONE else str(file)


def scheduler(config: pytest.Config, log: object) -> Any:
    """What distributes tests by groups, in their order; None where another was requested."""
    if config.getvalue("dist") != "load":
        return None
    config.option.loadscopereorder = False
    return _by_group()(config, log)


def in_order(items: list[pytest.Item]) -> None:
    """Put tests of the real Slurm first, then files of which one is slow; all others stay in
    order.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: 0 if of_slurm(item.nodeid) else 1 if item.path in slow else 2)


def check_names(items: list[pytest.Item]) -> None:
    """Refuse a test that uses the cluster in a file that does not declare it."""
    for item in items:
        # Arguments of the test's own, not fixtures.
        given = getattr(getattr(item, "callspec", None), "params", {})
        if (
            "slurm" in getattr(item, "fixturenames", ())
            and "slurm" not in given
            and not of_slurm(item.nodeid)
        ):
            raise pytest.UsageError(
                f"{item.nodeid} uses the cluster: put it into a file with {SIGN!r} in its name"
            )


@cache
def _by_group() -> type[Any]:
    """The scheduler. A class in a function: xdist is imported where tests are distributed."""
    by_scope: Any = import_module("xdist.scheduler").LoadScopeScheduling

    class ByGroup(by_scope):  # type: ignore[misc]
        """Groups in their order, where a worker may crash: xdist 3.8 then waits for ever.

        It gives the others what the crashed one had ended too, and one group at a time, though a
        worker begins with a test only when it knows the next one or that there is none.
        """

        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

        def remove_node(self, node: Any) -> str | None:
            """Return the test that `node` was at; what it has not begun is for the others."""
            left = {
                name: waiting
                for name, tests in self.assigned_work.pop(node).items()
                if (waiting := {test: False for test, ended in tests.items() if not ended})
            }
            if not left:
                return None
            begun = next(iter(left))
            crashed: str = next(iter(left[begun]))
            del left[begun][crashed]
            for name, tests in reversed(left.items()):
                if tests:
                    self.workqueue[name] = tests
                    self.workqueue.move_to_end(name, last=False)
            for other in self.assigned_work:
                self._reschedule(other)
            return crashed

        def _assign_work_unit(self, node: Any) -> None:
            with suppress(OSError):  # it has crashed: `remove_node` is about to be called
                super()._assign_work_unit(node)

        def _reschedule(self, node: Any) -> None:
            if node not in self.registered_collections:
                return  # it is still collecting, and is asked again when it has
            super()._reschedule(node)
            while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
                super()._reschedule(node)

    return ByGroup


def _file(nodeid: str) -> PurePosixPath:
    return PurePosixPath(nodeid.partition("::")[0])
