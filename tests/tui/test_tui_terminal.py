"""A real terminal: tmux draws what `tachograph watch` writes, and types into it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Path]:
    """Address of a tmux of its own; skipped without the program, unless servers are required."""
    if shutil.which("tmux") is None:
        if os.environ.get("TACHOGRAPH_REQUIRE_SERVERS") == "1":
            pytest.fail("tmux is required and not installed")
        pytest.skip("tmux is not installed")
    socket = tmp_path / "tmux"
    yield socket
    subprocess.run(["tmux", "-S", str(socket), "kill-server"], capture_output=True)


def call(socket: Path, *words: str) -> str:
    command = ["tmux", "-S", str(socket), "-f", os.devnull, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout


def until(socket: Path, wanted: str, *, timeout_s: float = 120.0) -> str:
    """The screen once it shows something."""
    end = time.monotonic() + timeout_s
    seen = ""
    while time.monotonic() < end:
        seen = call(socket, "capture-pane", "-p", "-t", "w")
        if wanted in seen:
            return seen
        time.sleep(0.1)
    pytest.fail(f"{wanted!r} is not on the screen:\n{seen}")


@pytest.mark.parametrize("colours", ["", "NO_COLOR=1 "])
def test_watch_runs_in_a_real_terminal(tmux: Path, tmp_path: Path, colours: str) -> None:
    program = (
        f"cd {tmp_path}; {colours}{sys.executable} -m tachograph watch --simulate 8; echo "
        "ended $?; sleep 600"
    )
    call(tmux, "new-session", "-d", "-s", "w", "-x", "80", "-y", "24", "sh", "-c", program)
    until(tmux, "8 GPUs  ")
    seen = until(tmux, "sim001:7")
    assert sum(line.startswith("sim001:") for line in seen.splitlines()) == 8
    assert "8 GPUs" in seen
    if colours != "NO_COLOR=1 ":
        assert "\x1b[3" in call(tmux, "capture-pane", "-p", "-e", "-t", "w")
        call(tmux, "send-keys", "-t", "w", "q")
        until(tmux, "ended 0")
        return
    assert not any(
        f"\x1b[{colour}m" in call(tmux, "capture-pane", "-p", "-e", "-t", "w")
        for colour in range(31, 37)
    )
    call(tmux, "send-keys", "-t", "w", "/", "user=ana", "Enter")
    until(tmux, "4 of 8 shown: user=ana")
    call(tmux, "send-keys", "-t", "w", "?")
    until(tmux, "Everywhere")
    call(tmux, "resize-window", "-t", "w", "-x", "120", "-y", "40")
    until(tmux, "Bottleneck and health")
    call(tmux, "send-keys", "-t", "w", "q")
    until(tmux, "ended 0")


def test_ctrl_z_leads_to_the_shell_and_fg_back(tmux: Path, tmp_path: Path) -> None:
    """All of the command line stops, the shell around the program, too: or the stop would not be
    visible.
    """
    call(tmux, "new-session", "-d", "-s", "w", "-x", "80", "-y", "24", "bash --norc --noprofile -i")
    (tmp_path / "run").write_text(
        f"{sys.executable} -m tachograph watch --simulate 8; echo ended $?\n"
    )
    call(tmux, "send-keys", "-t", "w", f"PS1='prompt> '; cd {tmp_path}; clear; sh run", "Enter")
    until(tmux, "sim001:7")
    call(tmux, "send-keys", "-t", "w", "C-z")
    assert "sim001:7" not in until(tmux, "Stopped")
    call(tmux, "send-keys", "-t", "w", "echo he''re", "Enter")
    until(tmux, "here")
    call(tmux, "send-keys", "-t", "w", "fg", "Enter")
    until(tmux, "sim001:7")
    call(tmux, "send-keys", "-t", "w", "q")
    until(tmux, "ended 0")


def test_ctrl_z_stops_nothing_where_no_shell_would_go_on(tmux: Path) -> None:
    program = f"{sys.executable} -m tachograph watch --simulate 8; echo ended $?; sleep 600"
    call(tmux, "new-session", "-d", "-s", "w", "-x", "80", "-y", "24", "sh", "-c", program)
    until(tmux, "sim001:7")
    call(tmux, "send-keys", "-t", "w", "C-z")
    until(tmux, "not suspended: no shell to continue it")
    call(tmux, "send-keys", "-t", "w", "q")
    until(tmux, "ended 0")
