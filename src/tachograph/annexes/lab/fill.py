"""Simulate a plan into a lake: ingest and delete each sample file, then the accounting."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tachograph.annexes.lab.simulate.cluster import SimulatedCluster, simulate
from tachograph.annexes.lab.simulate.plan import SimulationPlan
from tachograph.annexes.lab.simulate.workload import SimulatedRequest
from tachograph.catalog import config
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest
from tachograph.sources import ldms
from tachograph.sources.registry import find_source, load_source


def fill(
    plan: SimulationPlan,
    location: str,
    folder: str | Path,
    progress: Callable[[int, int], None] | None = None,
    *,
    requests: Sequence[SimulatedRequest] = (),
) -> SimulatedCluster:
    """Ingest a simulated cluster into the lake at `location`; return it without files of telemetry.

    `requests`: as of `simulate`. `folder` keeps configuration, accounting and truth. Memory and
    disk are bounded by `plan.rows_per_file`, by the jobs and by the lake: files of telemetry are
    removed as they are read. Errors: UsageError when the folder holds something;
    LakeError when folder or lake cannot be written.
    """
    lake = Lake.create(location)

    def take(file: Path) -> None:
        ingest(lake, ldms.read_file(file), now=datetime.now(UTC))
        file.unlink()

    cluster = simulate(plan, folder, progress, take=take, requests=requests)
    _ingest(
        lake,
        cluster,
        "table",
        cluster.devices,
        "--mapping",
        str(cluster.devices.with_suffix(".toml")),
    )
    _ingest(lake, cluster, "sacct", cluster.accounting)
    _ingest(lake, cluster, "allocation-map", cluster.gpu_map)
    return cluster


def _ingest(lake: Lake, cluster: SimulatedCluster, source: str, file: Path, *more: str) -> None:
    """Ingest like `tachograph ingest SOURCE FILE` with the configuration of the cluster."""
    module = load_source(find_source(source))
    parser = argparse.ArgumentParser()
    module.add_options(parser)
    options = parser.parse_args([str(file), *more])
    configuration = config.load(str(cluster.configuration), {})
    now = datetime.now(UTC)
    ingest(lake, module.read(options, configuration=configuration, now=now), now=now)
