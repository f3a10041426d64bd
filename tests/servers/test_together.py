"""Which tests share a worker, and which begin first."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from native_stack import stack_of_core
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


# the worker of test_a.py cannot be reached any more, before it is noticed that it has crashed
LATE = """
from xdist.workermanage import WorkerController
send, crashing = WorkerController.send_runtest_some, []
def send_late(self, indices):
    if self in crashing:
        raise OSError("cannot send (already closed?)")
    if 0 in indices:
        crashing.append(self)
    send(self, indices)
WorkerController.send_runtest_some = send_late
"""


def _alone() -> dict[str, str]:
    """The environment of a run of tests that has nothing of this one but its modules."""
    return {
        **os.environ,
        "PYTHONPATH": str(TESTS),
        "PYTEST_ADDOPTS": "",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }


@pytest.mark.parametrize(
    ("crashing", "sent"),
    [("test_a.py", ""), ("test_b.py", ""), ("test_d.py", ""), ("test_a.py", LATE)],
)
def test_others_do_what_a_crashed_worker_has_not_begun(
    tmp_path: Path, crashing: str, sent: str
) -> None:
    (tmp_path / "conftest.py").write_text(
        "from servers.slurm.together import scheduler\n"
        "def pytest_xdist_make_scheduler(config, log):\n"
        "    return scheduler(config, log)\n" + sent
    )
    for name in ("test_a.py", "test_b.py", "test_c.py", "test_d.py"):
        late = "__import__('time').sleep(0.5); " if sent else ""
        ending = f"{late}__import__('os')._exit(1)" if name == crashing else "pass"
        (tmp_path / name).write_text(
            f"def test_1(): pass\ndef test_2(): {ending}\ndef test_3(): pass\n"
        )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-n", "2", "-q", "-rf"],
        cwd=tmp_path,
        env=_alone(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "1 failed, 11 passed" in done.stdout, done.stdout
    assert f"FAILED {crashing}::test_2" in done.stdout


@pytest.mark.slow
def test_a_run_that_is_ended_says_what_it_was_at(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "from unfinished import report_when_ended\n"
        "from servers.slurm.together import scheduler\n"
        "def pytest_configure(config):\n"
        "    report_when_ended(config)\n"
        # test_1 of test_a.py is the first that ends: its worker says so when it is at test_2
        "def pytest_xdist_make_scheduler(config, log):\n"
        "    made = scheduler(config, log)\n"
        "    complete = made.mark_test_complete\n"
        "    def mark_and_say(*args):\n"
        "        complete(*args)\n"
        "        open('marked', 'w').close()\n"
        "    made.mark_test_complete = mark_and_say\n"
        "    return made\n"
        # it is ended when the other worker has nothing left to do
        "def pytest_testnodedown(node, error):\n"
        "    __import__('os').kill(__import__('os').getpid(), 15)\n"
    )
    (tmp_path / "test_a.py").write_text(
        "import subprocess\n"
        "def test_1(): assert 0\n"
        "def test_2(): subprocess.run(['sh', '-c', ': > begun; exec sleep 60'])\n"
        "def test_3(): pass\n"
    )
    (tmp_path / "test_b.py").write_text(
        "from pathlib import Path\n"
        "def test_1():\n"
        "    while not (Path('begun').exists() and Path('marked').exists()): pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-n", "2", "-q"],
        cwd=tmp_path,
        env=_alone(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == -signal.SIGTERM
    assert "failed: test_a.py::test_1" in done.stderr
    assert re.findall(r"^unfinished: gw\d (.*)", done.stderr, re.MULTILINE) == [
        "test_a.py::test_2",
        "test_a.py::test_3",
    ]
    assert not shutil.which("ps") or "sleep 60" in done.stderr


@pytest.mark.slow
def test_the_stack_of_a_crash_is_shown(tmp_path: Path) -> None:
    crash = f"ulimit -c unlimited; exec {sys.executable} -c 'import ctypes; ctypes.string_at(0)'"
    subprocess.run(["sh", "-c", crash], cwd=tmp_path, capture_output=True)
    if not shutil.which("gdb") or not list(tmp_path.glob("core*")):
        pytest.skip("gdb is not installed, or core files are written elsewhere")
    assert "string_at" in stack_of_core(tmp_path)
    assert not stack_of_core(tmp_path / "nowhere")
