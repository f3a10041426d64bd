"""What is proposed for the next job rests on all jobs of its name and size, not on the shortest."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from madelake import fill, job, utc
from tachograph.api.job_report import read_job
from tachograph.catalog.config import Configuration, SlurmOptions
from tachograph.catalog.rows import JobSummaryRow, StepSummaryRow
from tachograph.cli import main
from tachograph.judge.bounds import HostMemory
from tachograph.judge.finding import Finding
from tachograph.judge.partitions import PartitionUse, SitePartitions
from tachograph.lake.delta import Lake
from tachograph.report.next_time import NextTime, next_time
from tachograph.sources.slurm.partitions import SlurmNode, SlurmPartition

T = utc(23, 12)
DAY = 86400.0


@pytest.mark.parametrize(
    ("seen", "held_mib", "proposed"),
    [(4.0, 300.0, True), (3.0, 300.0, False), (4.0, 16_000.0, False), (4.0, None, False)],
)
def test_no_gpus_only_where_none_worked_or_held_memory(
    seen: float, held_mib: float | None, proposed: bool
) -> None:
    evidence = {"gpus_seen": seen}
    if held_mib is not None:
        evidence["hbm_used_mib_max"] = held_mib
    idle = Finding("idle_job", "problem", "", "", evidence=evidence)
    made = next_time({"gpus": 4}, [idle])
    assert (made is not None) is proposed
    assert made is None or (
        made.line,
        made.why.startswith("None of 4 GPUs was used: request none if "),
    ) == ("", True)


def shown(made: NextTime | None) -> tuple[str, str]:
    """Line and reason."""
    return (made.line, made.why) if made else ("", "")


SINGLY = SitePartitions(SlurmOptions(shared=("gpu",)))
Facts = dict[str, object]
GIB = 1024.0
JOB: JobSummaryRow = {
    "user": "anna",
    "name": "train",
    "partition": "gpu",
    "gpus": 1,
    "state": "COMPLETED",
    "mem_requested_mib": 256 * GIB,
}
OF_TWO: Facts = {"nodes": 2, "mem_requested_mib": 512 * GIB}


def of_step(step: str, rss_gib: float | None, **given: object) -> Facts:
    """Return a step of one task as long as its job."""
    return {
        "step": step,
        "tasks": 1,
        "max_rss_mib": None if rss_gib is None else rss_gib * GIB,
        **given,
    }


Runs = Sequence[tuple[Facts, Facts | None]]
LONG: Facts = {"timelimit_s": DAY}  # of the job that ran for an hour, and of one that ran for two
LONGER: Facts = LONG | {"minutes": 120}
TIME_CASES: list[tuple[Facts, Runs, str]] = [
    (LONG, [], "01:15:00"),
    (LONG, [(LONGER, None)], "02:30:00"),
    *(
        (LONG, [(LONGER | other, None)], "01:15:00")
        for other in ({"user": "bob"}, {"name": "other"}, {"gpus": 2}, {"state": "FAILED"})
    ),
    (LONG, [(LONG | {"minutes": 1440, "state": "TIMEOUT"}, None)], ""),
    # Only what completed says how long it takes.
    (
        {"state": "TIMEOUT", "timelimit_s": 3600.0},
        [
            ({"minutes": 84, "timelimit_s": 5040.0}, None),
            ({"minutes": 120, "timelimit_s": 7200.0, "state": "TIMEOUT"}, None),
            ({"minutes": 150, "timelimit_s": 9000.0, "state": "FAILED"}, None),
        ],
        "01:45:00",
    ),
]

# (what differs from JOB, its steps, other jobs of the user with a step of each, line)
CASES: list[tuple[Facts, list[Facts], Runs, str]] = [
    *((given, [], others, line and f"#SBATCH --time={line}") for given, others, line in TIME_CASES),
    ({}, [of_step("0", 20)], [], "#SBATCH --mem=30G"),
    ({}, [of_step("batch", 20, tasks=None), of_step("extern", None)], [], "#SBATCH --mem=30G"),
    ({}, [of_step("batch", 1), of_step("0", 20)], [], "#SBATCH --mem=32G"),  # at the same time
    # One after the other.
    ({}, [of_step("0", 20, until=30), of_step("1", 30, since=30)], [], "#SBATCH --mem=45G"),
    ({}, [of_step("0", 10, tasks=4)], [], "#SBATCH --mem=60G"),
    ({}, [of_step("0", 0.1)], [], "#SBATCH --mem=1G"),
    ({}, [of_step("0", 150)], [], ""),  # little less than what it requested
    ({}, [of_step("0", None)], [], ""),
    ({}, [of_step("0", 20), of_step("1", None)], [], ""),
    ({}, [of_step("0", 20, tasks=None)], [], ""),
    ({}, [of_step("extern", 20)], [], ""),
    ({}, [], [], ""),
    ({"mem_requested_mib": None}, [of_step("0", 20)], [], ""),
    ({"state": "FAILED"}, [of_step("0", 20)], [], ""),
    ({"minutes": 5}, [of_step("0", 20)], [], ""),  # polled too rarely
    (OF_TWO, [of_step("0", 20, nodes=2, tasks=2)], [], "#SBATCH --mem=30G"),
    # Three of them on one node.
    (OF_TWO, [of_step("0", 20, nodes=2, tasks=4)], [], "#SBATCH --mem=90G"),
    ({}, [of_step("0", 20)], [({}, of_step("0", 40))], "#SBATCH --mem=60G"),
    ({}, [of_step("0", 20)], [({}, of_step("0", None))], "#SBATCH --mem=30G"),
    # What failed early needs no less than it held.
    ({}, [of_step("0", 20)], [({"state": "FAILED"}, of_step("0", 40))], "#SBATCH --mem=60G"),
    ({}, [of_step("0", 20)], [({"state": "FAILED"}, of_step("0", 2))], "#SBATCH --mem=30G"),
    ({}, [of_step("0", 20)], [({"name": "other"}, of_step("0", 40))], "#SBATCH --mem=30G"),
    ({}, [of_step("0", 20)], [({"nodes": 2}, of_step("0", 40))], "#SBATCH --mem=30G"),
    # With as much as it has.
    ({}, [of_step("0", 20)], [({"state": "OUT_OF_MEMORY"}, of_step("0", 40))], ""),
    ({"state": "OUT_OF_MEMORY"}, [of_step("0", 20)], [], "#SBATCH --mem=384G"),
    ({"state": "OUT_OF_MEMORY"}, [], [({}, of_step("0", 300))], "#SBATCH --mem=450G"),
    ({"state": "OUT_OF_MEMORY", "mem_requested_mib": None}, [of_step("0", 20)], [], ""),
]


@pytest.fixture(scope="module")
def lake_of_cases(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Return a lake in which the jobs of each case are of a user of their own; the first is
    called by his number, counted from 1.
    """
    folder = tmp_path_factory.mktemp("memory") / "lake"
    lake = Lake.create(str(folder))
    jobs, steps = list[Facts](), list[Facts]()
    for user, (given, own, others, _) in enumerate(CASES):
        runs = [(given, own), *((facts, [step] if step else []) for facts, step in others)]
        for nth, (facts, of_run) in enumerate(runs):
            job_id, start, row = (
                str(1 + user + 100 * nth),  # 0 is no id of Slurm
                T + timedelta(days=nth),
                JOB | {"user": f"user{user}"} | facts,
            )
            minutes = int(str(row.pop("minutes", 60)))
            end = start + timedelta(minutes=minutes)
            jobs.append(job(job_id, start, end, elapsed_s=60.0 * minutes, **row))
            for step in of_run:
                since, until = (
                    int(str(step.get(name, usual)))
                    for name, usual in (("since", 0), ("until", minutes))
                )
                times = {
                    "start": start + timedelta(minutes=since),
                    "end": start + timedelta(minutes=until),
                }
                steps.append({"job_id": job_id, "nodes": 1} | step | times)
    fill(lake, {"jobs": jobs, "steps": steps})
    assert (
        main(["analyze", "--lake", str(folder), "--as-of", "2026-05-30T00:00:00Z", "--quiet"]) == 0
    )
    return lake


