"""Endpoint of the annex watch: every visible GPU as it is now."""

from __future__ import annotations

import msgspec
import polars as pl

from tachograph.api.answers import Paging, TableAnswer, page_of
from tachograph.api.endpoints import OBJECT, Endpoint, TableShape, list_of
from tachograph.api.pages import PageView
from tachograph.api.parameters import Parameters
from tachograph.catalog.counters import COUNTERS
from tachograph.catalog.table_columns import TableColumn, real, text
from tachograph.catalog.tables import DEVICES, GPU_KEY, GPU_SAMPLES, STORAGE_TYPES, TIME

_NOW_SHAPE = TableShape(
    (
        TableColumn("t", TIME, "UTC", "When the source was polled.", None),
        *(column for column in GPU_SAMPLES.columns if column.name in (*GPU_KEY, "cluster")),
        *(
            column
            for column in DEVICES.columns
            if column.name in ("model", "uuid", "pci", "hbm_mib")
        ),
        text("job_id", "Its job."),
        text("user", "Its user."),
        TableColumn(
            "class", pl.String(), "", "Workload class of the last minute, or unknown.", None
        ),
        text("bottleneck", "Limiting resource.", "not known"),
        real("real_utilisation", "fraction", "Utilisation weighted by the activity of its units."),
        TableColumn("health", pl.String(), "", "CRIT, WARN, HOT, OK, or unknown.", None),
        *(
            TableColumn(
                counter.name,
                STORAGE_TYPES[counter.storage],
                counter.unit,
                counter.sentence,
                "not measured",
            )
            for counter in COUNTERS
        ),
        real("stale_s", "s", "Age of its values.", "none yet"),
        TableColumn(
            "needs", pl.List(pl.String()), "", "Counters without which the class is unknown.", None
        ),
        TableColumn("processes", pl.String(), "", "Its processes.", None),
    ),
    documents={"processes": list_of(OBJECT)},
)


def now(view: PageView, parameters: Parameters, paging: Paging) -> TableAnswer:
    """Return a page of GPUs as `tachograph watch --once --json`; empty before the first poll."""
    # The service lists its endpoints when it starts, and polls at the first request.
    from tachograph.annexes.watch.served_fleet import live_rows

    rows = live_rows(view)
    encoded = [row | {"processes": msgspec.json.encode(row["processes"]).decode()} for row in rows]
    schema = {column.name: column.dtype for column in _NOW_SHAPE.columns}
    frame = pl.DataFrame(encoded, schema=schema)
    key = ("node", "cluster", "gpu", "mig")
    return _NOW_SHAPE.with_documents(page_of(frame.sort(key), key, paging))


ENDPOINTS = (
    Endpoint(
        "/now",
        "now",
        "Every visible GPU as it is now.",
        now,
        _NOW_SHAPE,
        versioned=False,
        light=True,
    ),
)
