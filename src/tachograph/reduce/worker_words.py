"""Which workers a person means. It needs no Dask, so that a mistake is told without it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tachograph.errors import UsageError


@dataclass(frozen=True, slots=True)
class Processes:
    """So many processes of this machine."""

    count: int


@dataclass(frozen=True, slots=True)
class Running:
    """A scheduler that runs: its address, or the file that it wrote."""

    address: str = ""
    file: str = ""


@dataclass(frozen=True, slots=True)
class Jobs:
    """So many jobs of Slurm."""

    count: int


def parse_workers(words: str) -> Processes | Running | Jobs:
    """Return which workers are meant.

    >>> parse_workers("4"), parse_workers("slurm:8")
    (Processes(count=4), Jobs(count=8))
    >>> parse_workers("tcp://n1:8786").address, parse_workers("scheduler.json").file
    ('tcp://n1:8786', 'scheduler.json')

    Errors: UsageError for anything else.
    """
    told = re.fullmatch(r"(slurm:)?([1-9]\d{0,4})", words)
    if told:
        return Jobs(int(told[2])) if told[1] else Processes(int(told[2]))
    if "://" in words:
        return Running(address=words)
    if words.endswith(".json"):
        return Running(file=words)
    raise UsageError(
        f"--workers {words}: neither a number of processes, slurm:N, tcp://HOST:PORT nor a scheduler's .json file",
        do="see `tachograph analyze --help`",
    )
