"""Which tests share a worker, and which begin first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from servers.slurm.together import ONE_BY_ONE, group, in_order

TESTS = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ("tests/lake/test_lake_s3.py::test_a", "tests/lake/test_lake_s3.py::test_b[1]", True),
        ("tests/lake/test_lake_s3.py::test_a", "tests/lake/test_lake_log.py::test_a", False),
        (
            "tests/workers/test_real_slurm_workers.py::test_a",
            "tests/end_to_end/test_real_slurm_jobs.py::test_b",
            True,
        ),
        (
            "tests/project/test_docs_run.py::test_a[README.md]",
            "tests/project/test_docs_run.py::test_a[docs/a.md]",
            False,
        ),
    ],
)
def test_tests_of_a_file_or_of_the_cluster_go_together(
    first: str, second: str, shared: bool
) -> None:
    assert (group(first) == group(second)) is shared


def test_files_whose_tests_go_one_by_one_exist_and_share_nothing() -> None:
    for name in ONE_BY_ONE:
        [path] = TESTS.rglob(name)
        assert 'scope="module"' not in path.read_text(encoding="utf-8")


def item(nodeid: str, *, slow: bool = False) -> Any:
    """What is looked at of a collected test."""
    found = object() if slow else None
    return SimpleNamespace(
        nodeid=nodeid, path=nodeid.partition("::")[0], get_closest_marker=lambda name: found
    )


def test_the_cluster_begins_then_files_with_something_slow() -> None:
    items = [
        item("a.py::1"),
        item("b.py::1"),
        item("b.py::2", slow=True),
        item("test_real_slurm_c.py::1"),
    ]
    in_order(items)
    assert [one.nodeid for one in items] == [
        "test_real_slurm_c.py::1",
        "b.py::1",
        "b.py::2",
        "a.py::1",
    ]
