"""What a run of the tests was at when it was ended from outside, as .ci/run ends one that hangs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from types import FrameType
from typing import Any

import pytest

WIDTH = 200


def report_when_ended(config: pytest.Config) -> None:
    """Let the process that distributes the tests print what is unfinished before SIGTERM ends
    it.
    """
    if not hasattr(config, "workerinput"):
        signal.signal(signal.SIGTERM, partial(_report, config))


def _report(config: pytest.Config, number: int, frame: FrameType | None) -> None:
    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
    failed = [
        f"failed: {report.nodeid}"
        for outcome in ("failed", "error")
        for report in terminal.stats.get(outcome, ())
    ]
    lines = ["", "ended before all tests were", *failed, *_unfinished(config), _processes(), ""]
    sys.stderr.write("\n".join(lines))
    sys.stderr.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _unfinished(config: pytest.Config) -> list[str]:
    """Tests that workers were given and have not ended, by worker in their order."""
    session: Any = config.pluginmanager.get_plugin("dsession")
    assigned = getattr(getattr(session, "sched", None), "assigned_work", {})
    return [
        f"unfinished: {node.gateway.id} {test}"
        for node, groups in assigned.items()
        for tests in groups.values()
        for test, ended in tests.items()
        if not ended
    ]


def _processes() -> str:
    """All processes of this machine, with their seconds and what they wait for."""
    if not shutil.which("ps"):
        return ""
    columns = "pid,ppid,etimes,times,stat,wchan:20,args"
    done = subprocess.run(
        ["ps", "-e", "-H", "-ww", "-o", columns], capture_output=True, text=True, timeout=30
    )
    return "\n".join(line[:WIDTH] for line in done.stdout.splitlines())
