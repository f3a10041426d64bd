"""What the tests of the Slurm sources share: types of fixtures, rows as values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tachograph.sources.sacct import read_file
from tachograph.sources.slurm.exports import AccountingReading
from tachograph.sources.slurm.records import SlurmCluster

Write = Callable[[str | bytes], Path]
ReadText = Callable[..., AccountingReading]

MADE = Path(__file__).parent / "recorded"  # Slurm on one host: four GPU nodes, one CPU node
VERSIONS = ("22.05.8", "24.11.5", "26.05.5")


def reading_of(path: Path, *, time_zone: str = "UTC") -> AccountingReading:
    """Return what a file holds, of which nothing was rejected."""
    (reading,) = read_file(path, cluster=SlurmCluster(time_zone=time_zone), trusted=True)
    assert reading.rejected == []
    return reading
