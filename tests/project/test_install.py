"""The wheel, installed with what it requires alone, and with each extra alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from flit_core import buildapi
from packaging.requirements import Requirement

from conftest import MODULES_OF_EXTRAS
from tachograph.catalog.version import __version__

REPOSITORY = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    before = Path.cwd()
    os.chdir(REPOSITORY)
    try:
        return folder / str(buildapi.build_wheel(str(folder)))
    finally:
        os.chdir(before)


def required(extra: str) -> set[str]:
    """Names of the distributions that tachograph needs with one extra, and those that these
    need.
    """
    names: set[str] = set()
    waiting = [("tachograph", extra)]
    visited = set()
    while waiting:
        entry = waiting.pop()
        if entry in visited:
            continue
        visited.add(entry)
        name, wanted_extra = entry
        names.add(name)
        for line in metadata.requires(name) or ():
            requirement = Requirement(line)
            if requirement.marker and not requirement.marker.evaluate({"extra": wanted_extra}):
                continue
            waiting += [(requirement.name, of) for of in (*requirement.extras, "")]
    return names - {"tachograph"}


def top_level_files(name: str) -> Iterator[Path]:
    """What a distribution has in site-packages: its packages, modules and metadata."""
    folder = Path(str(metadata.distribution(name).locate_file("")))
    for first in {path.parts[0] for path in metadata.files(name) or ()}:
        if first not in {"..", "__pycache__", "bin"}:
            yield folder / first


def installed(wheel: Path, folder: Path, extra: str) -> Path:
    """The program of a fresh environment. Libraries are links to those of ours: no registry is
    asked.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    for name in required(extra):
        for path in top_level_files(name):
            link = packages / path.name
            if not link.exists():
                link.symlink_to(path)
    python = str(folder / "bin" / "python")
    own_pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    words = ("install", "--quiet", "--no-deps", "--no-index", "--no-compile", str(wheel))
    subprocess.run([*own_pip, *words], check=True)
    return folder / "bin" / "tachograph"


def run(program: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "TZ": "UTC", "COLUMNS": "100"}
    return subprocess.run(
        [program, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(wheel, tmp_path_factory.mktemp("core") / "venv", "")


@pytest.fixture(scope="module")
def home(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the demo, which was made without the libraries of any extra."""
    folder = tmp_path_factory.mktemp("home")
    shutil.copytree(demo, folder / "tachograph-demo")
    return folder


@pytest.mark.parametrize(
    "command",
    ["jobs --limit 3", "job 1000360", "waste", "seff 1000360", "status", "export csv --to tables"],
)
def test_the_core_alone_reports(core: Path, home: Path, command: str) -> None:
    done = run(core, home, *command.split(), "--lake", "tachograph-demo/lake")
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout


def test_the_core_alone_draws_the_page_of_a_job(core: Path, home: Path) -> None:
    command = "job 1000360 --html job.html --lake tachograph-demo/lake"
    assert run(core, home, *command.split()).returncode == 0
    assert 'class="curve' in (home / "job.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "module", "extra"),
    [
        (("serve",), "uvicorn", "serve"),
        (("study",), "matplotlib", "lab"),
        (("watch",), "pynvml", "watch"),
    ],
)
def test_the_core_alone_names_the_extra_of_a_command(
    core: Path, tmp_path: Path, words: tuple[str, ...], module: str, extra: str
) -> None:
    done = run(core, tmp_path, *words)
    named = f"tachograph: `tachograph {words[0]}` needs {module}, which is not installed; "
    assert done.stderr == f"{named}pip install 'tachograph[{extra}]'\n"
    assert done.returncode == 2


def test_extras_name_no_module_that_the_core_requires() -> None:
    project = (REPOSITORY / "pyproject.toml").read_text()
    listed = re.search(r"\ndependencies = \[(.*?)\n\]", project, re.DOTALL)
    assert listed is not None
    required_names = set(re.findall(r'"([\w-]+)', listed[1]))
    assert not {"nvidia-ml-py", *MODULES_OF_EXTRAS} & required_names


@pytest.mark.parametrize(
    ("extra", "command"),
    [
        ("lab", "study --figure spatial_imbalance --format svg --lake tachograph-demo/lake"),
        ("serve", "serve --help"),
        ("watch", "watch --once --simulate 4"),
    ],
)
def test_an_extra_alone_runs_its_command(
    wheel: Path, home: Path, tmp_path: Path, extra: str, command: str
) -> None:
    done = run(installed(wheel, tmp_path / "venv", extra), home, *command.split())
    assert done.returncode == 0, done.stderr


def test_the_core_has_the_version_of_the_wheel(core: Path, home: Path) -> None:
    assert run(core, home, "--version").stdout == f"tachograph {__version__}\n"
