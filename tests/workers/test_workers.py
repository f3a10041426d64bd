"""Analysis on Dask workers: the numbers of threads bit for bit, whoever dies; and what is told
when it cannot be.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from worker_lakes import NOW, Deadly, Simulated, copied, fail, same

from madelake import fill, held, job, make_lake
from servers.process import free_port, listens, running
from servers.s3 import s3_server
from tachograph.catalog.config import Configuration, WorkerOptions
from tachograph.catalog.errors import LakeError, UsageError, WorkersError
from tachograph.judge.job_judge import JobJudge
from tachograph.lake.delta import Lake
from tachograph.pipeline import dask_workers
from tachograph.pipeline.dask_workers import DaskPool, refusal, workers
from tachograph.pipeline.reduction import TaskPool
from tachograph.pipeline.run import analyze
from tachograph.pipeline.workers import check_worker, expected, parse_workers

HOST = socket.gethostname()
# An absolute path, and yet each process finds there a lake of its own.
LEADS_ELSEWHERE = "/proc/self/cwd/lake"


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    return Simulated.of(tmp_path_factory.mktemp("simulated") / "cluster")


@pytest.fixture(scope="module")
def raw(simulated: Simulated, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake that nobody analyzed."""
    return simulated.lake(str(tmp_path_factory.mktemp("raw") / "lake"))


