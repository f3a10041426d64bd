"""Verdicts where work is not counted: by the job's own power, and unknown by utilisation alone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_jobs import Levels, gpu_minutes, phases, verdicts

from madelake import held, job, make_lake, summarized, utc
from tachograph.annexes.lab.accuracy import COUNTER_SETS
from tachograph.catalog.config import ClassOptions, Configuration
from tachograph.judge.classes.work_level import (
    WAITING,
    WORKING,
)
from tachograph.judge.finding import Finding
from tachograph.lake.query import read_summaries, read_verdicts

BOARD_W = 700.0
IDLE_W = 105.0  # 15 % of the board's: what is assumed where the job was never idle
AT_WORK: Levels = {
    "gpu_util": 0.99, "mem_copy_util": 0.4, "power_w": 640.0, "sm_active": 0.7,
    "tensor_active": 0.4, "dram_active": 0.3, "fp32_active": 0.1,
}  # fmt: skip
# A collective operation that waits.
HUNG: Levels = dict.fromkeys(AT_WORK, 0.0) | {"gpu_util": 1.0, "power_w": 240.0, "sm_active": 0.15}
# As recorded of an H100.
HOST_COPY: Levels = HUNG | {"gpu_util": 0.999, "power_w": 144.5, "mem_copy_util": 0.0197}
LAUNCH_BOUND: Levels = HUNG | {"gpu_util": 0.37, "power_w": 138.4}
PROFILING = ("sm_active", "tensor_active", "dram_active", "fp32_active")
BUSY_CODES = ("job_hang", "stall", "cold_start")
POWER_ONLY = ClassOptions(characteristics=dict.fromkeys(BUSY_CODES, ("power",)))


def planted(
    folder: Path, counters: tuple[str, ...] | None, settings: ClassOptions
) -> dict[str, dict[str, Any]]:
    """Return the stored findings of 8 H100 that work for 72 of 240 minutes, then wait."""
    begin = utc(2)
    end = begin + timedelta(hours=4)
    samples = []
    for minute in range(240):
        levels = AT_WORK if minute < 72 else HUNG
        values = {name: levels[name] for name in levels if counters is None or name in counters}
        t = begin + timedelta(minutes=minute)
        samples += [{"t": t, "node": "n1", "gpu": gpu, **values} for gpu in range(8)]
    model = "NVIDIA H100 80GB HBM3"
    lake = make_lake(
        folder / "lake",
        gpu_samples=samples,
        jobs=[job("1", begin, end, gpus=8, state="TIMEOUT")],
        allocations=held("1", "n1", range(8), begin, end),
        devices=[{"node": "n1", "gpu": gpu, "model": model} for gpu in range(8)],
    )
    summarized(lake, Configuration(classes=settings))
    rows = read_verdicts(lake, read_summaries(lake)).iter_rows(named=True)
    return {row["code"]: row for row in rows}


@pytest.mark.parametrize("settings", [ClassOptions(), POWER_ONLY])
@pytest.mark.parametrize("counters", COUNTER_SETS)
def test_a_hung_job_by_what_was_recorded(
    tmp_path: Path, counters: str, settings: ClassOptions
) -> None:
    found = planted(tmp_path, COUNTER_SETS[counters], settings)
    hang = found["job_hang"]
    if counters == "utilisation":
        assert {found[code]["verdict"] for code in (*BUSY_CODES, "busy_waiting")} == {"unknown"}
        assert "work is not known" in hang["sentence"]
        assert "Record power" in hang["sentence"]
        return
    assert (hang["verdict"], hang["covered_by"]) == ("yes", None)
    assert hang["begin"] == utc(2, 1, 12)
    assert hang["end"] == utc(2, 4)
    assert found["busy_waiting"]["covered_by"] == "job_hang"
    assert found["stall"]["verdict"] == found["cold_start"]["verdict"] == "no"
    if counters == "all":
        assert hang["confidence"] == "high"
        assert found["busy_waiting"]["confidence"] is None
        return
    assert hang["confidence"] == found["busy_waiting"]["confidence"] == "low"
    assert hang["sentence"] == (
        "The GPUs probably hung from 1 h 12 min after the start, for 2 h 48 min until the end: "
        "utilisation 100 %, power 38 % of what it was at work."
    )


def judged(
    *parts: tuple[int, Levels | None],
    without: Sequence[str] = (*PROFILING, "mem_copy_util"),
    state: str = "TIMEOUT",
) -> dict[str, Finding]:
    """Return the findings of classes on one GPU of an H100."""
    levels = phases(*parts)
    rows = gpu_minutes(levels, without=without)
    if "mem_copy_util" not in without:
        copies = [None if each is None else each["mem_copy_util"] for each in levels]
        rows = rows.with_columns(mem_copy_util=pl.Series(copies, dtype=pl.Float32))
    return verdicts(rows, gpu_model="H100 SXM 80GB", state=state)


def at_level(level: float) -> Levels:
    """Return levels of full utilisation with a power between idle and at work."""
    return HUNG | {"power_w": IDLE_W + level * (640.0 - IDLE_W)}


@pytest.mark.parametrize(
    ("level", "verdict"),
    [(0.0, "yes"), (WAITING - 0.01, "yes"), (WAITING + 0.01, "unknown"), (0.5, "unknown"),
     (WORKING - 0.01, "unknown"), (WORKING + 0.01, "no"), (1.0, "no")],
)  # fmt: skip
def test_the_power_that_is_work(level: float, verdict: str) -> None:
    found = judged((72, AT_WORK), (168, at_level(level)))["job_hang"]
    assert found.verdict == verdict
    assert found.confidence == ("low" if verdict == "yes" else None)
    if verdict == "unknown":
        assert "record tensor_active and dram_active" in found.sentence
        assert {"tensor_active", "dram_active"} <= set(found.needs)
    if verdict == "no":
        assert "power shows work to its end" in found.sentence


def test_a_job_that_always_ran_at_that_power_did_not_hang() -> None:
    for power_w in (138.4, 144.5, 240.0, 300.0):
        found = judged((240, HUNG | {"power_w": power_w}))
        assert {found[code].verdict for code in BUSY_CODES} == {"no"}, power_w


def test_power_that_never_rises_above_idle_shows_nothing() -> None:
    found = judged((240, HUNG | {"power_w": 120.0}))
    assert {found[code].verdict for code in BUSY_CODES} == {"unknown"}


@pytest.mark.parametrize("phase", [HOST_COPY, at_level(0.3)])
def test_a_phase_that_comes_back_to_work_is_no_hang(phase: Levels) -> None:
    found = judged((100, AT_WORK), (80, phase), (60, AT_WORK))
    assert found["job_hang"].verdict == "no"
    assert (found["stall"].verdict, found["stall"].confidence) == ("yes", "low")
    assert "probably" in found["stall"].sentence


def test_a_phase_shorter_than_the_class_is_no_stall() -> None:
    found = judged((100, AT_WORK), (50, HOST_COPY), (90, AT_WORK))
    assert {found[code].verdict for code in BUSY_CODES} == {"no"}
    assert "pauses of at most 50 min" in found["stall"].sentence


def test_what_came_back_before_may_come_back_again() -> None:
    """Evaluation of 70 minutes after each 100 minutes of training; the last one ends the job."""
    found = judged((100, AT_WORK), (70, HOST_COPY), (100, AT_WORK), (70, HOST_COPY))
    assert found["job_hang"].verdict == "unknown"
    assert "which may be usual for it" in found["job_hang"].sentence
    # much longer than any pause before, after checkpoints of a few minutes
    epoch = ((40, AT_WORK), (3, HOST_COPY))
    assert judged(*epoch, *epoch, (40, AT_WORK), (150, HUNG))["job_hang"].verdict == "yes"


@pytest.mark.parametrize(
    ("state", "verdict"),
    [("COMPLETED", "unknown"), *((state, "yes") for state in ("TIMEOUT", "CANCELLED", "FAILED"))],
)
def test_a_job_that_completed_waited_for_something(state: str, verdict: str) -> None:
    """By power and utilisation a copy that ends a job looks like a hang, which no job survives."""
    found = judged((100, AT_WORK), (80, HOST_COPY), state=state)["job_hang"]
    assert found.verdict == verdict
    assert ("but it completed" in found.sentence) is (state == "COMPLETED")
    # work that is counted, idle GPUs, and a start that waits do not depend on it
    counted = judged((100, AT_WORK), (80, HUNG), without=(), state=state)["job_hang"]
    assert (counted.verdict, counted.confidence) == ("yes", "high")
    silent = HUNG | {"gpu_util": 0.0, "power_w": 72.0}
    assert judged((100, AT_WORK), (80, silent), state=state)["job_hang"].verdict == "yes"
    assert judged((80, HOST_COPY), (100, AT_WORK), state=state)["cold_start"].verdict == "yes"


def test_little_work_beside_a_wait_may_be_a_peak() -> None:
    found = judged((19, AT_WORK), (120, HUNG))["job_hang"]
    assert found.verdict == "unknown"
    assert judged((20, AT_WORK), (120, HUNG))["job_hang"].verdict == "yes"
    # of GPUs at zero there is no doubt
    idle = HUNG | {"gpu_util": 0.0, "power_w": 80.0}
    assert judged((12, AT_WORK), (120, idle))["job_hang"].verdict == "yes"


def test_full_utilisation_at_less_power_than_part_of_it_takes() -> None:
    part = AT_WORK | {"gpu_util": 0.7}
    assert judged((72, part), (168, at_level(0.5)))["job_hang"].verdict == "yes"
    for level, verdict in ((0.61, "unknown"), (0.74, "unknown"), (0.76, "no"), (1.0, "no")):
        assert judged((72, part), (168, at_level(level)))["job_hang"].verdict == verdict, level
    assert judged((72, AT_WORK), (168, at_level(0.5)))["job_hang"].verdict == "unknown"


def test_memory_traffic_tells_a_copy_from_a_hang() -> None:
    assert judged((100, AT_WORK), (90, HOST_COPY))["job_hang"].verdict == "yes"
    found = judged((100, AT_WORK), (90, HOST_COPY), without=PROFILING)["job_hang"]
    assert found.verdict == "unknown"
    decoding = HOST_COPY | {"power_w": 200.0, "mem_copy_util": 0.5}
    assert judged((100, AT_WORK), (90, decoding), without=PROFILING)["job_hang"].verdict == "no"
    assert judged((100, AT_WORK), (90, HUNG), without=PROFILING)["job_hang"].verdict == "yes"


def test_a_copy_over_pcie_is_no_hang_whatever_votes() -> None:
    work = AT_WORK | {"pcie_tx_bytes_per_s": 1e8, "pcie_rx_bytes_per_s": 1e8}
    copy = HOST_COPY | {"sm_active": 0.0, "dram_active": 0.008, "pcie_tx_bytes_per_s": 2.3e10}
    found = judged((100, work), (90, copy), without=())["job_hang"]
    assert (found.verdict, found.confidence) == ("no", None)
    assert "PCIe or NVLink traffic shows work to its end" in found.sentence
    still = copy | {"pcie_tx_bytes_per_s": 1e5}
    found = judged((100, work), (90, still), without=())["job_hang"]
    assert (found.verdict, found.confidence) == ("yes", "high")


def test_a_load_that_comes_and_goes_is_no_wait() -> None:
    for util in (0.37, 0.9, 0.96):
        found = judged((100, AT_WORK), (90, LAUNCH_BOUND | {"gpu_util": util}))
        assert found["job_hang"].verdict == "no", util


def test_power_that_varies_is_no_wait() -> None:
    uneven = [(1, at_level(0.1 + 0.2 * (minute % 2))) for minute in range(90)]
    assert judged((100, AT_WORK), *uneven)["job_hang"].verdict == "no"
    even = [(1, at_level(0.2 + 0.02 * (minute % 2))) for minute in range(90)]
    assert judged((100, AT_WORK), *even)["job_hang"].verdict == "yes"


def test_one_gpu_of_eight_at_work_is_no_hang() -> None:
    without = (*PROFILING, "mem_copy_util")
    hung = gpu_minutes(phases((72, AT_WORK), (168, HUNG)), without=without)
    working = gpu_minutes(phases((240, AT_WORK)), without=without)
    rows = [hung.with_columns(gpu=pl.lit(gpu, pl.Int16)) for gpu in range(1, 8)]
    found = verdicts(pl.concat([working, *rows]), gpus=8, gpu_model="H100 SXM 80GB")
    assert found["job_hang"].verdict == "no"


def test_a_gap_at_the_end_is_unknown() -> None:
    assert judged((100, AT_WORK), (90, None), (10, HUNG))["job_hang"].verdict == "unknown"


def test_utilisation_alone_shows_what_it_can() -> None:
    without = ("power_w", *PROFILING, "mem_copy_util")
    light = HUNG | {"gpu_util": 0.6}
    found = judged((240, light), without=without)
    assert {found[code].verdict for code in BUSY_CODES} == {"no"}
    found = judged((60, light), (180, HUNG), without=without)
    assert {found[code].verdict for code in ("job_hang", "stall")} == {"unknown"}
    # an hour without any hidden hour beside it
    found = judged((30, HUNG), (120, light), (30, HUNG), without=without)
    assert {found[code].verdict for code in BUSY_CODES} == {"no"}


# Minutes of work, of a wait, and of what is between, at one of three powers.
_COURSES = st.lists(
    st.tuples(st.integers(1, 90), st.sampled_from((0.0, 0.2, 0.5, 0.9))), max_size=6
)


@given(_COURSES)
def test_a_no_has_evidence_and_a_yes_its_hour(course: list[tuple[int, float]]) -> None:
    """An oracle that sees minutes: work anywhere in each hour at the end, or a wait through it."""
    parts = [(100, AT_WORK), *((minutes, at_level(level)) for minutes, level in course)]
    levels = [1.0] * 100 + [level for minutes, level in course for _ in range(minutes)]
    found = judged(*parts)["job_hang"]
    last_hour = levels[-60:]
    if any(level >= WORKING for level in last_hour[:-4]):
        assert found.verdict == "no"
    elif found.verdict == "no":
        # two minutes may be missing at the end, and what varies is no wait
        assert any(level >= WORKING for level in levels[-62:]) or len(set(last_hour)) > 1
    if found.verdict == "yes":
        assert max(levels[-58:]) < WAITING
        assert found.confidence == "low"
