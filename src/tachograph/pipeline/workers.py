"""Workers of an analysis: the option's kinds and their requirements; needs no Dask."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from socket import gethostname
from typing import Any, TypeVar

from tachograph.catalog.errors import LakeError, UsageError, WorkersError
from tachograph.catalog.tables import GPU_SAMPLES
from tachograph.lake.delta import Lake
from tachograph.lake.store import is_remote


@dataclass(frozen=True, slots=True)
class LocalWorkers:
    """Local worker processes."""

    count: int


@dataclass(frozen=True, slots=True)
class RunningScheduler:
    """A scheduler that runs: its address, or the file that it wrote."""

    address: str = ""
    file: str = ""


@dataclass(frozen=True, slots=True)
class SlurmWorkers:
    """Slurm jobs as workers."""

    count: int


def parse_workers(words: str) -> LocalWorkers | RunningScheduler | SlurmWorkers:
    """Return which workers are meant.

    >>> parse_workers("4"), parse_workers("slurm:8")
    (LocalWorkers(count=4), SlurmWorkers(count=8))
    >>> parse_workers("tcp://n1:8786").address, parse_workers("scheduler.json").file
    ('tcp://n1:8786', 'scheduler.json')

    Errors: UsageError for anything else.
    """
    match = re.fullmatch(r"(slurm:)?([1-9]\d{0,4})", words)
    if match:
        return SlurmWorkers(int(match[2])) if match[1] else LocalWorkers(int(match[2]))
    if "://" in words:
        return RunningScheduler(address=words)
    if words.endswith(".json"):
        return RunningScheduler(file=words)
    raise UsageError(
        (
            f"--workers {words}: neither a number of processes, slurm:N, tcp://HOST:PORT nor a "
            "scheduler's .json file"
        ),
        do="see `tachograph analyze --help`",
    )


TaskResult = TypeVar("TaskResult")

# Of others numbers could come out otherwise.
PACKAGES = ("tachograph", "polars", "numpy", "numba", "deltalake")
INSTALL = (
    "install on the workers what is installed here: the same Python environment, best in a "
    "shared folder"
)


@dataclass(frozen=True, slots=True)
class WorkerRequirements:
    """Versions of PACKAGES, and the minimum version of the lake's samples.

    table: None where no samples were written yet.
    """

    versions: tuple[str, ...]
    location: str
    table: str | None
    version: int


_fit: set[WorkerRequirements] = set()  # what this worker was found to have


def expected(lake: Lake) -> WorkerRequirements:
    """Return package versions and lake state of this process."""
    versions = tuple(metadata.version(name) for name in PACKAGES)
    delta = lake.delta(GPU_SAMPLES)
    if delta is None:
        return WorkerRequirements(versions, lake.location, None, -1)
    return WorkerRequirements(versions, lake.location, str(delta.metadata().id), delta.version())


def disagreements(
    versions_here: tuple[str, ...], versions_there: Mapping[str, Mapping[str, str | None]]
) -> list[str]:
    """Return sentences: which worker lacks a package or has another version.

    >>> there = {"tcp://n1:7": {"tachograph": "1.1", "polars": "2.0"}}
    >>> disagreements(("1.0", "2.0", "3.0", "4.0", "5.0"), there)
    ['tcp://n1:7 has tachograph 1.1, here it is 1.0']
    """
    sentences: list[str] = []
    for worker, versions in versions_there.items():
        for name, version in zip(PACKAGES, versions_here, strict=True):
            if name not in versions or versions[name] == version:
                continue
            installed = f"{name} {versions[name]}" if versions[name] else f"no {name}"
            sentences.append(f"{worker} has {installed}, here it is {version}")
    return sentences


def run_there(
    requirements: WorkerRequirements, function: Callable[..., TaskResult], /, *arguments: Any
) -> TaskResult:
    """Return the function's result from a worker, checked before its first task.

    Errors: what the function raises, a LakeError with the name of the worker's machine;
    WorkersError for a version.
    """
    check_worker(requirements)
    try:
        return function(*arguments)
    except LakeError as problem:
        raise LakeError(
            problem.what, where=f"{problem.where} on {gethostname()}", do=problem.do
        ) from None


def check_worker(requirements: WorkerRequirements) -> None:
    """Check once that this process has the required packages and lake.

    Errors: WorkersError, LakeError.
    """
    if requirements in _fit:
        return
    mine = dict(zip(PACKAGES, (metadata.version(name) for name in PACKAGES), strict=True))
    wrong = disagreements(requirements.versions, {f"the worker on {gethostname()}": mine})
    if wrong:
        raise WorkersError(wrong[0], do=INSTALL)
    _check_lake(requirements)
    _fit.add(requirements)


def _check_lake(requirements: WorkerRequirements) -> None:
    if requirements.table is None:
        return
    where = f"{requirements.location} on {gethostname()}"
    share = "keep the lake in a folder that all workers see under one path, or in an object store"
    try:
        delta = Lake.open(requirements.location).delta(GPU_SAMPLES)
    except LakeError as problem:
        do = problem.do if is_remote(requirements.location) else share
        raise LakeError(
            f"a worker cannot read the lake: {problem.what}", where=where, do=do
        ) from None
    if delta is None or str(delta.metadata().id) != requirements.table:
        raise LakeError("a worker finds another lake there", where=where, do=share)
    if delta.version() < requirements.version:
        raise LakeError(
            (
                f"a worker sees version {delta.version()} of {GPU_SAMPLES.name}, here it is "
                f"{requirements.version}"
            ),
            where=where,
            do="wait until the shared file system shows it everywhere, and run again",
        )
