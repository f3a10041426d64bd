"""Whose recording it is: the Slurm job of the environment, else a job of our own making."""

from __future__ import annotations

import os
import pwd
import shlex
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

_NAME = 200  # characters of a command that are kept
SOMEBODY, SOMETHING, SOMEWHERE = "user", "command", "node"


@dataclass(frozen=True, slots=True)
class Identity:
    """A job as the table `jobs` knows it; null where it was not told. nodes: of the job, more than one may record."""

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

    def columns(self) -> dict[str, Any]:
        """Return {column of `jobs`: value}."""
        return asdict(self)


def identify(
    command: Sequence[str], environment: Mapping[str, str], *, start: float, anonymous: bool = False, cluster: str = ""
) -> Identity:
    """Return who records `command` from `start` on (seconds since 1970); no command: the whole job.

    Nothing of an anonymous one tells of user, command, account or job.

    >>> identify(["python", "-c", "import a\\nrun()"], {"SLURM_JOB_ID": "7", "USER": "ana"}, start=0.0).name
    "python -c 'import a run()'"
    """
    if anonymous:
        return Identity(f"anonymous-{uuid4().hex[:12]}", SOMETHING, SOMEBODY)
    name = " ".join(shlex.join(command).split())[:_NAME] if command else environment.get("SLURM_JOB_NAME")
    user = environment.get("SLURM_JOB_USER") or _user(environment)
    job_id = environment.get("SLURM_JOB_ID")
    if not job_id:
        moment = datetime.fromtimestamp(start, UTC)
        return Identity(f"local-{moment:%Y%m%d-%H%M%S}-{os.getpid()}", name, user, cluster=cluster or None)
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    return Identity(
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


def tells_for_all(environment: Mapping[str, str]) -> bool:
    """Return whether this is the one task of several that reports: those started by `srun` have a rank.

    >>> tells_for_all({}), tells_for_all({"SLURM_PROCID": "3"})
    (True, False)
    """
    return environment.get("SLURM_PROCID", "0") in ("", "0")


def host() -> str:
    """Return the name of this host, short."""
    return socket.gethostname().partition(".")[0]


def _user(environment: Mapping[str, str]) -> str | None:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # of a container that knows no such user
        return environment.get("USER") or None


def _whole(written: str | None) -> int | None:
    return int(written) if written and written.isdecimal() else None
