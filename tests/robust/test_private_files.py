"""Which folder of compiled functions is used, and that libraries take no settings from the
working directory.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bad_input import tachograph

from tachograph.catalog.private_files import (
    READERS,
    compiled_folder,
    private_folder,
    why_not_private,
)

SOURCES = Path(__file__).resolve().parents[2] / "src" / "tachograph"
STRANGER = 12345


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home in a folder that may hold what is private."""
    for folder in (tmp_path, *tmp_path.parents):
        if why_not_private(folder) and folder != Path("/tmp"):
            pytest.skip(f"{folder} may be written by others")
    (tmp_path / "home").mkdir(mode=0o700)
    return tmp_path / "home"


def test_it_is_made_for_this_user_alone(home: Path) -> None:
    folder = private_folder(home / ".cache" / "tachograph")
    assert folder == home / ".cache" / "tachograph"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (home / ".cache").stat().st_mode & 0o777 == 0o700
    assert private_folder(folder) == folder


def open_to_others(folder: Path) -> None:
    folder.chmod(0o777)


def open_to_the_group(folder: Path) -> None:
    os.chown(folder, -1, STRANGER)
    folder.chmod(0o770)


def given_away(folder: Path) -> None:
    os.chown(folder, STRANGER, -1)


@pytest.mark.parametrize("which", ["home", "home/.cache", "home/.cache/tachograph"])
@pytest.mark.parametrize("change", [open_to_others, open_to_the_group, given_away])
def test_one_that_others_could_fill_is_refused(
    home: Path, which: str, change: Callable[[Path], None]
) -> None:
    if change is not open_to_others and os.geteuid():
        pytest.skip("only root gives files away")
    folder = home / ".cache" / "tachograph"
    folder.mkdir(parents=True)
    change(home.parent / which)
    assert str(home.parent / which) in why_not_private(folder)
    assert private_folder(folder) is None


def test_one_behind_a_link_is_judged_by_what_it_leads_to(home: Path) -> None:
    (home / "open").mkdir()
    (home / "open").chmod(0o777)
    (home / "open" / "below").mkdir()
    (home / "link").symlink_to(home / "open" / "below")
    assert private_folder(home / "link" / "cache") is None
    assert not (home / "open" / "below" / "cache").exists()


def test_nothing_is_made_in_a_home_of_somebody_else(home: Path) -> None:
    if os.geteuid():
        pytest.skip("only root gives files away")
    os.chown(home, STRANGER, -1)
    assert private_folder(home / ".cache" / "tachograph") is None
    assert list(home.iterdir()) == []


def test_a_sticky_folder_above_is_good_and_it_itself_is_not(home: Path) -> None:
    (home / "tmp").mkdir()
    (home / "tmp").chmod(0o1777)
    assert private_folder(home / "tmp" / "mine") is not None
    assert private_folder(home / "tmp") is None


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"NUMBA_CACHE_DIR": "/n", "CACHE_DIRECTORY": "/c"}, "/n"),
        ({"CACHE_DIRECTORY": "/c:/d", "XDG_CACHE_HOME": "/x"}, "/c/compiled"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/tachograph/compiled"),
        ({"XDG_CACHE_HOME": "x", "HOME": "/h"}, "/h/.cache/tachograph/compiled"),
        ({"HOME": "/h"}, "/h/.cache/tachograph/compiled"),
        ({"HOME": "h"}, None),
        ({"HOME": ""}, None),
        ({}, None),
    ],
)
def test_where_it_is(environment: dict[str, str], folder: str | None) -> None:
    assert compiled_folder(environment) == (None if folder is None else Path(folder))


def test_a_command_names_one_that_is_refused(home: Path) -> None:
    home.chmod(0o777)
    done = tachograph(
        "lake",
        "devices",
        environment={"HOME": str(home), "XDG_CACHE_HOME": "", "NUMBA_CACHE_DIR": ""},
    )
    assert done.code == 0
    [line] = done.lines
    assert line == (
        f"tachograph: compiled functions are not kept: other users may write into {home}; "
        "remove that permission, or name a private folder in $NUMBA_CACHE_DIR"
    )
    assert list(home.iterdir()) == []


COMPILES = """
import sys
from tachograph.catalog.compiled import compiled
sys.path.insert(0, {folder!r})
import functions
print(compiled(functions.doubled).dispatcher(2))
"""


