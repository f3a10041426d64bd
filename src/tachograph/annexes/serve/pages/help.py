"""What the columns and sums on the pages mean; headings lead to their place here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tachograph.annexes.serve.snapshot import View
from tachograph.api.endpoints import OF_FINDINGS, public_columns
from tachograph.api.parameters import Parameters
from tachograph.catalog.columns import COLUMN_UNITS
from tachograph.catalog.counters import COUNTERS
from tachograph.catalog.table_columns import TableColumn
from tachograph.catalog.tables import JOB_SUMMARIES

PARAMETERS = Parameters
COLUMNS = {column.name: column for column in (*public_columns(JOB_SUMMARIES), *OF_FINDINGS)}
SUMS: Mapping[str, str] = {
    "held": "GPU-hours held by these jobs: GPUs times run time, also without work.",
    "lost": "GPU-hours of ended jobs in which a GPU did no work, by one cause each. Hours that were "
    "not measured are never counted as lost.",
    "recoverable": "Lost GPU-hours that a change of the job would have given to others, under the "
    "assumptions listed on the page Waste.",
    "recovered": "GPU-hours that were lost less than the share of the weeks before would let one "
    "expect.",
}
# {column with which a group begins: its heading}; the others follow as in the table
GROUPS: Mapping[str, str] = {
    "job_key": "Job",
    "submit": "Times and resources",
    "attribution": "Attribution and coverage",
    "gpu_util_mean": "Counters",
    "spatial_imbalance": "Imbalance",
    "bound": "Bottleneck",
    "hbm_peak_fraction": "Memory and energy",
    "gpus_never_used": "Idle GPUs, scores, workload",
    "gpu_hours_never_used": "GPU-hours by use",
    "xid_events": "Errors and bookkeeping",
    OF_FINDINGS[0].name: "Findings and lost hours",
}
# {unit in the lake: as `text` writes it for people}; others are the same
SHOWN_UNITS: Mapping[str, str] = {
    "fraction": "%",
    "ratio": "0 to 1",
    "s": "h, min, s",
    "J": "kWh",
    "MiB": "GiB",
    "B": "GB",
    "B/s": "GB/s",
    "C": "°C",
}


def content(view: View, parameters: Parameters) -> Mapping[str, Any]:
    """Return the meaning of sums and of columns by group."""
    units = {**SHOWN_UNITS, "UTC": f"time of {view.zone_name}"}
    return {
        "sums": SUMS,
        "groups": _groups(),
        "counters": _counters(),
        "units": {name: units.get(unit, unit) for name, unit in COLUMN_UNITS.items()},
    }


def _groups() -> Mapping[str, list[TableColumn]]:
    """Return {heading: its columns}."""
    groups: dict[str, list[TableColumn]] = {}
    for name, column in COLUMNS.items():
        if name in GROUPS:
            heading = GROUPS[name]
        groups.setdefault(heading, []).append(column)
    return groups


def _counters() -> dict[str, str]:
    """Return {column: what its counter is}; others are explained by their own sentence."""
    return {
        f"{counter.name}_{statistic}": counter.sentence
        for counter in COUNTERS
        for statistic in ("mean", "max")
    }
