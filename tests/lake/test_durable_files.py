"""Files that are whole or not at all, with the permissions of their folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tachograph.catalog.durable import (
    create_file,
    make_folder,
    mode_within,
    replace_file,
    sync_file,
)


def bits(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o700, 0o750, 0o755, 0o2775, 0o1777])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / "folder"
    path.mkdir()
    path.chmod(request.param)
    return path


def test_no_file_is_writable_for_everyone_and_none_is_executable(folder: Path) -> None:
    replace_file(folder / "file", b"new")
    assert bits(folder / "file") == mode_within(folder) == bits(folder) & 0o664


def test_a_folder_below_is_as_open_as_the_one_above(folder: Path) -> None:
    make_folder(folder / "a" / "b")
    assert bits(folder / "a" / "b") & 0o777 == bits(folder) & 0o777
    assert bits(folder / "a" / "b") & stat.S_ISGID == bits(folder) & stat.S_ISGID
    make_folder(folder / "a" / "b")


def test_a_file_in_the_way_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "file")


def test_a_replacement_that_fails_leaves_the_older_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_file(tmp_path / "file", b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(tmp_path / "file", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"old")]


def test_a_name_that_is_taken_is_not_overwritten(tmp_path: Path) -> None:
    assert create_file(tmp_path / "file", b"one", staged=tmp_path / "staged")
    assert not create_file(tmp_path / "file", b"two", staged=tmp_path / "staged")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"one")]


def test_a_file_that_is_gone_cannot_be_synced(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sync_file(tmp_path / "file")