def kept(home: Path, **environment: str) -> list[str]:
    """Names of what a process keeps that compiles a function in a planted folder."""
    folder = home / "working-directory"
    (folder / "cache").mkdir(parents=True, exist_ok=True)
    for name, text in (
        (".numba_config.yaml", f"cache_dir: {folder}/cache\n"),
        ("matplotlibrc", "lines.color: 77\n"),
    ):
        (folder / name).write_text(text, encoding="utf-8")
    (home / "modules").mkdir(exist_ok=True)
    (home / "modules" / "functions.py").write_text(
        "def doubled(x):\n    return x + x\n", encoding="utf-8"
    )
    script = COMPILES.format(folder=str(home / "modules"))
    bare = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("NUMBA_", "XDG_", "CACHE_"))
    }
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        cwd=folder,
        env=bare | {"HOME": str(home)} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("4\n", "")
    assert list((folder / "cache").iterdir()) == []
    assert not (home / "modules" / "__pycache__").is_dir() or not list(
        (home / "modules").rglob("*.nb?")
    )
    return sorted(path.suffix for path in home.rglob("*.nb?"))


def test_compiled_functions_are_kept_in_the_private_folder(home: Path) -> None:
    assert kept(home) == [".nbc", ".nbi"]
    assert all("/home/.cache/tachograph/compiled/" in str(path) for path in home.rglob("*.nb?"))


@pytest.mark.parametrize(
    "environment", [{"HOME": ""}, {"HOME": "/proc/nowhere"}, {"NUMBA_CACHE_DIR": "/proc/x"}]
)
def test_without_such_a_folder_none_are_kept(home: Path, environment: dict[str, str]) -> None:
    assert kept(home, **environment) == []


def test_a_poisoned_folder_is_not_read(home: Path) -> None:
    assert kept(home) == [".nbc", ".nbi"]
    (home / ".cache" / "tachograph" / "compiled").chmod(0o777)
    for path in home.rglob("*.nbi"):
        path.write_bytes(b"poison")  # read, it is an error of pickle
    kept(home)


@pytest.mark.parametrize("content", ["a: [\n", "cache_dir: /evil\nopt: bad\n"])
def test_settings_of_numba_in_the_working_directory_are_not_read(
    tmp_path: Path, content: str
) -> None:
    (tmp_path / ".numba_config.yaml").write_text(content, encoding="utf-8")
    script = (
        "import tachograph.catalog.compiled, numba; from numba.core import config;"
        "config.reload_config(); assert not config.CACHE_DIR and config.OPT == 3"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("package", ["api.open_lake", "annexes.lab.figures"])
def test_settings_of_matplotlib_in_the_working_directory_are_not_read(
    tmp_path: Path, package: str
) -> None:
    (tmp_path / "matplotlibrc").write_text("lines.linewidth: 77\n", encoding="utf-8")
    script = (
        f"import tachograph.{package}, matplotlib; assert "
        "matplotlib.rcParams['lines.linewidth'] != 77"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_only_packages_that_hide_the_working_directory_import_these_libraries() -> None:
    libraries = "|".join(name.partition(".")[0] for name in READERS)
    importing = re.compile(rf"^ *(?:from|import) (?:{libraries})\b", re.MULTILINE)
    files = {
        path for path in SOURCES.rglob("*.py") if importing.search(path.read_text(encoding="utf-8"))
    }
    hiding = "tachograph.catalog.private_files"
    assert {path.parent.name for path in files} == {"catalog", "figures", "lab"}
    for path in files:
        texts = [
            path.read_text(encoding="utf-8"),
            (path.parent / "__init__.py").read_text(encoding="utf-8"),
        ]
        assert any(hiding in text for text in texts), path


def test_the_group_of_this_user_alone_is_nobody_else(home: Path) -> None:
    user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(os.getegid())
    if (user.pw_name, user.pw_gid) != (group.gr_name, group.gr_gid) or {*group.gr_mem} - {
        user.pw_name
    }:
        pytest.skip("this user has no group of its own")
    (home / ".cache").mkdir(mode=0o775)
    (home / ".cache").chmod(0o775)
    assert private_folder(home / ".cache" / "tachograph") is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_configuration_of_somebody_else_must_be_named(tmp_path: Path) -> None:
    file = tmp_path / "tachograph.toml"
    file.write_text('lake = "its"\n[act]\nslurm_before = ["./evil"]\n')
    assert tachograph("act", "--once", cwd=tmp_path).code != 3
    os.chown(file, STRANGER, -1)
    refused = tachograph("act", "--once", cwd=tmp_path)
    assert refused.code == 3
    assert refused.printed == (
        f"tachograph: tachograph.toml: it belongs to user {STRANGER}, and a configuration "
        "names programs to run; "
        "if you trust it, name it: --config tachograph.toml\n"
    )
    assert tachograph("act", "--once", "--config", "tachograph.toml", cwd=tmp_path).code != 3
