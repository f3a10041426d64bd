"""`sacct --parsable2` text: layouts, records put together again, what is rejected and why."""

from __future__ import annotations

import argparse
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slurm_reading import ReadText, Write

from own_time import own_seconds
from tachograph.catalog.chunks import Chunk, Reject
from tachograph.catalog.config import Configuration, SiteOptions, SlurmOptions
from tachograph.catalog.errors import InputError
from tachograph.catalog.tables import ALLOCATIONS, JOBS, STEPS
from tachograph.lake.conform import conform
from tachograph.sources import sacct
from tachograph.sources.slurm.exports import frame_of
from tachograph.sources.slurm.records import SlurmCluster
from tachograph.sources.slurm.sacct_text import read_text as read_content

HEADER = "JobID|JobIDRaw|JobName|State|Submit|Start|End|Elapsed|NodeList|AllocTRES|SubmitLine"
GOOD = "7|7|train|COMPLETED|2026-01-01T00:00:00|2026-01-01T00:01:00|2026-01-01T00:02:00|00:01:00|n[1-2]|cpu=8,gres/gpu=4|sbatch job.sh"  # noqa: E501


def row(**changed: str) -> str:
    values = dict(zip(HEADER.lower().split("|"), GOOD.split("|"), strict=True)) | changed
    return "|".join(values.values())


def text(*rows: str, header: str = HEADER) -> str:
    return "\n".join([header, *rows]) + "\n"


def test_a_row_becomes_a_job_and_its_nodes(read_text: ReadText) -> None:
    reading = read_text(text(GOOD))
    (job,) = reading.jobs
    assert {name: value for name, value in job.items() if value is not None} == {
        "job_id": "7",
        "name": "train",
        "state": "COMPLETED",
        "submit": datetime(2026, 1, 1, tzinfo=UTC),
        "start": datetime(2026, 1, 1, 0, 1, tzinfo=UTC),
        "end": datetime(2026, 1, 1, 0, 2, tzinfo=UTC),
        "elapsed_s": 60.0,
        "node_list": "n[1-2]",
        "gpus": 4,
        "cpus": 8,
        "submit_line": "sbatch job.sh",
        "time_precision_s": 0.0,
    }
    assert set(job) == {name for name in JOBS.schema if name != "seq"}
    assert reading.allocations == [
        {
            "cluster": None,
            "job_id": "7",
            "step": None,
            "numbering": None,
            "node": node,
            "gpu": None,
            "mig": None,
            "start": job["start"],
            "end": job["end"],
            "provenance": "node_list",
            "shared": None,
        }
        for node in ("n1", "n2")
    ]
    assert reading.rejects() == ()


@pytest.mark.parametrize("delimiter", ["|", "^|^", "|#", ";", "\t"])
def test_delimiters_are_found_out(read_text: ReadText, delimiter: str) -> None:
    content = text(row(jobname="#1")).replace("|", delimiter)
    assert [job["name"] for job in read_text(content).jobs] == ["#1"]


@pytest.mark.parametrize("name", ["#1", "^x^"])
def test_a_bar_before_a_name_is_no_longer_delimiter(read_text: ReadText, name: str) -> None:
    fields = HEADER.replace("|", ",")
    assert [job["name"] for job in read_text(row(jobname=name) + "\n", fields=fields).jobs] == [name]


def test_a_delimiter_can_be_given(read_text: ReadText) -> None:
    content = text(GOOD).replace("|", "~~")
    assert [job["gpus"] for job in read_text(content, delimiter="~~").jobs] == [4]


def test_text_without_header_takes_the_fields_that_are_named(read_text: ReadText) -> None:
    reading = read_text(
        f"{GOOD}\n", fields="jobid,jobidraw,jobname%30,state,submit,start,end,elapsed,nodelist,alloctres,submitline"
    )
    assert [job["name"] for job in reading.jobs] == ["train"]


