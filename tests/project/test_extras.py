"""Extras of pyproject.toml: a command without the libraries of one names it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import installs
import pytest
from packaging.requirements import Requirement

PROJECT = tomllib.loads((installs.REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]


def modules_of(extra: str) -> Iterator[str]:
    """Yield the modules of the distributions that an extra requires beside other extras."""
    requirements = [Requirement(line) for line in EXTRAS[extra]]
    names = {installs.canonical(requirement.name) for requirement in requirements} - {"tachograph"}
    for module, distributions in metadata.packages_distributions().items():
        if names.intersection(map(installs.canonical, distributions)):
            yield module
    if "cupti-python" in names:  # not among the packages for development
        yield "cupti"


def without(modules: Iterator[str], folder: Path) -> dict[str, str]:
    """Return variables of a process, and of its children, in which modules are not installed."""
    for module in modules:
        text = f"raise ModuleNotFoundError(\"No module named '{module}'\", name={module!r})\n"
        (folder / f"{module}.py").write_text(text, encoding="utf-8")
    return {**os.environ, "PYTHONPATH": str(folder)}


def test_every_extra_is_installed_once_and_missing_once() -> None:
    assert set(installs.NEEDS) == set(EXTRAS) - {"all"}
    assert set(installs.BRINGS) == {"core", *EXTRAS}
    assert set(installs.PROOFS) == set(EXTRAS) - {"all", "serve", "jwt"}  # tried by requests
    assert {name for names in installs.BRINGS.values() for name in names} <= set(EXTRAS)


@pytest.mark.parametrize("extra", installs.NEEDS)
def test_a_command_names_the_extra_of_its_missing_library(
    extra: str, demo: Path, tmp_path: Path
) -> None:
    libraries, work = tmp_path / "libraries", tmp_path / "work"
    libraries.mkdir()
    work.mkdir()
    installs.write_inputs(work)
    environment = without(modules_of(extra), libraries)
    environment["TACHOGRAPH_LAKE"] = str(demo / "lake")
    program = Path(sys.executable).with_name("tachograph")
    done = subprocess.run(
        installs.words(program, installs.NEEDS[extra]),
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode != 0
    assert re.findall(r"tachograph\[([^]]*)\]", done.stderr) == [extra]
