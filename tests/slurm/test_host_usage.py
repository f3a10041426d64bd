"""CPU time and host memory of jobs, as accounted: recorded exports of three versions of Slurm
and of sites.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from slurm_reading import MADE, VERSIONS, reading_of

from tachograph.catalog.chunks import Reject
from tachograph.judge.steps import node_memory_mib
from tachograph.sources.sacct import read_file
from tachograph.sources.slurm.exports import read_content
from tachograph.sources.slurm.fields import BadRowError
from tachograph.sources.slurm.records import SlurmCluster, SlurmRow
from tachograph.sources.slurm.usage import (
    HostUsage,
    gpu_use_of_run,
    requested_mib,
    text_usage,
    tres_value,
)

KILLED = ("CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL")
UNITS = {"": 1 / 2**20, "K": 1 / 1024, "M": 1, "G": 1024}


def seconds(written: str) -> float:
    """The seconds of `[days-][hours:]minutes:seconds`, counted again in the test."""
    days, _, clock = written.rpartition("-")
    parts = [float(part) for part in clock.split(":")]
    return int(days or 0) * 86400 + sum(
        part * 60.0**place for place, part in enumerate(reversed(parts))
    )


def mib(written: str) -> float:
    found = re.fullmatch(r"([\d.]+)([KMG]?)[nc]?", written)
    assert found
    return float(found[1]) * UNITS[found[2]]


def written_rows(version: str) -> Iterator[dict[str, str]]:
    text = (MADE / version / "sacct.parsable2.txt").read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines(), delimiter="|", quoting=csv.QUOTE_NONE)


def used(row: SlurmRow) -> tuple[object, object, object]:
    return row["cpu_time_s"], row["mem_requested_mib"], row["max_rss_mib"]


@pytest.mark.parametrize("version", VERSIONS)
def test_text_of_a_version(version: str) -> None:
    steps: dict[str, list[dict[str, str]]] = defaultdict(list)
    jobs = {}
    for row in written_rows(version):
        job, _, step = row["JobIDRaw"].partition(".")
        if step:
            steps[job].append(row)
        else:
            jobs[job] = row
    read = {
        str(row["job_id"]): row for row in reading_of(MADE / version / "sacct.parsable2.txt").jobs
    }
    assert read.keys() == jobs.keys()
    assert len(read) == 18
    for job, row in jobs.items():
        largest = max((mib(step["MaxRSS"]) for step in steps[job] if step["MaxRSS"]), default=None)
        polled = [tres_value(step["TRESUsageInTot"], "cpu") for step in steps[job]]
        killed = [step["State"].startswith(KILLED) for step in steps[job]]
        times = [
            max(seconds(step["TotalCPU"]), seconds(cpu or "0"))
            for step, cpu in zip(steps[job], polled, strict=True)
        ]
        own = 0.0 if row["State"].startswith(KILLED) else seconds(row["TotalCPU"])
        total = max(sum(times), own)
        lost = any(kill and not cpu for kill, cpu in zip(killed, polled, strict=True))
        cpu_time_s = None if lost or not total else pytest.approx(total, abs=1e-9)
        assert used(read[job]) == (cpu_time_s, mib(row["ReqMem"]), largest), job
    assert read["1"]["cpus"] == 8
    assert read["5"]["cpu_time_s"] is None  # its step was killed before it was polled
    assert read["8"]["max_rss_mib"] is None  # it never ran


@pytest.mark.parametrize("version", VERSIONS)
def test_memory_of_a_node_is_between_its_largest_task_and_all_tasks_at_once(version: str) -> None:
    found = []
    for file in ("sacct.parsable2.txt", "sacct.json"):
        reading = reading_of(MADE / version / file)
        names = ("job_id", "step", "start", "end", "nodes", "tasks", "max_rss_mib")
        steps = pl.DataFrame(
            [{name: row[name] for name in names} for row in reading.steps], infer_schema_length=None
        )
        of_node = node_memory_mib(steps.rename({"job_id": "job_key"}))
        for row in reading.jobs:
            own = steps.filter(pl.col("job_id") == row["job_id"])
            unpolled = own.filter(pl.col("step") != "extern")["max_rss_mib"].null_count()
            assert (row["job_id"] in of_node) == (own.height > 0 and not unpolled), row["job_id"]
        largest = {str(row["job_id"]): row["max_rss_mib"] for row in reading.jobs}
        total = dict(
            steps.group_by("job_id")
            .agg((pl.col("max_rss_mib") * pl.col("tasks")).sum())
            .iter_rows()
        )
        assert all(
            float(str(largest[job])) - 1e-6 <= size <= total[job] + 1e-6
            for job, size in of_node.items()
        )
        found.append(of_node)
    assert found[0] == pytest.approx(found[1])
    assert len(found[0]) > 10


@pytest.mark.parametrize("version", VERSIONS)
def test_text_and_json_differ_by_less_than_the_seconds_of_text(version: str) -> None:
    text, document = (
        {row["job_id"]: row for row in reading_of(MADE / version / name).jobs}
        for name in ("sacct.parsable2.txt", "sacct.json")
    )
    for job, row in text.items():
        left, right = row["cpu_time_s"], document[job]["cpu_time_s"]
        assert (left is None) == (right is None), job
        assert used(row)[1:] == used(document[job])[1:]
        assert left == pytest.approx(
            right, abs=1.0 if row["state"] in {"FAILED", *KILLED} else 1e-9
        ), job
    # killed by Slurm for its memory: its processes handed on 6 ms, polled were some 300 ms
    over_memory = document["13"]["cpu_time_s"]
    assert isinstance(over_memory, float)
    assert over_memory > 0.3


@pytest.mark.parametrize("name", ["phillips.log", "mortorq-utf8.log", "robertson-filter-test.log"])
def test_memory_requested_per_node_and_per_core(recorded: Path, name: str) -> None:
    path = recorded / "sacct_xdmod" / name
    read = {(row["job_id"], row["submit"]): row for row in reading_of(path).jobs}
    compared = 0
    for row in read.values():
        assert row["cpu_time_s"] is None
        assert row["max_rss_mib"] is None
    by_id = defaultdict(set)
    for (job, _), row in read.items():
        by_id[job].add(row["mem_requested_mib"])
    for line in path.read_bytes().decode("utf-8", "replace").splitlines():
        fields = line.split("|")
        if len(fields) != 26 or not fields[20]:
            continue
        nodes, requested_cpus, reqmem = int(fields[17]), int(fields[19]), fields[20]
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([MG])([nc])", reqmem)
        assert found, reqmem
        amount = float(found[1]) * UNITS[found[2]]
        per_core = found[3] == "c" or amount >= 2**31
        expected = (amount % 2**31) * (requested_cpus if per_core else nodes)
        of_tres = tres_value(fields[21], "mem")
        if of_tres:
            # written with two decimals
            assert mib(of_tres) == pytest.approx(expected, rel=0.01), reqmem
            compared += 1
        assert any(
            value == pytest.approx(expected or None, rel=0.01) for value in by_id[fields[1]]
        ), line
    assert compared > 0


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("4G", 4096.0),
        ("4Gn", 8192.0),
        ("4Gc", 131072.0),
        ("4000Mc", 128000.0),
        ("512", 512.0),
        ("1.50T", 1572864.0),
        ("2048K", 2.0),
        ("62.50g", 64000.0),
        ("16GiB", 16384.0),
        ("0n", 0.0),
        ("2147483648M", 0.0),  # of each CPU, by its flag alone
        ("2147483647M", 2147483647.0),
        ("2147483649", 32.0),
        ("2147483648.50M", 2147483648.5),
        ("2097152G", 2147483648.0),
        ("", None),
        ("Unknown", None),
    ],
)
def test_forms_of_requested_memory(written: str, expected: float | None) -> None:
    assert requested_mib(written, nodes=2, cpus=32) == expected


@pytest.mark.parametrize("written", ["four", "4X", "4 000M", "-4G", "9" * 25, "8589934592T"])
def test_what_is_no_amount_of_memory(written: str) -> None:
    with pytest.raises(BadRowError, match="bad_size"):
        requested_mib(written, nodes=1, cpus=1)


HEADER = "JobID|JobIDRaw|State|Submit|Start|End|Elapsed|NNodes|NCPUS|ReqMem|TotalCPU|MaxRSS|TRESUsageInTot|AllocTRES"


def line(
    job: str,
    state: str,
    hours: tuple[int, int],
    cpu: str,
    rss: str = "",
    polled: str = "",
    mem: str = "",
) -> str:
    start, end = (f"2026-07-01T{hour:02d}:00:00" for hour in hours)
    submit = f"2026-07-01T{hours[0]:02d}:00:00"
    return f"{job}|{job}|{state}|{submit}|{start}|{end}|01:00:00|1|4|{mem}|{cpu}|{rss}|{polled}|cpu=4,gres/gpu=1,mem=8G"


def jobs_of(*lines: str, rows_per_chunk: int = 1000) -> list[SlurmRow]:
    content = "\n".join((HEADER, *lines, "")).encode()
    readings = read_content(
        content, where="test", cluster=SlurmCluster(), rows_per_chunk=rows_per_chunk
    )
    return [row for reading in readings for row in reading.jobs]


def test_steps_of_a_requeued_job_belong_to_the_run_they_started_in() -> None:
    rows = jobs_of(
        line("7", "NODE_FAIL", (1, 2), "00:00:00", mem="16G"),
        line("7.batch", "CANCELLED", (1, 2), "00:00:00", "100M", "cpu=01:00:00"),
        line("7", "COMPLETED", (3, 4), "02:00:00", mem="16G"),
        line("7.batch", "COMPLETED", (3, 4), "02:00:00", "1.5G"),
    )
    assert [used(row) for row in rows] == [(3600.0, 16384.0, 100.0), (7200.0, 16384.0, 1536.0)]
    unknown = line("7.0", "COMPLETED", (3, 4), "09:00:00", "9G").split("|")
    unknown[HEADER.split("|").index("Start")] = "Unknown"
    runs = jobs_of(
        line("7", "COMPLETED", (1, 2), "00:10:00"),
        line("7", "COMPLETED", (3, 4), "00:20:00"),
        "|".join(unknown),
    )
    assert [used(row) for row in runs] == [(600.0, 8192.0, None), (1200.0, 8192.0, None)]


def test_a_job_is_read_with_its_steps_wherever_a_chunk_ends() -> None:
    lines = [
        written
        for job in range(1, 6)
        for written in (
            line(str(job), "COMPLETED", (1, 2), f"00:00:{10 + job}"),
            line(f"{job}.batch", "COMPLETED", (1, 2), "00:00:01", f"{job}M"),
            line(f"{job}.0", "COMPLETED", (1, 2), f"00:00:{9 + job}", f"{job * 100}M"),
        )
    ]
    whole = [used(row) for row in jobs_of(*lines)]
    assert whole == [(10.0 + job, 8192.0, job * 100.0) for job in range(1, 6)]
    for size in range(1, 8):
        assert [used(row) for row in jobs_of(*lines, rows_per_chunk=size)] == whole


def test_usage_of_a_running_job_is_not_known() -> None:
    text = line("1", "RUNNING", (1, 2), "00:10:00", "5G").replace("2026-07-01T02:00:00", "Unknown")
    (row,) = jobs_of(text)
    assert used(row) == (None, 8192.0, None)


def test_values_that_cannot_be_read_are_counted_and_their_job_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    lines = [
        line("1", "COMPLETED", (1, 2), "ages", "much", mem="some"),
        line("2", "COMPLETED", (1, 2), "00:01:00"),
    ]
    path.write_text("\n".join((HEADER, *lines, "")), encoding="utf-8")
    (reading,) = read_file(path, cluster=SlurmCluster())
    assert [used(row) for row in reading.jobs] == [(None, 8192.0, None), (60.0, 8192.0, None)]
    assert set(reading.rejects()) == {
        Reject("bad_duration", "cpu_time_s", 1, "ages"),
        Reject("bad_size", "max_rss_mib", 1, "much"),
        Reject("bad_size", "mem_requested_mib", 1, "some"),
    }


@pytest.mark.parametrize(
    ("cpu", "rss", "reason"),
    [
        ("INVALID", "", "bad_duration"),
        ("UNLIMITED", "", "bad_duration"),
        ("00:01:00", "10iB", "bad_size"),
        ("00:01:00", "10B", "bad_size"),
    ],
)
def test_what_is_no_use(cpu: str, rss: str, reason: str) -> None:
    _, unread = text_usage({"totalcpu": cpu, "maxrss": rss})
    assert [(one.reason, one.text) for one in unread] == [(reason, rss or cpu)]


def test_the_documented_list_needs_no_header() -> None:
    page = (Path(__file__).parents[2] / "docs" / "accounting.md").read_text(encoding="utf-8")
    found = re.search(r"--format=((?:\w+,|\\\n\s*)+\w+)", page)
    assert found
    names = re.sub(r"\\\n\s*", "", found[1]).lower().split(",")
    row = dict.fromkeys(names, "") | {
        "jobid": "1",
        "jobidraw": "1",
        "state": "COMPLETED",
        "elapsed": "01:00:00",
    }
    row |= {
        "start": "2026-07-01T01:00:00",
        "end": "2026-07-01T02:00:00",
        "totalcpu": "00:10:00",
        "reqmem": "4G",
    }
    (reading,) = read_content(
        "|".join(row.values()).encode() + b"\n", where="test", cluster=SlurmCluster()
    )
    assert [used(row) for row in reading.jobs] == [(600.0, 4096.0, None)]


@pytest.mark.parametrize(
    ("name", "written", "joules"),
    [
        ("AllocTRES", "billing=8,cpu=8,energy=1834567,gres/gpu=2,node=1", 1834567.0),
        ("AllocTRES", "cpu=8,energy=18446744073709551614,node=1", None),
        ("ConsumedEnergyRaw", "1834567", 1834567.0),
        ("ConsumedEnergyRaw", "4294967294", None),
        ("ConsumedEnergyRaw", "0", None),
        ("ConsumedEnergy", "1.83M", 1.83e6),
    ],
)
def test_energy_of_nodes_where_it_was_measured(
    name: str, written: str, joules: float | None
) -> None:
    start, end = "2026-04-01T10:00:00", "2026-04-01T12:00:00"
    header = f"JobID|JobIDRaw|Submit|Start|End|State|{name}"
    content = f"{header}\n7|7|{start}|{start}|{end}|COMPLETED|{written}\n".encode()
    (reading,) = read_content(content, where="test", cluster=SlurmCluster())
    assert [row["consumed_energy_j"] for row in reading.jobs] == [joules]


@pytest.mark.parametrize(
    ("gpus", "busy", "expected"),
    [
        (4, 4.0, 4.0),
        (4, 4.01, None),
        (0, 1.0, 1.0),  # of a share of a GPU
        (0, 1.01, None),
        (None, 9.0, 9.0),
    ],
)
def test_a_task_uses_no_more_gpus_than_its_run_has(
    gpus: int | None, busy: float, expected: float | None
) -> None:
    usages = [HostUsage(), HostUsage(gpu_util_max=busy, gpu_mem_mib_max=5.0), HostUsage()]
    found, mem_mib, unread = gpu_use_of_run(usages, gpus)
    assert (found, mem_mib) == (expected, 5.0)
    assert [value.text for value in unread] == ([] if expected else [f"{100 * busy:g}"])
