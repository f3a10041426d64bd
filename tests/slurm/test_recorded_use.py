"""GPU use that the accounting has: comments of jobstats, and what Slurm polled."""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from madelake import fill, held, job, summarized, utc
from tachograph.api.job_report import read_job
from tachograph.catalog.config import Configuration
from tachograph.catalog.tables import FINDINGS, JOBS
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_gpus, read_rows, read_summaries
from tachograph.report.job import job_json
from tachograph.report.job_comment import comment_json, comment_text
from tachograph.report.job_text import job_text
from tachograph.report.jobs import build_jobs_table, jobs_lines
from tachograph.report.lines import to_text
from tachograph.sources.slurm.exports import AccountingReading, read_content
from tachograph.sources.slurm.recorded_use import AccountedRun, recorded_gpus, recorded_use
from tachograph.sources.slurm.records import SlurmCluster

NOW = datetime(2027, 1, 1, tzinfo=UTC)
GIB = 2**30
BETWEEN = "8a2c7f04-91b3-4d5e-a6f7-0c1d2e3f4a5b"
FIELDS = "JobIDRaw JobID Cluster Submit Start End State NodeList NNodes AllocTRES TRESUsageInMax"


def packed(summary: object) -> str:
    """As jobstats writes it."""
    written = json.dumps(summary, separators=(",", ":")).encode()
    return "JS1:" + base64.b64encode(gzip.compress(written, mtime=0)).decode()


def reading(rows: list[dict[str, str]]) -> AccountingReading:
    """What is read of sacct text with these fields."""
    names = [*FIELDS.split(), "AdminComment"]
    lines = [BETWEEN.join(names), *(BETWEEN.join(row.get(n, "") for n in names) for row in rows)]
    content = ("\n".join(lines) + "\n").encode()
    (found,) = read_content(content, where="made", cluster=SlurmCluster())
    return found


def record(job_id: str, **fields: str) -> dict[str, str]:
    return {
        "JobIDRaw": job_id, "JobID": job_id, "Cluster": "c", "State": "COMPLETED",
        "Submit": "2026-04-01T00:00:00", "Start": "2026-04-01T00:00:00",
        "End": "2026-04-01T01:00:00", "NodeList": "n[1-2]", "NNodes": "2",
        "AllocTRES": "cpu=8,gres/gpu=4,node=2", **fields,
    }  # fmt: skip


# The example of jobstats' page "Generating Job Summaries", with nodes of ours.
DOCUMENTED: dict[str, Any] = {
    "gpus": 1,
    "nodes": {
        "n1.example.org": {
            "cpus": 12,
            "gpu_total_memory": {"1": 85899345920},
            "gpu_used_memory": {"1": 83314868224},
            "gpu_utilization": {"1": 98.6},
            "total_memory": 137438953472,
            "total_time": 57620.8,
            "used_memory": 84683702272,
        }
    },
    "total_time": 50944,
}


def in_small_letters(summary: object) -> str:
    """As Tachograph writes it for a Slurm that has no capital letters."""
    compressed = gzip.compress(json.dumps(summary).encode(), mtime=0)
    return "js32:" + base64.b32encode(compressed).decode().rstrip("=").lower()


@pytest.mark.parametrize("written", [packed, in_small_letters])
def test_the_documented_comment_is_read(written: Callable[[object], str]) -> None:
    found = reading([record("1", AdminComment=written(DOCUMENTED))])
    (row,) = found.jobs
    assert found.unread == []
    assert row["recorded_by"] == "jobstats"
    assert row["recorded_gpu_util_mean"] == pytest.approx(0.986)
    assert row["recorded_hbm_used_mib_max"] == 83314868224 / 2**20
    assert row["recorded_hbm_peak_fraction"] == pytest.approx(83314868224 / 85899345920)
    (gpu,) = recorded_gpus(str(row["recorded_gpus"]))
    assert (gpu.node, gpu.gpu, gpu.hbm_mib) == ("n1", "1", 81920.0)


