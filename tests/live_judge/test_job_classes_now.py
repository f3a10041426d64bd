"""Job classes of running jobs: the same as the analysis of the same samples gives, minutes that
add up, memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from madelake import held, job, make_lake
from tachograph.annexes.watch.live.job_classes import (
    COMPLETIONS_S,
    EVERY_S,
    FORGET_S,
    GAP_SHARE,
    JOB_CLASS_COUNTERS,
    MOST_MINUTES,
    JobMinutes,
    LiveJobClasses,
)
from tachograph.annexes.watch.live.monitor import Monitor
from tachograph.annexes.watch.live.snapshot import (
    GpuAllocation,
    GpuDevice,
    GpuId,
    Snapshot,
    SourceInfo,
)
from tachograph.annexes.watch.live.view import FleetView, GpuHistory
from tachograph.catalog.config import Configuration
from tachograph.catalog.units import text
from tachograph.judge.finding import Finding, read_findings
from tachograph.judge.job_classes import CLASS_CODES
from tachograph.judge.job_judge import JobJudge
from tachograph.judge.workload.settings import WorkloadSettings
from tachograph.lake.query import read_summaries, read_verdicts
from tachograph.pipeline.run import analyze

START = datetime(2026, 4, 7, 9, 0, 20, tzinfo=UTC)
ABOUT = SourceInfo("made", "made for tests")
MODEL = "NVIDIA A100-SXM4-40GB"
GPUS = tuple(GpuId(node, gpu) for node in ("n1", "n2") for gpu in range(4))
# job -> its GPUs, and how many minutes after START it began
JOBS = {
    "hung": (GPUS[:2], 0),
    "lopsided": (GPUS[2:4], 3),
    "slow": (GPUS[4:6], 1),
    "short": (GPUS[6:8], 80),
}
EVERY = 30.0  # seconds between samples
SHORTER = ("job_hang", "stall", "cold_start")  # an analysis knows a second, shorter definition
MINUTES = 130
REST = dict.fromkeys(JOB_CLASS_COUNTERS[:-1], 0.0) | {  # no source reports copies here
    "power_w": 60.0, "pcie_tx_bytes_per_s": 1e4, "pcie_rx_bytes_per_s": 1e4,
}  # fmt: skip
WORK = REST | {"gpu_util": 0.95, "sm_active": 0.7, "gr_engine_active": 0.9, "tensor_active": 0.4, "dram_active": 0.4,
               "fp32_active": 0.1, "fp16_active": 0.1, "power_w": 310.0, "pcie_tx_bytes_per_s": 2e9,
               "pcie_rx_bytes_per_s": 1e9, "nvlink_tx_bytes_per_s": 5e9, "nvlink_rx_bytes_per_s": 5e9}  # fmt: skip


def values(name: str, place: int, minute: float, rng: np.random.Generator) -> Mapping[str, float]:
    """What a GPU of a job tells: hung after 40 minutes; one idle of two; nothing done for 65
    minutes; at work.
    """
    rests = {"hung": minute >= 40, "lopsided": place == 1, "slow": minute < 65, "short": False}[
        name
    ]
    noise = float(rng.normal(1, 0.05))
    return {
        counter: min(value * noise, 1.0) if value < 2 else value
        for counter, value in (REST if rests else WORK).items()
    }


def polls() -> Iterator[tuple[datetime, dict[GpuId, Mapping[str, float]]]]:
    """Samples of all GPUs, some missing; one GPU tells nothing for a while."""
    rng = np.random.default_rng(4)
    for poll in range(int(MINUTES * 60 / EVERY)):
        t = START + timedelta(seconds=EVERY * poll, microseconds=int(rng.integers(0, 900_000)))
        reported: dict[GpuId, Mapping[str, float]] = {}
        for name, (gpus, after) in JOBS.items():
            for place, gpu in enumerate(gpus):
                drawn = values(name, place, EVERY * poll / 60 - after, rng)
                if rng.random() > 0.02 and not (gpu == GPUS[5] and 50 < poll < 65):
                    reported[gpu] = drawn
        yield t, reported


def before_the_ledger(finding: Finding) -> Finding:
    """A finding of an analysis as it was before the ledger added its hours, which is not live."""
    if (hours := finding.evidence.get("gpu_hours_idle")) is None:
        return finding
    amount = text(hours, "h").removesuffix(" h")
    sentence = finding.sentence.removesuffix(f" {amount} GPU-h passed without work.")
    assert sentence != finding.sentence
    evidence = {name: value for name, value in finding.evidence.items() if name != "gpu_hours_idle"}
    return msgspec.structs.replace(finding, sentence=sentence, evidence=evidence)


def content(finding: Finding, near: Callable[[Any], Any] = lambda value: value) -> tuple[Any, ...]:
    """What a finding shows; numbers of an analysis are `near`: Polars computes seconds there."""
    return (
        *(finding.verdict, finding.sentence, finding.advice, finding.begin, finding.end),
        *(finding.needs, near(dict(finding.evidence))),
        [(check.name, check.relation, check.threshold, check.holds) for check in finding.checks],
        [None if check.value is None else near(check.value) for check in finding.checks],
    )


def snapshot(t: datetime, reported: Mapping[GpuId, Mapping[str, float]]) -> Snapshot:
    at = t.timestamp()
    allocations = {
        gpu: GpuAllocation(name, "ana", (START + timedelta(minutes=after)).timestamp())
        for name, (gpus, after) in JOBS.items()
        if t >= START + timedelta(minutes=after)
        for gpu in gpus
    }
    columns = {
        name: np.array([reported.get(gpu, {}).get(name, math.nan) for gpu in GPUS])
        for name in JOB_CLASS_COUNTERS
    }
    measured = np.array([at if gpu in reported else math.nan for gpu in GPUS])
    return Snapshot(
        at, GPUS, measured, columns, {gpu: GpuDevice(MODEL) for gpu in GPUS}, allocations
    )


def monitor() -> Monitor:
    return Monitor(ABOUT, settings=WorkloadSettings(), history=GpuHistory(2))


@pytest.fixture(scope="module")
def judged() -> tuple[datetime, Mapping[str, tuple[Finding, ...]]]:
    made, live = monitor(), LiveJobClasses(Configuration())
    last = START
    for t, reported in polls():
        live.step(made.step(snapshot(t, reported)), jobs=[])
        last = t
    last += timedelta(seconds=1)  # a look that adds nothing
    return last, live.step(made.step(snapshot(last, {})))


def test_live_verdicts_are_those_of_the_analysis(
    tmp_path: Path, judged: tuple[datetime, Mapping[str, tuple[Finding, ...]]]
) -> None:
    now, live = judged
    rows = [
        {"t": t, "node": gpu.node, "gpu": gpu.gpu, **drawn}
        for t, reported in polls()
        for gpu, drawn in reported.items()
    ]
    began = {name: START + timedelta(minutes=after) for name, (_, after) in JOBS.items()}
    lake = make_lake(
        tmp_path / "lake",
        gpu_samples=rows,
        jobs=[job(name, began[name], None) for name in JOBS],
        allocations=[row for name, (gpus, _) in JOBS.items()
                     for row in held(name, gpus[0].node, [gpu.gpu for gpu in gpus], began[name])],
        devices=[{"node": gpu.node, "gpu": gpu.gpu, "model": MODEL, "t": START} for gpu in GPUS],
    )  # fmt: skip
    analyze(lake, Configuration(), judge=JobJudge, now=now)
    summaries = read_summaries(lake)
    verdicts = read_verdicts(lake, summaries)
    assert set(live) == set(JOBS)
    for row in summaries.iter_rows(named=True):
        published = verdicts["confidence"].fill_null("high") != "low"
        mine = verdicts.filter(
            (verdicts["job_key"] == row["job_key"])
            & verdicts["code"].is_in(CLASS_CODES)
            & published
        )
        stored = read_findings(mine, CLASS_CODES)
        near = partial(pytest.approx, rel=1e-12)
        expected = {one.code: content(before_the_ledger(one), near) for one in stored}
        # a rule of the language decides the first, too, the shorter definition the others
        elsewhere = {"load_imbalance_waste", *verdicts.filter(~published)["code"]}
        # and a gap may hide what that is about
        elsewhere |= {code for code in SHORTER if expected.get(code, ("",))[0] == "unknown"}
        here = {one.code for one in live[row["job_id"]]}
        assert here - elsewhere == set(expected) - elsewhere
        for one in live[row["job_id"]]:
            if one.code not in expected or one.code in elsewhere:
                continue
            assert content(one) == expected[one.code], (row["job_id"], one.code)
    reported = {
        name: {one.code: one.verdict for one in findings} for name, findings in live.items()
    }
    assert reported["hung"]["job_hang"] == "yes"
    assert reported["lopsided"]["load_imbalance_waste"] == "yes"
    assert reported["slow"]["cold_start"] in ("yes", "unknown")
    assert reported["short"]["job_hang"] == "no"


def of(
    t: float, reported: Mapping[str, float], since: float | None, job_id: str | None = "7"
) -> FleetView:
    values = {name: np.array([value]) for name, value in reported.items()}
    allocations = {GPUS[0]: GpuAllocation(job_id, None, since)} if job_id else {}
    shot = Snapshot(t, GPUS[:1], np.array([t]), values, {}, allocations)
    none, nothing = np.zeros(1, np.uint8), np.zeros(1)
    return FleetView(ABOUT, shot, none, nothing, none, np.ones(1, np.bool_), nothing, GpuHistory(1))


def test_minutes_are_counted_from_the_start_of_the_job() -> None:
    gathered = JobMinutes()
    for t in range(1000, 1200, 10):
        gathered.add(of(t, {"power_w": float(t)}, since=970.0))
        gathered.add(of(t, {"power_w": 1e6}, since=970.0))  # read again
        gathered.add(of(t - 5, {"power_w": 1e6}, since=970.0))  # older
    seen = gathered.jobs["7"]
    assert [one.minute for one in seen.minutes] == [0, 1, 2]
    assert [float(one.means[JOB_CLASS_COUNTERS.index("power_w")]) for one in seen.minutes] == [
        1010.0,
        1055.0,
        1115.0,
    ]
    ((now, total),) = gathered.under_way("7")
    assert (now.minute, float(now.means[JOB_CLASS_COUNTERS.index("power_w")])) == (3, 1170.0)
    assert np.isnan(now.means[JOB_CLASS_COUNTERS.index("gpu_util")])
    assert total.samples == 20
    assert total.sums[JOB_CLASS_COUNTERS.index("power_w")] == sum(range(1000, 1200, 10))


def test_another_job_and_another_start_begin_anew() -> None:
    gathered = JobMinutes()
    gathered.add(of(1000, {"power_w": 5.0}, since=None))
    assert (gathered.jobs["7"].start_us, gathered.jobs["7"].start_reported) == (
        1_000_000_000,
        False,
    )
    gathered.add(of(1010, {"power_w": 7.0}, since=700.0))  # now its start is reported
    assert [now.minute for now, _ in gathered.under_way("7")] == [5]
    gathered.add(of(1020, {"power_w": 9.0}, since=1015.0, job_id="8"))
    assert [one.minute for one in gathered.jobs["7"].minutes] == [5]
    assert [now.minute for now, _ in gathered.under_way("8")] == [0]
    gathered.add(of(1030, {"power_w": 9.0}, None, job_id=None))
    assert gathered.under_way("8") == []
    gathered.add(of(1031 + FORGET_S, {"power_w": 9.0}, None, job_id=None))
    assert gathered.jobs == {}


def test_jobs_are_judged_once_a_minute_and_only_those_wanted() -> None:
    made, live, times = monitor(), LiveJobClasses(Configuration()), []
    judge = live._judge
    live._judge = lambda view, jobs: (times.append(view.snapshot.t), judge(view, jobs))[1]  # type: ignore[method-assign,func-returns-value]
    for second in range(0, 200, 20):
        t = START + timedelta(hours=2, seconds=second)
        found = live.step(made.step(snapshot(t, dict.fromkeys(GPUS, WORK))), jobs=["hung"])
        assert set(found) == {"hung"}
    assert np.diff(times).tolist() == [EVERY_S] * 3
    assert set(live.step(made.step(snapshot(t, {})), jobs=["slow", "not there"])) == {"slow"}
    assert live.step(made.step(snapshot(t, {})), jobs=[])["slow"]
    elsewhere = replace(snapshot(t, {}), allocations={GpuId("n9", 0): GpuAllocation("elsewhere")})
    times.clear()
    assert "elsewhere" not in live.step(made.step(elsewhere), jobs=["elsewhere"])
    assert times == []  # not judged at every look for want of it


def test_completions_of_a_job_are_kept_until_a_verdict_changes() -> None:
    """Looks begin two hours after the job: its begin is not known."""
    made, live, kept = monitor(), LiveJobClasses(Configuration()), []
    for minute in range(45):
        t = START + timedelta(hours=2, minutes=minute)
        live.step(made.step(snapshot(t, dict.fromkeys(GPUS, WORK))), jobs=["hung"])
        kept.append((t.timestamp(), live._completions["hung"]))
    for (_, before), (now, after) in pairwise(kept):
        assert now - after.t < COMPLETIONS_S
        if after is not before:
            assert after.t - before.t >= COMPLETIONS_S or after.verdicts != before.verdicts
    assert 4 <= len({each.t for _, each in kept}) <= 9
    assert any(each.refuted for _, each in kept), "its begin decides"


def test_another_run_of_a_job_inherits_nothing() -> None:
    """A job that was requeued keeps its number."""
    live, again = LiveJobClasses(Configuration()), 31 * 60.0
    for minute in range(30):
        wanted: list[str] | None = None if minute == 29 else []
        live.step(of(60.0 * minute + 1, {"gpu_util": 0.5}, since=0.0), wanted)
    assert live._timelines.height == 29
    assert live._completions["7"].start_us == 0
    for minute in range(31, 34):
        live.step(of(60.0 * minute + 1, {"gpu_util": 0.5}, since=again))
    assert live._timelines["minute"].to_list() == [0, 1]
    assert live._completions["7"].start_us == again * 1e6


def test_completions_are_evaluated_again_once_a_gap_counts() -> None:
    """Samples may come a quarter of an hour late; then the time without them is a gap."""
    live, last = LiveJobClasses(Configuration()), 59 * 60.0
    for minute in range(60):
        wanted: list[str] | None = None if minute == 59 else []
        live.step(of(60.0 * minute, {"gpu_util": 0.5}, since=0.0), wanted)
    evaluated = [live._completions["7"]]
    for minute in range(60, 77):
        view = of(60.0 * minute, {"gpu_util": 0.5}, since=0.0)
        live.step(replace(view, snapshot=replace(view.snapshot, measured=np.array([last]))))
        if live._completions["7"] is not evaluated[-1]:
            evaluated.append(live._completions["7"])
    assert [kept.t for kept in evaluated] == [last, last + COMPLETIONS_S, 76 * 60.0]
    assert [kept.share >= GAP_SHARE for kept in evaluated] == [False, False, True]


def test_memory_is_a_day_of_minutes() -> None:
    live = LiveJobClasses(Configuration())
    for minute in range(MOST_MINUTES + 200):
        live._gathered.add(of(60.0 * minute + 1, {"gpu_util": 0.5}, since=0.0))
    live.step(of(60.0 * (MOST_MINUTES + 200), {"gpu_util": 0.5}, since=0.0))
    assert live._timelines.height == MOST_MINUTES
    assert not live._gathered.jobs["7"].minutes