@pytest.fixture(scope="module")
def by_threads(raw: Lake, simulated: Simulated, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """The same lake, analyzed on threads."""
    lake = copied(raw, tmp_path_factory.mktemp("threads"))
    analyze(lake, simulated.configuration, judge=JobJudge, now=NOW, threads=2)
    return lake


@pytest.fixture(scope="module")
def pool(raw: Lake) -> Iterator[DaskPool]:
    """Two worker processes."""
    with started("2", raw) as made:
        yield made


@contextmanager
def started(words: str, lake: Lake, settings: WorkerOptions | None = None) -> Iterator[DaskPool]:
    with workers(
        words, settings or WorkerOptions(wait_s=60), lake, report=lambda words: None
    ) as made:
        yield made


def analyzed(lake: Lake, simulated: Simulated, pool: TaskPool) -> Lake:
    analyze(lake, simulated.configuration, judge=JobJudge, now=NOW, pool=pool)
    return lake


@pytest.mark.slow
def test_workers_that_are_killed_change_nothing(
    raw: Lake, by_threads: Lake, simulated: Simulated, pool: DaskPool, tmp_path: Path
) -> None:
    """Two of two: their numbers are those of threads, bit for bit."""
    assert pool.width == 2
    deadly = Deadly(pool, tmp_path, tasks=range(0, 4, 2))
    assert same(by_threads, analyzed(copied(raw, tmp_path), simulated, deadly))
    assert deadly.deaths == 2


@pytest.mark.slow
def test_what_was_shared_survives_the_death_of_all(pool: DaskPool) -> None:
    shared = pool.share([1, 2, 3])
    assert pool.submit(sum, shared).result() == 6
    victims = {pool.submit(os.getpid).result() for _ in range(50)}
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    assert pool.submit(sum, shared).result() == 6
    assert pool.submit(os.getpid).result() not in victims


@pytest.mark.slow
def test_a_task_that_kills_whoever_takes_it_is_told(pool: DaskPool, tmp_path: Path) -> None:
    deadly = Deadly(pool, tmp_path, tasks=range(1), times=9)
    with pytest.raises(
        WorkersError, match=r"^4 workers died over one task, .*; give each worker more memory"
    ):
        deadly.submit(len, "x").result()
    assert 0 < deadly.deaths <= 4  # one may end before the task began, by what came before
    assert pool.submit(len, "x").result() == 1


@pytest.mark.slow
def test_errors_of_a_task_come_back_as_they_are(pool: DaskPool) -> None:
    with pytest.raises(LakeError, match=f"^nowhere on {HOST}: there is no lake; do this") as caught:
        pool.submit(fail, LakeError).result()
    assert caught.value.exit_code == 5
    for kind in (TimeoutError, FileNotFoundError, ZeroDivisionError):
        with pytest.raises(kind, match="of the task"):
            pool.submit(fail, kind).result()


@pytest.mark.slow
def test_a_lake_in_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, end = NOW - timedelta(hours=2), NOW - timedelta(hours=1)
    tables = {
        "jobs": [job("1", begin, end, gpus=1)],
        "allocations": held("1", "n1", (0,)),
        "gpu_samples": [
            {"t": begin + timedelta(minutes=minute), "node": "n1", "gpu": 0, "gpu_util": 0.0}
            for minute in range(60)
        ],
    }
    here = make_lake(tmp_path / "lake", **tables)
    analyze(here, Configuration(), judge=JobJudge, now=NOW, threads=1)
    with s3_server(tmp_path) as s3:
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        there = Lake.create(s3.lake())
        fill(there, tables)
        with started("1", there) as pool:
            analyze(there, Configuration(), judge=JobJudge, now=NOW, pool=pool)
        assert same(here, there)


def command(*arguments: object, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tachograph", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
    )


@pytest.mark.slow
def test_the_command_takes_a_lake_named_from_here(
    raw: Lake, by_threads: Lake, simulated: Simulated, tmp_path: Path
) -> None:
    lake = copied(raw, tmp_path)
    options = ("--config", simulated.cluster.configuration, "--as-of", NOW.isoformat())
    done = command("analyze", "--lake", "lake", *options, "--workers", 1, "--json", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["jobs"] > 0
    assert same(by_threads, lake)


@contextmanager
def scheduler(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A scheduler of one's own; it writes scheduler.json into the folder."""
    port = free_port()
    words = [
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--no-dashboard",
        "--dashboard-address",
        "127.0.0.1:0",
    ]
    file = folder / "scheduler.json"
    start = [
        sys.executable,
        "-m",
        "distributed.cli.dask_scheduler",
        *words,
        "--scheduler-file",
        str(file),
    ]
    with running(
        start, ready=lambda: listens(port) and file.exists(), log=folder / "scheduler.log"
    ) as process:
        yield f"tcp://127.0.0.1:{port}", process


@contextmanager
def worker(address: str, folder: Path, *, python_path: Path | None = None) -> Iterator[None]:
    """A worker that works in the folder; packages of `python_path` come before others."""
    folder.mkdir(exist_ok=True)
    log = folder / "worker.log"
    start = [
        sys.executable,
        "-m",
        "distributed.cli.dask_worker",
        address,
        "--no-nanny",
        "--nthreads",
        "2",
    ]
    more = [str(path) for path in (python_path, os.environ.get("PYTHONPATH")) if path]
    with running(
        start,
        ready=lambda: "Registered to" in log.read_text(),
        log=log,
        environment={"PYTHONPATH": os.pathsep.join(more), "POLARS_MAX_THREADS": "1"},
        within_s=240,
    ):
        yield


@pytest.mark.slow
def test_a_scheduler_that_runs_and_then_does_not(
    raw: Lake, by_threads: Lake, simulated: Simulated, tmp_path: Path
) -> None:
    lake = copied(raw, tmp_path)
    with scheduler(tmp_path) as (address, process), worker(address, tmp_path / "elsewhere"):
        with started(address, lake) as pool:
            assert pool.width == 2
            assert same(by_threads, analyzed(lake, simulated, pool))
        with started(str(tmp_path / "scheduler.json"), lake) as pool:
            # for ever; tests watch `time.sleep`, and a scheduler does not know their module
            task = pool.submit(signal.pause)
            process.kill()
            with pytest.raises(
                WorkersError,
                match=r"^the Dask scheduler is gone, or has forgotten this analysis; start",
            ):
                task.result()


@pytest.mark.slow
def test_workers_that_cannot_be_used(raw: Lake, tmp_path: Path) -> None:
    """None at all; one of another version; one that sees no lake."""
    lake = copied(raw, tmp_path)
    false = tmp_path / "false"
    (false / "tachograph-9.9.dist-info").mkdir(parents=True)
    metadata = "Metadata-Version: 2.1\nName: tachograph\nVersion: 9.9\n"
    (false / "tachograph-9.9.dist-info" / "METADATA").write_text(metadata)
    own = importlib.metadata.version("tachograph")
    with scheduler(tmp_path) as (address, _):
        refused(
            address,
            lake,
            WorkersError,
            "0 of 1 workers came within 1 s; see the output of `dask worker`",
        )
        with worker(address, tmp_path / "false", python_path=false):
            refused(
                address,
                lake,
                WorkersError,
                f"tcp://.* has tachograph 9.9, here it is {own}; install on the workers",
            )
        with worker(address, tmp_path / "elsewhere"), within(tmp_path):
            seen = Lake.open(LEADS_ELSEWHERE)
            refused(
                address,
                seen,
                LakeError,
                f"{LEADS_ELSEWHERE} on {HOST}: a worker cannot read the lake: there is no",
            )


@pytest.mark.slow
def test_a_worker_looks_at_the_lake(raw: Lake, tmp_path: Path) -> None:
    """It may see none, another one, an older state of it; having seen it once it does not look
    again.
    """
    here, bare, other, older = (tmp_path / name for name in ("here", "bare", "other", "older"))
    bare.mkdir()
    lake = copied(raw, here)
    copied(lake, older)
    one = {"gpu_samples": [{"t": NOW, "node": "n1", "gpu": 0, "power_w": 1.0}]}
    fill(Lake.create(str(other / "lake")), one)
    fill(lake, one)
    with within(here):
        wanted = expected(Lake.open(LEADS_ELSEWHERE))
    for folder, said in (
        (
            bare,
            (
                "a worker cannot read the lake: there is no lake; keep the lake in a folder that "
                "all workers see"
            ),
        ),
        (
            other,
            "a worker finds another lake there; keep the lake in a folder that all workers see",
        ),
        (
            older,
            (
                f"a worker sees version {wanted.version - 1} of gpu_samples, here it is "
                f"{wanted.version}; wait until"
            ),
        ),
    ):
        with (
            within(folder),
            pytest.raises(LakeError, match=f"^{LEADS_ELSEWHERE} on {HOST}: {said}"),
        ):
            check_worker(wanted)
    with within(here):
        check_worker(wanted)
    with within(bare):
        check_worker(wanted)


@contextmanager
def within(folder: Path) -> Iterator[None]:
    """Work in the folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def refused(words: str, lake: Lake, kind: type[Exception], said: str) -> None:
    """Assert that the workers are refused with these words."""
    with pytest.raises(kind, match=f"^{said}"), started(words, lake, WorkerOptions(wait_s=1)):
        pass


def test_what_is_not_there_is_named(
    raw: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_workers, "CONNECT_S", 1)
    refused(
        f"tcp://127.0.0.1:{free_port()}",
        raw,
        WorkersError,
        r"tcp://127.0.0.1:\d+: no Dask scheduler responds there",
    )
    (tmp_path / "broken.json").write_text("{")
    refused(
        f"{tmp_path}/broken.json",
        raw,
        UsageError,
        ".*/broken.json: this is not the file of a scheduler; start",
    )
    refused(
        f"{tmp_path}/nothing.json",
        raw,
        UsageError,
        ".*/nothing.json: there is no such file; start a scheduler",
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    refused(
        "slurm:2", raw, WorkersError, "there is no sbatch here; run it where jobs are submitted"
    )


@pytest.mark.parametrize("words", ["0", "-1", "slurm", "slurm:0", "slurm:x", "n1:8786", ""])
def test_what_names_no_workers_is_refused(words: str) -> None:
    with pytest.raises(UsageError, match=f"^--workers {words}: neither"):
        parse_workers(words)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            (
                "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job "
                "submission failed: Why\n"
            ),
            "Why",
        ),
        (
            "allocation failure: Invalid partition name specified\n",
            "Invalid partition name specified",
        ),
        ("sbatch: fatal: no configuration source\n", "no configuration source"),
        ("", "no reason given"),
    ],
)
def test_a_refusal_of_slurm_in_few_words(said: str, reason: str) -> None:
    assert refusal(said) == reason


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["distributed", "cryptography"])
def test_without_dask_it_is_said_what_to_install(raw: Lake, missing: str) -> None:
    script = (
        f"import sys; sys.modules['{missing}'] = None; from tachograph.cli import main; "
        "sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "analyze", "--lake", raw.location, "--workers", "2"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "tachograph: --workers needs Dask; pip install 'tachograph[dask]'\n"


def test_without_dask_a_mistake_is_told_all_the_same(raw: Lake) -> None:
    script = (
        "import sys; sys.modules['distributed'] = None; from tachograph.cli import main; "
        "sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "analyze", "--lake", raw.location, "--workers", "two"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tachograph: --workers two: neither a number of processes, ")
