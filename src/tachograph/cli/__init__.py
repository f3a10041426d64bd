"""The command line: imports and runs a command; errors become one line and an exit code.

Exit codes are those of `tachograph.catalog.errors.EXIT_CODES`. What is no TachographError is a
defect and keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from tachograph.catalog.errors import LakeError, TachographError, UsageError
from tachograph.catalog.version import __version__
from tachograph.cli import narrate, output
from tachograph.cli.help import overview
from tachograph.cli.registry import execute, group_alone

INTERRUPTED = 130  # 128 + SIGINT, as shells count it
READER_GONE = 141  # 128 + SIGPIPE

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_PERMITTED = (errno.EACCES, errno.EPERM, errno.EROFS)


def program() -> NoReturn:
    """Run `tachograph` as the program of this process."""
    end_process(main())


def end_process(code: int) -> NoReturn:
    """End this process with an exit code, immediately if a daemon thread is still running.

    A thread that returns from native code while the interpreter is finalized is unwound by it
    (before Python 3.14), through frames of Rust too, and the process crashes.
    """
    threading = sys.modules.get("threading")  # not imported: `--help` has no thread
    if threading and any(thread.daemon for thread in threading.enumerate()):
        with suppress(OSError):
            output.flush()
        os._exit(code)
    sys.exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code of `tachograph` with these arguments (default: the process's)."""
    output.prepare()
    try:
        code = _run(sys.argv[1:] if argv is None else list(argv))
        output.flush()
    except TachographError as problem:
        return _fail(problem)
    except KeyboardInterrupt:
        narrate.interrupted()
        return INTERRUPTED
    except BrokenPipeError:
        output.abandon()
        return READER_GONE
    except OSError as problem:
        output.flush_or_abandon()
        return _fail(_as_lake_error(problem))
    return code


def _run(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        output.print_text(overview())
        return 0
    if argv[0] == "--version":
        output.print_text(f"tachograph {__version__}\n")
        return 0
    if argv[0].startswith("-"):
        raise UsageError(
            f"option {argv[0]} before the command", do="write `tachograph COMMAND [options]`"
        )
    group = group_alone(argv)
    if group:
        output.print_text(overview(group))
        return 0
    return execute(argv)


def _fail(problem: TachographError) -> int:
    narrate.error(problem)
    return problem.exit_code


def _as_lake_error(problem: OSError) -> LakeError:
    """Return a full disk or a missing permission as an error of the project.

    Errors: `problem` itself when it is neither, which is a defect.
    """
    where = str(problem.filename or "")
    if problem.errno in _DISK_FULL:
        return LakeError(
            "the disk is full", where=where, do="free some space, then run the command again"
        )
    if problem.errno in _NOT_PERMITTED:
        return LakeError("permission denied", where=where, do="use a folder you may read and write")
    raise problem
