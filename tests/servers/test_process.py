"""Programs are started and stopped; those that are missing say so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from servers.process import free_port, listens, program, running


def test_a_program_runs_for_the_time_of_the_block(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    with running(command, ready=lambda: listens(port), log=tmp_path / "log") as process:
        assert process.poll() is None
    assert process.poll() is not None
    assert not listens(port)


def test_a_program_that_ends_too_early_tells_what_it_said(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such thing')"]
    with (
        pytest.raises(RuntimeError, match=r"ended with 1:\n.*no such thing"),
        running(command, ready=lambda: False, log=tmp_path / "log"),
    ):
        pass


def test_a_missing_program_is_skipped_or_fails_where_it_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACHOGRAPH_REQUIRE_SERVERS", "0")
    with pytest.raises(pytest.skip.Exception, match="apt-get install some-package"):
        program("no-such-program", package="some-package")
    monkeypatch.setenv("TACHOGRAPH_REQUIRE_SERVERS", "1")
    with pytest.raises(pytest.fail.Exception, match="servers are required"):
        program("no-such-program", package="some-package")
