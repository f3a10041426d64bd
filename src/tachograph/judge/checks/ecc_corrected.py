"""GPU memory had errors during the job that were corrected: results are right."""

from __future__ import annotations

from tachograph.judge.check import Check
from tachograph.judge.checks.pcie_replays import counted, new_errors

CHECK = Check(
    "ecc_corrected",
    family="GPU memory faults",
    severity="fact",
    title="Errors of GPU memory were corrected during the job",
    needs=("ecc_sbe",),
    decide=new_errors("ecc_sbe"),
    gpu_condition=counted("ecc_sbe"),
)