@pytest.mark.parametrize("number", range(len(CASES)))
def test_time_is_of_the_longest_run_and_host_memory_of_steps_that_were_polled(
    lake_of_cases: Lake, number: int
) -> None:
    report = read_job(
        lake_of_cases, str(1 + number), now=T, configuration=Configuration(slurm=SINGLY.slurm)
    )
    assert shown(report.next_time)[0] == CASES[number][-1]


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (
            "COMPLETED",
            (
                "The tasks of 2 jobs of this name and size held at most 40.0 GiB of host memory "
                "when polled"
            ),
        ),
        ("OUT_OF_MEMORY", "256.0 GiB of host memory did not suffice"),
    ],
)
def test_reason_of_memory_names_its_margin_and_what_no_job_had(state: str, why: str) -> None:
    memory = HostMemory(
        20 * GIB, (20 * GIB, 40 * GIB), (256 * GIB,) if state != "COMPLETED" else (), 300 * GIB
    )
    made = next_time(JOB | {"state": state, "nodes": 1}, [], (), memory, SINGLY)
    most = (
        " (no job of the partition requested more than 300.0 GiB of a node)"
        if state != "COMPLETED"
        else ""
    )
    assert shown(made)[1] == f"{why}, 50 % on top{most}."


def test_memory_of_a_node_is_unknown_where_fewer_gpus_may_divide_the_tasks_otherwise() -> None:
    unused = Finding(
        "one_gpu_of_many", "problem", "", "", evidence={"gpus_unused": 7.0, "gpus_seen": 8.0}
    )
    memory = HostMemory(20 * GIB, (20 * GIB,))
    lines = []
    for nodes in (1, 2):
        made = next_time(
            JOB | {"gpus": 8, "nodes": nodes, "mem_requested_mib": nodes * 256 * GIB},
            [unused],
            (),
            memory,
            SINGLY,
        )
        lines.append(shown(made)[0])
    assert lines == ["#SBATCH --gpus=1 --mem=30G", "#SBATCH --nodes=1 --gpus=1"]


