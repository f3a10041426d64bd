"""What is played back equals what was shown while it was recorded: values, classes, health."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from recorded_fleet import BEGIN, SILENT_FROM, SILENT_GPU, Clock, recorded

from tachograph.catalog.counters import COUNTERS
from tachograph.judge.workload.settings import WorkloadSettings
from tachograph.live.monitor import Monitor
from tachograph.live.snapshot import Snapshot
from tachograph.live.sources.recording import ENDED, RecordedRows, RecordingSource, open_recorded
from tachograph.live.view import History, View
from tachograph.service.record.commit import commit_spool

LOOKS = 90


def views(snapshots: list[Snapshot], about: RecordingSource) -> list[View]:
    monitor = Monitor(about.about, settings=WorkloadSettings(), history=History(100))
    return [monitor.step(one) for one in snapshots]


def replayed(
    recording: RecordedRows, looks: int, *, window_rows: int = 200_000
) -> tuple[RecordingSource, list[Snapshot]]:
    clock = Clock(500.0)
    source = RecordingSource(recording, clock=clock, window_rows=window_rows)
    snapshots = []
    for look in range(looks):
        clock.t = 500.0 + look
        snapshots.append(source.read())
    return source, snapshots


@pytest.mark.parametrize("committed", [True, False])
def test_values_classes_and_health_are_those_shown_live(tmp_path: Path, committed: bool) -> None:
    spool, live = recorded(tmp_path / "run", LOOKS)
    if committed:
        commit_spool(spool, tmp_path / "run")
    source, again = replayed(open_recorded(str(tmp_path / "run")), LOOKS)
    for was, now in zip(live, again, strict=True):
        assert now.t == was.t
        assert now.gpus == was.gpus
        assert now.devices == was.devices
        assert np.array_equal(now.measured, was.measured, equal_nan=True)
        for counter in COUNTERS:
            stored = np.float32 if counter.storage == "f32" else np.float64
            assert np.array_equal(
                now.column(counter.name).astype(stored), was.column(counter.name).astype(stored), equal_nan=True
            ), counter.name
    for was_shown, shown in zip(views(live, source), views(again, source), strict=True):
        for name in ("labels", "raw", "health", "reported"):
            assert getattr(was_shown, name).tolist() == getattr(shown, name).tolist(), name
        assert np.array_equal(was_shown.stale_s, shown.stale_s, equal_nan=True)
        assert np.allclose(was_shown.real, shown.real, rtol=1e-6, equal_nan=True)


def test_the_comparison_covers_a_gpu_without_values_and_several_classes(tmp_path: Path) -> None:
    spool, live = recorded(tmp_path / "run", LOOKS)
    commit_spool(spool, tmp_path / "run")
    source, again = replayed(open_recorded(str(tmp_path / "run")), LOOKS)
    shown = views(again, source)
    assert not shown[SILENT_FROM].reported[SILENT_GPU]
    assert shown[SILENT_FROM - 1].reported[SILENT_GPU]
    assert len({label for view in shown for label in view.labels.tolist()}) > 1
    assert len(live) == LOOKS


def test_small_windows_give_the_same(tmp_path: Path) -> None:
    spool, _ = recorded(tmp_path / "run", LOOKS)
    commit_spool(spool, tmp_path / "run")
    recording = open_recorded(str(tmp_path / "run"))
    _, whole = replayed(recording, LOOKS)
    reads: list[int] = []
    rows = recording.rows
    recording.rows = lambda first, end: reads.append(end - first) or rows(first, end)  # type: ignore[method-assign, func-returns-value]
    _, pieces = replayed(recording, LOOKS, window_rows=8)
    assert len(reads) > 5
    assert max(reads) <= 10_000_000
    for was, now in zip(whole, pieces, strict=True):
        assert np.array_equal(was.column("power_w"), now.column("power_w"), equal_nan=True)
        assert np.array_equal(was.column("tensor_active"), now.column("tensor_active"), equal_nan=True)


def test_the_job_holds_the_gpus_while_it_is_played(tmp_path: Path) -> None:
    spool, _ = recorded(tmp_path / "run", 5)
    commit_spool(spool, tmp_path / "run")
    _, again = replayed(open_recorded(str(tmp_path / "run")), 3)
    assert {(one.job_id, one.user, one.since) for one in again[1].allocations.values()} == {("local-1", "ana", BEGIN)}
    assert len(again[1].allocations) == 8


def test_at_the_end_the_last_snapshot_stays(tmp_path: Path) -> None:
    spool, live = recorded(tmp_path / "run", 10)
    commit_spool(spool, tmp_path / "run")
    source, again = replayed(open_recorded(str(tmp_path / "run")), 30)
    assert [len(one.problems) for one in again] == [0] * 9 + [1] * 21
    assert again[-1].problems[0].what == ENDED
    assert np.array_equal(again[-1].column("power_w").astype("f4"), live[-1].column("power_w").astype("f4"))
    source.close()
    source.close()


def test_speed_pause_and_seek(tmp_path: Path) -> None:
    spool, live = recorded(tmp_path / "run", LOOKS)
    commit_spool(spool, tmp_path / "run")
    clock = Clock(0.0)
    source = RecordingSource(open_recorded(str(tmp_path / "run")), speed=10.0, clock=clock)
    assert source.read().t == BEGIN
    clock.t = 2.0
    assert source.read().t == BEGIN + 20
    source.paused = True
    clock.t = 60.0
    assert source.read().t == BEGIN + 20
    source.paused = False
    source.speed = 0.5
    clock.t = 64.0
    later = source.read()
    assert later.t == BEGIN + 22
    assert np.array_equal(later.column("power_w").astype("f4"), live[22].column("power_w").astype("f4"), equal_nan=True)
    source.seek(BEGIN + 3.4)
    before = source.read()
    assert np.array_equal(before.column("power_w").astype("f4"), live[3].column("power_w").astype("f4"))
    source.seek(0.0)
    assert source.read().t == BEGIN
    source.seek(BEGIN + 1e9)
    assert source.read().problems


def test_an_unconfirmed_gpu_is_not_shown_for_ever(tmp_path: Path) -> None:
    """A recorder that was killed leaves no row without values."""
    spool, _ = recorded(tmp_path / "run", 5, end=False)
    recording = open_recorded(commit_spool(spool, tmp_path / "run").location)
    recording.head = replace(recording.head, last=recording.head.last + 60_000_000)
    clock = Clock(0.0)
    source = RecordingSource(recording, clock=clock)
    source.read()
    clock.t = 6.0
    assert not np.isnan(source.read().measured).any()
    clock.t = 9.0
    assert np.isnan(source.read().measured).all()
