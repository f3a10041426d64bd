"""A test that is interrupted leaves no recorder and no command."""

from __future__ import annotations

import subprocess
import time
from contextlib import suppress
from pathlib import Path

from ending import ending_all, living
from test_recorder_processes import UNTIL_GO, recorder_of, spool_of, start


def interrupted(folder: Path) -> str:
    """The mark of what it started."""
    with suppress(KeyboardInterrupt), ending_all() as mark:
        process = start(folder, "sh", "-c", UNTIL_GO, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        spool_of(folder)
        recorder_of(process)  # it is there
        process.kill()
        process.wait()
        assert len(living(mark)) >= 2  # recorder and command outlive their parent
        raise KeyboardInterrupt
    return mark


def test_what_an_interrupted_test_started_ends(tmp_path: Path) -> None:
    mark = interrupted(tmp_path)
    until = time.monotonic() + 30
    while living(mark):
        assert time.monotonic() < until
        time.sleep(0.05)
