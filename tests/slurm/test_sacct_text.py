"""`sacct --parsable2` text: layouts, records put together again, what is rejected and why."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slurm_reading import ReadText, Write
from syrupy.assertion import SnapshotAssertion

from row_lines import reading_lines
from tachograph.catalog.chunks import Chunk, Reject
from tachograph.catalog.config import Configuration, SiteOptions
from tachograph.catalog.errors import InputError
from tachograph.catalog.tables import JOBS, TABLES
from tachograph.lake.conform import conform
from tachograph.sources import allocation_map, sacct
from tachograph.sources.slurm.records import SlurmCluster
from tachograph.sources.slurm.sacct_text import column_names
from tachograph.sources.slurm.sacct_text import read_text as read_content

HEADER = "JobID|JobIDRaw|JobName|State|Submit|Start|End|Elapsed|NodeList|AllocTRES|SubmitLine"
GOOD = "7|7|train|COMPLETED|2026-01-01T00:00:00|2026-01-01T00:01:00|2026-01-01T00:02:00|00:01:00|n[1-2]|cpu=8,gres/gpu=4|sbatch job.sh"  # noqa: E501


def row(**changed: str) -> str:
    values = dict(zip(HEADER.lower().split("|"), GOOD.split("|"), strict=True)) | changed
    return "|".join(values.values())


def text(*rows: str, header: str = HEADER) -> str:
    return "\n".join([header, *rows]) + "\n"


NO_GPUS = row(alloctres="cpu=8,mem=1G")
TIERS = f"Constraints|{HEADER}"
CASES: Mapping[str, str] = {
    "a job and its nodes": text(GOOD),
    "rows that are cut off": text(GOOD, "8|8|cut|COMPL", GOOD, "9|9|cut"),
    "a job that runs": text(row(state="RUNNING", end="Unknown")),
    **{
        f"a job that never ran, start {start}": text(
            row(
                state="CANCELLED by 5",
                start=start,
                elapsed="00:00:00",
                nodelist="None assigned",
                alloctres="cpu=8,gres/gpu=4",
            )
        )
        for start in ("None", "Unknown", "2026-01-01T00:02:00")
    },
    # No GPUs is zero only where the site accounts for GPUs; what a user writes decides nothing.
    "no GPUs": text(NO_GPUS),
    "no GPUs beside a job with some": text(GOOD, NO_GPUS),
    "GPUs in the submit line": text(
        GOOD, row(alloctres="cpu=8,mem=1G", submitline="sbatch --gpus=2 job.sh")
    ),
    "whole nodes in the submit line": text(row(submitline="sbatch --exclusive job.sh")),
    "memory tier in constraints": text(f"gpu&hbm80g|{GOOD}", header=TIERS),
    "memory tier in the submit line": text(
        f"|{row(submitline='sbatch -C gpu&hbm40g job.sh')}",
        f"gpu|{row(submitline='sbatch -C gpu&hbm80g job.sh')}",
        f"|{GOOD}",
        header=TIERS,
    ),
    "numbered steps alone": (
        "JobID,step,Start,End,NNodes,Account,Partition,SubmitLine\n"
        "605,0,2026-01-01T10:00:00,2026-01-01T11:00:00,2,m1,gpu,sbatch -C gpu job.sh\n"
        "605,1,2026-01-01T11:00:00,2026-01-01T12:30:00,4,m1,gpu,sbatch -C gpu job.sh\n"
        "606,0,2026-01-01T10:00:00,Unknown,1,m2,gpu,\n"
        "607,,2026-01-01T10:00:00,2026-01-01T11:00:00,1,m2,gpu,\n"
        "607,0,2026-01-01T10:10:00,2026-01-01T10:20:00,1,m2,gpu,\n"
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_rows_become_jobs(what: str, read_text: ReadText, snapshot: SnapshotAssertion) -> None:
    reading = read_text(CASES[what])
    assert reading_lines(reading) == snapshot
    if reading.jobs:
        assert set(reading.jobs[0]) == {name for name in JOBS.schema if name != "seq"}


@pytest.mark.parametrize(
    ("content", "options", "count"),
    [
        *(
            (text(row(jobname="#1")).replace("|", between), {}, 1)
            for between in ("|", "^|^", "|#", ";", "\t")
        ),
        *(
            (f"{row(jobname=name)}\n", {"fields": HEADER.replace("|", ",")}, 1)
            for name in ("#1", "^x^")
        ),
        (text(row(jobname="#1")).replace("|", "~~"), {"delimiter": "~~"}, 1),
        (
            f"{row(jobname='#1')}\n",
            {"fields": HEADER.lower().replace("|", ",").replace("name", "name%30")},
            1,
        ),
        (text(row(jobname="#1") + "|", header=HEADER + "|"), {}, 1),  # --parsable
        (
            "\ufeff" + "\r\n".join([HEADER, row(jobname="#1"), HEADER, row(jobname="#1"), "", ""]),
            {},
            2,
        ),
    ],
)
def test_layouts(read_text: ReadText, content: str, options: dict[str, str], count: int) -> None:
    reading = read_text(content, **options)
    assert (reading.rows_read, reading.rejected) == (count, [])
    assert {(job["submit_line"], job["gpus"]) for job in reading.jobs} == {("sbatch job.sh", 4)}
    assert all(job["name"] in ("#1", "^x^") for job in reading.jobs)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        *(
            (name, "job.sh")
            for name in ("a|b|c|d", "two\nlines", "a|b\nc|d", "5\n6", "\n", "a\n\nb", "\u2028\x85")
        ),
        *(
            ("train", line)
            for line in ("a | b", "a\n\nb|c", "for i\ndo echo | wc\ndone", "\n5\n6", "x" * 99_999)
        ),
        ("a|b", "--wrap c|d|e"),
    ],
)
def test_texts_of_users_survive(read_text: ReadText, name: str, line: str) -> None:
    written = row(jobname=name, submitline=f"sbatch {line}")
    reading = read_text(text(row(jobid="6", jobidraw="6"), written, row(jobid="8", jobidraw="8")))
    assert reading.rejected == []
    assert [job["job_id"] for job in reading.jobs] == ["6", "7", "8"]
    assert (reading.jobs[1]["name"], reading.jobs[1]["submit_line"]) == (name, f"sbatch {line}")


def test_bytes_that_are_not_utf8_are_replaced_and_counted(read_text: ReadText) -> None:
    content = text(
        row(jobname="caf?"), row(jobid="8", jobidraw="8", submitline="sbatch ?.sh"), GOOD
    ).encode()
    reading = read_text(content.replace(b"?", b"\xe9"))
    assert [job["name"] for job in reading.jobs] == ["caf\ufffd", "train", "train"]
    assert reading.rejects() == (
        Reject("invalid_utf8", "name", 1),
        Reject("invalid_utf8", "submit_line", 1),
    )


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


def test_local_times_are_those_of_the_site(read_text: ReadText) -> None:
    bad = row(start="2026-03-08T02:30:00", end="2026-03-08T04:30:00", elapsed="01:00:00")
    reading = read_text(text(bad), cluster=SlurmCluster(time_zone="America/New_York"))
    assert [reason for _, reason, _ in reading.rejected] == ["time_does_not_exist"]
    twice = row(
        submit="2026-11-01T01:30:00",
        start="2026-11-01T01:30:00",
        end="2026-11-01T02:30:00",
        elapsed="01:00:00",
    )
    (job,) = read_text(text(twice), cluster=SlurmCluster(time_zone="America/New_York")).jobs
    assert job["start"] == datetime(2026, 11, 1, 6, 30, tzinfo=UTC)
    assert job["end"] == datetime(2026, 11, 1, 7, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "empty"),
        (b"\n \n", "blanks"),
        (b"JobID JobName Partition\n----- ------- ---\n1 a b\n", "not sacct text"),
        (b"a|b|c\n", "no known list"),
        (b"JobID|State\n1|COMPLETED\n", "no field Start and no field End"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"PAR1\x00", "Parquet"),
        ("JobID|Start|End\n".encode("utf-16"), "UTF-16"),
        (b"# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization\n", "tachograph ingest dcgm-exporter"),
        (b'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 30\n', "tachograph ingest dcgm-exporter"),
        (b"node_load1 0.5\n", "tachograph ingest dcgm-exporter"),
        (b"#Entity   GPUTL\nID\nGPU 0     97\n", "tachograph ingest gpu-tools"),
        (b"timestamp,hostname,gpu_id\n", "tachograph ingest ldms"),
        (b"timestamp,hostname,nersc_ldms_dcgm_fb_free\n", "tachograph ingest ldms"),
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


@pytest.mark.parametrize(
    ("source", "content", "heights"),
    [
        (
            sacct,
            text(GOOD, row(jobid="x", jobidraw="x")),
            {"jobs": 1, "steps": 0, "allocations": 2},
        ),
        (allocation_map, "job_id,node,gpu\n7,n1,0-1\nx,n1,0\n", {"allocations": 2}),
    ],
)
def test_chunks_fit_the_schema_and_keep_their_id(
    write: Write, now: datetime, source: ModuleType, content: str, heights: dict[str, int]
) -> None:
    path = write(content)
    parser = argparse.ArgumentParser()
    source.add_options(parser)
    options = parser.parse_args([str(path), "--trusted"])

    def chunk_at(**site: str) -> Chunk:
        configuration = Configuration(site=SiteOptions(**site))
        (chunk,) = source.read(options, configuration=configuration, now=now)
        assert isinstance(chunk, Chunk)
        return chunk

    chunk = chunk_at(cluster="alpha")
    assert (chunk.source, chunk.origin, chunk.rows_read) == (source.NAME, str(path), 2)
    assert {part.table: part.frame.height for part in chunk.parts} == heights
    for part in chunk.parts:
        conformed = conform(part.frame, TABLES[part.table], now=now)
        assert (conformed.rejects, conformed.frame.height) == ((), part.frame.height)
        assert set(part.frame["cluster"]) <= {"alpha"}
    rejects = [reject.reason for part in chunk.parts for reject in part.rejects]
    assert rejects == ["bad_job_id"]
    assert chunk_at(cluster="alpha").id == chunk.id
    assert chunk_at(cluster="alpha", time_zone="Europe/Berlin").id != chunk.id


@settings(deadline=None)
@given(st.text(max_size=40), st.text(max_size=40), st.binary(max_size=60))
def test_whatever_people_write_every_record_is_accounted_for(
    name: str, line: str, garbage: bytes
) -> None:
    content = (
        text(GOOD, row(jobname=name, submitline=line)).encode("utf-8", "replace")
        + garbage
        + b"\n"
        + GOOD.encode()
    )
    entries = list(read_content(content, where="x", replaced=Counter(), trusted=True))
    assert entries[0].fields is not None
    assert entries[0].fields["jobname"] == "train"
    assert all((entry.fields is None) != (entry.reason is None) for entry in entries)
    assert [entry.place for entry in entries] == sorted({entry.place for entry in entries})
    assert sum(entry.text.count("\n") + 1 for entry in entries) <= content.count(b"\n") + 1


_SPAN = "2026-01-01T00:01:00|2026-01-01T00:02:00"
_UUID = "0b8f3c52-6a0e-4a3f-9f2d-8f6c2b1d7e90"
_FRAMED = (
    f"7|{_SPAN}|a\nb\n9|{_SPAN}|c|d\n".replace("|d", "\x00")
    .replace("|", _UUID)
    .replace("\x00", "|d")
)


@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        # Ids of array tasks begin a record also where it is cut off; raw ids stand in for them.
        (
            f"JobID|JobIDRaw|Start|End|JobName\n3_4|7|{_SPAN}|a\nb\n3_5|8|cut\n",
            {},
            [(2, "3_4", "a\nb"), (4, None, None)],
        ),
        (f"JobIDRaw|Start|End|JobName\n3_4|{_SPAN}|a\n3_5|cut\n", {}, [(2, "3_4", "a"), (3, None, None)]),
        # A column that is not known holds what people write.
        (f"JobID|Start|End|WCKey\n7|{_SPAN}|a|b\n", {}, [(2, "7", "a|b")]),
        # Without any text a line is a record, and a delimiter too many is no text.
        (f"JobID|Start|End|State\n\n7|{_SPAN}|FAILED|x\n8|{_SPAN}|FAILED\n", {},
         [(3, None, None), (4, "8", "FAILED")]),
        # Framed by a delimiter that nobody could know, with a header and without.
        ("\n" + "JobIDRaw|Start|End|JobName\n".replace("|", _UUID) + _FRAMED, {},
         [(3, "7", "a\nb"), (5, "9", "c|d")]),
        (_FRAMED, {"fields": "JobIDRaw,Start,End,JobName%30", "delimiter": _UUID},
         [(1, "7", "a\nb"), (3, "9", "c|d")]),
        # CSV with quotes.
        (f'JobID,Start,End,JobName\n7,{_SPAN},"a,\nb"\n8,{_SPAN},c,d\n9,{_SPAN}\n'.replace("0|2", "0,2"), {},
         [(2, "7", "a,\nb"), (4, "8", "c,d"), (5, None, None)]),
        (f'JobID,Start,End,JobName\n7,{_SPAN},"a"\n8,{_SPAN},"{"b" * 140_000}"\n'.replace("0|2", "0,2"), {},
         [(2, "7", "a"), (3, None, None)]),
    ],
)  # fmt: skip
def test_where_records_begin_and_what_their_last_column_holds(
    content: str, options: dict[str, str], expected: list[tuple[object, ...]]
) -> None:
    where: dict[str, Any] = {"fields": None, "delimiter": None, "where": "x", **options}
    entries = list(read_content(content.encode(), replaced=Counter(), trusted=True, **where))
    found: list[tuple[object, ...]] = []
    for entry in entries:
        values = [*(entry.fields or {"": None}).values()]
        found.append((entry.place, values[0], values[-1]))
        assert entry.reason == (None if entry.fields else "field_count")
    assert found == expected


@pytest.mark.parametrize("fields", ["JobIDRaw,Start%20, End", "JobID,Start,End"])
def test_lists_of_fields(fields: str) -> None:
    assert column_names(fields)[1:] == ("start", "end")
    with pytest.raises(InputError, match="names no JobID"):
        column_names("User,Start,End")


def test_node_lists_of_jobs_and_steps_without_gpus_are_checked_too(read_text: ReadText) -> None:
    none = {"alloctres": "cpu=8", "jobid": "8", "jobidraw": "8"}
    bad = row(**none, nodelist="n[1-")
    step = {"jobid": "7.0", "jobidraw": "7.0"}
    steps = [row(**step, nodelist=nodes) for nodes in ("n[1-", "None assigned", "n1")]
    without = row(**{**step, "alloctres": "cpu=8"}, nodelist="n2")
    reading = read_text(text(GOOD, bad, *steps, without))
    assert [(place, reason) for place, reason, _ in reading.rejected] == [
        (3, "bad_node_list"),
        (4, "bad_node_list"),
    ]
    assert [(row["node_list"], row["gpus"]) for row in reading.steps] == [
        (None, 4),
        ("n1", 4),
        ("n2", 0),
    ]
