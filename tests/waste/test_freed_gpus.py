"""What a smaller request frees: by what a partition gives, its limits, and who may use it."""

from __future__ import annotations

from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from in_memory import with_seq
from madelake import job, utc
from tachograph.catalog.config import SlurmOptions
from tachograph.judge.partitions import (
    REQUEST_COLUMNS,
    PartitionUse,
    SitePartitions,
    freed_share,
    uses_of,
)
from tachograph.pipeline.job_runs import build_runs
from tachograph.sources.slurm.partitions import SlurmNode, SlurmPartition, read_partitions

T, HOUR = utc(23, 12), timedelta(hours=1)
NODE = SlurmNode(8, 64, 512_000.0)
SLURM = SlurmOptions(shared=("shared",), exclusive=("whole",))
USE = {
    (None, "shared"): PartitionUse(["ann"], ["H100"], 4.0, 32.0, 256_000.0, time_s=7200.0),
    (None, "whole"): PartitionUse(["ann", "bob"], ["H100"], gpus=8.0),
    ("other", "shared_there"): PartitionUse(["ann"], ["H100"], 8.0, 64.0, 1e6, time_s=1e6),
}


def request(partition: str | None = "whole", gpus: int = 8, nodes: int = 1, **of: Any) -> Any:
    job: dict[str, Any] = dict.fromkeys(REQUEST_COLUMNS)
    job |= {"user": "ann", "account": "ml", "qos": "normal", "gpu_model": "H100"}
    job |= {"partition": partition, "gpus": gpus, "nodes": nodes, "timelimit_s": 3600.0}
    job |= {"mem_requested_mib": 64_000.0 * nodes, "cpus": 32}
    return job | of


def options(site: SitePartitions, job: Any, used: int) -> tuple[str, ...]:
    change = site.freed(job | {"gpus_needed": used})
    return () if change is None else change.options


@pytest.mark.parametrize(
    ("partition", "gpus", "nodes", "used", "expected"),
    [
        ("whole", 8, 1, 1, ()),
        ("whole", 16, 2, 1, ("--nodes=1", "--gpus=8")),
        ("whole", 16, 2, 8, ("--nodes=1", "--gpus=8")),
        ("whole", 16, 2, 9, ()),
        ("whole", 32, 4, 9, ("--nodes=2", "--gpus=16")),
        ("unknown", 8, 1, 1, ()),
        ("unknown", 16, 2, 8, ("--nodes=1", "--gpus=8")),
        (None, 16, 2, 9, ()),
        ("shared", 8, 1, 1, ("--gpus=1",)),
        ("shared", 16, 2, 1, ("--nodes=1", "--gpus=1")),
        ("shared", 16, 2, 9, ("--gpus=9",)),
        ("shared", 8, 1, 8, ()),
        ("whole", 16, 2, 0, ()),  # no GPU at all: another sentence
        ("whole", 3, 2, 1, ()),  # not as many GPUs on each node
    ],
)
def test_change_by_what_the_partition_gives(
    partition: str | None, gpus: int, nodes: int, used: int, expected: tuple[str, ...]
) -> None:
    assert options(SitePartitions(SLURM), request(partition, gpus, nodes), used) == expected


def test_job_with_whole_nodes_of_its_own_in_a_shared_partition() -> None:
    assert options(SitePartitions(SLURM), request("shared", exclusive=True), 1) == ()


def test_what_slurm_records_of_a_partition_counts_where_nothing_is_configured() -> None:
    for whole, expected in ((True, ()), (False, ("--gpus=1",)), (None, ())):
        site = SitePartitions(recorded={"p": SlurmPartition("p", (NODE,), whole)})
        assert options(site, request("p"), 1) == expected
    named = SitePartitions(SlurmOptions(shared=("p",)), {"p": SlurmPartition("p", (NODE,), True)})
    assert options(named, request("p"), 1) == ("--gpus=1",)


