"""Programs are run and read: what they print, how they fail, that they end."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tachograph.catalog.errors import InputError
from tachograph.sources.slurm.commands import SiteProgram


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "program"


def made(path: Path, body: str, *, timeout_s: float = 20.0, largest: int = 1 << 20) -> SiteProgram:
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return SiteProgram((str(path),), timeout_s=timeout_s, largest=largest)


def test_what_it_prints_comes_back_whole(script: Path) -> None:
    program = made(
        script, "printf '%s|' \"$@\"; head -c 200000 /dev/zero; printf end; echo said >&2"
    )
    printed = program.output("{reason}", "c\x1f", "-d", reason="a b")
    assert printed == b"a b|c\x1f|-d|" + bytes(200000) + b"end"


def test_what_is_set_reaches_it_also_behind_another_program(script: Path) -> None:
    made(script, 'printf %s "$SLURM_TIME_FORMAT"')
    environment = {"SLURM_TIME_FORMAT": "%s"}
    for words in ((str(script),), ("env", "-i", str(script))):
        assert SiteProgram(words, environment=environment).output() == b"%s"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "echo 'x: error: first' >&2; echo 'x: error: last one' >&2; echo hint >&2; exit 1",
            "code 1: x: error: last one",
        ),
        (
            "echo 'unrecognized option' >&2; echo 'Try --help' >&2; exit 2",
            "code 2: unrecognized option",
        ),
        ("echo half; exit 3", "failed with exit code 3; "),
        ("printf 'error: \\033[31m\\377\\n' >&2; exit 1", "code 1: error: \\x1b[31m�"),
        ("kill -KILL $$", "was ended by signal 9"),
    ],
)
def test_a_failure_is_one_line_that_names_the_reason(script: Path, body: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        made(script, body).output()
    assert said in f"{caught.value}; "
    assert str(caught.value).startswith(str(script))
    assert "\n" not in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_program_that_is_not_there_says_which_key_to_set(script: Path) -> None:
    with pytest.raises(
        InputError, match=r"cannot be run: No such file or directory; name it with command"
    ):
        SiteProgram((str(script),)).output()
    script.write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="Permission denied"):
        SiteProgram((str(script),)).output()


def runs(process: int) -> bool:
    """Whether a process still runs: one that has ended and that nobody has asked for is none."""
    try:
        return (
            Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
            != "Z"
        )
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    "body", ["sleep 300 &", "exec >&-; sleep 300 &", "while :; do echo x; sleep 0.02; done &"]
)
def test_a_slow_program_is_ended_with_all_it_started(
    script: Path, body: str, tmp_path: Path
) -> None:
    program = made(script, f"{body}\necho $! > {tmp_path}/child\nwait", timeout_s=1.5)
    began = time.monotonic()
    with pytest.raises(InputError, match=r"did not end within 1\.5 s"):
        program.output()
    assert time.monotonic() - began < 60
    child = int((tmp_path / "child").read_text(encoding="utf-8"))
    while runs(child) and time.monotonic() - began < 120:  # killed, it may not have gone yet
        time.sleep(0.02)
    assert not runs(child)


def test_an_endless_answer_is_cut_off(script: Path) -> None:
    with pytest.raises(InputError, match=r"printed more than 1 MiB; request less"):
        made(script, "exec cat /dev/zero").output()


def test_what_ssh_leaves_running_in_the_background_is_not_waited_for(script: Path) -> None:
    began = time.monotonic()
    assert made(script, "sleep 100 >/dev/null & echo done").output() == b"done\n"
    assert time.monotonic() - began < 60
