"""The controller, asked for the jobs that run now: `squeue --json`, else `scontrol show job`, or slurmrestd."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, Literal, Protocol

from tachograph.errors import InputError
from tachograph.sources.programs import Program
from tachograph.sources.slurm.asking import IN_SECONDS

HOLDING: Final = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING"  # states in which a job has its GPUs
NO_JOBS: Final = b"No jobs in the system"
_AS_OF = re.compile(rb"Configuration data as of (\d{6,12})\b")
_NAME = re.compile(rb"^ClusterName\s*=\s*(\S+)", re.MULTILINE)

Run = Callable[..., bytes]
Form = Literal["auto", "json", "text"]


@dataclass(frozen=True, slots=True)
class Config:
    """What `scontrol show config` tells: name of the cluster, and the controller's clock, seconds since 1970."""

    cluster: str | None
    clock: int | None


class Controller(Protocol):
    """Who is asked."""

    where: str

    def ask_controller(self) -> bytes:
        """Return the answer as it came. Errors: InputError when there is none."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class Commands:
    """`squeue` where it writes JSON, else `scontrol`: up to Slurm 20.11, and where Slurm was built without JSON."""

    def __init__(self, squeue: Run, scontrol: Run, *, where: str = "squeue", form: Form = "auto") -> None:
        self.where = where
        self._squeue = squeue
        self._scontrol = scontrol
        self._form: Form = form

    @classmethod
    def of(cls, words: Sequence[str], *, timeout_s: float, form: Form = "auto") -> Commands:
        """Return the commands; `scontrol` is where `squeue` is."""
        *before, squeue = words
        scontrol = str(PurePosixPath(squeue).with_name("scontrol"))
        programs = [
            Program((*before, name), timeout_s=timeout_s, environment=IN_SECONDS) for name in (squeue, scontrol)
        ]
        return cls(programs[0].output, programs[1].output, where=programs[0].name, form=form)

    def ask_controller(self) -> bytes:
        """Return the jobs that hold resources, as JSON or as text. Errors: InputError when neither works."""
        if self._form == "text":
            return self._as_text()
        try:
            answer = self._squeue("--all", f"--states={HOLDING}", "--json")
        except InputError as problem:
            if self._form == "json":
                raise
            return self._other_way(problem)
        self._form = "json"
        return answer

    def config(self) -> Config:
        """Return the name of the cluster and the controller's clock. Errors: InputError when scontrol fails."""
        answer = self._scontrol("show", "config")
        name, clock = _NAME.search(answer), _AS_OF.search(answer)
        return Config(name[1].decode("utf-8", "replace") if name else None, int(clock[1]) if clock else None)

    def close(self) -> None:
        """Nothing is kept open."""

    def _as_text(self) -> bytes:
        return self._scontrol("--all", "--details", "show", "job")

    def _other_way(self, problem: InputError) -> bytes:
        """The answer as text; where that fails as well, it was not the JSON."""
        try:
            answer = self._as_text()
        except InputError:
            raise problem from None
        self._form = "text"
        return answer
