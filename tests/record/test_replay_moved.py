"""Recordings as `watch` opens them: paused, sped up, moved to a job, to the last that is seen in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from recorded_fleet import BEGIN, Clock, recorded

from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import NotFoundError
from tachograph.catalog.spool import SpoolRows
from tachograph.catalog.units import text
from tachograph.cli import main
from tachograph.cli.watch import _instant
from tachograph.live.discovery import SourceRequest, choose_source
from tachograph.live.selection import GpuSelection, SelectedReplay, SelectedSource
from tachograph.live.snapshot import GpuAllocation, GpuId, Playback, ReplaySource
from tachograph.live.sources.recording import DOUBLES, SINGLES, RecordedAllocation, RecordingHead, RecordingSource
from tachograph.live.sources.simulated import SimulatedSource

ONE, TWO = GpuId("n1", 0), GpuId("n1", 1)
POWER = SINGLES.index("power_w")


class Ends:
    """Samples of some GPUs each second, from 0 up to a second of its own."""

    def __init__(self, *ends: int) -> None:
        self._ends = ends
        gpus = tuple(GpuId("n1", number) for number in range(len(ends)))
        self.head = RecordingHead(gpus, {}, (), int(BEGIN * 1e6), int((BEGIN + max(ends)) * 1e6), sum(ends), 1.0)

    def rows(self, first: int, end: int) -> SpoolRows:
        seconds = range(-(-first // 1_000_000), -(-min(end, self.head.last + 1) // 1_000_000))
        pairs = [(t, gpu) for t in seconds for gpu, last in enumerate(self._ends) if t - BEGIN <= last]
        t, gpu = np.array(pairs, np.int64).reshape(-1, 2).T
        singles = np.full((len(SINGLES), len(t)), np.nan, np.float32)
        singles[POWER] = t - BEGIN
        return SpoolRows(t * 1_000_000, gpu.astype(np.int32), singles, np.full((len(DOUBLES), len(t)), np.nan))


@pytest.mark.parametrize(
    ("ends", "earliest", "latest", "telling"),
    [
        ((2000, 2000, 2000, 2000), 1999, 2000, 4),
        ((2000, 2000, 1900, 1800), 1999, 2000, 2),  # half of them: what is lost is news
        ((2000, 1400, 1400, 1390), 1100, 1404, 4),  # most ended ten minutes before
        ((2000, 1000, 1000, 1000), 1999, 2000, 1),  # too long ago
        ((2000, 1900, 900, 800, 700), 1100, 1904, 2),  # never half of them: as many as there are
    ],
)
def test_where_few_gpus_report_at_the_end_the_last_instant_with_most_is_shown(
    ends: tuple[int, ...], earliest: int, latest: int, telling: int
) -> None:
    source = RecordingSource(Ends(*ends), clock=Clock(0.0))
    source.to_last()
    now = source.read()
    assert earliest <= now.t - BEGIN <= latest
    watts = now.column("power_w")
    assert np.isfinite(watts).sum() == telling
    assert np.nanmax(np.abs(watts - (now.t - BEGIN))) <= 4  # none of them is older than that


class Told100:
    """A hundred seconds of two GPUs: one works from 0 to 59, the other from 30 to 69; then rows without values."""

    def __init__(self) -> None:
        allocations = (
            RecordedAllocation(ONE, BEGIN, BEGIN + 40, GpuAllocation("7")),
            RecordedAllocation(TWO, BEGIN + 30, BEGIN + 60, GpuAllocation("8_1")),
        )
        self.head = RecordingHead((ONE, TWO), {}, allocations, int(BEGIN * 1e6), int((BEGIN + 100) * 1e6), 202, 1.0)

    def rows(self, first: int, end: int) -> SpoolRows:
        seconds = np.arange(-(-first // 1_000_000), -(-min(end, self.head.last + 1) // 1_000_000))
        t, gpu = np.repeat(seconds, 2), np.tile([0, 1], len(seconds))
        after = t - BEGIN
        singles = np.full((len(SINGLES), len(t)), np.nan, np.float32)
        works = np.where(gpu == 0, after < 60, (after >= 30) & (after < 70))
        singles[POWER] = np.where(works, after, np.nan)
        return SpoolRows(t * 1_000_000, gpu.astype(np.int32), singles, np.full((len(DOUBLES), len(t)), np.nan))


def test_the_last_instant_has_values() -> None:
    source = RecordingSource(Told100(), clock=Clock(0.0))
    source.to_last()
    now = source.read()
    assert np.isfinite(now.column("power_w")).any()
    assert 40 <= now.t - BEGIN < 71
    assert source.read().t == now.t
    assert now.problems == ()


def test_the_last_instant_of_a_job_is_just_before_its_end() -> None:
    source = RecordingSource(Told100(), clock=Clock(0.0))
    for job, last, gpu in (("7", 39, ONE), ("8", 59, TWO), ("8_1", 59, TWO)):
        source.to_last(job)
        now = source.read()
        assert now.value("power_w", now.gpus.index(gpu)) == last
        assert now.allocations[gpu].job_id in (job, f"{job}_1")


def test_a_job_is_gone_to_and_goes_on() -> None:
    clock = Clock(0.0)
    source = RecordingSource(Told100(), clock=clock)
    source.to_first("8")
    assert source.read().t == BEGIN + 30
    clock.t = 5.0
    assert source.read().t == BEGIN + 35
    source.to_first("no such")
    assert source.read().t == BEGIN + 35


def test_what_is_restricted_plays_as_the_recording_does() -> None:
    def pick(snapshot: object, about: object) -> GpuSelection:
        return GpuSelection((1,), "one")

    clock = Clock(0.0)
    source = RecordingSource(Told100(), clock=clock)
    shown = SelectedReplay(source, pick)
    assert isinstance(shown, Playback)
    assert isinstance(shown, ReplaySource)
    shown.poll()
    shown.speed = 10.0
    clock.t = 1.0
    assert (shown.read().t, shown.read().t) == (BEGIN, BEGIN + 10)
    shown.paused = True
    clock.t = 2.0
    assert (shown.paused, shown.speed, shown.read().t) == (True, 10.0, BEGIN + 10)
    shown.poll()
    shown.to_last()
    assert shown.read().gpus == (TWO,)
    assert shown.read().t > BEGIN + 39


def test_only_recordings_play() -> None:
    assert not isinstance(SelectedSource(SimulatedSource(1), None), Playback)
    live = choose_source(Configuration(), SourceRequest(simulate=2))
    assert not isinstance(live, Playback)
    live.close()


def test_watch_opens_a_recording_that_plays(tmp_path: Path) -> None:
    spool, _ = recorded(tmp_path / "run", 50)
    source = choose_source(Configuration(), SourceRequest(recording=str(spool), speed=4.0))
    assert isinstance(source, ReplaySource)
    assert source.speed == 4.0
    source.close()
    with pytest.raises(NotFoundError, match="job 99 has no GPU in view; jobs in view: local-1"):
        choose_source(Configuration(), SourceRequest(recording=str(spool), job="99"))


def test_once_shows_the_last_that_was_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spool, live = recorded(tmp_path / "run", 50)
    assert main(["watch", "--once", "--csv", "gpu_id,power_w", "--recording", str(spool)]) == 0
    out, err = capsys.readouterr()
    shown = live[-2]
    watts = [float(line.split(",")[-1]) for line in out.splitlines()[1:]]
    assert watts == pytest.approx(shown.column("power_w").tolist(), abs=0.5)
    assert "as of 2025-03-04 09:20:48 UTC\n" in err
    assert "ended" not in err


def test_once_prints_the_distance_from_the_end_and_the_number_of_gpus_with_values() -> None:
    def pick(snapshot: object, about: object) -> GpuSelection:
        return GpuSelection((0, 1, 4), "three")

    shown = SelectedReplay(RecordingSource(Ends(2000, 1900, 900, 800, 700), clock=Clock(0.0)), pick)
    shown.to_last()
    early_s = shown.end - shown.read().t
    assert 96 <= early_s <= 900
    printed = _instant(shown, of_job=False)
    assert printed.endswith(f" UTC, {text(early_s, 's')} before its end; 2 of 3 GPUs measured")
    assert "before its end" not in _instant(shown, of_job=True)