GPUS = {"gpu_utilization": {"0": 50}, "gpu_used_memory": {"0": GIB}, "gpu_total_memory": {"0": 0}}


@pytest.mark.parametrize(
    ("comment", "reasons", "util"),
    [
        ("JS1:Short", [], None),
        ("JS1:None", [], None),
        ("asked by phone", [], None),
        ("JS1:H4sI", ["bad_comment"], None),
        ("JS1:*", ["bad_comment"], None),
        ("JS1:" + base64.b64encode(gzip.compress(b" " * (1 << 27) + b"{}", mtime=0)).decode(),
         ["bad_comment"], None),
        ("JS1:" + "A" * 70000, ["bad_comment"], None),
        (packed({"nodes": [1]}), ["bad_comment"], None),
        (packed({"nodes": {"n1": {"gpu_utilization": {"0": "all"}}}}), ["bad_comment"], None),
        (packed({"nodes": {"n9": {"gpu_utilization": {"0": 9}}, "n1": GPUS}}), ["comment_of_other_node"], 0.5),
        (packed({"nodes": {"n1": {"gpu_utilization": {"0": 40, "$(rm)": 2, "-1": 3}}}}),
         ["bad_gpu_index", "bad_gpu_index"], 0.4),
        (packed({"nodes": {"n1": {"gpu_utilization": {"0": 101, "1": -1, "2": 30}}}}),
         ["out_of_range", "out_of_range"], 0.3),
        (packed({"nodes": {"n1": {"gpu_utilization": dict.fromkeys("01234", 9)}}}),
         ["comment_of_other_gpus"], None),
        (packed({"nodes": {"n1": {"gpu_used_memory": {"0": 1e300}}}}), ["out_of_range"], None),
        ("JS1:" + base64.b64encode(gzip.compress(b'{"a":' * 9000, mtime=0)).decode(), ["bad_comment"], None),
    ],
    ids=(f"comment {number}" for number in count()),
)  # fmt: skip
def test_what_is_wrong_in_a_comment_is_left_out_and_counted(
    comment: str, reasons: list[str], util: float | None
) -> None:
    found = reading([record("1", AdminComment=comment)])
    (row,) = found.jobs
    assert [value.reason for value in found.unread] == reasons
    assert row["recorded_gpu_util_mean"] == util
    assert row["recorded_by"] == (None if util is None else "jobstats")
    counted = Counter({reject.reason: reject.count for reject in found.rejects()})
    assert counted == Counter(reasons)


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.dictionaries(
        st.sampled_from(["nodes", "n1", "0", "gpu_utilization", "gpu_used_memory"]), inner
    ),
    max_leaves=12,
)


@given(st.one_of(_JSON.map(packed), st.text(max_size=40).map("JS1:".__add__)))
def test_no_comment_gives_what_cannot_be(comment: str) -> None:
    columns, _ = recorded_use(comment, AccountedRun("n1", 2))
    assert set(columns) <= set(JOBS.schema)
    util = columns.get("recorded_gpu_util_mean")
    assert util is None or (isinstance(util, float) and 0 <= util <= 1)


def test_what_slurm_polled_is_that_of_the_largest_task() -> None:
    # As in Slurm's documentation: two tasks with a GPU each, then one task with two.
    one = "cpu=00:00:11,energy=0,fs/disk=87613,gres/gpumem=36266M,gres/gpuutil=100,mem=628748K"
    two = "cpu=00:00:11,gres/gpumem=72532M,gres/gpuutil=198,mem=628748K"
    none = "cpu=00:00:11,gres/gpumem=0,gres/gpuutil=0,mem=628748K"
    rows = [record("1"), record("2"), record("3"), record("4")]
    for job_id, usages in (("1", [one, none]), ("2", [one, two]), ("3", [none])):
        rows += [
            record(f"{job_id}.{number}", TRESUsageInMax=usage)
            for number, usage in enumerate(usages)
        ]
    rows.append(record("4.0", TRESUsageInMax="gres/gpumem=1G,gres/gpuutil=900"))
    found = reading(rows)
    polled = {
        row["job_id"]: (row["task_gpu_util_max"], row["task_gpu_mem_mib_max"]) for row in found.jobs
    }
    assert polled["1"] == (1.0, 36266.0)
    assert polled["2"] == (1.98, 72532.0)
    assert polled["3"] == (None, None)  # Slurm saw no process on a GPU: a MIG slice, say
    assert polled["4"] == (None, 1024.0)  # nine busy GPUs of four
    assert [value.reason for value in found.unread] == ["out_of_range"]


