"""Real processes: killed again and again, started twice, stopped."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from collecting import collecting, plan_of, until
from fake_feeds import START, STEP, Tape, number_of

from tachograph.catalog.tables import DEVICES, GPU_SAMPLES, REJECTS
from tachograph.collect.lock import CollectLock
from tachograph.collect.readers import PolledSource
from tachograph.collect.status import SourceStatus, overview, read_status, state_folder
from tachograph.collect.status_text import status_remarks
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import watermark

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
STREAMS = ("tape:a", "tape:b")
COUNT = 120


def command(lake: Path, **settings: Any) -> list[str]:
    return [sys.executable, str(HERE / "collecting.py"), str(lake), json.dumps(settings)]


@contextmanager
def running(lake: Path, **settings: Any) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command(lake, **settings), stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def is_held(lake: Path) -> bool:
    return CollectLock(state_folder(str(lake))).holder() is not None


def rows(lake: Path) -> list[tuple[str, int]]:
    """Every row that lies in the samples, unmerged."""
    opened = Lake(str(lake))
    if opened.delta(GPU_SAMPLES) is None:
        return []
    frame = opened.scan(GPU_SAMPLES).select("node", "t").collect()
    return sorted((node, number_of(t)) for node, t in frame.rows())


def has_all(lake: Path) -> bool:
    return all(watermark(Lake(str(lake)), stream) == START + COUNT * STEP for stream in STREAMS)


def test_killed_at_any_moment_the_lake_is_that_of_a_process_never_killed(tmp_path: Path) -> None:
    killed, never = tmp_path / "killed", tmp_path / "never"
    moment = random.Random(20260421)
    for _ in range(4):
        with running(killed, count=COUNT, sample_s=0.005) as process:
            until(lambda: is_held(killed))
            time.sleep(moment.uniform(0.0, 0.7))
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
    for lake in (killed, never):
        tapes = [PolledSource(stream, 0.05, Tape(stream, COUNT, 0.0)) for stream in STREAMS]
        with collecting(plan_of(lake, tapes)):
            until(partial(has_all, lake))
    assert (
        rows(killed)
        == rows(never)
        == sorted((stream, number) for stream in STREAMS for number in range(COUNT))
    )
    one, other = Lake(str(killed)), Lake(str(never))
    assert [watermark(one, stream) for stream in STREAMS] == [
        watermark(other, stream) for stream in STREAMS
    ]
    for table in (REJECTS, DEVICES):
        assert one.latest(table).drop("seq").rows() == other.latest(table).drop("seq").rows()


def test_a_second_process_names_the_first_or_takes_over(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with running(lake) as first:
        until(lambda: is_held(lake))
        refused = subprocess.run(command(lake), capture_output=True, text=True)
        assert refused.returncode == 1  # the program of the tests has no exit codes of its own
        assert f"process {first.pid} on " in refused.stderr
        assert "already collects into this lake" in refused.stderr
        with running(lake, wait=True) as second:
            assert second.stderr is not None
            printed = second.stderr.readline()
            assert printed.startswith(f"waiting for process {first.pid} on ")
            first.kill()
            first.wait()
            until(
                lambda: (
                    (holder := CollectLock(state_folder(str(lake))).holder()) is not None
                    and holder.pid == second.pid
                )
            )
            second.terminate()
            assert second.wait(15) == 0


def test_a_signal_stops_it_after_the_queue_is_committed_and_ends_its_child(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    config = {"listen": "", "analyze_s": 0.3, "compact_s": 0.3}
    with running(lake, sample_s=0.001, collect=config) as process:
        until(lambda: children_of(process.pid))
        kids = children_of(process.pid)
        process.terminate()
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read().endswith("stopped\n")
    assert not any(Path(f"/proc/{kid}").exists() for kid in kids)
    status = read_status(state_folder(str(lake)))
    assert status is not None
    assert status.stopped is not None
    assert not any(source.chunks_waiting for source in status.sources.values())
    assert not is_held(lake)


def test_killed_its_child_goes_with_it(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with running(lake, collect={"listen": "", "analyze_s": 0.3, "compact_s": 0.3}) as process:
        until(lambda: children_of(process.pid))
        kids = children_of(process.pid)
        process.kill()
        process.wait()
        until(lambda: not any(is_alive(kid) for kid in kids))


def children_of(pid: int) -> list[int]:
    """Children that have begun what they are for."""
    begun = []
    for kid in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split():
        with suppress(OSError):  # it ends just now
            if b"tachograph.collect.child" in Path(f"/proc/{kid}/cmdline").read_bytes():
                begun.append(int(kid))
    return begun


def is_alive(pid: int) -> bool:
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").split(")")[-1].split()[0]
            not in "ZX"
        )
    except OSError:
        return False


def test_a_process_that_stood_still_shows_the_polls_that_it_skipped(tmp_path: Path) -> None:
    folder = state_folder(str(tmp_path / "lake"))

    def all_of(condition: Callable[[SourceStatus], bool]) -> Callable[[], bool]:
        """Whether it holds for every source, as far as the process has written down."""
        return lambda: (
            (written := read_status(folder)) is not None
            and [*map(condition, written.sources.values())] == [True] * len(STREAMS)
        )

    with running(tmp_path / "lake", count=COUNT, every_s=0.2) as process:
        until(all_of(lambda source: source.polls > 0))
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        process.send_signal(signal.SIGCONT)
        until(all_of(lambda source: source.last_hour(datetime.now(UTC)).longest_gap_s > 1.2))
        found = overview(str(tmp_path / "lake"), folder, [], now=datetime.now(UTC))
    for source in found.sources:
        assert source.last_hour(found.now).skipped >= 5
        assert source.is_skipping(found.now)
    assert (
        sum("polls of the last hour were skipped" in line for line in status_remarks(found, "UTC"))
        == 2
    )