def test_text_of_parsable_has_a_delimiter_behind_the_last_field(read_text: ReadText) -> None:
    assert [job["submit_line"] for job in read_text(text(GOOD + "|", header=HEADER + "|")).jobs] == ["sbatch job.sh"]


def test_carriage_returns_a_mark_and_repeated_headers_do_no_harm(read_text: ReadText) -> None:
    content = "\ufeff" + "\r\n".join([HEADER, GOOD, HEADER, GOOD, "", ""])
    reading = read_text(content)
    assert [job["submit_line"] for job in reading.jobs] == ["sbatch job.sh"] * 2
    assert reading.rows_read == 2


@pytest.mark.parametrize(
    "name",
    [
        "a|b",
        "a|b|c|d",
        "two\nlines",
        "a|b\nc|d",
        "5\n6",
        "x\n7|y",
        "\n",
        "a\n\nb",
        "|",
        "\u2028\x0b\x0c\x85",
        "schön Straße",
        " ",
    ],
)
def test_a_job_name_survives(read_text: ReadText, name: str) -> None:
    content = text(row(jobid="6", jobidraw="6"), row(jobname=name), row(jobid="8", jobidraw="8"))
    reading = read_text(content)
    assert reading.rejected == []
    assert [job["job_id"] for job in reading.jobs] == ["6", "7", "8"]
    assert reading.jobs[1]["name"] == name


@pytest.mark.parametrize(
    "line",
    [
        "sbatch --wrap a | b",
        "sbatch --wrap python <<E\nprint(1)\nE",
        "sbatch --wrap a\n\nb",
        "sbatch --wrap for i in 1 2\ndo echo $i | tee x | wc\ndone",
        "sbatch --wrap\n5\n6",
        "x" * 1_000_000,
    ],
)
def test_a_submit_line_survives(read_text: ReadText, line: str) -> None:
    reading = read_text(text(row(jobid="6", jobidraw="6"), row(submitline=line), row(jobid="8", jobidraw="8")))
    assert reading.rejected == []
    assert [job["submit_line"] for job in reading.jobs] == ["sbatch job.sh", line, "sbatch job.sh"]


def test_delimiters_in_name_and_submit_line_at_once(read_text: ReadText) -> None:
    (job,) = read_text(text(row(jobname="a|b", submitline="sbatch --wrap c|d|e"))).jobs
    assert (job["name"], job["submit_line"]) == ("a|b", "sbatch --wrap c|d|e")


def test_bytes_that_are_not_utf8_are_replaced_and_counted(read_text: ReadText) -> None:
    content = text(row(jobname="caf?"), row(jobid="8", jobidraw="8", submitline="sbatch ?.sh"), GOOD).encode()
    reading = read_text(content.replace(b"?", b"\xe9"))
    assert [job["name"] for job in reading.jobs] == ["caf\ufffd", "train", "train"]
    assert reading.rejects() == (Reject("invalid_utf8", "name", 1), Reject("invalid_utf8", "submit_line", 1))


def test_binary_inside_text_costs_its_rows_only(read_text: ReadText) -> None:
    content = (
        text(GOOD).encode() + b"\x00\x01\xff|\x02\x03\n" + GOOD.encode() + b"\n" + row(jobname="a\0b").encode() + b"\n"
    )
    reading = read_text(content)
    assert [job["name"] for job in reading.jobs][:1] == ["train"]
    assert reading.jobs[-1]["name"] == "a\0b"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"jobid": "abc", "jobidraw": "abc"}, "bad_job_id"),
        ({"start": "soon"}, "bad_time"),
        ({"end": "2026-01-01T00:00:30"}, "end_before_start"),
        ({"nodelist": "n[1-"}, "bad_node_list"),
        ({"nodelist": "n[1-100000000]"}, "too_many_nodes"),
        ({"alloctres": "gres/gpu=four"}, "bad_tres"),
        ({"elapsed": "long"}, "bad_duration"),
        ({"state": "3:0"}, "bad_state"),
    ],
)
def test_a_row_that_cannot_be_read_is_counted_and_shown(
    read_text: ReadText, write: Write, changed: dict[str, str], reason: str
) -> None:
    bad = row(**changed)
    reading = read_text(text(GOOD, bad, GOOD))
    assert len(reading.jobs) == 2
    assert reading.rejects() == (Reject(reason, None, 1, f"3: {bad}"[:200]),)
    (reading,) = sacct.read_file(write(text(GOOD, bad, GOOD)), cluster=SlurmCluster(), trusted=True)
    assert reading.rejected == [(3, reason, bad)]