WHOLE = SitePartitions(SlurmOptions(exclusive=("gpu",)))
IDLE = {"gpus_unused": 7.0, "gpus_seen": 8.0}
OF_ONE = Finding("one_gpu_of_many", "problem", "", "", evidence=IDLE)
LARGE = JOB | {"gpus": 8, "nodes": 1}
# a node of which the job holds all memory
FULL = SitePartitions(
    recorded={"gpu": SlurmPartition("gpu", (SlurmNode(8, 64, 256 * GIB),), whole_nodes=False)}
)


def test_a_shorter_time_limit_says_why_fewer_gpus_are_not_proposed() -> None:
    job = LARGE | {"state": "COMPLETED", "elapsed_s": 42732.0, "timelimit_s": 90000.0}
    made = next_time(job, [OF_ONE], site=WHOLE)
    assert made is not None
    assert made.line == "#SBATCH --time=15:00:00"
    assert made.why.endswith(
        "; fewer GPUs than 8 are not proposed, though 1 was used: its nodes are given whole, so "
        "fewer free nothing for others."
    )
    plain = next_time(job, [], site=WHOLE)
    assert plain is not None
    assert "fewer GPUs" not in plain.why


@pytest.mark.parametrize(
    ("site", "nodes", "line", "why"),
    [
        (SINGLY, 1, "--gpus=1", "1 of 8 GPUs used: this request frees 7 GPUs for others."),
        (
            WHOLE,
            2,
            "--nodes=1 --gpus=4",
            "1 of 8 GPUs used: this request frees 4 GPUs (1 node) for others.",
        ),
        (WHOLE, 1, None, None),
        (
            SitePartitions(),
            2,
            "--nodes=1 --gpus=4",
            "1 of 8 GPUs used: this request frees 4 GPUs (1 node)",
        ),
        (SitePartitions(), 1, "", "1 of 8 GPUs used: request fewer if the partition gives GPUs"),
        (SINGLY, 3, None, None),  # not as many GPUs on each node
        (FULL, 3, None, None),
        (FULL, 1, "", "1 of 8 GPUs used, but the CPUs or the memory that it requests leave no"),
    ],
)
def test_gpus_only_where_somebody_gains(
    site: SitePartitions, nodes: int, line: str | None, why: str | None
) -> None:
    made = next_time(LARGE | {"nodes": nodes}, [OF_ONE], site=site)
    assert (made is None) is (line is None)
    if made is not None and why is not None:
        assert made.line.removeprefix("#SBATCH ") == line
        assert made.why.startswith(why)


@pytest.mark.parametrize("site", [WHOLE, SitePartitions()])
def test_less_memory_only_where_others_get_it(site: SitePartitions) -> None:
    memory = HostMemory(20 * GIB, (20 * GIB,), (256 * GIB,))
    assert next_time(LARGE, [], (), HostMemory(20 * GIB, (20 * GIB,)), site) is None
    more = next_time(LARGE | {"state": "OUT_OF_MEMORY"}, [], (), memory, site)
    assert shown(more)[0] == "#SBATCH --mem=384G"


