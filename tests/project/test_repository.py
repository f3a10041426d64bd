"""The repository as a whole: pages that follow from the code, layers, what must not be in a file."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SOURCES = REPOSITORY / "src" / "tachograph"
# put together here so that this file does not hold what it forbids
REGISTRIES = ("py" + "pi", "python" + "hosted", "ana" + "conda.org", "--" + "index-url", "--" + "find-links")
HOST_PATHS = re.compile(r"(?<![\w.~-])/(?:" + "|".join(("wo" + "rk", "fa" + "rm", "ro" + "ot", "ho" + "me")) + r")/\w+")


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, check=True, capture_output=True, text=True)
    return [REPOSITORY / name for name in listed.stdout.split("\0") if name and (REPOSITORY / name).is_file()]


def texts() -> list[tuple[str, str]]:
    """(name, content) of the tracked text files."""
    found = []
    for path in tracked():
        content = path.read_bytes()
        if b"\0" not in content[:4096]:
            found.append((str(path.relative_to(REPOSITORY)), content.decode("utf-8", errors="replace")))
    return found


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)


def test_no_file_names_a_package_registry() -> None:
    named = [(name, word) for name, content in texts() for word in REGISTRIES if word in content.lower()]
    assert named == []


def test_no_file_names_a_path_of_some_host() -> None:
    named = [(name, found[0]) for name, content in texts() if (found := HOST_PATHS.search(content))]
    assert named == []


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("cd /" + "work/main", True),
        ("open('/" + "home/jane/x')", True),
        ("src/" + "work/main", False),
        ("~/" + "home/jane", False),
        ("http://site.example/" + "home/jane", False),
    ],
)
def test_a_path_of_some_host_is_recognized(line: str, named: bool) -> None:
    assert bool(HOST_PATHS.search(line)) is named


def test_every_module_has_a_docstring() -> None:
    unreported = [
        str(path.relative_to(REPOSITORY))
        for path in sorted(SOURCES.rglob("*.py"))
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert unreported == []


def test_every_class_has_a_name_of_its_own() -> None:
    """A reader finds a class by its name. Messages of widgets are named by their widget: `Prompt.Changed`."""
    places: dict[str, list[str]] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(SOURCES)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_no_module_is_too_long_to_read() -> None:
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES.rglob("*.py")}
    assert {name: length for name, length in lengths.items() if length > 600} == {}


def test_only_two_modules_write_to_the_standard_streams() -> None:
    writers = {
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        if re.search(r"\bsys\.(stdout|stderr)\b|(?<![\w.])print\(", path.read_text(encoding="utf-8"))
    }
    assert writers <= {"cli/output.py", "cli/narrate.py"}


TARGETS = [
    "setup",
    "demo",
    "test",
    "test-all",
    "lint",
    "bench",
    "month",
    "chaos",
    "readers",
    "fuzz",
    "screens",
    "docs",
    "site",
    "man",
    "dist",
    "lock",
    "help",
    "clean",
]


@pytest.mark.parametrize("target", TARGETS)
def test_make_help_lists_the_target(target: str) -> None:
    done = run("make", "--no-print-directory")
    assert re.search(rf"^  make {target} +\w", done.stdout, re.MULTILINE), done.stdout


def test_every_link_between_pages_leads_somewhere() -> None:
    pages = [path for path in tracked() if path.suffix == ".md"]
    broken = [
        (page.name, link)
        for page in pages
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
        if not (page.parent / link).exists()
    ]
    assert broken == []


def test_both_requirement_files_pin_the_same_versions() -> None:
    run_only = _pins("run.txt")
    assert run_only
    assert run_only <= _pins("dev.txt")


def _pins(name: str) -> set[str]:
    """The pinned `name==version` of a file; every one must carry a hash."""
    text = (REPOSITORY / "requirements" / name).read_text(encoding="utf-8")
    entries = text.replace("\\\n", " ").splitlines()
    assert all("--hash=sha256:" in entry for entry in entries if entry.strip()), name
    return {re.split(r" ;| --hash", entry, maxsplit=1)[0].strip() for entry in entries if entry.strip()}