def test_a_row_that_is_cut_off_is_counted(read_text: ReadText) -> None:
    reading = read_text(text(GOOD, "8|8|cut|COMPL", GOOD, "9|9|cut"))
    assert len(reading.jobs) == 2
    assert [(place, reason) for place, reason, _ in reading.rejected] == [(3, "field_count"), (5, "field_count")]


def test_a_time_that_does_not_exist_is_counted(read_text: ReadText) -> None:
    bad = row(start="2026-03-08T02:30:00", end="2026-03-08T04:30:00", elapsed="01:00:00")
    reading = read_text(text(bad), cluster=SlurmCluster(time_zone="America/New_York"))
    assert [reason for _, reason, _ in reading.rejected] == ["time_does_not_exist"]


def test_local_times_are_those_of_the_site(read_text: ReadText) -> None:
    twice = row(
        submit="2026-11-01T01:30:00", start="2026-11-01T01:30:00", end="2026-11-01T02:30:00", elapsed="01:00:00"
    )
    (job,) = read_text(text(twice), cluster=SlurmCluster(time_zone="America/New_York")).jobs
    assert job["start"] == datetime(2026, 11, 1, 6, 30, tzinfo=UTC)
    assert job["end"] == datetime(2026, 11, 1, 7, 30, tzinfo=UTC)


def test_a_running_job_has_no_end_and_no_exit_code(read_text: ReadText) -> None:
    (job,) = read_text(text(row(state="RUNNING", end="Unknown"))).jobs
    assert (job["state"], job["end"], job["gpus"], job["exit_code"]) == ("RUNNING", None, 4, None)


@pytest.mark.parametrize("start", ["None", "Unknown", "2026-01-01T00:02:00"])
def test_a_job_that_never_ran_has_no_start_and_no_gpus(read_text: ReadText, start: str) -> None:
    bad = row(
        state="CANCELLED by 5", start=start, elapsed="00:00:00", nodelist="None assigned", alloctres="cpu=8,gres/gpu=4"
    )
    reading = read_text(text(bad))
    (job,) = reading.jobs
    assert (job["state"], job["start"], job["node_list"], job["gpus"], job["cpus"]) == (
        "CANCELLED",
        None,
        None,
        None,
        None,
    )
    assert job["end"] is not None
    assert reading.allocations == []


def test_no_gpus_is_zero_only_where_the_site_accounts_for_gpus(read_text: ReadText) -> None:
    without = row(alloctres="cpu=8,mem=1G")
    assert [job["gpus"] for job in read_text(text(without)).jobs] == [None]
    reading = read_text(text(GOOD, without))
    assert [job["gpus"] for job in reading.jobs] == [4, 0]
    assert {allocation["job_id"] for allocation in reading.allocations} == {"7"}
    assert len(reading.allocations) == 2  # of the one with GPUs
    asked = row(alloctres="cpu=8,mem=1G", submitline="sbatch --gpus=2 job.sh")  # what a user writes decides nothing
    assert [job["gpus"] for job in read_text(text(GOOD, asked)).jobs] == [4, 0]


