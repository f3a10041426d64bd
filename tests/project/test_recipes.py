"""The recipes of CONTRIBUTING.md, followed in a copy of the package."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent.parent
CONTRIBUTING = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")


def recipe(title: str) -> str:
    """The section called `title`."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", CONTRIBUTING, re.MULTILINE | re.DOTALL)
    assert found, f"CONTRIBUTING.md has no section {title!r}"
    return found[1]


def code(section: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package to change."""
    shutil.copytree(
        REPOSITORY / "src" / "tachograph", tmp_path / "tachograph", ignore=shutil.ignore_patterns("__pycache__")
    )
    return tmp_path / "tachograph"


def add_to_end_of_tuple(file: Path, name: str, row: str) -> None:
    text = file.read_text(encoding="utf-8")
    begin = text.index(f"\n{name}")
    end = text.index("\n)", begin) + 1
    file.write_text(text[:end] + row + text[end:], encoding="utf-8")


def python(package: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_row_adds_a_counter(package: Path) -> None:
    (row,) = code(recipe("A counter"))
    add_to_end_of_tuple(package / "counters.py", "COUNTERS", row)
    listed = json.loads(python(package, "-m", "tachograph", "counters", "--json"))
    assert [counter["dcgm_id"] for counter in listed if counter["name"] == "hbm_reserved_mib"] == [253]
    columns = python(
        package,
        "-c",
        "from tachograph.schema import GPU_SAMPLES; from tachograph.summarize.schema import JOB_SUMMARIES\n"
        "print(*GPU_SAMPLES.schema, *JOB_SUMMARIES.schema)",
    ).split()
    assert {"hbm_reserved_mib", "hbm_reserved_mib_mean", "hbm_reserved_mib_max"} <= set(columns)
    known = python(
        package,
        "-c",
        "from tachograph.counters import outside_names; print(outside_names()['DCGM_FI_DEV_FB_RESERVED'])",
    )
    assert known.strip() == "('hbm_reserved_mib', 'MiB')"


def test_one_file_and_one_line_add_a_command(package: Path) -> None:
    file, line = code(recipe("A command"))
    (package / "cli" / "hello.py").write_text(file, encoding="utf-8")
    add_to_end_of_tuple(package / "cli" / "registry.py", "COMMANDS", line)
    assert python(package, "-m", "tachograph", "hello", "you") == "hello you\n"
    assert re.search(r"^  hello +greet somebody$", python(package, "-m", "tachograph", "--help"), re.MULTILINE)
    assert "Greet somebody." in python(package, "-m", "tachograph", "hello", "--help")


@pytest.mark.parametrize(
    "title", ["A counter", "A device", "A source", "A finding", "A figure", "A reporter", "A command"]
)
def test_a_recipe_is_short_and_its_files_exist(title: str) -> None:
    section = recipe(title)
    steps = re.findall(r"^\d+\. ", section, re.MULTILINE)
    assert len(steps) <= 10
    named = re.findall(r"`(src/tachograph/[\w/.]+)`", section)
    assert named
    assert [path for path in named if not (REPOSITORY / path).exists()] == []
