"""Completion in the shells themselves, and the manual page by groff; both hold every command and
option.
"""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from in_process import run_here
from servers.process import program
from tachograph.cli.completion import SHELLS
from tachograph.cli.options import parsers
from tachograph.cli.tree import command_texts, program_parser

# what is typed: what it may become
TYPED = {
    "tachograph jo": {"job", "jobs"},
    "tachograph jobs --fin": {"--finding"},
    "tachograph jobs --finding one_": {"one_gpu_of_many"},
    "tachograph jobs --state TIM": {"TIMEOUT"},
    "tachograph lab rules r": {"run"},
    "tachograph ingest ldm": {"ldms"},
    "tachograph ingest ldms --show": {"--show-rejected"},
    "tachograph export csv --ta": {"--table"},
    "tachograph completion z": {"zsh"},
    "tachograph help jo": {"job", "jobs"},
    "tachograph job --html rep": {"report.html"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the completion of each shell, and a file to complete."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "report.html").touch()
    for shell in SHELLS:
        done = run_here(["completion", shell], folder, {})
        assert (done.returncode, done.stderr) == (0, "")
        (folder / ("_tachograph" if shell == "zsh" else f"tachograph.{shell}")).write_text(
            done.stdout, "utf-8"
        )
    return folder


def in_shell(shell: str, script: str, folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [program(shell, package=shell), "-c", script, shell, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("typed", "offered"), TYPED.items())
def test_bash(typed: str, offered: set[str], folder: Path) -> None:
    script = (
        'source tachograph.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))\n'
        "complete -p tachograph | grep -q _shtab_tachograph || exit 1\n"
        '_shtab_tachograph "$1" "${@: -1}" "${@: -2:1}"; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    assert set(in_shell("bash", script, folder, *typed.split()).split()) == offered


@pytest.mark.slow
@pytest.mark.parametrize(("typed", "offered"), TYPED.items())
def test_fish(typed: str, offered: set[str], folder: Path) -> None:
    lines = in_shell("fish", f"source tachograph.fish; complete -C '{typed}'", folder).splitlines()
    assert {line.split("\t")[0] for line in lines} == offered


@pytest.mark.slow
def test_zsh(folder: Path) -> None:
    """What is typed in a terminal is completed where one name fits."""
    zsh = program("zsh", package="zsh")  # before the fork: nobody sees a child skip
    shell, terminal = pty.fork()
    if shell == 0:  # the child
        os.chdir(folder)
        environment = {"PATH": os.environ["PATH"], "TERM": "dumb", "PS1": "> ", "HOME": str(folder)}
        os.execve(zsh, ["zsh", "-f", "-i"], environment)
    try:
        os.write(
            terminal, b"fpath=($PWD $fpath); autoload -Uz compinit; compinit -D; print rea''dy\n"
        )
        seen = read_until(terminal, "ready")
        os.write(terminal, b"tachograph jobs --fin\t")
        assert "--finding" in read_until(terminal, "--finding")
        os.write(terminal, b"one_\t")
        seen = read_until(terminal, "one_gpu_of_many")
        assert "one_gpu_of_many" in seen, seen
    finally:
        os.kill(shell, 9)
        os.waitpid(shell, 0)
        os.close(terminal)


def read_until(terminal: int, wanted: str, *, within_s: float = 120.0) -> str:
    end, seen = time.monotonic() + within_s, ""
    while wanted not in seen and time.monotonic() < end:
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 65536).decode(errors="replace")
    return seen


def test_every_option_is_completed(folder: Path) -> None:
    text = (folder / "tachograph.bash").read_text("utf-8")
    options = {
        name for parser in parsers(program_parser()) for name in parser._option_string_actions
    }
    assert {"--limit", "--show-rejected", "--table"} <= options
    assert [
        name for name in options if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)
    ] == []


def test_an_unknown_shell_is_a_mistake(tmp_path: Path) -> None:
    done = run_here(["completion", "bsh"], tmp_path, {})
    assert done.returncode == 2
    assert done.stderr.endswith("did you mean bash?\n")


def test_without_the_library_the_error_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    done = run_here(["completion", "bash"], tmp_path, {})
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "tachograph: completion needs shtab, which is not installed; pip install shtab\n"
    )


def manual(page: str) -> str:
    """The page as text; groff warns of nothing."""
    command = [program("groff", package="groff-base"), "-man", "-ww", "-Tascii", "-P-cbou"]
    done = subprocess.run(command, input=page, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
def test_the_manual_page_has_every_command_and_option(tmp_path: Path) -> None:
    done = run_here(["help", "--man"], tmp_path, {})
    assert (done.returncode, done.stderr) == (0, "")
    shown = re.sub(r"\s+", " ", manual(done.stdout))
    assert "NAME tachograph - the flight recorder for GPU jobs SYNOPSIS" in shown
    todo = list(command_texts())
    assert len(todo) > 20
    while todo:
        command = todo.pop()
        todo += command.parts
        assert f"{command.prog} {command.sentence}" in shown
        for option in (*command.arguments, *command.options):
            assert f"{option.written} {' '.join(option.meaning.split())}".strip() in shown
    for heading in (
        "OPTIONS OF EVERY COMMAND --lake DIR",
        "EXIT STATUS 0 done",
        "ENVIRONMENT",
        "FILES",
    ):
        assert heading in shown


@pytest.mark.slow
def test_the_manual_page_of_one_command(tmp_path: Path) -> None:
    shown = manual(run_here(["help", "--man", "jobs"], tmp_path, {}).stdout)
    assert "--finding CODE" in shown
    assert "tachograph waste" not in shown
    assert run_here(["help", "--man", "jbos"], tmp_path, {}).returncode == 2


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_man_names_the_file() -> None:
    done = subprocess.run(
        ["make", "-n", "man"], cwd=Path(__file__).parents[2], capture_output=True, text=True
    )
    assert "tachograph help --man > tachograph.1" in done.stdout