def test_text_and_json_say_the_same() -> None:
    usage = [
        {"type": "gres", "name": "gpumem", "id": 1002, "count": 3 * GIB},
        {"type": "gres", "name": "gpuutil", "id": 1003, "count": 42},
    ]
    begin = int(utc(1).timestamp())
    times = {"start": begin, "end": begin + 3600, "submission": begin, "elapsed": 3600}
    steps = [{"step": {"id": "1.0", "name": "a"}, "time": times, "state": "COMPLETED",
              "tres": {"requested": {"max": usage}}}]  # fmt: skip
    tres = {"allocated": [{"type": "gres", "name": "gpu", "count": 4}]}
    document = {"jobs": [{
        "job_id": 1, "cluster": "c", "nodes": "n[1-2]", "time": times, "tres": tres, "steps": steps,
        "state": {"current": "COMPLETED"}, "comment": {"administrator": packed(DOCUMENTED)},
    }]}  # fmt: skip
    content = json.dumps(document).encode()
    (of_json,) = read_content(content, where="made", cluster=SlurmCluster())
    of_text = reading(
        [
            record("1", AdminComment=packed(DOCUMENTED)),
            record("1.0", TRESUsageInMax="gres/gpumem=3G,gres/gpuutil=42"),
        ]
    )
    (first,), (second,) = of_json.jobs, of_text.jobs
    names = [name for name in JOBS.schema if name.startswith(("recorded_", "task_"))]
    assert len(names) == 7
    assert [first[name] for name in names] == [second[name] for name in names]
    assert first["task_gpu_util_max"] == 0.42


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Job 1 has a comment alone, job 2 a comment and samples, job 3 what Slurm polled."""
    made = Lake.create(str(tmp_path_factory.mktemp("recorded") / "lake"))
    recorded, _ = recorded_use(packed({"nodes": {"n1": {
        "gpu_utilization": {"0": 90, "1": 10},
        "gpu_used_memory": {"0": 20 * GIB, "1": GIB},
        "gpu_total_memory": {"0": 80 * GIB, "1": 80 * GIB},
    }}}), AccountedRun("n1", 2))  # fmt: skip
    polled = {"task_gpu_util_max": 1.5, "task_gpu_mem_mib_max": 2048.0}
    tables: dict[str, list[dict[str, Any]]] = {"jobs": [], "allocations": [], "gpu_samples": []}
    for name, more in (("1", recorded), ("2", recorded), ("3", polled)):
        start = utc(1, 2 * int(name))
        end = start + timedelta(hours=1)
        tables["jobs"].append(
            job(name, start, end, gpus=2, node_list="n1", cluster="c", user="u", **more)
        )
        tables["allocations"] += held(name, "n1", (0, 1), start, end, cluster="c")
        if name == "2":
            tables["gpu_samples"] += [
                {"t": start + timedelta(seconds=10 * n), "node": "n1", "gpu": gpu, "gpu_util": 0.25}
                for n in range(360)
                for gpu in (0, 1)
            ]
    fill(made, tables)
    summarized(made)
    return made


def test_summaries_stay_apart_from_what_is_measured(lake: Lake) -> None:
    rows = {row["job_id"]: row for row in read_summaries(lake).to_dicts()}
    alone, measured, polled = rows["1"], rows["2"], rows["3"]
    assert (alone["recorded_by"], alone["recorded_gpu_util_mean"]) == ("jobstats", 0.5)
    assert (alone["recorded_hbm_used_mib_max"], alone["recorded_hbm_peak_fraction"]) == (
        20480,
        0.25,
    )
    assert measured["gpu_util_mean"] == 0.25
    assert [name for name in measured if name.startswith("recorded_") and measured[name]] == []
    # What needs samples is as if there were no comment.
    recorded = {name for name in alone if name.startswith(("recorded_", "task_gpu"))}
    own = {"job_id", "job_key", "display_id", "submit", "start", "end", "as_of"}
    assert {n: v for n, v in alone.items() if n not in recorded | own} == {
        n: v for n, v in polled.items() if n not in recorded | own
    }
    assert alone["gpu_util_mean"] is None
    assert alone["hbm_peak_fraction"] is None
    findings = read_rows(lake, FINDINGS, read_summaries(lake)).sort("code")
    verdicts = {
        name: findings.filter(job_id=name).select("code", "verdict").rows() for name in "13"
    }
    assert verdicts["1"] == verdicts["3"]


def test_reports_mark_them(lake: Lake) -> None:
    report = read_job(lake, "1", now=NOW, configuration=Configuration())
    text = " ".join(job_text(report, width=120).split())
    assert (
        "No samples; by jobstats' comment in the accounting the GPUs were busy 50 % of the time and "
        "device memory peaked at 20.0 GiB (25 %). By GPU: GPU 0 90 %, GPU 1 10 %." in text
    )
    assert job_json(report)["recorded_by"] == "jobstats"
    polled = read_job(lake, "3", now=NOW, configuration=Configuration())
    assert polled.recorded == (
        "Slurm polled at most 150 % utilisation and 2.0 GiB of device memory of one task, over its "
        "GPUs."
    )
    summaries = read_summaries(lake)
    table = build_jobs_table(summaries, read_rows(lake, FINDINGS, summaries))
    lines = to_text(jobs_lines(table, width=300, ascii_only=True), ascii_only=True).splitlines()
    by_job = {line.split()[0]: line for line in lines if line[:1].isdigit()}
    assert "50 %*" in by_job["1"]
    assert "25 %*" in by_job["1"]
    assert "*" not in by_job["2"] + by_job["3"]
    assert "*: recorded by others, without samples" in lines[-1]


def test_comments_of_the_demo_are_read_back(demo: Path) -> None:
    lake = Lake.open(str(demo / "lake"))
    summaries = read_summaries(lake)
    rows = [row for row in summaries.to_dicts() if row["end"] is not None]
    compared = 0
    for row in rows[:: len(rows) // 60]:
        report = read_job(lake, row["job_key"], now=NOW, configuration=Configuration())
        nodes = read_gpus(lake, summaries.filter(job_key=row["job_key"]))["node"].unique()
        comment = comment_text(comment_json(report))
        fields = {"NodeList": ",".join(nodes) or "n1", "AllocTRES": f"gres/gpu={row['gpus']}"}
        found = reading([record(row["job_id"], AdminComment=comment, **fields)])
        assert found.unread == []
        (back,) = found.jobs
        if back["recorded_by"] is None:
            assert comment in ("JS1:None", "JS1:Short")
            continue
        compared += 1
        assert back["recorded_by"] == "tachograph"
        # A comment has tenths of a percent.
        assert back["recorded_gpu_util_mean"] == pytest.approx(row["gpu_util_mean"], abs=5.1e-4)
        assert back["recorded_hbm_used_mib_max"] == pytest.approx(row["hbm_used_mib_max"], abs=1e-6)
        peak = pytest.approx(row["hbm_peak_fraction"], abs=1e-9)
        assert back["recorded_hbm_peak_fraction"] == peak
    assert compared > 40
