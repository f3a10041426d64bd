"""Targets of `tachograph export`, one line each; their modules are imported on demand."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from tachograph.export.content import ExportContent, ExportResult

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class ExportTarget:
    """A target: name, module, one line of help.

    A module that begins with a dot lies in `tachograph.export`; installed packages name theirs
    whole. `MODULE:NAME` is an object of a module.
    """

    name: str
    module: str
    sentence: str


TARGETS: tuple[ExportTarget, ...] = (
    ExportTarget(
        "postgresql",
        ".postgresql",
        "tables of a PostgreSQL database, kept as the lake is: only what changed",
    ),
    ExportTarget("csv", ".tables:CSV", "files of comma-separated values, one per table"),
    ExportTarget("parquet", ".tables:PARQUET", "Parquet files, one per table"),
    ExportTarget("jsonl", ".tables:JSON_LINES", "files of JSON lines, one per table"),
    ExportTarget(
        "openmetrics",
        ".openmetrics",
        "metrics for Prometheus: a textfile of node_exporter, or a pushgateway",
    ),
    ExportTarget(
        "clustercockpit",
        ".clustercockpit",
        "a job archive as ClusterCockpit keeps it: one folder per job",
    ),
    ExportTarget("xdmod", ".xdmod", "lines of sacct, as Open XDMoD's shredder reads them"),
    ExportTarget(
        "supremm", ".supremm", "summaries of jobs as SUPReMM's: one JSON document each (untested)"
    ),
)


class ExportModule(Protocol):
    """Interface of a target's module or object."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Declare the target's own options, `--to` among them."""

    def export(
        self, content: ExportContent, options: argparse.Namespace, progress: Progress
    ) -> Sequence[ExportResult]:
        """Export; return what was written. Errors: ExportError if the target fails."""
        ...


def load_target(target: ExportTarget) -> ExportModule:
    """Return the module or the object of `target`, imported now."""
    name, _, attribute = target.module.partition(":")
    module = import_module(name, "tachograph.export")
    return cast("ExportModule", getattr(module, attribute) if attribute else module)