def test_least_nodes_of_a_partition_are_kept() -> None:
    site = SitePartitions(recorded={"p": SlurmPartition("p", (NODE,), True, least_nodes=2)})
    assert options(site, request("p", 32, 4), 1) == ("--nodes=2", "--gpus=16")
    assert options(site, request("p", 16, 2), 1) == ()


def test_node_of_one_user_frees_gpus_for_that_user_alone() -> None:
    site = SitePartitions(recorded={"p": SlurmPartition("p", (NODE,), False, of_one_user=True)})
    change = site.freed(request("p", gpus_needed=1, cpus=8))
    assert change is not None
    assert change.gain == "frees 7 GPUs for your other jobs"


@pytest.mark.parametrize(
    ("of", "node", "expected", "memory_mib"),
    [
        ({"memory_needed_mib": 100_000.0}, NODE, "--nodes=1 --gpus=4", 400_000.0),
        ({"memory_needed_mib": 16_000.0}, NODE, "--nodes=1 --gpus=4", None),  # less than now
        ({"memory_needed_mib": 200_000.0}, NODE, "--nodes=2 --gpus=8", 400_000.0),
        ({"memory_needed_mib": 300_000.0}, NODE, "--nodes=3 --gpus=12", 400_000.0),
        ({"memory_needed_mib": 500_000.0}, NODE, None, None),
        ({"mem_requested_mib": 4 * 200_000.0}, NODE, "--nodes=2 --gpus=8", 400_000.0),
        ({"cpus": 128}, NODE, "--nodes=2 --gpus=8", 128_000.0),
        ({"cpus": 256}, NODE, None, None),
        ({"cpus": 256, "cpu_efficiency": 0.1}, NODE, "--nodes=1 --gpus=4", 256_000.0),
        # of a node that is not recorded the job's request is known
        ({"memory_needed_mib": 64_000.0}, None, None, None),
        ({"memory_needed_mib": 32_000.0}, None, "--nodes=2 --gpus=8", None),
        (
            {"memory_needed_mib": 32_000.0, "mem_requested_mib": None},
            None,
            "--nodes=1 --gpus=4",
            None,
        ),
        ({"cpus": 256}, None, "--nodes=1 --gpus=4", None),
    ],
)
def test_tasks_of_nodes_put_together_fit_on_those_left(
    of: dict[str, Any], node: SlurmNode | None, expected: str | None, memory_mib: float | None
) -> None:
    recorded = {"p": SlurmPartition("p", () if node is None else (node,), True)}
    change = SitePartitions(recorded=recorded).freed(request("p", 16, 4, gpus_needed=4) | of)
    assert (change and " ".join(change.options)) == expected
    if change is not None:
        assert change.memory_mib == (memory_mib and pytest.approx(memory_mib))


MOVED = ("--partition=shared", "--nodes=1", "--gpus=2")


@pytest.mark.parametrize(
    ("of", "used", "expected"),
    [
        ({}, 2, MOVED),
        ({"user": "bob"}, 2, ()),  # never ran there
        ({"gpu_model": "A100"}, 2, ()),
        ({"gpu_model": None}, 2, ()),
        ({}, 5, ()),  # more than any job had there
        ({"timelimit_s": 7200.0}, 2, MOVED),
        ({"timelimit_s": 7201.0}, 2, ()),
        ({"timelimit_s": None}, 2, ()),
        ({"user": None}, 2, ()),  # unknown users are not the same
        ({"cluster": "other"}, 2, ()),  # there are partitions, but not of this name
        ({"exclusive": True, "requests_exclusive": True}, 2, ()),
        ({"exclusive": True}, 2, MOVED),
        ({"cpus": 64, "cpu_efficiency": 0.25}, 2, MOVED),  # 16 CPUs busy, as many on top
        ({"cpus": 64, "cpu_efficiency": 0.26}, 2, ()),
        ({"cpus": 64}, 2, ()),
        ({"mem_requested_mib": None}, 2, ()),  # on a whole node it may have had all of it
        ({"mem_requested_mib": 256_000.0}, 2, MOVED),
        ({"mem_requested_mib": 256_001.0}, 2, ()),
    ],
)
def test_move_to_a_shared_partition_that_fits(
    of: dict[str, Any], used: int, expected: tuple[str, ...]
) -> None:
    assert options(SitePartitions(SLURM, use=USE), request(**of), used) == expected


