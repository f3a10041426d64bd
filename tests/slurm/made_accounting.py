"""A slurmdbd of the tests: it knows what happened to jobs, learns of it late, and answers as sacct
does.

Semantics of --starttime and --endtime by sacct(1) and as seen on Slurm 22.05: a job is told when it
was eligible before the end of the span and had not ended before its start, with what the database
knows at the moment of request.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tachograph.catalog.errors import InputError
from tachograph.sources.slurm.commands import BETWEEN, IDENTITY

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
KNOWN = (
    "JobID JobIDRaw Cluster Partition QOS Account User Submit Eligible Start End Elapsed "
    "ElapsedRaw Suspended State "
    "ExitCode NNodes AllocCPUS NodeList AllocTRES ReqTRES Constraints Timelimit TimelimitRaw "
    "JobName SubmitLine"
)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job, in seconds since BEGIN; `late_s`: after how long the database learns of
    each event.
    """

    job: int
    submit: int
    wait: int
    lasts: int
    ending: str = "COMPLETED"
    late_s: int = 0
    name: str = "train"
    gpus: int = 1

    @property
    def start(self) -> int:
        return self.submit + self.wait

    @property
    def end(self) -> int:
        return self.start + self.lasts


def moment(seconds: float) -> datetime:
    """An instant, seconds after BEGIN."""
    return BEGIN + timedelta(seconds=seconds)


def epoch(seconds: float) -> int:
    return int(moment(seconds).timestamp())


class MadeAccounting:
    """What `sacct` would be; `clock` is set by the test, as is `broken` to what goes wrong."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self.runs = list(runs)
        self.clock = 0.0
        self.broken: InputError | None = None
        self.calls: list[tuple[str, ...]] = []

    def __call__(self, *arguments: str) -> bytes:
        self.calls.append(arguments)
        if self.broken is not None:
            raise self.broken
        if arguments == ("--helpformat",):
            return KNOWN.encode()
        given = dict(part.removeprefix("--").partition("=")[::2] for part in arguments)
        first, last = (int(given[name].removeprefix("uts")) for name in ("starttime", "endtime"))
        names, between = given["format"].split(","), given["delimiter"]
        if names[0] == "JobID":  # who is who: no text beside it
            assert between == BETWEEN
            assert {name.lower() for name in names} <= IDENTITY
        rows = [fields for run in self.runs if (fields := self._told(run, first, last)) is not None]
        lines = [names, *([fields[name] for name in names] for fields in rows)]
        return "".join(between.join(line) + "\n" for line in lines).encode(
            "utf-8", "surrogateescape"
        )

    def _told(self, run: Run, first: int, last: int) -> dict[str, str] | None:
        knows = self.clock - run.late_s  # events up to here are in the database
        if run.submit > knows or epoch(run.submit) >= last:
            return None
        started, ended = run.start <= knows, run.end <= knows
        if ended and epoch(run.end) < first:
            return None
        elapsed = run.lasts if ended else int(self.clock) - run.start if started else 0
        tres = f"cpu=8,gres/gpu={run.gpus},gres/gpu:a100={run.gpus},node=1"
        return {
            "JobID": str(run.job),
            "JobIDRaw": str(run.job),
            "Cluster": "demo",
            "Partition": "gpu",
            "QOS": "normal",
            "Account": "ml",
            "User": "alice",
            "Submit": str(epoch(run.submit)),
            "Eligible": str(epoch(run.submit)),
            "Start": str(epoch(run.start)) if started else "Unknown",
            "End": str(epoch(run.end)) if ended else "Unknown",
            "Elapsed": str(timedelta(seconds=elapsed % 86400)).rjust(8, "0"),
            "ElapsedRaw": str(elapsed),
            "Suspended": "00:00:00",
            "State": run.ending if ended else "RUNNING" if started else "PENDING",
            "ExitCode": "0:0",
            "NNodes": "1",
            "AllocCPUS": "8" if started else "0",
            "NodeList": f"gpu{run.job % 7}" if started else "None assigned",
            "AllocTRES": tres if started else "",
            "ReqTRES": tres,
            "Constraints": "",
            "Timelimit": "01:00:00",
            "TimelimitRaw": "60",
            "JobName": run.name,
            "SubmitLine": f"sbatch -J {run.name} a.sh",
        }
