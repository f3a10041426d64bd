"""What `ingest` counts adds up: rows read are rows committed, merged, passed over, rejected, or
known before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from in_process import run_here
from tachograph.catalog.chunks import NOT_REMOVED

_FIELDS = "JobID|Submit|Start|End|State|NNodes|NodeList|AllocTRES"
_ENDED = "2026-01-01T10:00:00|2026-01-01T10:00:00|2026-01-01T11:00:00"
SACCT = [
    _FIELDS,
    f"1|{_ENDED}|COMPLETED|1|n1|gres/gpu=1",
    f"1|{_ENDED}|COMPLETED|1|n1|gres/gpu=1",  # a duplicate
    f"1.batch|{_ENDED}|COMPLETED|1|n1|gres/gpu=1",
    f"1.0|{_ENDED}|COMPLETED|1|n1|gres/gpu=1",
    f"2|{_ENDED}|SLEEPING|1|n1|gres/gpu=1",
    f"3|{_ENDED}|CANCELLED by 7|1|n[1-2|gres/gpu=1",
    f"4|{_ENDED}|COMPLETED|1|n1|gres/shard=2",
    f"5|{_ENDED}|PENDING|1|n1|gres/gpu=1",
    "6|1999-01-01T00:00:00|1999-01-01T00:00:00|1999-01-01T01:00:00|COMPLETED|1|n1|gres/gpu=1",
    "no record at all",
    f"x|{_ENDED}|COMPLETED|1|n1|gres/gpu=1",
]
SCONTROL = [
    (
        "JobId=1 JobState=RUNNING StartTime=2026-01-01T10:00:00 Nodes=n[1-2] CPU_IDs=0 Mem=0 "
        "GRES=gpu:2(IDX:0-1)"
    ),
    (
        "JobId=2 JobState=RUNNING StartTime=2026-01-01T10:00:00 Nodes=n3 CPU_IDs=0 Mem=0 "
        "GRES=shard:2(IDX:0)"
    ),
    (
        "JobId=3 JobState=PENDING StartTime=2026-01-01T10:00:00 Nodes=n3 CPU_IDs=0 Mem=0 "
        "GRES=gpu:1(IDX:1)"
    ),
    "JobId=4 JobState=RUNNING StartTime=2026-01-01T10:00:00 Nodes=n4 CPU_IDs=0 Mem=0 GRES=",
    (
        "JobId=5 JobState=RUNNING StartTime=2026-01-01T10:00:00 Nodes=n4 CPU_IDs=0 Mem=0 "
        "GRES=gpu:1(CNT:1)"
    ),
    (
        "JobId=6 JobState=ASLEEP StartTime=2026-01-01T10:00:00 Nodes=n4 CPU_IDs=0 Mem=0 "
        "GRES=gpu:1(IDX:0)"
    ),
    (
        "JobId=7 JobState=RUNNING StartTime=1999-01-01T10:00:00 Nodes=n4 CPU_IDs=0 Mem=0 "
        "GRES=gpu:1(IDX:1)"
    ),
]
SQUEUE = {
    "jobs": [
        {"job_id": 1, "job_state": ["RUNNING"], "nodes": "n1", "gres_detail": ["gpu:2(IDX:0-1)"]},
        {
            "job_id": 2,
            "job_state": ["RUNNING", "COMPLETING"],
            "nodes": "n[1-2]",
            "gres_detail": ["gpu:1(IDX:2)"],
        },
        {"job_id": 3, "job_state": ["PENDING"], "nodes": "", "gres_detail": []},
        "no job",
    ]
}
MAP = "job_id,node,gpu\n1,n[1-2],0-1\n1,n1,0\n2,n3,x\n3,n4\nfour,n1,0\n"
LOG = (
    "1767261600 prolog job=1 node=n1 gpus=0,1\n1767261700 epilog job=1 node=n1 gpus=0,1\n"
    "1767261600 prolog job=2 node=n2\n1767261700 epilog job=2 node=n2\nrubbish\n"
    "1767261600 prolog job=3 node=n3 gpus=q\n"
)
TABLE = (
    "time,host,gpu,util\n2026-01-01T00:00:00,n1,0,50\n2026-01-01T00:00:00,n1,0,50\n"
    "never,n1,0,50\n2026-01-01T00:01:00,,0,1\n"
)
MAPPING = (
    'table = "gpu_samples"\ntime.column = "time"\nnode.column = "host"\ngpu.column = "gpu"\n'
    '[columns]\nutil = { to = "gpu_util", unit = "percent" }\n'
)
LDMS = (
    "Time,ProducerName,job_id,gpu,DCGM_FI_DEV_GPU_UTIL,foo\n1767261600,n1,7,0,50,1\n1767261600,n1,7,0,50,1\n"
    "x,n1,7,0,50,1\n1767261660,,7,0,50,1\n1767261660,n1,z,1,50,1\n1767261660,n1,7,q,50,1\n"
)
SMI = (
    "timestamp, index, uuid, utilization.gpu [%], foo [x]\n2026/01/01 10:00:00.000, 0, GPU-1, "
    "50 %, 3\n"
    "2026/01/01 10:00:00.000, 0, GPU-1, 50 %, 3\nnever, 0, GPU-1, 50 %, 3\nshort\n"
    "2026/01/01 10:00:00.000, q, GPU-1, 50 %, 3\n2026/01/01 10:00:01.000, 0, GPU-1, [N/A], 3\n"
)
PAGE = (
    'DCGM_FI_DEV_GPU_UTIL{gpu="0",Hostname="n1"} NaN\nDCGM_FI_DEV_GPU_UTIL{gpu="1",Hostname="n1"} 5\n'
    'DCGM_FI_DEV_GPU_UTIL{gpu="1",Hostname="n1",pod="a"} 5\nDCGM_FI_DEV_GPU_UTIL{gpu="1",Hostname="n1",pod="b"} 6\n'
    'DCGM_FI_DEV_POWER_USAGE{gpu="1",Hostname="n1"} 90\nDCGM_FI_DEV_POWER_USAGE{Hostname="n1"} 90\n'
    'DCGM_FI_DEV_FB_TOTAL{gpu="1",Hostname="n1"} 81920\n'
    'DCGM_FI_DEV_GPU_TEMP{gpu="1",Hostname="n1"} 1e9\n{broken 5\ngo_threads 5\ngo_gc{q="0"} 5\ngo_gc{q="1"} 5\n'
)
# source -> the table of which each row is made of one row that was read, or of several that are
# counted
PRIMARY = {
    "sacct": ("jobs", "steps"),
    "allocation-map": ("allocations",),
    "table": ("gpu_samples",),
}
PRIMARY |= dict.fromkeys(("ldms", "nvidia-smi", "dcgm-exporter"), ("gpu_samples",))
FILES: Mapping[str, tuple[str, str]] = {
    "sacct.txt": ("sacct", "\n".join(SACCT) + "\n"),
    "steps.txt": ("sacct", "\n".join([SACCT[0], *SACCT[3:5]]) + "\n"),
    "empty.txt": ("sacct", f"{_FIELDS}\n"),
    "scontrol.txt": ("allocation-map", "\n".join(SCONTROL) + "\n"),
    "squeue.json": ("allocation-map", json.dumps(SQUEUE)),
    "map.csv": ("allocation-map", MAP),
    "prolog.log": ("allocation-map", LOG),
    "table.csv": ("table", TABLE),
    "ldms.csv": ("ldms", LDMS),
    "smi.csv": ("nvidia-smi", SMI),
    "page.prom": ("dcgm-exporter", PAGE),
}


def ingested(folder: Path, name: str, *words: str) -> Any:
    source, content = FILES[name]
    (folder / name).write_text(content)
    (folder / "mapping.toml").write_text(MAPPING)
    options: dict[str, tuple[str, ...]] = {
        "table": ("--mapping", "mapping.toml"),
        "nvidia-smi": ("--node", "n1"),
    }
    options["dcgm-exporter"] = ("--time", "2026-01-01")
    options["allocation-map"] = ("--trusted",)
    more = options.get(source, ())
    done = run_here(("ingest", source, name, *more, "--lake", "L", *words), folder, {})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if "--json" in words else done.stdout


def accounted(report: Any, source: str) -> int:
    """The rows read, as the other counts of a report add up to them."""
    tables = PRIMARY[source]
    total = report["rows_known"] + sum(report["passed"].values())
    for table in tables:
        rows = [
            reject
            for reject in report["rejects"]
            if reject["table"] == table and reject["column"] is None
        ]
        removed = {
            row["reason"]: row["removed"] for row in rows if row["reason"] not in NOT_REMOVED
        }
        reshaped = report["reshaped"].get(table)
        if reshaped:  # what conform rejects was made of rows that are counted as used
            used = reshaped["rows"]
            late = (
                {"start_too_early", "start_in_future", "end_before_start"}
                if source == "allocation-map"
                else set()
            )
            total += used + sum(
                count for reason, count in removed.items() if reason not in {"duplicate", *late}
            )
        else:
            total += report["rows"].get(table, 0) + sum(removed.values())
    if not report["reshaped"]:
        total += report["completing"]
    return int(total)


@pytest.mark.parametrize("name", FILES)
def test_rows_read_are_all_accounted_for(tmp_path: Path, name: str) -> None:
    report = ingested(tmp_path, name, "--json")
    assert accounted(report, FILES[name][0]) == report["rows_read"]
    again = ingested(tmp_path, name, "--json")
    assert (
        accounted(again, FILES[name][0])
        == again["rows_read"]
        == report["rows_read"]
        == again["rows_known"]
    )
    nameless = {"duplicate", "unknown_column", "unmapped_column"}  # a column is its own example
    examples = [reject for reject in report["rejects"] if reject["reason"] not in nameless]
    assert all(reject["example"] for reject in examples)


def test_only_steps_and_nothing_are_reported_differently(tmp_path: Path) -> None:
    steps = ingested(tmp_path, "steps.txt").splitlines()
    assert steps == ["2 rows read; 2 steps committed to L"]
    assert (
        ingested(tmp_path, "empty.txt") == "0 rows read, there were none; nothing committed to L\n"
    )


def test_jobs_without_gpus_are_counted(tmp_path: Path) -> None:
    lines = ingested(tmp_path, "scontrol.txt").splitlines()
    assert lines == [
        "7 rows read; 6 allocations committed to L",
        "2 rows passed over: jobs that hold no GPUs",
        "4 rows made 7 allocations",
        "rejected: 1 row of allocations: bad state",
        "rejected: 1 value of gpu of allocations: index not told",
        "rejected: 1 row of allocations: start too early",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "JOBID|NODELIST|TRES_PER_NODE\n1|n1|gres/gpu:2\n",
        "             JOBID     NODELIST TRES_PER_N\n                 1           n1 gres/gpu:2\n",
        (
            "JOBID               NODELIST            TRES_ALLOC\n1                   n[1-2]        "
            "   cpu=1,gres/gpu=2\n"
        ),
    ],
)
def test_counts_of_squeue_without_indices_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "squeue.txt").write_text(text)
    done = run_here(("ingest", "allocation-map", "squeue.txt", "--lake", "L"), tmp_path, {})
    assert done.returncode == 4
    assert done.stderr.count("\n") == 1
    assert "export `squeue --json` or `scontrol show job -d`" in done.stderr


def test_metrics_of_a_page_that_are_not_read_are_named(tmp_path: Path) -> None:
    assert ingested(tmp_path, "page.prom", "--json")["unmapped"] == {"go_gc": 2, "go_threads": 1}
    other = tmp_path / "other"
    other.mkdir()
    printed = ingested(other, "page.prom").splitlines()
    assert "not read: 3 lines of 2 metrics without a mapping: go_gc (2), go_threads (1)" in printed
    assert "rejected: 1 row of gpu_samples: not finite" in printed
