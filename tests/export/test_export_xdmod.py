"""Lines for Open XDMoD: taken apart as its shredder does it, like those that it is tested with, and
read back as accounting.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from exported_lake import END, START, UGLY, busy, export

from in_process import run_here
from madelake import held, job, make_lake, summarized
from tachograph.lake.delta import Lake

# docs/resource-manager-slurm.md of Open XDMoD
FIELDS = (
    "jobid,jobidraw,cluster,partition,qos,account,group,gid,user,uid,submit,eligible,start,end,"
    "elapsed,exitcode,state,nnodes,ncpus,reqcpus,reqmem,reqtres,alloctres,timelimit,nodelist,jobname"
)
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"
LENGTH = r"(\d+-)?\d\d:\d\d:\d\d"
FORMS = {
    "jobid": r"\d+(_\d+)?",
    "jobidraw": r"\d+",
    "gid": r"\d{1,10}",
    "uid": r"\d{1,10}",
    "submit": TIME,
    "eligible": f"{TIME}|Unknown",
    "start": TIME,
    "end": TIME,
    "elapsed": LENGTH,
    "exitcode": r"(\d+:\d+)?",
    "state": r"[A-Z_]+( by \d+)?",
    "nnodes": r"[1-9]\d*",
    "ncpus": r"[1-9]\d*",
    "reqcpus": r"[1-9]\d*",
    "reqmem": r"([\d.]+[MG][nc]?)?",
    "alloctres": r"([a-z/]+(:\w+)?=[\d.]+[MGT]?,?)*",
    "timelimit": f"({LENGTH}|UNLIMITED)?",
}


def taken_apart(line: str) -> dict[str, str]:
    """Fields of a line: the shredder splits at most so often that the name keeps its bars."""
    names = FIELDS.split(",")
    return dict(zip(names, line.split("|", len(names) - 1), strict=True))


def seconds(length: str) -> int:
    days, _, clock = length.rpartition("-")
    hours, minutes, rest = map(int, clock.split(":"))
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + rest


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Jobs 1 (two nodes), 3 (of an array), 5 (of a heterogeneous job); 2 runs, 4 has no CPUs."""
    given = {"cluster": "c", "user": UGLY, "account": "a|b", "cpus": 16, "nodes": 1, "gpus": 1}
    given |= {"submit": START - timedelta(hours=1), "timelimit_s": 100_000.0}
    lake = make_lake(
        tmp_path / "lake",
        gpu_samples=[*busy("n1", 0, 0.8), *busy("n2", 1, 0.5)],
        jobs=[
            job("1", START, END, **{**given, "gpus": 2, "nodes": 2, "name": UGLY * 9}, exit_code=1,
                exit_signal=9, state="FAILED", mem_requested_mib=2048.0, partition="gpu"),
            job("2", START, None, **given),
            job("3", START, END, **given, display_id="2_1", array_job_id="2", state="TIMEOUT"),
            job("4", START, END, **{**given, "cpus": None}),
            job("5", START, END, **given, display_id="4+1"),
        ],
        allocations=[
            *held("1", "n1", (0,), START, END, cluster="c"), *held("1", "n2", (1,), START, END, cluster="c"),
            *held("3", "n3", (0,), START, END, cluster="c"), *held("5", "n5", (0,), START, END, cluster="c"),
        ],
    )  # fmt: skip
    summarized(lake)
    return lake


def test_the_shredder_finds_the_numbers_of_the_lake(lake: Lake, tmp_path: Path) -> None:
    file = tmp_path / "xdmod.log"
    [written] = export(lake, "xdmod", "--to", file)
    assert (written["written"], written["left_out"]) == (3, 2)
    lines = file.read_text().splitlines()
    jobs = {fields["jobidraw"]: fields for fields in map(taken_apart, lines)}
    assert len(lines) == len(jobs) == 3
    for fields in jobs.values():
        for name, form in FORMS.items():
            assert re.fullmatch(form, fields[name], re.ASCII), (name, fields[name])
        start, end = (datetime.fromisoformat(fields[name]) for name in ("start", "end"))
        assert (start.replace(tzinfo=UTC), end.replace(tzinfo=UTC)) == (START, END)
        assert seconds(fields["elapsed"]) == (END - START).total_seconds()
        assert seconds(fields["timelimit"]) == 100_000
        assert (fields["account"], fields["group"]) == ("a_b", "a_b")
    first = jobs["1"]
    assert first["alloctres"] == "cpu=16,gres/gpu=2,mem=2048M,node=2"
    assert (first["nodelist"], first["exitcode"], first["reqmem"]) == ("n1,n2", "1:9", "2048M")
    assert len(first["jobname"]) <= 63
    assert first["user"].isprintable()
    assert {key: fields["jobid"] for key, fields in jobs.items()} == {
        "1": "1",
        "3": "2_1",
        "5": "5",
    }


def test_accounting_reads_the_lines_back(lake: Lake, tmp_path: Path) -> None:
    file = tmp_path / "xdmod.txt"
    export(lake, "xdmod", "--to", file)
    words = ["ingest", "sacct", str(file), "--fields", FIELDS, "--trusted", "--lake"]
    done = run_here([*words, str(tmp_path / "again")], tmp_path, os.environ)
    assert done.returncode == 0, done.stderr
    assert "rejected" not in done.stdout
    names = ("job_id", "start", "end", "submit", "state", "gpus", "cpus", "nodes", "timelimit_s")
    again = pl.read_delta(str(tmp_path / "again" / "jobs")).select(names).sort("job_id")
    before = pl.read_delta(f"{lake.location}/jobs").select(names).sort("job_id")
    assert again.equals(before.filter(~pl.col("job_id").is_in(["2", "4"])))


def test_open_xdmods_own_lines_have_these_forms(recorded: Path) -> None:
    folder = recorded / "sacct_xdmod"
    lines = [line for file in folder.glob("*.log") for line in file.read_text().splitlines()]
    assert len(lines) > 4000
    for fields in map(taken_apart, lines):
        for name, form in FORMS.items():
            assert re.fullmatch(form, fields[name], re.ASCII), (name, fields[name])
