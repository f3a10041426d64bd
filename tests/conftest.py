"""Fixtures shared by all tests."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from starlette.testclient import TestClient

import copied_environment
import fast_tests  # first of ours: it watches sleeps from its import on
import nsight_reports
import unfinished
from native_stack import stack_of_core
from servers.process import program
from servers.slurm import SlurmCluster, slurm_cluster, together
from servers.web import WebServer, serving
from tachograph.annexes.serve.application import create_application
from tachograph.annexes.serve.identity.tokens import create_token
from tachograph.annexes.serve.snapshot import ServedLake
from tachograph.api.viewer import Role
from tachograph.catalog import config, secrets
from tachograph.lake.delta import Lake
from tachograph.sources.sacct import read_file
from tachograph.sources.slurm.exports import AccountingReading
from tachograph.sources.slurm.records import SlurmCluster as ClusterRecord

if TYPE_CHECKING:
    from playwright.sync_api import Browser


REPOSITORY = Path(__file__).resolve().parent.parent
CRASHES: list[str] = []  # of workers of this run, with their stacks
OUTER_RUN = "TACHOGRAPH_OUTER_RUN"  # names the temporary folder of the run that started this one
RECORDED = Path(os.environ.get("TACHOGRAPH_RECORDED", REPOSITORY.parent / "shared" / "data"))


# The same examples in every run, so that a red run is one of the change; `make fuzz` looks further.
# How long an example takes says more of the machine, and of what else runs on it, than of what is
# tested.
_UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", _UNHURRIED, max_examples=40, derandomize=True, database=None)
settings.register_profile("wide", _UNHURRIED, max_examples=1000)
settings.load_profile("fixed")

copied_environment.keep_old_copies()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Loop of tests that are coroutines."""
    return "asyncio"


@pytest.fixture(autouse=True)
def no_known_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets that one test names stand in the messages of the next: "secret" is a key of a
    store, and a word.
    """
    monkeypatch.setattr(secrets, "_KNOWN", {})


@pytest.fixture(scope="session")
def recorded() -> Path:
    """Folder of recorded real inputs; a run that requires them (TACHOGRAPH_REQUIRE_RECORDED=1)
    fails without.
    """
    if RECORDED.is_dir():
        return RECORDED
    if os.environ.get("TACHOGRAPH_REQUIRE_RECORDED") == "1":
        pytest.fail(f"recorded inputs are required and {RECORDED} is absent")
    pytest.skip(f"no recorded inputs at {RECORDED}: set TACHOGRAPH_RECORDED to their folder")


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that the first worker fills, for all workers: to be read, or copied.

    What the run made that started this one, as a test of recipes does, is made no second time.
    """
    outer = Path(os.environ.get(OUTER_RUN, "/nowhere")) / f"{name}-of-all"
    if (outer / "made").exists():
        return outer / name
    own = factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / f"{name}-of-all"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            shutil.rmtree(folder / name, ignore_errors=True)
            (folder / name).mkdir()
            make(folder / name)
            (folder / "made").touch()
    return folder / name


MODULES_OF_EXTRAS = ("matplotlib", "mcp", "pynvml", "starlette", "textual", "uvicorn")
# A module that is None cannot be imported.
_DEMO_OF_THE_CORE = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))
from tachograph.cli import main
sys.exit(main(["demo", "--quiet"]))
"""


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the demo, made once for all tests and workers by the command, without the
    libraries of extras: to be read, or copied.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("TACHOGRAPH_")
    }

    def make(folder: Path) -> None:
        subprocess.run(
            [sys.executable, "-c", _DEMO_OF_THE_CORE, *MODULES_OF_EXTRAS],
            cwd=folder,
            env=environment | {"NO_COLOR": "1"},
            check=True,
            stdout=subprocess.PIPE,
        )

    return made_once(tmp_path_factory, "demo", make) / "tachograph-demo"


# whom the server knows, beside the admin of its link: a token each
_ROLES = {"user000": Role.USER, "mia": Role.MANAGER, "sue": Role.SUPPORT}
_PEOPLE = """
[serve]
token_file = "tokens.json"
managers = "managers"
requests_per_s = 0.0

[advice]
days = 36500

