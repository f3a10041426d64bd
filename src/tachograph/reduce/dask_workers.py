"""The workers that `--workers` names: processes here, those of a scheduler that runs, or jobs of Slurm.

Processes and jobs that are started here speak TLS with a certificate made for this one analysis: whoever reached an
open scheduler could run commands as its owner. A scheduler that runs already is spoken to as Dask's configuration says.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import cryptography  # noqa: F401  # what Dask makes certificates with; without it it would fail later
import dask
from dask_jobqueue.slurm import SLURMCluster
from distributed import Client, LocalCluster, Security

from tachograph.config import Workers
from tachograph.errors import ConfigError, UsageError, WorkersError
from tachograph.lake import Lake
from tachograph.reduce.dask_pool import Crew, DaskPool
from tachograph.reduce.worker_words import Jobs, Processes, Running, parse_workers

CONNECT_S = 20.0
JOB_NAME = "tachograph"
_SETTINGS: dict[str, Any] = {
    "distributed.admin.large-graph-warning-threshold": "1GB",
    "distributed.scheduler.http.routes": [],  # no pages, which nobody asked for
}
_SILENT = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}


@contextmanager
def workers(words: str, settings: Workers, lake: Lake, *, say: Callable[[str], None]) -> Iterator[DaskPool]:
    """The pool that `words` names for the time of the block; what was started for it is gone afterwards.

    Errors: UsageError, ConfigError; WorkersError when no worker comes, LakeError when one does not see the lake.
    """
    place = parse_workers(words)
    with dask.config.set(_SETTINGS), ExitStack() as stack:
        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what is to be known becomes an error of ours
        match place:
            case Processes():
                crew, first = _processes(place, stack), place.count
            case Running():
                crew, first = _running(place, settings, stack), 1
            case Jobs():
                crew, first = _jobs(place, settings, stack), 1
                say(f"waiting for {place.count} jobs of Slurm, named {JOB_NAME}; look {crew.logs}")
        _await(crew, first, settings.wait_s)
        yield DaskPool(crew, lake, wait_s=settings.wait_s)


def _processes(place: Processes, stack: ExitStack) -> Crew:
    cluster = stack.enter_context(
        LocalCluster(
            n_workers=place.count,
            threads_per_worker=1,
            processes=True,
            security=True,
            silence_logs=logging.CRITICAL,
            dashboard_address=None,
            scheduler_kwargs=_SILENT,
            env={"POLARS_MAX_THREADS": os.environ.get("POLARS_MAX_THREADS", "1")},
        )
    )
    client = stack.enter_context(Client(cluster))
    hire = partial(cluster.scale, place.count)
    return Crew(client, place.count, place.count, hire, "at the memory of this machine")


def _running(place: Running, settings: Workers, stack: ExitStack) -> Crew:
    where = place.address or _address(Path(place.file))
    try:
        client = stack.enter_context(Client(where, timeout=CONNECT_S))
    except (OSError, ValueError) as problem:
        raise WorkersError(
            "no Dask scheduler answers there",
            where=where,
            do="start one with `dask scheduler`, or name the one that runs",
        ) from problem
    logs = "into the output of `dask worker` on their machines"
    _await(Crew(client, 1, 0, _nobody, logs), 1, settings.wait_s)
    return Crew(client, sum(client.nthreads().values()), 0, _nobody, logs)


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


def _jobs(place: Jobs, settings: Workers, stack: ExitStack) -> Crew:
    folder = Path(settings.log_directory or "tachograph-workers").absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise ConfigError(
            problem.strerror or str(problem),
            where=str(folder),
            do="set workers.log_directory to a folder you may write",
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
            job_script_prologue=[f"export POLARS_MAX_THREADS={settings.cores}", *settings.prologue],
            log_directory=str(folder),
            security=_certificate(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".", dir=folder)))),
            scheduler_options=_SILENT,
            silence_logs=logging.CRITICAL,
        )
    )
    _try(cluster.job_script())
    client = stack.enter_context(Client(cluster))
    hire: Callable[[], None] = partial(cluster.scale, jobs=place.count)
    hire()
    logs = f"into {folder}"
    return Crew(client, place.count * settings.cores, place.count, hire, logs)


def _certificate(folder: Path) -> Security:
    """Return what encrypts and lets in nobody else, written into a folder that only its owner may enter.

    (What dask-jobqueue writes itself stays until somebody collects garbage.)
    """
    made = Security.temporary()
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    certificate.write_text(made.tls_client_cert)
    key.write_text(made.tls_client_key)
    both = {
        f"tls_{role}_{kind}": str(path)
        for role in ("client", "scheduler", "worker")
        for kind, path in (("cert", certificate), ("key", key))
    }
    return Security(require_encryption=True, tls_ca_file=str(certificate), **both)


def _try(script: str) -> None:
    """Ask Slurm whether it would take the job: afterwards a refusal would only be a line in a log.

    Errors: WorkersError with Slurm's own words.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
        file.write(script)
        file.flush()
        try:
            done = subprocess.run(
                ["sbatch", "--test-only", file.name], capture_output=True, text=True, timeout=120, check=False
            )
        except FileNotFoundError:
            raise WorkersError(
                "there is no sbatch here", do="run where jobs are submitted, or use --workers N"
            ) from None
        except subprocess.TimeoutExpired:
            raise WorkersError("Slurm does not answer within 120 s", do="see whether `sinfo` does") from None
    if done.returncode:
        raise WorkersError(f"Slurm refuses the job: {refusal(done.stderr)}", do="mend [workers] of the configuration")


def refusal(said: str) -> str:
    """Return why Slurm refuses, from what sbatch wrote: its last line without what every line begins with.

    >>> refusal("sbatch: error: x\\nsbatch: error: Batch job submission failed: Invalid account\\n")
    'Invalid account'
    """
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "no reason given")
    return re.sub(r"^(sbatch: |error: |fatal: |allocation failure: |Batch job submission failed: )+", "", last.strip())


def _await(crew: Crew, count: int, wait_s: float) -> None:
    try:
        crew.client.wait_for_workers(count, timeout=wait_s)
    except TimeoutError:
        raise WorkersError(
            f"{len(crew.client.nthreads())} of {max(count, crew.size)} workers came within {wait_s:.0f} s",
            do=f"look {crew.logs}; workers.wait_s is the time to wait",
        ) from None


def _nobody() -> None:
    """Ask for nobody: these workers are started by others."""
