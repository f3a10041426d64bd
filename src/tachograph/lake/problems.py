"""Errors of file system, Delta and Parquet as LakeError: what, where, fix."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path

import polars as pl
from deltalake.exceptions import DeltaError

from tachograph.catalog.errors import LakeError
from tachograph.lake.log_files import LOG, damaged_data_file, torn_file

_OS_ERROR = re.compile(r"\(os error (\d+)\)")  # how libraries written in Rust quote an errno
_BACKTRACE = re.compile(r"\n\s*(?:0: |stack backtrace)")  # at the end of messages of Delta's kernel
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOT_PERMITTED = (errno.EACCES, errno.EPERM, errno.EROFS)
UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
# Of a data file.
_OF_FILES = (errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EINVAL, errno.ELOOP, errno.ENODEV)
_NO_KEY = "the object store requires credentials"
_GIVE_KEY = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
# what an object store answers, or the client reports of one that does not: {mark in the message:
# (what, what to do)}
_OF_STORE = {
    "NoSuchBucket": ("no such bucket", "create it, or name another lake with --lake"),
    "URL scheme is not allowed": (
        "the object store's address has no https",
        "set AWS_ALLOW_HTTP=true if the network is trusted",
    ),
    "Missing AccessKeyId": (_NO_KEY, _GIVE_KEY),
    "Missing SecretAccessKey": (_NO_KEY, _GIVE_KEY),
    # Of the instance's metadata, read where no key is given.
    "/latest/api/token": (_NO_KEY, _GIVE_KEY),
    "/latest/meta-data": (_NO_KEY, _GIVE_KEY),
    "InvalidAccessKeyId": ("the object store does not know the access key", _GIVE_KEY),
    "SignatureDoesNotMatch": ("the secret access key is wrong", _GIVE_KEY),
    "ExpiredToken": ("the credentials have expired", "get new ones, then run it again"),
    "AccessDenied": (
        "not permitted by the object store",
        "request permission, or name another lake with --lake",
    ),
    "403 Forbidden": (
        "not permitted by the object store",
        "request permission, or name another lake with --lake",
    ),
    "dns error": (
        "the host name of the object store is not known",
        "check AWS_ENDPOINT_URL and AWS_REGION",
    ),
    "tcp connect error": (
        "the object store does not respond",
        "check AWS_ENDPOINT_URL, then run it again",
    ),
    "retry_timeout": (
        "the object store does not respond",
        "run it again later; the lake is unchanged",
    ),
    "operation timed out": (
        "the object store does not respond",
        "run it again later; the lake is unchanged",
    ),
    "NoSuchKey": (
        "a file of the lake is missing from the object store",
        "restore it from a backup, or ingest into a new lake",
    ),
}
# Of a protocol that Delta does not read.
_NEWER = ("Unsupported minimum", "is not supported", "Unsupported: ")
# All that is left of an errno when the end of a Parquet file cannot be written.
_WRITE_FAILED = "transport error"


@contextmanager
def lake_errors(where: str, *, writing: bool = False) -> Iterator[None]:
    """Turn errors inside the block into LakeError; the lake's earlier content is unchanged."""
    try:
        yield
    except (OSError, DeltaError, *UNREADABLE) as problem:
        raise _explained(problem, where, writing=writing) from problem


def _explained(problem: BaseException, where: str, *, writing: bool) -> LakeError:
    text = str(problem)
    if of_store := _of_store(text, where):
        return of_store
    code = problem.errno if isinstance(problem, OSError) else None
    number = code or _errno_in(text)
    if isinstance(problem, DeltaError):
        if number:
            return _of_system(number, where, _line(problem))
        return _of_log(where, _line(problem))
    if (number or errno.ENOENT) in _OF_FILES and (damaged := damaged_file_error(where)):
        return damaged
    if isinstance(problem, OSError):
        return _of_system(number, str(problem.filename or where), "" if code else _line(problem))
    if number:
        return _of_system(number, where, _line(problem))
    if writing and _WRITE_FAILED in text:
        return _of_system(errno.ENOSPC, where, "")
    return LakeError(
        f"a data file cannot be read: {_line(problem)}",
        where=where,
        do="restore it from a backup, or ingest into a new lake",
    )


def damaged_file_error(where: str) -> LakeError | None:
    """Return the error for an unreadable data file, with its fix.

    None where all can be read.
    """
    if "://" in where:
        return None
    tables = sorted(log.parent for log in (*Path(where).glob(LOG), *Path(where).glob(f"*/{LOG}")))
    siblings = sorted(log.parent for log in Path(where).parent.glob(f"*/{LOG}"))
    candidates = dict.fromkeys((*tables, *siblings))
    # what a look at each file shows comes first: to decode all of them takes as long as to read the
    # lake
    for decode, table in product((False, True), candidates):
        if damaged := damaged_data_file(table, decode=decode):
            path, what = damaged
            return LakeError(
                f"the data file is {what}", where=str(path), do="run `tachograph lake --repair`"
            )
    return None


def torn_log(file: Path) -> LakeError:
    """Return the fix for a log file that is empty, truncated or misleading."""
    return LakeError(
        "the file of the log is empty or cut off",
        where=str(file),
        do="run `tachograph lake --repair`",
    )


def _of_log(where: str, text: str) -> LakeError:
    """Return the error for an unreadable log of a table."""
    if any(mark in text for mark in _NEWER):
        what = f"the table was written by a newer program: {text}"
        return LakeError(
            what, where=where, do="update tachograph, or name another lake with --lake"
        )
    if "://" not in where:
        with suppress(OSError):
            torn = torn_file(Path(where))
            if torn is not None:
                return torn_log(torn)
    return LakeError(
        f"the table's log cannot be used: {text}",
        where=where,
        do="restore the table's _delta_log from a backup, or ingest into a new lake",
    )


def _of_store(text: str, where: str) -> LakeError | None:
    """Return the meaning of an object store's error; None for other errors.

    >>> str(_of_store("404 Not Found: <Code>NoSuchBucket</Code>", "s3://b/lake"))
    's3://b/lake: no such bucket; create it, or name another lake with --lake'
    """
    if "://" not in where:
        return None
    explanation = next(
        (known_error for mark, known_error in _OF_STORE.items() if mark in text), None
    )
    return LakeError(explanation[0], where=where, do=explanation[1]) if explanation else None


def _of_system(number: int, where: str, text: str) -> LakeError:
    """Return the meaning of an error of the operating system."""
    if number in _FULL:
        what = "the file size limit is exceeded" if number == errno.EFBIG else "the disk is full"
        return LakeError(
            what, where=where, do="free some space or raise the limit, then run it again"
        )
    if number in _NOT_PERMITTED:
        return LakeError(
            "not permitted", where=where, do="request permission, or name another lake with --lake"
        )
    if number == errno.ENOENT and text:
        return LakeError(
            f"a file of the lake is missing: {text}",
            where=where,
            do="restore it from a backup, or ingest into a new lake",
        )
    reason = os.strerror(number) if number else text
    return LakeError(reason, where=where, do="name another lake with --lake; the lake is unchanged")


def _errno_in(text: str) -> int:
    """Return the errno quoted in a message, or 0.

    >>> _errno_in("Generic error: No space left on device (os error 28)"), _errno_in("unexpected end")
    (28, 0)
    """
    quoted = _OS_ERROR.search(text)
    return int(quoted[1]) if quoted else 0


def _line(problem: BaseException) -> str:
    text = _BACKTRACE.split(_STYLE.sub("", str(problem)), maxsplit=1)[0].strip()
    return " ".join(text.split())[:300] or type(problem).__name__
