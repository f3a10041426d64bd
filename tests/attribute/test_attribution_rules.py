"""Which job held which GPU when: each rule of the ranking on a case small enough to see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from in_memory import Unit, owners, with_seq
from madelake import configured, held, job, utc
from tachograph.catalog.config import SlurmOptions
from tachograph.pipeline.attribution import Attribution
from tachograph.pipeline.job_runs import with_raw_ids

T = utc(23, 12)
FOUR: list[Unit] = [("n1", gpu, None) for gpu in range(4)]
EIGHT: list[Unit] = [*FOUR, *[("n2", gpu, None) for gpu in range(4)]]


def after(seconds: float) -> datetime:
    return T + timedelta(seconds=seconds)


def told(found: Attribution) -> dict[str, list[str]]:
    """{job id: how each of its runs is attributed, or why it is ambiguous, in order of start}"""
    result: dict[str, list[str]] = {}
    for row in found.runs.sort("start").iter_rows(named=True):
        assert (row["attribution"] == "ambiguous") is (row["ambiguous_because"] is not None)
        result.setdefault(row["job_id"], []).append(row["ambiguous_because"] or row["attribution"])
    return result


def stretches(found: Attribution) -> set[tuple[str, str, int, int | None, float, float]]:
    """(job id, node, gpu, mig, seconds from T to the start, to the end)"""
    names = dict(found.runs.select("run", "job_id").iter_rows())
    return {
        (names[run], node, gpu, mig, (start - T).total_seconds(), (end - T).total_seconds())
        for run, node, gpu, mig, start, end in found.intervals.iter_rows()
    }


def whole(job_id: str, node: str, gpus: Sequence[int], start: float, end: float) -> set[Any]:
    return {(job_id, node, gpu, None, start, end) for gpu in gpus}


def ran(job_id: str, start: float, end: float | None, **given: Any) -> dict[str, Any]:
    return job(job_id, after(start), None if end is None else after(end), **given)


def on_nodes(jobs: Sequence[Mapping[str, Any]], *nodes: str) -> list[dict[str, Any]]:
    """What sacct writes for jobs on these nodes."""
    return [
        row
        for one in jobs
        for node in nodes
        for row in held(one["job_id"], node, start=one["start"], end=one["end"], cluster=one.get("cluster"))
    ]


def test_all_gpus_of_the_node() -> None:
    jobs = [ran("1", 0, 100, gpus=4)]
    found = owners(jobs, on_nodes(jobs, "n1"), FOUR)
    assert told(found) == {"1": ["whole_node"]}
    assert stretches(found) == whole("1", "n1", range(4), 0, 100)


def test_all_gpus_of_two_nodes() -> None:
    jobs = [ran("1", 0, 100, gpus=8, nodes=2)]
    found = owners(jobs, on_nodes(jobs, "n1", "n2"), EIGHT)
    assert told(found) == {"1": ["whole_node"]}
    assert len(stretches(found)) == 8


def test_exclusive_job_with_fewer_gpus_has_the_node() -> None:
    jobs = [ran("1", 0, 100, gpus=1, exclusive=True)]
    found = owners(jobs, on_nodes(jobs, "n1"), FOUR)
    assert told(found) == {"1": ["whole_node"]}
    assert len(stretches(found)) == 4


@pytest.mark.parametrize(
    ("slurm", "expected"),
    [
        (SlurmOptions(), "part_of_nodes"),
        (SlurmOptions(exclusive=("gpu_*",)), "whole_node"),
        (SlurmOptions(exclusive=("regular",)), "whole_node"),
        (SlurmOptions(exclusive=("gpu_*",), shared=("reg*",)), "part_of_nodes"),  # the careful answer
    ],
)
def test_configured_names_of_partition_and_qos(slurm: SlurmOptions, expected: str) -> None:
    jobs = [ran("1", 0, 100, gpus=1, partition="gpu_a", qos="regular")]
    found = owners(jobs, on_nodes(jobs, "n1"), FOUR, configured(slurm=slurm))
    assert told(found) == {"1": [expected]}


def test_part_of_a_shared_node_is_ambiguous_and_owns_nothing() -> None:
    jobs = [ran("1", 0, 100, gpus=1), ran("2", 0, 100, gpus=3)]
    found = owners(jobs, on_nodes(jobs, "n1"), FOUR)
    assert told(found) == {"1": ["other_jobs"], "2": ["other_jobs"]}
    assert found.intervals.height == 0


def test_as_many_gpus_as_one_of_two_nodes_is_ambiguous() -> None:
    jobs = [ran("1", 0, 100, gpus=4, nodes=2)]
    found = owners(jobs, on_nodes(jobs, "n1", "n2"), EIGHT)
    assert told(found) == {"1": ["part_of_nodes"]}


def test_node_of_which_nothing_is_known() -> None:
    jobs = [ran("1", 0, 100, gpus=4), ran("2", 200, 300, gpus=8, nodes=2)]
    found = owners(jobs, [*on_nodes(jobs[:1], "n9"), *on_nodes(jobs[1:], "n1", "n9")], FOUR)
    assert told(found) == {"1": ["part_of_nodes"], "2": ["part_of_nodes"]}


def test_job_without_a_node_list() -> None:
    found = owners([ran("1", 0, 100, gpus=2)], [], FOUR)
    assert told(found) == {"1": ["unplaced"]}


def test_jobs_without_gpus_are_left_out() -> None:
    jobs = [ran("1", 0, 100, gpus=0), ran("2", 0, 100, gpus=None)]
    found = owners(jobs, on_nodes(jobs[1:], "n1"), FOUR)
    assert told(found) == {"2": ["part_of_nodes"]}  # nobody says that it had none


def test_job_that_never_started() -> None:
    waiting = {"job_id": "1", "submit": T, "state": "PENDING", "gpus": 4}
    assert owners([waiting], [], FOUR).runs.height == 0


def test_the_same_node_told_twice_is_one_node() -> None:
    """An export names the nodes of a job without times, the accounting with them."""
    jobs = [ran("1", 0, 100, gpus=4)]
    found = owners(jobs, [*on_nodes(jobs, "n1"), *held("1", "n1")], FOUR)
    assert told(found) == {"1": ["whole_node"]}
    assert stretches(found) == whole("1", "n1", range(4), 0, 100)


@pytest.mark.parametrize(("provenance", "expected"), [("explicit", "explicit"), ("live_index", "live_index")])
def test_told_indices(provenance: str, expected: str) -> None:
    jobs = [ran("1", 0, 100, gpus=1), ran("2", 0, 100, gpus=3)]
    maps = [*held("1", "n1", [2], provenance=provenance), *held("2", "n1", [0, 1, 3], after(10), after(90))]
    found = owners(jobs, [*on_nodes(jobs, "n1"), *maps], FOUR)
    assert told(found) == {"1": [expected], "2": ["explicit"]}
    assert stretches(found) == whole("1", "n1", [2], 0, 100) | whole("2", "n1", [0, 1, 3], 10, 90)


def test_an_explicit_map_counts_before_live_indices() -> None:
    jobs = [ran("1", 0, 100, gpus=1)]
    maps = [*held("1", "n1", [0], provenance="live_index"), *held("1", "n1", [3])]
    found = owners(jobs, [*on_nodes(jobs, "n1"), *maps], FOUR)
    assert told(found) == {"1": ["explicit"]}
    assert stretches(found) == whole("1", "n1", [3], 0, 100)


def test_the_weakest_node_names_the_job() -> None:
    """Both nodes whole; of one an explicit map was seen."""
    jobs = [ran("1", 0, 100, exclusive=True, gpus=8, nodes=2)]
    found = owners(jobs, [*on_nodes(jobs, "n1", "n2"), *held("1", "n1", range(4))], EIGHT)
    assert told(found) == {"1": ["whole_node"]}
    assert len(stretches(found)) == 8


def test_one_node_told_and_the_rest_whole() -> None:
    """Eight GPUs on two nodes of four, one node told: what is left over is the other node."""
    jobs = [ran("1", 0, 100, gpus=8, nodes=2)]
    found = owners(jobs, [*on_nodes(jobs, "n1", "n2"), *held("1", "n1", range(4))], EIGHT)
    assert told(found) == {"1": ["whole_node"]}
    assert len(stretches(found)) == 8


def test_one_node_told_and_the_other_shared() -> None:
    """Half a job is no job: it owns nothing, and the GPUs of the told node belong to nobody."""
    jobs = [ran("1", 0, 100, gpus=3, nodes=2)]
    found = owners(jobs, [*on_nodes(jobs, "n1", "n2"), *held("1", "n1", [0, 1])], EIGHT)
    assert told(found) == {"1": ["part_of_nodes"]}
    assert found.intervals.height == 0


def test_map_that_names_less_time_than_the_run() -> None:
    jobs = [ran("1", 0, 100, gpus=1)]
    found = owners(jobs, held("1", "n1", [1], after(-50), after(40)), FOUR)
    assert stretches(found) == whole("1", "n1", [1], 0, 40)


def test_running_job_is_looked_at_up_to_now() -> None:
    jobs = [ran("1", 0, None, gpus=4), ran("2", 5000, None, gpus=4)]
    found = owners(jobs, on_nodes(jobs, "n1"), FOUR, now=after(250))
    assert stretches(found) == whole("1", "n1", range(4), 0, 250)
    ends = found.runs.sort("start").select("end", "until").rows()
    assert ends == [(None, after(250)), (None, after(5000))]


def test_requeued_job_has_its_gpus_run_by_run() -> None:
    jobs = [ran("1", 0, 100, gpus=1), ran("1", 200, 300, gpus=1)]
    maps = [*held("1", "n1", [0], after(0), after(100)), *held("1", "n1", [3], after(200), after(300))]
    found = owners(jobs, [*on_nodes(jobs, "n1"), *maps], FOUR)
    assert told(found) == {"1": ["explicit", "explicit"]}
    assert stretches(found) == whole("1", "n1", [0], 0, 100) | whole("1", "n1", [3], 200, 300)
    assert found.intervals.get_column("run").n_unique() == 2


def test_epilog_of_a_requeued_job_reaches_into_its_next_run() -> None:
    """Run 1 ends at 100, its epilog at 103; run 2 begins at 101 on another GPU: it never had the first one."""
    jobs = [ran("1", 0, 100, gpus=1), ran("1", 101, 300, gpus=1)]
    maps = [*held("1", "n1", [0], after(0), after(103)), *held("1", "n1", [3], after(101), after(300))]
    found = owners(jobs, [*on_nodes(jobs, "n1"), *maps], FOUR)
    assert stretches(found) == whole("1", "n1", [0], 0, 100) | whole("1", "n1", [3], 101, 300)


def test_requeued_at_once_on_another_node() -> None:
    """The second run begins in the second in which the first one ends: the first one's node is not the second's."""
    jobs = [ran("1", 0, 100, gpus=4), ran("1", 100, 300, gpus=4)]
    found = owners(jobs, [*on_nodes(jobs[:1], "n1"), *on_nodes(jobs[1:], "n2")], EIGHT)
    assert told(found) == {"1": ["whole_node", "whole_node"]}
    assert stretches(found) == whole("1", "n1", range(4), 0, 100) | whole("1", "n2", range(4), 100, 300)


def test_run_of_no_length_keeps_its_row() -> None:
    jobs = [ran("1", 50, 50, gpus=4), ran("2", 50, 90, gpus=4)]
    found = owners(jobs, on_nodes(jobs, "n1"), FOUR)
    assert told(found) == {"1": ["whole_node"], "2": ["whole_node"]}
    assert stretches(found) == whole("2", "n1", range(4), 50, 90)


def test_handover_of_seconds_goes_to_the_successor() -> None:
    jobs = [ran("1", 0, 100, gpus=4), ran("2", 97, 200, gpus=4)]
    found = owners(jobs, on_nodes(jobs, "n1"), FOUR)
    assert stretches(found) == whole("1", "n1", range(4), 0, 97) | whole("2", "n1", range(4), 98, 200)
    assert found.contested.height == 0


def test_the_second_in_which_one_job_ends_and_the_next_begins_is_of_neither() -> None:
    """Job 1 ended at 100.0 to 101.0, job 2 began then; job 3 began when job 2 was over."""
    jobs = [ran("1", 0, 100, gpus=1), ran("2", 100, 200, gpus=1), ran("3", 201, 300, gpus=1)]
    found = owners(jobs, [row for job in jobs for row in held(job["job_id"], "n1", [0])], FOUR)
    mine = whole("1", "n1", [0], 0, 100) | whole("2", "n1", [0], 101, 200) | whole("3", "n1", [0], 201, 300)
    assert stretches(found) == mine
    assert found.handovers.select("gpu", "start", "end").rows() == [(0, after(100), after(101))]


def test_a_job_of_one_second_that_takes_over_has_no_samples() -> None:
    jobs = [ran("1", 0, 100, gpus=4), ran("2", 100, 101, gpus=4), ran("3", 101, 200, gpus=4)]
    found = owners(jobs, on_nodes(jobs, "n1"), FOUR)
    assert stretches(found) == whole("1", "n1", range(4), 0, 100) | whole("3", "n1", range(4), 102, 200)
    assert told(found)["2"] == ["whole_node"]


def test_a_map_with_fractions_of_a_second_tells_who_had_the_gpu() -> None:
    jobs = [ran("1", 0, 100, gpus=1), ran("2", 100, 200, gpus=1)]
    maps = [*held("1", "n1", [0], after(0.5), after(100.125)), *held("2", "n1", [0], after(100.25), after(200.5))]
    found = owners(jobs, maps, FOUR)
    assert stretches(found) == whole("1", "n1", [0], 0.5, 100) | whole("2", "n1", [0], 100.25, 200)
    assert found.handovers.height == 0


def test_samples_that_name_their_job_tell_who_had_the_gpu() -> None:
    jobs = [ran("1", 0, 100, gpus=1), ran("2", 100, 200, gpus=1)]
    named = [
        *held("1", "n1", [0], after(0), after(100), provenance="samples"),
        *held("2", "n1", [0], after(100), after(200), provenance="samples"),
    ]
    found = owners(jobs, named, FOUR)
    assert stretches(found) == whole("1", "n1", [0], 0, 100) | whole("2", "n1", [0], 100, 200)


@pytest.mark.parametrize(("overlap", "contested"), [(60, 0), (61, 4)])
def test_overlap_of_more_than_a_minute_belongs_to_nobody(overlap: float, contested: int) -> None:
    jobs = [ran("1", 0, 1000 + overlap, gpus=4, exclusive=True), ran("2", 1000, 2000, gpus=4, exclusive=True)]
    found = owners(jobs, on_nodes(jobs, "n1"), FOUR)
    assert found.contested.height == contested
    if contested:
        first, second = whole("1", "n1", range(4), 0, 1000), whole("2", "n1", range(4), 1000 + overlap, 2000)
        assert stretches(found) == first | second


def test_contested_gpu_goes_to_the_better_source() -> None:
    jobs = [ran("1", 0, 1000, gpus=4, exclusive=True), ran("2", 300, 600, gpus=1)]
    found = owners(jobs, [*on_nodes(jobs, "n1"), *held("2", "n1", [1])], FOUR)
    others = whole("1", "n1", [0, 2, 3], 0, 1000)
    around = whole("1", "n1", [1], 0, 300) | whole("1", "n1", [1], 601, 1000)
    assert stretches(found) == others | around | whole("2", "n1", [1], 301, 600)
    assert found.contested.height == 0


def test_two_that_begin_together_are_contested() -> None:
    jobs = [ran("1", 0, 30, gpus=4), ran("2", 0, 30, gpus=4)]
    found = owners(jobs, on_nodes(jobs, "n1"), FOUR)
    assert found.intervals.height == 0
    assert found.contested.height == 4


def test_job_that_only_a_map_knows() -> None:
    maps = [*held("1", "n1", [0, 1], after(10), after(60)), *held("1", "n2", [3], after(20), after(80))]
    found = owners([], maps, EIGHT)
    run = found.runs.row(0, named=True)
    assert (run["attribution"], run["start"], run["end"]) == ("explicit", after(10), after(80))
    assert (run["gpus"], run["nodes"], run["user"], run["elapsed_s"]) == (3, 2, None, 70)
    assert stretches(found) == whole("1", "n1", [0, 1], 10, 60) | whole("1", "n2", [3], 20, 80)


def test_map_without_end_is_still_running() -> None:
    found = owners([], held("1", "n1", [0], after(10)), FOUR, now=after(500))
    assert found.runs.row(0, named=True)["end"] is None
    assert stretches(found) == whole("1", "n1", [0], 10, 500)


def test_equal_job_ids_on_two_clusters() -> None:
    jobs = [ran("1", 0, 100, gpus=1, cluster="a"), ran("1", 0, 100, gpus=1, cluster="b")]
    maps = [*held("1", "n1", [0], cluster="a"), *held("1", "n2", [1], cluster="b")]
    found = owners(jobs, maps, EIGHT)
    assert stretches(found) == whole("1", "n1", [0], 0, 100) | whole("1", "n2", [1], 0, 100)
    assert found.runs.get_column("job_key").n_unique() == 2


def test_map_of_a_cluster_whose_accounting_is_absent() -> None:
    """Cluster a has a job 1 in its accounting; the job 1 of cluster b only a map knows."""
    jobs = [ran("1", 0, 100, gpus=1, cluster="a")]
    maps = [*held("1", "n1", [0], cluster="a"), *held("1", "n2", [1], after(5), after(50), cluster="b")]
    found = owners(jobs, maps, EIGHT)
    assert stretches(found) == whole("1", "n1", [0], 0, 100) | whole("1", "n2", [1], 5, 50)


def test_map_without_a_cluster_serves_the_only_one() -> None:
    found = owners([ran("1", 0, 100, gpus=1, cluster="a")], held("1", "n1", [0]), FOUR)
    assert told(found) == {"1": ["explicit"]}


SLICES: list[Unit] = [("n1", 0, 1), ("n1", 0, 2), ("n1", 1, None)]


def test_slices_are_units_of_their_own() -> None:
    jobs = [ran("1", 0, 100, gpus=1), ran("2", 0, 100, gpus=1)]
    maps = [*held("1", "n1", [0], mig=1), *held("2", "n1", [0], mig=2)]
    found = owners(jobs, maps, SLICES)
    assert stretches(found) == {("1", "n1", 0, 1, 0, 100), ("2", "n1", 0, 2, 0, 100)}


def test_a_gpu_given_whole_is_all_its_slices() -> None:
    found = owners([ran("1", 0, 100, gpus=2)], held("1", "n1", [0, 1]), SLICES)
    assert stretches(found) == {("1", "n1", 0, 1, 0, 100), ("1", "n1", 0, 2, 0, 100), ("1", "n1", 1, None, 0, 100)}


def test_a_slice_of_its_own_counts_before_the_whole_gpu() -> None:
    """An exporter names the holder of each slice, another one a single holder of the whole GPU: one of the two."""
    jobs = [ran("1", 0, 100, gpus=1), ran("2", 0, 100, gpus=1)]
    maps = [*held("1", "n1", [0], mig=1), *held("2", "n1", [0], mig=2), *held("1", "n1", [0])]
    found = owners(jobs, maps, SLICES)
    assert told(found) == {"1": ["explicit"], "2": ["explicit"]}
    assert stretches(found) == {("1", "n1", 0, 1, 0, 100), ("2", "n1", 0, 2, 0, 100)}


@pytest.mark.parametrize("finer", ["explicit", "live_index"])
def test_a_holder_of_the_gpu_whose_slices_others_hold_is_ambiguous(finer: str) -> None:
    jobs = [ran("1", 0, 1000, gpus=1), ran("2", 100, 900, gpus=1), ran("3", 100, 900, gpus=1)]
    slices = [*held("1", "n1", [0], mig=1, provenance=finer), *held("2", "n1", [0], mig=2, provenance=finer)]
    found = owners(jobs, [*slices, *held("3", "n1", [0])], SLICES)
    assert told(found) == {"1": [finer], "2": [finer], "3": ["other_slices"]}
    assert stretches(found) == {("1", "n1", 0, 1, 0, 1000), ("2", "n1", 0, 2, 100, 900)}


def test_a_gpu_is_handed_over_from_slices_to_a_job_that_has_it_whole() -> None:
    jobs = [ran("1", 0, 130, gpus=1), ran("2", 100, 900, gpus=1)]
    found = owners(jobs, [*held("1", "n1", [0], mig=1), *held("2", "n1", [0])], SLICES)
    assert told(found) == {"1": ["explicit"], "2": ["explicit"]}
    assert {("2", "n1", 0, 1, 101, 900), ("2", "n1", 0, 2, 100, 900)} <= stretches(found)


def test_array_tasks_and_components_are_jobs_of_their_own() -> None:
    jobs = [
        ran("11", 0, 100, gpus=4, display_id="10_1", array_job_id="10"),
        ran("12", 100, 200, gpus=4, display_id="10_2", array_job_id="10"),
        ran("21", 0, 200, gpus=4, display_id="20+1", het_job_id="20"),
    ]
    found = owners(jobs, [*on_nodes(jobs[:2], "n1"), *on_nodes(jobs[2:], "n2")], EIGHT)
    expected = whole("11", "n1", range(4), 0, 100) | whole("12", "n1", range(4), 101, 200)
    assert stretches(found) == expected | whole("21", "n2", range(4), 0, 200)


def test_records_to_the_minute_join_those_to_the_second() -> None:
    """One run in an export to the minute and in the accounting: the finer times count, what either knows is kept."""
    fine = ran("1", 7, 100, gpus=4, time_precision_s=0.0)
    coarse = {**ran("1", 0, 60, gpus=4, user="anna", time_precision_s=60.0), "elapsed_s": 93.0}
    found = owners([coarse, fine], on_nodes([fine], "n1"), FOUR)
    assert found.runs.height == 1
    row = found.runs.row(0, named=True)
    assert (row["start"], row["end"], row["user"]) == (after(7), after(100), "anna")
    assert row["time_precision_s"] == 0


def test_runs_to_the_minute_stay_apart() -> None:
    jobs = [{**ran("1", 60 * start, 60 * start + 60, gpus=4), "time_precision_s": 60.0} for start in (0, 5)]
    assert owners(jobs, on_nodes(jobs, "n1"), FOUR).runs.height == 2


def sampled(job_id: str, start: float, end: float, gpus: Sequence[int] = (0,), **given: Any) -> list[dict[str, Any]]:
    """What samples name: a job on GPUs of n1 from the first of them to the last."""
    return held(job_id, "n1", gpus, after(start), after(end), provenance="samples", **given)


def test_samples_name_the_gpus_of_a_job_without_nodes() -> None:
    """It held them before the first sample, in gaps and after the last one, too."""
    jobs = [ran("1", 0, 1000), ran("2", 2000, 3000)]
    names = [*sampled("1", 100, 300, (0, 1)), *sampled("1", 500, 600, (0, 1)), *sampled("2", 2010, 2900)]
    found = owners(jobs, names, FOUR)
    assert told(found) == {"1": ["explicit"], "2": ["explicit"]}
    assert stretches(found) == whole("1", "n1", (0, 1), 0, 1000) | whole("2", "n1", (0,), 2000, 3000)


def test_samples_of_another_job_end_what_a_job_held() -> None:
    jobs = [ran("1", 0, 1000), ran("2", 400, 700)]
    names = [*sampled("1", 100, 300), *sampled("2", 450, 600), *sampled("1", 800, 900)]
    found = owners(jobs, names, FOUR)
    owned = {(job, start, end) for job, _, _, _, start, end in stretches(found)}
    assert ("2", 400, 700) not in owned
    assert {job for job, start, end in owned if start <= 450 and end >= 600} == {"2"}
    assert {job for job, start, end in owned if start <= 100 and end >= 300} == {"1"}


def test_samples_come_before_accounting_and_the_scheduler() -> None:
    jobs = [ran("1", 0, 1000, gpus=1), ran("2", 0, 1000, gpus=1)]
    live = [row for job, gpu in (("1", 0), ("2", 1)) for row in held(job, "n1", [gpu], provenance="live_index")]
    found = owners(jobs, [*live, *sampled("1", 0, 1000, (2,))], FOUR)
    assert stretches(found) == whole("1", "n1", [2], 0, 1000) | whole("2", "n1", [1], 0, 1000)


def test_samples_that_name_more_gpus_than_were_allocated_are_ambiguous() -> None:
    """Some samplers write the job of the node, which on a shared node is one of several."""
    jobs = [ran("1", 0, 1000, gpus=2), ran("2", 0, 1000, gpus=2)]
    found = owners(jobs, [*sampled("1", 0, 1000, range(4)), *on_nodes(jobs, "n1")], FOUR)
    assert told(found) == {"1": ["too_many_samples"], "2": ["other_jobs"]}
    assert found.intervals.height == 0


def test_a_map_and_samples_that_differ_are_contested() -> None:
    jobs = [ran("1", 0, 1000), ran("2", 0, 1000)]
    found = owners(jobs, [*held("2", "n1", [0]), *sampled("1", 200, 500)], FOUR)
    assert found.contested.height == 1
    assert stretches(found) == {("2", "n1", 0, None, 0, 200), ("2", "n1", 0, None, 500, 1000)}
    assert told(found) == {"1": ["contradicted"], "2": ["explicit"]}


@pytest.mark.parametrize(
    ("other", "attributions"),
    [
        (held("2", "n1", [0]), ["contradicted", "contradicted"]),  # a map as good as the first
        (held("2", "n1", [0], provenance="live_index"), ["explicit", "contradicted"]),  # the scheduler counts less
        (held("2", "n1", [1], provenance="live_index"), ["explicit", "live_index"]),
        (held("2", "n1", [0], start=after(900), end=after(1000)), ["explicit", "contradicted"]),
    ],
)
def test_a_job_whose_named_gpu_is_mostly_of_another_is_ambiguous(
    other: list[dict[str, Any]], attributions: list[str]
) -> None:
    found = owners([ran("1", 0, 1000), ran("2", 0, 1000)], [*held("1", "n1", [0]), *other], FOUR)
    assert [told(found)[job] for job in ("1", "2")] == [[one] for one in attributions]


def test_jobs_that_only_samples_name_last_from_the_first_to_the_last() -> None:
    found = owners([], [*sampled("9", 100, 300), *sampled("9", 250, 500, (1,))], FOUR)
    assert found.runs.select("start", "end", "accounted").rows() == [(after(100), after(500), False)]
    assert stretches(found) == whole("9", "n1", (0, 1), 100, 500)


def test_a_job_that_nothing_names_is_listed() -> None:
    found = owners([ran("1", 0, 100), ran("2", 0, 100, node_list="n1")], [], FOUR)
    assert told(found) == {"1": ["unplaced"]}


def test_samples_may_name_tasks_as_people_write_them() -> None:
    jobs = with_seq("jobs", [ran("127", 0, 100, display_id="123_4"), ran("128", 0, 100, display_id="123_5")])
    names = with_raw_ids(with_seq("allocations", sampled("123_4", 0, 90)), jobs)
    assert names.get_column("job_id").to_list() == ["127"]