@pytest.mark.parametrize(
    ("site", "most_gib", "line", "why"),
    [
        (384, None, "--mem=384G", "256.0 GiB of host memory did not suffice, 50 % on top."),
        (
            383,
            None,
            "",
            "256.0 GiB of host memory did not suffice, and a node of the partition has",
        ),
        # not recorded what a node has: where it is given whole, all that any job had
        (None, 256, "", "256.0 GiB of host memory did not suffice, and no job of the partition"),
        (None, 384, "--mem=384G", "256.0 GiB of host memory did not suffice, 50 % on top."),
    ],
)
def test_no_more_memory_than_a_node_has(
    site: int | None, most_gib: int | None, line: str, why: str
) -> None:
    partitions = WHOLE
    if site is not None:
        node = SlurmNode(8, 64, site * GIB)
        partitions = SitePartitions(recorded={"gpu": SlurmPartition("gpu", (node,), True)})
    memory = HostMemory(None, (), (), None if most_gib is None else most_gib * GIB)
    out_of_memory = LARGE | {"state": "OUT_OF_MEMORY"}
    got, reason = shown(next_time(out_of_memory, [], (), memory, partitions))
    assert got.removeprefix("#SBATCH ") == line
    assert reason.startswith(why)


def test_a_job_with_shares_has_no_number_of_gpus() -> None:
    partition = SlurmPartition("gpu", (SlurmNode(8, 64, 512 * GIB),), False)
    row: JobSummaryRow = {**JOB, "gpus": None, "shards": 4, "nodes": 2, "timelimit_s": DAY}
    made = next_time(
        row | {"elapsed_s": 3600.0}, [], (), None, SitePartitions(recorded={"gpu": partition})
    )
    assert made is not None
    assert made.line == "#SBATCH --time=01:15:00"


def test_step_killed_for_lack_of_memory_is_the_cause_of_its_job() -> None:
    """A shell that goes on after the step ends with a code of its own."""
    job = LARGE | {"state": "FAILED", "exit_code": 1}
    of_step: StepSummaryRow = {"step": "0", "name": "bash", "state": "OUT_OF_MEMORY"}
    assert shown(next_time(job, [], (), None, SINGLY, [of_step]))[0] == "#SBATCH --mem=384G"
    assert next_time(job, [], (), None, SINGLY, [of_step | {"state": "FAILED"}]) is None
    by_signal: StepSummaryRow = of_step | {"state": "FAILED", "exit_signal": 9}
    for held_gib, line in ((250, "#SBATCH --mem=384G"), (200, None)):
        memory = HostMemory(held_gib * GIB)
        made = next_time(job | {"exit_code": 0}, [], (), memory, SINGLY, [by_signal])
        assert (made and made.line) == line


def test_move_takes_the_memory_that_the_tasks_held() -> None:
    """On whole nodes a job has all the memory of a node, which no shared partition gives."""
    shared = PartitionUse(["anna"], ["H100"], 4.0, 64.0, 64 * GIB, DAY)
    use: dict[tuple[str | None, str], PartitionUse] = {(None, "shared"): shared}
    site = SitePartitions(SlurmOptions(shared=("shared",), exclusive=("gpu",)), use=use)
    job = LARGE | {"gpu_model": "H100", "timelimit_s": DAY, "elapsed_s": 0.9 * DAY}
    lines = []
    for peak in (20 * GIB, 60 * GIB):
        made = next_time(job, [OF_ONE], (), HostMemory(peak, (peak,)), site)
        lines.append(made and made.line)
    assert lines == ["#SBATCH --partition=shared --nodes=1 --gpus=1 --mem=30G", None]


@pytest.mark.parametrize(
    ("peak_gib", "nodes", "memory", "why"),
    [
        (20, 1, "30G", "its tasks held at most 20.0 GiB of host memory when polled, 50 % on top."),
        (40, 1, "50G", "50.0 GiB of host memory were requested, and sufficed."),
        (
            20,
            2,
            "60G",
            (
                "its tasks held at most 20.0 GiB of host memory on a node when polled, 50 % on "
                "top, for the tasks of 2 nodes together."
            ),
        ),
        (
            40,
            2,
            "100G",
            (
                "50.0 GiB of host memory on a node were requested, and sufficed, for the tasks "
                "of 2 nodes together."
            ),
        ),
        (
            None,
            2,
            "100G",
            (
                "50.0 GiB of host memory on a node were requested, for the tasks of 2 nodes "
                "together."
            ),
        ),
    ],
)
def test_reason_of_moved_memory_fits_the_option(
    peak_gib: int | None, nodes: int, memory: str, why: str
) -> None:
    shared = PartitionUse(["anna"], ["H100"], 4.0, 64.0, 100 * GIB, DAY)
    use: dict[tuple[str | None, str], PartitionUse] = {(None, "shared"): shared}
    site = SitePartitions(SlurmOptions(shared=("shared",), exclusive=("gpu",)), use=use)
    job = LARGE | {"gpu_model": "H100", "timelimit_s": DAY, "elapsed_s": 0.9 * DAY}
    job |= {"nodes": nodes, "gpus": 4 * nodes, "mem_requested_mib": nodes * 50 * GIB}
    unused = {"gpus_unused": 3.0 * nodes, "gpus_seen": 4.0 * nodes}
    finding = Finding("gpus_never_used", "problem", "", "", evidence=unused)
    peaks = () if peak_gib is None else (peak_gib * GIB,)
    memory_held = HostMemory(peaks[0] if peaks else None, peaks)
    line, reason = shown(next_time(job, [finding], (), memory_held, site))
    assert line.endswith(f" --mem={memory}")
    assert reason.endswith(f"; {why}")


