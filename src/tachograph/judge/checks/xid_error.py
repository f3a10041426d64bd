"""The driver reported errors (XID)."""

from __future__ import annotations

import polars as pl

from tachograph.catalog.units import plural
from tachograph.judge.check import Check, CheckedJob, Found
from tachograph.judge.health import XID_OFTEN_THE_PROGRAM, xid_meaning

HAPPENED = pl.col("xid_events") > 0  # to a GPU, or to any of a job


def decide(job: CheckedJob) -> Found:
    """Return on which GPUs it changed, and what the largest code means."""
    events = job.measured("xid_events")
    code = job.number("xid_event_max")
    touched = job.gpus_that(HAPPENED)
    where = f" on {job.labels(touched)}" if touched else ""
    what = (
        f"; the largest code is {int(code)} ({xid_meaning(int(code))}{_cause(int(code))})"
        if code
        else ""
    )
    return Found(
        f"{plural(events, 'XID event')}{where}{what}.",
        job.evidence("xid_events", "xid_event_max", gpus_affected=float(len(touched)) or None),
    )


def _cause(code: int) -> str:
    return ", usually caused by the program" if code in XID_OFTEN_THE_PROGRAM else ""


CHECK = Check(
    "xid_error",
    family="driver errors",
    severity="problem",
    title="The driver reported GPU errors",
    advice=(
        "Codes that usually come from the program (a wrong memory access): run it with "
        "compute-sanitizer. Other codes, "
        "or the same node again and again: report node, GPU and time to the support staff of "
        "your site."
    ),
    needs=("xid",),
    decide=decide,
    condition=HAPPENED,
)
