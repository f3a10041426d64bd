"""Computed tables of made-up jobs: rows start with every column null, and only what a test is
about is set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import polars as pl

from tachograph.catalog.counters import COUNTER_NAMES
from tachograph.catalog.rows import JobSummaryRow
from tachograph.catalog.tables import JOB_GPUS, JOB_MINUTES, JOB_SUMMARIES, LakeTable

START = datetime(2026, 4, 23, 17, 0, tzinfo=UTC)
_KEY = {"job_key": "c:100:1", "job_id": "100", "seq": 1}

_OF_COUNTERS = frozenset(f"{name}{end}" for name in COUNTER_NAMES for end in ("", "_mean", "_max"))


def frame(table: LakeTable, rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """Return rows in the schema of `table`: what is not given is null."""
    filled = []
    for row in rows:
        assert not (unknown := set(row) - set(table.schema)), unknown
        filled.append({name: row.get(name) for name in table.schema})
    return pl.DataFrame(filled, schema=table.schema)


def summary(**given: Any) -> JobSummaryRow:
    """Return a row of job_summaries: 4 GPUs on one node for two hours, nothing measured."""
    elapsed = given.get("elapsed_s", 7200.0)
    row: dict[str, Any] = {
        **_KEY,
        "state": "COMPLETED",
        "start": START,
        "end": START + timedelta(seconds=elapsed),
        "submit": START - timedelta(minutes=10),
        "elapsed_s": elapsed,
        "nodes": 1,
        "gpus": 4,
        "attribution": "explicit",
        "as_of": START + timedelta(seconds=elapsed),
    } | given
    row.setdefault("gpu_hours", row["gpus"] * elapsed / 3600)
    return cast("JobSummaryRow", frame(JOB_SUMMARIES, [row]).row(0, named=True))


def job_row(**values: Any) -> JobSummaryRow:
    """Return a row of job_summaries of these columns alone."""
    assert not (unknown := set(values) - set(JOB_SUMMARIES.schema)), unknown
    return cast("JobSummaryRow", values)


def gpus(*rows: dict[str, Any]) -> pl.DataFrame:
    """Return job_gpus of one job: GPU 0, 1, ... of node n1 unless a row says otherwise."""
    return frame(
        JOB_GPUS, [_KEY | {"node": "n1", "gpu": place} | row for place, row in enumerate(rows)]
    )


def minutes(*series: Sequence[float | None], **others: Sequence[float | None]) -> pl.DataFrame:
    """Return job_minutes of GPU 0, 1, ... whose gpu_util are `series` (None: that minute has no
    row).

    `others` are further columns, the same for each GPU.
    """
    rows = []
    for gpu, levels in enumerate(series):
        for minute, level in enumerate(levels):
            if level is None:
                continue
            row = _KEY | {
                "node": "n1",
                "gpu": gpu,
                "minute": minute,
                "t": START + timedelta(minutes=minute),
            }
            row |= {"samples": 6, "gpu_util": level} | {
                name: values[minute] for name, values in others.items()
            }
            rows.append(row)
    return frame(JOB_MINUTES, rows)


def measured(value: Any) -> Any:
    """Return JSON values without those of counters that were not measured."""
    if isinstance(value, list):
        return [measured(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        name: measured(part)
        for name, part in value.items()
        if part is not None or name not in _OF_COUNTERS
    }
