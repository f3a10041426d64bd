"""Variables that tests set stay in Python, and reach the processes that tests start.

setenv(3) moves the whole environment, and a thread in native code that reads a variable meanwhile
reads freed memory (glibc before 2.41): the worker ends with SIGSEGV. pytest sets a variable before
and after each test, and servers of earlier tests go on to query Polars in other threads.
"""

from __future__ import annotations

import _posixsubprocess
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

ZONE = "TZ"  # that of tests is also the clock's; replaced in its place, it moves nothing
ENVIRONMENT = 5  # its place among the arguments of fork_exec; None: what native code has


def keep() -> None:
    """From now on, changes of `os.environ` change nothing in native code, but the time zone."""
    os.environ.setdefault(ZONE, "UTC")
    patch, putenv = pytest.MonkeyPatch(), os.putenv

    def put(name: bytes, value: bytes) -> None:
        if name == os.fsencode(ZONE):
            putenv(name, value)

    patch.setattr(os, "putenv", put)
    patch.setattr(os, "unsetenv", lambda name: None)
    fork_exec = _with_environment(_posixsubprocess.fork_exec)
    patch.setattr(_posixsubprocess, "fork_exec", fork_exec)
    patch.setattr(subprocess, "_fork_exec", fork_exec)


def _with_environment(fork_exec: Callable[..., int]) -> Callable[..., int]:
    def started(*arguments: Any) -> int:
        given = list(arguments)
        if given[ENVIRONMENT] is None:
            given[ENVIRONMENT] = [name + b"=" + value for name, value in os.environb.items()]
        return fork_exec(*given)

    return started
