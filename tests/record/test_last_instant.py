"""The last instant of a recording: its values are those that were live, and enough GPUs report
at it.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from recorded_fleet import BEGIN, SILENT_FROM, SILENT_GPU, Clock, committed, recorded

from tachograph.annexes.watch.live.discovery import SourceRequest, choose_source
from tachograph.annexes.watch.live.snapshot import GpuId, Snapshot, SourceInfo
from tachograph.annexes.watch.live.sources.recording import LAST_S, RecordingSource, connect
from tachograph.annexes.watch.record.commit import commit_spool
from tachograph.catalog.config import Configuration
from tachograph.catalog.counters import COUNTERS
from tachograph.catalog.errors import InputError, NotFoundError
from tachograph.cli import main
from tachograph.lake.delta import Lake

EVERY_S = 10.0


class EndingFleet:
    """GPUs of one node; each reports its power, the seconds so far, up to an end of its own."""

    about = SourceInfo("made", "made for tests")

    def __init__(self, clock: Clock, *ends: float, begin: float = BEGIN) -> None:
        self._clock, self._ends, self._begin = clock, np.array(ends), begin
        self._gpus = tuple(GpuId("n1", number) for number in range(len(ends)))

    def read(self) -> Snapshot:
        passed = self._clock() - self._begin
        reports = passed <= self._ends
        values = {"power_w": np.where(reports, passed, np.nan)}
        return Snapshot(self._clock(), self._gpus, np.where(reports, self._clock(), np.nan), values)

    def close(self) -> None:
        """Nothing is held."""


@pytest.mark.parametrize(
    ("ends", "earliest", "latest", "reporting"),
    [
        ((2000, 2000, 2000, 2000), 2000, 2000, 4),
        ((2000, 2000, 1900, 1800), 2000, 2000, 2),  # half of them: what is lost is news
        ((2000, 1400, 1400, 1390), 1100, 1430, 4),  # most ended ten minutes before
        ((2000, 1000, 1000, 1000), 1970, 2000, 1),  # too long ago
        ((2000, 1900, 900, 800, 700), 1100, 1930, 2),  # never half of them: as many as there are
    ],
)
def test_the_last_instant_with_enough_gpus_is_shown(
    tmp_path: Path, ends: tuple[int, ...], earliest: int, latest: int, reporting: int
) -> None:
    clock = Clock()
    looks = int(max(ends) / EVERY_S) + 1
    fleet = EndingFleet(clock, *ends)
    lake = committed(tmp_path / "run", looks, interval_s=EVERY_S, clock=clock, source=fleet)
    source = RecordingSource(lake)
    now = source.read()
    assert earliest <= now.t - BEGIN <= latest
    watts = now.column("power_w")
    assert np.isfinite(watts).sum() == reporting
    assert np.nanmax(np.abs(watts - (now.t - BEGIN))) <= 3 * EVERY_S + 1
    early_s = max(ends) - (now.t - BEGIN)
    assert early_s <= LAST_S
    assert ("before its end" in source.about.sentence) == (early_s > 60)
    assert (f"{reporting} of {len(ends)} GPUs measured" in source.about.sentence) == (
        reporting < len(ends)
    )


def test_values_are_those_that_were_shown_live(tmp_path: Path) -> None:
    looks = SILENT_FROM + 6  # by then the silent GPU counts no more
    spool, live = recorded(tmp_path / "run", looks)
    now = connect(Configuration(), path=commit_spool(spool, tmp_path / "run").location).read()
    last = live[-1]
    assert (now.t, now.gpus, now.devices) == (last.t, last.gpus, last.devices)
    assert np.isnan(now.measured[SILENT_GPU])
    assert np.array_equal(now.measured, last.measured, equal_nan=True)
    for counter in COUNTERS:
        stored = np.float32 if counter.storage == "f32" else np.float64
        was, shown = (one.column(counter.name).astype(stored) for one in (last, now))
        assert np.array_equal(was, shown, equal_nan=True), counter.name


def test_a_job_is_shown_just_before_its_end(tmp_path: Path) -> None:
    spool, live = recorded(tmp_path / "run", 50)
    lake = commit_spool(spool, tmp_path / "run")
    now = RecordingSource(lake, job="local-1").read()
    assert {(one.job_id, one.user, one.since) for one in now.allocations.values()} == {
        ("local-1", "ana", BEGIN)
    }
    assert now.t == live[-1].t
    with pytest.raises(NotFoundError, match="job 99 has no GPU in view"):
        choose_source(Configuration(), SourceRequest(recording=lake.location, job="99"))


def test_watch_prints_it_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spool, live = recorded(tmp_path / "run", 50)
    run = commit_spool(spool, tmp_path / "run").location
    assert main(["watch", "--recording", run, "--json", "--job", "local-1"]) == 0
    out, err = capfd.readouterr()
    rows = json.loads(out)
    assert [(row["node"], row["gpu"], row["job_id"]) for row in rows] == [
        (gpu.node, gpu.gpu, "local-1") for gpu in live[-1].gpus
    ]
    assert [row["power_w"] for row in rows] == pytest.approx(
        live[-1].column("power_w").tolist(), rel=1e-6
    )
    assert "as of 2025-03-04 09:20:49 UTC" in err


@pytest.mark.parametrize(
    ("zone_name", "times"),
    [
        ("UTC", "2025-03-04 09:20:00 to 2025-03-04 09:20:49 UTC; as of 2025-03-04 09:20:49 UTC"),
        (
            "America/Los_Angeles",
            "2025-03-04 01:20:00 to 2025-03-04 01:20:49 PST; as of 2025-03-04 01:20:49 PST",
        ),
        (
            "Asia/Kathmandu",  # a zone without letters
            "2025-03-04 15:05:00 to 2025-03-04 15:05:49 +0545; as of 2025-03-04 15:05:49 +0545",
        ),
    ],
)
def test_times_of_a_recording_are_those_of_the_site(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], zone_name: str, times: str
) -> None:
    run = committed(tmp_path / "run", 50).location
    assert main(["watch", "--recording", run, "--json", "--time-zone", zone_name]) == 0
    assert f"recording of 8 GPUs, {times}" in capfd.readouterr().err


def test_a_recording_over_a_change_of_clocks_names_both_zones(tmp_path: Path) -> None:
    clock = Clock()
    begin = datetime(2025, 3, 30, 0, 59, 30, tzinfo=UTC).timestamp()
    fleet = EndingFleet(clock, 60, begin=begin)
    options = {"interval_s": EVERY_S, "clock": clock, "source": fleet, "begin": begin}
    lake = committed(tmp_path / "run", 7, **options)
    source = RecordingSource(lake, zone_name="Europe/Berlin")
    times = "2025-03-30 01:59:30 CET to 2025-03-30 03:00:30 CEST; as of 2025-03-30 03:00:30 CEST"
    assert times in source.about.sentence


def test_a_recording_without_any_value_is_rejected(tmp_path: Path) -> None:
    clock = Clock()
    impossible = EndingFleet(clock, 1e8, begin=BEGIN - 1e7)  # ten million watts
    lake = committed(tmp_path / "run", 7, interval_s=EVERY_S, clock=clock, source=impossible)
    with pytest.raises(InputError, match="no GPU sample has a value"):
        RecordingSource(lake)


def test_what_is_no_recording_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such recording"):
        connect(Configuration(), path=str(tmp_path / "none"))
    with pytest.raises(InputError, match="no recording and no lake"):
        connect(Configuration(), path=str(tmp_path))
    with pytest.raises(InputError, match="no GPU samples"):
        RecordingSource(Lake.create(str(tmp_path / "empty")))
