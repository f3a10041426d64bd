"""Libraries of a wheel are loaded from where it is, also where it lies beside the installed
packages.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from tachograph.annexes.watch.shared_libraries import load_of_package


def test_libraries_of_a_package_are_loaded_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, about = tmp_path / "nvidia" / "cu13" / "lib", tmp_path / "made_cupti-1.dist-info"
    folder.mkdir(parents=True)
    about.mkdir()
    names = ("libcupti.so.13", "libcheckpoint.so", "libnvperf_host.so")
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: made-cupti\nVersion: 1\n", encoding="utf-8"
    )
    (about / "RECORD").write_text(
        "".join(f"nvidia/cu13/lib/{name},,\n" for name in names), encoding="utf-8"
    )
    for name in names:
        (folder / name).touch()
    loaded: list[str] = []
    monkeypatch.setattr(ctypes, "CDLL", loaded.append)
    monkeypatch.syspath_prepend(str(tmp_path))
    load_of_package("made-cupti", "libnvperf_host.so", "libcupti.so")
    assert loaded == [str(folder / "libnvperf_host.so"), str(folder / "libcupti.so.13")]


def test_a_library_that_does_not_load_is_left_to_whoever_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(path: str) -> None:
        raise OSError(path)

    monkeypatch.setattr(ctypes, "CDLL", broken)
    load_of_package("pytest", "__init__")
    load_of_package("no-such-package", "libcupti.so")
