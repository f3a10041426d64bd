"""`GET /now`: every visible GPU as it is now."""

from __future__ import annotations

import msgspec
import polars as pl

from tachograph.catalog.counters import COUNTERS
from tachograph.catalog.table_columns import TableColumn, real, text
from tachograph.catalog.tables import DEVICES, GPU_KEY, GPU_SAMPLES, STORAGE_TYPES, TIME
from tachograph.live.render import json_rows
from tachograph.web.answers import TableAnswer
from tachograph.web.fleet import visible_view
from tachograph.web.pages.now import running_of
from tachograph.web.paging import Paging, page_of
from tachograph.web.parameters import Parameters
from tachograph.web.shapes import TableShape
from tachograph.web.snapshot import View

PARAMETERS = Parameters
_KEY = tuple(column for column in GPU_SAMPLES.columns if column.name in GPU_KEY)
_DEVICE = tuple(column for column in DEVICES.columns if column.name in ("model", "uuid", "pci", "hbm_mib"))
RETURNS = TableShape(
    (
        TableColumn("t", TIME, "UTC", "When the source was polled.", None),
        *_KEY,
        *_DEVICE,
        text("job_id", "Its job."),
        text("user", "Its user."),
        TableColumn("class", pl.String(), "", "Workload class of the last minute, or unknown.", None),
        text("bottleneck", "What limits it.", "not known"),
        real("real_utilisation", "fraction", "Use that counts what its units do."),
        TableColumn("health", pl.String(), "", "CRIT, WARN, HOT, OK, or unknown.", None),
        *(
            TableColumn(one.name, STORAGE_TYPES[one.storage], one.unit, one.sentence, "not measured")
            for one in COUNTERS
        ),
        real("stale_s", "s", "Age of its values.", "none yet"),
        TableColumn("needs", pl.List(pl.String()), "", "Counters without which the class is unknown.", None),
        TableColumn("processes", pl.String(), "", "Its processes.", None),
    ),
    documents={"processes": {"type": "array", "items": {"type": "object"}}},
)


def answer(view: View, parameters: Parameters, paging: Paging) -> TableAnswer:
    """Return a part of the GPUs, as `tachograph watch --once --json` prints them; none before the first poll."""
    seen = visible_view(view.fleet.state(), view.viewer, running_of(view))
    rows = [] if seen is None else json_rows(seen)
    encoded = [row | {"processes": msgspec.json.encode(row["processes"]).decode()} for row in rows]
    frame = pl.DataFrame(encoded, schema={column.name: column.dtype for column in RETURNS.columns})
    page = page_of(frame.sort(*GPU_KEY), GPU_KEY, paging)
    return TableAnswer(page.rows, page.cursor, page.matching, tuple(RETURNS.documents))
