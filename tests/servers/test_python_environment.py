"""Variables that tests set: unseen by native code, inherited by the processes that tests start."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from multiprocessing import get_context

import pytest

NAME = "TACHOGRAPH_SET_BY_A_TEST"


@pytest.fixture(autouse=True)
def _set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "ünd")


def test_native_code_does_not_see_it() -> None:
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    assert getenv(b"PATH") is not None
    assert getenv(NAME.encode()) is None


def test_the_clock_has_the_zone_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Kathmandu")
        time.tzset()
        assert time.localtime(0).tm_gmtoff == 19_800
    time.tzset()


def test_a_program_inherits_it() -> None:
    words = [sys.executable, "-c", f"import os; print(ascii(os.environ.get({NAME!r})))"]
    expected = f"{'ünd'!a}\n"
    assert subprocess.check_output(words, text=True) == expected
    assert subprocess.check_output(words, text=True, close_fds=False) == expected
    without = {name: value for name, value in os.environ.items() if name != NAME}
    assert subprocess.check_output(words, text=True, env=without) == "None\n"


@pytest.mark.slow
def test_a_worker_of_multiprocessing_inherits_it() -> None:
    with get_context("spawn").Pool(1) as pool:
        assert pool.apply(os.getenv, (NAME,)) == "ünd"
