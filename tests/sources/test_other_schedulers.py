"""Accounting of PBS, Flux and LSF: what ingest makes of each file, hostile names, and job ids of
any form from file to report.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from shutil import copy
from types import ModuleType
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from in_process import run_well
from row_lines import reading_lines
from servers.kubernetes_api import pod
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import InputError, RefusedError
from tachograph.sources import allocation_map, kubernetes, sacct
from tachograph.sources.job_ids import job_and_step
from tachograph.sources.recognition import source_of
from tachograph.sources.schedulers import flux, lsf, pbs
from tachograph.sources.schedulers.documents import DocumentReader
from tachograph.sources.schedulers.flux import read_flux
from tachograph.sources.schedulers.lsf import read_lsf
from tachograph.sources.schedulers.pbs import read_pbs
from tachograph.sources.slurm.arguments import fill_in
from tachograph.sources.slurm.records import SlurmCluster

INDIA = SlurmCluster("hpc", "Asia/Kolkata")

RECORDED = Path(__file__).parent / "recorded"
# As OpenPBS 2021 prints it; the second job is an array task that was deleted.
QSTAT: dict[str, Any] = json.loads((RECORDED / "qstat.json").read_bytes())
LOG = (RECORDED / "pbs_accounting.log").read_text()
FLUX: dict[str, Any] = json.loads((RECORDED / "flux.json").read_bytes())
BJOBS: dict[str, Any] = json.loads((RECORDED / "bjobs.json").read_bytes())
R = FLUX["jobs"][0]["R"]
_RAN = "ctime=1710234000 qtime=1710234000 etime=1710234100 start=1710235000 end=1710238600"


def seconds(row: dict[str, Any], name: str) -> float | None:
    """Return a time of a row in seconds since 1970."""
    time = row[name]
    return time.timestamp() if isinstance(time, datetime) else None


@pytest.mark.parametrize(
    ("read", "content"),
    [
        (read_pbs, json.dumps(QSTAT)),
        (read_pbs, LOG),
        (read_flux, json.dumps(FLUX)),
        (read_lsf, json.dumps(BJOBS)),
    ],
    ids=["qstat", "accounting log", "flux", "bjobs"],
)
def test_jobs_of_saved_accounting(
    read: DocumentReader, content: str, snapshot: SnapshotAssertion
) -> None:
    """In the time zone of the site; names that imitate fields, times without a year."""
    assert reading_lines(read(content.encode(), "saved", INDIA)) == snapshot


def test_ranks_of_flux_may_be_greater_than_any_gpu_index() -> None:
    def of_ranks(ranks: str, gpus: str = "1") -> dict[str, Any]:
        lite = [{"rank": ranks, "children": {"gpu": gpus}}]
        resources = {"execution": {"R_lite": lite, "nodelist": ["tuo[1-3]"]}}
        return {**FLUX["jobs"][0], "R": resources}

    endless = of_ranks("0-99999," * 100_000 + "0")  # 75 GB if it were taken apart
    jobs = [of_ranks("4095-4096,11519"), of_ranks("99999-100001"), of_ranks("1-3", "4096"), endless]
    reading = read_flux(json.dumps({"jobs": jobs}).encode(), "f.json", INDIA)
    assert [(row["node"], row["gpu"]) for row in reading.allocations] == [
        ("tuo1", 1), ("tuo2", 1), ("tuo3", 1),
    ]  # fmt: skip
    assert [reason for _, reason, _ in reading.rejected] == ["bad_gpu_index"] * 3


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ("12345.server.example.org", ("12345.server.example.org", None)),
        ("12345[7].server", ("12345[7].server", None)),
        ("12345.0", ("12345", "0")),
        ("123[4]", ("123[4]", None)),
        ("ƒ2Ab9xyz", ("f2Ab9xyz", None)),
        ("18446744073709551615", ("18446744073709551615", None)),
        ("0d5f1a2b-0000-4000-8000-000000000001", ("0d5f1a2b-0000-4000-8000-000000000001", None)),
        ("web-0.ml", ("web-0.ml", None)),
        *((bad, None) for bad in ("", "0", "what", "7 8", "7;x", "<7>", "../7", "-7", "7/8", "7\n8",
                                  "$7", "7:8", "x" * 300 + "1")),
    ],
)  # fmt: skip
def test_what_is_a_job_id(written: str, named: tuple[str, str | None] | None) -> None:
    assert job_and_step(written) == named


def test_files_of_each_kind_to_reports(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("qstat.json", "flux.json", "bjobs.json"):
        copy(RECORDED / name, folder)
    (folder / "20240312").write_text(LOG)
    (folder / "map.csv").write_text(
        "job_id,node,gpu,start,end\n"
        "17.srv,gpu01,0;1,2024-03-12T09:16:40Z,2024-03-12T10:16:40Z\n"
        "123[40],hosta,0,,\n"
        "ƒ2Ab9,gpu09,3,2024-03-12T09:16:40Z,2024-03-12T10:16:40Z\n"
    )
    sources = {path.name: source_of(path) for path in folder.iterdir()}
    assert sources == {
        "qstat.json": "pbs", "20240312": "pbs", "flux.json": "flux", "bjobs.json": "lsf",
        "map.csv": "allocation-map",
    }  # fmt: skip

    def run(command: str) -> str:
        return run_well(tmp_path, command).stdout

    run("ingest ./in")
    run("analyze")
    jobs = {job["job_id"]: job for job in json.loads(run("jobs --json"))}
    assert {"17.srv", "20.srv", "123[40]", "f2Ab9", "fuZZybuNNy"} <= jobs.keys()
    assert (jobs["17.srv"]["attribution"], jobs["17.srv"]["gpu_hours"]) == ("explicit", 2.0)
    for asked, job in (("17.srv", "17.srv"), ("ƒ2Ab9", "f2Ab9"), ("123[40]", "123[40]")):
        assert json.loads(run(f"job {asked} --json"))["job_id"] == job


def test_commands_of_slurm_get_ids_of_slurm_only() -> None:
    assert fill_in(["suspend", "{job}"], {"job": "123_4"}) == ["suspend", "123_4"]
    for job in ("17.srv", "123[4]", "f2Ab9", "web-0.ml", "123.0"):
        with pytest.raises(RefusedError, match="nothing was run"):
            fill_in(["suspend", "{job}"], {"job": job})


@pytest.mark.parametrize(
    ("written", "size_mib"),
    [
        ("8gb", 8192.0),
        ("5008kb", 4.890625),
        ("1048576", 1.0),
        ("0b", 0.0),
        ("1P", 2.0**30),
        *(
            (text, None)
            for text in ("", "8gbn", "8gn", "8n", "1e", "8gib", "1.5gb", f"{'9' * 18}gb")
        ),
    ],
)
def test_memory_of_a_job_of_pbs(written: str, size_mib: float | None) -> None:
    jobs = {"7.srv": QSTAT["Jobs"]["4732778[7].pbshpc"] | {"Resource_List": {"mem": written}}}
    (row,) = read_pbs(json.dumps({**QSTAT, "Jobs": jobs}).encode(), "q.json", INDIA).jobs
    assert row["mem_requested_mib"] == size_mib


@pytest.mark.parametrize(
    ("status", "run_s", "ending"),
    [
        (0, 60, ("COMPLETED", 0, None)),
        (128, 60, ("FAILED", 128, None)),
        (129, 60, ("FAILED", 0, 1)),
        (192, 60, ("FAILED", 0, 64)),
        (193, 60, ("FAILED", 193, None)),
        (256, 60, ("FAILED", 256, None)),
        (271, 60, ("CANCELLED", 0, 15)),
        (271, 7200, ("TIMEOUT", 0, 15)),
        (1, 7200, ("FAILED", 1, None)),
        (-29, 60, ("TIMEOUT", None, None)),
        (-1, 60, ("FAILED", None, None)),
        ("", 60, (None, None, None)),
    ],
)
@pytest.mark.parametrize("project", ["_pbs_project_default", "alpha"])
def test_how_a_job_of_pbs_ended(
    status: int | str, run_s: int, ending: tuple[object, ...], project: str
) -> None:
    line = (
        f"03/12/2024 11:16:40;E;17.srv;user=ana group=chem project={project} {_RAN} "
        f"exec_host=gpu01/0 Resource_List.ngpus=2 Resource_List.walltime=02:00:00 "
        f"resources_used.walltime={run_s // 3600:02}:{run_s // 60 % 60:02}:{run_s % 60:02} "
        f"Exit_status={status}\n"
    )
    (row,) = read_pbs(line.encode(), "20240312", INDIA).jobs
    assert (row["state"], row["exit_code"], row["exit_signal"]) == ending
    assert row["account"] == ("alpha" if project == "alpha" else "chem")
    assert (row["gpus"], row["elapsed_s"], row["timelimit_s"]) == (2, run_s, 7200.0)


@pytest.mark.parametrize(
    ("change", "ending"),
    [
        ({"EXIT_REASON": "TERM_MEMLIMIT: memory"}, ("OUT_OF_MEMORY", 0, 12)),
        ({"EXIT_REASON": "TERM_UNKNOWN: LSF cannot determine"}, ("FAILED", 0, 12)),
        ({"EXIT_REASON": None, "EXIT_CODE": "3"}, ("FAILED", 3, None)),
        ({"EXIT_CODE": "-"}, ("TIMEOUT", None, None)),
        ({"STAT": "DONE", "EXIT_CODE": "-"}, ("COMPLETED", 0, None)),
        ({"STAT": "RUN"}, ("RUNNING", None, None)),
    ],
)
def test_how_a_job_of_lsf_ended(change: dict[str, object], ending: tuple[object, ...]) -> None:
    document = {**BJOBS, "RECORDS": [{**BJOBS["RECORDS"][0], **change}]}
    (row,) = read_lsf(json.dumps(document).encode(), "b.json", INDIA).jobs
    assert (row["state"], row["exit_code"], row["exit_signal"]) == ending
    assert (row["end"] is None) == (ending[0] == "RUNNING")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, ("FAILED", 0, 9, 3)),
        ({"waitstatus": 3 << 8}, ("FAILED", 3, None, 3)),
        ({"waitstatus": 9}, ("FAILED", 0, 9, 3)),
        ({"waitstatus": None, "result": "CANCELED"}, ("CANCELLED", None, None, 3)),
        ({"R": json.dumps(R)}, ("FAILED", 0, 9, 3)),
        ({"R": None}, ("FAILED", 0, 9, None)),
        ({"R": {"execution": {"R_lite": [], "nodelist": ["tioga11"]}}}, "index_count_mismatch"),
        ({"state": "LOST"}, "bad_state"),
    ],
)  # fmt: skip
def test_how_a_job_of_flux_ended_and_what_it_held(
    change: dict[str, object], expected: tuple[object, ...] | str
) -> None:
    document = {"jobs": [{**FLUX["jobs"][0], **change}]}
    reading = read_flux(json.dumps(document).encode(), "f.json", INDIA)
    if isinstance(expected, str):
        assert ([reason for _, reason, _ in reading.rejected], reading.allocations) == (
            [expected],
            [],
        )
        return
    (row,) = reading.jobs
    assert (row["state"], row["exit_code"], row["exit_signal"], row["gpus"]) == expected
    times = [seconds(row, name) for name in ("submit", "eligible", "start", "end")]
    assert times == [1710234000.25, 1710234000.3, 1710235000.5, 1710238600.5]
    # Without R the nodes are known, and not which of their GPUs.
    assert {gpu["gpu"] is None for gpu in reading.allocations} == {expected[3] is None}


@pytest.mark.parametrize(
    ("source", "content"),
    [
        (allocation_map, "job_id,node,gpu\n1,n1,0\nx,n1,0\n2,,0\n"),
        (allocation_map, "1780000100 prolog job=1 node=n1 mig=5\n"),
        (sacct, "JobID|Start|End|State\n7|soon||FAILED\n8|||FAILED\n"),
        (pbs, json.dumps(QSTAT)),
        (flux, json.dumps({"jobs": [{**FLUX["jobs"][0], "state": "LOST"}]})),
        (lsf, json.dumps(BJOBS)),
        (kubernetes, json.dumps({"kind": "List", "items": [pod("", "")]})),
    ],
)
def test_the_rejected_records_of_a_file_are_those_that_are_counted(
    source: ModuleType, content: str, tmp_path: Path
) -> None:
    path = tmp_path / "saved.json"
    path.write_text(content)
    options = Namespace(files=[str(path)], trusted=False, fields=None, delimiter=None, run=False)
    site = Configuration()
    (chunk,) = source.read(options, configuration=site, now=datetime(2026, 3, 1, tzinfo=UTC))
    counted = Counter({r.reason: r.count for part in chunk.parts for r in part.rejects})
    rejected = list(source.rejected(options, configuration=site))
    assert Counter(reason for _, _, reason, _ in rejected) == counted
    assert counted.total() > 0
    assert {file for file, *_ in rejected} == {str(path)}


def test_documents_without_jobs_and_of_others() -> None:
    assert read_flux(b'{"jobs": []}', "f.json", INDIA).jobs == []
    for content in (b'{"COMMAND": "bjobs"}', b'{"COMMAND": "other", "RECORDS": []}'):
        with pytest.raises(InputError, match="not output of bjobs"):
            read_lsf(content, "b.json", INDIA)
