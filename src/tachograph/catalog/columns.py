"""How columns of job summaries are called and written for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import polars as pl

from tachograph.catalog.errors import NotFoundError, TachographError
from tachograph.catalog.suggestions import did_you_mean
from tachograph.catalog.tables import JOB_SUMMARIES
from tachograph.catalog.units import plural, text, zone

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobRow, JobSummaryRow


COLUMN_UNITS: Mapping[str, str] = MappingProxyType(
    {column.name: column.unit for column in JOB_SUMMARIES.columns}
    # 0..1 as in the literature, not percent
    | {"spatial_imbalance": "ratio", "temporal_imbalance": "ratio"}
    # 0..100 by definition, not shares
    | {"gpu_hours_lost": "h"}
    | {"score_gpu": "", "score_gpumem": "", "score_gpumem_normalized": ""}
)
COLUMN_HEADINGS: Mapping[str, str] = MappingProxyType(
    {
        "display_id": "job",
        "job_id": "raw id",
        "gpus": "GPUs",
        "elapsed_s": "elapsed",
        "gpu_hours": "GPU-h",
        "gpu_model": "GPU model",
        "gpu_util_mean": "GPU use",
        "sm_active_mean": "SMs active",
        "tensor_active_mean": "tensor active",
        "dram_active_mean": "DRAM active",
        "spatial_imbalance": "SI",
        "temporal_imbalance": "TI",
        "hbm_peak_fraction": "memory",
        "energy_j": "energy",
        "gpu_hours_lost": "lost GPU-h",
        "worst_severity": "worst",
        "energy_j_estimated": "energy est.",
        "power_w_mean": "power",
        "coverage": "coverage",
        "cpus": "CPUs",
        "cpu_time_s": "CPU time",
        "cpu_efficiency": "CPU use",
        "max_rss_mib": "largest task",
        "recorded_by": "recorded by",
        "recorded_gpu_util_mean": "recorded GPU use",
        "recorded_hbm_peak_fraction": "recorded memory",
        "recorded_hbm_used_mib_max": "recorded memory peak",
        "task_gpu_util_max": "GPU use polled",
        "task_gpu_mem_mib_max": "GPU memory polled",
        "mem_requested_mib": "host memory requested",
        "score_gpu": "GPU score (0 best)",
        "score_gpumem": "memory score (0 best)",
        "score_gpumem_normalized": "normalized (0 best)",
    }
)
_SHOWN = 8  # names that an error lists
FINDINGS_COLUMN = "findings"  # codes of the findings of a job, joined; not stored in summaries
SEVERITY_COLUMN = "worst_severity"  # of these findings: problem, hint; not stored in summaries
LOST_COLUMN = "gpu_hours_lost"  # GPU-hours lost to any cause of waste; not stored in summaries
INTERNAL = frozenset({"seq"})  # bookkeeping of the lake, of no meaning outside


def column_heading(name: str) -> str:
    """Return the heading of a column."""
    return COLUMN_HEADINGS.get(name, name)


def column_text(name: str, value: Any, *, zone_name: str = "UTC") -> str:
    """Return a value of a summary column as people read it; an absent one is a dash.

    >>> column_text("gpu_util_mean", 0.42), column_text("pipes", ["fp64", "tensor"]), column_text("user", None)
    ('42 %', 'fp64+tensor', '–')
    """
    match value:
        case None:
            return text(None)
        case str():
            return value
        case datetime():
            return local_time(value, zone_name)
        case list() | tuple():
            return "+".join(map(str, value)) if value else text(None)
        case _:
            return text(float(value), COLUMN_UNITS.get(name, ""))


def share_text(row: JobSummaryRow | JobRow) -> str | None:
    """Return the share of GPUs of a job; None where it has none, or has whole GPUs.

    >>> share_text({"shards": 4, "mps": None}), share_text({"mps": 50.0}), share_text({"shards": None})
    ('4 shards', '50 MPS', None)
    """
    shards, mps = row.get("shards"), row.get("mps")
    if shards:
        return plural(shards, "shard")
    return f"{text(mps, 'count')} MPS" if mps else None


def joined_lists(frame: pl.DataFrame) -> pl.DataFrame:
    """Return `frame` with lists as text, their items joined with `+`, for formats without lists.

    >>> joined_lists(pl.DataFrame({"pipes": [["fp64", "tensor"], []], "jobs": [3, None]})).rows()
    [('fp64+tensor', 3), ('', None)]
    """
    lists = [name for name, dtype in frame.schema.items() if isinstance(dtype, pl.List)]
    return frame.with_columns(
        pl.col(name).cast(pl.List(pl.String)).list.join("+") for name in lists
    )


def local_time(moment: datetime, zone_name: str) -> str:
    """Return a time in a zone, to the second.

    >>> from datetime import UTC
    >>> local_time(datetime(2026, 4, 23, 17, tzinfo=UTC), "America/Los_Angeles")
    '2026-04-23 10:00:00 PDT'
    """
    return moment.astimezone(zone(zone_name)).strftime("%Y-%m-%d %H:%M:%S %Z")


def midnight(day: pl.Expr, zone_name: str) -> pl.Expr:
    """Return when a day begins; where clocks skip midnight, or the whole day, when that ends."""
    clock = day.cast(pl.Datetime("us"))
    return pl.coalesce(
        (clock + pl.duration(hours=hours)).dt.replace_time_zone(
            zone_name, ambiguous="earliest", non_existent="null"
        )
        for hours in (0, 1, 24)
    )


def must_exist(
    names: Sequence[str],
    known: Sequence[str],
    *,
    what: str = "column",
    page: str = "",
    error: type[TachographError] = NotFoundError,
) -> None:
    """Check that all `names` are known; `page`: of the documentation, has them all.

    Errors: `error` naming the unknown one and those close to it, or whose headings are: UsageError
    where an option takes few fixed values.
    """
    for name in names:
        if name not in known:
            known = tuple(dict.fromkeys(known))
            called = {column_heading(column): column for column in known}
            suggestions = did_you_mean(name, called | {column: column for column in known}, most=3)
            some = _some(known, page) if page or not suggestions else ""
            raise error(f"no {what} {name!r}", do=" ".join(filter(None, (suggestions, some))))


def _some(known: Sequence[str], page: str) -> str:
    """Return the first of many names, how many more there are, and where they are listed.

    >>> _some(["user", "gpus"], "docs/tables.md"), _some([f"c{n}" for n in range(10)], "docs/tables.md")[-26:]
    ('for example: user, gpus', 'and 2 more: docs/tables.md')
    """
    more = len(known) - _SHOWN
    rest = ""
    if more > 0:
        rest = f", and {more} more: {page}" if page else f", and {more} more"
    return f"for example: {', '.join(known[:_SHOWN])}{rest}"
