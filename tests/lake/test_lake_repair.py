"""Torn logs: a reading names the file and what to do; the repair drops what was never committed,
and nothing else.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from lake_rows import samples

from tachograph.catalog.errors import LakeError
from tachograph.catalog.tables import GPU_SAMPLES
from tachograph.lake import commits
from tachograph.lake.delta import Lake
from tachograph.lake.repair import ASIDE, repair

APPENDS = 8  # with a checkpoint at 4


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "lake"
    lake = Lake.create(str(folder))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(commits, "CHECKPOINT_EVERY", 5)
        for number in range(APPENDS):
            lake.append(
                GPU_SAMPLES, samples(seconds=[number * 10]), app_id="stream", mark=number + 1
            )
    return folder


@pytest.fixture
def lake(whole: Path, tmp_path: Path) -> Lake:
    return Lake(str(shutil.copytree(whole, tmp_path / "lake")))


def log_of(lake: Lake) -> Path:
    return Path(lake.uri(GPU_SAMPLES), "_delta_log")


def entry(lake: Lake, version: int) -> Path:
    return log_of(lake) / f"{version:020}.json"


def rows(lake: Lake) -> int:
    return lake.scan(GPU_SAMPLES).collect().height


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:700])


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


TEARS = [emptied, cut, zeroed]


@pytest.mark.parametrize("tear", TEARS)
def test_a_torn_last_entry_is_named_and_dropped(lake: Lake, tear: Callable[[Path], None]) -> None:
    last = entry(lake, APPENDS)
    tear(last)
    with pytest.raises(LakeError, match=f"{last}: .*; run `tachograph lake --repair`"):
        rows(lake)
    with pytest.raises(LakeError, match="lake --repair"):
        lake.append(GPU_SAMPLES, samples(seconds=[9999]), app_id="stream", mark=99)
    [done] = repair(lake)
    assert (done.table, done.file) == ("gpu_samples", last.name)
    assert "never reported as committed" in done.what
    assert last.with_name(last.name + ASIDE).exists()
    assert (rows(lake), lake.mark(GPU_SAMPLES, "stream")) == (APPENDS - 1, APPENDS - 1)
    assert repair(lake) == []
    lake.append(GPU_SAMPLES, samples(seconds=[(APPENDS - 1) * 10]), app_id="stream", mark=APPENDS)
    assert rows(lake) == APPENDS


def test_several_torn_entries_at_the_end_are_dropped_the_last_one_first(lake: Lake) -> None:
    for version in (APPENDS - 1, APPENDS):
        emptied(entry(lake, version))
    assert [done.file for done in repair(lake)] == [
        entry(lake, v).name for v in (APPENDS, APPENDS - 1)
    ]
    assert rows(lake) == APPENDS - 2


@pytest.mark.parametrize("tear", TEARS)
def test_a_torn_entry_before_whole_ones_is_refused(
    lake: Lake, tear: Callable[[Path], None]
) -> None:
    torn = entry(lake, APPENDS - 1)
    tear(torn)
    before = sorted(log_of(lake).iterdir())
    with pytest.raises(LakeError, match="later entries are whole") as problem:
        repair(lake)
    assert str(torn) in str(problem.value)
    assert "backup" in str(problem.value)
    assert sorted(log_of(lake).iterdir()) == before


@pytest.mark.parametrize("tear", [*TEARS, Path.unlink])
@pytest.mark.file_times
def test_a_torn_checkpoint_whose_entries_are_there_costs_nothing(
    lake: Lake, tear: Callable[[Path], None]
) -> None:
    [checkpoint] = log_of(lake).glob("*.checkpoint.parquet")
    tear(checkpoint)
    with pytest.raises(LakeError, match=r"_delta_log/.*; run `tachograph lake --repair`"):
        rows(lake)
    done = repair(lake)
    assert all("nothing is lost" in one.what for one in done)
    assert not (log_of(lake) / "_last_checkpoint").exists()
    assert rows(lake) == APPENDS
    assert repair(lake) == []


@pytest.mark.file_times
def test_a_torn_checkpoint_whose_entries_are_gone_is_refused(lake: Lake) -> None:
    [checkpoint] = log_of(lake).glob("*.checkpoint.parquet")
    entry(lake, 0).unlink()
    emptied(checkpoint)
    with pytest.raises(LakeError, match=r"(?s)missing.*backup"):
        repair(lake)
    assert checkpoint.exists()


def test_a_torn_hint_is_no_harm_and_is_put_aside(lake: Lake) -> None:
    hint = log_of(lake) / "_last_checkpoint"
    emptied(hint)
    assert rows(lake) == APPENDS
    assert [done.file for done in repair(lake)] == [hint.name]
    assert rows(lake) == APPENDS


def test_an_entry_before_the_checkpoint_does_not_matter(lake: Lake) -> None:
    emptied(entry(lake, 2))
    assert rows(lake) == APPENDS
    assert repair(lake) == []


def test_a_table_whose_first_entry_is_torn_was_never_there(tmp_path: Path) -> None:
    lake = Lake.create(str(tmp_path / "lake"))
    log_of(lake).mkdir(parents=True)
    emptied(entry(lake, 0))
    with pytest.raises(LakeError, match="lake --repair"):
        lake.files(GPU_SAMPLES)
    assert len(repair(lake)) == 1
    assert lake.files(GPU_SAMPLES) == []
    lake.append(GPU_SAMPLES, samples(), app_id="a")
    assert rows(lake) == samples().height


@pytest.mark.parametrize("tear", TEARS)
def test_a_torn_data_file_is_named(lake: Lake, tear: Callable[[Path], None]) -> None:
    file = Path(lake.uri(GPU_SAMPLES), lake.files(GPU_SAMPLES)[5].path)
    tear(file)
    with pytest.raises(
        LakeError, match=f"{file}: the data file is .*; run `tachograph lake --repair`"
    ):
        lake.latest(GPU_SAMPLES)
    assert repair(lake) == []


def test_no_repair_beside_a_writer(lake: Lake) -> None:
    emptied(entry(lake, APPENDS))
    descriptor = os.open(Path(lake.location, ".writers"), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        with pytest.raises(LakeError, match="another process writes into the lake"):
            repair(lake)
    finally:
        os.close(descriptor)
    assert len(repair(lake)) == 1


# A process of its own: the threads of Polars do not survive a fork.
KILLED_REPAIR = """
import os, signal, sys
from pathlib import Path
from tachograph.lake.delta import Lake
from tachograph.lake.repair import repair

left, rename = int(sys.argv[2]), Path.rename

def killed(path, to):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return rename(path, to)

Path.rename = killed
repair(Lake(sys.argv[1]))
"""


@pytest.mark.parametrize("after", range(4))
@pytest.mark.file_times
def test_a_repair_that_was_killed_is_ended_by_the_next(lake: Lake, after: int) -> None:
    for version in (APPENDS - 1, APPENDS):
        emptied(entry(lake, version))
    [checkpoint] = log_of(lake).glob("*.checkpoint.parquet")
    emptied(checkpoint)
    done = subprocess.run([sys.executable, "-c", KILLED_REPAIR, lake.location, str(after)])
    assert done.returncode == -signal.SIGKILL
    assert len(repair(lake)) == 4 - after
    assert rows(lake) == APPENDS - 2
