"""Analysis and compaction as children: one at a time, when needed, ended when they hang."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from collecting import until

from tachograph.collect.children import Children, ChildStep
from tachograph.collect.journal import CollectJournal
from tachograph.collect.status import StepStatus


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class Rig:
    """Two steps, a clock that is set by hand, and what was reported."""

    def __init__(self, analyze: str, compact: str = "pass") -> None:
        self.reported: list[str] = []
        self.clock = Clock()
        self.changes = 0
        self.journal = CollectJournal(
            lake="lake", sources={}, now=datetime.now(UTC), remark=self.reported.append
        )
        steps = [
            ChildStep(
                "analyze", [sys.executable, "-c", analyze], 100.0, 10.0, lambda: self.changes
            ),
            ChildStep("compact", [sys.executable, "-c", compact], 1000.0, 10.0),
        ]
        self.children = Children(steps, self.journal, self.clock)
        self.children.run_due()

    def at(self, now: float, *, ends: bool = True) -> None:
        """Look at an instant, and where wanted again when the child has ended."""
        self.clock.now = now
        self.children.run_due()
        if ends:
            until(self._has_ended)

    def _has_ended(self) -> bool:
        self.children.reap()
        return not self.children.is_busy

    def status(self, step: str = "analyze") -> StepStatus:
        return self.journal.snapshot(datetime.now(UTC)).steps[step]


def test_each_runs_when_it_is_due_and_never_two_at_a_time() -> None:
    rig = Rig("print('12 jobs')", "print('3 files')")
    rig.at(9.0)
    assert (rig.status().runs, rig.status("compact").runs) == (0, 0)
    rig.at(10.0)
    assert (rig.status().runs, rig.status("compact").runs) == (1, 0)  # it is due, too, and waits
    assert rig.status().result == "12 jobs"
    rig.at(10.5)
    assert (rig.status().runs, rig.status("compact").runs) == (1, 1)
    assert rig.status("compact").result == "3 files"


def test_an_analysis_runs_when_rows_were_committed_since_the_last_success() -> None:
    rig = Rig("pass")
    runs = []
    for now, changes in ((10.0, 0), (110.0, 0), (210.0, 5), (310.0, 5), (410.0, 6)):
        rig.changes = changes
        rig.at(now)
        rig.at(now + 1)  # the compaction
        runs.append(rig.status().runs)
    assert runs == [1, 1, 2, 2, 3]


def test_a_failing_step_is_reported_once_retried_and_reported_when_it_works() -> None:
    rig = Rig(
        "import os, sys; sys.exit('tachograph: the disk is full' if not "
        "os.environ.get('WORKS') else 0)"
    )
    for now in (10.0, 110.0):
        rig.at(now)
        rig.at(now + 1)
    assert (rig.status().runs, rig.status().failures, rig.status().is_failing) == (2, 2, True)
    os.environ["WORKS"] = "1"
    try:
        rig.at(210.0)
    finally:
        del os.environ["WORKS"]
    assert rig.reported == ["analyze: the disk is full", "analyze: works again"]
    assert not rig.status().is_failing


@pytest.mark.slow
def test_one_that_hangs_is_killed_with_its_own_children() -> None:
    rig = Rig(
        "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); "
        "time.sleep(60)"
    )
    rig.at(10.0, ends=False)
    time.sleep(0.3)
    rig.at(10.0 + 3600.0, ends=False)
    assert rig.children.is_busy
    rig.at(10.0 + 3601.0, ends=False)
    assert rig.reported == ["analyze: took longer than 3600 s and was killed"]
    rig.children.stop()


def test_a_stop_ends_what_runs_and_is_no_failure() -> None:
    rig = Rig("import time; time.sleep(300)")
    rig.at(10.0, ends=False)
    assert rig.children.is_busy
    rig.children.grace_s = 60
    began = time.monotonic()
    rig.children.stop()
    assert time.monotonic() - began < 40
    assert (rig.children.is_busy, rig.status().running, rig.status().failures, rig.reported) == (
        False,
        False,
        0,
        [],
    )
    rig.children.stop()


@pytest.mark.slow
def test_one_that_does_not_want_to_end_is_killed() -> None:
    rig = Rig(
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('x', "
        "flush=True); time.sleep(60)"
    )
    rig.at(10.0, ends=False)
    time.sleep(0.5)
    rig.children.grace_s = 0.2
    rig.children.stop()
    assert not rig.children.is_busy


def test_one_that_cannot_be_started_is_a_failure_like_others() -> None:
    rig = Rig("pass")
    rig.children.steps = [ChildStep("analyze", ["/nowhere/python"], 100.0, 10.0)]
    rig.at(10.0)
    assert rig.reported == ["analyze: cannot be started: No such file or directory"]
    assert (rig.status().failures, rig.status().running) == (1, False)
