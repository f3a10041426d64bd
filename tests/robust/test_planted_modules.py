"""Files in the working directory that have the names of modules: no command, and no child of
one, runs them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import chdir
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from every_command import SmallSite

from made_report import MadeLaunch, write
from servers.exporter import exporter
from servers.process import running
from tachograph.annexes.serve.images import JobImages
from tachograph.catalog.processes import SAFE_PATH, spawned_workers
from tachograph.lake.delta import Lake

TESTS = Path(__file__).resolve().parent.parent
SOURCES = TESTS.parent / "src" / "tachograph"
# writes down that it was run, and then is what it stands in for, so that a command goes on to the
# next
MODULE = """
import sys

open({mark!r}, "w").close()
folders = sys.path[:]
sys.path[:] = [folder for folder in folders if folder not in ("", {folder!r})]
del sys.modules[__name__]
try:
    __import__(__name__)
finally:
    sys.path[:] = folders
"""
ABSENT = (
    "brotli",
    "cupy",
    "gevent",
    "lz4",
    "orjson",
    "sitecustomize",
    "snappy",
    "socksio",
    "usercustomize",
)
SCRIPT = (
    "#!{python}\nimport sys\nfrom tachograph.cli import program\nif __name__ == "
    "'__main__':\n    sys.exit(program())\n"
)
SITE = """
lake = "lake"
[collect]
listen = ""
[[sources]]
source = "dcgm-exporter"
urls = ["{url}"]
"""
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith("TACHOGRAPH_") and name != SAFE_PATH
}


@dataclass(frozen=True, slots=True)
class PlantedFolder:
    """A working directory full of modules, and how `tachograph` is started there."""

    folder: Path
    program: Sequence[str]
    of_python: frozenset[str]  # what Python runs itself before it comes to a program

    @classmethod
    def of(
        cls, folder: Path, program: Sequence[str], names: frozenset[str], bare: Sequence[str]
    ) -> PlantedFolder:
        """The folder with these modules planted; `bare`: a program without any imports, started
        alike.
        """
        (folder / "executed").mkdir()
        for name in names:
            source = MODULE.format(mark=str(folder / "executed" / name), folder=str(folder))
            (folder / f"{name}.py").write_text(source, encoding="utf-8")
        made = cls(folder, program, frozenset())
        subprocess.run(bare, cwd=folder, env=ENVIRONMENT, check=True)
        return cls(folder, program, made.executed)

    @property
    def executed(self) -> frozenset[str]:
        """The planted modules that were run since this was asked before."""
        marks = list((self.folder / "executed").iterdir())
        for mark in marks:
            mark.unlink()
        return frozenset(mark.name for mark in marks)

    def assert_none_executed(self) -> None:
        assert sorted(self.executed - self.of_python) == []

    def run(self, *words: object, code: int = 0) -> str:
        """Return what a command prints; no planted module may have been run."""
        done = subprocess.run(
            [*self.program, *(str(word) for word in words)],
            cwd=self.folder,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == code, done
        self.assert_none_executed()
        return done.stdout


def names() -> frozenset[str]:
    """Modules of the standard library and of all that is installed here, and some that are
    looked for.
    """
    installed = {name for name in packages_distributions() if name.isidentifier()}
    return frozenset({*sys.stdlib_module_names, *installed, *ABSENT} - {"__main__", "__pycache__"})


@pytest.fixture(scope="module", params=["-m", pytest.param("script", marks=pytest.mark.slow)])
def planted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> PlantedFolder:
    """The working directory."""
    folder, programs = (tmp_path_factory.mktemp(name) for name in ("planted", "programs"))
    bare, script = folder / "bare", programs / "tachograph"
    bare.mkdir()
    for name in ("__init__.py", "__main__.py"):
        (bare / name).touch()
    script.write_text(SCRIPT.format(python=sys.executable), encoding="utf-8")
    script.chmod(0o755)
    if request.param == "script":
        made = PlantedFolder.of(
            folder,
            [str(script)],
            names() | {"tachograph"},
            [sys.executable, str(bare / "__main__.py")],
        )
        assert made.of_python == frozenset()
    else:  # it runs the `tachograph` that lies there, if one does
        command = [sys.executable, "-m", "tachograph"]
        made = PlantedFolder.of(
            folder, command, names() - {"tachograph"}, [sys.executable, "-m", "bare"]
        )
    return made


@pytest.fixture(scope="module")
def filled(planted: PlantedFolder, tmp_path_factory: pytest.TempPathFactory) -> PlantedFolder:
    """With an analyzed lake, and a configuration that names it."""
    site = SmallSite.filled(tmp_path_factory.mktemp("site"))
    site.lake.rename(planted.folder / "lake")
    (planted.folder / "tachograph.toml").write_text('lake = "lake"\n', encoding="utf-8")
    return planted


def test_planted_modules_are_run_where_python_looks_for_them(planted: PlantedFolder) -> None:
    unsafe = [sys.executable, "-c", "import dis, json, polars"]
    subprocess.run(unsafe, cwd=planted.folder, env=ENVIRONMENT, check=True)
    assert planted.executed >= {"dis", "json", "polars"}


def test_no_command_runs_one_for_its_help(planted: PlantedFolder) -> None:
    planted.run("--help")
    assert "tachograph" in planted.run("help", "--man")  # which imports the modules of all


def test_no_child_of_the_collector_runs_one(planted: PlantedFolder) -> None:
    with exporter({"n1": {0: {"DCGM_FI_DEV_GPU_UTIL": 50}}}) as server:
        file = planted.folder / "site.toml"
        file.write_text(SITE.format(url=server.url("n1")), encoding="utf-8")
        planted.run("collect", "--once", "--config", file.name, "--lake", "collected")


@pytest.mark.slow
def test_no_reader_of_stored_reports_runs_one(planted: PlantedFolder) -> None:
    pytest.importorskip("ncu_report")
    write(
        planted.folder / "a.ncu-rep",
        [MadeLaunch("axpy", metrics={"gpu__time_duration.sum": 1000.0})],
    )
    assert "axpy" in planted.run("share", "kernels", "a.ncu-rep")


def test_the_command_that_is_recorded_has_the_users_environment(planted: PlantedFolder) -> None:
    shown = f"echo ${{{SAFE_PATH}-unset}}"
    assert planted.run("record", "--simulate", 1, "--", "sh", "-c", shown) == "unset\n"


@pytest.mark.slow
def test_no_worker_of_an_analysis_runs_one(filled: PlantedFolder) -> None:
    filled.run("analyze", "--full", "--workers", 2)


@pytest.mark.slow
def test_no_server_and_no_writer_of_its_images_runs_one(filled: PlantedFolder) -> None:
    log = filled.folder / "serve.log"
    command = [*filled.program, "serve", "--listen", "127.0.0.1:0"]
    with running(command, ready=lambda: log.exists() and "open http" in log.read_text(), log=log):
        pass
    filled.assert_none_executed()
    with chdir(filled.folder):
        images = JobImages(Lake.open("lake"), filled.folder / "cache")
        images.write()
        images.join()
    assert (images.problem, images.progress) == ("", 1.0)
    filled.assert_none_executed()


@pytest.mark.parametrize("before", [None, "", "1"])
def test_the_environment_is_as_before_when_workers_have_ended(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SAFE_PATH, raising=False)
    if before is not None:
        monkeypatch.setenv(SAFE_PATH, before)
    around = dict(os.environ)
    with spawned_workers(PLANTED_TEST="2"):
        assert dict(os.environ) == {**around, SAFE_PATH: "1", "PLANTED_TEST": "2"}
    assert dict(os.environ) == around


def test_only_one_module_says_how_python_is_started() -> None:
    starting = re.compile(r"sys\.executable|get_context\(|set_start_method|forkserver")
    found = {
        path for path in SOURCES.rglob("*.py") if starting.search(path.read_text(encoding="utf-8"))
    }
    assert found == {SOURCES / "catalog" / "processes.py"}
