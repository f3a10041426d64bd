"""A link between GPUs had errors during the job."""

from __future__ import annotations

from tachograph.judge.check import Check
from tachograph.judge.checks.pcie_replays import counted, new_errors

CHECK = Check(
    "nvlink_errors",
    family="links between GPUs",
    severity="hint",
    title="A link between GPUs had errors",
    advice=(
        "If the job was slow or its communication failed, report it to the support staff of your "
        "site: the link may need attention."
    ),
    needs=("nvlink_errors",),
    decide=new_errors("nvlink_errors"),
    gpu_condition=counted("nvlink_errors"),
)
