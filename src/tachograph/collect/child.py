"""A child process of `tachograph collect`: one command at low priority, which ends with its parent.

python -m tachograph.collect.child PARENT COMMAND [options]
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from collections.abc import Sequence

NICE = 10
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent(parent: int) -> None:
    """Make the kernel kill this process when its parent ends, or at once if it has."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def main(argv: Sequence[str]) -> None:
    """Run `tachograph COMMAND`."""
    end_with_parent(int(argv[0]))
    os.nice(NICE)
    sys.argv[1:] = argv[1:]
    runpy.run_module("tachograph", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
