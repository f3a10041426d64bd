"""Where `tachograph export` writes: one line each. Their modules are imported when they are asked for."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from tachograph.export.content import Content
    from tachograph.export.written import Written

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Target:
    """One target: its name, its module in `tachograph.export`, one line of help."""

    name: str
    module: str
    sentence: str


TARGETS: tuple[Target, ...] = (
    Target("postgresql", "postgresql", "tables of a PostgreSQL database, kept as the lake is: only what changed"),
    Target("csv", "csv", "files of comma-separated values, one per table"),
    Target("parquet", "parquet", "Parquet files, one per table"),
    Target("jsonl", "jsonl", "files of JSON lines, one per table"),
    Target("openmetrics", "openmetrics", "metrics for Prometheus: a textfile of node_exporter, or a pushgateway"),
    Target("clustercockpit", "clustercockpit", "a job archive as ClusterCockpit keeps it: one folder per job"),
)


class TargetModule(Protocol):
    """What a target's module offers."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Declare the target's own options, `--to` among them."""

    def export(self, content: Content, options: argparse.Namespace, progress: Progress) -> Sequence[Written]:
        """Write; return what was written. Errors: ExportError when the target does not take it."""
        ...


def load(target: Target) -> TargetModule:
    """Return the module of `target`, imported now."""
    return cast("TargetModule", import_module(f"tachograph.export.{target.module}"))