def test_without_tres_the_gpus_are_not_known(read_text: ReadText) -> None:
    header = "JobID|State|Start|End|NodeList"
    reading = read_text(f"{header}\n7|COMPLETED|2026-01-01T00:00:00|2026-01-01T01:00:00|n1\n")
    (job,) = reading.jobs
    assert (job["gpus"], job["submit"]) == (None, None)
    assert [allocation["node"] for allocation in reading.allocations] == ["n1"]


def test_a_running_job_without_allocated_tres_holds_what_it_asked_for(read_text: ReadText) -> None:
    header = "JobID|State|Start|End|NodeList|AllocTRES|ReqTRES"
    (job,) = read_text(f"{header}\n7|RUNNING|2026-01-01T00:00:00|Unknown|n1||cpu=1,gres/gpu=2\n").jobs
    assert job["gpus"] == 2


@pytest.mark.parametrize(
    ("cluster", "partition", "qos", "line", "exclusive"),
    [
        (SlurmCluster(), "gpu", "normal", "sbatch job.sh", None),
        (SlurmCluster(), "gpu", "normal", "sbatch --exclusive job.sh", None),  # what a user writes decides nothing
        (SlurmCluster(shared=("*shared*",)), "gpu", "gpu_shared", "sbatch --exclusive job.sh", False),
        (SlurmCluster(exclusive=("regular*",)), "regular_1", "normal", "sbatch job.sh", True),
        (SlurmCluster(exclusive=("regular",)), "debug,regular", "normal", "sbatch job.sh", True),
        (SlurmCluster(shared=("gpu",), exclusive=("normal",)), "gpu", "normal", "sbatch job.sh", False),
    ],
)
def test_exclusive_is_what_is_configured(
    read_text: ReadText, cluster: SlurmCluster, partition: str, qos: str, line: str, exclusive: bool | None
) -> None:
    content = text(f"{GOOD.removesuffix('sbatch job.sh')}{line}|{partition}|{qos}", header=f"{HEADER}|Partition|QOS")
    (job,) = read_text(content, cluster=cluster).jobs
    assert job["exclusive"] is exclusive


@pytest.mark.parametrize(
    ("constraints", "line", "expected"),
    [
        ("gpu&hbm80g", "sbatch job.sh", ("gpu&hbm80g", "80g")),
        ("", "sbatch -C gpu&hbm40g job.sh", ("gpu&hbm40g", "40g")),
        ("gpu", "sbatch -C gpu&hbm80g job.sh", ("gpu", "80g")),
        ("", "sbatch job.sh", (None, None)),
    ],
)
def test_the_memory_tier_is_in_constraints_or_submit_line(
    read_text: ReadText, constraints: str, line: str, expected: tuple[str | None, str | None]
) -> None:
    content = text(f"{constraints}|{row(submitline=line)}", header=f"Constraints|{HEADER}")
    (job,) = read_text(content).jobs
    assert (job["constraints"], job["hbm_request"]) == expected


def test_steps_are_rows_of_their_own(read_text: ReadText) -> None:
    steps = [row(jobid=f"7.{step}", jobidraw=f"7.{step}") for step in ("batch", "extern", "0")]
    reading = read_text(text(GOOD, *steps))
    assert (len(reading.jobs), reading.rows_read, reading.rejected) == (1, 4, [])
    assert [(step["job_id"], step["step"]) for step in reading.steps] == [("7", "batch"), ("7", "extern"), ("7", "0")]
    assert {(step["node_list"], step["gpus"], step["state"]) for step in reading.steps} == {("n[1-2]", 4, "COMPLETED")}