@pytest.mark.parametrize(
    ("peak_gib", "of_gpu_gib", "line"),
    [
        (150, 225, "--gpus=1"),  # 225 GiB with 50 % on top
        (150, 224, "--gpus=1 --mem=225G"),
        (40, 60, "--gpus=1 --mem=60G"),  # others get what it does not need
        (None, 256, "--gpus=1"),
        (None, 255, "--gpus=1 --mem=256G"),  # what it had
        (None, None, "--gpus=1"),  # the default is not recorded
    ],
)
def test_fewer_gpus_keep_the_memory_that_was_given_with_them(
    peak_gib: int | None, of_gpu_gib: int | None, line: str
) -> None:
    of_gpu = None if of_gpu_gib is None else of_gpu_gib * GIB
    node = SlurmNode(8, 64, 512 * GIB)
    gpu = SlurmPartition("gpu", (node,), False, memory_per_gpu_mib=of_gpu)
    peaks = () if peak_gib is None else (peak_gib * GIB,)
    memory = HostMemory(peaks[0] if peaks else None, peaks)
    made = next_time(LARGE, [OF_ONE], (), memory, SitePartitions(recorded={"gpu": gpu}))
    assert shown(made)[0] == f"#SBATCH {line}"


HANG = Finding("job_hang", "problem", "", "")
TIMED_OUT: JobSummaryRow = {
    "gpus": 1,
    "state": "TIMEOUT",
    "timelimit_s": 3600.0,
    "elapsed_s": 3630.0,
}


@pytest.mark.parametrize(
    ("runs_s", "findings", "line", "why"),
    [
        ([], [], "", "No longer job of this name and size completed"),
        ([3600.0], [], "", "No longer job of this name and size completed"),
        (
            [3601.0],
            [],
            "#SBATCH --time=01:20:00",
            "A completed job of this name and size ran for 1 h, 33 % on top.",
        ),
        (
            [1000.0, 11520.0],
            [],
            "#SBATCH --time=04:00:00",
            "A completed job of this name and size ran for 3 h 12 min, 25 % on top.",
        ),
        (
            [1000.0, 11521.0],
            [],
            "",
            "A completed job of this name and size ran for 3 h 12 min: request more time",
        ),
        ([3601.0], [HANG], "", "The GPUs did no more work at the end: find out why"),
    ],
)
def test_a_time_limit_that_was_too_short(
    runs_s: list[float], findings: list[Finding], line: str, why: str
) -> None:
    following = next_time(TIMED_OUT, findings, runs_s)
    got, reason = shown(following)
    assert got == line
    assert reason.startswith(why)
    assert next_time(TIMED_OUT | {"timelimit_s": None}, findings, runs_s) is None
    cancelled = next_time(TIMED_OUT | {"state": "CANCELLED"}, findings, runs_s)
    assert cancelled is None


@pytest.mark.parametrize(("most_s", "line"), [(4799.0, ""), (4800.0, "#SBATCH --time=01:20:00")])
def test_no_more_time_than_the_partition_allows(most_s: float, line: str) -> None:
    node = SlurmNode(8, 64, 512 * GIB)
    site = SitePartitions(
        recorded={"gpu": SlurmPartition("gpu", (node,), False, most_time_s=most_s)}
    )
    made = next_time(TIMED_OUT | {"partition": "gpu"}, [], [3601.0], None, site)
    got, why = shown(made)
    assert got == line
    assert ("the partition allows at most 1 h 19 min" in why) is (not line)
