"""Programs are started and stopped; missing ones are reported."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from servers.process import free_port, listens, program, running

pytestmark = pytest.mark.slow  # starts servers
TESTS = Path(__file__).resolve().parents[1]


def test_a_program_runs_for_the_time_of_the_block(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    with running(command, ready=lambda: listens(port), log=tmp_path / "log") as process:
        assert process.poll() is None
    assert process.poll() is not None
    assert not listens(port)


@pytest.mark.skipif(not shutil.which("setpriv"), reason="no setpriv (util-linux) to bind it with")
def test_a_program_ends_with_who_started_it_even_if_that_was_killed(tmp_path: Path) -> None:
    port = free_port()
    starter = subprocess.Popen(
        [sys.executable, "-c", _STARTER, str(port), str(tmp_path / "log")], cwd=TESTS
    )
    wait_until(lambda: listens(port))
    starter.kill()
    starter.wait()
    wait_until(lambda: not listens(port))


_STARTER = """
import sys, time
from pathlib import Path
from servers.process import listens, running
command = [sys.executable, "-m", "http.server", sys.argv[1], "--bind", "127.0.0.1"]
with running(command, ready=lambda: listens(int(sys.argv[1])), log=Path(sys.argv[2])):
    time.sleep(600)
"""


def wait_until(met: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not met():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_program_that_ends_too_early_is_reported_with_its_output(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such thing')"]
    with (
        pytest.raises(RuntimeError, match=r"ended with 1:\n.*no such thing"),
        running(command, ready=lambda: False, log=tmp_path / "log"),
    ):
        pass


def test_a_missing_program_is_skipped_or_fails_where_it_is_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TACHOGRAPH_REQUIRE_SERVERS", "0")
    with pytest.raises(pytest.skip.Exception, match="apt-get install some-package"):
        program("no-such-program", package="some-package")
    monkeypatch.setenv("TACHOGRAPH_REQUIRE_SERVERS", "1")
    with pytest.raises(pytest.fail.Exception, match="servers are required"):
        program("no-such-program", package="some-package")