def test_jobs_of_which_only_numbered_steps_are_listed_are_made_of_them(read_text: ReadText) -> None:
    content = (
        "JobID,step,Start,End,NNodes,Account,Partition,SubmitLine\n"
        "605,0,2026-01-01T10:00:00,2026-01-01T11:00:00,2,m1,gpu,sbatch -C gpu job.sh\n"
        "605,1,2026-01-01T11:00:00,2026-01-01T12:30:00,4,m1,gpu,sbatch -C gpu job.sh\n"
        "606,0,2026-01-01T10:00:00,Unknown,1,m2,gpu,\n"
        "607,,2026-01-01T10:00:00,2026-01-01T11:00:00,1,m2,gpu,\n"
        "607,0,2026-01-01T10:10:00,2026-01-01T10:20:00,1,m2,gpu,\n"
    )
    reading = read_text(content)
    assert (len(reading.jobs), len(reading.steps), reading.rows_read) == (3, 4, 5)
    jobs = {str(job["job_id"]): job for job in reading.jobs}
    assert (jobs["605"]["start"], jobs["605"]["end"]) == (
        datetime(2026, 1, 1, 10, tzinfo=UTC),
        datetime(2026, 1, 1, 12, 30, tzinfo=UTC),
    )
    assert (jobs["605"]["nodes"], jobs["605"]["account"], jobs["605"]["constraints"]) == (4, "m1", "gpu")
    assert (jobs["606"]["end"], jobs["607"]["end"]) == (None, datetime(2026, 1, 1, 11, tzinfo=UTC))
    (noted,) = reading.rejects()
    assert (noted.reason, noted.count) == ("job_of_steps", 2)


def test_tasks_without_raw_id_are_counted(read_text: ReadText) -> None:
    content = "JobID|State|Start|End\n" + "".join(f"{name}|COMPLETED|Unknown|Unknown\n" for name in ("7", "8_1", "9+0"))
    reading = read_text(content)
    assert [job["job_id"] for job in reading.jobs] == ["7", "8_1", "9+0"]
    assert reading.rejects() == (Reject("no_raw_job_id", "job_id", 2, "8_1"),)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "empty"),
        (b"\n \n", "blanks"),
        (b"JobID JobName Partition\n----- ------- ---\n1 a b\n", "no sacct text"),
        (b"a|b|c\n", "no known list"),
        (b"JobID|State\n1|COMPLETED\n", "no field Start and no field End"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"PAR1\x00", "Parquet"),
        ("JobID|Start|End\n".encode("utf-16"), "UTF-16"),
        (b"# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization\n", "tachograph ingest dcgm-exporter"),
        (b'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 30\n', "tachograph ingest dcgm-exporter"),
        (b"node_load1 0.5\n", "tachograph ingest dcgm-exporter"),
        (b"#Entity   GPUTL\nID\nGPU 0     97\n", "no source reads it yet"),
        (b"timestamp,hostname,gpu_id,nersc_ldms_dcgm_fb_free\n", "tachograph ingest ldms"),
        (b"JobId=1 JobName=a\n", "tachograph ingest allocation-map"),
        (b"job_id,node,gpu\n1,n1,0\n", "tachograph ingest allocation-map"),
        (b"1795247442 prolog job=1 node=n1 gpus=0\n", "tachograph ingest allocation-map"),
    ],
)
def test_a_file_that_is_no_accounting_is_an_error_that_says_what_to_do(
    read_text: ReadText, content: bytes, what: str
) -> None:
    with pytest.raises(InputError, match=what) as caught:
        read_text(content)
    assert caught.value.do


def test_fields_without_a_job_id_are_an_error(read_text: ReadText) -> None:
    with pytest.raises(InputError, match="no JobID"):
        read_text("a|b\n", fields="user,state")


def chunks(path: Path, configuration: Configuration, now: datetime) -> list[Chunk]:
    parser = argparse.ArgumentParser()
    sacct.add_options(parser)
    return list(sacct.read(parser.parse_args([str(path), "--trusted"]), configuration=configuration, now=now))


