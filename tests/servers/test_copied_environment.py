"""Variables change while other threads read them, and native code and programs see each change."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from copied_environment import variables

NAME = "TACHOGRAPH_SET_BY_A_TEST"
TESTS = Path(__file__).resolve().parent.parent
READERS = """
import os, sys, tempfile, threading, time
import polars as pl
import copied_environment

copied_environment.keep_old_copies()
file = tempfile.mkdtemp() + "/numbers.parquet"
pl.DataFrame({"number": list(range(5000))}).write_parquet(file)
ended = threading.Event()

def read():
    while not ended.is_set():
        pl.scan_parquet(file).group_by(pl.col("number") % 7).agg(pl.len()).collect()

threads = [threading.Thread(target=read) for _ in range(2)]
for thread in threads:
    thread.start()
until = time.monotonic() + 2
while time.monotonic() < until:
    with copied_environment.variables({f"NAME_{number}": "" for number in range(60)}):
        pass
ended.set()
"""


def native(name: str) -> bytes | None:
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    found: bytes | None = getenv(name.encode())
    return found


def test_native_code_sees_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    path = native("PATH")
    for value in ("first", "ünd", ""):
        monkeypatch.setenv(NAME, value)
        assert native(NAME) == value.encode()
    monkeypatch.delenv(NAME)
    assert native(NAME) is None
    assert native("PATH") == path == os.environb[b"PATH"]


def test_a_program_inherits_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "ünd")
    words = [sys.executable, "-c", f"import os; print(ascii(os.environ.get({NAME!r})))"]
    assert subprocess.check_output(words, text=True) == f"{'ünd'!a}\n"


def test_the_clock_has_the_zone_of_the_test() -> None:
    with variables({**os.environ, "TZ": "Asia/Kathmandu"}):
        time.tzset()
        assert time.localtime(0).tm_gmtoff == 19_800
    time.tzset()


def test_inside_the_block_there_is_nothing_else() -> None:
    before = dict(os.environ)
    with variables({"PATH": "/bin", NAME: "1"}):
        assert dict(os.environ) == {"PATH": "/bin", NAME: "1"}
        assert native("PATH") == b"/bin"
        assert native("HOME") is None
    assert dict(os.environ) == before


@pytest.mark.slow
def test_threads_read_on(tmp_path: Path) -> None:
    words = [sys.executable, "-c", READERS]
    around = {**os.environ, "PYTHONPATH": str(TESTS), "TMPDIR": str(tmp_path)}
    assert subprocess.run(words, env=around, timeout=120).returncode == 0
