"""The sources `tachograph ingest` knows: one line each. Their modules are imported when they are asked for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from tachograph.config import Configuration
    from tachograph.sources import Chunk


@dataclass(frozen=True, slots=True)
class Source:
    """One source: its name, its module in `tachograph.sources`, one line of help."""

    name: str
    module: str
    sentence: str


SOURCES: tuple[Source, ...] = (
    Source("ldms", "ldms", "GPU samples recorded by LDMS: Parquet, CSV, NERSC's JSON exports"),
    Source("table", "table", "any CSV, Parquet or JSON by a mapping of its columns; --suggest proposes one"),
    Source("prometheus", "prometheus", "what Prometheus, Thanos, Mimir or VictoriaMetrics keep; answers saved as JSON"),
    Source("dcgm-exporter", "dcgm_exporter", "GPU and node samples of exporters: saved pages, or asked with --url"),
    Source("sacct", "sacct", "Slurm accounting: sacct as text or JSON, NERSC's job records"),
    Source("allocation-map", "allocation_map", "which GPUs a job held: CSV, prolog/epilog logs, scontrol, squeue"),
    Source("recording", "recording", "what `tachograph record` wrote: folders of tables, and spools cut off"),
    Source("slurm-live", "slurm_live", "which GPUs jobs hold right now: asks squeue, scontrol or slurmrestd once"),
)


class SourceModule(Protocol):
    """What a source's module offers. SUFFIXES: names of files that are taken from a folder."""

    SUFFIXES: tuple[str, ...]

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Declare the source's own options."""

    def read(self, options: argparse.Namespace, *, configuration: Configuration, now: datetime) -> Iterator[Chunk]:
        """Yield chunks. `options.files` is one file at a time; `options.in_folder`: a folder was named instead."""
        ...


class RecordSource(Protocol):
    """What a module of records (not of samples) offers besides: every record that it could not read, one by one."""

    def rejected(
        self, options: argparse.Namespace, *, configuration: Configuration
    ) -> Iterator[tuple[str, int, str, str]]:
        """Yield (file, line or position, reason, text)."""
        ...


def load_records(source: Source) -> RecordSource | None:
    """Return the module of `source` where it can show its rejected records one by one, else None."""
    module = load(source)
    return cast("RecordSource", module) if hasattr(module, "rejected") else None


def load(source: Source) -> SourceModule:
    """Return the module of `source`, imported now."""
    return cast("SourceModule", import_module(f"tachograph.sources.{source.module}"))
