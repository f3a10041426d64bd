"""The driver reported errors (XID)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tachograph.catalog.config import Thresholds
from tachograph.catalog.units import plural
from tachograph.judge.checks.evidence import evidence_of, gpu_labels, number
from tachograph.judge.finding import Finding
from tachograph.judge.health import XID_OFTEN_THE_PROGRAM, xid_meaning


def xid_error(
    summary: Mapping[str, Any], gpus: pl.DataFrame, minutes: pl.DataFrame, thresholds: Thresholds
) -> Finding | None:
    """Return the finding that the XID code changed during the job."""
    events = number(summary, "xid_events")
    if not events:
        return None
    code = number(summary, "xid_event_max")
    touched = gpus.filter(pl.col("xid_events") > 0).sort("node", "gpu", "mig")
    where = f" on {gpu_labels(touched, of=gpus)}" if touched.height else ""
    what = f"; the largest code is {int(code)} ({xid_meaning(int(code))})" if code else ""
    program = code is not None and int(code) in XID_OFTEN_THE_PROGRAM
    return Finding(
        "xid_error",
        "problem",
        "The driver reported GPU errors",
        f"{plural(events, 'XID event')}{where}{what}.",
        "This code usually comes from the program (a wrong memory access): run it with compute-sanitizer. "
        "If it stays on one node, tell the support staff."
        if program
        else "Tell the support staff of your site, with node, GPU and time: the hardware may need attention.",
        evidence_of(summary, "xid_events", "xid_event_max", gpus_affected=float(touched.height) or None),
    )
