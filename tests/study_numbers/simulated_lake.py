"""Lakes of simulated clusters, filled and analyzed by the real commands; their samples as plain
rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from tachograph.catalog.tables import GPU_SAMPLES
from tachograph.cli import main
from tachograph.lake.delta import Lake


def command(*arguments: str) -> None:
    """Run a command; it must succeed."""
    assert main([*arguments, "--quiet"]) == 0, arguments


def lake_of(cluster: Path, place: Path, as_of: datetime) -> Lake:
    """Return a new lake at `place` that holds the simulated cluster of a folder, analyzed."""
    common = ["--config", str(cluster / "tachograph.toml"), "--lake", str(place)]
    command("ingest", "ldms", str(cluster / "telemetry"), *common)
    command("ingest", "sacct", str(cluster / "accounting" / "sacct.txt"), *common)
    gpu_map = cluster / "allocations" / "gpu_map.csv"
    if gpu_map.read_text().count("\n") > 1:
        command("ingest", "allocation-map", str(gpu_map), *common)
    devices = cluster / "devices.csv"
    command(
        "ingest", "table", str(devices), "--mapping", str(devices.with_suffix(".toml")), *common
    )
    command("analyze", "--as-of", as_of.isoformat(), "--threads", "1", *common)
    return Lake.open(str(place))


def sample_rows(lake: Lake) -> Iterator[dict[str, Any]]:
    """Yield the samples of a lake, one row per key."""
    yield from lake.latest(GPU_SAMPLES).sort("node", "gpu", "mig", "t").iter_rows(named=True)
