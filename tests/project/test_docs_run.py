"""Every ```console block of the documentation is run: its commands in order, page by page, in an empty folder.

Under a command stands what it prints, or nothing when that does not matter. `...` stands for any text in a line,
and alone on a line for any lines. Only commands that begin with `$ tachograph` are run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tachograph.cli.registry import COMMANDS

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PAGES = sorted(
    path
    for path in (*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"), REPOSITORY / "benchmarks/README.md")
    if "```console" in path.read_text(encoding="utf-8")
)
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DEMO = "tachograph-demo"


@dataclass(frozen=True)
class Step:
    command: str
    printed: str


def steps(page: str) -> list[Step]:
    """The commands of a page's console blocks, in order, with what stands under each."""
    found = []
    for block in BLOCK.findall(page):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            while command.endswith("\\"):
                more, _, printed = printed.partition("\n")
                command = command[:-1] + more.removeprefix("> ")
            found.append(Step(command.strip(), printed.strip("\n")))
    return found


def matches(printed: str, expected: str) -> bool:
    """Whether `printed` is what the page shows."""
    lines = [re.escape(line.rstrip()).replace(r"\.\.\.", ".*") + "\n" for line in expected.splitlines()]
    pattern = "".join("(?:.*\n)*?" if line == ".*\n" else line for line in lines)
    text = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    return re.fullmatch(pattern, text) is not None


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TACHOGRAPH_")}
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}", "NO_COLOR": "1"}


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """Folder of the demo, made once; None while there is no such command."""
    if "demo" not in {command.name for command in COMMANDS}:
        return None
    folder = tmp_path_factory.mktemp("demo")
    subprocess.run([sys.executable, "-m", "tachograph", "demo", "--quiet"], cwd=folder, env=environment(), check=True)
    return folder / DEMO


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_the_commands_of_the_page_do_what_it_shows(page: Path, demo: Path | None, tmp_path: Path) -> None:
    todo = [step for step in steps(page.read_text(encoding="utf-8")) if step.command.startswith("tachograph ")]
    if demo and not any(step.command.startswith("tachograph demo") for step in todo):
        shutil.copytree(demo, tmp_path / DEMO)
    for step in todo:
        done = subprocess.run(
            ["bash", "-c", step.command], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{page.name}: {step.command}\n{done.stderr}"
        if step.printed:
            assert matches(done.stdout, step.printed), f"{page.name}: {step.command} prints\n{done.stdout}"


def test_a_page_is_read_as_people_read_it() -> None:
    page = "text\n```console\n$ tachograph a \\\n> --b\nline 1\n\nline 2\n$ ls\n```\n```python\n$ tachograph no\n```\n"
    assert steps(page) == [Step("tachograph a --b", "line 1\n\nline 2"), Step("ls", "")]


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("a 1\nb 2\n", "a 1\nb 2", True),
        ("a 1   \nb 2\n", "a 1\nb 2", True),
        ("a 17.3 s\n", "a ... s", True),
        ("a\nb\nc\nd\n", "a\n...\nd", True),
        ("a\nd\n", "a\n...\nd", True),
        ("a 1\nb 2\n", "a 1", False),
        ("a 1\n", "a 1\nb 2", False),
        ("a 2\n", "a 1", False),
        ("a+1\n", "a.1", False),
    ],
)
def test_what_is_shown_must_be_what_is_printed(printed: str, expected: str, same: bool) -> None:
    assert matches(printed, expected) is same


def test_the_page_people_see_first_is_run() -> None:
    assert REPOSITORY / "README.md" in PAGES
