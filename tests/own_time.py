"""What work costs by itself, however busy the machine is and whatever other tests left in the
process.
"""

from __future__ import annotations

import gc
import resource
import subprocess
import time
from collections.abc import Callable, Sequence


def own_seconds(work: Callable[[], object], *, enough: float, tries: int = 3) -> float:
    """Least processor time of this thread that `work` took, in seconds; the first try below
    `enough` is the last.

    The garbage collector rests meanwhile: in a process that ran thousands of tests it looks at all
    that they keep.
    """
    return _least(lambda: _thread_seconds(work), enough=enough, tries=tries)


def starting_seconds(command: Sequence[str], *, enough: float = 0.0, tries: int = 10) -> float:
    """Least processor time that a program took from its start to its end, in seconds; see
    `own_seconds`.
    """
    return _least(lambda: _child_seconds(command), enough=enough, tries=tries)


def _least(seconds: Callable[[], float], *, enough: float, tries: int) -> float:
    least = seconds()
    for _ in range(tries - 1):
        if least < enough:
            break
        least = min(least, seconds())
    return least


def _thread_seconds(work: Callable[[], object]) -> float:
    was_on = gc.isenabled()
    gc.disable()
    try:
        begun = time.thread_time()
        work()
        return time.thread_time() - begun
    finally:
        if was_on:
            gc.enable()


def _child_seconds(command: Sequence[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