def test_chunks_fit_the_schema_and_keep_their_id(write: Write, now: datetime) -> None:
    path = write(text(GOOD, row(jobid="x", jobidraw="x")))
    (chunk,) = chunks(path, Configuration(), now)
    assert (chunk.source, chunk.origin, chunk.rows_read) == ("sacct", str(path), 2)
    jobs, steps, allocations = chunk.parts
    for part, table in ((jobs, JOBS), (steps, STEPS), (allocations, ALLOCATIONS)):
        conformed = conform(part.frame, table, now=now)
        assert conformed.rejects == ()
        assert conformed.frame.height == part.frame.height
    assert [reject.reason for reject in jobs.rejects] == ["bad_job_id"]
    assert jobs.frame["start"].to_list() == [datetime(2026, 1, 1, 0, 1, tzinfo=UTC)]
    assert chunks(path, Configuration(), now)[0].id == chunk.id
    changed = Configuration(site=SiteOptions(time_zone="Europe/Berlin"))
    assert chunks(path, changed, now)[0].id != chunk.id
    assert chunks(path, Configuration(slurm=SlurmOptions(shared=("a",))), now)[0].id != chunk.id
    assert chunks(path, Configuration(slurm=SlurmOptions(exclusive=("a",))), now)[0].id != chunk.id


def test_the_configured_cluster_stands_in_for_one_that_is_not_told(write: Write, now: datetime) -> None:
    (chunk,) = chunks(write(text(GOOD)), Configuration(site=SiteOptions(cluster="alpha")), now)
    assert chunk.parts[0].frame["cluster"].to_list() == ["alpha"]
    assert chunk.parts[2].frame["cluster"].to_list() == ["alpha", "alpha"]


def test_long_files_come_in_several_readings(write: Write) -> None:
    path = write(text(*(row(jobid=str(n), jobidraw=str(n), jobname="caf\xe9") for n in range(1, 8))).encode("latin-1"))
    readings = list(sacct.read_file(path, cluster=SlurmCluster(), rows_per_chunk=3, trusted=True))
    assert [[job["job_id"] for job in reading.jobs] for reading in readings] == [
        ["1", "2", "3"],
        ["4", "5", "6"],
        ["7"],
    ]
    assert sum(reading.replaced["jobname"] for reading in readings) == 7


def test_a_folder_is_read_in_order_of_name(tmp_path: Path, now: datetime) -> None:
    for day in ("b", "a"):
        (tmp_path / f"{day}.txt").write_text(text(row(jobname=day)))
    names = [chunk.parts[0].frame["name"].item() for chunk in chunks(tmp_path, Configuration(), now)]
    assert names == ["a", "b"]


@settings(deadline=None)
@given(st.text(max_size=40), st.text(max_size=40), st.binary(max_size=60))
def test_whatever_people_write_every_record_is_accounted_for(name: str, line: str, garbage: bytes) -> None:
    content = (
        text(GOOD, row(jobname=name, submitline=line)).encode("utf-8", "replace") + garbage + b"\n" + GOOD.encode()
    )
    entries = list(read_content(content, fields=None, delimiter=None, where="x", replaced=Counter(), trusted=True))
    assert entries[0].fields is not None
    assert entries[0].fields["jobname"] == "train"
    assert all((entry.fields is None) != (entry.reason is None) for entry in entries)
    assert [entry.place for entry in entries] == sorted({entry.place for entry in entries})
    assert sum(entry.text.count("\n") + 1 for entry in entries) <= content.count(b"\n") + 1


@pytest.mark.slow
def test_a_hundred_thousand_rows_are_read_in_time(write: Write) -> None:
    path = write(text(*(row(jobid=str(n), jobidraw=str(n)) for n in range(1, 100_001))))
    frames: list[pl.DataFrame] = []

    def read() -> None:
        (reading,) = sacct.read_file(path, cluster=SlurmCluster(), trusted=True)
        frames.append(frame_of(reading.jobs, JOBS))

    assert own_seconds(read, enough=30) < 30  # 3 s where this was written
    frame = frames[0]
    assert frame["gpus"].sum() == 400_000
    assert frame.filter(pl.col("start").is_null()).height == 0
