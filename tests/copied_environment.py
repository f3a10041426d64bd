"""Change variables of this process while other threads read them.

setenv(3) moves the whole environment, and a thread in native code that reads a variable meanwhile
reads freed memory (glibc before 2.41): the process ends with SIGSEGV. pytest sets a variable before
and after each test, and servers of earlier tests go on to query Polars in other threads.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

_ENVIRON = ctypes.c_void_p.in_dll(ctypes.CDLL(None), "environ")
_WORD = ctypes.sizeof(ctypes.c_void_p)
_OF_READERS: list[object] = []  # what a thread may still read: all there ever was


def keep_old_copies() -> None:
    """From now on, `os.environ` changes a copy of the environment and puts it in its place."""
    patch = pytest.MonkeyPatch()
    patch.setattr(os, "putenv", lambda name, value: _replace(name, name + b"=" + value))
    patch.setattr(os, "unsetenv", lambda name: _replace(name, None))


def _replace(name: bytes, entry: bytes | None) -> None:
    kept = [place for place, text in _entries() if not text.startswith(name + b"=")]
    if entry is not None:
        made = ctypes.create_string_buffer(entry)
        _OF_READERS.append(made)
        kept.append(ctypes.addressof(made))
    copy = (ctypes.c_void_p * (len(kept) + 1))(*kept, None)
    _OF_READERS.append(copy)
    _ENVIRON.value = ctypes.addressof(copy)


def _entries() -> Iterator[tuple[int, bytes]]:
    """Address and text, NAME=VALUE, of each variable that native code sees."""
    place = _ENVIRON.value
    while place and (entry := ctypes.c_void_p.from_address(place).value):
        yield entry, ctypes.string_at(entry)
        place += _WORD


@contextmanager
def variables(wanted: Mapping[str, str]) -> Iterator[None]:
    """Have these variables and no others inside the block; what is alike is not touched."""
    before = dict(os.environ)
    _change(wanted)
    try:
        yield
    finally:
        _change(before)


def _change(wanted: Mapping[str, str]) -> None:
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
