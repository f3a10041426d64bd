"""Accounting, asked for a span of time: from `sacct`, or from slurmrestd.

Both tell every job that was pending, running or ended at some time within the span (sacct(1), --starttime): one that
began long before is told again in the span in which it ends. Times go both ways as seconds since 1970, so no clock
change can move them: `uts1795267580` in, SLURM_TIME_FORMAT=%s out (parse_time.c of Slurm).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from tachograph.errors import InputError
from tachograph.sources.programs import Program

BETWEEN: Final = "\x1f"  # between fields: a character that nobody has in the name of a job
FIELDS: Final = (
    "JobID JobIDRaw Cluster Partition QOS Account User Submit Eligible Start End Elapsed ElapsedRaw Suspended State "
    "ExitCode NNodes AllocCPUS NodeList AllocTRES ReqTRES Constraints Exclusive Timelimit TimelimitRaw JobName "
    "SubmitLine"  # last: it may hold line breaks
)
IN_SECONDS: Final[Mapping[str, str]] = {"SLURM_TIME_FORMAT": "%s"}

Run = Callable[..., bytes]  # arguments of a program -> what it prints


@dataclass(frozen=True, slots=True)
class Span:
    """From when to when accounting is asked for."""

    first: datetime
    last: datetime

    @property
    def written(self) -> tuple[str, str]:
        """Both ends as Slurm reads them."""
        return f"uts{int(self.first.timestamp())}", f"uts{int(self.last.timestamp())}"


class Accounting(Protocol):
    """Who is asked."""

    where: str

    @property
    def delimiter(self) -> str | None:
        """What stands between the fields of an answer; None where it is no text."""
        ...

    def ask(self, span: Span) -> bytes:
        """Return the answer as it came. Errors: InputError when there is none, or only a part of one."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class Sacct:
    """`sacct`, run by us. `clusters`: of several under one slurmdbd; else the one it is configured for."""

    delimiter = BETWEEN

    def __init__(self, run: Run, *, where: str = "sacct", clusters: tuple[str, ...] = ()) -> None:
        self.where = where
        self._run = run
        self._clusters = clusters
        self._fields = ""

    @classmethod
    def of(cls, words: tuple[str, ...], *, timeout_s: float, clusters: tuple[str, ...] = ()) -> Sacct:
        """Return the program called so."""
        program = Program(words, timeout_s=timeout_s, environment=IN_SECONDS)
        return cls(program.output, where=program.name, clusters=clusters)

    def ask(self, span: Span) -> bytes:
        """Return the jobs of the span as text with a header; no steps, and every run of a requeued job.

        Errors: InputError when sacct fails, or the answer is not whole.
        """
        first, last = span.written
        answer = self._run(
            *("--allusers", "--duplicates", "--allocations", "--parsable2", f"--delimiter={BETWEEN}"),
            *((f"--clusters={','.join(self._clusters)}",) if self._clusters else ()),
            *(f"--starttime={first}", f"--endtime={last}", f"--format={self._known_fields()}"),
        )
        if not answer.endswith(b"\n") or not answer.startswith(b"JobID"):
            begins = answer[:60].decode("utf-8", "replace").strip()
            what = "the answer broke off" if answer.startswith(b"JobID") else f"is no accounting: {begins!r}"
            raise InputError(what, where=self.where, do="run it by hand")
        return answer

    def close(self) -> None:
        """Nothing is kept open."""

    def _known_fields(self) -> str:
        """The fields that this version of Slurm knows, of those that are read; asked once."""
        if not self._fields:
            known = set(self._run("--helpformat").decode("utf-8", "replace").split())
            self._fields = ",".join(name for name in FIELDS.split() if name in known or not known)
        return self._fields
