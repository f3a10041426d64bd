"""What nobody measured and an estimate would need, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tachograph.interference.demand import CYCLES, Calibration, Demand, Gpu
from tachograph.interference.sharing.vectors import Vectors

_LABELS = {"issue": "issue slots", "dram": "bandwidth of DRAM"}


def unknown(demands: Sequence[Demand], vectors: Vectors, *, gpu: Gpu, calibration: Calibration) -> tuple[str, ...]:
    """Return a sentence for all that is missing of these demands, of the GPU, of its calibration; each once."""
    if len(demands) < 2:
        return ()
    said = (*_of_members(demands, vectors), *_of_caches(demands, vectors), *_of_gpu(vectors, gpu, calibration))
    return tuple(dict.fromkeys(said))


def _of_members(demands: Sequence[Demand], vectors: Vectors) -> Iterator[str]:
    names = (*CYCLES, "dram")
    known = vectors.known
    asked = np.nan_to_num(np.column_stack([vectors.cycles, vectors.dram])).max(axis=0, initial=0.0) > 0
    wanted = asked | np.array([name in ("issue", "dram") for name in names])
    for demand, has in zip(demands, known, strict=True):
        missing = [_LABELS.get(name, name) for name, one, need in zip(names, has, wanted, strict=True) if need > one]
        if missing:
            yield f"{demand.name}: not measured: {', '.join(missing)}"
        if demand.irregular is None:
            yield f"{demand.name}: why its warps wait is not known; taken as irregular"
        if demand.irregular != 0 and demand.warps is None:
            yield f"{demand.name}: warps on a scheduler are not known; taken as one"
        if demand.footprint is None:
            yield f"{demand.name}: launch is not known; that its blocks find room beside others is taken for granted"
        if not demand.seconds:
            yield f"{demand.name}: how long it takes alone is not known"


def _of_caches(demands: Sequence[Demand], vectors: Vectors) -> Iterator[str]:
    for label, cached, hits in (("L2", vectors.in_l2, vectors.l2_hit), ("L1", vectors.in_l1, vectors.l1_hit)):
        lacks = cached.untold | (cached.uses & np.isnan(hits))
        missing = dict.fromkeys(one.name for one, lack in zip(demands, lacks, strict=True) if lack)
        if missing and cached.contended:
            verbs = "finds there or comes back to" if len(missing) == 1 else "find there or come back to"
            yield f"{label}: what {' and '.join(missing)} {verbs} is not known; left out"


def _of_gpu(vectors: Vectors, gpu: Gpu, calibration: Calibration) -> Iterator[str]:
    if np.isfinite(vectors.launches.blocks).any() and gpu.sms is None:
        yield "the GPU: number of SMs is not known; where blocks go is left out"
    if calibration.measured_on != gpu.name and np.count_nonzero(np.nan_to_num(vectors.dram) > 0) > 1:
        of = calibration.measured_on or "another GPU"
        yield f"{gpu.name}: latency of DRAM under load was not measured on it; that of {of} is taken"
