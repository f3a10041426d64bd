"""A working directory full of what a stranger left there: no command opens any of it, nor does a
dependency.

Everything that a command needs is named and lies elsewhere, so each path in the working directory
is one too many.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from every_command import SmallSite
from test_planted_modules import ENVIRONMENT, names

from servers.process import program

AUDITED = Path(__file__).with_name("audited.py")
# configuration that some program or library looks for where it is started
PLANTED = {
    ".numba_config.yaml": "cache_dir: {folder}/cache\nCACHE_DIR: {folder}/cache\n",
    "matplotlibrc": "backend: module://evil\nlines.linewidth: 77\n",
    "ldaprc": "URI ldap://evil\n",
    ".ldaprc": "URI ldap://evil\n",
    "dask.yaml": "distributed: {{}}\n",
    "distributed.yaml": "distributed: {{}}\n",
    "jobqueue.yaml": "jobqueue: {{}}\n",
    ".env": "TACHOGRAPH_LAKE=evil\n",
    ".netrc": "machine localhost login a password b\n",
    ".pgpass": "*:*:*:*:evil\n",
    ".pg_service.conf": "[evil]\n",
    "pip.conf": "[global]\nindex-url = http://evil\n",
    "setup.cfg": "[evil]\n",
    "tox.ini": "[evil]\n",
    "pyproject.toml": "[evil]\n",
    "pytest.ini": "[pytest]\n",
    "conftest.py": "raise SystemExit('evil')\n",
    "pyvenv.cfg": "home = /evil\n",
    "openssl.cnf": "evil\n",
    "sitecustomize.py": "raise SystemExit('evil')\n",
    "polars.toml": "evil\n",
    "textual.tcss": "evil\n",
    "logging.conf": "evil\n",
    "uvicorn.json": "evil\n",
    "gunicorn.conf.py": "raise SystemExit('evil')\n",
    ".aws/config": "[default]\n",
    ".aws/credentials": "[default]\n",
    ".config/matplotlib/matplotlibrc": "lines.linewidth: 77\n",
    ".config/dask/dask.yaml": "{{}}\n",
    "tachograph-lake/gpu_samples/_delta_log/00000000000000000000.json": "evil\n",
    "tachograph.toml": "evil = 1\n",
}


def planted(folder: Path) -> Path:
    """Return the folder, with modules, configuration and a cache of compiled functions in it."""
    for name in names():
        (folder / f"{name}.py").write_text("raise SystemExit('evil')\n", encoding="utf-8")
    for name, text in PLANTED.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.format(folder=folder), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> SmallSite:
    return SmallSite.filled(tmp_path_factory.mktemp("site"))


@pytest.mark.slow
def test_no_command_opens_a_file_there(site: SmallSite, tmp_path: Path) -> None:
    # Which calls the others.
    calls = {name: words for name, words in site.calls().items() if name != "demo"}
    folder = planted(tmp_path)
    (site.folder / "calls.json").write_text(json.dumps(calls), encoding="utf-8")
    command = [
        sys.executable,
        str(AUDITED),
        str(site.folder / "calls.json"),
        str(site.folder / "opened.json"),
    ]
    environment = {**ENVIRONMENT, **site.environment}
    subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    audited = json.loads((site.folder / "opened.json").read_text(encoding="utf-8"))
    assert audited["codes"].keys() == calls.keys()
    assert audited["opened"] == {}


CALL = re.compile(r'^\d+ +(\w+)\((?:AT_FDCWD, )?"([^"]*)"', re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["analyze", "study", "collect"])
def test_no_library_looks_for_a_file_there(site: SmallSite, tmp_path: Path, command: str) -> None:
    """Of libraries in C and Rust, and of children: each call of the system that names a path, of
    a few commands.
    """
    folder, trace = planted(tmp_path), site.folder / f"{command}.strace"
    words = [
        program("strace", package="strace"),
        "-f",
        "-s",
        "4096",
        "-e",
        "trace=%file",
        "-o",
        str(trace),
    ]
    words += [sys.executable, "-P", "-m", "tachograph", *site.calls()[command]]
    environment = {**ENVIRONMENT, **site.environment}
    subprocess.run(
        words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True
    )
    named = CALL.findall(trace.read_text(encoding="utf-8", errors="replace"))
    assert len(named) > 100
    inside = {
        (call, path)
        for call, path in named
        if path and (path[0] != "/" or path.startswith(f"{folder}/"))
    }
    assert sorted(inside) == []
