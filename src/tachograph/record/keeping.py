"""From a source to a spool, until somebody says that it is over.

Arrays are imported when there is something to record: nothing of it delays the command.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tachograph import __version__
from tachograph.errors import LakeError, TachographError
from tachograph.record.foreground import Ended
from tachograph.record.identity import Identity, host

if TYPE_CHECKING:
    from tachograph.live.source import LiveSource

SPOOLS = "recordings"  # the folder of spools in that of a recording
FOREVER = float("inf")
_A_FILE = "a file is here, not a folder"
_NOT_PERMITTED = "not permitted to write here"
_FULL = "the disk, or a quota of it, is full"
_REFUSED = {
    errno.ENOTDIR: _A_FILE,
    errno.EEXIST: _A_FILE,
    errno.ELOOP: "symbolic links lead in a circle",
    errno.EACCES: _NOT_PERMITTED,
    errno.EPERM: _NOT_PERMITTED,
    errno.EROFS: "what is mounted here is only to be read",
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: _FULL,
}
Connect = Callable[[], "LiveSource"]
Wait = Callable[[float], bool]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is recorded where. start: of the command, seconds since 1970."""

    folder: Path
    identity: Identity
    start: float
    interval_s: float = 1.0
    anonymous: bool = False

    @property
    def spool(self) -> Path:
        """The file that grows."""
        from tachograph.spool import SUFFIX

        of = "" if self.anonymous else f"-{host()}"
        return self.folder / SPOOLS / f"{self.identity.job_id}{of}-{round(self.start * 1000)}{SUFFIX}"


@dataclass(frozen=True, slots=True)
class Kept:
    """What became of a recording. rows: samples written; lost: given up; problem: why it is not whole, or "".

    spool: None where nothing was recorded.
    """

    rows: int = 0
    lost: int = 0
    problem: str = ""
    spool: Path | None = None


def keep(plan: Plan, connect: Connect, *, wait: Wait, ended: Callable[[], Ended | None]) -> Kept:
    """Sample until `wait` returns True, and write how it `ended`; return what was kept.

    Whatever goes wrong is told in `problem`: nothing that happens here is worth more than what runs beside it.
    """
    try:
        source = connect()
    except Exception as problem:  # noqa: BLE001 the boundary: recording never disturbs
        wait(FOREVER)
        return Kept(problem=_said(problem))
    try:
        return _keep(plan, source, wait, ended)
    except Exception as problem:  # noqa: BLE001 the boundary: recording never disturbs
        wait(FOREVER)
        return Kept(problem=_said(problem))
    finally:
        source.close()


def _keep(plan: Plan, source: LiveSource, wait: Wait, ended: Callable[[], Ended | None]) -> Kept:
    from tachograph.record.sampler import Sampler, sample
    from tachograph.spool import SpoolWriter

    with folder_errors(plan.spool.parent):
        plan.spool.parent.mkdir(parents=True, exist_ok=True)
        spool = SpoolWriter(plan.spool, _head(plan))
    sampler = Sampler(source, spool, anonymous=plan.anonymous)
    problem = ""
    try:
        try:
            sample(sampler, interval_s=plan.interval_s, wait=wait)
        except Exception as stopped:  # noqa: BLE001 the boundary: what was recorded so far is kept
            problem = _said(stopped)
            spool.flush()
            wait(FOREVER)
        about = source.about
        spool.note({"kind": "source", "name": about.name, "sentence": about.sentence, "blind": dict(about.blind)})
        end = ended()
        if end is not None:
            spool.note({"kind": "end", "end": end.at, "exit_code": end.code, "exit_signal": end.signal})
        whole = spool.flush()
    finally:
        spool.close()
    problem = problem or ("" if whole else spool.problem)
    return Kept(sampler.rows, spool.lost, problem, plan.spool)


def _head(plan: Plan) -> dict[str, Any]:
    from tachograph.record.sampler import DOUBLES, SINGLES

    return {
        "kind": "head",
        "id": uuid4().hex,
        "version": __version__,
        "job": plan.identity.columns(),
        "start": plan.start,
        "interval_s": plan.interval_s,
        "singles": SINGLES,
        "doubles": DOUBLES,
    }


@contextmanager
def folder_errors(folder: Path) -> Iterator[None]:
    """Turn what the system says of `folder` inside the block into LakeError: what, where, what to do.

    >>> with folder_errors(Path("run")):
    ...     raise PermissionError(errno.EACCES, "Permission denied", "run")
    Traceback (most recent call last):
    tachograph.errors.LakeError: run: not permitted to write here; name another folder with -o
    """
    try:
        yield
    except OSError as problem:
        what = _REFUSED.get(problem.errno or 0) or (problem.strerror or str(problem)).lower()
        in_the_way = (one for one in (folder, *folder.parents) if one.exists() and not one.is_dir())
        where = next(in_the_way, folder) if what == _A_FILE else folder
        do = "make space, or name another folder with -o" if what == _FULL else "name another folder with -o"
        raise LakeError(what, where=str(where), do=do) from None


def _said(problem: Exception) -> str:
    return str(problem) if isinstance(problem, TachographError | OSError) else f"{type(problem).__name__}: {problem}"


def sleeping(stop: Callable[[], bool], *, look_s: float = 0.2) -> Wait:
    """Return a `wait` that sleeps, and looks whether to stop."""

    def wait(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not stop():
            left = until - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, look_s))
        return True

    return wait
