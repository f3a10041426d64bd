"""Lakes of many nodes are played back, too: whoever samples when, as much as is needed at a time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from recorded_fleet import BEGIN, Clock, recorded

from tachograph.catalog.errors import InputError, UsageError
from tachograph.catalog.spool import SpoolRows
from tachograph.cli import main
from tachograph.live.snapshot import GpuId
from tachograph.live.sources.recording import DOUBLES, SINGLES, RecordingHead, RecordingSource, open_recorded
from tachograph.service.record.commit import commit_spool

GPUS, EVERY_S, POWER = 200, 10, SINGLES.index("power_w")


class Fleet:
    """GPUs that are sampled every ten seconds, each at a second of its own; power shows which GPU, and when."""

    def __init__(self, hours: float) -> None:
        last = BEGIN + hours * 3600
        gpus = tuple(GpuId(f"n{place // 4:03d}", place % 4) for place in range(GPUS))
        count = int(GPUS * hours * 3600 / EVERY_S)
        self.head = RecordingHead(gpus, {}, (), int(BEGIN * 1e6), int(last * 1e6), count)
        self.read: list[int] = []

    def rows(self, first: int, end: int) -> SpoolRows:
        seconds = np.arange(-(-first // 1_000_000), -(-min(end, self.head.last + 1) // 1_000_000))
        t = np.repeat(seconds, GPUS // EVERY_S)
        gpu = np.concatenate([np.arange(second % EVERY_S, GPUS, EVERY_S) for second in seconds] or [np.zeros(0, int)])
        singles = np.full((len(SINGLES), len(t)), np.nan, np.float32)
        singles[POWER] = gpu + (t - BEGIN) % 1000 / 1000
        self.read.append(len(t))
        return SpoolRows(t * 1_000_000, gpu.astype(np.int32), singles, np.full((len(DOUBLES), len(t)), np.nan))


@pytest.mark.parametrize("speed", [1.0, 37.0])
def test_gpus_that_are_sampled_at_different_moments_are_all_shown(speed: float) -> None:
    clock, fleet = Clock(0.0), Fleet(hours=2)
    source = RecordingSource(fleet, speed=speed, clock=clock, window_rows=20_000)
    source.read()
    for look in range(12, 100):
        clock.t = float(look)
        snapshot = source.read()
        position = round(snapshot.t - BEGIN)
        ages = np.array([(position - place) % EVERY_S for place in range(GPUS)])
        assert np.array_equal(snapshot.t - snapshot.measured, ages)
        wanted = np.arange(GPUS) + (position - ages) % 1000 / 1000
        assert np.allclose(snapshot.column("power_w"), wanted, atol=1e-4)
    assert source.about.refresh_s == EVERY_S
    assert max(fleet.read) <= 20_000 * 1.1
    assert len(fleet.read) <= 2 + 100 * speed * GPUS / EVERY_S / 20_000 + 1


def test_what_lies_between_is_not_read() -> None:
    clock, fleet = Clock(0.0), Fleet(hours=1000)
    source = RecordingSource(fleet, clock=clock, window_rows=20_000)
    source.read()
    source.seek(BEGIN + 500 * 3600)
    assert not np.isnan(source.read().measured).any()
    assert sum(fleet.read) < 3 * 20_000


def test_watch_plays_a_recording(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spool, live = recorded(tmp_path / "run", 10)
    commit_spool(spool, tmp_path / "run")
    assert main(["watch", "--recording", "run", "--once", "--json"]) == 0
    reported = json.loads(capfd.readouterr().out)
    assert {(one["node"], one["gpu"], one["job_id"]) for one in reported} == {
        (gpu.node, gpu.gpu, "local-1") for gpu in live[0].gpus
    }
    power = live[-2].value("power_w", 5)  # just before its end
    assert power is not None
    assert abs(reported[5]["power_w"] - power) < 1


def test_a_file_that_is_no_recording_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such recording"):
        open_recorded(str(tmp_path / "none"))
    with pytest.raises(InputError, match="no recording and no lake"):
        open_recorded(str(tmp_path))
    (tmp_path / "text.csv").write_text("a,b\n")
    with pytest.raises(InputError, match="not a recording"):
        open_recorded(str(tmp_path / "text.csv"))
    spool, _ = recorded(tmp_path / "run", 2)
    with pytest.raises(UsageError, match="speed 0"):
        RecordingSource(open_recorded(str(spool)), speed=0.0)