[interference.profiles]
"user000/cfd" = "cfd.csv"
"""


@pytest.fixture(scope="session")
def server(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    """`tachograph serve` on a copy of the demo, for all tests of a worker that change nothing in
    it.
    """
    folder = tmp_path_factory.mktemp("served") / "demo"
    shutil.copytree(demo, folder)
    (folder / "managers").write_text("mia proj00\n", encoding="utf-8")
    (folder / "cfd.csv").write_text(nsight_reports.sample(), encoding="utf-8")
    with (folder / "tachograph.toml").open("a", encoding="utf-8") as configuration:
        configuration.write(_PEOPLE)
    file, expires = folder / "tokens.json", datetime.now(UTC) + timedelta(days=1)
    tokens = {
        name: create_token(file, user=name, role=role, expires=expires)[0]
        for name, role in _ROLES.items()
    }
    with serving(folder) as running:
        yield replace(running, tokens=tokens)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium without a window.

    Per module: while Playwright runs, its event loop runs in this thread, and a test of another
    module that runs one of its own would fail.
    """
    from playwright.sync_api import sync_playwright

    path = program("chromium", package="chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        yield started
        started.close()


@pytest.fixture(scope="session")
def study_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an analyzed lake of six jobs, made once for all workers: one for each way to be
    left out of a study.
    """
    from studied_lake import configuration_beside, studied_lake

    def make(folder: Path) -> None:
        studied_lake(folder / "lake")
        configuration_beside(folder / "lake")

    return made_once(tmp_path_factory, "study", make) / "lake"


@pytest.fixture(scope="session")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """An analyzed lake of eight users, with marks that only one of them may see, made once for
    all workers.
    """
    from marked_lake import marked_lake

    def make(folder: Path) -> None:
        marked_lake(folder / "lake")

    return Lake.open(str(made_once(tmp_path_factory, "marked", make) / "lake"))


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """An analyzed lake of four jobs to be exported, made once for all workers: to be read, or
    copied.
    """
    from exported_lake import exported_lake

    def make(folder: Path) -> None:
        exported_lake(folder / "lake")

    return Lake.open(str(made_once(tmp_path_factory, "exported", make) / "lake"))


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site where every text that others write is hostile: a lake, scripts, kernels, a
    configuration. To be read.
    """
    from hostile_site import hostile_site

    return made_once(tmp_path_factory, "hostile", hostile_site)


@pytest.fixture
def site(hostile: Path, tmp_path: Path) -> Path:
    """A copy of the hostile site."""
    return Path(shutil.copytree(hostile, tmp_path / "site"))


@pytest.fixture(scope="module")
def served(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedLake]:
    """A copy of the demo's lake, into which labels may be written; no limit of requests."""
    lake = tmp_path_factory.mktemp("served") / "lake"
    shutil.copytree(demo / "lake", lake)
    configuration = config.load(str(demo / "tachograph.toml"))
    unlimited = msgspec.structs.replace(configuration.serve, requests_per_s=0.0)
    made = ServedLake(Lake.open(str(lake)), msgspec.structs.replace(configuration, serve=unlimited))
    yield made
    made.shared_objects.close()


@pytest.fixture(scope="module")
def as_viewer(served: ServedLake) -> Callable[..., TestClient]:
    """A client as `name role`; without any as nobody."""
    from served_entries import NamedService, proof

    application = create_application(NamedService.of(served))

    def client(name: str = "", role: str = "user") -> TestClient:
        return TestClient(application, headers=proof(name, role))

    return client


@pytest.fixture(scope="module")
def admin(as_viewer: Callable[..., TestClient]) -> TestClient:
    """A client that sees all jobs."""
    return as_viewer("root", "admin")


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str | bytes], Path]:
    """Writes accounting into a file and returns its path."""

    def writer(content: str | bytes) -> Path:
        path = tmp_path / "accounting.txt"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return writer


@pytest.fixture
def read_text(write: Callable[[str | bytes], Path]) -> Callable[..., AccountingReading]:
    """Reads accounting given as text or bytes, in one reading; what the tests write themselves
    is trusted.
    """

    def reader(
        content: str | bytes,
        *,
        cluster: ClusterRecord | None = None,
        fields: str | None = None,
        delimiter: str | None = None,
        trusted: bool = True,
    ) -> AccountingReading:
        readings = list(
            read_file(
                write(content),
                cluster=cluster or ClusterRecord(),
                fields=fields,
                delimiter=delimiter,
                trusted=trusted,
            )
        )
        assert len(readings) == 1
        return readings[0]

    return reader


@pytest.fixture(scope="session")
def now() -> datetime:
    """An instant after everything that was recorded."""
    return datetime(2027, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmCluster]:
    """One real Slurm for all tests that ask for one: they run one after the other, in one
    worker.
    """
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as folder,
        slurm_cluster(Path(folder), rest=True) as cluster,
    ):
        yield cluster


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run fast tests, and what their fixtures prepare, as on a bare machine."""
    with fast_tests.limits(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a fast test that slept or started a server."""
    outcome = yield
    fast_tests.check(item)
    return outcome


def pytest_configure(config: pytest.Config) -> None:
    """Let a run that is ended from outside say what it was at."""
    unfinished.report_when_ended(config)


def pytest_unconfigure() -> None:
    """Remove what fast tests had for a PATH."""
    fast_tests.remove_bare_path()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the order of the tests be another."""
    parser.addoption(
        "--order-seed", help="run files, and the tests of a file, in an order made of this text"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Look at what is to be run, and in which order."""
    together.check_names(items)
    seed = config.getoption("--order-seed")
    if seed:
        order = random.Random(seed)  # every worker comes to the same order
        places = {path: order.random() for path in dict.fromkeys(item.path for item in items)}
        items.sort(key=lambda item: (places[item.path], order.random()))
    together.in_order(items)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object, error: object) -> None:
    """Keep where native code crashed a worker, for the end of what is printed."""
    if error:
        CRASHES.append(f"{node}: {error}\n{stack_of_core(Path.cwd())}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show where native code crashed workers."""
    for crash in CRASHES:
        terminalreporter.section("crashed worker")
        terminalreporter.write_line(crash)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Any:
    """Say which test goes to which worker."""
    return together.scheduler(config, log)
