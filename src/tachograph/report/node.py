"""The report of a node: the answer in a line, rows for tables, JSON."""

from __future__ import annotations

from typing import Any, cast

import polars as pl

from tachograph.catalog.units import plural, text
from tachograph.judge.health import OK, xid_meaning
from tachograph.judge.node_history import NodeGpuRow, NodeReport
from tachograph.report.json_values import json_values


def node_headline(report: NodeReport) -> str:
    """Return how many jobs and GPUs, and whether something is wrong."""
    ran = f"{plural(report.jobs.height, 'job')} on {plural(report.gpus.height, 'GPU')}"
    if report.jobs.is_empty():
        return f"{plural(report.gpus.height, 'GPU')}; no analyzed job ran here."
    faulty = report.gpus.filter(pl.col("lemon") == "yes")
    lemons = "".join(
        f" {gpu_label(row)} may be faulty: jobs of {row['users_failed']} of its "
        f"{plural(row['users'], 'user')} failed, on its neighbours far fewer."
        for row in cast("list[NodeGpuRow]", faulty.to_dicts())
    )
    sick = report.sick
    if sick.is_empty():
        measured = report.gpus.filter(
            pl.col("xid_events").is_not_null() | (pl.col("health") == OK)
        ).height
        if not measured:
            return f"{ran}; GPU errors were not measured.{lemons}"
        some = "" if measured == report.gpus.height else f", of {measured} of them"
        return f"{ran}; no GPU errors recorded{some}.{lemons}"
    named = ", ".join(gpu_label(row) for row in cast("list[NodeGpuRow]", sick.to_dicts()))
    return f"{ran}; errors, faults or heat on {named}.{lemons}"


def gpu_label(row: NodeGpuRow) -> str:
    """Return the name of a GPU of the node.

    >>> gpu_label({"gpu": 3, "mig": None}), gpu_label({"gpu": 3, "mig": 7})
    ('GPU 3', 'GPU 3.7')
    """
    return f"GPU {row['gpu']}" + (f".{row['mig']}" if row["mig"] is not None else "")


def xid_text(row: NodeGpuRow) -> str:
    """Return XID errors: number, largest code, its meaning; a dash if not measured."""
    if not row["xid_events"]:
        return text(row["xid_events"], "count")
    code = row["xid"]
    return text(row["xid_events"], "count") + (
        "" if code is None else f": {int(code)}, {xid_meaning(int(code))}"
    )


def node_json(report: NodeReport) -> dict[str, Any]:
    """Return the report as JSON values: hours, fractions 0..1; null: not measured."""
    return {**json_values(report), "headline": node_headline(report)}
