"""The console blocks of the documentation: their commands run, what they print compared, and
written anew.

Under a command stands what it prints, or nothing when that does not matter. `...` stands for any
text in a line, and alone on a line for any lines. A command goes on in lines that begin with `> `.
`cd` holds for the rest of the page. The demo's folder, `tachograph-demo`, is there unless the page
makes it, and so is `docs/samples`, a copy of that of the project. A ```python block in docs/ is
run where it stands, with what the commands before it left. Commands in `IN_PROCESS` run in this
process; all else runs in a shell.

    python tests/doc_pages.py [PAGE ...]

writes the blocks anew: what `...` stands for stays hidden. `make docs` does it for all pages.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from in_process import run_here

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = sorted(
    path
    for path in (
        *REPOSITORY.glob("*.md"),
        *(REPOSITORY / "docs").rglob("*.md"),
        REPOSITORY / "benchmarks/README.md",
    )
    if "```console" in path.read_text(encoding="utf-8")
)
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DEMO = "tachograph-demo"
SAMPLES = "docs/samples"
WIDTH = "110"  # of the terminal that the pages show
# without those that end, watch or answer processes and terminals
IN_PROCESS = frozenset(
    {
        *("act", "advise", "analyze", "export", "ingest", "init", "job", "jobs"),
        *("lab", "lake", "share", "status", "study", "waste"),
    }
)
_WORD = re.compile(r'"\w+":|\w[\w.,:/%+-]*')
_ROW = re.compile(r"\S {2,}\S")
_ANY = "..."
_CHANGED = 0.7  # cost of a line dropped or added, where 1 is that of another line in its place


@dataclass(frozen=True)
class Step:
    """A command of a page, what it prints there; or a program."""

    command: str
    printed: str
    is_python: bool = False


def steps(page: str, *, python: bool = False) -> list[Step]:
    """Return the commands of a page's console blocks, in order; its programs where wanted."""
    found = []
    for kind, block in BLOCK.findall(page):
        if kind == "console":
            found += [_step(part) for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
        elif python:
            found.append(Step(block, "", is_python=True))
    return found


def _step(part: str) -> Step:
    command, *lines = part.split("\n")
    while lines and (lines[0].startswith("> ") or lines[0] == ">"):
        more = lines.pop(0)[2:]
        command = command[:-1] + more if command.endswith("\\") else f"{command}\n{more}"
    return Step(command.strip(), "\n".join(lines).strip("\n"))


def matches(printed: str, expected: str) -> bool:
    """Return whether `printed` has the structure and the numbers that the page shows.

    Compared are, in order: empty lines, rows of tables, keys of JSON, and every word with a digit
    or an underscore. Other words may differ: `tests/project/test_printed_words.py` has them, in one
    place.
    """
    parts = [list(_facts(part)) for part in _parts(expected)]
    return _in_order(list(_facts(printed)), parts, str.__eq__)


def shows(printed: str, expected: str) -> bool:
    """Return whether `printed` is what the page shows, word by word."""
    parts: list[list[str]] = [[]]
    for line in expected.splitlines():
        if line.strip() == _ANY:
            parts.append([])
        else:
            parts[-1].append(_line_pattern(line))
    lines = [line.rstrip() for line in printed.splitlines()]
    return _in_order(lines, parts, lambda line, pattern: bool(re.fullmatch(pattern, line)))


def _in_order(
    found: Sequence[str], parts: Sequence[Sequence[str]], same: Callable[[str, str], bool]
) -> bool:
    """Whether what is found are the parts in their order, with anything in between.

    Each part is taken where it comes first: a regular expression of the whole would try all other
    places too, and take hours to find that something differs.
    """

    def is_at(place: int, part: Sequence[str]) -> bool:
        here = found[place : place + len(part)]
        return len(here) == len(part) and all(map(same, here, part))

    first, *others = parts
    place = len(first)
    if not others:
        return len(found) == place and is_at(0, first)
    *middle, last = others
    begins = is_at(0, first)
    for part in middle:
        place = next((at for at in range(place, len(found) + 1) if is_at(at, part)), len(found) + 1)
        place += len(part)
    return begins and len(found) - len(last) >= place and is_at(len(found) - len(last), last)


def _line_pattern(line: str) -> str:
    return re.escape(line.rstrip()).replace(r"\.\.\.", ".*")


def _parts(expected: str) -> list[str]:
    """Return the text between the `...`; a word that one cuts goes with it, and a row that one
    cuts is no row.
    """
    cut = re.sub(r"\S*\.\.\.\S*", _ANY, expected)
    lines = [re.sub(r" {2,}", " ", line) if _ANY in line else line for line in cut.splitlines()]
    return "\n".join(lines).split(_ANY)


def _facts(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if _ROW.search(line.strip()):
            yield "|"
        for word in _WORD.findall(line):
            if word.startswith('"') or re.search(r"[\d_]", word):
                yield word.rstrip(".,:/")


def environment() -> dict[str, str]:
    """Return the environment that commands of a page have."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TACHOGRAPH_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    return {**kept, "PATH": path, "NO_COLOR": "1", "COLUMNS": WIDTH}


def prepare(page: Path, demo: Path, folder: Path) -> list[Step]:
    """Return the steps of a page; put into a folder what they find there."""
    todo = steps(page.read_text(encoding="utf-8"), python=page.parent.name == "docs")
    if not any(step.command.startswith("tachograph demo") for step in todo):
        shutil.copytree(demo, folder / DEMO, copy_function=_copied)
    shutil.copytree(REPOSITORY / SAMPLES, folder / SAMPLES)
    return todo


def _copied(source: str, target: str) -> str:
    """Copy a file; Parquet is never changed in place, so the same file under another name will
    do.
    """
    if source.endswith(".parquet"):
        os.link(source, target)
        return target
    return str(shutil.copy2(source, target))


def words_of(command: str) -> tuple[list[str], str | None] | None:
    """Return words of a command for this process, and the file it writes; None where it takes a
    shell.
    """
    if re.search(r"[$`*?~#\n]", command):
        return None
    reader = shlex.shlex(command, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    words = list(reader)
    target = words.pop() if words[-2:-1] == [">"] else None
    words = words[:-1] if target else words
    if (
        words[0] != "tachograph"
        or words[1] not in IN_PROCESS
        or any(set(word) <= set("();<>|&") for word in words)
    ):
        return None
    return words[1:], target


def run_step(
    step: Step, folder: Path, *, in_shell: bool = False
) -> subprocess.CompletedProcess[str]:
    """Return what became of one step."""
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
        [*command, step.command],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )


def run_all(
    todo: list[Step], folder: Path
) -> Iterator[tuple[Step, subprocess.CompletedProcess[str]]]:
    """Yield each step with what became of it; `cd` changes the folder of those behind it."""
    for step in todo:
        if step.command.startswith("cd "):
            folder = folder / step.command.removeprefix("cd ")
            assert folder.is_dir(), step.command
        else:
            yield step, run_step(step, folder)


def refreshed(expected: str, printed: str) -> str:
    """Return what a page shall show of `printed`: the lines that it showed, in today's words;
    `...` as it was.
    """
    if shows(printed, expected):
        return expected
    return "\n".join(
        _aligned(expected.splitlines(), [line.rstrip() for line in printed.splitlines()])
    )


def _aligned(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """Return lines of `new` where `old` shows lines, and `...` where it hides some, with the
    fewest changes.
    """
    costs = _costs(old, new)
    lines, i, j = [], 0, 0
    while way := costs[i][j][1]:
        if way == "end":
            lines.append(old[i])
        elif way == "add":
            lines.append(new[j])
        elif way == "match":
            lines.append(old[i] if re.fullmatch(_line_pattern(old[i]), new[j]) else new[j])
        i += way in ("end", "drop", "match")
        j += way in ("hide", "add", "match")
    return lines


def _costs(old: Sequence[str], new: Sequence[str]) -> list[list[tuple[float, str]]]:
    """Return for each place in both the cost of all that is behind it, and the first step of the
    cheapest way.
    """
    costs = [[(0.0, "")] * (len(new) + 1) for _ in range(len(old) + 1)]
    for i in range(len(old), -1, -1):
        hides = i < len(old) and old[i].strip() == _ANY
        for j in range(len(new), -1, -1):
            ways = []
            if i < len(old):
                ways.append(
                    (costs[i + 1][j][0] + (0 if hides else _CHANGED), "end" if hides else "drop")
                )
            if j < len(new):
                ways.append(
                    (costs[i][j + 1][0] + (0 if hides else _CHANGED), "hide" if hides else "add")
                )
            if i < len(old) and j < len(new) and not hides:
                ways.append((costs[i + 1][j + 1][0] + _distance(old[i], new[j]), "match"))
            costs[i][j] = min(ways, default=(0.0, ""))
    return costs


def _distance(old: str, new: str) -> float:
    """Return 0 for the same line, up to 1.4 for another."""
    if re.fullmatch(_line_pattern(old), new):
        return 0.0
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    if not old.strip() or not new.strip() or matcher.quick_ratio() < 0.4:
        return 1.4
    return 0.05 + 1.2 * (1 - matcher.ratio())


def written_anew(page: str, outputs: Sequence[str | None]) -> str:
    """Return a page with what its commands print today, given in order; None for one that was
    not run (`cd`).
    """
    rest = iter(outputs)

    def block(found: re.Match[str]) -> str:
        if found[1] != "console":
            return found[0]
        head, *parts = re.split(r"^\$ ", found[2], flags=re.MULTILINE)
        return f"```console\n{head}" + "".join(map(_part_anew, parts, rest)) + "```"

    return BLOCK.sub(block, page)


def _part_anew(part: str, printed: str | None) -> str:
    step = _step(part)
    if not step.printed or printed is None:
        return f"$ {part}"
    begin = part.rindex(step.printed)
    return f"$ {part[:begin]}{refreshed(step.printed, printed)}{part[begin + len(step.printed) :]}"


def main(arguments: Sequence[str]) -> None:
    """Write pages anew."""
    parser = argparse.ArgumentParser(
        description="Writes what commands print into pages, in today's words."
    )
    parser.add_argument("pages", type=Path, nargs="*", help="pages (default: all)")
    pages = [path.resolve() for path in parser.parse_args(arguments).pages] or PAGES
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "tachograph", "demo", "--quiet"],
            cwd=folder, env=environment(), check=True, stdout=subprocess.PIPE,
        )  # fmt: skip
        for page in pages:
            _write_anew(page, Path(folder) / DEMO)


def _write_anew(page: Path, demo: Path) -> None:
    text = page.read_text(encoding="utf-8")
    outputs: list[str | None] = []
    with tempfile.TemporaryDirectory() as folder:
        todo = prepare(page, demo, Path(folder))
        ran = {id(step): done for step, done in run_all(todo, Path(folder))}
    for step in todo:
        done = ran.get(id(step))  # None: `cd`
        if done is not None and done.returncode != 0:
            sys.stderr.write(f"{page.name} stays as it is: {step.command}\n{done.stderr}")
            return
        if not step.is_python:
            outputs.append(None if done is None else done.stdout)
    anew = written_anew(text, outputs)
    if anew != text:
        page.write_text(anew, encoding="utf-8")
        sys.stderr.write(f"{page.name} is written anew\n")


if __name__ == "__main__":
    main(sys.argv[1:])
