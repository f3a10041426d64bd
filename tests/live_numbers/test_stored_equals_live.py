"""What is stored of a fleet equals what was live over the same minutes: shares, health,
imbalance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from madelake import held, job, make_lake
from plain_numbers import PRESETS, Values, kind
from tachograph.annexes.watch.live.monitor import Monitor
from tachograph.annexes.watch.live.snapshot import GpuAllocation, GpuId, Snapshot
from tachograph.annexes.watch.live.sources.simulated import SimulatedSource
from tachograph.annexes.watch.live.view import FleetView, GpuHistory
from tachograph.annexes.watch.tui.job_table import job_facts
from tachograph.catalog.config import Configuration
from tachograph.judge.job_judge import JobJudge
from tachograph.judge.workload.classes import WORKLOAD_CLASSES
from tachograph.judge.workload.settings import WorkloadSettings
from tachograph.lake.query import read_gpus, read_summaries
from tachograph.pipeline.run import analyze
from tui_screens import Clock

START = datetime(2026, 4, 7, 9, 0, tzinfo=UTC)
BEGIN = START.timestamp()
MINUTES = 12
EVERY = 3  # seconds
PER_MINUTE = 60 // EVERY
LOOKS = PER_MINUTE * MINUTES
JOBS = {"a": range(4), "b": range(4, 8)}
FAULTY, HOT, REPLAYING, UNREPORTED = 1, 2, 5, 6
Stored = tuple[Mapping[str, Any], Mapping[GpuId, Any]]


def live() -> list[Snapshot]:
    """Two jobs on eight GPUs: one is hot for a while, one has faulty memory, one replays, one at
    last tells no SM.
    """
    clock = Clock(BEGIN)
    source = SimulatedSource(8, per_node=4, seed=11, clock=clock)
    found = []
    for poll in range(LOOKS + 1):
        second = EVERY * poll
        clock.t = BEGIN + second
        one = source.read()
        values = {name: column.copy() for name, column in one.values.items()}
        values["remapped_rows_uncorrectable"][FAULTY] = 2.0
        values["gpu_temp_c"][HOT] = 97.0 if 300 <= second < 420 else 55.0
        values["pcie_replays"][:] = 4.0
        values["pcie_replays"][REPLAYING] += second >= 200
        if second >= 600:
            values["sm_active"][UNREPORTED] = np.nan
        if 100 <= second < 460:  # another kind of work, for a while
            values["sm_active"][:4], values["tensor_active"][:4] = 0.7, 0.6
            values["fp64_active"][:4] = 0.0
        if second >= 480:  # two GPUs of a job do less
            values["gpu_util"][4:6] *= 0.25
        allocations = {
            gpu: GpuAllocation("a" if row < 4 else "b", "ana", BEGIN)
            for row, gpu in enumerate(one.gpus)
        }
        stored = {
            name: column.astype(np.float32).astype(np.float64) for name, column in values.items()
        }
        stored["energy_j"] = values["energy_j"]
        found.append(replace(one, values=stored, allocations=allocations))
    return found


SNAPSHOTS = live()
GPUS = SNAPSHOTS[0].gpus


def viewed(settings: WorkloadSettings) -> list[FleetView]:
    source = SimulatedSource(8)
    monitor = Monitor(source.about, settings=settings, history=GpuHistory(LOOKS + 1))
    return [monitor.step(one) for one in SNAPSHOTS]


def reading(snapshot: Snapshot, row: int) -> Values:
    return {
        n: None if column[row] != column[row] else float(column[row])
        for n, column in snapshot.values.items()
    }


def lake_of(folder: Path, *, start: int = 0, polls: int = LOOKS) -> Any:
    """The looks as they are stored, of jobs that ran from `start` on."""
    began, ended = (
        START + timedelta(seconds=EVERY * start),
        START + timedelta(seconds=EVERY * polls),
    )
    rows: list[dict[str, Any]] = [
        {
            "t": START + timedelta(seconds=EVERY * poll),
            "node": gpu.node,
            "gpu": gpu.gpu,
            **reading(SNAPSHOTS[poll], row),
        }
        for poll in range(start, polls)
        for row, gpu in enumerate(GPUS)
    ]
    whole = (
        "throttle_reasons",
        "xid",
        "pcie_replays",
        "remapped_rows_uncorrectable",
        "remapped_rows_correctable",
    )
    for one in rows:
        for name in (*whole, "row_remap_failure"):
            one[name] = int(one[name])
    return make_lake(
        folder,
        gpu_samples=rows,
        jobs=[job(name, began, ended) for name in JOBS],
        allocations=[
            row
            for name, places in JOBS.items()
            for row in held(
                name, GPUS[places[0]].node, [GPUS[place].gpu for place in places], began, ended
            )
        ],
        devices=[
            {"node": g.node, "gpu": g.gpu, "model": "NVIDIA H100 80GB HBM3", "t": START}
            for g in GPUS
        ],
    )


@pytest.fixture(scope="module")
def stored(
    tmp_path_factory: pytest.TempPathFactory,
) -> Stored:
    """Summaries by job, rows by GPU."""
    lake = lake_of(tmp_path_factory.mktemp("stored") / "lake")
    analyze(lake, Configuration(), judge=JobJudge, now=START + timedelta(days=1))
    summaries = read_summaries(lake)
    jobs = {row["job_id"]: row for row in summaries.iter_rows(named=True)}
    gpus = {
        GpuId(row["node"], row["gpu"]): row
        for row in read_gpus(lake, summaries).iter_rows(named=True)
    }
    return jobs, gpus


def minute_classes() -> dict[tuple[int, int], str]:
    """{(GPU, minute): the class of its means}, in plain Python."""
    found = {}
    for row in range(8):
        for minute in range(MINUTES):
            reported = [
                reading(SNAPSHOTS[poll], row)
                for poll in range(PER_MINUTE * minute, PER_MINUTE * (minute + 1))
            ]
            means: Values = {}
            for name in reported[0]:
                known = [value for one in reported if (value := one[name]) is not None]
                means[name] = sum(known) / len(known) if known else None
            found[row, minute] = kind(means, PRESETS["ai"])
    return found


def test_stored_shares_are_those_of_the_minutes_and_live_ones_but_for_smoothing(
    stored: Stored,
) -> None:
    jobs, _ = stored
    minutes = minute_classes()
    raw, smoothed = viewed(WorkloadSettings(smoothing_s=0)), viewed(WorkloadSettings())
    for name, rows in JOBS.items():
        shares = dict(zip(WORKLOAD_CLASSES, jobs[name]["workload_fractions"], strict=True))
        plain = Counter(minutes[row, minute] for row in rows for minute in range(MINUTES))
        assert shares == pytest.approx(
            {one: plain[one] / (4 * MINUTES) for one in WORKLOAD_CLASSES}, abs=1e-6
        )
        for views in (raw, smoothed):
            reported = Counter(view.label(row) for view in views[:LOOKS] for row in rows)
            # a minute whose looks are all of one class is of that class when stored; in the others
            # they may differ
            unsettled = 0
            for row in rows:
                for minute in range(MINUTES):
                    seen = {
                        view.label(row)
                        for view in views[PER_MINUTE * minute : PER_MINUTE * (minute + 1)]
                    }
                    if seen == {minutes[row, minute]}:
                        continue
                    unsettled += 1
                    if views is raw:
                        assert len(seen) > 1, (row, minute, seen, minutes[row, minute])
                    else:  # the label trails by half a window, or by a whole one where means are near a threshold
                        before = {
                            view.label(row)
                            for view in raw[
                                max(0, PER_MINUTE * minute - 30 // EVERY) : PER_MINUTE
                                * (minute + 1)
                            ]
                        }
                        assert len(before) > 1, (row, minute, seen, minutes[row, minute])
            for one in WORKLOAD_CLASSES:
                assert (
                    abs(reported[one] / (4 * LOOKS) - shares[one])
                    <= unsettled / (4 * MINUTES) + 1e-9
                )
            assert unsettled <= 4 * MINUTES / 2
    assert len(set(minutes.values())) >= 4


def test_stored_health_is_the_worst_that_was_live(
    stored: Stored,
) -> None:
    jobs, gpus = stored
    # At the first poll new replays are unknown.
    views = viewed(WorkloadSettings(event_memory_s=86_400))[1:LOOKS]
    order = ("CRIT", "WARN", "HOT", "unknown", "OK")
    worst = {
        gpu: min({view.state(row) for view in views}, key=order.index)
        for row, gpu in enumerate(GPUS)
    }
    assert {gpu: row["health"] for gpu, row in gpus.items()} == worst
    assert {GPUS.index(gpu): state for gpu, state in worst.items() if state != "OK"} == {
        FAULTY: "CRIT",
        HOT: "HOT",
        REPLAYING: "WARN",
    }
    for name, rows in JOBS.items():
        assert jobs[name]["health"] == min((worst[GPUS[row]] for row in rows), key=order.index)


def test_spatial_imbalance_on_the_screen_is_the_stored_one(tmp_path: Path) -> None:
    """The screen looks back over five whole windows: those of a job that began with the first of
    them, stored.
    """
    end = 10 * PER_MINUTE  # the look at which window 10 begins
    lake = lake_of(tmp_path / "lake", start=end - 5 * PER_MINUTE, polls=end)
    analyze(lake, Configuration(), judge=JobJudge, now=START + timedelta(days=1))
    view = None
    monitor = Monitor(
        SimulatedSource(8).about, settings=WorkloadSettings(), history=GpuHistory(600)
    )
    for one in SNAPSHOTS[: end + 1]:
        view = monitor.step(one)
    assert view is not None
    for row in read_summaries(lake).iter_rows(named=True):
        of_job = job_facts(view, row["job_id"])
        assert of_job is not None
        assert of_job.spread.windows == 5
        assert of_job.spread.imbalance == pytest.approx(row["spatial_imbalance"], abs=1e-6)
        assert (row["job_id"] == "a") or row["spatial_imbalance"] > 0.1
