"""The PCIe link of a GPU repeated packets during the job."""

from __future__ import annotations

import polars as pl

from tachograph.catalog.units import plural
from tachograph.judge.activity import number
from tachograph.judge.check import Check, CheckedJob, Decide, Found
from tachograph.judge.health import NEW_ERRORS


def counted(counter: str) -> pl.Expr:
    """Return whether a GPU counted errors while the job ran."""
    return pl.col(f"{counter}_max") > 0


def new_errors(counter: str) -> Decide:
    """Return what finds the GPUs that counted errors while the job ran, and their sum."""

    def decide(job: CheckedJob) -> Found:
        touched = job.gpus_that(counted(counter))
        errors = sum(number(gpu, f"{counter}_max") or 0.0 for gpu in touched)
        return Found(
            f"{plural(errors, NEW_ERRORS[counter])} during the job on {job.labels(touched)}.",
            {counter: errors, "gpus_affected": float(len(touched))},
        )

    return decide


CHECK = Check(
    "pcie_replays",
    family="PCIe link",
    severity="hint",
    title="The PCIe link of a GPU repeated packets",
    advice=(
        "If the job was slow, report it to the support staff of your site: the slot or "
        "cable may need attention."
    ),
    needs=("pcie_replays",),
    decide=new_errors("pcie_replays"),
    gpu_condition=counted("pcie_replays"),
)
