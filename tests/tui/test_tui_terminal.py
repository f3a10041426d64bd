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


WATCH = f"{sys.executable} -m tachograph watch --simulate 8; echo ended $?"


class Terminal:
    """A window of a tmux of its own."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def call(self, *words: str) -> str:
        command = ["tmux", "-S", str(self._socket), "-f", os.devnull, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout

    def open(self, *command: str) -> None:
        self.call("new-session", "-d", "-s", "w", "-x", "80", "-y", "24", *command)

    def press(self, *keys: str) -> None:
        self.call("send-keys", "-t", "w", *keys)

    def styled(self) -> str:
        return self.call("capture-pane", "-p", "-e", "-t", "w")

    def until(self, text: str, *, timeout_s: float = 120.0) -> str:
        """The screen once it shows a text."""
        end = time.monotonic() + timeout_s
        shown = ""
        while time.monotonic() < end:
            shown = self.call("capture-pane", "-p", "-t", "w")
            if text in shown:
                return shown
            time.sleep(0.1)
        pytest.fail(f"{text!r} is not on the screen:\n{shown}")

    def quit(self) -> None:
        self.press("q")
        self.until("ended 0")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """Skipped without the program, unless servers are required."""
    if shutil.which("tmux") is None:
        if os.environ.get("TACHOGRAPH_REQUIRE_SERVERS") == "1":
            pytest.fail("tmux is required and not installed")
        pytest.skip("tmux is not installed")
    window = Terminal(tmp_path / "tmux")
    yield window
    window.call("kill-server")


@pytest.mark.parametrize("colours", ["", "NO_COLOR=1 "])
def test_watch_runs_in_a_real_terminal(terminal: Terminal, tmp_path: Path, colours: str) -> None:
    terminal.open("sh", "-c", f"cd {tmp_path}; {colours}{WATCH}; sleep 600")
    terminal.until("8 GPUs  ")
    shown = terminal.until("sim001:7")
    assert sum(line.startswith("sim001:") for line in shown.splitlines()) == 8
    styled = terminal.styled()
    if not colours:
        assert "\x1b[3" in styled
        terminal.quit()
        return
    assert not any(f"\x1b[{colour}m" in styled for colour in range(31, 37))
    terminal.press("/", "user=ana", "Enter")
    terminal.until("4 of 8 shown: user=ana")
    terminal.press("?")
    terminal.until("Everywhere")
    terminal.call("resize-window", "-t", "w", "-x", "120", "-y", "40")
    terminal.until("Bottleneck and health")
    terminal.quit()


def test_ctrl_z_leads_to_the_shell_and_fg_back(terminal: Terminal, tmp_path: Path) -> None:
    """All of the command line stops, the shell around the program, too: or the stop would not be
    visible.
    """
    terminal.open("bash --norc --noprofile -i")
    (tmp_path / "run").write_text(f"{WATCH}\n")
    terminal.press(f"PS1='prompt> '; cd {tmp_path}; clear; sh run", "Enter")
    terminal.until("sim001:7")
    terminal.press("C-z")
    assert "sim001:7" not in terminal.until("Stopped")
    terminal.press("echo he''re", "Enter")
    terminal.until("here")
    terminal.press("fg", "Enter")
    terminal.until("sim001:7")
    terminal.quit()


def test_ctrl_z_stops_nothing_where_no_shell_would_go_on(terminal: Terminal) -> None:
    terminal.open("sh", "-c", f"{WATCH}; sleep 600")
    terminal.until("sim001:7")
    terminal.press("C-z")
    terminal.until("not suspended: no shell to continue it")
    terminal.quit()
