"""The log of a table that is appended to for weeks: short, quick to open, and the marks of what
landed stay.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from deltalake import DeltaTable
from lake_rows import START, lying, samples

from jobframes import frame
from tachograph.catalog.errors import LakeError
from tachograph.catalog.tables import GPU_SAMPLES, JOBS, LakeTable
from tachograph.lake import commits
from tachograph.lake.commits import WRITING
from tachograph.lake.compact import compact
from tachograph.lake.delta import Lake
from tachograph.lake.log_format import delta_schema

DAYS_AGO_S = 3 * 86400
ROUNDS, APPENDS, CHECKPOINT_EVERY = 3, 12, 10


def log_of(lake: Lake) -> Path:
    return Path(lake.uri(GPU_SAMPLES)) / "_delta_log"


def grown_old(lake: Lake) -> None:
    """Let the log be three days older than it is."""
    old = time.time() - DAYS_AGO_S
    for file in log_of(lake).iterdir():
        os.utime(file, (old, old))


def append(lake: Lake, number: int) -> bool:
    """Land the sample of one instant; whether it was there already."""
    frame = samples(seconds=[number * 10])
    return lake.append(GPU_SAMPLES, frame, app_id="stream", mark=number + 1).known


@pytest.mark.slow
def test_what_is_old_is_taken_away_and_what_landed_is_known_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "CHECKPOINT_EVERY", CHECKPOINT_EVERY)
    lake = Lake.create(str(tmp_path / "lake"))
    lake.append(GPU_SAMPLES, samples("n9", seconds=[0]), app_id="import", mark=1)
    for number in range(ROUNDS):
        for place in range(APPENDS):
            append(lake, number * APPENDS + place)
        compact(lake, [GPU_SAMPLES], vacuum_hours=24)
        grown_old(lake)
    last = ROUNDS * APPENDS - 1
    kept = sorted(log_of(lake).glob("*.json"))
    assert len(kept) < 2 * APPENDS < lake.version(GPU_SAMPLES)
    assert int(kept[0].stem) > APPENDS  # the first ones are gone
    assert (lake.mark(GPU_SAMPLES, "import"), lake.mark(GPU_SAMPLES, "stream")) == (1, last + 1)
    assert lake.append(GPU_SAMPLES, samples("n9", seconds=[0]), app_id="import", mark=1).known
    assert append(lake, 0)
    assert append(lake, last)
    assert not append(lake, last + 1)
    assert lying(lake) == ROUNDS * APPENDS + 2
    times = lake.scan(GPU_SAMPLES).select("t").collect()["t"]
    assert times.max() == START + timedelta(seconds=10 * (last + 1))


@pytest.mark.file_times
def test_a_young_log_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "CHECKPOINT_EVERY", 5)
    lake = Lake.create(str(tmp_path / "lake"))
    for number in range(7):
        append(lake, number)
    assert [int(file.stem) for file in sorted(log_of(lake).glob("*.json"))] == list(range(8))


class LakeDeletedOnceOpen(Lake):
    """A lake that another process deletes as soon as a table of it is open."""

    def delta(self, table: LakeTable) -> DeltaTable | None:
        opened = super().delta(table)
        shutil.rmtree(self.uri(table))
        return opened


def test_a_log_deleted_while_it_is_read_is_an_error_of_the_lake(tmp_path: Path) -> None:
    append(Lake.create(str(tmp_path / "lake")), 0)
    with pytest.raises(LakeError, match="the table's log cannot be used"):
        LakeDeletedOnceOpen.create(str(tmp_path / "lake")).mark(GPU_SAMPLES, "stream")


def test_a_reader_beside_who_makes_the_table_finds_none_yet(tmp_path: Path) -> None:
    lake = Lake.create(str(tmp_path / "lake"))
    (tmp_path / "lake" / GPU_SAMPLES.name).mkdir()
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set():
            with TemporaryDirectory(prefix=WRITING, dir=lake.uri(GPU_SAMPLES)) as folder:
                (Path(folder) / "_delta_log").mkdir()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            found = {lake.version(GPU_SAMPLES) for _ in range(300)}
        finally:
            ended.set()
        writing.result()
    assert found == {-1}


def statistics_of(lake: Lake, table: LakeTable) -> set[str]:
    """The columns of which a reader decodes minima from the log."""
    delta = lake.delta(table)
    assert delta is not None
    names = delta.get_add_actions(flatten=True).schema.names
    return {name.removeprefix("min.") for name in names if name.startswith("min.")}


def test_of_jobs_only_those_statistics_are_decoded_that_choose_files(tmp_path: Path) -> None:
    lake = Lake.create(str(tmp_path / "lake"))
    rows = frame(JOBS, [{"job_id": "7", "cluster": "c"}]).drop("seq")
    lake.append(JOBS, rows, app_id="new")
    append(lake, 0)
    assert statistics_of(lake, JOBS) == {"job_id", "seq"}
    assert {"node", "xid"} <= statistics_of(lake, GPU_SAMPLES)
    [file] = lake.files(JOBS)
    assert (file.keys, file.seq, file.least_seq) == (("7", "7"), 1, 1)
    [of_samples] = lake.files(GPU_SAMPLES)
    assert "xid" in of_samples.empty


def test_the_next_commit_declares_statistics_in_an_older_log(tmp_path: Path) -> None:
    lake = Lake.create(str(tmp_path / "lake"))
    kept = {"delta.checkpointInterval": "7", "delta.dataSkippingNumIndexedCols": "-1"}
    DeltaTable.create(lake.uri(JOBS), schema=delta_schema(JOBS), configuration=kept)
    rows = frame(JOBS, [{"job_id": "7", "cluster": "c"}]).drop("seq")
    for number in range(2):
        lake.append(JOBS, rows, app_id=f"{number}")
    delta = lake.delta(JOBS)
    assert delta is not None
    assert kept.items() <= delta.metadata().configuration.items()
    assert statistics_of(lake, JOBS) == {"job_id", "seq"}
    changes = [b'"metaData"' in path.read_bytes() for path in sorted(delta_log(lake))]
    assert changes == [True, True, False]


def delta_log(lake: Lake) -> list[Path]:
    """The entries of the log of jobs."""
    return list(Path(lake.uri(JOBS), "_delta_log").glob("*.json"))
