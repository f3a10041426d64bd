"""Every line of advice: what it advises, on what evidence, and when there is none."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from advice_cases import GIB, NOW, OPTIONS, SITE, USUAL, advice, run, runs, value
from hypothesis import given
from hypothesis import strategies as st

from tachograph.catalog.config import SlurmOptions
from tachograph.judge.advice.advise import TOPICS, SiteFacts, advise
from tachograph.judge.advice.past_jobs import History, PastJob
from tachograph.judge.advice.request import read_script
from tachograph.judge.bounds import student_t
from tachograph.judge.partitions import PartitionUse, SitePartitions
from tachograph.report.advice import advice_json, advice_lines, sbatch_lines
from tachograph.report.lines import to_text


@pytest.mark.parametrize(
    ("used", "advised"),
    [
        ([1, 1, 1, 1], 1),
        ([1, 2, 1, 1], 2),
        ([4, 1, 1, 1], None),
        ([0, 0, 0, 0], None),
        ([None, 1, 1, 1], 1),
        ([None, None, 1, 1], None),
        ([1, 1, 1, 0], 1),
    ],
)
def test_gpus_are_as_many_as_any_run_used(used: list[int | None], advised: float | None) -> None:
    assert value(runs(*({"gpus_used": one} for one in used)), "gpus") == advised


def test_short_runs_are_no_evidence_of_few_gpus_but_of_many() -> None:
    short = [{"gpus_used": 1, "elapsed_s": 100.0}] * 4
    assert value(runs(*short), "gpus") is None
    few = [{"gpus_used": 1}] * 4
    assert value(runs(*few, {"gpus_used": 3, "elapsed_s": 100.0}, count=5), "gpus") == 3


def test_gpus_that_one_node_holds_need_no_second() -> None:
    line = advice([replace(job, nodes=2, gpus_used=2) for job in runs()], nodes=2).line("gpus")
    assert line is not None
    assert (line.value, line.option, line.followed) == (2, "--nodes=1 --gpus=2", True)


def test_run_that_was_measured_in_part_shows_how_many_it_needs_at_least() -> None:
    few = [{"gpus_used": 1}] * 4
    assert value(runs(*few, {"gpus_used": None, "gpus_worked": 3}, count=5), "gpus") == 3


MOVE = SitePartitions(
    SlurmOptions(shared=("shared",), exclusive=("gpu",)),
    use={
        (None, "shared"): PartitionUse(["ann"], [str(USUAL.gpu_model)], 4.0, 32.0, 64 * GIB, 7200)
    },
)


@pytest.mark.parametrize(
    ("script", "option"),
    [
        ("--gpus=4", "--partition=shared --nodes=1 --gpus=1 --time=01:15:00 --mem=30G"),
        (
            "--gpus-per-node=4 --time=2:00:00",
            "--partition=shared --nodes=1 --gpus-per-node=1 --mem=30G",
        ),
        (
            "--gres=gpu:4 --time=2:00:01 --mem-per-gpu=60G",
            "--partition=shared --nodes=1 --gres=gpu:1 --time=01:15:00 --mem-per-gpu=30720M",
        ),
        ("--gpus-per-task=4", None),  # it has no place for the number
        ("--gpus=4 --ntasks=32", "--partition=shared --nodes=1 --gpus=1 --time=01:15:00 --mem=30G"),
        ("--gpus=4 --ntasks=33", ""),  # the script goes on to request its CPUs
        ("--gpus=4 --exclusive", ""),
    ],
)
def test_move_in_the_words_of_the_script(script: str, option: str | None) -> None:
    past = [replace(job, gpus_used=1, whole_nodes=True) for job in runs()]
    request = replace(read_script(f"#SBATCH -p gpu {script}"), user=USUAL.user, name=USUAL.name)
    site = SiteFacts(SITE.capacities, MOVE)
    line = advise(request, History.of(past, OPTIONS), NOW, site, OPTIONS).line("gpus")
    assert line is not None
    assert (line.option or None) == (option or None)
    assert (line.value is None) is (option == "")


def test_nothing_is_advised_that_frees_nothing() -> None:
    """On nodes given whole fewer nodes free GPUs; fewer GPUs or CPUs, and less memory, do not."""
    past = [replace(job, gpus_used=1) for job in runs(count=10)]
    for slurm, reason in (
        (SlurmOptions(exclusive=("gpu",)), "nodes are given whole"),
        (SlurmOptions(), "whether the partition gives nodes whole is not known"),
    ):
        site = SiteFacts(SITE.capacities, SitePartitions(slurm))
        made = advise(USUAL.request, History.of(past, OPTIONS), NOW, site, OPTIONS)
        for topic in ("gpus", "host_memory", "cores"):
            line = made.line(topic)
            assert line is not None
            assert line.value is None
            assert str(line.reason).startswith(reason)
        of_two = [replace(job, nodes=2) for job in past]
        request = replace(USUAL.request, nodes=2)
        line = advise(request, History.of(of_two, OPTIONS), NOW, site, OPTIONS).line("gpus")
        assert line is not None
        assert (line.option, line.value, line.confidence) == ("--nodes=1 --gpus=2", 2, "high")
        assert line.evidence["gain"] == "frees 2 GPUs (1 node) for others"


@pytest.mark.parametrize(
    "slurm", [SlurmOptions(exclusive=("gpu",)), SlurmOptions(shared=("gpu",)), SlurmOptions()]
)
def test_gpus_that_are_no_multiple_of_the_nodes_are_the_reason(slurm: SlurmOptions) -> None:
    """Slurm spreads 3 GPUs over 2 nodes as it likes: which node becomes free is not known."""
    past = [replace(job, gpus=3, nodes=2, gpus_used=1) for job in runs()]
    site = SiteFacts(SITE.capacities, SitePartitions(slurm))
    line = advise(past[0].request, History.of(past, OPTIONS), NOW, site, OPTIONS).line("gpus")
    assert line is not None
    assert (line.value, line.reason) == (
        None,
        "how many of the 3 GPUs each of the 2 nodes gives is not known",
    )


def test_script_that_requests_whole_nodes_frees_nothing_by_fewer_gpus() -> None:
    past = [replace(job, gpus_used=1) for job in runs()]
    script = read_script("#SBATCH -p gpu --gpus=4 --exclusive")
    request = replace(script, user=USUAL.user, name=USUAL.name)
    line = advise(request, History.of(past, OPTIONS), NOW, SITE, OPTIONS).line("gpus")
    assert line is not None
    assert str(line.reason).startswith("nodes are given whole")
    plain = replace(request, exclusive=None)
    line = advise(plain, History.of(past, OPTIONS), NOW, SITE, OPTIONS).line("gpus")
    assert line is not None
    assert line.option == "--gpus=1"


@pytest.mark.parametrize(
    ("changes", "advised"),
    [
        ([], 40 * GIB),
        ([{"hbm_peak_mib": 22 * GIB}], 40 * GIB),
        ([{"hbm_peak_mib": 34 * GIB}], None),  # below the tier, but far from the others
        ([{"hbm_peak_mib": 35 * GIB}], None),
        ([{"hbm_peak_mib": 60 * GIB}], None),  # 75 %: what JAX takes
        ([{"hbm_peak_mib": None}], 40 * GIB),
        ([{"hbm_peak_mib": None}] * 2, None),
        ([{"state": "FAILED"}] * 2, None),
    ],
)
def test_smaller_memory_tier(changes: list[dict[str, Any]], advised: float | None) -> None:
    assert value(runs(*changes), "gpu_memory") == advised


def test_runs_on_smaller_gpus_say_more_than_peaks() -> None:
    reserved = [{"hbm_peak_mib": 76 * GIB}] * 4
    small = {"hbm_mib": 40 * GIB, "hbm_peak_mib": 38 * GIB}
    assert value(runs(*reserved), "gpu_memory") is None
    jobs = runs(*reserved, *[small] * 3, count=7)
    assert value(jobs, "gpu_memory") == 40 * GIB
    assert value([*jobs[:4], *(replace(job, gpus=8) for job in jobs[4:])], "gpu_memory") is None
    failed = run(8, state="FAILED", **small)
    assert value([*jobs, failed], "gpu_memory") is None
    line = advice(jobs).line("gpu_memory")
    assert line is not None
    assert set(line.jobs) == {"4", "5", "6"}


def test_option_of_a_memory_tier_is_the_sites() -> None:
    site = msgspec.structs.replace(OPTIONS, memory_options={"40": "--constraint=hbm40g"})
    assert "--constraint=hbm40g" in advice(runs(), site).options
    assert not [option for option in advice(runs()).options if "constraint" in option]


@pytest.mark.parametrize(
    ("changes", "advised"),
    [
        ([], 75 * 60),
        # E^(0.02 + 7.8 * 0.04 * sqrt(1.25)) of an hour, rounded up.
        ([{"elapsed_s": 3900.0}], 90 * 60),
        # Its spread: nothing is known of the end.
        ([{"elapsed_s": 9000.0, "state": "FAILED"}], None),
        ([{"elapsed_s": 9000.0, "state": "TIMEOUT"}], None),
        # Three later runs took longer and completed: its limit was raised.
        ([{"elapsed_s": 1800.0, "state": "TIMEOUT", "submit": 0.0}], 75 * 60),
        ([{"elapsed_s": 1800.0, "state": "TIMEOUT", "submit": NOW - 2400.0}], None),
        ([{"elapsed_s": 1800.0, "state": "TIMEOUT", "submit": 0.0}, {"elapsed_s": 900.0}], None),
        ([{"elapsed_s": 86000.0, "state": "TIMEOUT", "problems": ("job_hang",)}], 75 * 60),
        ([{"elapsed_s": 36000.0}], None),
        ([{"elapsed_s": None}] * 2, None),
    ],
)
def test_time_limit(changes: list[dict[str, Any]], advised: float | None) -> None:
    assert value(runs(*changes), "time") == advised


def test_hung_runs_are_left_out_and_named() -> None:
    made = advice(
        runs({"elapsed_s": 86000.0, "state": "TIMEOUT", "problems": ("job_hang",)}, count=5)
    )
    assert "1 run that hung left out" in " ".join(to_text(advice_lines(made)).split())
    problems = made.line("problems")
    assert problems is not None
    assert problems.evidence == {"job_hang": 1.0}


@pytest.mark.parametrize(
    ("changes", "advised"),
    [
        ([], 30),
        ([{"mem_peak_mib": 21 * GIB}], 32),
        ([{"mem_peak_mib": None}], 30),
        ([{"mem_peak_mib": None}] * 2, None),
        ([{"state": "OUT_OF_MEMORY", "mem_mib": 32 * GIB}], 48),
        ([{"state": "OUT_OF_MEMORY", "mem_mib": 256 * GIB}], 384),
        ([{"nodes": 2}] * 2, None),
    ],
)
def test_host_memory(changes: list[dict[str, Any]], advised: float | None) -> None:
    found = value(runs(*changes), "host_memory")
    assert found == (None if advised is None else advised * GIB)


def test_memory_beside_fewer_gpus_is_capped_as_in_the_report_of_a_job() -> None:
    past = [replace(job, gpus_used=1, whole_nodes=True, mem_mib=25 * GIB) for job in runs()]
    site = SiteFacts(SITE.capacities, MOVE)
    for state, option in (("COMPLETED", "--mem=25G"), ("OUT_OF_MEMORY", "--mem=38G")):
        ended = [replace(past[0], state=state), *past[1:]]
        line = advise(past[0].request, History.of(ended, OPTIONS), NOW, site, OPTIONS).line("gpus")
        assert line is not None
        assert str(line.option).split()[-1] == option


def test_memory_is_requested_by_the_option_of_the_script() -> None:
    options = {
        option: [one for one in advice(runs(), memory_option=option).options if "mem" in one]
        for option in ("mem", "mem-per-gpu", "mem-per-cpu")
    }
    assert options["mem"] == ["--mem=30G"]
    assert options["mem-per-gpu"] == ["--mem-per-gpu=7680M"]
    assert options["mem-per-cpu"] == ["--mem-per-cpu=480M"]


def test_slice_is_a_hint_for_one_gpu() -> None:
    one = [replace(job, gpus=1, gpus_used=1, sm_active=0.2, hbm_peak_mib=8 * GIB) for job in runs()]
    line = advice(one, gpus=1).line("sharing")
    assert line is not None
    assert (line.evidence["profile"], line.confidence, line.option) == ("2g.20gb", "low", None)
    assert value([replace(job, sm_active=None) for job in one], "sharing", gpus=1) is None
    assert value([replace(job, gpu_model="NVIDIA L40S") for job in one], "sharing", gpus=1) is None
    assert value(runs(), "sharing") is None


def test_expected_use_and_cores() -> None:
    jobs = runs({"gpu_hours": 8.0, "energy_j": 2e6}, count=20)
    line = advice(jobs).line("expected")
    assert line is not None
    assert (line.value, line.evidence["energy_j_median"], line.evidence["gpu_hours_p95"]) == (
        4.0,
        1e6,
        4.0,
    )
    cores = advice(jobs).line("cores")
    assert cores is not None
    assert (cores.value, cores.asked, cores.confidence) == (13, 64, "low")


def test_nearest_group_and_its_confidence() -> None:
    others = [replace(job, key=f"o{job.key}", name="other") for job in runs(count=5)]
    numbered = [
        replace(job, key=f"n{job.key}", name=f"train_{number}")
        for number, job in enumerate(runs(count=12))
    ]
    exact = runs(count=12)
    levels = [
        (exact[:2], None, None),
        (exact[:3], "exact", "medium"),
        (exact, "exact", "high"),
        ([*others, exact[0]], "user", "low"),
    ]
    for jobs, level, confidence in levels:
        made = advice(jobs)
        line = made.line("problems" if level == "user" else "time")
        assert made.group.level == level
        assert line is None or line.confidence in (confidence, "none")
    for count, confidence in ((3, "low"), (12, "medium")):
        made = advice(numbered[:count], name="train_99")
        line = made.line("time")
        assert made.group.level == "pattern"
        assert line is not None
        assert line.confidence == confidence
        assert bool(made.options) is (confidence == "medium")


def test_old_and_later_jobs_do_not_count() -> None:
    assert advice([replace(job, end=NOW + 1) for job in runs()]).group.level is None
    assert advice([replace(job, end=NOW - 181 * 86400) for job in runs()]).group.level is None


def test_the_latest_runs_count() -> None:
    jobs = [run(number, gpus_used=4 if number >= 50 else 1) for number in range(60)]
    assert value(jobs, "gpus") == 1


JOBS = st.lists(
    st.builds(
        run,
        st.integers(0, 400),
        user=st.sampled_from(["ann", "bob"]),
        name=st.sampled_from(["train", "train_1", "other"]),
        gpus=st.sampled_from([1, 4]),
        state=st.sampled_from(["COMPLETED"] * 6 + ["FAILED", "TIMEOUT", "OUT_OF_MEMORY"]),
        elapsed_s=st.none() | st.floats(1, 1e5),
        gpus_used=st.none() | st.integers(0, 4),
        hbm_peak_mib=st.none() | st.floats(0, 80 * GIB),
        mem_peak_mib=st.none() | st.floats(0, 256 * GIB),
        problems=st.sampled_from([(), ("job_hang",), ("idle_job",)]),
    ),
    max_size=25,
    unique_by=lambda job: job.key,
)


def plain_least(jobs: list[PastJob], topic: str) -> float:
    """Return what the latest runs of the group used, with the margin: no line may advise less."""
    mine = [job for job in jobs if (job.user, job.name, job.gpus) == ("ann", "train", 4)]
    if len(mine) < 3:
        mine = [
            job for job in jobs if (job.user, job.gpus) == ("ann", 4) and job.name in ("train",)
        ]
    values: dict[str, list[float]] = {
        "gpus": [float(job.gpus_used) for job in mine if job.gpus_used is not None],
        "gpu_memory": [1.15 * job.hbm_peak_mib for job in mine if job.hbm_peak_mib is not None],
        "time": [
            1.25 * job.elapsed_s
            for job in mine
            if job.elapsed_s is not None and "job_hang" not in job.problems
        ],
        "host_memory": [1.5 * job.mem_peak_mib for job in mine if job.mem_peak_mib is not None],
    }
    return max(values[topic], default=0.0)


@given(JOBS, st.randoms())
def test_advice_is_never_below_what_was_used_and_does_not_depend_on_order_or_others(
    jobs: list[PastJob], rng: random.Random
) -> None:
    made = advice(jobs)
    shuffled = rng.sample(jobs, len(jobs))
    assert advice(shuffled) == made
    assert advice([job for job in jobs if job.user == "ann"]) == made
    own = {job.label for job in jobs if job.user == "ann"}
    for line in made.lines:
        assert own.issuperset(line.jobs)
        assert (line.value is None) == (line.reason is not None)
        if line.value is not None and line.topic in ("gpus", "gpu_memory", "time", "host_memory"):
            at_least = plain_least(jobs, line.topic)
            usable = SITE.capacities[line.value] if line.topic == "gpu_memory" else line.value
            assert usable >= at_least - 1e-6
    topics = [line.topic for line in made.lines]
    assert topics in ([], ["problems"], list(TOPICS))
    assert (made.group.level is None) == (len(topics) < 2)
    assert advice_json(made)["sbatch"] == sbatch_lines(made)


def test_prediction_bound_holds_as_often_as_it_says() -> None:
    """Of log-normal values the next exceeds the bound as often as its certainty leaves; computed
    anew.
    """
    rng, above, rounds = random.Random(3), 0, 20_000
    quantile = student_t(4, 0.95)
    for _ in range(rounds):
        logs = [rng.gauss(0.0, 1.0) for _ in range(6)]
        past = logs[:5]
        bound = statistics.fmean(past) + quantile * statistics.stdev(past) * math.sqrt(1 + 1 / 5)
        above += logs[5] > bound
    assert 0.04 < above / rounds < 0.06


def test_no_user_no_advice() -> None:
    made = advise(
        replace(USUAL.request, user=None), History.of(runs(), OPTIONS), NOW, SITE, OPTIONS
    )
    assert made.lines == ()
    assert "user is not known" in to_text(advice_lines(made))


def test_one_past_run_is_a_hint_of_problems_and_changes_no_request() -> None:
    hung = run(1, problems=("job_hang",), recoverable=(None, 3.0, None, None, None))
    made = advice([hung])
    assert made.group.level is None
    (line,) = made.lines
    assert (line.topic, line.confidence, line.runs, line.followed) == ("problems", "low", 1, False)
    assert line.evidence["job_hang"] == 1.0
    assert made.options == ()
    assert "No advice on the request" in to_text(advice_lines(made))
    # Of the name, on other GPUs.
    assert advice([replace(hung, gpus=2)]).lines[0].evidence["job_hang"] == 1.0
    assert advice([replace(hung, name="other")]).lines == ()
    assert advice([run(1)]).lines == (), "a run without problems is no hint"
    others = [run(number, name="other", problems=("idle_job",)) for number in range(2, 7)]
    beside = advice([hung, *others])
    problems = beside.line("problems")
    assert beside.group.level == "user"
    assert problems is not None
    assert set(problems.evidence) == {"job_hang", "recoverable_hung"}, (
        "its own run comes before those of other names"
    )


def test_runs_of_one_further_name_are_evidence_of_one_job() -> None:
    """Names that differ in a number may be other jobs: ten runs of one of them are no ten jobs
    of the pattern.
    """
    one = [run(number, name="train_01") for number in range(12)]
    line = advice(one, name="train_02").line("time")
    assert line is not None
    assert (line.value is not None, line.confidence) == (True, "low")
    ten = [run(number, name=f"train_{number:02d}") for number in range(12)]
    line = advice(ten, name="train_77").line("time")
    assert line is not None
    assert line.confidence == "medium"
