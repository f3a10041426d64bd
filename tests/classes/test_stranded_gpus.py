"""GPUs that a job left, and others could not use, by what it held of its nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobframes import summary
from tachograph.catalog.config import Thresholds
from tachograph.catalog.rows import JobSummaryRow
from tachograph.judge.check import CheckedJob, JobRows
from tachograph.judge.checks.stranded_gpus import CHECK, decide
from tachograph.judge.judge import judge_summaries
from tachograph.judge.partitions import with_nodes
from tachograph.sources.slurm.partitions import read_partitions

NODE = {"node_gpus": 8.0, "node_cpus": 64.0, "node_memory_mib": 800_000.0}
NO_ROWS = JobRows(pl.DataFrame(schema={"job_key": pl.String})).of("")


def stranded(**job: Any) -> float | None:
    row = cast("JobSummaryRow", {"nodes": 1, "elapsed_s": 7200.0, "exclusive": False} | NODE | job)
    found = decide(CheckedJob(row, NO_ROWS, NO_ROWS, Thresholds()))
    if found is None:
        return None
    count = found.evidence["gpus_stranded"]
    assert found.evidence["gpu_hours_stranded"] == pytest.approx(2 * count)
    return count


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ({"gpus": 1, "cpus": 8, "mem_requested_mib": 100_000.0}, None),  # its share
        ({"gpus": 1, "cpus": 15, "mem_requested_mib": 199_999.0}, None),  # less than one more
        ({"gpus": 1, "cpus": 16, "mem_requested_mib": 100_000.0}, 1),
        ({"gpus": 1, "cpus": 8, "mem_requested_mib": 200_000.0}, 1),
        ({"gpus": 1, "cpus": 32, "mem_requested_mib": 700_000.0}, 6),  # the scarcer one
        ({"gpus": 1, "cpus": 64, "mem_requested_mib": None}, 7),
        ({"gpus": 8, "cpus": 64, "mem_requested_mib": 800_000.0}, None),
        ({"gpus": 8, "nodes": 4, "cpus": 256, "mem_requested_mib": 400_000.0}, 24),
        ({"gpus": 8, "nodes": 4, "cpus": 64, "mem_requested_mib": 400_000.0}, None),
        ({"gpus": 4, "nodes": 4, "cpus": 32, "exclusive": True}, 28),
        ({"gpus": 8, "cpus": 64, "exclusive": True}, None),
        ({"gpus": 1, "cpus": None, "mem_requested_mib": None}, None),
        ({"gpus": 1, "cpus": 64, "node_gpus": None}, None),
    ],
)
def test_what_others_could_not_use(job: dict[str, Any], expected: float | None) -> None:
    assert stranded(**job) == expected


@given(st.integers(1, 8), st.integers(1, 64), st.floats(1, 800_000))
def test_never_more_than_the_job_left(gpus: int, cpus: int, memory: float) -> None:
    count = stranded(gpus=gpus, cpus=cpus, mem_requested_mib=memory)
    assert count is None or 1 <= count <= 8 - gpus
    # what a job holds more of strands no less
    more = stranded(gpus=gpus, cpus=64, mem_requested_mib=memory)
    assert (more or 0) >= (count or 0)


def test_verdict_is_unknown_where_nodes_are_not_recorded(tmp_path: Path) -> None:
    node = "CPUTot=64 RealMemory=800000 Gres=gpu:8"
    file = tmp_path / "partitions.txt"
    file.write_text(
        f"PartitionName=gpu\n Nodes=a1\n\nNodeName=a1 {node}\n\nNodeName=b1 CPUTot=8 Gres=gpu:1\n\n"
        "PartitionName=mixed\n Nodes=a1,b1\n"
    )
    jobs = pl.DataFrame(
        [
            summary(job_key=f"c:{name}:1", job_id=name, partition=name, gpus=1, nodes=1, cpus=cpus)
            for name, cpus in (("gpu", 64), ("mixed", 64), ("other", 64))
        ],
        infer_schema_length=None,
    )
    partitions = read_partitions(str(file))
    known = with_nodes(jobs, partitions)
    elsewhere = jobs.with_columns(cluster=pl.lit("other"))
    for cluster, recorded in (("", 1), ("other", 1), ("this", 0)):
        of_nodes = with_nodes(elsewhere, partitions, cluster=cluster)
        assert of_nodes["node_cpus"].count() == recorded
    empty = pl.DataFrame(schema={"job_key": pl.String})
    gpus = empty.with_columns(
        pl.lit(None, pl.String).alias(name) for name in ("node", "gpu", "mig")
    )
    found = judge_summaries(known, gpus, empty, Thresholds(), checks=(CHECK,))
    verdicts = dict(found.select("job_id", "verdict").iter_rows())
    assert verdicts == {"gpu": "yes", "mixed": "unknown", "other": "unknown"}
    assert found.filter(job_id="other")["needs"].to_list() == [["slurm.partitions_file"]]