@pytest.mark.parametrize(
    ("limits", "of", "moves"),
    [
        ({}, {"user": "bob"}, True),  # its limits let everybody in
        ({"groups": frozenset({"ml"})}, {"user": "bob"}, False),
        ({"groups": frozenset({"ml"})}, {}, True),  # ann ran there
        ({"accounts": frozenset({"ml"})}, {"user": "bob"}, True),
        ({"accounts": frozenset({"cfd"})}, {"user": "bob"}, False),
        ({"qos": frozenset({"high"})}, {"user": "bob"}, False),
        ({"denied_accounts": frozenset({"ml"})}, {"user": "bob"}, False),
        ({"denied_qos": frozenset({"normal"})}, {"user": "bob"}, False),
        ({"denied_qos": frozenset({"ml"})}, {"user": "bob"}, True),  # the name of its account
        (  # of both Slurm reads only those allowed
            {"accounts": frozenset({"ml"}), "denied_accounts": frozenset({"ml"})},
            {"user": "bob"},
            True,
        ),
        ({"accounts": frozenset({"cfd"})}, {}, False),  # with another account
        ({"of_one_user": True}, {}, False),
        ({"least_nodes": 2}, {}, False),
        ({"most_cpus": 32}, {}, True),
        ({"most_cpus": 31}, {}, False),
        ({"closed": True}, {}, False),
        ({"of_one_user": None}, {}, True),
        ({"of_one_user": None}, {"user": "bob"}, False),
        ({"most_time_s": 3600.0}, {}, True),
        ({"most_time_s": 3599.0}, {}, False),
        ({"most_memory_mib": 1000.0}, {"mem_requested_mib": 1001.0}, False),
        ({"most_memory_per_cpu_mib": 1000.0}, {"mem_requested_mib": 64_000.0}, True),
        ({"most_memory_per_cpu_mib": 1000.0}, {"mem_requested_mib": 64_001.0}, False),
        ({"nodes": (SlurmNode(1, 64, 512_000.0),)}, {}, False),
    ],
)
def test_move_within_recorded_limits(limits: dict[str, Any], of: Any, moves: bool) -> None:
    shared = SlurmPartition(
        **{"name": "shared", "nodes": (NODE,), "whole_nodes": False, "of_one_user": False, **limits}
    )
    site = SitePartitions(SLURM, {"shared": shared}, USE)
    assert options(site, request(**of), 2) == (MOVED if moves else ())


def test_of_two_changes_the_one_that_frees_more_is_chosen() -> None:
    site = SitePartitions(SLURM, use=USE)
    change = site.freed(request(gpus=16, nodes=2, gpus_needed=1))
    assert change is not None
    assert (change.options[0], change.freed) == ("--partition=shared", 15)


@given(
    st.sampled_from(["shared", "whole", "unknown"]),
    st.integers(1, 8),
    st.integers(1, 8),
    st.integers(0, 64),
)
def test_what_is_freed_was_held_and_not_at_work(
    partition: str, nodes: int, of_node: int, used: int
) -> None:
    gpus = nodes * of_node
    job = request(partition, gpus, nodes, gpus_needed=used)
    change = SitePartitions(SLURM).freed(job)
    if change is not None:
        assert 0 < used <= change.gpus < gpus
        assert change.freed == gpus - change.gpus
        if partition != "shared":
            assert change.freed % of_node == 0  # whole nodes


def share(site: SitePartitions, never_h: float, **of: Any) -> float:
    job = request(**of) | {"gpu_hours": 16.0, "gpu_hours_unmeasured": 0.0}
    used = round(8 - never_h / 2)
    return freed_share({"gpus_needed": used} | job | {"gpu_hours_never_used": never_h}, site)


