"""Metrics that rules name: what they come to, recomputed in plain Python, and where they are
null.
"""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import polars as pl
import pytest
from ruled_jobs import Job, MeasuredJob, Row, together

from tachograph.judge.rules.metrics import COMPUTED, OF_HOSTS, OFFERED, measure

WORK = (
    "work",
    "activity",
    "node_gpu_work_s",
    "node_activity",
    "node_gpus",
    "walltime",
    "activity_mean",
)


def one(job: Job, *names: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values of the job, and of its ranks."""
    measured = MeasuredJob(measure(job.summary, job.devices, job.nodes, names))
    levels = {name: OFFERED[name].level for name in names}
    of_job = {name: measured.of_job(name) for name in names if levels[name] == "job"}
    return of_job, {name: measured.of_ranks(name) for name in names if levels[name] != "job"}


def random_jobs(seed: int, count: int) -> list[Job]:
    dice = random.Random(seed)
    jobs = []
    for number in range(count):
        rows: list[Row] = []
        for place in range(dice.randint(1, 6)):
            mean = None if dice.random() < 0.1 else dice.random()
            rows.append(
                {
                    "node": f"n{place % 2}",
                    "gpu": place // 2,
                    "gpu_util_mean": mean,
                    "gpu_util_max": mean,
                }
            )
        jobs.append(
            Job({"elapsed_s": dice.choice([60.0, 3600.0, 7200.5])}, rows, key=f"c:{number}:1")
        )
    return jobs


def test_work_is_that_of_plain_loops_for_many_jobs_at_once() -> None:
    jobs = random_jobs(3, 40)
    measured = measure(*together(jobs), WORK)
    for place, job in enumerate(jobs):
        reported = any(row["gpu_util_mean"] is not None for row in job.gpus)
        seconds = job.given["elapsed_s"]
        ordered = sorted(job.gpus, key=lambda row: (row["node"], row["gpu"]))
        work = [
            None if not reported or row["gpu_util_mean"] is None else row["gpu_util_mean"] * seconds
            for row in ordered
        ]
        seen = MeasuredJob(measured, place)
        assert seen.of_ranks("work") == (pytest.approx(work) if None not in work else work)
        nodes = sorted({row["node"] for row in ordered})
        for node, total, held in zip(
            nodes,
            seen.of_ranks("node_gpu_work_s"),
            seen.of_ranks("node_gpus"),
            strict=True,
        ):
            mine = [each for each, row in zip(work, ordered, strict=True) if row["node"] == node]
            assert held == len(mine)
            known = [each for each in mine if each is not None]
            assert total == (pytest.approx(sum(known)) if len(known) == len(mine) else None)
        assert list(seen.labels("node")) == nodes
        assert seen.of_job("walltime") == seconds


def test_the_order_of_gpus_does_not_matter() -> None:
    jobs, gpus, nodes = together(random_jobs(4, 10))
    straight = measure(jobs, gpus, nodes, WORK)
    turned = measure(jobs, gpus.reverse(), nodes, WORK)
    for place, name in product(range(10), WORK):
        level = OFFERED[name].level
        assert (straight.rank_counts("gpu") == turned.rank_counts("gpu")).all()
        pair = [MeasuredJob(measured, place) for measured in (straight, turned)]
        one, other = (job.of_job(name) if level == "job" else job.of_ranks(name) for job in pair)
        assert one == other


def test_a_gpu_is_called_by_its_node_where_there_are_several() -> None:
    here = Job(gpus=[{"gpu": 0}, {"gpu": 1, "mig": 7}])
    there = Job(gpus=[{"gpu": 0}, {"node": "n2", "gpu": 0}])
    assert list(
        MeasuredJob(measure(here.summary, here.devices, here.nodes, ["work"])).labels("gpu")
    ) == [
        "GPU 0",
        "GPU 1/7",
    ]
    labels = MeasuredJob(measure(there.summary, there.devices, there.nodes, ["work"])).labels("gpu")
    assert list(labels) == ["n1 GPU 0", "n2 GPU 0"]


def test_activity_is_of_one_counter_for_the_whole_job() -> None:
    mig = Job(
        gpus=[{"gr_engine_active_mean": 0.5}, {"gr_engine_active_mean": 0.7, "sm_active_mean": 0.1}]
    )
    assert one(mig, "activity")[1] == {"activity": [0.5, 0.7]}
    # one GPU reports utilisation: that of the other is not known, and no other counter stands for
    # it
    mixed = Job(gpus=[{"gpu_util_mean": 0.5}, {"gr_engine_active_mean": 0.7}])
    assert one(mixed, "activity")[1] == {"activity": [0.5, None]}


def test_what_nobody_measured_is_null() -> None:
    of_job, of_ranks = one(Job({"elapsed_s": 0.0}, [{}]), *OFFERED)
    assert {name for name, value in of_job.items() if value is not None} == {
        *(
            "numberOfProcesses",
            "number_of_available_compute_units",
            "number_of_nodes",
            "hbm_requested_gb",
        ),
        *("state", "attribution", "elapsed_s", "nodes", "gpus", "gpu_hours"),
    }
    assert {name for name, value in of_ranks.items() if value != [None]} == {"node_gpus"}


def test_reasons_of_lowered_clocks_are_told_apart() -> None:
    rows = [{"throttle_reasons_max": bits} for bits in (0x0, 0x1, 0x4, 0x8, 0x20, 0x80, 0x44)]
    found = one(Job(gpus=rows), "gpu_throttled_for_heat", "gpu_throttled_for_power")[1]
    assert found["gpu_throttled_for_heat"] == [0, 0, 0, 1, 1, 0, 1]
    assert found["gpu_throttled_for_power"] == [0, 0, 1, 0, 0, 1, 1]


def test_host_values_are_means_over_minutes() -> None:
    job = Job(
        gpus=[{"node": "n1"}, {"node": "n2"}], hosts={"n1": {"cpu_user": 0.5, "load_average": 8.0}}
    )
    found = one(job, "node_cpu_user", "node_load_average")[1]
    assert found == {"node_cpu_user": [0.5, None], "node_load_average": [8.0, None]}
    assert set(OF_HOSTS) >= set(found)


@pytest.mark.parametrize(("constraint", "tier"), [("80g", 80.0), ("80GB", 80.0), (None, 0.0)])
def test_the_requested_tier(constraint: str | None, tier: float) -> None:
    assert one(Job({"hbm_request": constraint}), "hbm_requested_gb")[0] == {
        "hbm_requested_gb": tier
    }


OF_ALL_NODES = {"node_energy_measured", "node_energy_j"}  # columns of job_summaries


def test_the_table_is_closed_and_each_name_is_of_one_level() -> None:
    walltime = OFFERED["walltime"]
    assert (walltime.level, walltime.unit, walltime.text, walltime.positive) == (
        "job",
        "s",
        False,
        True,
    )
    assert OFFERED["state"].text
    for name, offered in OFFERED.items():
        assert name == offered.name
        assert offered.sentence
        of_node = name.startswith("node_") and name not in OF_ALL_NODES
        assert (offered.level == "node") == of_node
    assert {metric.unit for metric in COMPUTED} <= {
        *("count", "s", "GB", "fraction", "B/s", "flag", "B", "J", "MiB", "W", "1/s"),
    }


def test_a_job_without_rows_of_gpus_has_no_ranks() -> None:
    job = Job()
    measured = MeasuredJob(measure(job.summary, job.devices, job.nodes, WORK))
    assert measured.of_ranks("work") == []
    assert list(measured.labels("gpu")) == []


def test_every_metric_is_computed() -> None:
    jobs, gpus, nodes = together(random_jobs(5, 3))
    measured = measure(jobs, gpus, nodes, list(OFFERED))
    columns = {name for table in measured.tables.values() for name in table.columns}
    assert set(OFFERED) <= columns
    assert isinstance(jobs, pl.DataFrame)
