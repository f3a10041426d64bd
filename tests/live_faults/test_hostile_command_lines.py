"""What people write by mistake, and terminals that go away: one line that says what to do, all
left as it was.
"""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tachograph.cli import main


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["watch", "--once", "--recording", "empty"],
            4,
            "no recording and no lake in this folder; name a folder",
        ),
        (
            ["watch", "--once", "--recording", "demo"],
            4,
            "no recording and no lake in this folder; name demo/lake",
        ),
        (
            ["watch", "--once", "--url", "garbage"],
            2,
            "--url garbage: invalid url; write it as http",
        ),
        (
            ["record", "--simulate", "2", "--duration", "nan"],
            2,
            "--duration: 'nan' is not a number from 0.001",
        ),
        (
            ["record", "--simulate", "2", "--duration", "-1"],
            2,
            "--duration: '-1' is not a number from 0.001",
        ),
        (
            ["record", "--interval", "x", "--", "true"],
            2,
            "--interval: 'x' is not a number from 0.1 to 3,600",
        ),
    ],
)
def test_mistakes_are_reported(
    arguments: list[str], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "empty").mkdir()
    (tmp_path / "demo" / "lake").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == code
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_streams_that_are_closed_are_no_defect(tmp_path: Path) -> None:
    script = f"{sys.executable} -m tachograph watch --once --simulate 2"
    done = subprocess.run(
        ["sh", "-c", f"{script} >&-"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "simulated: 2 GPUs; all shown",
        "  real utilisation = 35 % SM + 35 % TENS + 20 % DRAM + 10 % GR activity",
    ]
    done = subprocess.run(
        ["sh", "-c", f"{script} --gpus 9 >&- 2>&- <&-"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (6, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("halts", [(), (signal.SIGSTOP, signal.SIGCONT)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_terminal_as_it_was(
    number: signal.Signals, halts: tuple[signal.Signals, ...]
) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        words = [sys.executable, "-m", "tachograph", "watch", "--simulate", "2"]
        os.execve(sys.executable, words, {**os.environ, "TERM": "xterm-256color"})
    before, written = termios.tcgetattr(terminal), b""
    until, sent, status = time.monotonic() + 60, False, None
    while status is None and time.monotonic() < until:
        if select.select([terminal], [], [], 0.1)[0]:
            with contextlib.suppress(OSError):  # no process has it open any more
                written += os.read(terminal, 65536)
        if b"sim001:1" in written and not sent:
            sent = True
            for one in (*halts, number):
                os.kill(pid, one)
                time.sleep(0.3)
        ended, code = os.waitpid(pid, os.WNOHANG)
        status = os.waitstatus_to_exitcode(code) if ended else None
    with contextlib.suppress(OSError):
        while select.select([terminal], [], [], 0.1)[0]:
            written += os.read(terminal, 65536)
    assert status == 128 + number
    assert termios.tcgetattr(terminal) == before
    assert written.rfind(b"\x1b[?1049l") > written.rfind(b"\x1b[?1049h")
    assert written.rfind(b"\x1b[?25h") > written.rfind(b"\x1b[?25l")
    os.close(terminal)
