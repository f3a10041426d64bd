"""Two names of one node: what Slurm and an exporter of Kubernetes call it becomes one node."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from in_process import run_here
from tachograph.catalog.chunks import (
    CLUSTER_MARK,
    Chunk,
    ChunkPart,
    NumberedGpu,
    PendingChunk,
    rename_nodes,
)
from tachograph.catalog.config import Configuration, NodeOptions
from tachograph.catalog.errors import ConfigError
from tachograph.catalog.tables import ALLOCATIONS, DEVICES, GPU_SAMPLES, LakeTable
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries
from tachograph.sources.slurm.fields import node_aliases

START = datetime(2026, 4, 20, 10, tzinfo=UTC)
SACCT = (
    "JobID|JobIDRaw|Cluster|Partition|Submit|Start|End|Elapsed|State|NNodes|NodeList|AllocTRES\n"
    "7|7|c|gpu|2026-04-20T10:00:00|2026-04-20T10:00:00|2026-04-20T10:10:00|00:10:00|COMPLETED|1|"
    "slinky-gpu-1|gres/gpu=1\n"
)
ALIASES = '[nodes]\naliases = { "ip-10-0-0-[5-6]" = "slinky-gpu-[0-1]" }\n'


def nodes_of(lake: Lake, table: LakeTable) -> set[str]:
    return set(lake.latest(table)["node"])


@pytest.mark.parametrize("named", [True, False])
def test_samples_under_another_name_are_those_of_the_job(tmp_path: Path, *, named: bool) -> None:
    times = [START + timedelta(seconds=30 * tick) for tick in range(20)]
    host = "ip-10-0-0-6.ec2.internal"
    rows = pl.DataFrame({"t": times, "node": host, "gpu": 0, "gpu_util": 0.8})
    rows.write_parquet(tmp_path / "samples.parquet")
    labels = f'gpu="0",UUID="GPU-1",Hostname="{host}"'
    (tmp_path / "page.prom").write_text(
        f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} 80 {round(times[-1].timestamp() * 1000) + 15000}\n"
    )
    (tmp_path / "jobs.txt").write_text(SACCT)
    (tmp_path / "tachograph.toml").write_text(ALIASES if named else "")
    files = ("samples.parquet", "page.prom", "jobs.txt")
    for words in (["ingest", *(f"./{file}" for file in files)], ["analyze"]):
        done = run_here([*words, "--lake", "lake", "--config", "tachograph.toml"], tmp_path, {})
        assert done.returncode == 0, done.stderr
    lake = Lake.open(str(tmp_path / "lake"))
    node = "slinky-gpu-1" if named else "ip-10-0-0-6"
    assert nodes_of(lake, GPU_SAMPLES) == nodes_of(lake, DEVICES) == {node}
    assert nodes_of(lake, ALLOCATIONS) == {"slinky-gpu-1"}
    (used,) = read_summaries(lake)["gpu_util_mean"]
    assert used == (pytest.approx(0.8) if named else None)


def test_a_pending_chunk_and_numbered_gpus_get_the_name_and_keep_their_cluster() -> None:
    gpus = tuple(
        NumberedGpu(node, 0, None, "GPU-1", None, None) for node in ("a", f"a{CLUSTER_MARK}c", "b")
    )
    frame = pl.DataFrame({"node": ["a", "b", None], "gpu_util": [0.1, 0.2, 0.3]})
    chunk = Chunk("id", "s", "o", (ChunkPart("gpu_samples", frame, gpus=gpus),), 3)
    pending = PendingChunk("id", "s", "o", lambda: chunk)
    (part,) = rename_nodes(pending, {"a": "n", "b": "a"}).fetch().parts
    assert part.frame["node"].to_list() == ["n", "a", None]
    assert [gpu.node for gpu in part.gpus] == ["n", f"n{CLUSTER_MARK}c", "a"]
    assert rename_nodes(chunk, {}) is chunk


@pytest.mark.parametrize(
    ("written", "nodes"), [("a[1-3]", "b[1-2]"), ("a[1-", "b1"), ("a[1-9999999]", "b[1-9999999]")]
)
def test_lists_that_do_not_fit_are_refused(written: str, nodes: str) -> None:
    configuration = Configuration(nodes=NodeOptions(aliases={written: nodes}))
    with pytest.raises(ConfigError, match="are not lists of as many nodes"):
        node_aliases(configuration)
