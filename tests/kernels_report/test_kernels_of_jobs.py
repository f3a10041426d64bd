"""Reports attached to a job by the command: attached once, shown as the file is, on the job's
report, detached.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from in_process import clean_environment, run_here
from madelake import held, job, make_lake, summarized, utc
from nsight_reports import PUBLISHED, raw_csv, sample

JOB = "1000002"


@pytest.fixture
def folder(demo: Path, tmp_path: Path) -> Path:
    """A copy of the demo with two reports in it."""
    shutil.copytree(demo, tmp_path / "demo")
    (tmp_path / "demo/good.csv").write_text(sample(), encoding="utf-8")
    (tmp_path / "demo/copy.csv").write_text(raw_csv(PUBLISHED[:1], launches=3), encoding="utf-8")
    return tmp_path / "demo"


def run(folder: Path, *words: str) -> CompletedProcess[str]:
    return run_here(words, folder, clean_environment(COLUMNS="130"))


def kernels(folder: Path, *words: str) -> str:
    """What the command prints; remarks are that the kernels ran on another GPU."""
    done = run(folder, "share", "kernels", *words)
    assert done.returncode == 0, done.stderr
    assert all(
        "kernels ran on H100 NVL 94GB, the job on A100 SXM 80GB" in line
        for line in done.stderr.splitlines()
    )
    return done.stdout


def failed(folder: Path, *words: str) -> tuple[int, str]:
    done = run(folder, "share", "kernels", *words)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    return done.returncode, done.stderr


def test_an_attached_report_is_shown_as_its_file_is(folder: Path) -> None:
    assert (
        kernels(folder, "good.csv", "--job", JOB)
        == "Attached 13 kernels, 13 launches of good.csv to job 1000002\n"
    )
    (folder / "good.csv").rename(folder / "elsewhere.csv")
    for options in (
        [],
        ["--explain", "copy"],
        ["--together", "copy", "fmul<4, 256>"],
        ["--matrix", "--csv"],
    ):
        expected = kernels(folder, "elsewhere.csv", *options).replace("elsewhere.csv", "good.csv")
        assert kernels(folder, "--job", JOB, *options) == expected
    values = [
        json.loads(kernels(folder, *given, "--json"))
        for given in (["elsewhere.csv"], ["--job", JOB])
    ]
    assert values[0]["gpus"][0]["pairs"] == values[1]["gpus"][0]["pairs"]
    assert [kernel["uses"] for kernel in values[0]["gpus"][0]["kernels"]] == [
        kernel["uses"] for kernel in values[1]["gpus"][0]["kernels"]
    ]
    assert values[1]["files"] == [
        {"file": "good.csv", "launches": 13, "rejected": {}, "problems": []}
    ]
    kernels(folder, "--job", JOB, "--html", "page.html", "--quiet")
    assert "good.csv" in (folder / "page.html").read_text(encoding="utf-8")


def test_the_report_of_the_job_has_the_same_numbers_in_every_form(folder: Path) -> None:
    kernels(folder, "copy.csv", "--job", JOB)
    text = " ".join(run(folder, "job", JOB).stdout.split())
    sentence = (
        "1 kernel in 1 attached report; longest copy (100 % of the time, limited by latency)."
    )
    assert f"Kernels {sentence} See tachograph share kernels --job 1000002." in text
    (report,) = json.loads(run(folder, "job", JOB, "--json").stdout)["kernels"]
    assert (report["report"], report["launches"], report["launches_kept"], report["kernels"]) == (
        "copy.csv",
        3,
        3,
        1,
    )
    assert report["seconds"] == pytest.approx(3 * PUBLISHED[0].ms / 1000)
    assert report["longest"] == [
        {
            "name": "copy",
            "launches": 3,
            "seconds": report["seconds"],
            "share": 1.0,
            "limited_by": "latency",
        }
    ]
    run(folder, "job", JOB, "--html", "job.html")
    page = (folder / "job.html").read_text(encoding="utf-8")
    assert sentence in " ".join(page.split())
    assert "copy.csv: 1 kernel, 3 launches, 36 ms; attached 20" in " ".join(page.split())
    other = json.loads(run(folder, "job", "1000001", "--json").stdout)
    assert other["kernels"] == []
    assert "Kernels" not in run(folder, "job", "1000001").stdout


def test_reports_are_detached(folder: Path) -> None:
    kernels(folder, "copy.csv", "good.csv", "--job", JOB)
    assert (
        kernels(folder, "copy.csv", "--job", JOB, "--detach")
        == "Detached 1 report from job 1000002: copy.csv\n"
    )
    assert json.loads(kernels(folder, "--job", JOB, "--json"))["files"][0]["file"] == "good.csv"
    gone = json.loads(kernels(folder, "--job", JOB, "--detach", "--json"))
    assert gone == {"job_key": gone["job_key"], "detached": ["good.csv"]}
    assert kernels(folder, "--job", JOB, "--detach") == "Detached 0 reports from job 1000002\n"
    assert (
        "no report is attached to job 1000002; attach one with" in failed(folder, "--job", JOB)[1]
    )


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["good.csv", "--job", "99"], 6, "no job '99'"),
        (["missing.csv", "--job", "99"], 6, "no job '99'"),  # before any report is read
        (["--job", JOB], 6, "no report is attached to job 1000002"),
        (
            ["none.csv", "--job", JOB, "--detach"],
            6,
            "no report 'none.csv' is attached to this job; attached: none",
        ),
        ([], 2, "no report; name a report of Nsight Compute, or a job with --job ID"),
        (["--detach"], 2, "--detach without a job; name it with --job ID"),
        (["good.csv", "--cluster", "sim"], 2, "--cluster without a job"),
        (
            ["good.csv", "--job", JOB, "--explain", "1"],
            2,
            "--explain does not go with attaching a report",
        ),
        (
            ["--job", JOB, "--detach", "--mps-share", "50,50"],
            2,
            "--mps-share does not go with --detach",
        ),
    ],
)
def test_errors_are_one_line(folder: Path, words: list[str], code: int, message: str) -> None:
    found, line = failed(folder, *words)
    assert (found, message in line) == (code, True), line


def test_a_job_id_of_several_clusters_needs_the_cluster(tmp_path: Path) -> None:
    start, end = utc(1), utc(1, 1)
    jobs = [job("7", start, end, cluster=cluster, user="ann", gpus=1) for cluster in ("a", "b")]
    held_by = {cluster: held("7", f"n{cluster}", [0], start, end) for cluster in ("a", "b")}
    lake = make_lake(
        tmp_path / "lake",
        jobs=jobs,
        allocations=[row | {"cluster": name} for name, rows in held_by.items() for row in rows],
    )
    summarized(lake)
    (tmp_path / "good.csv").write_text(sample(), encoding="utf-8")
    code, line = failed(tmp_path, "good.csv", "--job", "7", "--lake", "lake")
    assert (code, "clusters" in line) == (2, True), line
    assert kernels(
        tmp_path, "good.csv", "--job", "7", "--cluster", "b", "--lake", "lake"
    ).startswith("Attached 13")
    assert (
        "no report is attached"
        in failed(tmp_path, "--job", "7", "--cluster", "a", "--lake", "lake")[1]
    )
    assert "13 kernels" in kernels(tmp_path, "--job", "7", "--cluster", "b", "--lake", "lake")
