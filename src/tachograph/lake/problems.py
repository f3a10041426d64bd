"""What the file system, Delta and Parquet report, as LakeError: what went wrong, where, what to do."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import polars as pl
from deltalake.exceptions import DeltaError

from tachograph.errors import LakeError

_OS_ERROR = re.compile(r"\(os error (\d+)\)")  # how libraries written in Rust quote an errno
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOT_PERMITTED = (errno.EACCES, errno.EPERM, errno.EROFS)
_UNREADABLE = (pl.exceptions.ComputeError, pl.exceptions.SchemaError, pl.exceptions.PanicException)
_WRITE_FAILED = "transport error"  # all that is left of an errno when the end of a Parquet file cannot be written


@contextmanager
def lake_errors(where: str, *, writing: bool = False) -> Iterator[None]:
    """Turn what is reported inside the block into LakeError; nothing that was in the lake before has changed."""
    try:
        yield
    except OSError as problem:
        number = problem.errno or _errno_in(str(problem))
        said = "" if problem.errno else _line(problem)
        raise _of_system(number, str(problem.filename or where), said) from problem
    except DeltaError as problem:
        number = _errno_in(str(problem))
        if number:
            raise _of_system(number, where, _line(problem)) from problem
        raise LakeError(
            f"the table's log cannot be used: {_line(problem)}",
            where=where,
            do="restore the table's _delta_log from a backup, or ingest into a new lake",
        ) from problem
    except _UNREADABLE as problem:
        number = _errno_in(str(problem))
        if number:
            raise _of_system(number, where, _line(problem)) from problem
        if writing and _WRITE_FAILED in str(problem):
            raise _of_system(errno.ENOSPC, where, "") from problem
        raise LakeError(
            f"a data file cannot be read: {_line(problem)}",
            where=where,
            do="restore it from a backup, or ingest into a new lake",
        ) from problem


def _of_system(number: int, where: str, said: str) -> LakeError:
    """Return what an error of the operating system means."""
    if number in _FULL:
        what = "a file may not grow so large" if number == errno.EFBIG else "the disk is full"
        return LakeError(what, where=where, do="free some space or raise the limit, then run it again")
    if number in _NOT_PERMITTED:
        return LakeError("not permitted", where=where, do="ask for permission, or name another lake with --lake")
    if number == errno.ENOENT and said:
        return LakeError(
            f"a file of the lake is missing: {said}",
            where=where,
            do="restore it from a backup, or ingest into a new lake",
        )
    reason = os.strerror(number) if number else said
    return LakeError(reason, where=where, do="name another lake with --lake; what was there is unchanged")


def _errno_in(said: str) -> int:
    """Return the errno that a message quotes, 0 where it quotes none.

    >>> _errno_in("Generic error: No space left on device (os error 28)"), _errno_in("unexpected end")
    (28, 0)
    """
    found = _OS_ERROR.search(said)
    return int(found[1]) if found else 0


def _line(problem: BaseException) -> str:
    said = _STYLE.sub("", str(problem)).strip()
    return " ".join(said.split())[:300] or type(problem).__name__
