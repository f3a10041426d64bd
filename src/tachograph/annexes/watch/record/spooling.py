"""Writes a live source to a spool: identity of the job, files, sampling loop.

Arrays are imported when there is something to record: nothing of it delays the command.
"""

from __future__ import annotations

import errno
import os
import pwd
import shlex
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tachograph.annexes.watch.record.foreground import CommandEnd
from tachograph.catalog.errors import LakeError, TachographError, cure_unwritable
from tachograph.catalog.version import __version__

if TYPE_CHECKING:
    from tachograph.annexes.watch.live.snapshot import LiveSource


SPOOL_FOLDER = "recordings"  # folder of spools within that of a recording
FOREVER = float("inf")
_NAME = 200  # characters of a command that are stored
ANONYMOUS_USER, ANONYMOUS_COMMAND = "user", "command"


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """A job as in the table `jobs`; null: unknown. nodes: of the whole job."""

    job_id: str
    name: str | None
    user: str | None
    display_id: str | None = None
    array_job_id: str | None = None
    array_task_id: int | None = None
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    cluster: str | None = None
    nodes: int | None = None


def identify(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    start: float,
    anonymous: bool = False,
    cluster: str = "",
) -> JobIdentity:
    """Return the job of a recording; without `command`, the whole surrounding job.

    An anonymous one has no user, command, account or job id.

    >>> identify(["python", "-c", "import a\\nrun()"], {"SLURM_JOB_ID": "7", "USER": "ana"}, start=0.0).name
    "python -c 'import a run()'"
    """
    if anonymous:
        return JobIdentity(f"anonymous-{uuid4().hex[:12]}", ANONYMOUS_COMMAND, ANONYMOUS_USER)
    name = (
        " ".join(shlex.join(command).split())[:_NAME]
        if command
        else environment.get("SLURM_JOB_NAME")
    )
    user = environment.get("SLURM_JOB_USER") or _user(environment)
    job_id = environment.get("SLURM_JOB_ID")
    if not job_id:
        moment = datetime.fromtimestamp(start, UTC)
        return JobIdentity(
            f"local-{moment:%Y%m%d-%H%M%S}-{os.getpid()}", name, user, cluster=cluster or None
        )
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    return JobIdentity(
        job_id,
        name,
        user,
        display_id=f"{array}_{task}" if array and task else None,
        array_job_id=array or None,
        array_task_id=_whole(task),
        account=environment.get("SLURM_JOB_ACCOUNT") or None,
        partition=environment.get("SLURM_JOB_PARTITION") or None,
        qos=environment.get("SLURM_JOB_QOS") or None,
        cluster=cluster or environment.get("SLURM_CLUSTER_NAME") or None,
        nodes=_whole(environment.get("SLURM_JOB_NUM_NODES")),
    )


def is_reporting_task(environment: Mapping[str, str]) -> bool:
    """Return whether this task is the one that reports: tasks of `srun` have a rank.

    >>> is_reporting_task({}), is_reporting_task({"SLURM_PROCID": "3"})
    (True, False)
    """
    return environment.get("SLURM_PROCID", "0") in ("", "0")


def short_hostname() -> str:
    """Return the name of this host, short."""
    return socket.gethostname().partition(".")[0]


def _user(environment: Mapping[str, str]) -> str | None:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # of a container without this user
        return environment.get("USER") or None


def _whole(written: str | None) -> int | None:
    return int(written) if written and written.isdecimal() else None


_A_FILE = "a file, not a folder"
_NOT_PERMITTED = "no write permission"
_FULL = "disk or quota full"
_REFUSED = {
    errno.ENOTDIR: _A_FILE,
    errno.EEXIST: _A_FILE,
    errno.ELOOP: "cycle of symbolic links",
    errno.EACCES: _NOT_PERMITTED,
    errno.EPERM: _NOT_PERMITTED,
    errno.EROFS: "read-only file system",
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: "file size limit exceeded",
}
Connect = Callable[[], "LiveSource"]
Wait = Callable[[float], bool]


@dataclass(frozen=True, slots=True)
class RecordPlan:
    """Plan of a recording. start: of the command, seconds since 1970."""

    folder: Path
    identity: JobIdentity
    start: float
    interval_s: float = 1.0
    anonymous: bool = False

    @property
    def spool(self) -> Path:
        """The file that grows."""
        from tachograph.catalog.spool import SPOOL_SUFFIX

        of = "" if self.anonymous else f"-{short_hostname()}"
        return (
            self.folder
            / SPOOL_FOLDER
            / f"{self.identity.job_id}{of}-{round(self.start * 1000)}{SPOOL_SUFFIX}"
        )

    def discard(self) -> None:
        """Remove the file, and folders that are empty then."""
        with suppress(OSError):  # not made, or not empty
            self.spool.unlink(missing_ok=True)
            self.spool.parent.rmdir()
            self.folder.rmdir()


