"""The repository as a whole: pages that follow from the code, layers, what must not be in a
file.
"""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from tachograph.catalog.version import __version__

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SOURCES = REPOSITORY / "src" / "tachograph"
# put together here so that this file does not hold what it forbids
REGISTRIES = (
    "py" + "pi",
    "python" + "hosted",
    "ana" + "conda.org",
    "--" + "index-url",
    "--" + "find-links",
)
CONFLICT_MARKERS = re.compile(r"^(?:(?:<{7}|\|{7}|>{7})(?: .*)?|={7})\r?$", re.MULTILINE)
HOST_PATHS = re.compile(
    r"(?<![\w.~-])/(?:" + "|".join(("wo" + "rk", "fa" + "rm", "ro" + "ot", "ho" + "me")) + r")/\w+"
)


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """{name: content} of the tracked text files."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, check=True, capture_output=True, text=True
    )
    contents = {
        name: (REPOSITORY / name).read_bytes()
        for name in listed.stdout.split("\0")
        if name and (REPOSITORY / name).is_file() and not (REPOSITORY / name).is_symlink()
    }
    return {
        name: content.decode("utf-8", errors="replace")
        for name, content in contents.items()
        if b"\0" not in content[:4096]
    }


@pytest.fixture(scope="module")
def modules() -> dict[str, str]:
    """{path in the package: source} of its modules."""
    return {
        str(path.relative_to(SOURCES)): path.read_text(encoding="utf-8")
        for path in sorted(SOURCES.rglob("*.py"))
    }


def test_no_file_names_a_package_registry_or_a_path_of_some_host(texts: dict[str, str]) -> None:
    registries = [
        (name, word)
        for name, content in texts.items()
        for word in REGISTRIES
        if word in content.lower()
    ]
    paths = [
        (name, path) for name, content in texts.items() for path in HOST_PATHS.findall(content)
    ]
    assert registries + paths == []


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


def test_no_file_holds_markers_of_a_conflict(texts: dict[str, str]) -> None:
    markers = {name: CONFLICT_MARKERS.findall(content) for name, content in texts.items()}
    assert {name: lines for name, lines in markers.items() if lines} == {}


@pytest.mark.parametrize(
    ("line", "marks"),
    [
        ("<" * 7 + " HEAD", True),
        ("|" * 7 + " 2d81e2f", True),
        ("=" * 7, True),
        (">" * 7 + " docs", True),
        ("=" * 8, False),  # below a heading of reStructuredText
        ("  " + "=" * 7, False),
        ("=" * 7 + " " + "=" * 7, False),  # a table of recorded output
        (">" * 8, False),
    ],
)
def test_a_marker_of_a_conflict_is_recognized(line: str, marks: bool) -> None:
    assert bool(CONFLICT_MARKERS.search(f"before\n{line}\nafter\n")) is marks


def test_modules_have_docstrings_and_classes_names_of_their_own(modules: dict[str, str]) -> None:
    """A reader finds a class by its name. Messages of widgets are named by their widget:
    `FleetScreen.Changed`.
    """
    undocumented = []
    places: dict[str, list[str]] = {}
    for name, source in modules.items():
        tree = ast.parse(source)
        if not ast.get_docstring(tree):
            undocumented.append(name)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name)
    assert undocumented == []
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_package_and_metadata_have_one_version() -> None:
    metadata = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    assert metadata["project"]["version"] == __version__


# lines of a module; one that is a table with an entry a line may be longer
MOST_LINES = 720
LONG_TABLES = {"catalog/tables.py"}


def test_no_module_is_too_long_to_read(modules: dict[str, str]) -> None:
    lengths = {name: len(source.splitlines()) for name, source in modules.items()}
    assert {name for name, length in lengths.items() if length > MOST_LINES} == LONG_TABLES


def test_only_two_modules_write_to_the_standard_streams(modules: dict[str, str]) -> None:
    writing = re.compile(r"\bsys\.(stdout|stderr)\b|(?<![\w.])print\(")
    writers = {name for name, source in modules.items() if writing.search(source)}
    assert writers == {"cli/output.py", "cli/narrate.py"}


TARGETS = (
    *(
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
    ),
    *("site", "man", "dist", "lock", "help", "clean"),
)


def test_make_help_lists_the_targets() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory"], cwd=REPOSITORY, check=True, capture_output=True, text=True
    )
    assert set(TARGETS) <= set(re.findall(r"^  make ([\w-]+) +\w", done.stdout, re.MULTILINE))


def test_every_link_between_pages_leads_somewhere(texts: dict[str, str]) -> None:
    links = [
        (name, link)
        for name, content in texts.items()
        if name.endswith(".md")
        for link in re.findall(r"\]\(([^)#:]+)\)", content)
    ]
    assert len(links) > 100
    assert [
        (name, link)
        for name, link in links
        if not (REPOSITORY / name).parent.joinpath(link).exists()
    ] == []


def test_both_requirement_files_pin_the_same_versions() -> None:
    run_only = _pins("run.txt")
    assert run_only
    assert run_only <= _pins("dev.txt")


# What is neither permissive nor public domain, of what `tachograph[all]` installs.
COPYLEFT = {"clustershell": "LGPLv2+", "shtab": "MPL-2.0"}
PERMISSIVE = re.compile(
    r"(0?BSD|MIT|Apache|PSF|Python Software Foundation|Zlib|CC0|LLVM-exception)\b", re.IGNORECASE
)


def test_licences_of_what_is_installed_are_permissive_but_for_those_named() -> None:
    page = (REPOSITORY / "docs" / "install.md").read_text(encoding="utf-8").casefold()
    others = {}
    for name in sorted({pin.partition("==")[0] for pin in _pins("run.txt")}):
        if name == "httpx2-jsfetch":  # of browsers alone
            continue
        licences = _licences(name)
        assert licences, name
        if not all(PERMISSIVE.match(licence) for licence in licences):
            others[name] = " ".join(licences)
    assert others == COPYLEFT
    assert all(f"**{name}**" in page for name in others)


def _licences(name: str) -> list[str]:
    """Return the licences that a distribution declares, each part of an expression alone."""
    about = metadata.metadata(name)
    for expression in about.get_all("License-Expression") or []:
        return re.split(r" (?:AND|OR|WITH) ", expression)
    classifiers = about.get_all("Classifier") or []
    declared = [line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License")]
    first_line = "".join(about.get_all("License") or []).strip().partition("\n")[0]
    return [first_line] if first_line in COPYLEFT.values() else declared or [first_line]


def _pins(name: str) -> set[str]:
    """The pinned `name==version` of a file; every one must carry a hash."""
    text = (REPOSITORY / "requirements" / name).read_text(encoding="utf-8")
    entries = text.replace("\\\n", " ").splitlines()
    assert all("--hash=sha256:" in entry for entry in entries if entry.strip()), name
    return {
        re.split(r" ;| --hash", entry, maxsplit=1)[0].strip() for entry in entries if entry.strip()
    }