def test_share_of_unused_gpus_that_others_get() -> None:
    site = SitePartitions(SLURM)
    assert share(site, 14.0) == 0.0  # 7 of 8 GPUs of a node given whole
    assert share(site, 14.0, partition="unknown") == 0.0
    assert share(site, 14.0, partition="shared") == 1.0
    assert share(site, 16.0) == 1.0  # none worked: the node itself
    assert share(site, 14.0, nodes=2) == pytest.approx(4 / 7)  # 1 of 2 x 4 GPUs worked
    assert share(site, 0.0, partition="shared") == 0.0
    assert share(site, 14.0, partition="shared", gpus_needed=None) == 0.0  # not known of all
    # one of the seven held a loaded program
    assert share(site, 14.0, partition="shared", gpus_needed=2) == pytest.approx(6 / 7)


def test_what_the_job_keeps_of_a_node_others_do_not_get() -> None:
    """Of 8 GPUs with 8 CPUs and 64 GB each: the script goes on requesting its CPUs."""
    site = SitePartitions(recorded={"p": SlurmPartition("p", (NODE,), False)})
    for of, freed in (
        ({"cpus": 8}, 7),
        ({"cpus": 9}, 6),
        ({"cpus": 64}, None),
        ({"cpus": 8, "mem_requested_mib": 512_000.0}, None),
        ({"cpus": 8, "mem_requested_mib": 512_000.0, "memory_needed_mib": 64_000.0}, 7),
    ):
        change = site.freed(request("p", gpus_needed=1, **of))
        assert (change and change.freed) == freed


@pytest.mark.parametrize(
    ("gpu_option", "options_of_script"),
    [
        ("--gpus={}", ("--nodes=1", "--gpus=8")),
        ("--gpus-per-node={}", ("--nodes=1", "--gpus-per-node=8")),
        ("--gres=gpu:a100:{}", ("--nodes=1", "--gres=gpu:a100:8")),
        ("", ()),
    ],
)
def test_options_are_those_of_the_script(
    gpu_option: str, options_of_script: tuple[str, ...]
) -> None:
    job = request("whole", 16, 2, gpu_option=gpu_option)
    assert options(SitePartitions(SLURM), job, 3) == options_of_script


@pytest.mark.parametrize("described", ["", "a", "b"])
@pytest.mark.parametrize("own", [True, None])
def test_attribution_and_advice_take_the_same_nodes_for_whole(
    own: bool | None, described: str, tmp_path: Path
) -> None:
    file = tmp_path / "partitions.txt"
    file.write_text("PartitionName=p\n   OverSubscribe=EXCLUSIVE Nodes=(null)\n")
    slurm = SlurmOptions(shared=("sh*",), exclusive=("whole", "*_x"), partitions_file=str(file))
    site = SitePartitions(slurm, read_partitions(str(file)), cluster=described)
    names = ("shared", "whole", "a,whole", "p", "q", None)
    queues = list(product(names, ("n", "n_x", "shared", None)))
    rows = [
        job(
            str(number),
            T,
            T + HOUR,
            cluster="a",
            partition=name,
            qos=qos,
            exclusive=own,
            state="COMPLETED",
        )
        for number, (name, qos) in enumerate(queues)
    ]
    jobs, maps = with_seq("jobs", rows), with_seq("allocations", [])
    runs = build_runs(jobs, maps, slurm=slurm, now=T + HOUR, described=described)
    found = {row["job_id"]: row["exclusive"] for row in runs.iter_rows(named=True)}
    for row in rows:
        assert found[row["job_id"]] is site.whole_nodes(row)
    assert set(found.values()) == ({True} if own else {True, False, None})


def test_record_of_partitions_is_of_one_cluster() -> None:
    site = SitePartitions(recorded={"p": SlurmPartition("p", (NODE,), False)}, cluster="a")
    for cluster, whole in (("a", False), (None, False), ("b", None)):
        assert site.whole_nodes(request("p", cluster=cluster)) is whole


def test_unknown_users_and_models_are_of_nobody() -> None:
    jobs = pl.DataFrame([request("p"), request("p", user=None, gpu_model=None)])
    (use,) = uses_of(jobs).values()
    assert (list(use.users), list(use.models)) == (["ann"], ["H100"])
