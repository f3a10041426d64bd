"""Where no recording can be written, the command runs; what, where and what to do is reported
behind it.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
from test_recorder_processes import RECORDED, environment, record, record_without_room, start

from in_process import run_here
from tachograph.annexes.watch.record.spooling import folder_errors
from tachograph.catalog.errors import LakeError

pytestmark = pytest.mark.slow


def a_file(run: Path) -> Path:
    run.write_text("mine\n")
    return run


def a_circle(run: Path) -> Path:
    run.symlink_to(run)
    return run / "recordings"


def a_file_of_spools(run: Path) -> Path:
    run.mkdir()
    (run / "recordings").write_text("mine\n")
    return run / "recordings"


OBSTACLES = {
    a_file: "a file, not a folder",
    a_circle: "cycle of symbolic links",
    a_file_of_spools: "a file, not a folder",
}


def test_the_obstacle_is_reported_after_the_command(tmp_path: Path) -> None:
    expected = {}
    for make, what in OBSTACLES.items():
        folder = tmp_path / make.__name__
        folder.mkdir()
        where = make(folder / "run")
        process = start(folder, "sh", "-c", "sleep 4; echo done; exit 3")
        expected[process] = f"{where}: {what}; name another folder with -o\n"
    for process, reason in expected.items():
        out, err = process.communicate(timeout=300)
        assert (process.returncode, out) == (3, "done\n")
        assert err == f"tachograph: nothing was recorded: {reason}"


def test_without_a_command_it_is_reported_at_once(tmp_path: Path) -> None:
    a_file(tmp_path / "run")
    began = time.monotonic()
    words = ["record", "--simulate", "2", "--duration", "600", "-o", "run/deep"]
    done = run_here(words, tmp_path, environment())
    assert time.monotonic() - began < 60
    assert (done.returncode, done.stdout) == (5, "")
    printed = (
        f"nothing was recorded: {tmp_path / 'run'}: a file, not a folder; name another "
        "folder with -o"
    )
    assert done.stderr == f"tachograph: {printed}\n"
    assert (tmp_path / "run").read_text() == "mine\n"


def test_a_file_system_that_is_full_from_the_start(tmp_path: Path) -> None:
    done = record_without_room(tmp_path, blocks=0)
    assert done.stderr.startswith("tachograph: nothing was recorded: ")
    assert done.stderr.endswith(
        "file size limit exceeded; raise the limit of file sizes, or name another folder with -o\n"
    )


@pytest.mark.parametrize(
    ("number", "what"),
    [
        (errno.EACCES, "no write permission"),
        (errno.EROFS, "read-only file system"),
        (errno.EDQUOT, "disk or quota full"),
        (errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG).lower()),
    ],
)
def test_errors_of_the_system_have_messages(tmp_path: Path, number: int, what: str) -> None:
    with pytest.raises(LakeError) as reported, folder_errors(tmp_path):
        raise OSError(number, os.strerror(number))
    assert (reported.value.what, reported.value.where) == (what, str(tmp_path))
    assert reported.value.do.endswith("name another folder with -o")
    assert ("free some space" in reported.value.do) == (number == errno.EDQUOT)
    assert ("get permission" in reported.value.do) == (number == errno.EACCES)


def test_a_folder_with_other_files_keeps_them(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes").write_text("mine\n")
    code, _, err = record(tmp_path, "sh", "-c", RECORDED)
    assert (code, err) == (0, "")
    assert (tmp_path / "run" / "notes").read_text() == "mine\n"
    assert (tmp_path / "run" / "gpu_samples").is_dir()
