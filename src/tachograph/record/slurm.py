"""Whether a Slurm job still runs, as `squeue` tells it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence

ASK_S = 30.0
_TIMEOUT_S = 20.0
_UNKNOWN_JOB = "Invalid job id"
_GONE = ("COMPLETING", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "OUT_OF_MEMORY")


def job_is_over(
    job_id: str, *, command: Sequence[str] = ("squeue",), clock: Callable[[], float] = time.monotonic
) -> Callable[[], bool]:
    """Return a function that tells whether a job is over, asking `squeue` now and then.

    A Slurm that does not answer says nothing: the job counts as running, and is asked for again.
    """
    asked = clock()
    gone = False

    def over() -> bool:
        nonlocal asked, gone
        if not gone and clock() - asked >= ASK_S:
            gone = _is_gone(job_id, command)
            asked = clock()
        return gone

    return over


def _is_gone(job_id: str, command: Sequence[str]) -> bool:
    try:
        done = subprocess.run(
            [*command, "--noheader", "--jobs", job_id, "--format", "%T"],
            capture_output=True, text=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    if done.returncode:
        return _UNKNOWN_JOB in done.stderr
    states = done.stdout.split()
    return all(state in _GONE for state in states)
