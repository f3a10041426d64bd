"""A pool of Dask workers: local processes, a running scheduler's, or Slurm jobs.

A task whose worker died runs again on another one. Local processes and Slurm jobs use TLS with a
certificate made for this one analysis; a running scheduler is used as set in Dask's configuration.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

# Dask makes certificates with it; without it it would fail later.
import cryptography  # noqa: F401
import dask
from dask_jobqueue.slurm import SLURMCluster
from distributed import Client, Future, KilledWorker, LocalCluster, Security, wait
from distributed.comm.core import CommClosedError

from tachograph.catalog.config import WorkerOptions
from tachograph.catalog.errors import ConfigError, UsageError, WorkersError
from tachograph.catalog.processes import SAFE_PATH, spawned_workers
from tachograph.lake.delta import Lake
from tachograph.pipeline.workers import (
    INSTALL,
    PACKAGES,
    LocalWorkers,
    RunningScheduler,
    SlurmWorkers,
    check_worker,
    disagreements,
    expected,
    parse_workers,
    run_there,
)

T = TypeVar("T")

LOOK_S = 5.0  # waiting for a result: how often the workers are counted
FETCH_S = 600.0  # for a result that is there to arrive
ATTEMPTS, RETRY_S = 10, 2.0  # the scheduler notices the loss of a worker after some seconds


@dataclass(frozen=True, slots=True)
class Crew:
    """The workers of one analysis.

    width: concurrent tasks with all workers. size: required workers; if there are fewer, `hire`
    requests the missing ones. logs: text on where their logs are.
    """

    client: Client
    width: int
    size: int
    hire: Callable[[], None]
    logs: str


class DaskPool:
    """Runs tasks on the workers of a crew; checks each worker first.

    Errors: WorkersError when a worker has other versions, LakeError when it does not see the lake.
    """

    has_processes = True

    def __init__(self, crew: Crew, lake: Lake, *, wait_s: float) -> None:
        self.width = crew.width
        self._crew, self._client, self._wait_s = crew, crew.client, wait_s
        self._none_since: float | None = None
        self._expected = expected(lake)
        self._check()

    def share(self, value: T) -> Any:
        """Hand a large value to the workers, who give it to each other."""
        return self._client.submit(_itself, value, pure=False)

    def submit(self, function: Callable[..., T], /, *arguments: Any) -> DaskTask[T]:
        """Start a task as soon as a worker is free."""
        return DaskTask(
            self, self._client.submit(run_there, self._expected, function, *arguments, pure=False)
        )

    def everywhere(self, function: Callable[..., T], /, *arguments: Any) -> Mapping[str, T]:
        """Return {worker address: result of the function}; errors are raised.

        Workers that leave meanwhile are ignored. Errors: WorkersError if that does not end.
        """
        for _ in range(ATTEMPTS):
            try:
                return cast("Mapping[str, T]", self._client.run(function, *arguments))
            except CommClosedError:
                time.sleep(RETRY_S)
        raise WorkersError("workers left while they were checked", do=f"see {self._crew.logs}")

    def look_after(self) -> None:
        """Start the workers that are missing.

        Errors: WorkersError when there has been none for too long.
        """
        present = len(self._client.nthreads())
        if present < self._crew.size:
            self._crew.hire()
        if present:
            self._none_since = None
            return
        since = self._none_since = self._none_since or time.monotonic()
        if time.monotonic() - since > self._wait_s:
            raise WorkersError(
                f"all workers are gone, and no new one connected within {self._wait_s:.0f} s",
                do=f"see {self._crew.logs}",
            )

    def died(self, problem: KilledWorker) -> WorkersError:
        """Return the error of a task that took several workers with it."""
        return WorkersError(
            f"{problem.allowed_failures + 1} workers died over one task, the last of them "
            f"{problem.last_worker.address}",
            do=f"give each worker more memory, or start fewer on a machine; see {self._crew.logs}",
        )

    def _check(self) -> None:
        """Check the present workers; later ones check themselves before their first task."""
        answers: dict[str, dict[str, str | None]] = {}
        for name in PACKAGES:
            versions = self._client.run(metadata.version, name, on_error="return")
            for worker, version in versions.items():
                answers.setdefault(worker, {})[name] = version if isinstance(version, str) else None
        wrong = disagreements(self._expected.versions, answers)
        if wrong:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise WorkersError(f"{wrong[0]}{more}", do=INSTALL)
        self.everywhere(check_worker, self._expected)


class DaskTask(Generic[T]):
    """A future result of a worker."""

    def __init__(self, pool: DaskPool, future: Future[T]) -> None:
        self._pool, self._future = pool, future

    def result(self) -> T:
        """Return it, once it is there.

        Errors: the task's error; WorkersError if there are no workers, they died over it, or the
        scheduler is gone.
        """
        try:
            return self._wait()
        except KilledWorker as problem:
            raise self._pool.died(problem) from None
        except (CancelledError, OSError) as problem:
            if isinstance(problem, OSError) and self._future.status == "error":
                raise  # by the task itself
            raise WorkersError(
                "the Dask scheduler is gone, or has forgotten this analysis",
                do="start it again and rerun the analysis: nothing partial was written",
            ) from None

    def _wait(self) -> T:
        while True:
            try:
                wait([self._future], timeout=LOOK_S)
                return self._future.result(timeout=FETCH_S)
            except TimeoutError:
                if self._future.status == "error":
                    raise
                self._pool.look_after()


def _itself(value: T) -> T:
    return value


CONNECT_S = 20.0
JOB_NAME = "tachograph"
_SETTINGS: dict[str, Any] = {
    "distributed.admin.large-graph-warning-threshold": "1GB",
    "distributed.scheduler.http.routes": [],  # no pages
}
_WITHOUT_PAGES = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}


@contextmanager
def workers(
    words: str, settings: WorkerOptions, lake: Lake, *, report: Callable[[str], None]
) -> Iterator[DaskPool]:
    """Yield the worker pool of the option; stop what was started at the end.

    Errors: UsageError, ConfigError; WorkersError when no worker comes, LakeError when one does not
    see the lake.
    """
    requested = parse_workers(words)
    with dask.config.set(_SETTINGS), ExitStack() as stack:
        # What is to be known becomes an error of ours.
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        match requested:
            case LocalWorkers():
                crew, first = _processes(requested, stack), requested.count
            case RunningScheduler():
                crew, first = _running(requested, settings, stack), 1
            case SlurmWorkers():
                crew, first = _jobs(requested, settings, stack), 1
                report(
                    f"waiting for {requested.count} Slurm jobs, named {JOB_NAME}; logs: {crew.logs}"
                )
        _await(crew, first, settings.wait_s)
        yield DaskPool(crew, lake, wait_s=settings.wait_s)


def _processes(local: LocalWorkers, stack: ExitStack) -> Crew:
    stack.enter_context(spawned_workers())
    cluster = stack.enter_context(
        LocalCluster(
            n_workers=local.count,
            threads_per_worker=1,
            processes=True,
            security=True,
            silence_logs=logging.CRITICAL,
            dashboard_address=None,
            scheduler_kwargs=_WITHOUT_PAGES,
            env={"POLARS_MAX_THREADS": os.environ.get("POLARS_MAX_THREADS", "1")},
        )
    )
    client = stack.enter_context(Client(cluster))
    hire = partial(cluster.scale, local.count)
    return Crew(client, local.count, local.count, hire, "the memory of this machine")


def _running(scheduler: RunningScheduler, settings: WorkerOptions, stack: ExitStack) -> Crew:
    where = scheduler.address or _address(Path(scheduler.file))
    try:
        client = stack.enter_context(Client(where, timeout=CONNECT_S))
    except (OSError, ValueError) as problem:
        raise WorkersError(
            "no Dask scheduler responds there",
            where=where,
            do="start one with `dask scheduler`, or name the one that runs",
        ) from problem
    logs = "the output of `dask worker` on their machines"
    _await(Crew(client, 1, 0, _hire_none, logs), 1, settings.wait_s)
    return Crew(client, sum(client.nthreads().values()), 0, _hire_none, logs)


def _address(file: Path) -> str:
    """Return the address in the file of a scheduler.

    Errors: UsageError.
    """
    do = f"start a scheduler: dask scheduler --scheduler-file {file}"
    try:
        address = json.loads(file.read_text(encoding="utf-8"))["address"]
    except FileNotFoundError:
        raise UsageError("there is no such file", where=str(file), do=do) from None
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError("this is not the file of a scheduler", where=str(file), do=do) from None
    return str(address)


def _jobs(slurm: SlurmWorkers, settings: WorkerOptions, stack: ExitStack) -> Crew:
    folder = Path(settings.log_directory or "tachograph-workers").absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise ConfigError(
            problem.strerror or str(problem),
            where=str(folder),
            do="start it in a folder that you may write",
        ) from None
    cluster = stack.enter_context(
        SLURMCluster(
            cores=settings.cores,
            processes=1,
            memory=settings.memory,
            queue=settings.partition or None,
            account=settings.account or None,
            walltime=settings.walltime,
            interface=settings.interface or None,
            python=settings.python or None,
            job_name=JOB_NAME,
            job_extra_directives=list(settings.job_extra_directives),
            job_script_prologue=[
                f"export {SAFE_PATH}=1 POLARS_MAX_THREADS={settings.cores}",
            ],
            log_directory=str(folder),
            security=_certificate(
                Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".", dir=folder)))
            ),
            scheduler_options=_WITHOUT_PAGES,
            silence_logs=logging.CRITICAL,
        )
    )
    _try(cluster.job_script())
    client = stack.enter_context(Client(cluster))
    hire: Callable[[], None] = partial(cluster.scale, jobs=slurm.count)
    hire()
    logs = f"{folder}"
    return Crew(client, slurm.count * settings.cores, slurm.count, hire, logs)


def _certificate(folder: Path) -> Security:
    """Return the certificate of this analysis, written into a folder that only its owner may enter.

    (What dask-jobqueue writes itself stays until garbage is collected.)
    """
    temporary = Security.temporary()
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    certificate.write_text(temporary.tls_client_cert)
    key.write_text(temporary.tls_client_key)
    both = {
        f"tls_{role}_{kind}": str(path)
        for role in ("client", "scheduler", "worker")
        for kind, path in (("cert", certificate), ("key", key))
    }
    return Security(require_encryption=True, tls_ca_file=str(certificate), **both)


def _try(script: str) -> None:
    """Test the job with Slurm: afterwards a refusal would only be a line in a log.

    Errors: WorkersError with Slurm's own words.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
        file.write(script)
        file.flush()
        try:
            done = subprocess.run(
                ["sbatch", "--test-only", file.name],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        except FileNotFoundError:
            raise WorkersError(
                "there is no sbatch here", do="run it where jobs are submitted, or use --workers N"
            ) from None
        except subprocess.TimeoutExpired:
            raise WorkersError(
                "Slurm did not respond within 120 s", do="check whether `sinfo` responds"
            ) from None
    if done.returncode:
        raise WorkersError(
            f"Slurm refuses the job: {refusal(done.stderr)}",
            do="fix [workers] of the configuration",
        )


def refusal(printed: str) -> str:
    """Return Slurm's reason for refusing a job: the last line of sbatch's stderr.

    >>> refusal("sbatch: error: x\\nsbatch: error: Batch job submission failed: Invalid account\\n")
    'Invalid account'
    """
    last = next(
        (line for line in reversed(printed.splitlines()) if line.strip()), "no reason given"
    )
    return re.sub(
        r"^(sbatch: |error: |fatal: |allocation failure: |Batch job submission failed: )+",
        "",
        last.strip(),
    )


def _await(crew: Crew, count: int, wait_s: float) -> None:
    try:
        crew.client.wait_for_workers(count, timeout=wait_s)
    except TimeoutError:
        raise WorkersError(
            (
                f"{len(crew.client.nthreads())} of {max(count, crew.size)} workers came within "
                f"{wait_s:.0f} s"
            ),
            do=f"see {crew.logs}",
        ) from None


def _hire_none() -> None:
    """Start none: something else starts these workers."""
