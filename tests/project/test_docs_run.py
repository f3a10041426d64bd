"""Every ```console block of the documentation is run: its commands in order, page by page, in an empty folder.

Under a command stands what it prints, or nothing when that does not matter. `...` stands for any text in a line,
and alone on a line for any lines. A command goes on in lines that begin with `> `. `cd` holds for the rest of the
page. The demo's folder, `tachograph-demo`, is there unless the page makes it, and so is `samples`, a copy of the folder
in docs/. A ```python block in docs/ is run where it stands, with what the commands before it left. Commands in
`IN_PROCESS` run in this process, to save a second each; all else runs in a shell, and so does all of `IN_SHELL`.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from in_process import run_here

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PAGES = sorted(
    path
    for path in (*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"), REPOSITORY / "benchmarks/README.md")
    if "```console" in path.read_text(encoding="utf-8")
)
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DEMO = "tachograph-demo"
SAMPLES = "samples"
WIDTH = "110"  # of the terminal that the pages show
IN_SHELL = frozenset({"getting-started.md"})  # the page people follow word for word
# without those that end, watch or answer processes and terminals
IN_PROCESS = frozenset(
    {
        *("accuracy", "analyze", "classify", "colocate", "compact", "counters", "devices", "export", "figures"),
        *("ingest", "init", "interference", "job", "jobs", "kernels", "lake", "rules", "simulate", "status"),
        *("tune", "waste"),
    }
)


@dataclass(frozen=True)
class Step:
    command: str
    printed: str
    is_python: bool = False


def steps(page: str, *, python: bool = False) -> list[Step]:
    """The commands of a page's console blocks, in order, with what stands under each; its programs where wanted."""
    found = []
    for kind, block in BLOCK.findall(page):
        if kind == "console":
            found += [_step(part) for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
        elif python:
            found.append(Step(block, "", is_python=True))
    return found


def _step(part: str) -> Step:
    """One command: lines behind it that begin with `> ` are more of it; what follows is what it prints."""
    command, *lines = part.split("\n")
    while lines and (lines[0].startswith("> ") or lines[0] == ">"):
        more = lines.pop(0)[2:]
        command = command[:-1] + more if command.endswith("\\") else f"{command}\n{more}"
    return Step(command.strip(), "\n".join(lines).strip("\n"))


def matches(printed: str, expected: str) -> bool:
    """Whether `printed` is what the page shows."""
    pattern = "".join(
        "(?:.*\n)*?" if line.strip() == "..." else re.escape(line.rstrip()).replace(r"\.\.\.", ".*") + "\n"
        for line in expected.splitlines()
    )
    text = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    return re.fullmatch(pattern, text) is not None


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TACHOGRAPH_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    return {**kept, "PATH": path, "NO_COLOR": "1", "COLUMNS": WIDTH}


def copied(source: str, target: str) -> str:
    """A copy of a file; Parquet is never changed in place, so the same file under another name will do."""
    if source.endswith(".parquet"):
        os.link(source, target)
        return target
    return str(shutil.copy2(source, target))


def words_of(command: str) -> tuple[list[str], str | None] | None:
    """Words of a command for this process, and the file it writes; None where it is another, or takes a shell."""
    if re.search(r"[$`*?~#\n]", command):
        return None
    reader = shlex.shlex(command, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    words = list(reader)
    target = words.pop() if words[-2:-1] == [">"] else None
    words = words[:-1] if target else words
    if words[0] != "tachograph" or words[1] not in IN_PROCESS or any(set(word) <= set("();<>|&") for word in words):
        return None
    return words[1:], target


def run_step(step: Step, folder: Path, *, in_shell: bool = False) -> subprocess.CompletedProcess[str]:
    """What became of one step."""
    found = None if step.is_python or in_shell else words_of(step.command)
    if found:
        words, target = found
        done = run_here(words, folder, environment())
        if target:
            (folder / target).write_text(done.stdout, encoding="utf-8")
            done.stdout = ""
        return done
    command = [sys.executable, "-W", "error", "-c"] if step.is_python else ["bash", "-c"]
    return subprocess.run(
        [*command, step.command], cwd=folder, env=environment(), capture_output=True, text=True, timeout=300
    )


def run_all(
    todo: list[Step], folder: Path, *, in_shell: bool = False
) -> Iterator[tuple[Step, subprocess.CompletedProcess[str]]]:
    """Each step with what became of it; `cd` changes the folder of those behind it."""
    for step in todo:
        if step.command.startswith("cd "):
            folder = folder / step.command.removeprefix("cd ")
            assert folder.is_dir(), step.command
        else:
            yield step, run_step(step, folder, in_shell=in_shell)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_the_commands_of_the_page_do_what_it_shows(page: Path, demo: Path, tmp_path: Path) -> None:
    todo = steps(page.read_text(encoding="utf-8"), python=page.parent.name == "docs")
    if not any(step.command.startswith("tachograph demo") for step in todo):
        shutil.copytree(demo, tmp_path / DEMO, copy_function=copied)
    shutil.copytree(REPOSITORY / "docs" / SAMPLES, tmp_path / SAMPLES)
    for step, done in run_all(todo, tmp_path, in_shell=page.name in IN_SHELL):
        assert done.returncode == 0, f"{page.name}: {step.command}\n{done.stderr}"
        if step.printed:
            assert matches(done.stdout, step.printed), f"{page.name}: {step.command} prints\n{done.stdout}"


def test_a_page_is_read_as_people_read_it() -> None:
    page = "text\n```console\n$ tachograph a \\\n> --b\nline 1\n\nline 2\n$ ls\n```\n```python\n$ tachograph no\n```\n"
    assert steps(page) == [Step("tachograph a --b", "line 1\n\nline 2"), Step("ls", "")]


def test_a_file_is_written_as_in_a_shell() -> None:
    page = "```console\n$ cat > a.csv <<END\n> a,b\n> 1,2\n> END\n$ cat a.csv\na,b\n1,2\n```\n"
    assert steps(page) == [Step("cat > a.csv <<END\na,b\n1,2\nEND", ""), Step("cat a.csv", "a,b\n1,2")]


def test_cd_holds_for_what_follows(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    todo = steps("```console\n$ cd here\n$ pwd\n```\n```python\nprint(7)\n```\n", python=True)
    printed = [done.stdout.strip() for _, done in run_all(todo, tmp_path)]
    assert printed == [str(tmp_path / "here"), "7"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("tachograph jobs --where 'gpu_hours>20'", (["jobs", "--where", "gpu_hours>20"], None)),
        ("tachograph jobs --csv > jobs.csv", (["jobs", "--csv"], "jobs.csv")),
        ("tachograph jobs > jobs.txt 2>&1", None),
        ("tachograph jobs | head -1", None),
        ("tachograph jobs --columns $COLUMNS", None),
        ("TACHOGRAPH_LAKE=lake tachograph jobs", None),
        ("tachograph watch --once", None),
        ("ls jobs", None),
    ],
)
def test_what_takes_a_shell_has_one(command: str, words: tuple[list[str], str | None] | None) -> None:
    assert words_of(command) == words


def test_a_command_in_this_process_prints_what_it_prints_in_a_shell(demo: Path) -> None:
    step = Step("tachograph jobs --user user003 --limit 2", "")
    here, shell = run_step(step, demo), run_step(step, demo, in_shell=True)
    assert (here.returncode, here.stdout, here.stderr) == (0, shell.stdout, shell.stderr)
    assert here.stdout.count("\n") > 2


def test_what_a_command_writes_into_a_file_is_there_as_from_a_shell(demo: Path, tmp_path: Path) -> None:
    command = f"tachograph jobs --lake {demo}/lake --user user003 --csv >"
    for name, in_shell in (("here.csv", False), ("shell.csv", True)):
        done = run_step(Step(f"{command} {name}", ""), tmp_path, in_shell=in_shell)
        assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "here.csv").read_bytes() == (tmp_path / "shell.csv").read_bytes() != b""


def test_every_question_of_the_first_page_has_an_answer_in_the_demo(demo: Path) -> None:
    rows = re.findall(
        r"^\| (.*) \| `(tachograph jobs .*)` \|$", (REPOSITORY / "README.md").read_text("utf-8"), re.MULTILINE
    )
    assert len(rows) > 5
    for question, command in rows:
        if "-o " not in command:
            printed = run_step(Step(command, ""), demo).stdout
            assert printed.startswith("No job matches; the newest of ") is ("none in the demo" in question), command


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("a 1\nb 2\n", "a 1\nb 2", True),
        ("a 1   \nb 2\n", "a 1\nb 2", True),
        ("a 17.3 s\n", "a ... s", True),
        ("a\nb\nc\nd\n", "a\n...\nd", True),
        ("a\nd\n", "a\n...\nd", True),
        ("{\n  b\n  c\n}\n", "{\n  ...\n}", True),
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
