"""The PCIe link of a GPU repeated packets during the job."""

from __future__ import annotations

from tachograph.catalog.units import plural
from tachograph.judge.check import Check, CheckedJob, Found


def decide(job: CheckedJob) -> Found | None:
    """Return Found if PCIe replays were counted while the job ran (sum over its GPUs)."""
    touched = job.gpus_with("pcie_replays_max", lambda replays: replays > 0)
    if not touched:
        return None
    replays = float(sum(gpu["pcie_replays_max"] for gpu in touched))
    return Found(
        f"{plural(replays, 'PCIe replay')} during the job on {job.labels(touched)}.",
        {"pcie_replays": replays, "gpus_affected": float(len(touched))},
    )


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
    decide=decide,
)
