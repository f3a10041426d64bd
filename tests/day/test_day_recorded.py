"""A lake's jobs are played as they were recorded; what cannot be played is counted and reported."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from day import command
from day.gpu import NAMES, alone, corunners, rates
from day.jobs import COUNTERS, Application, SharedDay, counted_means, distances, sample_mixes
from day.report import How, RecordedJobs, build_recorded_report, recorded, tally
from day.schedule import Permits, Phases, PlayedDay, SetSharing, play, set_sharing, speeds_of_set, true_speeds
from day.text import heading
from tachograph.catalog.config import InterferenceOptions, Thresholds
from tachograph.catalog.errors import NotFoundError, UsageError
from tachograph.catalog.tables import JOB_SUMMARIES

pytestmark = pytest.mark.slow  # days are simulated, which takes long

BEGIN = datetime(2026, 3, 2, tzinfo=UTC)
H100 = "H100 SXM 80GB"
DEVICES = pl.DataFrame(
    {"node": ["n1"] * 4, "gpu": range(4), "mig": [""] * 4, "model": ["NVIDIA H100 80GB HBM3"] * 4, "hbm_mib": 81559.0}
)
BUSY = {"gr_engine_active": 0.5, "sm_active": 0.5, "sm_occupancy": 0.03, "fp64_active": 0.24}


def job(number: int, *, hours: float = 1.0, at_h: float = 0.0, gpus: int = 1, **other: Any) -> dict[str, Any]:
    """A row of job_summaries: half of the time a kernel of FP64, as the world has it, but for what is given."""
    start = BEGIN + timedelta(hours=at_h)
    row: dict[str, Any] = dict.fromkeys(JOB_SUMMARIES.schema)
    row |= {f"{name}_mean": BUSY.get(name, 0.0) for name in COUNTERS}
    row |= {"job_key": f"c:{number}:0", "job_id": str(number), "display_id": str(number), "name": f"job{number}"}
    row |= {"user": "ann", "state": "COMPLETED", "gpu_model": H100, "attribution": "explicit", "gpus": gpus}
    row |= {"submit": start, "start": start, "end": start + timedelta(hours=hours), "elapsed_s": 3600 * hours}
    row |= {"gpu_hours": hours * gpus, "samples": 100, "coverage": 1.0, "hbm_used_mib_max": 4000.0}
    return row | {"dram_active_max": 0.1} | other


def frame(*rows: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=JOB_SUMMARIES.schema)


def found(*rows: dict[str, Any], **how: Any) -> RecordedJobs:
    return recorded(frame(*rows), DEVICES, thresholds=Thresholds(), achievable=0.9, **how)


def day(kinds: list[int], arrives: list[float], alone_s: list[float], gpus: list[int]) -> SharedDay:
    applications = tuple(
        Application(name, ((1.0, name),), 5e9) for name in ("dmul-ilp4", "sleep-132", "copy-33x1024", "inference-24")
    )
    return SharedDay(applications, np.array(kinds), np.array(arrives), np.array(alone_s), np.array(gpus))


def replayed(one: SharedDay, speed: list[list[float]], may: list[list[bool]], gpus: int, most: int = 2) -> list[float]:
    """Ends of the jobs, replayed in small steps of whole seconds by the plainest rules."""
    left, ends = one.alone_s.tolist(), [0.0] * one.alone_s.size
    gangs: list[tuple[int, list[int]]] = []  # GPUs, jobs
    waiting: list[int] = []
    for now in range(200_000):
        for _, jobs in gangs:
            for ended in [each for each in jobs if left[each] <= 1e-9]:
                jobs.remove(ended)
                ends[ended] = float(now)
        gangs = [gang for gang in gangs if gang[1]]
        waiting += [each for each in range(len(left)) if one.arrives_s[each] == now]
        while waiting and one.gpus[waiting[0]] <= gpus - sum(wide for wide, _ in gangs):
            first = waiting.pop(0)
            gangs.append((int(one.gpus[first]), [first]))
        for each in list(waiting):
            kind = one.application[each]
            for wide, jobs in gangs:
                fits = wide == one.gpus[each] and len(jobs) < most
                if fits and all(may[kind][one.application[other]] for other in jobs):
                    jobs.append(each)
                    waiting.remove(each)
                    break
        for _, jobs in gangs:
            for each in jobs:
                beside = [one.application[other] for other in jobs if other != each]
                left[each] -= speed[one.application[each]][beside[0]] if beside else 1.0
        if max(left) <= 1e-9 and not gangs:
            break
    return ends


def work_and_room(
    one: SharedDay, speed: np.ndarray[Any, Any], came: PlayedDay, gpus: int, sets: SetSharing | None = None
) -> None:
    """Work is conserved, no job is on a full GPU, and a job holds as many GPUs as it wants."""
    work = np.zeros(one.alone_s.size)
    for stay in came.stays:
        kinds = [int(one.application[each]) for each in stay.jobs]
        if len(kinds) > 2:
            assert sets is not None
            order = sorted(range(len(kinds)), key=kinds.__getitem__)
            of_set = sets.speeds(tuple(kinds[place] for place in order))
            rate = {order[place]: of_set[place] for place in range(len(order))}
        else:
            rate = {0: 1.0} if len(kinds) == 1 else {0: speed[kinds[0], kinds[1]], 1: speed[kinds[1], kinds[0]]}
        for place, each in enumerate(stay.jobs):
            work[each] += rate[place] * (stay.end_s - stay.begin_s)
            assert came.gpus[each] == stay.gpus
            assert len(stay.gpus) == one.gpus[each]
        assert len(stay.jobs) <= (sets.most if sets else 2)
    assert work.tolist() == pytest.approx(one.alone_s.tolist(), rel=1e-6)
    for gpu in range(gpus):
        held = sorted((stay.begin_s, stay.end_s) for stay in came.stays if gpu in stay.gpus)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(held))
    hours = sum((stay.end_s - stay.begin_s) * len(stay.gpus) for stay in came.stays) / 3600
    assert tally(one, came).held_gpu_hours == pytest.approx(hours)
    assert tally(one, came).saved_gpu_hours == pytest.approx(float(one.alone_s @ one.gpus) / 3600 - hours)


@pytest.mark.parametrize("seed", range(6))
def test_jobs_on_several_gpus_end_when_a_plain_replay_shows(seed: int) -> None:
    chance = np.random.default_rng(seed)
    arrives = np.sort(chance.choice(3000, 14, replace=False)).astype(float).tolist()
    kinds, wants = chance.integers(0, 4, 14).tolist(), chance.choice([1, 2, 4], 14).tolist()
    one = day(kinds, arrives, chance.integers(500, 4000, 14).astype(float).tolist(), wants)
    halves = np.full((4, 4), 0.5)  # ends fall on whole seconds
    may = np.array([[a != b for a in range(4)] for b in range(4)])
    came = play(one, Permits(may, np.zeros((4, 4))), halves, gpus=4)
    assert came.ends_s.tolist() == pytest.approx(replayed(one, halves.tolist(), may.tolist(), 4), abs=1.01)
    work_and_room(one, halves, came, 4)


def test_a_wide_job_is_not_passed_by_those_behind_it() -> None:
    one = day([0, 0, 0], [0.0, 1.0, 2.0], [100.0, 100.0, 100.0], [1, 4, 1])
    came = play(one, Permits(np.zeros((4, 4)) > 0, np.zeros((4, 4))), np.ones((4, 4)), gpus=4)
    assert came.starts_s.tolist() == [0.0, 100.0, 200.0]
    with pytest.raises(ValueError, match="a job wants 4 GPUs of 3"):
        play(one, Permits(np.zeros((4, 4)) > 0, np.zeros((4, 4))), np.ones((4, 4)), gpus=3)


def test_three_share_at_the_speed_of_their_set_while_memory_lasts() -> None:
    one = day([0, 1, 2], [0.0, 1.0, 2.0], [100.0, 100.0, 100.0], [2, 2, 2])
    speed, everyone = true_speeds(one, 1), Permits(np.ones((4, 4)) > 0, np.zeros((4, 4)))
    sets = set_sharing(one, 1, most=3, room_bytes=16e9)
    came = play(one, everyone, speed, gpus=2, sets=sets)
    assert came.starts_s.tolist() == [0.0, 1.0, 2.0]
    assert max(len(stay.jobs) for stay in came.stays) == 3
    work_and_room(one, speed, came, 2, sets)
    full = play(one, everyone, speed, gpus=2, sets=set_sharing(one, 1, most=3, room_bytes=14e9))
    assert full.starts_s[2] > 50


def test_a_set_of_two_is_a_pair_and_none_gains_by_a_third() -> None:
    one = day([0], [0.0], [1.0], [1])
    phases = [Phases.of(each.phases, cycle_s=each.cycle_s) for each in one.applications]
    pair = true_speeds(one, 1)
    assert speeds_of_set([phases[0], phases[2]], 1) == pytest.approx((pair[0, 2], pair[2, 0]))
    three = rates("dmul-ilp4", "copy-33x1024", "dmul-ilp3")
    assert three[0] <= rates("dmul-ilp4", "dmul-ilp3")[0] + 0.01
    assert rates("dmul-ilp3", "dmul-ilp4", "copy-33x1024") == (three[2], three[0], three[1])
    loses = [corunners(1)[NAMES.index("dmul-ilp4"), NAMES.index(name)] for name in ("copy-33x1024", "dmul-ilp3")]
    steady = [Phases.of([(1.0, name)], cycle_s=1.0) for name in ("dmul-ilp4", "copy-33x1024", "dmul-ilp3")]
    assert speeds_of_set(steady, 1)[0] == pytest.approx(three[0] * loses[0] * loses[1])


def test_a_mix_has_the_means_of_the_job() -> None:
    chance = np.random.default_rng(1)
    shares = np.zeros((5, len(NAMES)))
    for row in range(5):
        shares[row, chance.choice(len(NAMES), 2, replace=False)] = (0.3, 0.4)
    means = np.concatenate([shares @ counted_means(), np.zeros((1, len(COUNTERS)))])
    sampled = sample_mixes(means, np.random.default_rng(2))
    assert distances(means, sampled.means).max() < 0.06
    assert sampled.phases(5) == ((1.0, None),)  # a job that did nothing
    for row in range(5):
        phases = sampled.phases(row)
        assert sum(share for share, _ in phases) == pytest.approx(1)
        assert sum(share * (name is not None) for share, name in phases) == pytest.approx(sampled.means[row, 0])
        fp64 = sum(
            share * alone(name).pipes["fp64"] * counted_means()[NAMES.index(name), 1] for share, name in phases if name
        )
        assert fp64 == pytest.approx(sampled.means[row, COUNTERS.index("fp64_active")])


def test_jobs_are_as_the_lake_has_them() -> None:
    jobs = found(job(1), job(2, at_h=2, hours=3, gpus=2), job(3, at_h=1, name="job1", hbm_used_mib_max=9000.0))
    assert (jobs.device.name, jobs.gpus) == (H100, 4)
    assert jobs.arrives_s.tolist() == [0, 3600, 7200]
    assert jobs.alone_s.tolist() == [3600, 3600, 10800]
    assert jobs.wants.tolist() == [1, 1, 2]
    assert jobs.kind.tolist() == [0, 0, 1]
    assert jobs.hbm_bytes[0] == 9000 * 2**20
    assert jobs.load == pytest.approx((1 + 1 + 6) / (4 * 5))
    apart = found(job(1), job(2, name="job1", fp64_active_mean=0.05))
    assert apart.kind.tolist() == [0, 1]


def test_what_cannot_be_played_is_counted_by_reason() -> None:
    jobs = found(
        job(1),
        job(2, state="RUNNING"),
        job(3, submit=None),
        job(4, attribution="ambiguous"),
        job(5, samples=0),
        job(6, coverage=0.2),
        job(7, sm_active_mean=None),
        job(8, gpu_model=None),
        job(9, gpu_model="A40", hours=0.5),
        job(10, gpus=8),
    )
    reasons = ("running", "times", "ambiguous", "no_samples", "coverage", "no_counters", "model", "other_model")
    assert {reason: jobs.left_out[reason][0] for reason in reasons} == dict.fromkeys(reasons, 1)
    assert jobs.left_out["too_wide"] == (1, 8.0)
    assert jobs.alone_s.size == 1


@pytest.mark.parametrize(
    ("counter", "outcome"),
    [
        ("sm_occupancy", "sm_occupancy (DCGM_FI_PROF_SM_OCCUPANCY, 1003)"),
        ("fp64_active", "fp64_active (DCGM_FI_PROF_PIPE_FP64_ACTIVE, 1006)"),
    ],
)
def test_a_counter_that_no_job_has_is_not_compared(counter: str, outcome: str) -> None:
    blank: dict[str, Any] = {f"{counter}_mean": None}
    elsewhere = job(8, gpu_model="A40")  # where it is measured does not matter
    jobs = found(*(job(number, at_h=number, **blank) for number in range(3)), elsewhere)
    assert jobs.counters == tuple(name for name in COUNTERS if name != counter)
    assert jobs.means.tolist() == [[BUSY.get(name, 0.0) for name in jobs.counters]] * 3
    assert f"{counter}_mean" not in jobs.means_of_kind(0)
    report = build_recorded_report(how(), jobs)
    assert report.jobs == 3
    assert f"Not compared, as no job has them: {outcome}.\n" in heading(report)
    assert "Not compared" not in heading(build_recorded_report(how(), found(job(1))))


def test_a_job_that_lacks_what_others_have_is_not_played() -> None:
    jobs = found(job(1), job(2, fp64_active_mean=None), job(3, sm_occupancy_mean=float("nan")))
    assert jobs.counters == COUNTERS
    assert jobs.left_out == {"no_counters": (2, 2.0)}


def how(*seeds: int) -> How:
    policies = ("exclusive", "advice")
    return How(seeds=seeds or (1, 2), policies=policies, profiles="dcgm-careful", settings=InterferenceOptions())


def test_a_report_is_the_same_for_the_same_seeds_and_shows_what_it_is() -> None:
    rows = [job(number, at_h=0.1 * number, gpus=1 + number % 2) for number in range(12)]
    jobs = found(*rows, job(20, at_h=1, tensor_active_mean=1.0, dram_active_mean=1.0))
    first, again = build_recorded_report(how(), jobs), build_recorded_report(how(), jobs)
    assert first == again
    assert first != build_recorded_report(how(3, 4), jobs)
    assert first.played is not None
    assert first.jobs == 12
    assert first.played.left_out == {"no sampled mix comes within 10 points of their means": (1, 1.0)}
    assert first.played.distance_most < 0.1
    message = heading(first)
    assert "Which kernels run is sampled 2 times" in message
    assert "1 job, 1 GPU-hours: no sampled mix" in message
    with pytest.raises(UsageError, match="1 job cannot be played: no sampled mix"):
        build_recorded_report(how(), found(job(20, tensor_active_mean=1.0, dram_active_mean=1.0)))


def test_bad_input_is_refused_with_what_to_do() -> None:
    with pytest.raises(UsageError, match="no jobs to play"):
        found()
    with pytest.raises(UsageError, match=r"no samples of sm_active \(DCGM_FI_PROF_SM_ACTIVE, 1002\); record"):
        found(job(1, sm_active_mean=None))
    pipes: dict[str, Any] = dict.fromkeys(("fp32_active_mean", "fp64_active_mean", "tensor_active_mean"))
    with pytest.raises(UsageError, match=r"fp32_active .*1007\), fp64_active .*, tensor_active .*; record these"):
        found(job(1, **pipes))
    with pytest.raises(UsageError, match="none of 1 jobs can be played: 1 still running"):
        found(job(1, state="RUNNING"))
    with pytest.raises(NotFoundError, match=f"no job ran on V100; name one of {H100}"):
        found(job(1), model="V100")
    with pytest.raises(UsageError, match=r"unknown number of .* give --gpus"):
        recorded(frame(job(1)), DEVICES.clear(), thresholds=Thresholds(), achievable=0.9)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--lake", "x", "--gpus", "0"), "--gpus 0 is not between"),
        (("--per-gpu", "5"), "--per-gpu 5 is not between 2 and 4"),
        (("--lake", "x", "--load", "2"), "--load is of synthetic days"),
        (("--user", "ann"), "--user chooses jobs of a lake"),
        (("--model", "A100"), "--model chooses jobs of a lake"),
    ],
)
def test_options_that_do_not_fit_are_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        command.run(command.parsed([*words]))


@pytest.mark.slow
def test_the_command_plays_the_lake_of_the_demo(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ("--lake", str(demo / "lake"), "--gpus", "8", "--seeds", "1", "--policies", "exclusive", "advice")
    assert command.run(command.parsed([*few, "--per-gpu", "3", "--config", ""])) == 0
    text = capsys.readouterr().out
    assert command.run(command.parsed([*few, "--per-gpu", "3", "--config", "", "--json"])) == 0
    outcome = json.loads(capsys.readouterr().out)
    played = outcome["played"]
    hours = f"{played['gpu_hours']:,.0f} GPU-hours in all"
    assert f"{outcome['jobs']} jobs of {played['kinds']} kinds, {hours}, that ran on {played['model']}" in text
    for begin, title in (
        ("Work per GPU-hour:", "work per GPU-hour"),
        ("GPU-hours saved:", "GPU-hours saved"),
        ("Makespan ratio:", "makespan ratio"),
    ):
        assert (begin in text) == (title in text)
    assert "At most three jobs share a GPU, if each pair of them may." in text
    assert outcome["profiles"] == "dcgm-careful"
    assert [result["policy"] for result in outcome["results"]] == ["exclusive", "advice"]
    for why, (jobs, _) in outcome["played"]["left_out"].items():
        assert f"{jobs} job" in text
        assert why in text
