"""Much FP16 or FP32 arithmetic and none on the tensor cores."""

from __future__ import annotations

import polars as pl

from tachograph.catalog.units import text
from tachograph.judge.check import Check, CheckedJob, Found

MUCH_ARITHMETIC = 0.2  # mean activity of the FP16 and FP32 pipes together
UNUSED = 0.005  # below this a pipe counts as unused; source: IPDPS 2026 notebooks


_ARITHMETIC = pl.col("fp16_active_mean") + pl.col("fp32_active_mean")


def decide(job: CheckedJob) -> Found:
    """Return how much each was used."""
    fp16, fp32 = job.measured("fp16_active_mean"), job.measured("fp32_active_mean")
    tensor = job.measured("tensor_active_max")
    return Found(
        f"FP32 units were active {text(fp32, 'fraction')} and FP16 units "
        f"{text(fp16, 'fraction')} of the time, "
        f"tensor cores at most {text(tensor, 'fraction')}.",
        job.evidence("fp16_active_mean", "fp32_active_mean", "tensor_active_max"),
    )


CHECK = Check(
    "no_tensor_use",
    family="kernels",
    severity="fact",
    title="The tensor cores were not used",
    advice=(
        "If the work is mostly matrix products (deep learning, dense linear algebra) and "
        "accuracy allows, try TF32, "
        "BF16 or FP16 through the libraries (for PyTorch: torch.set_float32_matmul_precision, "
        "autocast). "
        "Other kinds of work gain nothing from them."
    ),
    needs=("fp16_active", "fp32_active", "tensor_active"),
    decide=decide,
    condition=(_ARITHMETIC >= MUCH_ARITHMETIC) & (pl.col("tensor_active_max") < UNUSED),
)