@dataclass(frozen=True, slots=True)
class SpoolResult:
    """Result of a recording: samples written and lost, and why it is incomplete, or "".

    spool: None where nothing was recorded.
    """

    rows: int = 0
    lost: int = 0
    problem: str = ""
    spool: Path | None = None


def spool_samples(
    plan: RecordPlan, connect: Connect, *, wait: Wait, ended: Callable[[], CommandEnd | None]
) -> SpoolResult:
    """Sample until `wait` returns True, and write the end of the command; return the result.

    Every failure is reported in `problem`: recording never affects the command.
    """
    try:
        source = connect()
    except Exception as problem:  # noqa: BLE001 the boundary: recording never affects the command
        wait(FOREVER)
        return SpoolResult(problem=_message(problem))
    try:
        return _spool_samples(plan, source, wait, ended)
    except Exception as problem:  # noqa: BLE001 the boundary: recording never affects the command
        wait(FOREVER)
        return SpoolResult(problem=_message(problem))
    finally:
        source.close()


def _spool_samples(
    plan: RecordPlan, source: LiveSource, wait: Wait, ended: Callable[[], CommandEnd | None]
) -> SpoolResult:
    from tachograph.annexes.watch.record.sampler import SpoolSampler, sample
    from tachograph.catalog.spool import SpoolWriter

    with folder_errors(plan.spool.parent):
        plan.spool.parent.mkdir(parents=True, exist_ok=True)
        spool = SpoolWriter(plan.spool, _head(plan))
    sampler = SpoolSampler(source, spool, anonymous=plan.anonymous)
    problem = ""
    try:
        try:
            sample(sampler, interval_s=plan.interval_s, wait=wait)
        except Exception as stopped:  # noqa: BLE001 the boundary: recorded samples are kept
            problem = _message(stopped)
            spool.flush()
            wait(FOREVER)
        sampler.note_pm()
        about = source.about
        spool.note(
            {
                "kind": "source",
                "name": about.name,
                "sentence": about.sentence,
                "blind": dict(about.unsupported),
            }
        )
        end = ended()
        if end is not None:
            spool.note(
                {"kind": "end", "end": end.at, "exit_code": end.code, "exit_signal": end.signal}
            )
        whole = spool.flush()
    finally:
        spool.close()
    problem = problem or ("" if whole else spool.problem)
    return SpoolResult(sampler.rows, spool.lost, problem, plan.spool)


def _head(plan: RecordPlan) -> dict[str, Any]:
    from tachograph.annexes.watch.record.sampler import DOUBLES, SINGLES

    return {
        "kind": "head",
        "id": uuid4().hex,
        "version": __version__,
        "job": asdict(plan.identity),
        "start": plan.start,
        "interval_s": plan.interval_s,
        "singles": SINGLES,
        "doubles": DOUBLES,
    }


@contextmanager
def folder_errors(folder: Path) -> Iterator[None]:
    """Turn errors of the system about `folder` inside the block into LakeError.

    >>> with folder_errors(Path("run")):
    ...     raise OSError(errno.EROFS, "Read-only file system", "run")
    Traceback (most recent call last):
    tachograph.catalog.errors.LakeError: run: read-only file system; name another folder with -o
    """
    try:
        yield
    except OSError as problem:
        what = _REFUSED.get(problem.errno or 0) or (problem.strerror or str(problem)).lower()
        in_the_way = (
            path for path in (folder, *folder.parents) if path.exists() and not path.is_dir()
        )
        where = next(in_the_way, folder) if what == _A_FILE else folder
        do = cure_unwritable(problem, "name another folder with -o")
        raise LakeError(what, where=str(where), do=do) from None


def _message(problem: Exception) -> str:
    return (
        str(problem)
        if isinstance(problem, TachographError | OSError)
        else f"{type(problem).__name__}: {problem}"
    )


def sleeping_until(stop: Callable[[], bool], *, poll_s: float = 0.2) -> Wait:
    """Return a `wait` that sleeps, and ends early when `stop` returns True."""

    def wait(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not stop():
            rest_s = until - time.monotonic()
            if rest_s <= 0:
                return False
            time.sleep(min(rest_s, poll_s))
        return True

    return wait
